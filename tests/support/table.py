"""Which rows of the kernel table a test runs, and where.

Everything is derived from ``torch_sgemm.kernels()``: a new row is tested without touching a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pytest
import torch

import torch_sgemm
from torch_sgemm import Kernel

KERNELS = tuple(torch_sgemm.kernels())
# Rows that take float32 operands; tests/kernels/test_16_bits.py has the others.
TILED = tuple(tile for row in KERNELS if row.takes_float32 for tile in row.by_tile())
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

# Families whose products and sums are rounded as float32, so that the FFMA bound holds.
FFMA_FAMILIES = frozenset({"reference", "ladder", "ieee"})

needs_cuda_build = pytest.mark.skipif(
    not any("cuda" in row.devices for row in KERNELS if row.family),
    reason="built without CUDA kernels",
)

each_device = pytest.mark.parametrize("device", DEVICES)


def is_float32(row: Kernel) -> bool:
    """Whether the row multiplies all bits of a float32; others promise no Inf and NaN either."""
    return row.bits == 24


def families() -> tuple[str, ...]:
    """Families of the table, each once, in table order."""
    return tuple(dict.fromkeys(row.family for row in KERNELS if row.family))


def selectors(device: str) -> tuple[str, ...]:
    """Values of ``kernel`` that leave the row of any float32 product to the library."""
    usable = {
        row.family
        for row in KERNELS
        if device in row.devices and row.max_size is None and is_float32(row)
    }
    return ("auto", *(name for name in families() if name in usable))


@cache
def arch() -> int:
    """Compute capability of the current GPU as one number (9.0 is 90), 0 without one."""
    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def runnable(device: str) -> list[Kernel]:
    """Rows that tensors on ``device`` can use on this machine, and those of their tiles."""
    rows = [row for row in KERNELS if row.takes_float32]
    rows = [row for row in dict.fromkeys((*rows, *TILED)) if device in row.devices]
    return rows if device == "cpu" else [row for row in rows if row.runs_on(arch())]


def row_params(
    devices: tuple[str, ...] = ("cpu", "cuda"),
    keep: Callable[[Kernel], bool] = lambda row: True,
    tiles: Iterable[Kernel] = TILED,
) -> list:
    """One parameter set ``(row, device)`` for each row and each device its build can run on.

    A row that has several tiles is there once for each of them.
    """
    params = []
    rows = tuple(tiles)
    for device in devices:
        for row in rows:
            if device not in row.devices or not keep(row):
                continue
            marks = []
            if device == "cuda":
                marks.append(pytest.mark.gpu)
                if torch.cuda.is_available() and not row.runs_on(arch()):
                    reason = f"{row.name} needs sm_{row.min_arch}, this GPU is sm_{arch()}"
                    marks.append(pytest.mark.skip(reason=reason))
            params.append(pytest.param(row, device, marks=marks, id=f"{device}-{row.name}"))
    return params


def fit(row: Kernel, *sizes: int) -> tuple[int, ...]:
    """The sizes themselves where the row takes them, others near its limit where it doesn't.

    So a row for small problems goes through every test, at every size that it takes.
    """
    limit = row.max_size
    return tuple(
        size if limit is None or size <= limit else limit - size % min(8, limit) for size in sizes
    )


each_row = pytest.mark.parametrize("row, device", row_params())
each_float32_row = pytest.mark.parametrize("row, device", row_params(keep=is_float32))
each_gpu_row = pytest.mark.parametrize("row, device", row_params(("cuda",)))
each_cpu_row = pytest.mark.parametrize("row, device", row_params(("cpu",)))
