"""More than 2^31 elements in A, B or C: offsets need 64 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.table import runnable
from torch import Tensor

# One process at a time has 20 GB and more of the GPU's memory.
pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("large")]

STEP = 1 << 28  # elements made or compared at a time, so that helpers need little memory


@contextmanager
def room(gigabytes: float) -> Iterator[None]:
    """Skips where the GPU has too little free memory; gives it back afterwards."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes * 1e9:
        pytest.skip(f"needs {gigabytes} GB of free GPU memory, has {free / 1e9:.1f}")
    try:
        yield
    finally:
        torch.cuda.empty_cache()


def digits(rows: int, cols: int, layout: str = "N") -> Tensor:
    """A rows x cols matrix of small integers, no two neighbouring rows alike."""
    flat = torch.empty(rows * cols, device="cuda")
    for start in range(0, flat.numel(), STEP):
        part = flat[start : start + STEP]
        index = torch.arange(start, start + part.numel(), device="cuda")
        part.copy_((index * 2654435761 >> 7) % 7 - 3)
    return flat.view(rows, cols) if layout == "N" else flat.view(cols, rows).t()


def exact_product(a: Tensor, b: Tensor) -> Tensor:
    """A B by slabs in float64, exact for ``digits``."""
    out = torch.empty(a.shape[0], b.shape[1], device="cuda")
    slab = max(1, STEP // max(a.shape[1], b.shape[1]) // 4)
    b64 = b.double() if b.numel() <= STEP else None
    for start in range(0, a.shape[0], slab):
        part = a[start : start + slab].double()
        if b64 is not None:
            out[start : start + slab] = part @ b64
            continue
        width = max(1, STEP // b.shape[0] // 4)
        for col in range(0, b.shape[1], width):
            out[start : start + slab, col : col + width] = part @ b[:, col : col + width].double()
    return out


CASES = {
    "A": (67108864, 1, 32, "N", "N", 12),
    "A_transposed": (67108864, 1, 32, "T", "N", 21),
    "A_deep": (35783, 1, 65133, "N", "N", 12),
    "B": (1, 67108864, 32, "N", "N", 12),
    "B_transposed": (3, 65133, 35783, "N", "T", 21),
    "C": (65537, 32800, 4, "N", "N", 20),
}


@pytest.mark.parametrize("case", CASES)
def test_more_than_2_31_elements(case: str) -> None:
    m, n, k, layout_a, layout_b, gigabytes = CASES[case]
    assert max(m * k, k * n, m * n) >= 2**31
    with room(gigabytes + 12):
        a, b = digits(m, k, layout_a), digits(k, n, layout_b)
        expected = exact_product(a, b)
        out = torch.empty_like(expected)
        wrong = []
        for row in (row for row in runnable("cuda") if row.takes(m, n, k)):
            out.fill_(float("nan"))
            torch.ops.sgemm.mm_out(a, b, kernel=row.name, out=out)
            if not torch.equal(out, expected):
                wrong.append(row.name)
        del a, b, expected, out
    assert not wrong


@pytest.mark.parametrize(("batch", "size"), [(2100, 1024), (600000, 60)])
def test_batch_of_more_than_2_31_elements(batch: int, size: int) -> None:
    with room(40):
        a = digits(batch, size * size).view(batch, size, size)
        b = digits(size, 1)
        expected = exact_product(a.view(-1, size), b).view(batch, size, 1)
        out = torch.empty_like(expected)
        wrong = []
        for row in (row for row in runnable("cuda") if row.takes(size, 1, size)):
            out.fill_(float("nan"))
            torch.ops.sgemm.bmm_out(a, b.expand(batch, -1, -1), kernel=row.name, out=out)
            if not torch.equal(out, expected):
                wrong.append(row.name)
        del a, b, expected, out
    assert not wrong
