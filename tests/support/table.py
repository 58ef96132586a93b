"""Selects the rows of the kernel table that a test runs, and their devices.

Everything is derived from ``torch_sgemm.kernels()``: a new row is tested without touching a test.
A test that has an argument ``row`` runs once for each row (pytest_generate_tests in conftest.py).
The marker ``rows`` narrows these:

    def test_a(row, device)             each tile of each row for float32, on each device
    def test_b(row)                     the same without a device, for code that runs on the host
    @pytest.mark.rows(family="split")   only rows whose field has this value, or one of a tuple
    @pytest.mark.rows(device="cuda")    only on this device
    @pytest.mark.rows(tiles=False)      a row once, not once for each tile
    @pytest.mark.rows(where=...)        only rows for which a function returns true

``pytestmark`` sets the marker for a module; a test's own marker replaces single arguments of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

import torch_sgemm
from torch_sgemm import Kernel

KERNELS = tuple(torch_sgemm.kernels())
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

# Families whose products and sums are rounded as float32, so that the FFMA bound holds.
FFMA_FAMILIES = frozenset({"reference", "ladder", "ieee"})
# Families with a proven bound, and with several plans for a product.
PROVEN_FAMILIES = ("ieee", "split")
ANY = (True, False)

needs_cuda_build = pytest.mark.skipif(
    not any("cuda" in row.devices for row in KERNELS if row.family),
    reason="built without CUDA kernels",
)

each_device = pytest.mark.parametrize("device", DEVICES)


def rows(
    *, tiles: bool = True, where: Callable[[Kernel], bool] = lambda row: True, **fields: object
) -> tuple[Kernel, ...]:
    """Rows whose fields have these values, or one of a tuple; ``tiles``: once for each tile.

    Rows for 16-bit operands alone are among them only if ``takes_float32`` says so.
    """
    fields = {"takes_float32": True} | fields
    found = [
        row
        for row in KERNELS
        if where(row)
        and all(
            getattr(row, name) in (value if isinstance(value, tuple) else (value,))
            for name, value in fields.items()
        )
    ]
    if not found:
        raise ValueError(f"no row of the table has {fields}")
    return tuple(tile for row in found for tile in (row.by_tile() if tiles else (row,)))


def families() -> tuple[str, ...]:
    """Families of the table, each once, in table order."""
    return tuple(dict.fromkeys(row.family for row in KERNELS if row.family))


def selectors(device: str) -> tuple[str, ...]:
    """Values of ``kernel`` that leave the row of any float32 product to the library."""
    usable = {
        row.family
        for row in KERNELS
        if device in row.devices and row.max_size is None and row.bits == 24
    }
    return ("auto", *(name for name in families() if name in usable))


TILED = rows()


@cache
def arch() -> int:
    """Compute capability of the current GPU as one number (9.0 is 90), 0 without one."""
    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def runnable(device: str) -> list[Kernel]:
    """Rows that tensors on ``device`` can use on this machine, and those of their tiles."""
    found = [row for row in dict.fromkeys((*rows(tiles=False), *TILED)) if device in row.devices]
    return found if device == "cpu" else [row for row in found if row.runs_on(arch())]


def marks_on(device: str, row: Kernel) -> list[pytest.MarkDecorator]:
    """Returns the pytest marks of a test of ``row`` on ``device``."""
    if device == "cpu":
        return []
    if torch.cuda.is_available() and not row.runs_on(arch()):
        reason = f"{row.name} needs sm_{row.min_arch}, this GPU is sm_{arch()}"
        return [pytest.mark.gpu, pytest.mark.skip(reason=reason)]
    return [pytest.mark.gpu]


def parametrize_rows(metafunc: pytest.Metafunc) -> None:
    """Gives a test the values of ``row``, and of ``device`` if it has that argument too."""
    options: dict = {}
    for mark in reversed(list(metafunc.definition.iter_markers("rows"))):  # the test's own is last
        assert not mark.args, f"the marker rows takes keywords only: {mark.args}"
        options |= mark.kwargs
    asked = options.pop("device", None)
    found, names = rows(**options), ["row"]
    if "device" in metafunc.fixturenames:
        names, asked = ["row", "device"], asked or ("cpu", "cuda")
    if asked is None:
        metafunc.parametrize("row", found, ids=lambda row: row.name)
        return
    params = [
        pytest.param(
            *(row, device)[: len(names)], marks=marks_on(device, row), id=f"{device}-{row.name}"
        )
        for device in ((asked,) if isinstance(asked, str) else asked)
        for row in found
        if device in row.devices
    ]
    metafunc.parametrize(names, params)


def fit(row: Kernel, *sizes: int) -> tuple[int, ...]:
    """The sizes themselves where the row takes them, others near its limit where it doesn't.

    So a row for small problems goes through every test, at every size that it takes.
    """
    limit = row.max_size
    return tuple(
        size if limit is None or size <= limit else limit - size % min(8, limit) for size in sizes
    )
