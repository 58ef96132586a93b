"""Inf and NaN go where IEEE arithmetic sends them; what must not be read may hold NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.bounds import UNIT, ffma_units
from support.layouts import PAIRS, Guarded, laid_out
from support.table import Kernel, fit
from torch import Tensor

INF, NAN = math.inf, math.nan
SHAPES = {"cpu": ((35, 37, 33),), "cuda": ((35, 37, 33), (130, 131, 65), (257, 129, 20))}
PLANTED = ((INF,), (-INF,), (NAN,), (INF, -INF), (INF, NAN))


def ieee_product(a: Tensor, b: Tensor) -> Tensor:
    """Products added one by one in float64, so that no library decides about Inf and NaN."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for q in range(a.shape[1]):
        total += a[:, q].double()[:, None] * b[q].double()[None, :]
    return total


def assert_same_class(result: Tensor, a: Tensor, b: Tensor) -> None:
    """The same elements are NaN, +Inf and -Inf, and the others are within the bound."""
    expected = ieee_product(a, b)
    other = (result.isnan() != expected.isnan()) | ((result != expected) & expected.isinf())
    other |= result.isinf() & ~expected.isinf()
    wrong = [
        (i, j, float(result[i, j]), float(expected[i, j])) for i, j in other.nonzero().tolist()
    ]
    assert not wrong, wrong[:20]
    finite = expected.isfinite()
    scale = ieee_product(a.abs(), b.abs())[finite]
    error = (result.double()[finite] - expected[finite]).abs()
    assert bool((error <= ffma_units(a.shape[1]) * UNIT * scale).all())


