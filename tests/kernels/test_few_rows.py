"""split_fp16x3_few with a packed weight, at every number of columns that a tile multiplies."""

from __future__ import annotations

import math

import pytest
import torch
from support.data import integers, operands
from support.layouts import PAIRS, laid_out
from support.split import needs_planes, within_contract

import torch_sgemm

ROW = "split_fp16x3_few"
pytestmark = pytest.mark.gpu

# Around the widths 8, 16, 32 and 64; more rows than columns; k of several slices.
SIZES = [
    *((m, 515, 1100) for m in (1, 8, 9, 16, 17, 32, 33, 64, 65, 129)),
    (12, 256, 7168), (40, 130, 33), (260, 40, 900), (20, 300, 9000),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["normal", "inner_scaled_20"])
@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed(size: tuple[int, int, int], layouts: str, kind: str) -> None:
    needs_planes()
    a, b = (x.cuda() for x in operands(kind, *size, seed=1))
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    packed = torch_sgemm.pack(b, frozen=True)
    result = packed.mm(a, kernel=ROW)
    assert within_contract(a, b, result)
    assert torch.equal(result, packed.mm(a, kernel=ROW))


@pytest.mark.parametrize("row", [ROW, "split_fp16x3"])
@pytest.mark.parametrize("m, n, k", [(1, 515, 1100), (40, 1024, 4096), (64, 130, 9000)])
def test_each_plan_reads_the_planes(m: int, n: int, k: int, row: str) -> None:
    """Small integers, so that sums are exact."""
    needs_planes()
    a, b = integers((m, k), 1, "cuda"), integers((k, n), 2, "cuda")
    expected = (a.double() @ b.double()).float()
    planes = torch.ops.sgemm._pack(b)
    c = torch.empty_like(expected)
    count = len(torch.ops.sgemm._plans(c, a, b, row, planes=planes))
    assert count > 0
    for plan in range(count):
        c.fill_(math.nan)
        torch.ops.sgemm._run_plan(c, a, b, row, plan, planes=planes)
        assert torch.equal(c, expected), plan


@pytest.mark.parametrize("m", [5, 64])
def test_a_weight_written_before_its_product(m: int) -> None:
    """The product copies the weight's planes before the kernel in front of it has ended."""
    needs_planes()
    a, b = torch.randn(m, 2048, device="cuda"), torch.randn(2048, 1024, device="cuda")
    packed = torch_sgemm.pack(b, frozen=True)
    for scale in (1, 2, 4, 8):
        packed.update()
        result = packed.mm(a, kernel=ROW)
        assert within_contract(a, b, result), scale
        b.mul_(2)
