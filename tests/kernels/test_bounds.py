"""The proven error bound of every row of the families ieee and split, searched for a breach.

Operands are built from each term of the bound (support/crafted.py), and the worst of them are bred
further. Nothing may be off by more than ``error_bound``; and each term is reached by half
at least, so that the bound is known to be tight, and the search to be able to fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from support import split_terms
from support.activations import ACTIVATIONS, each_function
from support.bounds import UNIT, Reference, proven_units, roundings
from support.breeding import breed
from support.crafted import (
    CASES,
    classes,
    crafted,
    everything,
    in_order,
    inf_behind_overflow,
    infs_in_parts,
    near_overflow,
)
from support.layouts import PAIRS, Guarded
from support.split_model import FP16X3, ROWS, product
from support.table import PROVEN_FAMILIES, Kernel, each_device, fit, rows, runnable
from torch import Tensor

import torch_sgemm

pytestmark = pytest.mark.rows(family=PROVEN_FAMILIES)
DEPTHS = {
    "cpu": (1, 5, 64),
    "cuda": (1, 2, 5, 16, 31, 32, 33, 64, 65, 127, 129, 300, 1024, 2050, 8193, 20000),
}


def single(x: float) -> float:
    """The nearest float32, which is what alpha and beta are by definition."""
    return float(torch.tensor(x, dtype=torch.float32))


FACTORS = (
    (1.0, 0.0), (2.0**-20, 0.0), (single(-1.1), 0.0), (1.25 * 2.0**-8, 0.0), (single(0.007), 1.0),
    (1 + 2998 * 2.0**-23, 0.0), (2 - 2.0**-23, 0.0), (single(1 / 3), single(-0.7)),
)  # fmt: skip


def blocks(row: Kernel, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A and B, or a batch of parts of theirs that a row for small products takes."""
    if row.max_size is None:
        return a, b
    size = row.max_size
    count = max(a.size(0), b.size(1)) // size + 1
    rows = torch.arange(count * size, device=a.device)
    a, b = a[rows % a.size(0)], b[:, rows % b.size(1)]
    return a.unflatten(0, (count, size)), b.t().unflatten(0, (count, size)).mT


def most_units(
    row: Kernel, a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1, beta: float = 0
) -> float:
    """The largest error of ``row`` on these operands as a share of its bound."""
    reference = Reference.of(a, b, c, alpha, beta)
    result = torch.full_like(reference.value, float("nan"), dtype=torch.float32)
    if c is not None:
        result.copy_(c)
    torch.ops.sgemm.gemm_(result, a, b, alpha=alpha, beta=beta, kernel=row.name)
    return share(row, reference, result, a.size(-1), alpha, beta)


def share(row, reference, result, k: int, alpha: float = 1, beta: float = 0) -> float:
    """The largest error by the bound of a product of depth k."""
    subnormals = roundings(k) * max(1.0, abs(alpha))
    units = reference.units_each(result, subnormals)
    return float(units.max()) / proven_units(row, k, alpha, beta)


# --- each case, alone and beside the others -------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_no_element_breaks_the_bound(row: Kernel, device: str, case: str) -> None:
    for k in dict.fromkeys(fit(row, *DEPTHS[device])):
        a, b = blocks(row, *crafted(case, k, device))
        assert most_units(row, a, b) <= 1, k


@pytest.mark.parametrize(("alpha", "beta"), FACTORS)
def test_nor_with_alpha_and_c(row: Kernel, device: str, alpha: float, beta: float) -> None:
    for k in dict.fromkeys(fit(row, *((1, 33) if device == "cpu" else (1, 33, 300)))):
        a, b = blocks(row, *everything(k, device))
        c = torch.randn(*a.shape[:-1], b.size(-1), device=device) if beta else None
        assert most_units(row, a, b, c, alpha, beta) <= 1, k


