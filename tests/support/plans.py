"""Each plan of a row, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

import torch_sgemm
from support.bounds import Reference, proven_units, roundings


def plans_of(row: torch_sgemm.Kernel, c: Tensor, a: Tensor, b: Tensor, **factors: float) -> range:
    """The row's plans for c = alpha a b + beta c, by their numbers."""
    seconds = torch.ops.sgemm._plans(c, a, b, row.name, **factors)
    assert seconds and all(math.isfinite(x) and x > 0 for x in seconds)
    return range(len(seconds))


def by_each_plan(row: torch_sgemm.Kernel, a: Tensor, b: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Plans and their products of ``a`` and ``b``, each a tensor of its own, written over NaN."""
    nan = torch.full((*a.shape[:-1], b.size(-1)), math.nan, device=a.device)
    for plan in plans_of(row, nan, a, b):
        c = nan.clone()
        torch.ops.sgemm._run_plan(c, a, b, row.name, plan)
        yield plan, c


def within_bound(row: torch_sgemm.Kernel, a: Tensor, b: Tensor) -> Iterator[int]:
    """Plans, when each has run and no error was found above the row's bound."""
    reference, k = Reference.of(a, b), a.size(-1)
    for plan, result in by_each_plan(row, a, b):
        units = float(reference.units_each(result, roundings(k)).max())
        assert units <= proven_units(row, k), (plan, units)
        yield plan
