"""Hopper's 16-bit tensor-core product with float32 accumulation, bit for bit, in float64.

A step adds 16 products to an accumulator. All 17 terms are aligned to the largest sum of operands'
exponents and truncated below 2^-25 of it; their sum is truncated to 24 bits. A subnormal operand
has the exponent of the least normal number, and no alignment is below 2^-133.
tests/kernels/test_tensor_cores.py compares all bits with a GPU's.

Sources: MMA-Sim (microsoft/MMA-Sim); Khattak and Mikaitis, arXiv 2512.07004. Neither has the last
rule, which was found on an H200.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 16  # products that are added up at once
CUT = 25  # bits kept after the largest term's first
LEAST = {torch.float16: -14, torch.bfloat16: -126, torch.float32: -126}  # normal exponents
LEAST_ALIGNMENT = -133
NONE = -100_000  # exponent of a zero


def exponents(x: Tensor, least: int) -> Tensor:
    """Returns floor(log2 |x|), at least ``least``, and NONE for zeros."""
    found = (torch.frexp(x)[1] - 1).clamp(min=least)
    return torch.where(x == 0, NONE, found)


def power(exponent: Tensor) -> Tensor:
    """Returns 2^exponent in float64."""
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)


def step(total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns ``total`` [m, n] plus the product of ``x`` [m, 16] and ``y`` [n, 16], of ``dtype``.

    All tensors are float64; the result has float32's numbers.
    """
    return step_and_losses(total, x, y, dtype)[0]


def step_and_losses(
    total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the sum, what alignment cut off its terms, and what was cut off after 24 bits."""
    products = x[:, None] * y[None]
    sums = exponents(x, LEAST[dtype])[:, None] + exponents(y, LEAST[dtype])[None]
    top = torch.where(products == 0, NONE, sums).amax(dim=-1)
    top = torch.maximum(top, exponents(total, LEAST[torch.float32])).clamp(min=LEAST_ALIGNMENT)
    grid = power(top - CUT)[..., None]
    terms = torch.cat([products, total[..., None]], dim=-1)
    kept = torch.trunc(terms / grid) * grid
    added = kept.sum(dim=-1)
    last = power((torch.frexp(added)[1] - 24).clamp(min=-149))
    result = (torch.trunc(added / last) * last).float().double()
    return result, (terms - kept).sum(dim=-1), added - result


def multiplied(total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
    """Returns total + x y for x [m, k] and y [n, k], step by step."""
    for q in range(0, x.size(1), GROUP):
        total = step(total, x[:, q : q + GROUP], y[:, q : q + GROUP], dtype)
    return total
