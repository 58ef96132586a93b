"""The model of the family split, support/split_model.py: by hand, its bounds, and a GPU's bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.bounds import Reference, roundings
from support.crafted import CASES, crafted
from support.data import integers
from support.split_model import BF16X6, FP16X3, ROWS, Lines, Product, by_counts, pieces, product
from support.table import Kernel
from torch import Tensor

from torch_sgemm import error_bound

each_modelled = pytest.mark.parametrize("name", ROWS)


def one_row(*elements: float) -> Tensor:
    return torch.tensor([elements])


# --- by hand --------------------------------------------------------------------------------


def test_how_elements_are_written() -> None:
    tie = 2.0**-27 * (1 + 3 * 2.0**-23)
    x = one_row(1 + 3 * 2.0**-23, -(2.0**-14) - 2.0**-28, tie, 0, 2.0**-30)
    lines = Lines.of(x, FP16X3)
    assert lines.exponent.tolist() == [-14]
    assert lines.planes[0][0].tolist() == [2.0**14, -1, 2.0**-13, 0, 2.0**-16]
    assert lines.planes[1][0].tolist() == [12, -(2.0**-3), 2.0**-23, 0, 0]
    assert lines.small()[0].tolist() == [False, False, False, False, True]
    assert lines.threshold().tolist() == [4]

    x = one_row(1 + 2.0**-9 + 2.0**-23, 2.0**-150, 2.0**-90, 2.0**-91)
    lines = Lines.of(x, BF16X6)
    assert torch.equal(lines.written(), lines.exact) and lines.exponent.tolist() == [-40]
    assert [plane[0, 0].item() for plane in lines.planes] == [2.0**40, 2.0**31, 2.0**17]
    assert lines.small()[0].tolist() == [False, False, False, True]  # 2^-150 is no float32


def test_rows_of_very_small_elements_and_of_zeros() -> None:
    x = torch.tensor([[2.0**-149, 0], [0, 0]])
    lines = Lines.of(x, FP16X3)
    assert lines.exponent[0] == -126
    assert lines.planes[0].tolist() == [[2.0**-23, 0], [0, 0]]
    assert lines.threshold().tolist() == [4, -math.inf]


def test_what_is_certified() -> None:
    """A sum of just the threshold, and none below it."""
    a, b = one_row(2.0**14, 2.0**-14, 2.0**-20, 1), one_row(2.0**14, 1, 2.0**-30, 1)
    x, y = Lines.of(a, FP16X3), Lines.of(b, FP16X3)
    for total, certain in ((12.0, True), (-12.0, True), (12 - 2.0**-20, False)):
        assert by_counts(torch.tensor([[total]]).double(), x, y).item() == certain


@pytest.mark.parametrize("k", [16, 32, 33, 64, 65, 100, 300])
@each_modelled
def test_small_integers_are_exact(name: str, k: int) -> None:
    a, b = integers((20, k), 1), integers((k, 30), 2)
    found = product(a, b, ROWS[name], alpha=0.5, c=integers((20, 30), 3))
    assert torch.equal(found.values, 0.5 * (a @ b) + integers((20, 30), 3))
    assert bool(found.certified.all())


def test_short_pieces_have_lo_lo() -> None:
    def units(k: int) -> float:
        a = torch.full((1, k), 1 + 4094 * 2.0**-23)
        return Reference.of(a, a.t()).units(product(a, a.t(), ROWS["split_fp16x3_tall"]).values)

    assert units(32) < 1 and units(33) > 3


def test_pieces_are_even() -> None:
    assert [part.stop - part.start for part in pieces(128)] == [128]
    assert [(part.start, part.stop) for part in pieces(300)] == [(0, 112), (112, 224), (224, 336)]


@pytest.mark.parametrize("case", CASES)
@each_modelled
def test_what_is_certified_keeps_the_bound(name: str, case: str) -> None:
    """The operands were built to break the bound (support/crafted.py)."""
    row = ROWS[name]
    k = 600 if row.segment else 100 if row.window > 32 or row.headroom else 40
    a, b = crafted(case, k, "cpu")
    found = product(a, b, row)
    units = Reference.of(a, b).units_each(found.values, roundings(k))
    assert found.certified.any()
    for certain in (found.certified, found.certified_by_sums):
        assert bool((units[certain] <= error_bound(k, row.name)).all())


@pytest.mark.parametrize("by", [-24, -6, 2, 4, 15, 24])
def test_scales_that_change_on_the_way(by: int) -> None:
    """Each step's elements are 2^by as large as those before: in A, in B, and in both."""
    row, k = ROWS["split_fp16x3_streamed, both"], 160
    grows, certified = torch.exp2(torch.arange(k) // 32 * float(by)), 0
    a, b = torch.randn(20, k), torch.randn(k, 30)
    for x, y in ((a * grows, b), (a, b * grows[:, None]), (a * grows, b * grows.flip(0)[:, None])):
        found = product(x, y, row)
        units = Reference.of(x, y).units_each(found.values, roundings(k))
        assert bool((units[found.certified] <= error_bound(k, row.name)).all())
        certified += found.certified.sum()
    assert certified > 0


def test_uncertified_elements_would_break_it() -> None:
    a, b = crafted("subnormal_lo", 33, "cpu")
    found = product(a, b, ROWS["split_fp16x3"])
    units = Reference.of(a, b).units_each(found.values, roundings(33))
    assert bool((units[~found.certified] > error_bound(33, "split_fp16x3")).any())


# --- a GPU ----------------------------------------------------------------------------------


def spread(shape: tuple[int, ...], least: int, most: int) -> Tensor:
    by = torch.randint(least, most + 1, shape).double()
    return (torch.randn(shape).double() * torch.exp2(by)).float()


def with_small(shape: tuple[int, ...]) -> Tensor:
    """A few elements are small beside their row's largest, so that their hi is subnormal."""
    return torch.where(torch.rand(shape) < 0.05, spread(shape, -33, -27), torch.randn(shape))


KINDS: dict[str, Callable[[tuple[int, ...]], Tensor]] = {
    "normal": torch.randn,
    "one sign": lambda shape: torch.rand(shape) + 0.5,
    "subnormal lo": lambda shape: spread(shape, -24, 0),
    "small elements": with_small,
    "spread": lambda shape: spread(shape, -6, 6),
    "any scale": lambda shape: spread((shape[0], 1), -55, 55) * torch.randn(shape),
    "hi alone": lambda shape: torch.randn(shape).bfloat16().float(),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_plain = pytest.mark.rows(name=tuple(ROWS), device="cuda")
SIZE, BLOCK = (112, 96), 16


def operands(kind: str, k: int) -> tuple[Tensor, Tensor]:
    m, n = SIZE
    return KINDS[kind]((m, k)), KINDS[kind]((n, k)).t().contiguous()


def same_bits(found: Tensor, expected: Product, tall: bool) -> bool:
    """Returns True if certified elements have the expected bits.

    If ``tall``, the row may redo all of a block with a refused element, which is then left out.
    """
    kept = expected.certified
    if tall:
        blocks = kept.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).all(3).all(1)
        kept = blocks.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    assert kept.double().mean() > 0.9
    found = found.cpu()
    return bool(found[kept].isfinite().all()) and torch.equal(found[kept], expected.values[kept])


def first_plan(row: Kernel, a: Tensor, b: Tensor, c: Tensor | None = None, **factors) -> Tensor:
    """Runs the first plan, which has no clusters, and one slice where k is short."""
    result = torch.full(SIZE, math.nan) if c is None else c.clone()
    result = result.cuda()
    torch.ops.sgemm._run_plan(result, a.cuda(), b.cuda(), row.name, 0, **factors)
    return result


def model_of(row: Kernel):
    return ROWS[row.name.split(":")[0]]


@pytest.mark.parametrize("k", [16, 32, 48, 64, 100, 128])
@each_kind
@each_plain
def test_bits_of_a_plain_plan(row: Kernel, kind: str, k: int) -> None:
    a, b = operands(kind, k)
    model = model_of(row)
    assert same_bits(first_plan(row, a, b), product(a, b, model), model.tall)


@pytest.mark.parametrize("alpha", [0.007, -1.25 * 2.0**-8, 3e-20])
@pytest.mark.parametrize("kind", ["normal", "any scale"])
@each_plain
def test_bits_with_alpha_and_c(row: Kernel, kind: str, alpha: float) -> None:
    a, b = operands(kind, 64)
    c = torch.randn(SIZE) * (alpha if kind == "normal" else 2.0**-20)
    model = model_of(row)
    found = first_plan(row, a, b, alpha=alpha)
    assert same_bits(found, product(a, b, model, alpha), model.tall)
    found = first_plan(row, a, b, c, alpha=alpha, beta=1)
    assert same_bits(found, product(a, b, model, alpha, c), model.tall)


@pytest.mark.parametrize("k", [130, 300, 897])
@pytest.mark.parametrize("kind", ["normal", "subnormal lo", "small elements"])
@pytest.mark.rows(name="split_fp16x3_tall", device="cuda")
def test_bits_of_tall_pieces(row: Kernel, kind: str, k: int) -> None:
    a, b = operands(kind, k)
    assert same_bits(first_plan(row, a, b), product(a, b, model_of(row)), True)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [64, 96, 100, 160, 200])
@each_kind
def test_bits_of_long_windows(has_planes: None, kind: str, k: int) -> None:
    """Batch-invariant products have them at any size."""
    a, b = operands(kind, k)
    found = torch.ops.sgemm.mm(a.cuda(), b.cuda(), kernel="batch_invariant")
    assert same_bits(found, product(a, b, ROWS["split_fp16x3, long windows"]), False)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [256, 257, 300, 544, 1000])
@each_kind
def test_bits_of_segments(has_planes: None, kind: str, k: int) -> None:
    """So narrow a weight has segments of 256 of k, whether it meets few rows or many."""
    a, b = operands(kind, k)
    expected = product(a, b, ROWS["split_fp16x3, segments"])
    for rows in (slice(None), slice(20, 60), slice(7, 8)):
        found = torch.ops.sgemm.mm(a[rows].cuda(), b.cuda(), kernel="batch_invariant")
        kept = expected.certified[rows]
        assert torch.equal(found.cpu()[kept], expected.values[rows][kept]), rows
