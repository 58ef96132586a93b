"""Integer data and all ones give bit-exact results: a lost k tail or a doubled step shows."""

from __future__ import annotations

import pytest
import torch
from support.data import integers
from support.layouts import PAIRS, Guarded
from support.sizes import SIZES, latin
from support.table import Kernel, fit

SQUARE = {"cpu": [1, 5, 8, 13], "cuda": None}  # rows of the Latin square of sizes; all on a GPU


@pytest.mark.parametrize("layouts", PAIRS)
def test_integers_are_exact(row: Kernel, device: str, layouts: str) -> None:
    """On a GPU every pair of sizes in every two positions of (m, n, k)."""
    largest = max(SIZES)
    every_a = integers((largest, largest), 1, device)
    every_b = integers((largest, largest), 2, device)
    for shape in latin(SIZES, SQUARE[device]):
        m, n, k = fit(row, *shape)
        a = Guarded((m, k), layouts[0], device, every_a[:m, :k])
        b = Guarded((k, n), layouts[1], device, every_b[:k, :n])
        out = Guarded((m, n), device=device)
        torch.ops.sgemm.mm_out(a.view, b.view, kernel=row.name, out=out.view)
        expected = every_a[:m, :k].double() @ every_b[:k, :n].double()
        assert torch.equal(out.view.double(), expected), (m, n, k)
        assert out.guards_unchanged(), (m, n, k)


def test_all_ones_count_k(row: Kernel, device: str) -> None:
    """With all ones each element is k itself, in every tile."""
    for k in fit(row, *range(0, 34), 63, 64, 65, 127, 129, 1000, 1023, 1025, 4097):
        a, b = torch.ones(5, k, device=device), torch.ones(k, 7, device=device)
        out = Guarded((5, 7), device=device)
        torch.ops.sgemm.mm_out(a, b, kernel=row.name, out=out.view)
        assert torch.equal(out.view, torch.full_like(out.view, float(k))), k


@pytest.mark.rows(bits=24)
def test_each_position_of_k_counts_once(row: Kernel, device: str) -> None:
    """A times the identity is A: every column must come from its own step."""
    for k in fit(row, 1, 9, 33, 65, 130):
        (m,) = fit(row, 70)
        a = torch.arange(float(m * k), device=device).view(m, k) + 1
        c = torch.ops.sgemm.mm(a, torch.eye(k, device=device), kernel=row.name)
        assert torch.equal(c, a), k
        c = torch.ops.sgemm.mm(torch.eye(k, device=device), a.t(), kernel=row.name)
        assert torch.equal(c, a.t()), k


def test_alpha_and_beta_are_exact_on_integers(row: Kernel, device: str) -> None:
    m, n, k = fit(row, 67, 70, 45)
    a, b = integers((m, k), 1, device), integers((k, n), 2, device)
    c = integers((m, n), 3, device)
    for alpha, beta in ((1, 0), (1, 1), (2, -1), (-3, 0.5), (0, 2), (0, 0), (0.25, 0)):
        out = c.clone()
        torch.ops.sgemm.gemm_(out, a, b, alpha=alpha, beta=beta, kernel=row.name)
        expected = alpha * (a.double() @ b.double()) + beta * c.double()
        assert torch.equal(out.double(), expected), (alpha, beta)
