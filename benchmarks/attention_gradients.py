"""Gradients of attention in float64, and the magnitudes that errors are relative to.

An error of a gradient is in units of 2^-24 of the gradient that magnitudes would have:

    |dV| = Pᵀ |dO|                       |dS| = P ∘ (|dO| |V|ᵀ + rowsum(|dO| ∘ |O|))
    |dQ| = |scale| |dS| |K|              |dK| = |scale| |dS|ᵀ |Q|
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

NAMES = ("query", "key", "value", "mask")


class Reference(NamedTuple):
    """A gradient in float64 and its magnitude."""

    exact: Tensor
    magnitude: Tensor


def weights_in_float64(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    """Returns softmax's weights; zeros in rows without keys. Heads of both are equally many."""
    logits = query.double() @ key.double().mT * scale
    if is_causal:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(later, -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -math.inf)
    elif mask is not None:
        logits = logits + mask.double()
    none = (logits == -math.inf).all(-1, keepdim=True)
    return torch.softmax(logits.masked_fill(none, 0), -1).masked_fill(none, 0)


def gradients_in_float64(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> dict[str, Reference]:
    """Returns the gradients of (B, H, L, D), (B, G, S, D), (B, G, S, Dv) and the mask's shape."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads, groups = query.shape[1], key.shape[1]
    k, v = (x.double().repeat_interleave(heads // groups, 1) for x in (key, value))
    grad, q = grad.double(), query.double()
    weights = weights_in_float64(q, k, mask, is_causal, scale)

    def all_of(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, factor: float, sign: int):
        of_rows = (grad * (weights @ v)).sum(-1, keepdim=True)
        of_logits = weights * (grad @ v.mT + sign * of_rows)
        of_mask = of_logits if mask is None else of_logits.sum_to_size(mask.shape)
        both = factor * of_logits.mT @ q, weights.mT @ grad
        by_group = (x.unflatten(1, (groups, heads // groups)).sum(2) for x in both)
        return factor * of_logits @ k, *by_group, of_mask

    exact = all_of(grad, q, k, v, scale, -1)
    magnitudes = all_of(*(x.abs() for x in (grad, q, k, v)), abs(scale), 1)
    return {
        name: Reference(*both)
        for name, *both in zip(NAMES, exact, magnitudes, strict=True)
        if name != "mask" or (mask is not None and mask.dtype != torch.bool)
    }
