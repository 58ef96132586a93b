"""Accuracy of results: bounds of each row's error, and counts of recomputed elements."""

import json
from dataclasses import dataclass

import torch

from torch_sgemm.choice.table import BATCH_INVARIANT, kernels
from torch_sgemm.torch_ops.library import operators

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

    - 2^-150, half of float32's smallest subnormal, once for each term that is rounded where results
      are that small. It is multiplied by |alpha| if |alpha| > 1. In row ``unsplit`` it is 2^-149;
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
    rows = [row for row in kernels() if row.name in bounds]
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


@dataclass(frozen=True)
class Redone:
    """Results that the split family's guard recomputed, see docs/split.md."""

    elements: int
    """Elements of results."""
    tiles: int
    """Tiles of 128 x 128 with too many such elements, recomputed whole."""


def redone(device: int | torch.device | None = None) -> Redone:
    """Returns the guard's counts on a CUDA device (default: the current one) since the start.

    The call doesn't synchronize, so products that still run may not be counted yet.

    Raises:
        RuntimeError: the build has no kernels of the family split, or ``device`` isn't CUDA.
    """
    device = (
        torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    )
    if device.type != "cuda":
        raise RuntimeError(f"torch_sgemm.redone: device is {device}; accepted: a CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise RuntimeError(
            f"torch_sgemm.redone: argument 'device' is {device}; accepted: one of the "
            f"{torch.cuda.device_count()} CUDA devices"
        )
    return Redone(*operators._redone(index))
