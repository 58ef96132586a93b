"""Data that people multiply: the kinds for which ``auto`` promises not to be slower than torch.

Each kind has a bar, the least speed relative to torch. A row of A, a column of B or all of k may
have a range of magnitudes that no 16-bit format holds; the kernels must handle that at the bar's
speed. USERS are kinds without a bar, which ``users`` has beside those; most hold under 24 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from benchmarks.distributions import DISTRIBUTIONS, Pair, generator, wide
from benchmarks.errors import GOOD_UNITS
from benchmarks.problems import Problem

Make = Callable[[int, int, int, Generator], Pair]
FEATURE_UNITS = 16.0  # good where one feature is in other units than the others


@dataclass(frozen=True)
class Kind:
    """A kind of data for A [m, k] and B [k, n], and the requirements for its products.

    bar: the least speed relative to torch. good: the largest error in units, or twice torch's.
    """

    make: Make
    bar: float
    good: float = GOOD_UNITS


KINDS: dict[str, Kind] = {}
USERS: dict[str, Make] = {}
NEVER_SLOWER, WIDE, NO_BAR = 0.98, 0.95, 0.0


def _kind(bar: float = NEVER_SLOWER, good: float = GOOD_UNITS) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        KINDS[make.__name__] = Kind(make, bar, good)
        return make

    return register


def _user(make: Make) -> Make:
    USERS[make.__name__] = make
    return make


def _take(*names: str, bar: float = NEVER_SLOWER) -> None:
    """Takes a distribution of ``accuracy``."""
    for name in names:
        KINDS[name] = Kind(DISTRIBUTIONS[name], bar)


def _normal(rows: int, cols: int, gen: Generator) -> Tensor:
    return torch.randn(rows, cols, generator=gen, device=gen.device)


def _uniform(rows: int, cols: int, gen: Generator) -> Tensor:
    return torch.rand(rows, cols, generator=gen, device=gen.device)


_take("normal", "uniform_1_1", "small_integers")


@_kind()
def bf16_values(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _normal(m, k, gen).bfloat16(), _normal(k, n, gen).bfloat16()


@_kind()
def zeros(m: int, n: int, k: int, gen: Generator) -> Pair:
    return torch.zeros(m, k, device=gen.device), torch.zeros(k, n, device=gen.device)


_take("softmax_rows")


@_kind()
def causal_softmax(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes attention weights to earlier positions: a triangle of exact zeros."""
    row, col = torch.arange(m, device=gen.device), torch.arange(k, device=gen.device)
    later = col > (row * k // m)[:, None]
    logits = (4 * _normal(m, k, gen)).masked_fill(later, float("-inf"))
    return torch.softmax(logits, dim=1), _normal(k, n, gen)


def _kernel_matrix(dims: int, m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes exp(-4 d^2) of points in ``dims`` dimensions, times values at them."""
    x, y = _normal(m, dims, gen), _normal(k, dims, gen)
    squared = sum((x[:, i, None] - y[:, i]).square() for i in range(dims))
    return torch.exp(-4 * squared), _normal(k, n, gen)


@_kind()
def gaussian_kernel_2(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _kernel_matrix(2, m, n, k, gen)


@_kind()
def gaussian_kernel_3(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _kernel_matrix(3, m, n, k, gen)


_take("wide_phi_1")


@_kind()
def wide_phi_2(m: int, n: int, k: int, gen: Generator) -> Pair:
    return wide(2, m, n, k, gen)


@_kind(WIDE)
def wide_phi_3(m: int, n: int, k: int, gen: Generator) -> Pair:
    return wide(3, m, n, k, gen)


_take("wide_phi_4", bar=WIDE)


@_kind(WIDE)
def lognormal_4(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes e^{4 normal}, such as prices and counts: of one sign, so that nothing cancels."""
    return torch.exp(4 * _normal(m, k, gen)), torch.exp(4 * _normal(k, n, gen))


_take("student_t2", "one_sided")


@_kind(good=FEATURE_UNITS)
def one_feature(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes one column of A a thousand times larger than the others."""
    a, b = _uniform(m, k, gen), _uniform(k, n, gen)
    a[:, -1] *= 1000
    return a, b


@_kind()
def squared_gradients(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _normal(m, k, gen).square(), _normal(k, n, gen).square()


@_kind()
def sparse_90(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes nine in ten elements of A zero."""
    return _normal(m, k, gen) * (_uniform(m, k, gen) < 0.1), _normal(k, n, gen)


@_kind()
def identity_like(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _normal(m, k, gen), torch.eye(k, n, device=gen.device) + 1e-4 * _normal(k, n, gen)


@_kind()
def banded(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes A zero except for 17 places along its diagonal."""
    row, col = torch.arange(m, device=gen.device), torch.arange(k, device=gen.device)
    near = (col - (row * k // m)[:, None]).abs() <= 8
    return _normal(m, k, gen) * near, _normal(k, n, gen)


_take("inner_scaled_10", bar=WIDE)
_take("inner_scaled_20", "inner_scaled_40", bar=NO_BAR)


def _with(value: float, rows: slice, m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes normal numbers, with ``value`` at one place of some rows."""
    a, b = _normal(m, k, gen), _normal(k, n, gen)
    a[rows, k // 3] = value
    return a, b


@_kind()
def one_nan(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _with(float("nan"), slice(m // 2, m // 2 + 1), m, n, k, gen)


@_kind()
def nan_rows(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _with(float("nan"), slice(0, None, 2), m, n, k, gen)


@_kind()
def inf_row(m: int, n: int, k: int, gen: Generator) -> Pair:
    return _with(float("inf"), slice(m // 2, m // 2 + 1), m, n, k, gen)


@_user
def bf16_activations(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes a bfloat16 model's output for a float32 layer: float32 A with 8 bits of mantissa."""
    return _normal(m, k, gen).bfloat16(), _normal(k, n, gen)


@_user
def one_hot(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes rows of A that each pick a row of B."""
    chosen = torch.randint(0, k, (m, 1), generator=gen, device=gen.device)
    return torch.zeros(m, k, device=gen.device).scatter_(1, chosen, 1.0), _normal(k, n, gen)


@_user
def adjacency(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes a graph's 0/1 matrix with about 16 neighbours per row."""
    return _uniform(m, k, gen) < 16 / k, _normal(k, n, gen)


@_user
def uint8_values(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes pixels, 0 to 255."""
    bounds = {"generator": gen, "device": gen.device, "dtype": torch.uint8}
    return torch.randint(0, 256, (m, k), **bounds), torch.randint(0, 256, (k, n), **bounds)


@_user
def tanh_outputs(m: int, n: int, k: int, gen: Generator) -> Pair:
    """Makes a hidden layer's activations."""
    return torch.tanh(_normal(m, k, gen)), _normal(k, n, gen)


def matrices(name: str, problem: Problem, device: torch.device, seed: int) -> Pair:
    """Returns A and B of ``problem``, [m, k] and [k, n] or batches of them, float32."""
    gen = generator(seed, device)
    sizes = problem.m, problem.n, problem.k
    make = KINDS[name].make if name in KINDS else USERS[name]
    pairs = [make(*sizes, gen) for _ in range(problem.batch)]
    if problem.gram:
        pairs = [(a, a.mT) for a, _ in pairs]
    a, b = (torch.stack([x.float() for x in side]) for side in zip(*pairs, strict=True))
    return (a, b) if problem.batch > 1 else (a[0], b[0])
