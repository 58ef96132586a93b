"""Seeded operands: integers whose products are exact, and the benchmarks' distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from benchmarks.distributions import DISTRIBUTIONS, generator, operands

__all__ = ["DISTRIBUTIONS", "drawn", "exact_limit", "generator", "integers", "operands"]


def integers(shape: tuple[int, ...], seed: int, device: str = "cpu", largest: int = 4) -> Tensor:
    """Integers of magnitude ``largest`` at most, as float32: their products are exact."""
    shape = tuple(shape)
    values = torch.randint(
        -largest, largest + 1, shape, generator=generator(seed, device), device=device
    )
    return values.float()


def drawn(device: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)


def exact_limit(largest: int = 4) -> int:
    """The largest k for which a product of ``integers(..., largest)`` is exact in float32."""
    return math.floor(2**24 / largest**2)
