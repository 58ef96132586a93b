"""Errors against float64 over every distribution, for k from 1 to 65536 (4096 on the CPU)."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from support.bounds import Reference, allowed_units, contract_units, ffma_units
from support.data import DISTRIBUTIONS, generator, operands
from support.layouts import Guarded
from support.split import within_contract
from support.table import DEVICES, TILED, Kernel, fit, rows, selectors

from benchmarks.data import FEATURE_UNITS, KINDS

DEPTHS = {
    "cpu": (1, 3, 17, 100, 257, 1000, 4096),
    "cuda": (1, 2, 5, 31, 64, 257, 1024, 8192, 65536),
}
EXTENT = {"cpu": (37, 41), "cuda": (149, 131)}


@cache
def problem(
    name: str, m: int, n: int, k: int, device: str
) -> tuple[torch.Tensor, torch.Tensor, Reference, float]:
    """A, B, their product in float64, and torch.mm's own error in units."""
    if name in DISTRIBUTIONS:
        a, b = operands(name, m, n, k, device, seed=k)
    else:
        a, b = (x.float() for x in KINDS[name].make(m, n, k, generator(k, device)))
    reference = Reference.of(a, b)
    return a, b, reference, reference.units(torch.mm(a, b))


def depths(row: Kernel, name: str, device: str) -> tuple[int, ...]:
    """All of k on a GPU. On the CPU two, spread so that rows and distributions meet each k."""
    all_k = DEPTHS[device]
    if device == "cuda":
        return tuple(dict.fromkeys(fit(row, *all_k)))
    first = (TILED.index(row) + 3 * list(DISTRIBUTIONS).index(name)) % len(all_k)
    return fit(row, all_k[first], all_k[(first + 3) % len(all_k)])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_error_within_bound(row: Kernel, device: str, name: str) -> None:
    for k in depths(row, name, device):
        a, b, reference, torch_units = problem(name, *fit(row, *EXTENT[device]), k, device)
        out = Guarded(reference.value.shape, device=device)
        torch.ops.sgemm.mm_out(a, b, kernel=row.name, out=out.view)
        units = reference.units(out.view)
        assert units <= allowed_units(row, k, torch_units), (
            f"{row.name}, {name}, k={k}: {units:.1f} units, torch.mm {torch_units:.1f}"
        )


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (-1.5, 0.75), (0.1, -3), (2.0**-20, 1)])
def test_error_with_alpha_and_beta(row: Kernel, device: str, alpha: float, beta: float) -> None:
    m, n, k = fit(row, *EXTENT[device], 300)
    a, b, _, _ = problem("normal", m, n, k, device)
    c = torch.randn(m, n, device=device)
    reference = Reference.of(a, b, c, alpha, beta)
    torch_units = reference.units(torch.addmm(c, a, b, alpha=alpha, beta=beta))
    torch.ops.sgemm.gemm_(c, a, b, alpha=alpha, beta=beta, kernel=row.name)
    assert reference.units(c) <= allowed_units(row, k, torch_units)


def selector_params() -> list:
    """Families and "auto", each on the devices where it has rows."""
    return [
        pytest.param(name, device, marks=[pytest.mark.gpu] if device == "cuda" else [])
        for device in ("cpu", "cuda")
        for name in selectors(device)
    ]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("kernel", "device"), selector_params())
def test_error_of_chosen_row(kernel: str, device: str, name: str) -> None:
    for k in DEPTHS[device]:
        a, b, reference, torch_units = problem(name, *EXTENT[device], k, device)
        units = reference.units(torch.ops.sgemm.mm(a, b, kernel=kernel))
        bound = contract_units(torch_units)
        assert units <= (bound if kernel == "auto" else max(bound, ffma_units(k)))


AUTO_SHAPES = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2047, 2049, 2050), (4096, 4096, 64),
    (1, 4096, 4096), (4096, 1, 4096), (16, 4096, 4096), (1000, 16, 16), (100000, 64, 64),
    (128, 128, 65536), (33, 65, 65536), (1536, 1536, 1536), (3000, 17, 5000),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["uniform_0_1", "normal", "wide_phi_4", "softmax_rows"])
@pytest.mark.parametrize(("m", "n", "k"), AUTO_SHAPES)
def test_auto_keeps_the_accuracy_contract(m: int, n: int, k: int, name: str) -> None:
    a, b = operands(name, m, n, k, "cuda", seed=1)
    assert within_contract(a, b, torch.ops.sgemm.mm(a, b))


# --- what is promised of any row that auto may take -----------------------------------------

