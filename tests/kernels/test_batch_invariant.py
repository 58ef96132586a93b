"""``batch_invariant``: a row has the same bits in every batch and beside any other rows.

Each test computes a product of all rows once, and compares parts of it, computed alone, bit by bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from support.activations import each_activation
from support.batches import (
    KERNEL,
    MOST,
    SIZES,
    WEIGHTS,
    assert_same,
    each_kind,
    each_weight,
    normal,
    operands,
    parts,
)  # fmt: skip
from support.layouts import PAIRS, Guarded, laid_out
from support.table import KERNELS, arch, each_device

import torch_sgemm

# --- products of matrices -------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("device, n, k", each_weight)
def test_rows_of_a_product(device: str, n: int, k: int, layouts: str, kind: str) -> None:
    a, b = operands(kind, SIZES[device][-1] + 5, n, k, device)
    b = laid_out(b, layouts[1])
    whole = torch.ops.sgemm.mm(laid_out(a, layouts[0]), b, kernel=KERNEL)
    for m in SIZES[device]:
        for rows in parts(m):
            part = torch.ops.sgemm.mm(laid_out(a[rows], layouts[0]), b, kernel=KERNEL)
            assert_same(part, whole[rows], m, rows)
    view = laid_out(a, layouts[0])[17:18]  # one row, not copied
    assert_same(torch.ops.sgemm.mm(view, b, kernel=KERNEL), whole[17:18])


@each_kind
@each_device
def test_layouts_and_columns(device: str, kind: str) -> None:
    """Strides, alignment and other columns don't change bits either."""
    n, k = WEIGHTS[device][0]
    a, b = operands(kind, 130 if device == "cuda" else 40, n, k, device)
    whole = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    layouts = ("N", "T", "N_pad", "T_off1", "N_off3", "sliced")
    for of_a, of_b in itertools.product(layouts, repeat=2):
        x = Guarded(tuple(a.shape), of_a, device, a).view
        y = Guarded(tuple(b.shape), of_b, device, b).view
        assert_same(torch.ops.sgemm.mm(x, y, kernel=KERNEL), whole, of_a, of_b)
    for cols in (slice(0, 1), slice(3, 40), slice(-33, None)):
        assert_same(torch.ops.sgemm.mm(a, b[:, cols], kernel=KERNEL), whole[:, cols], cols)


@each_kind
@each_device
@pytest.mark.parametrize(
    "alpha, beta", [(1, 1), (0.3, 0), (-1.7, 0.7), (2.0**-20, 1), (1e20, 1e-3)]
)
def test_rows_of_a_sum(device: str, kind: str, alpha: float, beta: float) -> None:
    for n, k in WEIGHTS[device]:
        a, b = operands(kind, MOST[device], n, k, device)
        c = normal(len(a), n, 9, device)
        whole = torch.ops.sgemm.addmm(c, a, b, alpha=alpha, beta=beta, kernel=KERNEL)
        in_place = c.clone()
        torch.ops.sgemm.gemm_(in_place, a, b, alpha=alpha, beta=beta, kernel=KERNEL)
        assert_same(in_place, whole, "in place")
        for m in SIZES[device]:
            if m + 5 > len(a):
                continue
            for rows in parts(m):
                part = torch.ops.sgemm.addmm(
                    c[rows], a[rows], b, alpha=alpha, beta=beta, kernel=KERNEL
                )
                assert_same(part, whole[rows], n, k, m, rows)


