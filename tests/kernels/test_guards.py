"""Nothing outside the operands is written, or read."""

from __future__ import annotations

import pytest
import torch
from support.data import integers
from support.layouts import PAIRS, Guarded
from support.process import python
from support.table import Kernel, fit

PADDED = {"N": ("N_pad", "N_pad4", "N_off3"), "T": ("T_pad", "T_pad4", "T_off1")}


@pytest.mark.parametrize("layouts", PAIRS)
def test_surroundings_survive(row: Kernel, device: str, layouts: str) -> None:
    """All operands padded; the padding is NaN, so that reading it shows in the result too."""
    for i, shape in enumerate(((1, 1, 1), (33, 31, 17), (64, 64, 64), (130, 67, 34))):
        m, n, k = fit(row, *shape)
        layout_a, layout_b = PADDED[layouts[0]][i % 3], PADDED[layouts[1]][(i + 1) % 3]
        a = Guarded((m, k), layout_a, device, integers((m, k), 1, device))
        b = Guarded((k, n), layout_b, device, integers((k, n), 2, device))
        c = Guarded((m, n), PADDED["N"][(i + 2) % 3], device, integers((m, n), 3, device))
        out = Guarded((m, n), PADDED["N" if i % 2 else "T"][i % 3], device)
        expected = a.view.double() @ b.view.double() + c.view.double()
        torch.ops.sgemm.addmm_out(c.view, a.view, b.view, kernel=row.name, out=out.view)
        assert torch.equal(out.view.double(), expected)
        torch.ops.sgemm.gemm_(c.view, a.view, b.view, beta=1, kernel=row.name)
        assert torch.equal(c.view.double(), expected)
        assert a.unchanged() and b.unchanged()
        assert c.guards_unchanged() and out.guards_unchanged()


def test_batches_stay_apart(row: Kernel, device: str) -> None:
    a = Guarded((3, 33, 9), "N_off1", device, integers((3, 33, 9), 1, device))
    b = Guarded((3, 9, 35), "T_pad", device, integers((3, 9, 35), 2, device))
    c = Guarded((3, 33, 35), "N_pad", device, integers((3, 33, 35), 3, device))
    expected = a.view.double() @ b.view.double() - c.view.double()
    torch.ops.sgemm.gemm_(c.view, a.view, b.view, beta=-1, kernel=row.name)
    assert torch.equal(c.view.double(), expected)
    assert a.unchanged() and b.unchanged() and c.guards_unchanged()


@pytest.mark.parametrize("side", ["before", "after"])
def test_no_access_to_neighbouring_pages(side: str) -> None:
    """Every CPU row beside pages that can't be read."""
    result = python("-m", "support.page_guard", side)
    last = (result.stdout.split() or ["start"])[-1]
    assert last == "done" and result.returncode == 0, f"{last}\n{result.stderr[-3000:]}"
