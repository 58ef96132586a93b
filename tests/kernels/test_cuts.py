"""Each plan of a row, not only the one that it takes: the same product, wherever operands lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from support.data import integers
from support.layouts import PAIRS, Guarded
from support.plans import plans_of
from support.sizes import Shape
from support.table import KERNELS, PROVEN_FAMILIES, Kernel, fit
from torch import Tensor

import torch_sgemm

# Rows of the other families have one plan each: a block a tile.
pytestmark = pytest.mark.rows(family=PROVEN_FAMILIES)
MOST_OF_A_BATCH = 8_000_000  # elements of A, B and C together


def shapes(row: Kernel, sms: int) -> dict[str, Shape]:
    """Sizes (m, n, k) that a row's plans cut up in different ways.

    They are listed here, because a plan only gives its predicted time, not how it cuts.
    """
    m, n, k = row.bm, row.bn, row.bk
    found = {
        "one_element": (1, 1, 1),
        "one_tile": (m, n, k),
        "part_of_a_tile": (m // 2 - 1, n // 2 + 1, 2 * k - 1),
        "tiles": (2 * m, 2 * n, 8 * k),
        "tiles_and_parts": (2 * m + 1, 2 * n + 3, 8 * k + 1),
        "one_row": (1, 30 * n, 2 * k),
        "one_column": (30 * m, 1, 3 * k),
        "few_rows": (3, 40 * n + 1, 19 * k - 4),
        "few_columns": (20 * m + 4, 7, 6 * k + 1),
        # More tiles than all SMs work on at once, and a few more than there are SMs.
        "many_rows": (20 * sms * m + 1, 4, k // 2),
        "many_columns": (5, 20 * sms * n + 2, k // 2 + 1),
        "left_over_rows": ((sms + 3) * m - 7, n - 3, 10 * k + 7),
        "left_over_columns": (m - 4, (sms + 3) * n - 8, 10 * k),
        # Slices of k, of which many are added up in groups.
        "long_k": (3 * m - 4, 2 * n + 4, 512 * k),
        "longer_k": (m + 7, n + 5, 1250 * k + 3),
    }
    # Where there are many rows and few columns, kernels differ by the depth of k, and by where the
    # rows of C begin and end.
    for steps in (1, 2, 3, 4, 6, 8):
        found[f"upright_{steps}"] = (5 * m + 2, 4 * n, steps * k)
        found[f"upright_odd_{steps}"] = (30 * m + 1, 2 * n + 5, steps * k - 3)
        found[f"swapped_{steps}"] = (2 * n + 5, 60 * m + 1, steps * k - 3)
    found["panels_2"] = (30 * m + 1, 16 * n + 1, 2 * k - 3)
    found["panels_8"] = (30 * m + 1, 16 * n + 1, 8 * k - 3)
    return found


def sms_of(device: str) -> int:
    """On the CPU, plans are those of the GPU that is described by default."""
    described = torch_sgemm.Device()
    return (described if device == "cpu" else torch_sgemm.Device.of(torch.device(device))).sms


def check_plans(
    row: Kernel, c: Tensor, a: Tensor, b: Tensor, expected: Tensor, **factors: float
) -> None:
    """``c`` becomes ``expected`` by each plan, and by the one that the row takes."""
    before, plans, right = c.clone(), plans_of(row, c, a, b, **factors), []
    for plan in plans:
        c.copy_(before)
        torch.ops.sgemm._run_plan(c, a, b, row.name, plan, **factors)
        right.append((c == expected).all())
    c.copy_(before)
    torch.ops.sgemm.gemm_(c, a, b, row.name, **factors)
    right.append((c == expected).all())
    wrong = [i for i, good in enumerate(torch.stack(right).tolist()) if not good]
    where = f"{tuple(a.shape)} {a.stride()} @ {tuple(b.shape)} {b.stride()} -> {c.stride()}"
    assert not wrong, f"plans {wrong} of {len(plans)}, the last is the row's own: {where}"
    c.copy_(before)


def check_layouts(
    row: Kernel, device: str, sizes: Shape, batch: tuple[int, ...], aligned: bool
) -> None:
    """A and B in all layouts, C in rows or columns, all in guarded memory; and a new result.

    Small integers, so that sums are exact in any order. Not ``aligned``, A and B begin where no two
    elements can be read at once, and C has gaps.
    """
    m, n, k = sizes
    a, b, c = (
        integers((*batch, *size), seed, device)
        for seed, size in enumerate(((m, k), (k, n), (m, n)))
    )
    product = a.double() @ b.double()
    plain, total = product.float(), (2 * product - c.double()).float()
    lead, gap = ("", "") if aligned else ("_off1", "_pad")
    targets = [Guarded((*batch, m, n), layout + gap, device, c) for layout in "NT"]
    multiply = torch.ops.sgemm.bmm if batch else torch.ops.sgemm.mm
    for pair in PAIRS:
        left = Guarded((*batch, m, k), pair[0] + lead, device, a)
        right = Guarded((*batch, k, n), pair[1] + lead, device, b)
        for target in targets:
            check_plans(row, target.view, left.view, right.view, total, alpha=2, beta=-1)
        new = torch.full_like(c, math.nan)
        check_plans(row, new, left.view, right.view, plain, alpha=1, beta=0)
        assert torch.equal(multiply(left.view, right.view, row.name), plain)
        assert left.unchanged() and right.unchanged()
    assert all(target.unchanged() for target in targets)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("name", shapes(KERNELS[-1], 1))
def test_each_plan_is_exact_in_every_layout(
    row: Kernel, device: str, name: str, aligned: bool
) -> None:
    """Alone and in a batch, whose matrices lie seven elements apart."""
    m, n, k = sizes = fit(row, *shapes(row, sms_of(device))[name])
    check_layouts(row, device, sizes, (), aligned)
    if m * k + k * n + m * n <= MOST_OF_A_BATCH:
        check_layouts(row, device, sizes, (3,), aligned)


def test_each_plan_is_exact_in_a_small_workspace(
    row: Kernel, device: str, limit_workspace: Callable[[int], None]
) -> None:
    """Pieces of the batch, of m and n, and of k, which C adds up only where it is their sum."""
    limit_workspace(1)
    k = 80 * row.bk + 5
    check_layouts(row, device, fit(row, 700, 200, k), (), True)
    check_layouts(row, device, fit(row, 130, 70, k), (3,), True)


def chain(row: Kernel, factors: list[Tensor], x: Tensor, modulus: int | None = None) -> Tensor:
    """x times the factors, one after the other; a plan three times in a row, then the next."""
    plans = plans_of(row, x.clone(), factors[0], x)
    for i, factor in enumerate(factors):
        result = torch.empty_like(x)
        torch.ops.sgemm._run_plan(result, factor, x, row.name, plans[i // 3 % len(plans)])
        x = result if modulus is None else result.remainder_(modulus)
    return x


@pytest.mark.parametrize("size", [24, 40, 100, 200, 1024, 1200])
def test_results_follow_each_other(row: Kernel, device: str, size: int) -> None:
    """Kernels that start before the one in front has ended read what it has written."""
    (size,) = fit(row, size)
    steps = [integers((size, size), seed, device, largest=1) for seed in range(8)]
    eye = torch.eye(size, device=device)
    count = max(60, 3 * len(plans_of(row, eye.clone(), steps[0], eye)))
    steps = list(itertools.islice(itertools.cycle(steps), count))
    expected = eye.double()
    for step in steps:
        expected = (step.double() @ expected).remainder(7)
    x = chain(row, steps, eye, 7)
    assert torch.equal(x.double(), expected)
    moves = [1 + i % 6 for i in range(count)]
    rolls = {move: eye.roll(move, 0) for move in set(moves)}
    moved = chain(row, [rolls[move] for move in moves], x)  # nothing in between
    assert torch.equal(moved, x.roll(sum(moves), 0))


@pytest.mark.parametrize("name, index", [("ieee_tiny", -1), ("ieee_tiny", 99), ("naive_32", 1)])
def test_numbers_that_no_plan_has_are_refused(name: str, index: int) -> None:
    a, b, c = torch.ones(8, 8), torch.ones(8, 8), torch.zeros(8, 8)
    with pytest.raises(RuntimeError, match=rf"argument 'index' is {index}; accepted: 0 to \d+"):
        torch.ops.sgemm._run_plan(c, a, b, name, index)
    assert not c.any()


def test_only_rows_have_plans() -> None:
    a, b, c = torch.ones(8, 8), torch.ones(8, 8), torch.zeros(8, 8)
    with pytest.raises(RuntimeError, match="accepted: a row's name"):
        torch.ops.sgemm._plans(c, a, b, "ladder")
    assert torch.ops.sgemm._plans(c, a, b, "aten") == []
    with pytest.raises(
        RuntimeError, match='"aten", which has no plans; accepted: a row of a family'
    ):
        torch.ops.sgemm._run_plan(c, a, b, "aten", 0)


def test_planes_of_another_matrix_are_refused() -> None:
    a, b, c, planes = torch.ones(8, 8), torch.ones(8, 8), torch.zeros(8, 8), torch.zeros(3)
    for call in (
        lambda: torch.ops.sgemm._plans(c, a, b, "ieee_tiny", planes=planes),
        lambda: torch.ops.sgemm._run_plan(c, a, b, "ieee_tiny", 0, planes=planes),
    ):
        with pytest.raises(RuntimeError, match="argument 'planes'.*accepted: what pack returned"):
            call()
    assert not c.any()
