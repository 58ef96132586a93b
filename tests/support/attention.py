"""Attention in float64, and operands for tests of torch_sgemm.attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
each_device = pytest.mark.parametrize("device", DEVICES)


def kernel_on(device: str) -> str:
    """The kernel under test: csrc/attention's on a GPU, whatever is predicted to be faster."""
    return "split" if device == "cuda" else "auto"


def operands(
    device: str, *sizes: int, groups: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Standard normal query, key and value of sizes (B, H, L, S, D)."""
    batch, heads, rows, keys, depth = sizes
    groups = heads if groups is None else groups
    gen = torch.Generator().manual_seed(seed)
    shapes = (batch, heads, rows, depth), *[(batch, groups, keys, depth)] * 2
    return tuple(torch.randn(shape, generator=gen).to(device) for shape in shapes)


def exact(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The output in float64; zeros for rows without keys."""
    q, k, v = (x.double() for x in (query, key, value))
    shared = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(shared, -3) for x in (k, v))
    logits = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if causal:
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
        logits = logits.masked_fill(~ones.tril(), -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -math.inf)
    elif mask is not None:
        logits = logits + mask.double()
    none = (logits == -math.inf).all(-1, keepdim=True)
    return torch.softmax(logits.masked_fill(none, 0), -1).masked_fill(none, 0) @ v


def assert_close(found: Tensor, expected: Tensor, units: float = 40) -> None:
    """Compares in units of 2^-24 of the largest expected magnitude, at least 1."""
    largest = expected.abs().amax().clamp(min=1)
    torch.testing.assert_close(
        found.double(), expected, rtol=0, atol=float(units * 2.0**-24 * largest)
    )
