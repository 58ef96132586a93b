"""The same call gives the same bits."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from support.table import Kernel, fit
from torch import Tensor

SHAPES = {
    "cpu": ((67, 45, 300), (130, 129, 65)),
    "cuda": ((67, 45, 300), (257, 129, 1000), (1000, 1030, 513), (64, 64, 65536)),
}


def test_same_bits_five_times(row: Kernel, device: str) -> None:
    for shape in SHAPES[device]:
        m, n, k = fit(row, *shape)
        a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
        c = torch.randn(m, n, device=device)
        first = torch.ops.sgemm.addmm(c, a, b, beta=0.5, alpha=1.5, kernel=row.name)
        for _ in range(4):
            again = torch.ops.sgemm.addmm(c, a, b, beta=0.5, alpha=1.5, kernel=row.name)
            assert torch.equal(again.view(torch.int32), first.view(torch.int32)), (m, n, k)


@pytest.mark.rows(device="cpu", where=lambda row: row.family)
def test_same_bits_on_one_core(row: Kernel, device: str) -> None:
    """The number of cores that share the blocks doesn't change a sum."""
    m, n, k = fit(row, 150, 140, 200)
    a, b = torch.randn(m, k), torch.randn(k, n)
    expected = torch.ops.sgemm.mm(a, b, kernel=row.name)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert torch.equal(torch.ops.sgemm.mm(a, b, kernel=row.name), expected)
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.rows(device="cuda")
def test_same_bits_beside_busy_streams(row: Kernel, device: str) -> None:
    """Other streams that fill the GPU change when blocks run, not what they add."""
    m, n, k = fit(row, 513, 300, 700)
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    expected = torch.ops.sgemm.mm(a, b, kernel=row.name)
    load = torch.randn(2048, 2048, device=device)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for stream in streams[1:]:
        with torch.cuda.stream(stream):
            for _ in range(4):
                load @ load
    with torch.cuda.stream(streams[0]):
        results = [torch.ops.sgemm.mm(a, b, kernel=row.name) for _ in range(5)]
    torch.cuda.synchronize()
    for result in results:
        assert torch.equal(result.view(torch.int32), expected.view(torch.int32))


@pytest.mark.rows(family="split", device="cuda", where=lambda row: row.takes_float32)
@pytest.mark.parametrize("shape", [(16, 91, 2528, 59), (2, 200, 3000, 300), (1, 128, 9000, 64)])
def test_guarded_elements_have_the_same_bits(
    row: Kernel, device: str, shape: tuple[int, ...]
) -> None:
    """Whichever block of a tile comes last: what certifies an element doesn't depend on it."""
    batch, m, k, n = shape
    gen = torch.Generator(device).manual_seed(0)

    def wide(*sizes: int) -> Tensor:
        x = torch.randn(sizes, device=device, generator=gen)
        return x.sign() * torch.exp(3 * torch.randn(sizes, device=device, generator=gen))

    a, b, c = wide(batch, m, k), wide(batch, k, n), wide(batch, m, n)
    for plan in range(len(torch.ops.sgemm._plans(c, a, b, row.name))):
        results = []
        for _ in range(60):
            results.append(torch.full_like(c, torch.nan))
            torch.ops.sgemm._run_plan(results[-1], a, b, row.name, plan)
        found = torch.stack(results).view(torch.int32)
        assert torch.equal(found, found[:1].expand_as(found)), plan


@pytest.mark.gpu
@pytest.mark.parametrize(
    "size, addends",
    [
        ((4000, 4, 32), ((4,), (4000, 4))),
        ((64, 50000, 128), ((64, 1), (64, 50000))),
        ((64, 50000, 128), ((1, 1), (50000,))),
    ],
)
def test_what_came_before_does_not_matter(
    size: tuple[int, int, int], addends: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """A thread's choices are remembered; each is for all that it depends on."""
    m, n, k = size
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    added = [torch.randn(shape, device="cuda") for shape in addends]

    def run(order: tuple[int, int], into: dict[int, Tensor]) -> None:
        for i in order:
            into[i] = torch.ops.sgemm.addmm(added[i], a, b)

    results: list[dict[int, Tensor]] = [{}, {}]
    for order, into in zip(((0, 1), (1, 0)), results, strict=True):
        thread = threading.Thread(target=run, args=(order, into))
        thread.start()
        thread.join()
    for i in (0, 1):
        assert torch.equal(results[0][i], results[1][i])
