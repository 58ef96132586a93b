"""Each plan of a row, not only the one that is chosen: the same product by all of them."""

from __future__ import annotations

import math

import pytest
import torch
from support.data import integers
from support.layouts import Guarded
from support.table import Kernel, fit, row_params

SHAPES = (
    # (batch, m, n, k)
    (1, 1, 1, 1),
    (1, 33, 31, 17),
    (1, 130, 67, 300),
    (1, 64, 200, 5000),
    (1, 700, 12, 96),
    (3, 65, 129, 40),
    (2, 40, 50, 8200),
)


each_planned = pytest.mark.parametrize(
    "row, device", row_params(keep=lambda row: row.family in ("ieee", "split"))
)


@each_planned
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_plan_multiplies(row: Kernel, device: str, shape: tuple[int, ...]) -> None:
    """Small integers, so that sums are exact in any order. C in rows with gaps, which stay."""
    batch, *sizes = shape
    m, n, k = fit(row, *sizes)
    lead = (batch,) if batch > 1 else ()
    a, b = integers((*lead, m, k), 1, device), integers((*lead, k, n), 2, device)
    c = Guarded((*lead, m, n), "N_pad", device, integers((*lead, m, n), 3, device))
    before = c.view.clone()
    for alpha, beta in ((1.0, 0.0), (2.0, -1.0)):
        expected = alpha * (a.double() @ b.double()) + beta * before.double()
        plans = torch.ops.sgemm._plans(c.view, a, b, row.name, alpha=alpha, beta=beta)
        assert plans and all(math.isfinite(seconds) and seconds > 0 for seconds in plans)
        for index in range(len(plans)):
            c.view.copy_(before)
            torch.ops.sgemm._run_plan(c.view, a, b, row.name, index, alpha=alpha, beta=beta)
            assert torch.equal(c.view.double(), expected), f"plan {index} of {len(plans)}"
    assert c.guards_unchanged()


@pytest.mark.parametrize("name, index", [("ieee_tiny", -1), ("ieee_tiny", 99), ("naive_32", 1)])
def test_a_plan_that_there_is_not(name: str, index: int) -> None:
    a, b, c = torch.ones(8, 8), torch.ones(8, 8), torch.zeros(8, 8)
    with pytest.raises(RuntimeError, match=rf"argument 'index' is {index}; accepted: 0 to \d+"):
        torch.ops.sgemm._run_plan(c, a, b, name, index)
    assert not c.any()


def test_plans_are_a_row_s() -> None:
    a, b, c = torch.ones(8, 8), torch.ones(8, 8), torch.zeros(8, 8)
    with pytest.raises(RuntimeError, match="accepted: a row's name"):
        torch.ops.sgemm._plans(c, a, b, "ladder")
    assert torch.ops.sgemm._plans(c, a, b, "aten") == []
    with pytest.raises(
        RuntimeError, match='"aten", which has no plans; accepted: a row of a family'
    ):
        torch.ops.sgemm._run_plan(c, a, b, "aten", 0)
