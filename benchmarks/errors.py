"""Errors against float64, in units of 2^-24 (|alpha| |A||B| + |beta| |C|)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import torch_sgemm
from benchmarks.problems import Operands, Problem
from benchmarks.sides import Side

UNIT = 2.0**-24
GOOD_UNITS = 8.0  # an error up to this is good even if torch.mm's is smaller
SAMPLE_ROWS = 64
SAMPLE_BATCHES = 16
FFMA_FAMILIES = ("reference", "ladder", "ieee")


class Errors(NamedTuple):
    """The largest and mean error of the sampled rows; NaN if an element is NaN."""

    max: float
    mean: float


def bound(k: int) -> float:
    """Returns the error bound of float32 multiply-adds, in units: min(k + 2, 4 sqrt(k) + 8)."""
    return min(k + 2, 4 * math.sqrt(k) + 8)


def tf32_bound(bits: int, k: int) -> float:
    """Returns the error bound of products of elements cut off at ``bits``, in units.

    Two elements are each off by at most 2^(1 - bits). Tensor cores, which cut sums off at 25 bits,
    add a unit per step of k.
    """
    return 2.0 ** (26 - bits) + k


def good_up_to(torch_error_max: float, good: float = GOOD_UNITS) -> float:
    """Returns the largest error of a good result, in units: twice torch.mm's, or ``good``."""
    return max(good, 2 * torch_error_max)


def limit(kernel: str, k: int, torch_error_max: float, good: float = GOOD_UNITS) -> float:
    """Returns the error limit of ``kernel``, a row or a family, in units."""
    rows = {row.name: row for row in torch_sgemm.kernels()}
    if kernel in rows and rows[kernel].bits < 24:
        return tf32_bound(rows[kernel].bits, k)
    ffma = (rows[kernel].family if kernel in rows else kernel) in FFMA_FAMILIES
    return bound(k) if ffma else good_up_to(torch_error_max, good)


def in_units(value: Tensor, exact: Tensor, magnitude: Tensor) -> Errors:
    """Returns errors of ``value`` against the float64 ``exact``, relative to ``magnitude``.

    Where the magnitude is 0, any other value than the exact one has an infinite error. Where the
    exact value is NaN or infinite, so must the value be.
    """
    value = value.double()
    same = (value == exact) | (value.isnan() & exact.isnan())  # Inf - Inf would be NaN
    error = (value - exact).abs().masked_fill(same, 0.0)
    ratio = (error / (magnitude * UNIT)).where(error != 0, 0.0)
    return Errors(float(ratio.max()), float(ratio.mean()))


def in_units_of_rms(values: Sequence[Tensor], exact: Sequence[Tensor]) -> Errors:
    """Returns errors of tensors, taken as one vector, relative to its root mean square.

    This is for results of more than one product, such as a model's output or all of its gradients.
    """
    count = sum(x.numel() for x in exact)
    unit = UNIT * torch.stack([x.square().sum() for x in exact]).sum().div(count).sqrt()
    errors = [(v.double() - x).abs() for v, x in zip(values, exact, strict=True)]
    largest = torch.stack([e.max() for e in errors]).max()  # NaN where there is one
    mean = torch.stack([e.sum() for e in errors]).sum() / count
    return Errors(float(largest / unit), float(mean / unit))


class Reference:
    """A float64 reference: sampled rows of a problem's product with one set of operands."""

    def __init__(self, problem: Problem, operands: Operands, seed: int) -> None:
        self._operands = operands
        self._problem = problem
        generator = torch.Generator().manual_seed(seed)
        device = operands.a.device
        a, b, c = (x if x.dim() == 3 else x[None] for x in operands)
        batches = torch.randperm(problem.batch, generator=generator)[:SAMPLE_BATCHES]
        rows = torch.randperm(problem.m, generator=generator)[:SAMPLE_ROWS]
        self._at = (batches.to(device)[:, None], rows.to(device)[None, :])
        self._before = operands.c.clone() if problem.beta != 0 else None
        sample, b = a[self._at].double(), b[self._at[0][:, 0]].double()
        self._exact = problem.alpha * (sample @ b)
        self._magnitude = abs(problem.alpha) * (sample.abs() @ b.abs())
        if problem.beta != 0:
            read = c[self._at].double()
            self._exact += problem.beta * read
            self._magnitude += abs(problem.beta) * read.abs()

    def errors(self, side: Side) -> Errors:
        """Runs ``side`` once on a C full of NaN, or unchanged if beta reads C."""
        c = self._operands.c
        if self._before is None:
            c.fill_(float("nan"))
        else:
            c.copy_(self._before)
        side.run(self._operands)
        sample = (c if c.dim() == 3 else c[None])[self._at]
        return in_units(sample, self._exact, self._magnitude)
