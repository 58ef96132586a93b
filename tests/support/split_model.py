"""The rows of the family split, bit by bit, in float64: csrc/split in a plain plan.

That is one without clusters, without slices of k and without factors of k. Each function names the
file that it follows; tests/kernels/test_split_model.py compares bits with a GPU's. Operands are
finite.

The guard's comparisons are here: by counts of small elements, and by sums of magnitudes. The third
one, by the product at the place of a row's largest element, is not, and nothing is computed again.
So an element that ``certified`` or ``certified_by_sums`` names has the value that a GPU stores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torch_sgemm.measure.tensor_cores import multiplied, power

Multiply = Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]  # multiplied()

STEP = 32  # a stage of the product, in k
PIECE, PIECE_STEP = 128, 16  # the longest piece of split_fp16x3_tall; pieces are multiples
SHORT = 32  # pieces up to this length have lo lo
SUM_ROUNDING = 1.01
PLAIN_EXPONENTS = (-59, 36)
PLAIN_ALPHAS = (2.0**-8, 2.0**8)


@dataclass(frozen=True)
class Format:
    """A format's planes and the guard's thresholds: formats.cuh."""

    dtype: torch.dtype
    planes: int
    apart: float  # a plane's elements are written times this power of the number of the plane
    top: int  # the largest element of a scaled row is in [2^top, 2^(top + 1))
    small: float
    threshold: float  # for each small element
    sum_threshold: float  # for the magnitudes that small elements meet
    correction: float


FP16X3 = Format(torch.float16, 2, 2.0**11, 14, 2.0**-13, 4, float.fromhex("0x1.56p-13"), 2.0**-11)
BF16X6 = Format(
    torch.bfloat16, 3, 1, 40, 2.0**-50, 2.0**-70, float.fromhex("0x1.1p-111"), 1
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of the kernel table; ``window`` of k stay in the tensor cores.

    ``segment`` of k have their own sums, which are added up in order; 0: k has one segment. With
    ``headroom``, the product's kernel splits both operands. It finds scales, with that number of
    binades to spare.
    """

    name: str
    form: Format
    window: int = 32
    tall: bool = False
    segment: int = 0
    headroom: int = 0

    def at_depth(self, k: int) -> Row:
        """The row whose windows a sum of ``k`` can have: long ones are for more than one."""
        return self if k > self.window else replace(self, window=32, segment=0)


ROWS = {
    "split_fp16x3": Row("split_fp16x3", FP16X3),
    "split_fp16x3, long windows": Row("split_fp16x3", FP16X3, 64),
    "split_fp16x3, segments": Row("split_fp16x3", FP16X3, 64, segment=256),
    "split_bf16x6": Row("split_bf16x6", BF16X6),
    "split_bf16x6, long windows": Row("split_bf16x6", BF16X6, 64),
    "split_fp16x3_tall": Row("split_fp16x3_tall", FP16X3, 32, True),
    "split_fp16x3_streamed, both": Row("split_fp16x3_streamed", FP16X3, headroom=3),
}


def rounded(x: Tensor) -> Tensor:
    """Rounds to the nearest float32."""
    return x.float().double()


# --- format/, guard.cuh ---------------------------------------------------------------------


def exponent_of(x: Tensor, form: Format) -> Tensor:
    """Returns the exponents by which lines are divided, from their largest elements."""
    return (torch.frexp(x.abs().amax(1))[1] - 1).clamp(min=form.top - 126) - form.top


@dataclass(frozen=True)
class Lines:
    """Rows of A, or columns of B as rows, [lines, k]: scaled, and written in 16-bit planes."""

    form: Format
    exponent: Tensor  # that a line is divided by, as a power of two
    exact: Tensor  # the scaled elements, and these as float32
    scaled: Tensor
    planes: list[Tensor]

    @staticmethod
    def of(x: Tensor, form: Format, exponent: Tensor | None = None) -> Lines:
        x = x.double()
        exponent = exponent_of(x, form) if exponent is None else exponent
        exact = x * power(-exponent)[:, None]
        scaled = rounded(exact)
        planes, rest = [], scaled
        for _ in range(form.planes):
            planes.append(rest.to(form.dtype).double())
            rest = (rest - planes[-1]) * form.apart
        return Lines(form, exponent, exact, scaled, planes)

    def written(self) -> Tensor:
        """The elements as their planes hold them."""
        return sum(plane / self.form.apart**i for i, plane in enumerate(self.planes))

    def small(self) -> Tensor:
        return (self.exact != 0) & (self.scaled.abs() < self.form.small)

    def threshold(self) -> Tensor:
        """Returns the threshold by the count of small elements; a line of zeros is certain."""
        zeros = (self.exact == 0).all(1)
        return (self.form.threshold * self.small().sum(1).double()).masked_fill(zeros, -math.inf)

    def of_others(self) -> Tensor:
        """The threshold that this line's magnitudes make of the other operand's small elements."""
        return self.scaled.abs().sum(1) * (self.form.sum_threshold * SUM_ROUNDING)

    def is_plain(self) -> Tensor:
        least, most = PLAIN_EXPONENTS
        return ((self.exponent >= least) & (self.exponent <= most)) | (self.exact == 0).all(1)


