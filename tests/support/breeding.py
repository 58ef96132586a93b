"""A hill-climb: rows of A and columns of B that are changed a little and kept if they err more."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from benchmarks.distributions import generator

POPULATION, PARENTS = 64, 16
LARGEST_EXPONENT = 90


def breed(
    a: Tensor, b: Tensor, units: Callable[[Tensor, Tensor], Tensor], rounds: int, seed: int
) -> float:
    """The largest error that was found, in units.

    ``units`` gives those of a product of [m, k] and [k, n], [m, n]; each row is as good as its
    worst column, and the reverse. Begins with the worst of ``a`` and ``b``.
    """
    gen = generator(seed, a.device)
    errors = units(a, b)
    rows, columns = _fittest(a, errors.amax(1)), _fittest(b.t(), errors.amax(0))
    worst = errors.max()
    for _ in range(rounds):
        rows = torch.cat([rows, _changed(rows, gen)])
        columns = torch.cat([columns, _changed(columns, gen)])
        errors = units(rows, columns.t())
        worst = torch.maximum(worst, errors.max())  # keeps a NaN
        rows, columns = _fittest(rows, errors.amax(1)), _fittest(columns, errors.amax(0))
    return float(worst)


def _fittest(x: Tensor, errors: Tensor) -> Tensor:
    return x[errors.nan_to_num(nan=float("inf")).topk(min(PARENTS, len(x))).indices]


def _changed(parents: Tensor, gen: Generator) -> Tensor:
    """Children, each with a few elements of other mantissas, exponents, signs or places."""
    device, k = parents.device, parents.size(1)

    def below(end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, generator=gen, device=device, dtype=torch.int32)

    def chance(*shape: int) -> Tensor:
        return torch.rand(shape, generator=gen, device=device)

    count = POPULATION - PARENTS
    x = parents[below(len(parents), count).long()]
    # Half of them change an element or two, the others a quarter of all.
    some = chance(count, k) < torch.where(chance(count, 1) < 0.5, 2.0 / k, 0.25)
    kind = below(5, count, 1)
    bits = (x.contiguous().view(torch.int32) ^ (1 << below(23, count, k))).view(torch.float32)
    shifted = torch.ldexp(x, below(7, count, k) - 3)
    moved = x.gather(1, below(k, count, k).long())
    rolled = x.roll(1, dims=1)
    for number, new in enumerate((bits, shifted, moved, -x)):
        x = torch.where(some & (kind == number), new, x)
    x = torch.where(kind == 4, rolled, x)
    limit = 2.0**LARGEST_EXPONENT
    return torch.where(x.abs() < limit, x, 1.0)
