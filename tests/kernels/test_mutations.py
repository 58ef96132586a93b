"""A spoilt constant of the split rows' bound, or of their guard, doesn't go unnoticed.

Each term of the bound is a budget: on every construction, what the step loses that the term stands
for, with exact arithmetic elsewhere, must be within it (support/split_losses.py). All terms can't
be reached at once, so the sum alone would notice little.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from support import split_terms
from support.crafted import CASES, crafted
from support.process import ROOT
from support.split_bound import COPY, Constants, bound
from support.split_losses import losses
from support.split_model import BF16X6, FP16X3, ROWS, SUM_ROUNDING, Format
from support.table import ANY, Kernel

from torch_sgemm import error_bound

FORMATS = {"split_fp16x3": FP16X3, "split_bf16x6": BF16X6}
each_format = pytest.mark.parametrize("name", FORMATS)
FIELDS = {term: term.replace(" ", "_") for term in COPY[FP16X3].shares(32, 32)}
BY_WINDOW = ("aligned", "last")  # terms that windows of 64 double
# bfloat16 holds an element whole: there is nothing to spoil.
SPOILT_TERMS = [
    (name, term)
    for name, form in FORMATS.items()
    for term, share in COPY[form].shares(32, 32).items()
    if share > 0
]
# Factors by which thresholds of csrc/split/format are spoilt. bfloat16's kSmall is about 2^13 times
# as large as it must be: products of such elements reach down to 2^-100, and sums lose bits only
# below 2^-124.
SPOILT_THRESHOLDS = {
    ("split_fp16x3", "small"): 1 / 8,
    ("split_fp16x3", "threshold"): 1 / 8,
    ("split_fp16x3", "sum_threshold"): 1 / 8,
    ("split_bf16x6", "small"): 2.0**-15,
    ("split_bf16x6", "threshold"): 1 / 8,
    ("split_bf16x6", "sum_threshold"): 1 / 8,
}


# --- the copy -------------------------------------------------------------------------------


@pytest.mark.rows(family="split", takes_float32=ANY, tiles=False)
def test_the_copy_is_the_bound(row: Kernel) -> None:
    depths = (*range(1, 300), 1000, 1023, 1024, 1025, 8191, 8192, 8193, 65536, 10**6)
    for k in depths:
        assert bound(k, row.name) == error_bound(k, row.name), k


@each_format
def test_the_format_is_that_of_the_kernels(name: str) -> None:
    """The numbers of csrc/split/format that the model repeats."""
    folder = ROOT / "csrc" / "split" / "format"
    source = (folder / "formats.cuh").read_text(encoding="utf-8")
    struct = {"split_fp16x3": "Fp16x3", "split_bf16x6": "Bf16x6"}[name]
    body = source.split(f"struct {struct} {{")[1].split("\n};")[0]
    found = dict(re.findall(r"static constexpr \w+ (k\w+) = (\S+?)f?;", body))
    form = FORMATS[name]
    expected = {
        "kTopExponent": form.top,
        "kLimit": 2.0 ** (form.top + 1),
        "kSmall": form.small,
        "kThreshold": form.threshold,
        "kSumThreshold": form.sum_threshold,
        "kCorrection": form.correction,
    }
    assert {field: number(text) for field, text in found.items()} == expected
    row_scale = (folder / "row_scale.cuh").read_text(encoding="utf-8")
    assert number(re.search(r"kSumRounding = (\S+?)f?;", row_scale)[1]) == SUM_ROUNDING


def number(text: str) -> float:
    return float.fromhex(text) if text.startswith("0x") else float(text)


@each_format
def test_the_shares_are_all_of_it(name: str) -> None:
    for k, window in ((1, 32), (33, 32), (1000, 64)):
        constants = COPY[FORMATS[name]]
        whole = constants.bound(k, window)
        assert sum(constants.shares(k, window).values()) == pytest.approx(whole, rel=1e-12)


# --- terms ----------------------------------------------------------------------------------

Largest = tuple[int, int, dict[str, float]]  # k, window, each term's largest loss


def measured(name: str, window: int, a, b, alpha: float = 1, c=None) -> Largest:
    form = FORMATS[name]
    k = a.size(1)
    row = replace(ROWS[name], window=window)
    found = losses(a, b, row, alpha, c)
    assert found.certain.any()
    terms = COPY[form].shares(k, window)
    return k, row.at_depth(k).window, {term: found.largest(term) for term in terms}


@cache
def built_for_a_term(name: str) -> tuple[Largest, ...]:
    form = FORMATS[name]
    found = [measured(name, 32, *make(form, k)) for make, k in split_terms.TERMS.values()]
    found += [measured(name, 64, *split_terms.TERMS[term][0](form, 128)) for term in BY_WINDOW]
    if form.planes == 2:
        found.append(measured(name, 32, *split_terms.writing(form, 32)))
        found.append(measured(name, 32, *split_terms.subnormal_lo(form, 40)))
        found.append(measured(name, 32, *split_terms.subnormal_neighbours()))
    for size in (1, 2.0**-6):  # certified by counts, and by sums
        a, _, b = split_terms.small_elements(form, size)
        found.append(measured(name, 32, a, b))
    ending = split_terms.ending(form)
    found.append(measured(name, 32, ending.a, ending.b, ending.alpha, ending.c))
    return tuple(found)


def broken(constants: Constants, found: tuple[Largest, ...]) -> set[str]:
    """Terms with a loss above their shares."""
    return {
        term
        for k, window, largest in found
        for term, share in constants.shares(k, window).items()
        if not largest[term] <= share
    }


@each_format
def test_no_loss_is_above_its_share(name: str) -> None:
    assert broken(COPY[FORMATS[name]], built_for_a_term(name)) == set()


@pytest.mark.parametrize("case", CASES)
@each_format
def test_nor_on_what_was_crafted(name: str, case: str) -> None:
    found = tuple(measured(name, window, *crafted(case, 80, "cpu")) for window in (32, 64))
    assert broken(COPY[FORMATS[name]], found) == set()


@pytest.mark.parametrize(("name", "term"), SPOILT_TERMS)
def test_half_of_a_share_is_too_little(name: str, term: str) -> None:
    """So each term's operands reach more than half of its share, and exceed no other share."""
    constants = COPY[FORMATS[name]]
    spoilt = replace(constants, **{FIELDS[term]: getattr(constants, FIELDS[term]) / 2})
    assert broken(spoilt, built_for_a_term(name)) == {term}