@each_kind
@each_device
@each_activation
@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_a_layer(device: str, kind: str, activation: str | None, packed: bool) -> None:
    n, k = WEIGHTS[device][0]
    x, b = operands(kind, MOST[device], n, k, device)
    weight, bias = b.t().contiguous(), normal(1, n, 9, device)[0]
    plain = torch_sgemm.linear(x, weight, bias, activation, batch_invariant=True)
    given = torch_sgemm.pack(weight.t(), frozen=True) if packed else weight
    whole = torch_sgemm.linear(x, given, bias, activation, batch_invariant=True)
    assert_same(whole, plain, "packed")
    x.requires_grad_()  # what goes into the activation is kept
    assert_same(torch_sgemm.linear(x, given, bias, activation, batch_invariant=True), whole)
    x = x.detach()
    for m in SIZES[device]:
        if m + 5 > len(x):
            continue
        for rows in parts(m):
            part = torch_sgemm.linear(x[rows], given, bias, activation, batch_invariant=True)
            assert_same(part, whole[rows], m, rows)
    one = torch_sgemm.linear(x[3], given, bias, activation, batch_invariant=True)
    assert_same(one, whole[3], "a vector")
    several = torch_sgemm.linear(
        x[:24].view(2, 3, 4, k), given, bias, activation, batch_invariant=True
    )
    assert_same(several.view(24, n), whole[:24], "four dimensions")


