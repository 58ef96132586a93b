"""``error_bound``: the rows that promise one, its growth with k, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from support.table import ANY, KERNELS, PROVEN_FAMILIES, families, rows

import torch_sgemm
from torch_sgemm import error_bound

PROVEN = rows(family=PROVEN_FAMILIES, takes_float32=ANY, tiles=False)
DEPTHS = (1, 2, 7, 8, 31, 32, 33, 64, 127, 128, 129, 1000, 1024, 8191, 8192, 8193, 65536, 10**6)
each_proven = pytest.mark.rows(family=PROVEN_FAMILIES, takes_float32=ANY, tiles=False)


def depths(row: torch_sgemm.Kernel) -> tuple[int, ...]:
    return tuple(k for k in DEPTHS if row.takes(1, 1, k))


@each_proven
def test_every_row_of_the_two_families_has_a_bound(row) -> None:
    assert error_bound(0, row.name) == 0
    bounds = [error_bound(k, row.name) for k in depths(row)]
    assert all(1 <= bound < math.inf for bound in bounds)
    if row.family == "split":  # the others may cut a longer sum into shorter pieces
        assert bounds == sorted(bounds)


@each_proven
def test_bounds_of_what_auto_may_take(row) -> None:
    """No row promises much less than an ordinary dot product does, and long sums far more."""
    if not row.in_auto:
        pytest.skip("taken by its name or family only")
    for k in depths(row):
        assert error_bound(k, row.name) <= max(k * (1 + 2.0**-10), 48), k
    for k, most in ((1024, 110), (8192, 560)):
        if row.takes(1, 1, k):
            assert error_bound(k, row.name) <= most


@pytest.mark.parametrize("kernel", ["auto", "ieee", "split"])
def test_a_choice_among_rows_has_the_largest_bound(kernel: str) -> None:
    for k in DEPTHS:
        names = [
            row.name
            for row in PROVEN
            if row.takes(1, 1, k)
            and (row.in_auto and k >= row.auto_from if kernel == "auto" else row.family == kernel)
        ]
        assert error_bound(k, kernel) == max(error_bound(k, name) for name in names)
    assert error_bound(0, kernel) == 0
    assert error_bound(100) == error_bound(100, "auto")


def test_auto_takes_rows_that_have_a_bound_or_pytorch_s() -> None:
    assert [row.name for row in KERNELS if row.in_auto and row not in PROVEN] == ["aten"]


@pytest.mark.parametrize(
    "name",
    ["aten", "unheard_of", "", *(f for f in families() if f not in PROVEN_FAMILIES)]
    + [row.name for row in rows(family="ladder")[:2]],
)
def test_nothing_is_proven_of_the_others(name: str) -> None:
    accepted = "argument 'kernel' is .*accepted: 'auto', 'batch_invariant', 'ieee'"
    with pytest.raises(ValueError, match=accepted):
        error_bound(100, name)


def test_activations_have_their_slope_and_their_own_roundings() -> None:
    plain = error_bound(100, "ieee_tall")
    assert error_bound(100, "ieee_tall", "relu") == error_bound(100, "ieee_tall", None) == plain
    for name in ("gelu", "gelu_tanh", "silu"):
        assert plain * 1.09 < error_bound(100, "ieee_tall", name) <= plain * 1.13 + 4
        assert 0 < error_bound(0, "ieee_tall", name) <= 4
    for bad in ("tanh", "", 1, []):
        with pytest.raises(ValueError, match="argument 'activation' is .*accepted: None, 'relu'"):
            error_bound(100, "auto", bad)


@pytest.mark.parametrize("k", [-1, True, 1.5, "8", None, 2**53, 2**62, 2**63])
def test_bad_depths_are_refused(k) -> None:
    with pytest.raises(ValueError, match="argument 'k' is .*; accepted: an int"):
        error_bound(k)


def test_a_depth_that_a_row_does_not_take_is_refused() -> None:
    for row in PROVEN:
        if row.max_size is not None:
            with pytest.raises(ValueError, match=f"accepted: up to {row.max_size} for"):
                error_bound(row.max_size + 1, row.name)


def test_explanations_show_bounds() -> None:
    a, b = torch.empty(40, 70, device="meta"), torch.empty(70, 50, device="meta")
    found = torch_sgemm.explain(a, b, device=torch_sgemm.Device())
    for verdict, row in zip(found.verdicts, KERNELS, strict=True):
        if row not in PROVEN:
            assert verdict.error_bound is None
        elif row.takes(40, 50, 70):
            assert verdict.error_bound == error_bound(70, row.name)
    lines = str(found).splitlines()
    assert "error bound" in lines[0]
    shown = next(line for line in lines if line.startswith("split_fp16x3 "))
    assert f" {error_bound(70, 'split_fp16x3'):.1f} " in shown
    assert next(line for line in lines if line.startswith("aten ")).split()[3] == "-"