# --- the guard ------------------------------------------------------------------------------


def guarded(name: str, form: Format) -> set[str]:
    """Terms that are above their shares where ``form``'s guard certifies elements.

    Operands are built for that guard, with errors as large as it can certify.
    """
    row = replace(ROWS[name], form=form)
    pairs = [split_terms.small_elements(form, size)[::2] for size in (1, 2.0**-6)]
    pairs.append(split_terms.uncounted(form, 1))
    found = []
    for a, b in pairs:
        lost = losses(a, b, row)
        terms = COPY[FORMATS[name]].shares(a.size(1), row.window)
        found.append((a.size(1), row.window, {term: lost.largest(term) for term in terms}))
    return broken(COPY[FORMATS[name]], tuple(found))


@each_format
def test_the_guard_keeps_its_share(name: str) -> None:
    assert guarded(name, FORMATS[name]) == set()


@pytest.mark.parametrize(("name", "field"), SPOILT_THRESHOLDS)
def test_a_smaller_threshold_is_too_little(name: str, field: str) -> None:
    form = FORMATS[name]
    factor = SPOILT_THRESHOLDS[name, field]
    assert guarded(name, replace(form, **{field: getattr(form, field) * factor}))


@each_format
def test_sums_just_below_what_is_asked_are_not_certified(name: str) -> None:
    for size in (1, 2.0**-6):
        a, _, b = split_terms.small_elements(FORMATS[name], size, 0.99)
        assert not losses(a, b, ROWS[name]).certain.any()


def test_the_guard_s_share_holds_what_neighbours_lose() -> None:
    """A small element's hi aligns its 15 neighbours, and the sum, as if it were 2^-14.

    Beside 2^15 that cuts each off below 2^-24: 4 units of the threshold, 4, and 3 of its own.
    """
    found = measured("split_fp16x3", 32, *split_terms.subnormal_neighbours())
    assert broken(COPY[FP16X3], (found,)) == set()
