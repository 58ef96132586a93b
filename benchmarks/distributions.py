"""Seeded operands: the distributions that separate a good float32 product from a bad one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Pair = tuple[Tensor, Tensor]
DISTRIBUTIONS: dict[str, Callable[[int, int, int, Generator], Pair]] = {}


def generator(seed: int, device: str | torch.device = "cpu") -> Generator:
    """Returns a generator on ``device`` with ``seed``."""
    return torch.Generator(device=device).manual_seed(seed)


def operands(
    name: str, m: int, n: int, k: int, device: str | torch.device = "cpu", seed: int = 0
) -> Pair:
    """Returns A [m, k] and B [k, n] of the distribution ``name``, float32, packed row-major."""
    a, b = DISTRIBUTIONS[name](m, n, k, generator(seed, device))
    return a.float().contiguous(), b.float().contiguous()


def _distribution(make: Callable[[int, int, int, Generator], Pair]) -> Callable:
    DISTRIBUTIONS[make.__name__] = make
    return make


def _rand(*shape: int, gen: Generator) -> Tensor:
    return torch.rand(shape, generator=gen, device=gen.device)


def _randn(*shape: int, gen: Generator) -> Tensor:
    return torch.randn(shape, generator=gen, device=gen.device)


def _powers(count: int, largest: int, gen: Generator) -> Tensor:
    """Returns powers of two between 2^-largest and 2^largest."""
    exponent = torch.randint(
        -largest, largest + 1, (count,), generator=gen, device=gen.device, dtype=torch.int32
    )
    return torch.ldexp(torch.ones(count, device=gen.device), exponent)


@_distribution
def uniform_0_1(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _rand(m, k, gen=gen), _rand(k, n, gen=gen)


@_distribution
def uniform_1_1(m: int, n: int, k: int, gen: Generator) -> Pair:
    return 2 * _rand(m, k, gen=gen) - 1, 2 * _rand(k, n, gen=gen) - 1


@_distribution
def normal(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _randn(m, k, gen=gen), _randn(k, n, gen=gen)


def wide(phi: float, m: int, n: int, k: int, gen: Generator) -> Pair:
    """Returns (u - 1/2) exp(phi * normal): test matrices of the literature on split products."""
    a = (_rand(m, k, gen=gen) - 0.5) * torch.exp(phi * _randn(m, k, gen=gen))
    b = (_rand(k, n, gen=gen) - 0.5) * torch.exp(phi * _randn(k, n, gen=gen))
    return a, b


@_distribution
def wide_phi_1(m: int, n: int, k: int, gen: Generator) -> Pair:
    return wide(1, m, n, k, gen)


@_distribution
def wide_phi_4(m: int, n: int, k: int, gen: Generator) -> Pair:
    return wide(4, m, n, k, gen)


@_distribution
def outer_scaled_30(m: int, n: int, k: int, gen: Generator) -> Pair:
    a, b = normal(m, n, k, gen)
    return a * _powers(m, 30, gen)[:, None], b * _powers(n, 30, gen)


def _inner(largest: int, m: int, n: int, k: int, gen: Generator) -> Pair:
    """Returns A D and D^-1 B: the same product from operands that are non-uniform along k."""
    a, b = normal(m, n, k, gen)
    scale = _powers(k, largest, gen)
    return a * scale, b / scale[:, None]


@_distribution
def inner_scaled_10(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _inner(10, m, n, k, gen)


@_distribution
def inner_scaled_20(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _inner(20, m, n, k, gen)


@_distribution
def inner_scaled_40(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _inner(40, m, n, k, gen)


@_distribution
def softmax_rows(m: int, n: int, k: int, gen: Generator) -> Pair:
    return torch.softmax(4 * _randn(m, k, gen=gen), dim=1), _randn(k, n, gen=gen)


@_distribution
def one_sided(m: int, n: int, k: int, gen: Generator) -> Pair:
    return torch.relu(_randn(m, k, gen=gen)), torch.relu(_randn(k, n, gen=gen))


@_distribution
def student_t2(m: int, n: int, k: int, gen: Generator) -> Pair:
    def draw(rows: int, cols: int) -> Tensor:
        # Two degrees of freedom have the quantile (2u - 1) / sqrt(2u (1 - u)).
        u = _rand(rows, cols, gen=gen).clamp(1e-7, 1 - 1e-7)
        return (2 * u - 1) / torch.sqrt(2 * u * (1 - u))

    return draw(m, k), draw(k, n)


@_distribution
def pair_cancellation(m: int, n: int, k: int, gen: Generator) -> Pair:
    a, b = normal(m, n, k, gen)
    pairs = k // 2
    a[:, 1 : 2 * pairs : 2] = -a[:, 0 : 2 * pairs : 2]
    nearly_one = 1 + 2.0**-12 * _rand(pairs, n, gen=gen)
    b[1 : 2 * pairs : 2] = b[0 : 2 * pairs : 2] * nearly_one
    return a, b


@_distribution
def identity(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _randn(m, k, gen=gen), torch.eye(k, n, device=gen.device)


@_distribution
def eight_nonzeros(m: int, n: int, k: int, gen: Generator) -> Pair:
    a, b = normal(m, n, k, gen)
    chosen = torch.randint(0, k, (min(8, k), n), generator=gen, device=gen.device)
    mask = torch.zeros_like(b).scatter_(0, chosen, 1.0)
    return a, b * mask


@_distribution
def all_ones(m: int, n: int, k: int, gen: Generator) -> Pair:
    return torch.ones(m, k, device=gen.device), torch.ones(k, n, device=gen.device)


@_distribution
def small_integers(m: int, n: int, k: int, gen: Generator) -> Pair:
    bounds = {"generator": gen, "device": gen.device}
    return torch.randint(-8, 9, (m, k), **bounds), torch.randint(-8, 9, (k, n), **bounds)
