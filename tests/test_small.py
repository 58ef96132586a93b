"""ieee_small: each of its tiles, and of its clusters, wherever the operands lie."""

from __future__ import annotations

import pytest
import torch
from support.data import integers
from support.layouts import PAIRS, Guarded, meta
from support.table import needs_cuda_build, row_params

import torch_sgemm

each_small_row = pytest.mark.parametrize(
    "row, device", row_params(("cuda",), keep=lambda row: row.name == "ieee_small")
)
# On an H200: tiles of 16 x 16 by clusters of 1, 2, 4 and 8 blocks, of 32 x 16 and the other way
# round, of 32 x 32; each with whole tiles and steps of k and with parts of them.
SHAPES = (
    (16, 16, 16), (1, 9, 3), (64, 48, 128), (130, 61, 127), (33, 17, 300), (96, 80, 513),
    (64, 64, 1000), (30, 33, 5003), (24, 20, 20001), (320, 320, 320), (319, 333, 63),
    (700, 600, 40), (5, 3000, 30), (3001, 7, 41), (1000, 1000, 17),
)  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
@each_small_row
def test_exact_in_every_layout(row, device, shape, offset, pair) -> None:
    """Alone and in a batch; ``offset`` elements from where four can be read at once."""
    m, n, k = shape
    for batch in (1, 3) if m * n < 2e5 else (1,):
        lead = f"_off{offset}" if offset else ""
        a, b = (
            Guarded((batch, *sizes), name + lead, device, integers((batch, *sizes), 1 + i, device))
            for i, (sizes, name) in enumerate(zip(((m, k), (k, n)), pair, strict=True))
        )
        c = integers((batch, m, n), 3, device)
        out = Guarded((batch, m, n), "T" if batch > 1 else "N", device, c)
        product = a.view.double() @ b.view.double()
        torch.ops.sgemm.gemm_(out.view, a.view, b.view, alpha=2, beta=-1, kernel=row.name)
        assert torch.equal(out.view.double(), 2 * product - c.double())
        assert out.guards_unchanged() and a.unchanged() and b.unchanged()
        plain = torch.ops.sgemm.bmm(a.view, b.view, kernel=row.name)
        assert torch.equal(plain.double(), product)


@each_small_row
def test_results_follow_each_other(row, device) -> None:
    """Kernels that start before the one in front has ended read what it has written."""
    steps = [integers((40, 40), seed, device, largest=1) for seed in range(8)]
    x = torch.eye(40, device=device)
    expected = x.double()
    for step in 8 * steps:
        x = torch.ops.sgemm.mm(step, x, kernel=row.name).remainder_(7)
        expected = (step.double() @ expected).remainder(7)
    assert torch.equal(x.double(), expected)
    y, expected = x, x.double()
    for step in steps[:3]:  # nothing in between
        y, expected = torch.ops.sgemm.mm(step, y, kernel=row.name), step.double() @ expected
    assert torch.equal(y.double(), expected)


@needs_cuda_build
@pytest.mark.parametrize("shape", [(16, 16, 16), (128, 128, 128), (127, 129, 65), (64, 64, 1024)])
def test_small_products_are_chosen(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for pair in PAIRS:
        a, b = meta(m, k, pair[0]), meta(k, n, pair[1])
        assert torch_sgemm.explain(a, b, device=torch_sgemm.Device()).chosen == "ieee_small"
