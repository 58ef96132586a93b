"""Operands that reach each term of a row's error bound, row by row and column by column.

A case gives rows of A and columns of B, [m, k] and [k, n]. Every row meets every column, so a
product tries m n sums. The terms are described in docs/split.md: elements written as
hi + lo / 2^11, omitted products, bits that the tensor cores cut off, and the guard's threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Generator, Tensor

from benchmarks.distributions import generator

Pair = tuple[Tensor, Tensor]
CASES: dict[str, Callable[[int, Generator], Pair]] = {}
LOWER = 13  # bits of a float32's mantissa below float16's
SHORT = 4  # places that a case wants for elements of its own

# The lower bits, counted from hi: first, end, and what they are modulo a power of two. With an odd
# one lo's last bit is a tie, which goes up or down by the bit above; with 2 and 6 modulo 8 it is a
# tie where lo is subnormal. From 4096 on hi is rounded up, and lo negative.
CLASSES = (
    (2048, 2304, 4, 1), (2048, 2304, 4, 3), (3840, 4096, 4, 1), (3840, 4096, 4, 3),
    (4097, 4352, 4, 1), (4097, 4352, 4, 3), (5888, 6144, 4, 1), (5888, 6144, 4, 3),
    (0, 64, 8, 2), (4096, 4608, 8, 2), (4096, 4608, 8, 6), (3584, 4096, 8, 6), (0, 8192, 1, 0),
)  # fmt: skip
TIES_OF_SUBNORMALS = (8, 9, 10, 11, 1, 12)

# The distances of dominating products: k of a wgmma, of a stage, of two, of a piece, of parts of a
# cluster, of slices; and 2^40: one product alone.
DISTANCES = (16, 32, 64, 128, 256, 1024, 8192, 2**40)
# The other products: -log2 of their size, and a mantissa that cutting off or rounding loses.
OTHERS = (
    (24, 2 - 2**-9), (24, 1 + 2**-9), (24, 1 - 2**-9), (25, 2 - 2**-9), (23, 2 - 2**-9),
    (26, 2 - 2**-9),
)  # fmt: skip


def _case(make: Callable[[int, Generator], Pair]) -> Callable:
    CASES[make.__name__] = make
    return make


@cache
def crafted(name: str, k: int, device: str, seed: int = 0) -> Pair:
    """A and B of the case ``name``, float32."""
    a, b = CASES[name](k, generator(seed + k))
    return a.float().to(device), b.float().to(device)


@cache
def everything(k: int, device: str, seed: int = 0) -> Pair:
    """All cases' rows of A and columns of B: those that were not made for each other meet too."""
    pairs = [crafted(name, k, device, seed) for name in CASES]
    return torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], dim=1)


