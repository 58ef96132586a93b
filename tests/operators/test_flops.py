"""PyTorch's counter of operations sees the operators as it sees aten's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import torch_sgemm
import torch_sgemm.flops

sgemm = torch.ops.sgemm


def counted(function: Callable) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_products_of_functions(batch: tuple[int, ...]) -> None:
    a, b = torch.ones(*batch, 4, 5), torch.ones(*batch, 5, 6)
    assert counted(lambda: torch_sgemm.matmul(a, b)) == counted(lambda: a @ b) > 0


@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_of_operators(batch: tuple[int, ...]) -> None:
    a, b, c = torch.ones(*batch, 4, 5), torch.ones(*batch, 5, 6), torch.ones(*batch, 4, 6)
    mm, add = ("bmm", "baddbmm") if batch else ("mm", "addmm")
    expected = counted(lambda: a @ b)
    for function in (
        lambda: getattr(sgemm, mm)(a, b),
        lambda: getattr(sgemm, f"{mm}_out")(a, b, out=c),
        lambda: getattr(sgemm, add)(c, a, b),
        lambda: getattr(sgemm, f"{add}_out")(c, a, b, out=c),
        lambda: sgemm.gemm_(c, a, b),
    ):
        assert counted(function) == expected > 0


def test_layers_and_their_backward() -> None:
    x, weight = torch.ones(2, 4, 5, requires_grad=True), torch.ones(6, 5, requires_grad=True)

    def step(linear: Callable) -> int:
        return counted(lambda: linear(x, weight).sum().backward())

    assert step(torch_sgemm.linear) == step(F.linear) > 0
