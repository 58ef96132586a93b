"""Factors of k between the operands: what is redone without them, and what misleads them."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
import torch
from support.bounds import Reference, proven_units
from support.layouts import PAIRS, laid_out
from support.plans import by_each_plan, within_bound
from support.process import ROOT
from support.split import SPLIT, here
from support.table import Kernel
from torch import Tensor

import torch_sgemm
from benchmarks.data import KINDS, matrices
from benchmarks.problems import Problem

SOURCE = (ROOT / "csrc" / "split" / "balance.cuh").read_text(encoding="utf-8")
MOST = int(re.search(r"kMostBalanced = (\d+)", SOURCE)[1])  # bits of a factor
GROUPS = int(re.search(r"kSampledGroups = (\d+)", SOURCE)[1])  # of two rows
BALANCED = [row for row in SPLIT if row.name.split(":")[0] == "split_fp16x3"]
each_balanced = pytest.mark.parametrize("row", BALANCED, ids=lambda row: row.name)


def in_own_units(m: int, n: int, k: int, bits: int, count: int = 0) -> tuple[Tensor, Tensor]:
    """Normal numbers, A's columns times powers of two up to ``bits``, B's rows divided by them."""
    batch = (count,) if count else ()
    units = torch.randint(-bits, bits + 1, (k,), device="cuda")
    a, b = torch.randn(*batch, m, k, device="cuda"), torch.randn(*batch, k, n, device="cuda")
    return torch.ldexp(a, units), torch.ldexp(b, -units[:, None])


def tiles_redone() -> int:
    torch.cuda.synchronize()
    return torch_sgemm.redone().tiles


def check(row: Kernel, a: Tensor, b: Tensor) -> list[int]:
    """Every plan's errors are below the row's bound. Returns the tiles that each has redone."""
    counts = [tiles_redone(), *(tiles_redone() for _ in within_bound(row, a, b))]
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("bits", [10, 20, 40])
@each_balanced
def test_features_in_own_units_are_not_redone(row: Kernel, bits: int, layouts: str) -> None:
    """By the last plans, which have factors; by the first they are, from 2^20 on."""
    here(row)
    for m, n, k in ((300, 200, 1000), (130, 257, 2052), (9, 140, 9000)):
        a, b = in_own_units(m, n, k, bits)
        tiles = check(row, laid_out(a, layouts[0]), laid_out(b, layouts[1]))
        assert tiles[-1] == 0, (m, n, k)
        assert tiles[0] > 0 or bits < 20, (m, n, k)


@pytest.mark.gpu
@each_balanced
def test_batches(row: Kernel) -> None:
    """Each matrix has factors of its own, unless all share an operand."""
    here(row)
    a, b = in_own_units(150, 140, 520, 30, count=3)
    turned = b.flip(-2)  # another one's units
    assert check(row, a, b)[-1] == 0
    mixed = torch.cat([a[:1], a[:1].flip(-1)]), torch.cat([b[:1], turned[:1]])
    assert check(row, *mixed)[-1] == 0
    assert check(row, a, b[:1].expand_as(b))[-1] == 0
    assert check(row, a[:1].expand_as(a), b)[-1] == 0
    check(row, mixed[0], turned[:1].expand(2, -1, -1))  # right for one of two


@pytest.mark.gpu
def test_large_products_have_them() -> None:
    here(BALANCED[0])
    a, b = in_own_units(4096, 4096, 4096, 20)
    before = tiles_redone()
    result = torch.ops.sgemm.mm(a, b, "split_fp16x3")
    assert tiles_redone() == before
    rows = slice(1000, 1064)
    units = Reference.of(a[rows], b).units(result[rows])
    assert units <= proven_units(BALANCED[0], 4096)


@pytest.mark.gpu
@pytest.mark.parametrize("layouts", PAIRS)
@each_balanced
def test_rows_that_are_unlike_the_sampled_ones(row: Kernel, layouts: str) -> None:
    """Elements that factors take out of float32's range, or out of float16's beside their rows."""
    here(row)
    m, n, k = 264, 140, 520
    for of_others in (2.0 ** (2 * MOST), 2.0**-MOST, 2.0**-86, 0.0):
        a, b = in_own_units(m, n, k, MOST)
        sampled = torch.zeros(m, 1, dtype=torch.bool, device="cuda")
        for group in range(GROUPS):
            sampled[m * group // GROUPS : m * group // GROUPS + 2] = True
        units = a[:1].abs().clamp(2.0**-100)
        others = torch.randn_like(a) / units * of_others
        a = torch.where(sampled, a, others)
        check(row, laid_out(a, layouts[0]), laid_out(b, layouts[1]))
    a, b = in_own_units(m, n, k, MOST)
    a[10, :: k // 8], a[11], a[12, ::2] = 2.0**126, 2.0**-126, 2.0**-140
    check(row, laid_out(a, layouts[0]), laid_out(b * 2.0**-60, layouts[1]))


@pytest.mark.gpu
@each_balanced
def test_inf_and_nan_where_the_samples_are(row: Kernel) -> None:
    here(row)
    a, b = in_own_units(200, 160, 700, 30)
    a[0, 5], a[1, 6], b[7, 2] = math.inf, math.nan, -math.inf
    expected = torch.mm(a.double(), b.double()).float()
    for plan, result in by_each_plan(row, a, b):
        assert torch.equal(result.isnan(), expected.isnan()), plan
        assert torch.equal(result.isinf(), expected.isinf()), plan


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "inner_scaled" not in kind])
@each_balanced
def test_other_data_stay_as_they_are(row: Kernel, kind: str) -> None:
    """A plan with factors has the bits of one without."""
    here(row)
    a, b = matrices(kind, Problem(400, 260, 1500), torch.device("cuda"), 0)
    results = [d.nan_to_num(7) for _, d in by_each_plan(row, a, b)]
    assert any(torch.equal(results[-1], other) for other in results[:-1])
