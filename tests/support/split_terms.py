"""Operands that reach one term of the split rows' bound, and little of the others.

docs/split.md has the terms; support/split_losses.py measures them. All give A and B, float32
tensors [m, k] and [k, n], on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from benchmarks.distributions import generator
from support.crafted import mantissas
from support.split_model import FP16X3, SUM_ROUNDING, Format, Lines

Pair = tuple[Tensor, Tensor]
ULP = 2.0**-23
HALF, BFLOAT = torch.float16, torch.bfloat16
# Floats above 1 that are exact in all planes, and whose planes behind hi are as large as can be.
LONGEST = {HALF: 1 + 4094 * ULP, BFLOAT: 1 + 2.0**-8 - 2.0**-16 + 2.0**-17 - ULP}
BITS = {HALF: 11, BFLOAT: 8}  # of a plane's element


def short_values(form: Format, shape: tuple[int, ...], seed: int) -> Tensor:
    """Numbers in [1, 2) that hi holds."""
    parts = 2 ** (BITS[form.dtype] - 1)
    return 1 + torch.randint(parts, shape, generator=generator(seed)).double() / parts


# --- elements as they are written -----------------------------------------------------------


def writing(form: Format, k: int) -> Pair:
    """lo is rounded as far as it can be, but is short, so that lo lo is as little as it can be."""
    values = mantissas(2, k, generator(1), (0, 1)).float()
    return values, values.t()


def left_out(form: Format, k: int) -> Pair:
    values = torch.full((2, k), LONGEST[form.dtype])
    return values, values.t()


def subnormal_lo(form: Format, k: int) -> Pair:
    """Elements of 2^-13 beside 2^14: multiples of 2^-36, written as those of 2^-35.

    lo is 2^-34 at most, so that lo lo is nothing. Every second line has errors of the other sign;
    the largest element of a line, which meets zero, is of any size about 2^27 times the others.
    """
    tops = torch.exp2(torch.arange(22, 29).double()).repeat_interleave(2)
    odd = torch.tensor([1, 3]).repeat(len(tops) // 2)
    lower = odd[:, None] + 4 * torch.randint(2, (len(tops), k), generator=generator(2))
    values = (1 + (lower % 4).double() * ULP).float()
    a, b = values.clone(), values.clone()
    a[:, 0], b[:, 0], a[:, 1], b[:, 1] = tops, 0, 0, tops
    return a, b.t()


# --- sums -----------------------------------------------------------------------------------


def aligned(form: Format, k: int) -> Pair:
    """One large product, anywhere, beside which all others are just below what is kept."""
    a = torch.full((k, k), (2 - 2.0**-6) * 2.0**-26)
    return a.fill_diagonal_(1), torch.ones(k, 1)


def last(form: Format, k: int) -> Pair:
    """Sums that have more than 24 bits: the worst of many."""
    by = torch.randint(0, 11, (1024, k), generator=generator(3)).double()
    a = short_values(form, (1024, k), 4) * torch.exp2(-by)
    return a.float(), short_values(form, (k, 1), 5).float()


def promotion(form: Format, k: int) -> Pair:
    """Each window after the first comes to just less than half of the sum's last bit."""
    a = torch.zeros(1, k)
    a[0, ::32] = (2 - 2.0**-6) * 2.0**-25
    a[0, 0] = 1
    return a, torch.ones(k, 1)


@cache
def corrections(form: Format, k: int) -> Pair:
    """One product with large corrections; then those of which the most is cut off beside them."""
    bits, gen = BITS[form.dtype], generator(6)
    first = 1 + 2.0**-bits  # a tie: lo is as large as it can be, and a power of two
    values = (1 + torch.randint(2**23, (2, 2**17), generator=gen).double() * ULP) * 2.0**-7
    # Each as a line of its own, beside an element of the size of the first.
    pairs = torch.stack([values, torch.full_like(values, first)], dim=-1).float()
    x, y = (Lines.of(pair, form) for pair in pairs)
    sum_of_first = 2.0 ** (2 * form.top + 1 - bits) * form.apart
    lost = torch.zeros(len(x.exact), dtype=torch.float64)
    for i, j in ((0, 1), (1, 0), (0, 2), (1, 1), (2, 0)):
        if max(i, j) < form.planes and i + j <= form.planes - 1:
            product = x.planes[i][:, 0] * y.planes[j][:, 0] / (sum_of_first * 2.0**-25)
            # Those of the other sign would be lost the other way.
            lost += torch.where(product >= 0, product - product.trunc(), -10.0)
    best = lost.topk(k - 1).indices
    a, b = (torch.cat([torch.tensor([first]).double(), v[best]]).float() for v in values)
    return a[None], b[:, None]


@dataclass(frozen=True)
class Ending:
    a: Tensor
    b: Tensor
    c: Tensor
    alpha: float