PROMISED = (1, 7, 16, 32, 128, 512, 2048, 8192)
# From k = LONG on, the largest error is at most torch.mm's for AT_LEAST of 17 distributions.
LONG, AT_LEAST = 128, 14
# Cases in which a promise is not kept yet, as measured on an H200. Below k = 32, where auto takes
# other rows, the rounding of both elements and the omitted lo * lo cause 8.0 to 11.1 units. Among
# long sums a fourth distribution is up to a twentieth above torch.mm's error; where both operands
# are split on the fly, four to five were, in loops that added in other orders. For few rows,
# torch.mm cuts k into parts, and has smaller errors itself.
MISSED_BY_FP16 = ("wide_phi_3", "wide_phi_4", "lognormal_4", "squared_gradients", "identity_like")
MISSED = {("ieee_tall", "gaussian_kernel_3"): {8192}, ("split_fp16x3_tall", "lognormal_4"): {16}}
MISSED_LONG = {
    ("split_fp16x3_tall", 512),
    ("split_fp16x3_streamed:128x64", 512),
    ("split_fp16x3_streamed:128x128", 512),
    *(("split_fp16x3_few", k) for k in (512, 2048, 8192)),
}
SIZES_OF = {"split_fp16x3_few": (64, 260)}  # m and n for which auto takes the row
NOT_FINITE = ("one_nan", "nan_rows", "inf_row")
NAMES = tuple(name for name in (*DISTRIBUTIONS, *KINDS) if name not in NOT_FINITE)
each_taken = pytest.mark.rows(in_auto=True, where=lambda row: row.family)


def promised_units(name: str, torch_units: float) -> float:
    good = KINDS[name].good if name in KINDS else 8.0
    return max(good, 2 * torch_units)


def missed_for(row: Kernel, name: str) -> set[int]:
    """The k for which a row is known to miss the promise."""
    too_short = {k for k in PROMISED if k < row.auto_from}  # of rows of two float16 alone
    return MISSED.get((row.name, name), too_short if name in MISSED_BY_FP16 else set())


@pytest.mark.parametrize("name", dict.fromkeys(NAMES))
@each_taken
def test_typical_errors(row: Kernel, device: str, name: str) -> None:
    missed = {}
    for k in dict.fromkeys(fit(row, *PROMISED)):
        a, b, reference, torch_units = problem(name, *fit(row, 300, 260), k, device)
        units = reference.units(torch.ops.sgemm.mm(a, b, kernel=row.name))
        if not units <= promised_units(name, torch_units):
            missed[k] = f"{units:.1f} units, torch.mm {torch_units:.1f}"
    assert missed.keys() <= missed_for(row, name), missed
    if missed:
        pytest.xfail(f"not kept yet: {missed}")


@pytest.mark.gpu
@pytest.mark.parametrize("k", [k for k in PROMISED if k >= LONG])
@pytest.mark.parametrize("kernel", ["auto", *(row.name for row in rows(family="split"))])
def test_errors_of_long_sums_are_seldom_above_torch_s(
    kernel: str, k: int, request: pytest.FixtureRequest
) -> None:
    if (kernel, k) in MISSED_LONG:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, reason="not kept yet"))
    above = {}
    for name in DISTRIBUTIONS:
        a, b, reference, torch_units = problem(name, *SIZES_OF.get(kernel, (300, 260)), k, "cuda")
        units = reference.units(torch.ops.sgemm.mm(a, b, kernel=kernel))
        if not units <= torch_units:
            above[name] = (units, torch_units)
    assert len(DISTRIBUTIONS) - len(above) >= AT_LEAST, above


@pytest.mark.parametrize("factor", [10.0, 100.0, 1e3, 1e4])
@each_taken
def test_one_feature_in_other_units(row: Kernel, device: str, factor: float) -> None:
    """A column of A, or a row of B, at either end or within, larger than all others."""
    for k in dict.fromkeys(fit(row, *PROMISED[1:])):
        m, n = fit(row, 300, 260)
        for name in ("uniform_0_1", "normal"):
            a, b, _, _ = problem(name, m, n, k, device)
            for place in (0, k // 2, k - 1):
                left, right = a.clone(), b.clone()
                left[:, place] *= factor
                right[place] *= factor
                for x, y in ((left, b), (a, right)):
                    reference = Reference.of(x, y)
                    torch_units = reference.units(torch.mm(x, y))
                    units = reference.units(torch.ops.sgemm.mm(x, y, kernel=row.name))
                    assert units <= max(FEATURE_UNITS, 2 * torch_units), (name, k, place)


@pytest.mark.parametrize("device", DEVICES)
def test_bound_rejects_bad_results(device: str) -> None:
    """The yardstick itself: NaN, a lost element and bfloat16 inputs are all out of bounds."""
    a, b, reference, _ = problem("uniform_1_1", *EXTENT[device], 257, device)
    good = (a.double() @ b.double()).float()
    assert reference.units(good) <= 1
    for spoil in (float("nan"), float("inf"), 0.0):
        bad = good.clone()
        bad[1, 2] = spoil
        assert not reference.units(bad) <= ffma_units(257)
    assert not reference.units((a.bfloat16() @ b.bfloat16()).float()) <= ffma_units(257)
