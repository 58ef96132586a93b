"""A times its own transpose: symmetric results, of whose tiles only half are computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.bounds import Reference
from support.data import integers, operands
from support.layouts import Guarded
from support.noted import noted
from support.split import TILE
from support.table import DEVICES, Kernel
from torch import Tensor

import torch_sgemm
from torch_sgemm import Device, error_bound

SGEMM = torch.ops.sgemm
ROW = "split_fp16x3"
# Less than a tile, an odd and an even number of them, tiles that the last row and column cut.
SIZES = (1, 5, TILE, TILE + 1, 2 * TILE + 3, 3 * TILE, 5 * TILE - 1, 8 * TILE + 60, 2200)
DEPTHS = (1, 33, 500, 1000, 9000)
pytestmark = pytest.mark.rows(family="split", device="cuda")
on_both = pytest.mark.parametrize("device", DEVICES)


def layouts(a: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the layouts of G in G G^T and of X in X^T X."""
    return a, a.mT.contiguous().mT


def check(d: Tensor, x: Tensor, row: str, alpha: float = 1.0) -> None:
    """Asserts that D is symmetric and within the row's bound."""
    assert torch.equal(d, d.mT)
    assert Reference.of(x, x.mT, alpha=alpha).units(d) <= error_bound(x.shape[-1], row) + 2


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.parametrize("m", SIZES)
def test_symmetric_and_within_the_bound(row: Kernel, m: int) -> None:
    for k in DEPTHS:
        a, _ = operands("normal", m, 1, k, seed=m + k)
        for x in layouts(a.cuda()):
            check(torch_sgemm.matmul(x, x.mT, kernel=row.name), x, row.name)
            batch = torch.stack([x, -2 * x, x.flip(0)])
            check(torch_sgemm.matmul(batch, batch.mT, kernel=row.name), batch, row.name)


@pytest.mark.parametrize("k", [700, 8300])  # the second in slices, always
@pytest.mark.parametrize("m", SIZES)
def test_every_plan(row: Kernel, m: int, k: int) -> None:
    """Those with all tiles, with those of a triangle, and with tiles that blocks share.

    Sums of slices lie in memory that held NaN before.
    """
    a = integers((m, k), m, "cuda")
    expected = a @ a.mT
    d = torch.empty(m, m, device="cuda")
    for plan in range(len(SGEMM._plans(d, a, a.mT, row.name))):
        d.fill_(torch.nan)
        torch.full((32 << 20,), torch.nan, device="cuda")
        SGEMM._run_plan(d, a, a.mT, row.name, plan)
        assert torch.equal(d, expected), plan


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["inner_scaled_20", "wide_phi_4", "softmax_rows"])
def test_redone_elements_are_mirrored(name: str) -> None:
    a, _ = operands(name, 700, 1, 512, seed=1)
    for x in layouts(a.cuda()):
        check(torch_sgemm.matmul(x, x.mT, kernel=ROW), x, ROW)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [300, 9000])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_inf_and_nan(bad: float, k: int) -> None:
    a = integers((400, k), 1, "cuda")
    a[7, 11] = a[311, 2] = bad
    d = torch_sgemm.matmul(a, a.mT, kernel=ROW)
    torch.testing.assert_close(d, a @ a.mT, rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("k", [200, 9000])
@pytest.mark.parametrize("out_layout", ["N_pad", "T_pad", "sliced"])
def test_result_of_any_strides(out_layout: str, k: int) -> None:
    a = integers((900, k), 1, "cuda")
    out = Guarded((900, 900), out_layout, "cuda")
    SGEMM.mm_out(a, a.mT, out=out.view, kernel=ROW)
    assert torch.equal(out.view, a @ a.mT)
    assert out.guards_unchanged()


@pytest.mark.gpu
def test_activation_alpha_and_a_matrix_beside() -> None:
    a = integers((600, 300), 1, "cuda")
    expected = a @ a.mT
    c = integers((600, 600), 2, "cuda")
    assert torch.equal(torch_sgemm.linear(a, a, activation="relu", kernel="split"), expected.relu())
    assert torch.equal(SGEMM.addmm(c, a, a.mT, kernel="split"), c + expected)
    assert torch.equal(SGEMM.addmm(c, a, a.mT, beta=0, alpha=2, kernel="split"), 2 * expected)
    copy = a.clone()
    assert torch.equal(torch_sgemm.matmul(a, copy.mT, kernel="split"), expected)


# --- anywhere ---------------------------------------------------------------------------------


def are_grams(run: Callable[[], object]) -> list[bool]:
    return ["B is A transposed" in problem.flags for problem in noted(run)]


@on_both
def test_recognized_by_memory(device: str) -> None:
    """Only the same elements in transposed strides are recognised."""
    a = torch.randn(24, 24, device=device)
    grams = (
        lambda: SGEMM.mm(a, a.mT),
        lambda: SGEMM.mm(a.mT, a),
        lambda: SGEMM.bmm(a[None], a.mT[None]),
    )
    others = (
        lambda: SGEMM.mm(a, a),
        lambda: SGEMM.mm(a, a.clone().mT),
        lambda: SGEMM.mm(a[:12], a[12:].mT),
        lambda: SGEMM.mm(a[:20], a.mT),
        lambda: SGEMM.addmm(a, a, a.mT),
        lambda: SGEMM.bmm(a.view(2, 12, 24), a.view(2, 12, 24).flip(0).mT),
    )
    assert [are_grams(run) for run in grams] == [[True]] * len(grams)
    assert [are_grams(run) for run in others] == [[False]] * len(others)


@pytest.mark.parametrize("k", [4096, 65536])
def test_predicted_to_take_little_more_than_half(k: int) -> None:
    a, other = torch.empty(4096, k), torch.empty(4096, k)
    gram, plain = (
        next(
            v.seconds for v in torch_sgemm.explain(a, b, device=Device()).verdicts if v.name == ROW
        )
        for b in (a.mT, other.mT)
    )
    assert 0.5 < gram / plain < 0.7
