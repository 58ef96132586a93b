"""The table of kernels, and the error bound of each row."""

import json
from dataclasses import dataclass, replace
from functools import cache

from torch_sgemm.choice.batch_invariant import BATCH_INVARIANT
from torch_sgemm.torch_ops.library import operators


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


# The largest |f(x) - f(y)| / |x - y|, and the computed function's error in units of x.
_ACTIVATIONS = {
    None: (1, 0), "relu": (1, 0), "gelu": (1.13, 3), "gelu_tanh": (1.13, 4), "silu": (1.1, 2.5)
}  # fmt: skip


def error_bound(k: int, kernel: str = "auto", activation: str | None = None) -> float:
    """Bounds the error of an element of a product of depth ``k``, proven for finite inputs.

    The unit is 2^-24 (|alpha| (|A||B|)_ij + |beta C_ij|); an ordinary float32 dot product may be
    off by k units. The bound holds for the tensor cores' arithmetic as measured (docs/split.md), if
    |A||B| stays below 2^127, for alpha and beta rounded to float32. Beside the bound, an element
    may be off by:

    - 2^-150, half of float32's smallest subnormal, for each term that rounds where results are that
      small, |alpha| times that where |alpha| > 1; 2^-149 in row ``unsplit``;
    - one unit if ``alpha`` isn't a power of two, and one if there is a C; 1.13 units each behind an
      activation.

    Typical errors are far smaller: see ``python -m benchmarks accuracy``.

    Args:
        k: columns of A, rows of B.
        kernel: a row, alone or with one of its tiles, a family, or ``"auto"``, which gives the
            largest bound of the rows that it may take. If ``"auto"`` takes ``aten``, PyTorch's own
            kernel, no bound holds. ``"batch_invariant"``: the bound on GPUs that run the family
            split.
        activation: applied to the result: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"`` or
            None. Its slope is 1.13 at most (1.1 for silu), and its own roundings come to 3, 4 and
            2.5 units of its argument.

    Returns:
        The bound in units, 0 for ``k = 0``, where nothing is added up.

    Raises:
        ValueError: ``k`` is no int, negative, 2^53 or more, or larger than the row takes;
            ``kernel`` has no bound; ``activation`` is unknown.

    Sources: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1, for
    sums in float32; docs/split.md and docs/ieee.md for what each row adds.
    """
    where = "torch_sgemm.error_bound"
    if not isinstance(k, int) or isinstance(k, bool) or not 0 <= k < 2**53:
        raise ValueError(f"{where}: argument 'k' is {k!r}; accepted: an int, 0 to 2^53 - 1")
    if not isinstance(activation, str | None) or activation not in _ACTIVATIONS:
        accepted = ", ".join(map(repr, _ACTIVATIONS))
        raise ValueError(f"{where}: argument 'activation' is {activation!r}; accepted: {accepted}")
    bounds: dict[str, float] = json.loads(operators._error_bounds(k))
    rows = [row for row in _rows() if row.name in bounds]
    asked = [
        row
        for row in rows
        if kernel in (row.name, row.family, *row.tile_names)
        or (kernel == "auto" and row.in_auto and k >= row.auto_from)
        or (kernel == BATCH_INVARIANT and row.batch_invariant)
    ]
    if not asked:
        names = dict.fromkeys(["auto", BATCH_INVARIANT, *(row.family for row in rows), *bounds])
        raise ValueError(
            f"{where}: argument 'kernel' is {kernel!r}, for which nothing is proven; accepted: "
            f"{', '.join(map(repr, names))}"
        )
    taking = [row for row in asked if row.takes(1, 1, k)]
    if not taking:
        raise ValueError(
            f"{where}: argument 'k' is {k}; accepted: up to {asked[0].max_size} for {kernel!r}"
        )
    slope, own = _ACTIVATIONS[activation]
    return float(slope * max(bounds[row.name] for row in taking) + own)
