"""Operands that don't hold 24 bits: zero lower planes are left out, and nothing else.

Products of zeros and ones are exact. They get one element that needs the lower plane, one element
at all, or panels of zeros, anywhere; a wrong omission changes a bit.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from support.table import Kernel
from torch import Tensor

import torch_sgemm

PANEL, STEP = 128, 32  # rows of a panel, k of a step
M, N = PANEL + 37, 2 * PANEL + 5
DEPTHS = (STEP, 2 * STEP + 5, 31 * STEP, 32 * STEP, 2048 + STEP, 9000)
NEEDS_LOW = 1 + 2.0**-11  # no float16 and no bfloat16

pytestmark = [pytest.mark.gpu, pytest.mark.rows(family="split", device="cuda")]
each_layout = pytest.mark.parametrize("layout", ["N", "T"])


def edges(size: int, block: int) -> list[int]:
    """Returns some positions at which blocks begin and end."""
    ends = {0, block - 1, block, size // 2, size // block * block, size - 1}
    return sorted(x for x in ends if 0 <= x < size)


def ones(*shape: int, seed: int) -> Tensor:
    """Zeros and ones, few enough for exact sums with what is planted."""
    gen = torch.Generator(device="cuda").manual_seed(seed)
    return (torch.rand(*shape, device="cuda", generator=gen) < 0.25).float()


def stored(x: Tensor, layout: str) -> Tensor:
    return x if layout == "N" else x.mT.contiguous().mT


def check_exact(row: Kernel, a: Tensor, b: Tensor) -> None:
    """Compares a few matrices of the batch at a time: float64 copies of all need gigabytes."""
    found = torch_sgemm.matmul(a, b, kernel=row.name)
    for parts in zip(*(x.split(4) for x in (a, b, found)), strict=True):
        part_a, part_b, part = (x.double() for x in parts)
        expected = part_a @ part_b
        assert torch.equal(expected.float().double(), expected), "the sums have to be exact"
        assert torch.equal(part, expected)


def planted(x: Tensor, places: list[tuple[int, int]]) -> Tensor:
    """A batch of copies, with an element that needs the lower plane in another place of each."""
    many = x.repeat(len(places), 1, 1)
    for matrix, (i, j) in zip(many, places, strict=True):
        matrix[i, j] = NEEDS_LOW
    return many


@each_layout
@pytest.mark.parametrize("k", DEPTHS)
def test_one_low_bit_anywhere(row: Kernel, layout: str, k: int) -> None:
    a, b = ones(M, k, seed=k), ones(k, N, seed=k + 1)
    in_a = planted(a, list(itertools.product(edges(M, PANEL), edges(k, STEP))))
    check_exact(row, stored(in_a, layout), b.expand(len(in_a), -1, -1))
    in_b = planted(b, list(itertools.product(edges(k, STEP), edges(N, PANEL))))
    check_exact(row, a.expand(len(in_b), -1, -1), stored(in_b, layout))


@each_layout
@pytest.mark.parametrize("k", DEPTHS)
def test_one_element_anywhere(row: Kernel, layout: str, k: int) -> None:
    """All else of an operand is zero."""
    a = planted(
        torch.zeros(M, k, device="cuda"), list(itertools.product((0, M - 1), edges(k, STEP)))
    )
    check_exact(row, stored(a, layout), ones(k, N, seed=k).expand(len(a), -1, -1))


@each_layout
@pytest.mark.parametrize("k", DEPTHS)
def test_panels_of_zeros(row: Kernel, layout: str, k: int) -> None:
    """Panels are zero at random, in long runs, and in all of a tile's k."""
    a, b = ones(3, M, k, seed=k), ones(3, k, N, seed=k + 1)
    a[0, 0, 0] = b[0, k - 1, N - 1] = NEEDS_LOW
    gen = torch.Generator().manual_seed(k)
    for q in range(0, k, STEP):
        for i in range(0, N, PANEL):
            of_a, of_b = (torch.rand(2, generator=gen) < 0.6).tolist()
            a[0, i : i + PANEL, q : q + STEP] *= not of_a
            b[0, q : q + STEP, i : i + PANEL] *= not of_b
    a[1, :PANEL, k // 3 :] = 0
    b[1, : k // 2, PANEL:] = 0
    a[2, PANEL:] = 0
    check_exact(row, stored(a, layout), b)


@each_layout
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("k", DEPTHS)
def test_zeros_hide_no_nan_and_no_inf(row: Kernel, layout: str, bad: float, k: int) -> None:
    """0 times NaN or Inf is NaN, also where a whole panel is zeros."""
    for q in edges(k, STEP):
        a, b = ones(M, k, seed=k), torch.zeros(k, N, device="cuda")
        a[5, q] = bad
        b[(q + 1) % k, 3] = 1
        expected = (a.double() @ b.double()).float()
        assert expected.isnan().sum() >= N - 1
        for found in (
            torch_sgemm.matmul(stored(a, layout), b, kernel=row.name),
            torch_sgemm.matmul(b.mT, stored(a, layout).mT, kernel=row.name).mT,
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@each_layout
@pytest.mark.parametrize("k", DEPTHS)
def test_bits_are_those_of_a_full_panel(row: Kernel, layout: str, k: int) -> None:
    """A row's result doesn't depend on whether a neighbour fills the panel's planes."""
    gen = torch.Generator(device="cuda").manual_seed(k)
    a, b = (torch.randn(*s, device="cuda", generator=gen) for s in ((2 * PANEL, k), (k, N)))
    a = a.bfloat16().float()
    a[:, k // 2 :] = 0
    for of_b in (b, b.bfloat16().float()):
        sparse = torch_sgemm.matmul(stored(a, layout), of_b, kernel=row.name)
        full = a.clone()
        full[::PANEL] = torch.randn(2, k, device="cuda", generator=gen)
        dense = torch_sgemm.matmul(stored(full, layout), of_b, kernel=row.name)
        kept = torch.arange(len(a), device="cuda") % PANEL != 0
        assert torch.equal(sparse[kept], dense[kept])


@pytest.mark.parametrize("k", DEPTHS)
def test_packed_planes_tell_what_they_hold(has_planes: None, k: int) -> None:
    a, b = ones(M, k, seed=k), ones(k, N, seed=k + 1)
    b[k // 2, N - 1] = NEEDS_LOW
    found = torch_sgemm.pack(b, frozen=True).mm(a, kernel="split_fp16x3")
    assert torch.equal(found.double(), a.double() @ b.double())