@pytest.mark.parametrize("layouts", PAIRS)
def test_nor_in_any_layout(row: Kernel, device: str, layouts: str) -> None:
    """Rows apart, and odd offsets and strides: all ways of elements to the kernels."""
    k = fit(row, 97)[0]
    a, b = blocks(row, *everything(k, device))
    for kinds in (("_pad", "_off1"), ("_off3", ""), ("", "_pad4")):
        left, right = (
            Guarded(x.shape, letter + kind, device, x).view
            for x, letter, kind in zip((a, b), layouts, kinds, strict=True)
        )
        assert most_units(row, left, right) <= 1, kinds


def test_nor_in_batches_that_share_an_operand(row: Kernel, device: str) -> None:
    k = fit(row, 130)[0]
    a, b = everything(k, device)
    m, n = fit(row, 300, 300)
    a, b = a[:m].expand(3, -1, -1), torch.stack([b[:, :n], b[:, -n:], -b[:, 100 : 100 + n]])
    assert most_units(row, a, b) <= 1
    assert most_units(row, b.mT, a.mT) <= 1


@each_function
def test_nor_behind_an_activation(row: Kernel, device: str, activation: str) -> None:
    for k in dict.fromkeys(fit(row, 5, 200)):
        a, b = everything(k, device)
        m, n = fit(row, len(a), b.size(1))
        a, b = a[:m], b[:, :n]
        result = torch_sgemm.linear(a, b.t(), None, activation, kernel=row.name)
        exact = Reference.of(a, b)
        reference = Reference(ACTIVATIONS[activation](exact.value), exact.scale, exact.product)
        units = reference.units_each(result, 2 * roundings(k))
        assert float(units.max()) <= torch_sgemm.error_bound(k, row.name, activation), k


@pytest.mark.parametrize("alpha", [1.0, single(0.007), 2.0**-149, 2.0**-100])
def test_nor_where_c_is_much_larger(row: Kernel, device: str, alpha: float) -> None:
    """Each part of k comes to just less than half of C's last bit: parts must meet before C."""
    for k in fit(row, *((64,) if device == "cpu" else (300, 10000))):
        parts = [length for length in (16, 32, 64, 128, 256, 1024, 8192) if length <= k] or [k]
        each = torch.tensor([2.0**-25 * (1 - 2.0**-6) / (length * alpha) for length in parts])
        a = torch.cat([each, -each])[:, None].expand(-1, k).to(device)
        b = torch.ones(k, 130, device=device)[:, : fit(row, 130)[0]]
        for left, right in ((a, b), (b.t(), a.t())):
            c = torch.ones(left.size(0), right.size(1), device=device)
            assert most_units(row, left, right, c, alpha, 1.0) <= 1, k


@pytest.mark.rows(device="cuda")
@pytest.mark.parametrize("alpha", [1.0, single(0.007)])
def test_nor_in_a_small_workspace(
    row: Kernel, device: str, alpha: float, limit_workspace: Callable[[int], None]
) -> None:
    limit_workspace(1)
    for k in dict.fromkeys(fit(row, 300, 20000)):
        a, b = everything(k, device)
        m, n = fit(row, len(a), 130)
        c = torch.full((m, n), 1.0, device=device)
        assert most_units(row, a[-m:], b[:, -n:], c, alpha, 1.0) <= 1, k


@each_device
def test_nor_where_b_is_packed(device: str) -> None:
    tiles = rows(name="split_fp16x3")
    if not set(tiles) <= set(runnable(device)):
        pytest.skip("split_fp16x3 does not run here")
    for k in (33, 300, 8200):
        a, b = everything(k, device)
        for kernel in (*(row.name for row in tiles), "split_fp16x3", "auto"):
            result = torch_sgemm.pack(b, frozen=True).mm(a, kernel=kernel)
            assert share(tiles[0], Reference.of(a, b), result, k) <= 1


