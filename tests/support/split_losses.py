"""Measures what each step of a split product loses, in units of 2^-24 |A||B|.

The steps are those of support/split_model.py, one window and one slice after the other. A step's
loss is the difference between what it gives and the exact result of the same input, so losses of
different steps don't mix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from support.bounds import UNIT
from support.split_model import (
    STEP,
    Lines,
    Row,
    added_corrections,
    by_counts,
    by_sums,
    rounded,
    unscaled,
    windows,
)
from torch_sgemm.measure.tensor_cores import GROUP, power, step_and_losses

HALF_OF_LEAST = 2.0**-150  # which a subnormal result may be off by beside its share


@dataclass
class Steps:
    """multiplied() of tensor_cores.py that adds up what its steps lose.

    ``neighbours``: what alignment cuts off beyond half a unit of each of 17 terms. An element whose
    hi is subnormal aligns its neighbours as if it were 2^-14.
    """

    aligned: Tensor | float = 0.0
    last: Tensor | float = 0.0
    neighbours: Tensor | float = 0.0

    def __call__(self, total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        for q in range(0, x.size(1), GROUP):
            part = slice(q, q + GROUP)
            magnitudes = x[:, part].abs() @ y[:, part].abs().t() + total.abs()
            total, aligned, last = step_and_losses(total, x[:, part], y[:, part], dtype)
            beyond = aligned.abs() - (GROUP + 1) / 2 * UNIT * magnitudes
            self.aligned, self.last = self.aligned + aligned, self.last + last
            self.neighbours = self.neighbours + beyond.clamp(min=0)
        return total


@dataclass(frozen=True)
class Losses:
    """Losses of each element [m, n]; ``certain`` is true for those that the guard certifies."""

    units: dict[str, Tensor]
    certain: Tensor

    def largest(self, term: str) -> float:
        """Returns the largest loss of certified elements, or NaN if one is NaN."""
        found = self.units[term][self.certain].abs()
        return float(found.max()) if found.numel() else 0.0


def of_writing(a: Lines, b: Lines, of_a: Tensor, of_b: Tensor) -> Tensor:
    """The change of a product by writing, of the elements that ``of_a`` and ``of_b`` choose."""
    x, y = a.exact * of_a, b.exact * of_b
    dx, dy = (a.written() - a.exact) * of_a, (b.written() - b.exact) * of_b
    return dx @ y.t() + x @ dy.t() + dx @ dy.t()


def of_leaving_out(a: Lines, b: Lines, of_a: Tensor, of_b: Tensor) -> Tensor:
    """The same by leaving out lo lo; with three planes mid lo, lo mid and lo lo."""
    count, apart = a.form.planes, a.form.apart
    pairs = [(i, j) for i in range(count) for j in range(count) if i + j >= count]
    return -sum(
        (a.planes[i] * of_a) @ (b.planes[j] * of_b).t() / apart ** (i + j) for i, j in pairs
    )


def losses(a: Tensor, b: Tensor, row: Row, alpha: float = 1, c: Tensor | None = None) -> Losses:
    """Measures a product of float32 tensors [m, k] and [k, n], and C [m, n]."""
    row = row.at_depth(a.size(1))
    x, y = Lines.of(a, row.form), Lines.of(b.t(), row.form)
    few_x, few_y = (lines.small().double() for lines in (x, y))
    many_x, many_y = 1 - few_x, 1 - few_y
    all_y = torch.ones_like(few_y)
    units = {}
    units["writing"] = of_writing(x, y, many_x, many_y)
    units["left out"] = of_leaving_out(x, y, many_x, many_y)
    # All that a small element is part of, and below what it cuts off its neighbours.
    of_small = sum(
        loss(x, y, *chosen)
        for loss in (of_writing, of_leaving_out)
        for chosen in ((few_x, all_y), (many_x, few_y))
    )

    steps, of_corrections = Steps(), Steps()
    total = correction = torch.zeros(len(a), b.size(1), dtype=torch.float64)
    promotion = total
    for fresh in windows(x, y, row.window, steps):
        exact = total + fresh
        total = rounded(exact)
        promotion = promotion + (total - exact)
    units["aligned"], units["last"], units["promotion"] = steps.aligned, steps.last, promotion
    units["guard"] = of_small.abs() + steps.neighbours
    for q in range(0, a.size(1), STEP):
        correction = added_corrections(correction, x, y, q, of_corrections)
    units["corrections"] = (of_corrections.aligned + of_corrections.last) * row.form.correction

    exact = total + correction * row.form.correction
    sums = rounded(exact)
    magnitudes = x.exact.abs() @ y.exact.abs().t()
    found = {term: loss / (UNIT * magnitudes) for term, loss in units.items()}
    exact, magnitudes = (
        t * power(x.exponent[:, None] + y.exponent)
        for t in (alpha * exact, abs(alpha) * magnitudes)
    )
    values = unscaled(sums, x, y, alpha)
    if c is not None:
        exact, magnitudes = exact + c.double(), magnitudes + c.double().abs()
        values = rounded(values + c.double())
    beyond = ((values - exact).abs() - HALF_OF_LEAST).clamp(min=0)  # NaN stays
    found["end"] = beyond / (UNIT * magnitudes)
    return Losses(
        {term: loss.where(magnitudes != 0, 0.0) for term, loss in found.items()},
        by_counts(sums, x, y) | by_sums(sums, x, y),
    )
