"""Slices of attention's gradients, which use one workspace one after the other: same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.attention import operands
from support.attention_gradients import Way, gradients, launches

MIB = 32  # of workspace
# Short heads whose planes take more: slices of batch entries, and of groups of one.
SLICED = [  # batches, heads, groups, depth; slices; entries or groups computed alone
    (5, 64, 64, 64, 2, [0, 2, 3, 4]),
    (1, 256, 256, 64, 2, [0, 127, 128, 255]),
    (2, 130, 130, 128, 4, [0, 1]),
    (2, 400, 200, 64, 4, [0, 1]),
    (1, 400, 200, 64, 2, [0, 99, 100, 199]),
]


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", SLICED, ids=str)
@pytest.mark.parametrize("kind", ["plain", "causal", "float", "bool"])
def test_slices_have_the_bits_of_their_heads_alone(
    sizes: tuple, kind: str, limit_workspace: Callable[[int], None]
) -> None:
    limit_workspace(MIB)
    batch, heads, groups, depth, slices, parts = sizes
    way, share = Way("cuda", "split"), heads // groups
    shape = batch, heads, 120, 100, depth
    grad, inputs = operands("cuda", *shape, seed=1)[0], operands("cuda", *shape, groups=groups)
    tensors = [grad, *inputs]
    tensors[1][-1, -1] *= 2.0**40  # is computed again by multiply-adds
    tensors[2] = tensors[2].transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "float":
        tensors.append(torch.randn(batch, heads, 120, 100, device="cuda"))
    elif kind == "bool":
        mask = torch.rand(batch, 1, 120, 100, device="cuda") > 0.3
        tensors.append(mask.expand(-1, heads, -1, -1))
    causal = kind == "causal"
    found = gradients(way, *tensors, is_causal=causal)
    for part in parts:
        if batch > 1:
            of_heads = of_groups = (slice(part, part + 1),)
        else:
            of_heads = slice(None), slice(part * share, (part + 1) * share)
            of_groups = slice(None), slice(part, part + 1)
        places = (of_heads, of_heads, of_groups, of_groups, of_heads)
        alone = [x[at].contiguous() for x, at in zip(tensors, places, strict=False)]
        expected = gradients(way, *alone, is_causal=causal)
        for name, x in found.items():
            part_of_x = x[of_groups if name in ("key", "value") else of_heads]
            torch.testing.assert_close(part_of_x, expected[name], rtol=0, atol=0)
    assert sum(launches(way, *tensors, is_causal=causal).values()) == slices