# --- bred -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [48, 256])
def test_what_is_bred_from_the_worst_keeps_the_bound(row: Kernel, device: str, k: int) -> None:
    k = fit(row, k)[0]

    def units(a: Tensor, b: Tensor) -> Tensor:
        result = torch.ops.sgemm.mm(a, b, kernel=row.name)
        return Reference.of(a, b).units_each(result, roundings(k))

    a, b = everything(k, device)
    m, n = fit(row, len(a), b.size(1))
    a, b = a[:: len(a) // m][:m], b[:, :: b.size(1) // n][:, :n]
    worst = breed(a, b, units, rounds=300 if device == "cuda" else 5, seed=k)
    assert worst <= proven_units(row, k), f"{worst:.1f} units"


# --- how tight it is ------------------------------------------------------------------------


Run = Callable[..., Tensor]  # alpha A B, plus C if there is one


@dataclass(frozen=True)
class Term:
    """A term of the bound.

    ``units``: its part of the bound at depth ``k``. ``measure`` returns the error that a product
    makes by this term at a depth, in units.
    """

    units: float
    k: int
    measure: Callable[[Run, int], float]


def largest_error(make: Callable) -> Callable[[Run, int], float]:
    def measure(run: Run, k: int) -> float:
        a, b = make(FP16X3, k)
        return float(Reference.of(a, b).units_each(run(a, b), roundings(k)).max())

    return measure


def made_by_small_elements(run: Run, k: int) -> float:
    """The difference between products with small elements and without, less the exact one's.

    Each operand in turn has the small elements. The cases also cover thresholds that are rounded
    up, and a column's scale that leaves a binade for later elements.
    """
    found = []
    for headroom, factor in itertools.product((0, 1), (1.001, 1.02)):
        a, without, b = split_terms.small_elements(FP16X3, 1, factor, headroom)
        exact, scale = (a.double() - without.double()) @ b.double(), Reference.of(a, b).scale
        for turned in (False, True):
            several, others = (run(b.t(), x.t()) if turned else run(x, b) for x in (a, without))
            difference = several.double() - others.double()  # 1 x 1
            found.append(((difference - exact).abs() / (UNIT * scale)).max())
    return float(torch.stack(found).max())


def behind_sums(run: Run, k: int) -> float:
    """Measures the error by corrections, alpha and C, each of which is rounded.

    Planes hold the operands exactly.
    """
    end = split_terms.ending(FP16X3)
    result = run(end.a, end.b, end.alpha, end.c)
    return float(Reference.of(end.a, end.b, end.c, end.alpha, 1).units_each(result).max())


# The terms of docs/split.md in rows of two float16 per element.
TERMS = {
    "writing": Term(4, 40, largest_error(split_terms.writing)),
    "lo_lo": Term(4, 48, largest_error(split_terms.left_out)),  # split_fp16x3_tall has it up to 32
    "window": Term(21, 32, largest_error(split_terms.aligned)),
    "subnormal_lo": Term(4, 40, largest_error(split_terms.subnormal_lo)),  # lo lo is nothing
    "threshold": Term(3, split_terms.SMALL_K, made_by_small_elements),
    "the end": Term(3, 1, behind_sums),
}


@pytest.mark.parametrize("term", TERMS)
def test_terms_are_reached_in_a_model(term: str) -> None:
    """The crafted operands reach their terms in the model, without a GPU."""

    def model(a: Tensor, b: Tensor, alpha: float = 1, c: Tensor | None = None) -> Tensor:
        found = product(a, b, ROWS["split_fp16x3"], alpha, c)
        again = (a.double() @ b.double()).float()  # of what the guard doesn't certify
        return found.values.where(found.certified, again)

    found = TERMS[term].measure(model, TERMS[term].k)
    assert TERMS[term].units / 2 <= found, f"{found:.1f} units"
    assert found <= torch_sgemm.error_bound(TERMS[term].k, "split_fp16x3")


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.rows(device="cuda", where=lambda row: row.name.startswith("split_fp16x3"))
def test_terms_are_reached(row: Kernel, device: str, term: str) -> None:
    def run(a: Tensor, b: Tensor, alpha: float = 1, c: Tensor | None = None) -> Tensor:
        a, b = a.to(device), b.to(device)
        if c is None:
            return torch.ops.sgemm.mm(a, b, kernel=row.name).cpu()
        c = c.to(device)
        return torch.ops.sgemm.addmm(c, a, b, alpha=alpha, beta=1, kernel=row.name).cpu()

    found = TERMS[term].measure(run, TERMS[term].k)
    assert TERMS[term].units / 2 <= found, f"{found:.1f} of {TERMS[term].units} units"


# --- values ---------------------------------------------------------------------------------


@cache
def hostile(k: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Operands near overflow, and which sums are finite in order of k."""
    a, b = near_overflow(k)
    return a.to(device), b.to(device), in_order(a, b).isfinite().to(device)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 1e-30])
def test_sums_that_are_finite_in_order_are_finite(row: Kernel, device: str, alpha: float) -> None:
    """An order of our own, or parts of k, make no Inf and no NaN."""
    for k in dict.fromkeys(fit(row, *((64,) if device == "cpu" else (33, 300, 1100, 8200, 17000)))):
        a, b, finite = hostile(k, device)
        m, n = fit(row, len(a), b.size(1))
        for part in range(0, len(a), m):
            rows = a[part : part + m]
            for left, right, wanted in (
                (rows, b, finite[part : part + m]),
                (b.t(), rows.t(), finite[part : part + m].t()),
            ):
                result = torch.ops.sgemm.addmm(
                    torch.zeros(1, device=device), left, right, alpha=alpha, kernel=row.name
                )
                assert bool(result.isfinite()[wanted].all()), k


@cache
def with_inf(k: int) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
    """Operands with Inf, and the class of each element in order of k."""
    pairs = [inf_behind_overflow(k), infs_in_parts(k)]
    return tuple((a, b, classes(in_order(a, b))) for a, b in pairs)


def check_classes(row: Kernel, device: str, k: int) -> None:
    for a, b, expected in with_inf(k):
        m, n = fit(row, len(a), b.size(1))
        for part in range(0, len(a), m):
            rows, wanted = a[part : part + m], expected[part : part + m, :n]
            for left, right, of_sums in (
                (rows, b[:, :n], wanted),
                (b.t()[:n], rows.t(), wanted.t()),
            ):
                found = torch.ops.sgemm.mm(left.to(device), right.to(device), kernel=row.name)
                assert torch.equal(classes(found.cpu()), of_sums), k


def test_inf_is_where_a_sum_in_order_has_it(row: Kernel, device: str) -> None:
    """This holds also if a part of k overflows to the other Inf, or contains it."""
    for k in dict.fromkeys(fit(row, *((33,) if device == "cpu" else (33, 300, 512, 4096)))):
        check_classes(row, device, k)


@pytest.mark.rows(device="cuda")
def test_and_in_a_small_workspace(
    row: Kernel, device: str, limit_workspace: Callable[[int], None]
) -> None:
    """The small workspace makes pieces of k add up in D."""
    limit_workspace(1)
    for k in dict.fromkeys(fit(row, 512, 4096)):
        check_classes(row, device, k)


def test_subnormal_results_are_kept(row: Kernel, device: str) -> None:
    """Results from 2^-149 on, each off by the halves of it that rounding takes at most."""
    k = fit(row, 20)[0]
    exponents = torch.arange(-80, -50, device=device).double()
    a = torch.exp2(exponents)[:, None].float() * torch.ones(k, device=device)
    b = torch.exp2(exponents - 5).float() * torch.ones(k, 1, device=device)
    result = torch.ops.sgemm.mm(a, b, kernel=row.name)
    exact = a.double() @ b.double()
    assert bool(((result.double() - exact).abs() <= roundings(k) * 2.0**-150).all())
    assert bool((result != 0)[exact >= roundings(k) * 2.0**-150].all())


def test_the_search_can_fail() -> None:
    """A product that keeps hi alone, and one that loses a term, are out of every bound."""
    row = rows(family="split")[-1]
    a, b = everything(33, "cpu")
    reference = Reference.of(a, b)
    assert share(row, reference, reference.value.float(), 33) <= 1
    rounded = Reference.of(a.bfloat16().float(), b).value.float()
    assert not share(row, reference, rounded, 33) <= 1
    for spoil in (float("nan"), float("inf")):
        bad = reference.value.float()
        bad[0, 0] = spoil
        assert not share(row, reference, bad, 33) <= 1
