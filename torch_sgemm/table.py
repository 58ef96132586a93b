"""The table of kernels, and the error bound that each row of it promises."""

import json
from dataclasses import dataclass, replace
from functools import cache

from torch_sgemm._library import operators
from torch_sgemm.batch_invariant import BATCH_INVARIANT


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
    """``bm``, ``bn``, ``bk``: the block tile, the first of several; so are the threads'."""
    tiles: tuple[tuple[int, int], ...]
    """(bm, bn) of all tiles, of which each product's plan takes one."""
    tile_names: tuple[str, ...]
    """What asks for each of them, such as ``"split_fp16x3:128x64"``; of one tile, ``name``."""
    tm: int
    tn: int
    """``tm``, ``tn``: elements of C a thread."""
    threads: int
    """Threads a block."""
    max_size: int | None
    """The largest m, n and k that it takes; None if any."""
    reads: str
    """``"any"``: all strides directly; ``"rows16"``: unit column stride and 16-byte aligned rows of
    a multiple of 4 elements; ``"maps"``: rows that a tensor map can describe; ``"maps_along_k"``:
    the same of A and of B's transpose. What a row doesn't read is packed first. ``"bfloat16"``:
    operands that are both bfloat16, whose rows or columns begin at multiples of 16 bytes, and no
    others."""
    reads_16_bits: bool
    """Whether operands of 16 bits are read as they lie, beside those of float32."""
    streams_16_bits: bool
    """Whether the larger operand is read as it lies where it has 16 bits. Others are packed."""
    bits: int
    """Of an element's significand that are multiplied: 24, as float32 has; fewer in family tf32."""
    in_auto: bool
    """Whether ``"auto"`` may take it."""
    auto_from: int
    """The least k for which it may: of fewer terms, sums have larger errors than it promises."""
    batch_invariant: bool
    """Whether ``"batch_invariant"`` may: of these it takes the last one that the device runs."""

    def by_tile(self) -> tuple["Kernel", ...]:
        """The row once for each of its tiles, by the name that asks for the tile."""
        return tuple(
            replace(self, name=name, bm=bm, bn=bn, tiles=((bm, bn),), tile_names=(name,))
            for name, (bm, bn) in zip(self.tile_names, self.tiles, strict=True)
        )

    @property
    def takes_float32(self) -> bool:
        """Whether operands may be float32; others are packed then."""
        return self.reads != "bfloat16"

    def takes(self, m: int, n: int, k: int) -> bool:
        """Whether the row takes a product of these sizes."""
        return self.max_size is None or max(m, n, k) <= self.max_size

    def runs_on(self, arch: int) -> bool:
        """Whether this build runs the row on compute capability ``arch``, 90 for 9.0."""
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
    """All rows: ``aten`` (PyTorch's kernel), the CPU reference, the ladder, tf32, ieee, split."""
    return list(_rows())


# Of |f(x) - f(y)| by |x - y|, at most; and units of x by which the function as computed is off.
_ACTIVATIONS = {
    None: (1, 0), "relu": (1, 0), "gelu": (1.13, 3), "gelu_tanh": (1.13, 4), "silu": (1.1, 2.5)
}  # fmt: skip


def error_bound(k: int, kernel: str = "auto", activation: str | None = None) -> float:
    """How far off an element of a product of depth ``k`` may be, proven for finite inputs.

    In units of 2^-24 (|alpha| (|A||B|)_ij + |beta C_ij|), of which an ordinary dot product
    in float32 may be off by k. It holds given the arithmetic of the tensor cores as measured
    (docs/split.md), where |A||B| stays below 2^127, for alpha and beta as float32, to which they
    are rounded. Beside it:

    - half of float32's smallest subnormal, 2^-150, for each term that rounds where results are
      that small, |alpha| times that where |alpha| > 1; all of it, 2^-149, in row ``unsplit``;
    - one unit more if ``alpha`` isn't a power of two, and one if there is a C; behind an
      activation 1.13 units each.

    What a product is typically off by is far less: see ``python -m benchmarks accuracy``.

    Args:
        k: columns of A, rows of B.
        kernel: a row's name, alone or with one of its tiles, a family, or ``"auto"``: then the
            largest bound counts of the rows that it may take. Where ``"auto"`` takes ``aten``,
            PyTorch's own kernel, which promises nothing, the result is outside of this bound.
            ``"batch_invariant"``: on GPUs that run the family split.
        activation: what the result goes through: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``,
            ``"silu"`` or None. Its slope is 1.13 at most (1.1 for silu), and its own roundings
            come to 3, 4 and 2.5 units of its argument.

    Returns:
        The bound in units, 0 for ``k = 0``, where nothing is added up.

    Raises:
        ValueError: ``k`` is no int, negative, 2^53 or more, or larger than the row takes;
            ``kernel`` isn't one of those that have a bound; ``activation`` is another one.

    Sources: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1,
    for sums in float32; docs/split.md and docs/ieee.md for what each row adds.
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
