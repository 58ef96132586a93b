"""Attention of DTensors in one of several processes: ``python -m support.attention_shards``.

Arguments: the rank, the number of processes, a file for their store. Compares values, gradients and
placements with the call on whole tensors.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)

import torch_sgemm
from support.attention import operands


def check(mesh, placements: list, groups: int, kind: str, expected: type) -> None:
    tensors = [*operands("cpu", 4, 4, 7, 9, 8, groups=groups)]
    masks = {"rows": (7, 9), "heads": (4, 1, 9), "batch": (4, 1, 7, 9), "none": None}
    if masks[kind]:
        tensors.append(torch.randn(masks[kind], generator=torch.Generator().manual_seed(4)))
        placements = [*placements, Replicate()]
    whole = [x.requires_grad_() for x in tensors]
    options = {"enable_gqa": groups != 4}
    result = torch_sgemm.attention(*whole, **options)
    gradients = torch.autograd.grad(result.square().sum(), whole)
    parts = [
        distribute_tensor(x.detach(), mesh, [p]).requires_grad_()
        for x, p in zip(tensors, placements, strict=True)
    ]
    found = torch_sgemm.attention(*parts, **options)
    what = placements, groups, kind
    assert isinstance(found, DTensor) and found.placements == (expected,), (what, found.placements)
    torch.testing.assert_close(found.full_tensor(), result, rtol=0, atol=2e-6)
    split = torch.autograd.grad(found.square().sum(), parts)
    for x, y in zip(split, gradients, strict=True):
        torch.testing.assert_close(x.full_tensor(), y, rtol=0, atol=2e-5)


def main(rank: int, count: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    mesh = init_device_mesh("cpu", (count,))
    batch, heads, whole = Shard(0), Shard(1), Replicate()
    for kind in ("none", "rows", "heads", "batch"):
        check(mesh, [batch] * 3, 4, kind, batch)
        check(mesh, [heads] * 3, 4, kind, heads)
        check(mesh, [heads] * 3, 2, kind, heads)
        check(mesh, [whole] * 3, 4, kind, whole)
    check(mesh, [batch] * 3, 1, "none", batch)
    check(mesh, [whole] * 3, 1, "none", whole)
    dist.destroy_process_group()
    print("right")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