@pytest.mark.gpu
def test_a_million_rows() -> None:
    a, b = operands("mixed", 10**6, 48, 100, "cuda")
    whole = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    for m in (1, 100, 5000):
        for rows in (*parts(m), slice(543_210, 543_210 + m)):
            assert_same(torch.ops.sgemm.mm(a[rows], b, kernel=KERNEL), whole[rows], m, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", PAIRS)
def test_less_workspace(layouts: str, limit_workspace: Callable[[int], None]) -> None:
    """Pieces of m, n and the batch change nothing; those of k are the same for all m."""
    a, b = operands("mixed", 2000, 700, 9000, "cuda")
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    whole = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    for mib, same in ((64, True), (8, False), (1, False)):
        limit_workspace(mib)
        product = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
        if same:
            assert_same(product, whole, mib)
        for m in (1, 130, 700):
            assert_same(torch.ops.sgemm.mm(a[:m], b, kernel=KERNEL), product[:m], mib, m)


# --- segments of k, and the kernel of few rows -----------------------------------------------

# Rows around the widths of the kernel of few rows and the tiles of the others.
ROWS = (1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 192, 300, 511, 700)
# (n, k): of one segment, of two, of several whose last is shorter or odd, and of several slices.
SEGMENTED = (
    (1024, 256), (1024, 512), (1024, 1024), (11008, 600), (256, 7168), (515, 1111), (200, 4000),
    (70, 289), (130, 9000), (4096, 2048),
)  # fmt: skip


@pytest.mark.gpu
@each_kind
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layouts", ["NT", "TN"])
@pytest.mark.parametrize("n, k", SEGMENTED)
def test_rows_beside_more_or_fewer(n: int, k: int, layouts: str, packed: bool, kind: str) -> None:
    """Every number of rows has the bits of the largest one, which has no few rows."""
    a, b = operands(kind, 1500, n, k, "cuda")
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    whole = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    weight = torch_sgemm.pack(b, frozen=packed)
    for m in ROWS:
        for rows in (slice(0, m), slice(701, 701 + m)):
            assert_same(weight.mm(a[rows], kernel=KERNEL), whole[rows], m, rows)


@pytest.mark.gpu
@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_16_bits(dtype: torch.dtype, kind: str) -> None:
    a, b = (x.to(dtype) for x in operands(kind, 700, 515, 1111, "cuda"))
    for weight in (b, b.float()):
        whole = torch.ops.sgemm.mm(a, weight, kernel=KERNEL)
        for m in ROWS:
            assert_same(torch.ops.sgemm.mm(a[:m], weight, kernel=KERNEL), whole[:m], m)


@pytest.mark.gpu
@each_kind
def test_columns_with_the_same_segments(kind: str) -> None:
    """n decides only how long a segment is: here it is the same in parts of a weight."""
    for m in (5, 40, 300):
        for n, k, cols in ((640, 7168, 513), (1000, 2000, 900), (700, 256, 3)):
            a, b = operands(kind, m, n, k, "cuda")
            whole = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
            part = torch.ops.sgemm.mm(a, b[:, :cols], kernel=KERNEL)
            assert_same(part, whole[:, :cols], m, n, k, cols)


@pytest.mark.gpu
@each_kind
@pytest.mark.parametrize("m", [1, 5, 33, 64, 100])
def test_batches_of_few_rows(m: int, kind: str) -> None:
    n, k = 515, 1111
    a, b = operands(kind, 40 * m, n, k, "cuda")
    batch = a.view(40, m, k)
    whole = torch.ops.sgemm.mm(a, b, kernel=KERNEL).view(40, m, n)
    for count in (1, 3, 40):
        for right in (b.expand(count, k, n), b.repeat(count, 1, 1)):
            product = torch.ops.sgemm.bmm(batch[:count], right, kernel=KERNEL)
            assert_same(product, whole[:count], count)


# --- batches --------------------------------------------------------------------------------


@each_kind
@each_device
def test_matrices_of_a_batch(device: str, kind: str) -> None:
    n, k = WEIGHTS[device][0]
    m = 37
    sizes = (1, 2, 5) if device == "cpu" else (1, 2, 5, 40)
    a, b = operands(kind, m * sizes[-1], n, k, device)
    batch = a.view(sizes[-1], m, k)
    alone = [torch.ops.sgemm.mm(x, b, kernel=KERNEL) for x in batch]
    for count in sizes:
        shared = b.expand(count, k, n)
        copied = b.repeat(count, 1, 1)
        for right in (shared, copied):
            product = torch.ops.sgemm.bmm(batch[:count], right, kernel=KERNEL)
            assert_same(product, torch.stack(alone[:count]), count)
        c = normal(m, n, 9, device)
        sums = torch.ops.sgemm.baddbmm(c, batch[:count], shared, kernel=KERNEL)
        expected = [torch.ops.sgemm.addmm(c, x, b, kernel=KERNEL) for x in batch[:count]]
        assert_same(sums, torch.stack(expected), count, "sums")
        for left, right in ((batch[:count], b), (batch[:count].transpose(0, 1), b)):
            product = torch_sgemm.matmul(left, right, batch_invariant=True)
            at = (0, 1) if left.shape[0] == count else (1, 0)
            assert_same(product.permute(*at, 2), torch.stack(alone[:count]), count, "matmul")
    heads = batch[:4].reshape(2, 2, m, k) if len(batch) >= 4 else batch[None]
    apart = heads.transpose(1, 2).contiguous().transpose(1, 2)  # as attention has them
    product = torch_sgemm.matmul(apart, b.expand(*heads.shape[:2], k, n), batch_invariant=True)
    assert_same(product.flatten(0, 1), torch.stack(alone[: product.shape[0] * product.shape[1]]))


# --- the guard ------------------------------------------------------------------------------

needs_split = pytest.mark.skipif(
    arch() != 90 or not any(r.family == "split" and r.runs_on(90) for r in KERNELS),
    reason="needs a GPU that runs the family split",
)


@pytest.mark.gpu
@needs_split
@pytest.mark.parametrize("kind, tiles", [("some_redone", False), ("all_redone", True)])
def test_these_data_are_redone(kind: str, tiles: bool) -> None:
    """Else the tests above would show nothing: element by element, and in whole tiles."""
    a, b = operands(kind, 512, 512, 512, "cuda")
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    product = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    torch.cuda.synchronize()
    after = torch_sgemm.redone()
    assert after.elements > before.elements
    assert (after.tiles > before.tiles) == tiles
    one = slice(7, 8)
    assert_same(torch.ops.sgemm.mm(a[one], b, kernel=KERNEL), product[one])


@pytest.mark.gpu
@needs_split
@pytest.mark.parametrize("kind", ["normal", "some_redone", "all_redone"])
@pytest.mark.parametrize("k", [65, 1024, 9000])
def test_within_the_error_bound(kind: str, k: int) -> None:
    a, b = operands(kind, 300, 200, k, "cuda")
    product = torch.ops.sgemm.mm(a, b, kernel=KERNEL).double()
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    bound = torch_sgemm.error_bound(k, KERNEL) * 2.0**-24
    assert ((product - exact).abs() <= bound * magnitude).all()
