"""The table of kernels, and the name that stands for a batch-invariant row.

``kernel="batch_invariant"`` gives results whose bits depend on no other row of the batch. An
operator passes the name to its derivatives, transforms and fakes like any other. The dispatch then
takes one row of the table for all problems of a device (``Kernel.batch_invariant``), whose split of
k depends on k alone. docs/reproducibility.md defines "the same bits".
"""

import json
import os
from dataclasses import dataclass, replace
from functools import cache

from torch_sgemm.torch_ops.library import operators

BATCH_INVARIANT = "batch_invariant"
_VARIABLE = "TORCH_SGEMM_BATCH_INVARIANT"


@dataclass(frozen=True)
class Kernel:
    """A row of the table: a kernel that ``kernel=`` can name."""

    name: str
    family: str
    """``"ladder"``, ``"ieee"``, ``"split"``, ``"tf32"``, ``"reference"``; ``""`` for ``aten``."""
    idea: str
    source: str
    """The kernel's file below csrc/; ``""`` for ``aten``."""
    devices: tuple[str, ...]
    """Where this build can run it: ``"cpu"``, ``"cuda"``."""
    min_arch: int
    """The lowest compute capability, 90 for 9.0; 0 if any."""
    max_arch: int | None
    """The highest compute capability; None if any."""
    bm: int
    bn: int
    bk: int
    """``bm``, ``bn``, ``bk``: the block tile, the first of several, whose threads are below."""
    tiles: tuple[tuple[int, int], ...]
    """(bm, bn) of all tiles; each product's plan takes one."""
    tile_names: tuple[str, ...]
    """Names of the tiles for ``kernel=``: ``"split_fp16x3:128x64"``, or ``name`` if one."""
    tm: int
    tn: int
    """``tm``, ``tn``: elements of C per thread."""
    threads: int
    """Threads per block."""
    max_size: int | None
    """The largest m, n and k that it takes; None if any."""
    most_rows: int | None
    """The largest size of the smaller of m and n for which it is taken without its name; None if
    any."""
    takes_planes: bool
    """True if it reads the planes of a matrix that is packed (:func:`pack`)."""
    reads: str
    """``"any"``: all strides directly; ``"rows16"``: unit column stride and 16-byte aligned rows of
    a multiple of 4 elements; ``"maps"``: rows that a tensor map can describe; ``"maps_along_k"``:
    the same for A and B's transpose. Other operands are packed first. ``"bfloat16"``: only operands
    that are both bfloat16, whose rows or columns begin at multiples of 16 bytes."""
    reads_16_bits: bool
    """True if 16-bit operands are read directly, beside float32 ones."""
    streams_16_bits: bool
    """True if a larger operand of 16 bits is read directly; others are packed."""
    bits: int
    """Significand bits that are multiplied: 24, as float32 has; fewer in family tf32."""
    in_auto: bool
    """True if ``"auto"`` may take it."""
    auto_from: int
    """The least k for ``"auto"``: shorter sums have larger errors than it promises."""
    batch_invariant: bool
    """True if ``"batch_invariant"`` may: it takes the last of these that the device runs."""

    def by_tile(self) -> tuple["Kernel", ...]:
        """Returns the row once per tile, under the name that asks for the tile."""
        return tuple(
            replace(self, name=name, bm=bm, bn=bn, tiles=((bm, bn),), tile_names=(name,))
            for name, (bm, bn) in zip(self.tile_names, self.tiles, strict=True)
        )

    @property
    def takes_float32(self) -> bool:
        """True if operands may be float32; others are packed then."""
        return self.reads != "bfloat16"

    def takes(self, m: int, n: int, k: int) -> bool:
        """True if the row takes a product of these sizes."""
        return self.max_size is None or max(m, n, k) <= self.max_size

    def runs_on(self, arch: int) -> bool:
        """True if this build runs the row on compute capability ``arch``, 90 for 9.0."""
        return (
            "cuda" in self.devices
            and self.min_arch <= arch
            and (self.max_arch is None or arch <= self.max_arch)
        )


@cache
def _rows() -> tuple[Kernel, ...]:
    def frozen(value: object) -> object:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return tuple(
        Kernel(**{field: frozen(value) for field, value in row.items()})
        for row in json.loads(operators._kernels())
    )


def kernels() -> list[Kernel]:
    """Returns all rows: ``aten`` (PyTorch's), the CPU reference, the ladder, tf32, ieee, split."""
    return list(_rows())


def request(where: str, kernel: str, batch_invariant: bool) -> str:
    """Returns the ``kernel=`` that asks for both; RuntimeError, naming ``where``, on conflict."""
    if not batch_invariant:
        return kernel
    if kernel not in ("auto", BATCH_INVARIANT):
        raise RuntimeError(
            f"{where}: argument 'kernel' is {kernel!r} beside batch_invariant=True, which takes "
            "one row of the table for all problems of a device; accepted: 'auto'"
        )
    return BATCH_INVARIANT


def asked_by_environment() -> bool:
    """True if TORCH_SGEMM_BATCH_INVARIANT is 1; RuntimeError unless it is 0, 1 or unset."""
    text = os.environ.get(_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise RuntimeError(f"{_VARIABLE} is {text!r}; accepted: 0, 1")
    return text == "1"