def ending(form: Format) -> Ending:
    """Sums just above a power of two, an alpha too, and a C of less than their last bit.

    Elements of A have at most 22 bits and those of B fit in hi, so the planes hold them exactly.
    """
    gen = generator(8)
    parts = 2 ** (BITS[form.dtype] - 1)
    a = 1 + torch.randint(2**17, (100, 1), generator=gen).double() * 2 * ULP
    b = 1 + torch.randint(parts // 32, (1, 100), generator=gen).double() / parts
    c = (torch.rand(100, 100, generator=gen) - 0.5) * 2 * ULP
    return Ending(a.float(), b.float(), c, 1 + 2.0**-6 + 5 * ULP)


# --- small elements -------------------------------------------------------------------------

SMALL_K = 128
ROOM = 2.0**60  # keeps bfloat16's small elements and results above float32's least


def lifted(a: Tensor, b: Tensor, form: Format, count: int, factor: float) -> Pair:
    """Scaled lines [1, k] with one product more, at place 1: ``factor`` times what is asked.

    That is for ``count`` small elements of A, by the guard's first or second comparison.
    """
    b[0, 1] = 2.0 ** (0 if form.dtype == HALF else -30)
    of_sums = b.abs().sum().item() * form.sum_threshold * SUM_ROUNDING
    a[0, 1] = min(form.threshold * count, of_sums) * factor / b[0, 1].item()
    room = 1 if form.dtype == HALF else ROOM
    return (a * 2.0**-form.top * room).float(), (b * 2.0**-form.top * room).float().t()


def small_elements(
    form: Format, size: float, factor: float = 1.001, headroom: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """A, A without its small elements, and B, whose elements opposite are of ``size``, at most 1.

    That is relative to its largest. The product in a window of its own lifts the sum to ``factor``
    times what the guard asks for. hi hi of the others cancels, and their errors add up.
    ``headroom``: binades that a kernel's scale leaves above A's largest element.
    """
    if form.dtype == HALF:  # lo is 1022.5 of its units, and rounded down; lo lo is left out
        lower, unit, other = 1022.5 * 2.0**-35, 2.0**-24, 2.0**15 - 8 - 2.0**-8
    else:  # half of the least number that can be written
        lower, unit, other = 2.0**-134, 2.0**-120 / 3, (2 - 2.0**-7) * 2.0**40
    a, b = (torch.zeros(1, SMALL_K, dtype=torch.float64) for _ in range(2))
    a[0, ::32] = 2.0 ** (form.top - headroom)  # each step of k has the same scale; they meet zero
    places = torch.cat([torch.arange(q + 1, q + 31) for q in (64, 96)])
    a[0, places] = torch.tensor([3 * unit + lower, -3 * unit + lower]).double().repeat(30)
    b[0, places], b[0, 2] = other * size, other
    a, b = lifted(a, b, form, len(places), factor)
    without = a.clone()
    without[0, places] = 0
    return a, without, b


def subnormal_neighbours(factor: float = 1.001) -> Pair:
    """A small element in each second 16 of k, beside which all 15 products and the sum are cut off.

    It loses as much itself as in small_elements(): it meets an element just below 2^15, whose hi is
    2^15, so that both signs of lo are others than there.
    """
    a, b = (torch.zeros(1, SMALL_K, dtype=torch.float64) for _ in range(2))
    neighbour, b[0, 32:] = 2.0**-12 * (2 - 2.0**-10), 2.0**-13
    a[0, 32::32] = neighbour  # the sum so far, less than what is kept beside a small element
    for q in range(48, SMALL_K, 32):
        a[0, q + 1 : q + 16] = neighbour
        a[0, q], b[0, q] = 3 * 2.0**-24 - 1021.5 * 2.0**-35, 2.0**15 - 8 + 2.0**-8
    a[0, 0] = 2.0**14
    return lifted(a, b, FP16X3, SMALL_K // 32 - 1, factor)


def uncounted(form: Format, below: float) -> Pair:
    """Elements of ``below`` times the least that isn't small, which lose as much as small ones."""
    size = form.small * below
    a, b = (torch.zeros(1, 64, dtype=torch.float64) for _ in range(2))
    a[0, 0] = b[0, 1] = 2.0**form.top
    if form.dtype == HALF:  # odd multiples of 2^-36
        a[0, 2:], b[0, 2:] = size + 2.0**-36, 2.0**14
        return (a * 2.0**-14).float(), (b * 2.0**-14).float().t()
    a[0, 2], b[0, 2] = size * 4 / 3, size * 1.7  # one product of 48 bits, below 2^-126
    return (a * 2.0**-40 * ROOM).float(), (b * 2.0**-40 * ROOM).float().t()


TERMS: dict[str, tuple[Callable[[Format, int], Pair], int]] = {
    "left out": (left_out, 32),
    "aligned": (aligned, 32),
    "last": (last, 32),
    "promotion": (promotion, 1024),
    "corrections": (corrections, 512),
}
