"""A model of the family split in float64: what its terms cost, without a GPU.

The tensor cores add 16 products and the accumulator at a time: all are aligned to the largest and
cut off at 2^-25 of it, towards zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 16  # products that are added up at once
CUT = 25  # bits after the largest one's first


def planes(x: Tensor, top: int = 14) -> tuple[Tensor, Tensor, Tensor]:
    """hi and lo of each element, scaled by rows so that x is (hi + lo / 2^11) 2^exponent."""
    largest = x.abs().amax(dim=1, keepdim=True).double()
    exponent = torch.floor(torch.log2(largest)) - top
    scaled = x.double() * torch.exp2(-exponent)
    hi = scaled.half().double()
    lo = ((scaled - hi) * 2.0**11).half().double()
    return hi, lo, exponent


def added(total: Tensor, products: Tensor) -> Tensor:
    """``total`` [m, n] and ``products`` [m, n, 16] as the tensor cores add them."""
    terms = torch.cat([products, total[..., None]], dim=-1)
    largest = terms.abs().amax(dim=-1, keepdim=True)
    grid = torch.exp2(torch.floor(torch.log2(largest.clamp(min=1e-300))) - CUT)
    return (torch.trunc(terms / grid) * grid).sum(dim=-1).float().double()


def multiplied(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """total + x y of [m, k] and [n, k]."""
    for q in range(0, x.size(1), GROUP):
        total = added(total, x[:, None, q : q + GROUP] * y[None, :, q : q + GROUP])
    return total


def split_fp16x3(a: Tensor, b: Tensor, window: int = 32) -> Tensor:
    """A B as split_fp16x3 computes it, without its guard, in float64."""
    hi_a, lo_a, scale_a = planes(a)
    hi_b, lo_b, scale_b = planes(b.t())
    zero = torch.zeros(a.size(0), b.size(1), dtype=torch.float64)
    total, correction = zero, zero
    for q in range(0, a.size(1), window):
        part = slice(q, q + window)
        total = (total + multiplied(zero, hi_a[:, part], hi_b[:, part])).float().double()
        correction = multiplied(correction, hi_a[:, part], lo_b[:, part])
        correction = multiplied(correction, lo_a[:, part], hi_b[:, part])
    total = (total + correction * 2.0**-11).float().double()
    return total * torch.exp2(scale_a + scale_b.t())