def positions(rows: int, cols: int) -> list[tuple[int, int]]:
    """Corners and inner places of a matrix, the last of each tile's tail among them."""
    return [(0, 0), (rows - 1, cols - 1), (0, cols - 1), (rows - 1, 0), (rows // 2, cols // 3)]


@pytest.mark.parametrize("side", ["a", "b", "both"])
@pytest.mark.parametrize("values", PLANTED, ids=str)
@pytest.mark.rows(bits=24)
def test_nonfinite_inputs(row: Kernel, device: str, values: tuple[float, ...], side: str) -> None:
    for shape in SHAPES[device]:
        m, n, k = fit(row, *shape)
        for place in range(5):
            a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
            b[:, 1] = 0  # Inf times 0 is NaN, and only there
            a[2] = 0
            for j, value in enumerate(values):
                if side in ("a", "both"):
                    a[positions(m, k)[(place + j) % 5]] = value
                if side in ("b", "both"):
                    b[positions(k, n)[(place + 2 * j) % 5]] = value
            layouts = PAIRS[place % 4]
            a_in, b_in = laid_out(a, layouts[0]), laid_out(b, layouts[1])
            assert_same_class(torch.ops.sgemm.mm(a_in, b_in, kernel=row.name), a, b)


@pytest.mark.parametrize("layout", ["N", "T"])
@pytest.mark.rows(bits=24)
def test_nothing_outside_is_written(row: Kernel, device: str, layout: str) -> None:
    """Where a tile goes on beyond the last row and column, zeros meet Inf as well."""
    m, n, k = fit(row, 35, 37, 33)
    a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
    a[m // 2, k // 2], b[k // 3, n // 2] = INF, -INF
    a_in, b_in = Guarded((m, k), "N", device, a), Guarded((k, n), "N", device, b)
    out = Guarded((m, n), layout, device)
    zeros = torch.zeros(m, n, device=device)
    torch.ops.sgemm.addmm_out(zeros, a_in.view, b_in.view, beta=0, kernel=row.name, out=out.view)
    assert_same_class(out.view, a, b)
    assert out.guards_unchanged() and a_in.unchanged() and b_in.unchanged()


@pytest.mark.rows(bits=24)
def test_nan_reaches_exactly_its_row_and_column(row: Kernel, device: str) -> None:
    m, n, k = fit(row, 66, 65, 34)
    a, b = torch.ones(m, k, device=device), torch.ones(k, n, device=device)
    a[m - 1, k - 1] = NAN
    b[0, 3] = NAN
    c = torch.ops.sgemm.mm(a, b, kernel=row.name)
    expected = torch.zeros(m, n, dtype=torch.bool, device=device)
    expected[m - 1], expected[:, 3] = True, True
    assert torch.equal(c.isnan(), expected)
    assert torch.equal(c[~expected], torch.full_like(c[~expected], float(k)))


@pytest.mark.rows(bits=24)
def test_overflow_is_inf_and_not_nan(row: Kernel, device: str) -> None:
    a = torch.full((33, 5), 2.0**100, device=device)
    b = torch.full((5, 34), -(2.0**100), device=device)
    c = torch.ops.sgemm.mm(a, b, kernel=row.name)
    assert torch.equal(c, torch.full_like(c, -INF))


def assert_alpha_is_of_the_sum(row: Kernel, m: int, n: int, k: int, device: str) -> None:
    """Half of k comes to more than a float, times alpha, and the other half takes it back."""
    if not row.family:
        pytest.skip("PyTorch's own kernel")
    m, n, k = fit(row, m, n, k)
    half = k // 2
    a, b = torch.ones(m, k, device=device), torch.ones(k, n, device=device)
    a[:, half : 2 * half], a[:, 2 * half :], a[:, 0] = -1, 0, 1.5
    c = torch.ones(n, device=device)
    for x, y in ((a, b), (b.t(), a.t())):
        addend = c if x is a else c[:, None]
        for alpha in (1e37, INF):
            result = torch.ops.sgemm.addmm(addend, x, y, alpha=alpha, kernel=row.name)
            assert torch.equal(result, torch.full_like(result, alpha * 0.5))


@pytest.mark.rows(bits=24)
def test_alpha_is_of_the_whole_sum(row: Kernel, device: str) -> None:
    assert_alpha_is_of_the_sum(row, 37, 5, 300, device)


@pytest.mark.rows(device="cuda")
def test_alpha_is_of_the_sum_of_pieces(
    row: Kernel, device: str, limit_workspace: Callable[[int], None]
) -> None:
    limit_workspace(1)
    assert_alpha_is_of_the_sum(row, 300, 130, 20000, device)


@pytest.mark.rows(bits=24)
def test_beta_zero_does_not_read_c(row: Kernel, device: str) -> None:
    m, n, k = 35, 41, 9
    a, b = torch.ones(m, k, device=device), torch.ones(k, n, device=device)
    expected = torch.full((m, n), float(k), device=device)
    c = torch.full((m, n), NAN, device=device)
    out = Guarded((m, n), device=device)
    torch.ops.sgemm.addmm_out(c, a, b, beta=0, kernel=row.name, out=out.view)
    assert torch.equal(out.view, expected)
    assert torch.equal(torch.ops.sgemm.addmm(c, a, b, beta=0, kernel=row.name), expected)
    torch.ops.sgemm.gemm_(c, a, b, beta=0, kernel=row.name)
    assert torch.equal(c, expected)


@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
@pytest.mark.rows(bits=24)
def test_alpha_zero_does_not_read_a_or_b(row: Kernel, device: str, beta: float) -> None:
    m, n, k = 35, 41, 9
    a = torch.full((m, k), NAN, device=device)
    b = torch.full((k, n), INF, device=device)
    c = torch.arange(float(m * n), device=device).view(m, n)
    expected = beta * c
    c_in = c if beta else torch.full_like(c, NAN)
    out = Guarded((m, n), device=device)
    torch.ops.sgemm.addmm_out(c_in, a, b, beta=beta, alpha=0, kernel=row.name, out=out.view)
    assert torch.equal(out.view, expected)
    in_place = c_in.clone()
    torch.ops.sgemm.gemm_(in_place, a, b, beta=beta, alpha=0, kernel=row.name)
    assert torch.equal(in_place, expected)


@pytest.mark.parametrize("beta", [0.0, 1.0, -2.0])
@pytest.mark.rows(bits=24)
def test_empty_k_leaves_beta_c(row: Kernel, device: str, beta: float) -> None:
    """An empty sum is 0, whatever lies where A and B would be."""
    a, b = torch.empty(35, 0, device=device), torch.empty(0, 41, device=device)
    c = torch.arange(35.0 * 41, device=device).view(35, 41)
    c_in = c.clone() if beta else torch.full_like(c, NAN)
    result = torch.ops.sgemm.addmm(c_in, a, b, beta=beta, kernel=row.name)
    assert torch.equal(result, beta * c)
    torch.ops.sgemm.gemm_(c_in, a, b, beta=beta, kernel=row.name)
    assert torch.equal(c_in, beta * c)
    zeros = torch.ops.sgemm.mm(a, b, kernel=row.name)
    assert torch.equal(zeros, torch.zeros_like(zeros))