def by_counts(sums: Tensor, a: Lines, b: Lines) -> Tensor:
    """The guard's first comparison, of scaled sums [m, n]."""
    return sums.abs() >= a.threshold()[:, None] + b.threshold()


def by_sums(sums: Tensor, a: Lines, b: Lines) -> Tensor:
    """The one with the sums of magnitudes, where these ask for less."""
    of_a = torch.minimum(a.threshold()[:, None], b.of_others())
    of_b = torch.minimum(b.threshold(), a.of_others()[:, None])
    of_a[a.threshold() <= 0], of_b[:, b.threshold() <= 0] = 0, 0
    return by_counts(sums, a, b) | (sums.abs() >= of_a + of_b)


# --- mainloop.cuh ---------------------------------------------------------------------------


def added_corrections(
    total: Tensor, a: Lines, b: Lines, q: int, multiply: Multiply = multiplied
) -> Tensor:
    """``total`` plus all products of a stage, from ``q`` of k on, but hi hi."""
    dtype = a.form.dtype

    def add(total: Tensor, i: int, j: int, part: slice) -> Tensor:
        return multiply(total, a.planes[i][:, part], b.planes[j][:, part], dtype)

    for i, j in ((0, 1), (1, 0)):
        total = add(total, i, j, slice(q, q + STEP))
    if a.form.planes == 3:
        for half in (q, q + STEP // 2):
            for i, j in ((0, 2), (1, 1), (2, 0)):
                total = add(total, i, j, slice(half, half + STEP // 2))
    return total


def windows(a: Lines, b: Lines, window: int, multiply: Multiply = multiplied) -> list[Tensor]:
    """hi hi of each window."""
    zero = torch.zeros(len(a.exact), len(b.exact), dtype=torch.float64)
    (x, *_), (y, *_) = a.planes, b.planes
    parts = [slice(q, q + window) for q in range(0, x.size(1), window)]
    return [multiply(zero, x[:, part], y[:, part], a.form.dtype) for part in parts]


def sums_of(a: Lines, b: Lines, row: Row) -> Tensor:
    zero = sums = torch.zeros(len(a.exact), len(b.exact), dtype=torch.float64)
    k = a.exact.size(1)
    all_fresh = windows(a, b, row.window)
    for first in range(0, k, row.segment or k):
        last = min(first + (row.segment or k), k)
        total = correction = zero
        for fresh in all_fresh[first // row.window : math.ceil(last / row.window)]:
            total = rounded(total + fresh)
        for q in range(first, last, STEP):
            correction = added_corrections(correction, a, b, q)
        sums = rounded(sums + rounded(total + correction * a.form.correction))
    return sums


# --- onthefly/splitter.cuh, both.cuh --------------------------------------------------------


class Found:
    """Lines whose scales are found on the way, and the weighted counts of their small elements."""

    LEAST, EXACT_CHANGE = -126, 45

    def __init__(self, lines: int) -> None:
        self.exponent = torch.full((lines,), self.LEAST)
        self.first = self.exponent
        self.small = torch.zeros(lines, dtype=torch.float64)
        self.nonzero = torch.zeros(lines, dtype=torch.bool)

    def take(self, x: Tensor, row: Row) -> tuple[Lines, Tensor]:
        """Splits a step; returns it with the factors of the sums of earlier steps."""
        wanted = exponent_of(x, row.form)
        exponent = torch.where(wanted > self.exponent, wanted + row.headroom, self.exponent)
        change = power((self.exponent - exponent).clamp(min=-126))
        self.first = torch.where(self.nonzero, self.first, exponent)
        inexact = (exponent != self.exponent) & (exponent - self.first > self.EXACT_CHANGE)
        self.exponent = exponent
        lines = Lines.of(x, row.form, exponent)
        self.small = self.small * change + inexact + lines.small().sum(1)
        change = torch.where(self.nonzero, change, 1)
        self.nonzero = self.nonzero | (x != 0).any(1)
        return lines, change

    def threshold(self, form: Format) -> Tensor:
        return (form.threshold * self.small).masked_fill(~self.nonzero, -math.inf)


def product_of_both(a: Tensor, b: Tensor, row: Row, alpha: float) -> Product:
    """A B of the kernel that splits both; b [n, k]. Its guard's sums of magnitudes are left out."""
    x, y = Found(len(a)), Found(len(b))
    sums = torch.zeros(len(a), len(b), dtype=torch.float64)
    for q in range(0, a.size(1), STEP):
        left, of_a = x.take(a[:, q : q + STEP].double(), row)
        right, of_b = y.take(b[:, q : q + STEP].double(), row)
        sums = rounded(sums * rounded(of_a[:, None] * of_b))
        corrections = added_corrections(torch.zeros_like(sums), left, right, 0)
        first = corrections * row.form.correction
        sums = rounded(sums + multiplied(first, left.planes[0], right.planes[0], row.form.dtype))
    certified = sums.abs() >= x.threshold(row.form)[:, None] + y.threshold(row.form)
    ends = (Lines.of(z[:, :1], row.form, found.exponent) for z, found in ((a, x), (b, y)))
    return Product(unscaled(sums, *ends, alpha).float(), certified, certified)


# --- tall_line.cuh --------------------------------------------------------------------------


def sums_of_piece(a: Lines, b: Lines) -> Tensor:
    """hi lo, lo hi and lo lo have an accumulator each."""
    zero = torch.zeros(len(a.exact), len(b.exact), dtype=torch.float64)
    total = zero
    for fresh in windows(a, b, STEP):
        total = rounded(total + fresh)
    (of_a, lower_a), (of_b, lower_b) = a.planes, b.planes
    cross = rounded(multiplied(zero, of_a, lower_b) + multiplied(zero, lower_a, of_b))
    if a.exact.size(1) <= SHORT:
        cross = rounded(cross + multiplied(zero, lower_a, lower_b) * a.form.correction)
    return rounded(total + cross * a.form.correction)


def pieces(k: int) -> list[slice]:
    """Returns the even pieces of k of split_fp16x3_tall (tall.cpp).

    Up to eight pieces are added up in order.
    """
    count = math.ceil(k / PIECE)
    depth = math.ceil(k / count / PIECE_STEP) * PIECE_STEP
    return [slice(q, q + depth) for q in range(0, k, depth)]


# --- epilogue.cuh ---------------------------------------------------------------------------


def unscaled(sums: Tensor, a: Lines, b: Lines, alpha: float) -> Tensor:
    """Sums times their scales and alpha: at once where both are plain, else alpha comes first."""
    alpha = float(torch.tensor(alpha, dtype=torch.float32))
    exponent = a.exponent[:, None] + b.exponent
    mantissa, of_alpha = math.frexp(alpha)
    in_steps = rounded(rounded(sums * mantissa) * power(exponent + of_alpha))
    if alpha != 0 and not PLAIN_ALPHAS[0] <= abs(alpha) <= PLAIN_ALPHAS[1]:
        return in_steps
    plain = a.is_plain()[:, None] & b.is_plain()
    return torch.where(plain, rounded(sums * alpha * power(exponent)), in_steps)


@dataclass(frozen=True)
class Product:
    """A row's result, and which elements its guard certifies."""

    values: Tensor  # float32
    certified: Tensor  # by counts alone
    certified_by_sums: Tensor  # by either


def product(a: Tensor, b: Tensor, row: Row, alpha: float = 1, c: Tensor | None = None) -> Product:
    """alpha A B, plus C if there is one, of float32 tensors [m, k] and [k, n]."""
    a, b = a.cpu(), b.t().cpu()
    row = row.at_depth(a.size(1))
    if row.headroom:
        found = product_of_both(a, b, row, alpha)
        if c is None:
            return found
        return replace(found, values=rounded(found.values.double() + c.double()).float())
    values = None if c is None else c.double()
    certified = by_either = torch.ones(len(a), len(b), dtype=torch.bool)
    for part in pieces(a.size(1)) if row.tall else [slice(None)]:
        x, y = Lines.of(a[:, part], row.form), Lines.of(b[:, part], row.form)
        sums = sums_of_piece(x, y) if row.tall else sums_of(x, y, row)
        certified = certified & by_counts(sums, x, y)
        by_either = by_either & by_sums(sums, x, y)
        new = unscaled(sums, x, y, alpha)
        values = new if values is None else rounded(values + new)
    return Product(values.float(), certified, by_either)
