"""Counts of the results that the split family's guard recomputed."""

from dataclasses import dataclass

import torch

from torch_sgemm.torch_ops.library import operators


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
