"""Hopper's 16-bit tensor-core product with float32 accumulation, bit for bit, in float64.

A step adds 16 products to an accumulator. All 17 terms are aligned to the largest sum of operands'
exponents and cut off below 2^-25 of it, towards zero; their sum is cut to 24 bits. The exponent of
a subnormal operand is that of the least normal number, and no alignment is below 2^-133.
tests/test_tensor_cores.py compares all bits with a GPU's.

Sources: MMA-Sim (microsoft/MMA-Sim); Khattak and Mikaitis, arXiv 2512.07004. Neither has the last
rule, which was found on an H200.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 16  # products that are added up at once
CUT = 25  # bits after the largest one's first
LEAST = {torch.float16: -14, torch.bfloat16: -126, torch.float32: -126}  # normal exponents
LEAST_ALIGNMENT = -133
NONE = -100_000  # a zero's


def exponents(x: Tensor, least: int) -> Tensor:
    """floor(log2 |x|), and ``least`` for what is smaller."""
    found = (torch.frexp(x)[1] - 1).clamp(min=least)
    return torch.where(x == 0, NONE, found)


def power(exponent: Tensor) -> Tensor:
    """2^exponent in float64."""
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)


def step(total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """``total`` [m, n] plus the product of ``x`` [m, 16] and ``y`` [n, 16] of ``dtype``'s numbers.

    All are float64 tensors; the result has float32's numbers.
    """
    products = x[:, None] * y[None]
    sums = exponents(x, LEAST[dtype])[:, None] + exponents(y, LEAST[dtype])[None]
    top = torch.where(products == 0, NONE, sums).amax(dim=-1)
    top = torch.maximum(top, exponents(total, LEAST[torch.float32])).clamp(min=LEAST_ALIGNMENT)
    grid = power(top - CUT)
    terms = torch.cat([products, total[..., None]], dim=-1) / grid[..., None]
    added = torch.trunc(terms).sum(dim=-1) * grid
    last = power((torch.frexp(added)[1] - 24).clamp(min=-149))
    return (torch.trunc(added / last) * last).float().double()


def multiplied(total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """total + x y of [m, k] and [n, k], step by step."""
    for q in range(0, x.size(1), GROUP):
        total = step(total, x[:, q : q + GROUP], y[:, q : q + GROUP], dtype)
    return total


# --- the family split -----------------------------------------------------------------------


def planes(x: Tensor, top: int = 14) -> tuple[Tensor, Tensor, Tensor]:
    """hi and lo of each element, scaled by rows so that x is (hi + lo / 2^11) 2^exponent."""
    largest = x.abs().amax(dim=1, keepdim=True).double()
    exponent = torch.floor(torch.log2(largest)) - top
    scaled = x.double() * torch.exp2(-exponent)
    hi = scaled.half().double()
    lo = ((scaled - hi) * 2.0**11).half().double()
    return hi, lo, exponent


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
