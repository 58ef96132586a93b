"""Rows for small problems: batches in every size class, wherever the products lie in memory."""

from __future__ import annotations

import math

import pytest
import torch
from support.data import integers
from support.layouts import READABLE, WRITABLE, Guarded
from support.table import KERNELS, Kernel
from torch import Tensor

pytestmark = pytest.mark.rows(where=lambda row: row.max_size is not None)
# A power of two, one below and one above, and what no float4 divides.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 60, 63, 64)
BATCHES = {"cpu": (1, 3, 9, 130), "cuda": (1, 3, 9, 130, 1031)}


def test_there_is_a_row() -> None:
    """Otherwise the tests below would pass without one."""
    assert any(row.max_size is not None for row in KERNELS)


def check(row: Kernel, a: Tensor, b: Tensor, out: Guarded, alpha: float, beta: float) -> None:
    """``out`` becomes alpha a b + beta out, exactly, and nothing around it changes."""
    expected = alpha * (a.double() @ b.double())
    if beta != 0:
        expected += beta * out.view.double()
    torch.ops.sgemm.gemm_(out.view, a, b, alpha=alpha, beta=beta, kernel=row.name)
    where = f"{tuple(a.shape)} @ {tuple(b.shape)}, {a.stride()}, {b.stride()}, {out.view.stride()}"
    assert torch.equal(out.view.double(), expected), where
    assert out.guards_unchanged(), where


@pytest.mark.parametrize("size", SIZES)
def test_batches_of_square_products(row: Kernel, device: str, size: int) -> None:
    for i, batch in enumerate(BATCHES[device]):
        shape = (batch, size, size)
        for j in range(4):
            a, b = integers(shape, 1 + j, device), integers(shape, 5 + j, device)
            out = Guarded(shape, "NT"[i % 2], device, integers(shape, 9, device) if j else None)
            a, b = a.mT if j % 2 else a, b.mT if j // 2 else b
            check(row, a, b, out, 1 + j, -j / 2)


@pytest.mark.parametrize("layout", READABLE)
def test_batches_in_every_layout(row: Kernel, device: str, layout: str) -> None:
    """Shapes that are long in each of m, n and k; matrices of a batch are not aligned."""
    for i, (m, n, k) in enumerate(((4, 3, 64), (64, 8, 12), (5, 33, 8), (16, 16, 16), (2, 2, 1))):
        lead = (7,)
        other = READABLE[(READABLE.index(layout) + 4 * i + 1) % len(READABLE)]
        a = Guarded((*lead, m, k), layout, device, integers((*lead, m, k), 1, device))
        b = Guarded((*lead, k, n), other, device, integers((*lead, k, n), 2, device))
        for x, y in ((a.view, b.view), (b.view.mT, a.view.mT)):
            values = integers((7, x.shape[1], y.shape[2]), 3, device)
            out = Guarded(values.shape, WRITABLE[i], device, values)
            check(row, x, y, out, -1, 2)
        assert a.unchanged() and b.unchanged()


@pytest.mark.parametrize("size", [4, 6, 8, 16, 20, 32, 64])
def test_batch_dimension_anywhere(row: Kernel, device: str, size: int) -> None:
    """Shared by all products, the innermost, between rows, and aligned with gaps."""
    batch = 11
    whole = integers((batch, size, size), 1, device)
    views = (
        whole[:1].expand(batch, -1, -1),
        integers((size, size, batch), 2, device).permute(2, 0, 1),
        integers((size, batch, size), 3, device).transpose(0, 1),
        integers((batch, size, size + 4), 4, device)[:, :, :size],
        integers((2 * batch, size, size), 5, device)[::2],
        integers((batch * size * size + 1,), 6, device)[1:].view_as(whole),
    )
    for i, a in enumerate(views):
        b = views[(i + 2) % len(views)]
        out = Guarded((batch, size, size), "N_pad4" if i % 2 else "N", device)
        check(row, a, b, out, 1, 0)
        out = torch.full((size, batch, size), math.nan, device=device).transpose(0, 1)
        torch.ops.sgemm.bmm_out(a, b, kernel=row.name, out=out)
        assert torch.equal(out.double(), a.double() @ b.double()), i


@pytest.mark.parametrize("size", [4, 8, 13, 16, 32, 64])
def test_addend_is_read_through_its_strides(row: Kernel, device: str, size: int) -> None:
    batch = 6
    shape = (batch, size, size)
    a, b = integers(shape, 1, device), integers(shape, 2, device)
    product = a.double() @ b.double()
    for c_shape in ((size,), (size, 1), (1, 1), (size, size), (batch, 1, size), shape):
        c = integers(c_shape, 3, device)
        for addend in (c, c.mT if c.dim() > 1 and c.shape[-1] == c.shape[-2] else c):
            out = torch.ops.sgemm.baddbmm(addend, a, b, beta=-2, alpha=3, kernel=row.name)
            assert torch.equal(out.double(), 3 * product - 2 * addend.double()), c_shape
    c = torch.full(shape, math.nan, device=device)
    out = torch.ops.sgemm.baddbmm(c, a, b, beta=0, kernel=row.name)
    assert torch.equal(out.double(), product)


@pytest.mark.parametrize("size", [3, 4, 8, 15, 16, 31, 64])
def test_nonfinite_stays_in_its_product(row: Kernel, device: str, size: int) -> None:
    """A row of one A and a column of another B; neighbours in the block stay finite."""
    shape = (10, size, size)
    a, b = torch.ones(shape, device=device), torch.ones(shape, device=device)
    a[3, size - 1, size - 1] = math.inf
    b[6, 0, 1] = math.nan
    b[3, :, 0] = 0
    out = torch.ops.sgemm.bmm(a, b, kernel=row.name)
    expected = torch.full(shape, float(size), device=device)
    expected[3, :, 0] = 0
    expected[3, size - 1] = math.inf
    expected[3, size - 1, 0] = math.nan
    expected[6, :, 1] = math.nan
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(-1), expected.nan_to_num(-1))


@pytest.mark.parametrize("depth", [0, 1, 3, 4, 5, 8, 31, 64])
def test_sums_are_added_in_the_order_of_k(row: Kernel, device: str, depth: int) -> None:
    """One sum an element, from k = 0 on: a large first term swallows what follows."""
    a, b = torch.ones(5, 6, depth, device=device), torch.ones(5, depth, 3, device=device)
    if depth > 1:
        a[:, :, 0] = 2.0**24
    out = torch.ops.sgemm.bmm(a, b, kernel=row.name)
    assert torch.equal(out, torch.full_like(out, 2.0**24 if depth > 1 else float(depth)))
