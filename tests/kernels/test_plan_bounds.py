"""Each plan of a row keeps what the row promises: errors, Inf and NaN.

The other tests of these promises run what a row takes, which for most sizes is one plan of several.
"""

from __future__ import annotations

import math

import pytest
import torch
from support.crafted import (
    CASES,
    classes,
    crafted,
    everything,
    in_order,
    inf_behind_overflow,
    infs_in_parts,
)
from support.layouts import PAIRS, laid_out
from support.plans import by_each_plan, within_bound
from support.table import PROVEN_FAMILIES, Kernel, fit
from torch import Tensor

pytestmark = pytest.mark.rows(family=PROVEN_FAMILIES, device="cuda")


def drawn(row: Kernel, device: str, m: int, n: int, k: int) -> tuple[Tensor, Tensor]:
    """A and B of normal numbers, of these sizes or others that the row takes."""
    m, n, k = fit(row, m, n, k)
    return torch.randn(m, k, device=device), torch.randn(k, n, device=device)


def check_bound(row: Kernel, a: Tensor, b: Tensor) -> None:
    """Every plan's errors are below the row's bound."""
    assert list(within_bound(row, a, b))


@pytest.mark.parametrize("case", CASES)
def test_no_plan_breaks_the_bound(row: Kernel, device: str, case: str) -> None:
    for k in dict.fromkeys(fit(row, 2, 33, 65, 300, 2050, 8193)):
        a, b = crafted(case, k, device)
        m, n = fit(row, len(a), b.size(1))
        check_bound(row, a[:m], b[:, :n])


@pytest.mark.parametrize("layouts", PAIRS)
def test_nor_in_any_layout(row: Kernel, device: str, layouts: str) -> None:
    a, b = everything(fit(row, 130)[0], device)
    m, n = fit(row, len(a), b.size(1))
    check_bound(row, laid_out(a[:m], layouts[0]), laid_out(b[:, :n], layouts[1]))


# Scales that are found on the way differ by up to 2^15 between a cluster's blocks, and by 2^20
# between a row's parts, before anything is lost.
GROWTH = (-90, -30, -21, -20, -16, -15, 3, 9, 14, 15, 16, 19, 20, 21, 25, 70, 110)


@pytest.mark.parametrize("factor", [2.0**by for by in GROWTH])
@pytest.mark.parametrize("begin", [1, 63, 64, 290])
def test_rows_and_columns_that_grow_along_k(
    row: Kernel, device: str, begin: int, factor: float
) -> None:
    """Scales that are found on the way follow what comes, in one operand, and in both."""
    a, b = drawn(row, device, 140, 150, 600)
    grown_a, grown_b = a.clone(), b.clone()
    grown_a[3:90:7, begin:] *= factor
    grown_b[begin:, 3:90:7] *= factor
    grown_b[:-1, 5] = 0
    grown_a[6, 1:] = 0
    for left, right in ((grown_a, b), (a, grown_b), (grown_a, grown_b)):
        for layouts in ("NN", "TT"):
            x, y = laid_out(left, layouts[0]), laid_out(right, layouts[1])
            if bool((left.double() @ right.double()).float().isfinite().all()):
                check_bound(row, x, y)


@pytest.mark.parametrize("k", [40, 700])
def test_rows_and_columns_of_any_magnitude(row: Kernel, device: str, k: int) -> None:
    """Columns range from subnormal numbers to 2^110, and some are zero."""
    (k,) = fit(row, k)
    m, n = fit(row, 200, 260)
    exponents = torch.linspace(-148, 110, n, device=device).double().exp2()
    b = (torch.rand(k, n, device=device).double() * exponents).float()
    b[: k // 2, ::3] *= 2.0**-12
    b[:, ::17] = 0
    a = torch.randn(m, k, device=device) * 2.0**-20
    a[5] = 0
    for layouts in PAIRS:
        check_bound(row, laid_out(a, layouts[0]), laid_out(b, layouts[1]))
        check_bound(row, laid_out(b.t(), layouts[0]), laid_out(a.t(), layouts[1]))


@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_inf_and_nan_are_where_they_belong(
    row: Kernel, device: str, value: float, layouts: str
) -> None:
    a, b = drawn(row, device, 140, 150, 300)
    a[2], b[:, 1] = 0, 0
    b[-1, -1] = b[len(b) // 2, 3] = a[7, 0] = a[-1, -1] = value
    expected = (a.double() @ b.double()).float()
    for plan, result in by_each_plan(row, laid_out(a, layouts[0]), laid_out(b, layouts[1])):
        assert torch.equal(result.isnan(), expected.isnan()), plan
        assert torch.equal(result.isinf(), expected.isinf()), plan
        assert torch.equal(result[expected.isinf()], expected[expected.isinf()]), plan


@pytest.mark.parametrize("k", [33, 300, 4096])
def test_inf_is_where_a_sum_in_order_has_it(row: Kernel, device: str, k: int) -> None:
    """This holds also if a part of k overflows to the other Inf before."""
    (k,) = fit(row, k)
    for a, b in (inf_behind_overflow(k), infs_in_parts(k)):
        m, n = fit(row, len(a), b.size(1))
        a, b = a[:m], b[:, :n]
        for left, right in ((a, b), (b.t(), a.t())):
            expected = classes(in_order(left, right))
            for plan, result in by_each_plan(row, left.to(device), right.to(device)):
                assert torch.equal(classes(result.cpu()), expected), plan