def mantissas(
    rows: int, k: int, gen: Generator, classes: tuple[int, ...] = tuple(range(len(CLASSES)))
) -> Tensor:
    """Numbers in [1, 2), each row of one class, so that its errors have one sign."""
    result = torch.empty(rows, k, dtype=torch.float64)
    for i in range(rows):
        first, end, modulus, residue = CLASSES[classes[i % len(classes)]]
        count = max(1, (end - first) // modulus)
        lower = first // modulus * modulus + residue
        lower = lower + modulus * torch.randint(count, (k,), generator=gen)
        # Just above a power of two the same error is the largest part of the number.
        upper = torch.randint(1 if i // len(classes) % 2 == 0 else 64, (k,), generator=gen)
        result[i] = 1 + (upper * 2**LOWER + lower % 2**LOWER).double() * 2.0**-23
    return result


def beside(values: Tensor, other: Tensor, largest: Tensor, largest_other: Tensor) -> Pair:
    """Rows and columns with an element each that is so large and meets a zero.

    It sets its row's scale and adds nothing to any sum. Every second row has it at the end.
    """
    a, b = values.clone(), other.clone()
    k = a.size(1)
    for mine, its, top, first in ((a, b.t(), largest, 0), (b.t(), a, largest_other, 1)):
        for place in (first, k - 2 + first):
            mine[:, place] = 0
            its[:, place] = 0
        mine[::2, first] = top[::2]
        mine[1::2, k - 2 + first] = top[1::2]
    return a, b


@_case
def writing(k: int, gen: Generator) -> Pair:
    """Every rounding of lo as far off as it can be and in one direction, lo * lo at its largest."""
    return mantissas(26, k, gen), mantissas(26, k, gen).t()


@_case
def subnormal_lo(k: int, gen: Generator) -> Pair:
    """Elements about as small as float16 can still write, beside a large one."""
    if k <= SHORT:
        return writing(k, gen)
    depths = torch.arange(18, 36).repeat_interleave(2 * len(TIES_OF_SUBNORMALS))
    values = [mantissas(len(depths), k, gen, TIES_OF_SUBNORMALS * 2) for _ in range(2)]
    top = torch.exp2(depths.double())
    return beside(values[0], values[1].t().contiguous(), top, top)


def _patterns(k: int, share: float, mantissa: bool) -> Tensor:
    """Ones at equal distances; between them numbers that are smaller by a share of OTHERS."""
    rows, q = [], torch.arange(k)
    for distance in dict.fromkeys(min(d, 2**40 if d >= k else d) for d in DISTANCES):
        for offset in dict.fromkeys((0, 1, min(distance, k) // 2, min(distance, k) - 1)):
            for level, largest in OTHERS:
                small = 2.0 ** -round(level * share) * (largest if mantissa else 1)
                row = torch.full((k,), small, dtype=torch.float64)
                row[q % distance == offset % k] = (-1.0) ** len(rows)
                rows.append(row)
    return torch.stack(rows)


@_case
def dominated(k: int, gen: Generator) -> Pair:
    """A large product in each window, beside which the others are cut off, or rounded."""
    ones = torch.ones(2, k, dtype=torch.float64)
    ones[1] = -1
    a = torch.cat([_patterns(k, 1, True), _patterns(k, 0.5, True)])
    b = torch.cat([ones, _patterns(k, 0.5, False), _patterns(k, 1, False)])
    return a, b.t()


@_case
def dominated_corrections(k: int, gen: Generator) -> Pair:
    """The same where every element has a lo as well."""
    a = _patterns(k, 0.5, False)
    return a * mantissas(len(a), k, gen), (
        mantissas(26, k, gen) * _patterns(k, 0.5, False)[:26]
    ).t()


@_case
def threshold(k: int, gen: Generator) -> Pair:
    """Many small elements, with one product that lifts the sum just above what the guard asks.

    The guard asks for 4 a small element where both scaled tops are 2^14, and for less where a
    kernel leaves binades free for larger elements to come.
    """
    if k <= SHORT:
        return writing(k, gen)
    ratios = torch.arange(24, 33).double().repeat_interleave(12)
    count = len(ratios)
    a, b = mantissas(count, k, gen, TIES_OF_SUBNORMALS), mantissas(26, k, gen)
    a[:, 2], b[:, 2] = 0, 1
    a, b = beside(a, b.t().contiguous(), torch.exp2(ratios), torch.ones(26, dtype=torch.float64))
    small = (a[:, 3:] != 0).sum(1).double()
    free = torch.tensor([0, 4, 8]).repeat(count // 3)
    asked = small * torch.exp2(ratios - 26 + free) * (1 + 2.0**-8)
    already = torch.arange(count) // 6 % 2 * a[:, 3:].sum(1)  # by |C|, or by the one product alone
    a[:, 2] = (asked - already).clamp(min=0)
    return a, b


@_case
def vanishing(k: int, gen: Generator) -> Pair:
    """Sums of elements that are far below their rows' largest, on both sides."""
    if k <= SHORT:
        return writing(k, gen)
    tops = torch.tensor([10.0, 40.0, 78.0]).repeat_interleave(7).double()
    small = torch.tensor([0.0, 15.0, 25.0, 32.0, 40.0, 50.0, 60.0]).repeat(3).double()
    values = [mantissas(len(tops), k, gen) * torch.exp2(-small)[:, None] for _ in range(2)]
    top = torch.exp2(tops)
    return beside(values[0], values[1].t().contiguous(), top, top)


@_case
def scaled(k: int, gen: Generator) -> Pair:
    """Rows and columns of every size, of the most awkward mantissas."""
    exponents = torch.arange(-72, 62, 3).double()
    values = [mantissas(len(exponents), k, gen) for _ in range(2)]
    a, b = (torch.exp2(exponents)[:, None] * x for x in values)
    return a, b.t()


# --- what adds up to more than a float ------------------------------------------------------

LARGEST = 3.4028234e38


def near_overflow(k: int) -> Pair:
    """Rows whose sums stay finite in order of k, though parts of them alone may not."""
    rows, q = [], torch.arange(k)
    for period in (1, 2, 4, 8, 16, 32, 64, 128, 1024):
        for size in (2e38, LARGEST / period, LARGEST):
            rows.append(torch.where(q // period % 2 == 0, size, -size))
    for cut in (1, 8, 16, 31, 32, 33, 64, 96, 128, 192, 256, 512, 1024, 4096, 8192, 8193, k - 1):
        for at in (cut - 2, cut - 1, cut):
            if at >= 0 and at + 3 <= k:
                row = torch.zeros(k)
                row[at : at + 3] = torch.tensor([-3e38, 2.9e38, 2.9e38])
                rows += [row, -row, torch.where(row == 0, 1e30, row)]
    for place in (0, k // 2, k - 1):
        rows.append(torch.full((k,), 2.0**70))
        rows[-1][place] = LARGEST
        rows.append(torch.zeros(k))
        rows[-1][place] = -LARGEST
    columns = [torch.ones(k), -torch.ones(k), torch.full((k,), 0.5)]
    columns += [torch.where(q % 3 == 0, 0.0, 1.0), torch.where(q % 2 == 0, 1.0, 0.99)]
    return torch.stack(rows), torch.stack(columns, dim=1)


def inf_behind_overflow(k: int) -> Pair:
    """Rows whose sums in order of k are 3e38, 0 and -3e38 when an Inf, or a NaN, is added.

    A part of k that begins with the second of these overflows to the other Inf before. Columns are
    ones, or hold an Inf themselves.
    """
    cuts = [at for at in (8, 16, 32, 64, 128, 256, 512, 1024, 2048) if at + 3 < k]
    places = [(0, 1, 2, 3), (0, 1, 2, k - 1), (k - 4, k - 3, k - 2, k - 1), (0, 8, 16, 24)]
    for at in cuts:
        places += [
            (at - 1, at, at + 1, at + 2),
            (at - 1, at, at + 1, k - 1),
            (0, at, at + 1, k - 1),
        ]
        if 3 * at < k:
            places.append((at - 1, at, 2 * at, 3 * at))
    rows = []
    for number, place in enumerate(places):
        for last in (math.inf, -math.inf, math.nan, 1.0):
            row = torch.full((k,), 1e30 * (number % 2))
            row[list(place)] = torch.tensor([3e38, -3e38, -3e38, last])
            rows += [row, -row]
    columns = [torch.ones(k), -torch.ones(k), torch.full((k,), 0.5)]
    for place in (3, k // 2, k - 1):
        for value in (math.inf, -math.inf):
            columns.append(torch.ones(k))
            columns[-1][place] = value
    return torch.stack(rows), torch.stack(columns, dim=1)


def infs_in_parts(k: int) -> Pair:
    """An Inf of A in one part of k, and one of B, alike or opposite, in a part behind or before."""
    a, b = torch.full((16, k), 0.5), torch.full((k, 40), 1.5)
    for i, (of_a, of_b) in enumerate(((0, k // 2), (k // 2, 0), (1, k - 1), (k - 1, 2))):
        for sign in (1, -1):
            a[4 * i + 1 + sign, of_a] = math.inf
            b[of_b, 8 * i + 3 + sign] = sign * math.inf
    return a, b


def classes(x: Tensor) -> Tensor:
    """0 for a finite element, 1 and 2 for Inf and -Inf, 3 for NaN."""
    return x.isposinf() + 2 * x.isneginf() + 3 * x.isnan()


def in_order(a: Tensor, b: Tensor) -> Tensor:
    """The float32 sum in order of k, a multiply-add a step, of [m, k] and [k, n]."""
    total = torch.zeros(a.size(0), b.size(1), device=a.device)
    for q in range(a.size(1)):
        total = (total.double() + a[:, q, None].double() * b[q].double()).float()
    return total
