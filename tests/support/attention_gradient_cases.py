"""Operands that reach the terms of the bounds of attention's gradients (docs/attention-error.md).

Heads of queries share one head of keys. Each case of support/attention_cases.py is one here as
well, with a gradient dO of some kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from support import attention_cases
from support.attention_cases import Gen, mantissas, normal, signs
from support.attention_model import single

ROWS = 130  # queries: two whole blocks, and two rows


@dataclass(frozen=True)
class Exact:
    """A gradient in float64 and its magnitude (benchmarks/attention_gradients.py)."""

    values: Array
    size: Array


@dataclass(frozen=True)
class GradientOperands:
    g: Array  # [H, L, Dv]
    q: Array  # [H, L, D]
    k: Array  # [S, D]
    v: Array  # [S, Dv]
    mask: Array | None = None  # [H, L, S]
    causal: bool = False
    scale: float | None = None

    @staticmethod
    def of(g, q, k, v, mask=None, causal=False, scale=None) -> GradientOperands:
        g, q = (x if x.ndim == 3 else x[None] for x in (g, q))
        if mask is not None:
            mask = mask if mask.ndim == 3 else mask[None]
            mask = mask if mask.dtype == bool else single(mask)
        return GradientOperands(*map(single, (g, q, k, v)), mask, causal, scale)

    def logits(self) -> Array:
        """Exact logits; -Inf where a key takes no part."""
        heads = range(len(self.q))
        masks = self.mask if self.mask is not None else [None] * len(self.q)
        rest = self.causal, self.scale
        of_heads = [
            attention_cases.Operands(self.q[h], self.k, self.v, masks[h], *rest) for h in heads
        ]
        return np.stack([x.logits() for x in of_heads])

    def exact(self) -> dict[str, Exact]:
        """The gradients "q", "k" and "v", and "m" of an additive mask."""
        x = self.logits()
        largest = x.max(2, keepdims=True)
        p = np.exp(x - np.where(largest == -np.inf, 0, largest))
        p = p / np.maximum(p.sum(2, keepdims=True), 1e-300)
        scale = self.q.shape[2] ** -0.5 if self.scale is None else self.scale

        def all_of(g: Array, q: Array, k: Array, v: Array, scale: float, sign: int) -> list[Array]:
            ds = p * (g @ v.T + sign * (g * (p @ v)).sum(2, keepdims=True))
            return [scale * ds @ k, (scale * ds.mT @ q).sum(0), (p.mT @ g).sum(0), ds]

        exact = all_of(self.g, self.q, self.k, self.v, scale, -1)
        sizes = all_of(*map(np.abs, (self.g, self.q, self.k, self.v)), abs(scale), 1)
        return {
            name: Exact(*both) for name, *both in zip(self.gradients(), exact, sizes, strict=False)
        }

    def gradients(self) -> str:
        return "qkv" if self.mask is None or self.mask.dtype == bool else "qkvm"


CASES: dict[str, Callable[[Gen, int, int], GradientOperands]] = {}


def _case(make: Callable[[Gen, int, int], GradientOperands]):
    CASES[make.__name__] = make
    return make


def case(name: str, depth: int, keys: int, seed: int = 0) -> GradientOperands:
    return CASES[name](np.random.default_rng(seed + depth + 1000 * keys), depth, keys)


# --- the output's cases ---------------------------------------------------------------------


def _rows(x: Array, rows: int) -> Array:
    return x[np.arange(rows) % len(x)]


def _by_rows(gen: Gen, depth: int) -> Array:
    """Rows of dO from 2^-58 to 1."""
    return normal(gen, ROWS, depth) * np.exp2(-gen.integers(0, 59, ROWS))[:, None]


KINDS: list[Callable[[Gen, int], Array]] = [
    lambda gen, depth: normal(gen, ROWS, depth),
    lambda gen, depth: gen.random((ROWS, depth)),
    _by_rows,
]


def _from_output(name: str, kind: int) -> Callable[[Gen, int, int], GradientOperands]:
    def make(gen: Gen, depth: int, keys: int) -> GradientOperands:
        x = attention_cases.CASES[name](gen, depth, keys)
        mask = None if x.mask is None else _rows(x.mask, ROWS)
        g = KINDS[kind](gen, depth)
        return GradientOperands.of(g, _rows(x.q, ROWS), x.k, x.v, mask, x.causal, x.scale)

    return make


for _i, _name in enumerate(attention_cases.CASES):
    CASES[_name] = _from_output(_name, _i % len(KINDS))


# --- dO and delta ---------------------------------------------------------------------------


def plain(gen: Gen, depth: int, keys: int, heads: int = 1) -> GradientOperands:
    g, q = (normal(gen, heads, ROWS, depth) for _ in range(2))
    return GradientOperands.of(g, q, normal(gen, keys, depth), normal(gen, keys, depth))


@_case
def shared_keys(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Three heads: windows of dK and dV of all of them."""
    return plain(gen, depth, keys, 3)


@_case
def shared_keys_behind_masks(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = plain(gen, depth, keys, 2)
    mask = normal(gen, 2, ROWS, keys)
    mask[:, 5] = -np.inf
    mask[:, :, keys // 2] = -np.inf
    mask[1, 70:, : keys // 3] = -np.inf
    return GradientOperands.of(x.g, x.q, x.k, x.v, mask)


@_case
def shared_keys_of_causal_heads(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = plain(gen, depth, keys, 2)
    return GradientOperands.of(x.g, x.q, x.k, x.v, causal=True)


@_case
def one_signed_gradient(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Truncation has one sign in all steps of dP, dV, dK and dQ."""
    g, q, k, v = (gen.random((rows, depth)) for rows in (ROWS, ROWS, keys, keys))
    return GradientOperands.of(g, q, k, v)


@_case
def rows_of_all_sizes(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Rows of dO from 2^-160 of their block's largest; those below 2^-60 share a scale."""
    x = plain(gen, depth, keys)
    by = np.exp2(50 - gen.permutation(np.linspace(0, 160, ROWS)))[:, None]
    return GradientOperands.of(x.g * by, x.q, x.k, x.v)


@_case
def small_rows_alone(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Each key is seen by rows of dO of one size only."""
    x = plain(gen, depth, keys)
    size = np.arange(ROWS) % 4
    by = np.exp2(-15.0 * size)[:, None]
    mask = size[:, None] == np.arange(keys) % 4
    return GradientOperands.of(x.g * by, x.q, x.k, x.v, mask)


@_case
def one_huge_gradient(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = plain(gen, depth, keys)
    x.g[0, 3, depth // 2] = 2.0**50
    return x


@_case
def subnormal_gradient_parts(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """A large element of each row, which meets 0, makes all others lose just below 2^-25."""
    x = plain(gen, depth, keys)
    g = np.full((ROWS, depth), 2.0**-25 * (1 - 2.0**-10))
    g[:, 0], x.v[:, 0] = 2.0**14, 0
    return GradientOperands.of(g, x.q, np.zeros_like(x.k), x.v)


@_case
def equal_values(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """dP and delta are equal: dS is made of errors only."""
    x = plain(gen, depth, keys)
    return GradientOperands.of(
        gen.random(x.g.shape), x.q, x.k, np.tile(gen.random(depth), (keys, 1))
    )


@_case
def large_delta(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Values with a common offset of 2^12."""
    x = plain(gen, depth, keys)
    return GradientOperands.of(x.g, x.q, x.k, x.v + 2.0**12)


@_case
def last_bits_of_all(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """lo's errors of one sign in a row: tests/support/crafted.py."""
    g, q = mantissas(gen, ROWS, depth), mantissas(gen, ROWS, depth)
    return GradientOperands.of(g, q, mantissas(gen, keys, depth), mantissas(gen, keys, depth))


# --- weights --------------------------------------------------------------------------------


@_case
def five_keys(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Five equal weights: log2 of their sum has the coarsest last bit, of one sign in all rows."""
    mask = np.zeros((ROWS, keys), bool)
    mask[:, :5] = True
    g, q = gen.random((ROWS, depth)), np.zeros((ROWS, depth))
    return GradientOperands.of(g, q, normal(gen, keys, depth), signs(keys, depth), mask)


@_case
def unseen_keys(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Weights of half of the keys are from e^-70 to e^-20 in all rows."""
    x = plain(gen, depth, keys)
    x.q[..., 0], x.k[:, 0] = 1, 0
    x.k[: keys // 2, 0] = -np.linspace(20, 70, keys // 2)
    return GradientOperands.of(x.g, x.q, x.k, x.v, scale=1)


def _one_dominates(depth: int, keys: int) -> tuple[Array, ...]:
    """Key 0 has the weight 1, and others just less than planes of dS hold: 2^-39."""
    g, q = np.zeros((ROWS, depth)), np.zeros((ROWS, depth))
    k, v = np.zeros((keys, depth)), np.zeros((keys, depth))
    g[:, 0], v[:, 0], v[0, 0] = 1.01, -1.01, 1.01
    q[:, 0], k[1:, 0] = math.log(2) * np.linspace(39.05, 39.1, ROWS), -1
    return g, q, k, v


@_case
def weights_and_values_that_vanish(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Weights of 2^-112 to 2^-120 and rows of V that are 2^-30 of the largest, at large scales."""
    g, q, k, v = _one_dominates(depth, keys)
    q[:, 0] = math.log(2) * np.linspace(112, 120, ROWS)
    v[:], v[0, 1], v[1:, 0] = 0, 1.01, 2.0**-30
    return GradientOperands.of(g * 2.0**100, q * 2.0**8, k * 2.0**-8, v, scale=1)


@_case
def vanishing_weights_of_queries(gen: Gen, depth: int, keys: int) -> GradientOperands:
    return GradientOperands.of(*_one_dominates(depth, keys), scale=1)


def _with_partners(g: Array, q: Array, k: Array, v: Array) -> GradientOperands:
    """Keys 1 to 3 have the weight 1 in a row whose query is 0, so that they aren't enlarged."""
    mask = np.zeros((ROWS, len(k)))
    for key in range(1, min(4, len(k))):
        for row in (key, key + 64):
            mask[row], mask[row, key], q[row] = -np.inf, 0, 0
    return GradientOperands.of(g, q, k, v, mask, scale=1)


@_case
def vanishing_weights_of_keys(gen: Gen, depth: int, keys: int) -> GradientOperands:
    return _with_partners(*_one_dominates(depth, keys))


@_case
def small_values_beside_a_large_one(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """dS of a key is 2^-10 of its block's bound, and delta is 0."""
    g, q, k, v = _one_dominates(depth, keys)
    v[:], v[0, 1], v[1:, 0] = 0, 1.01, 2.0**-10
    return _with_partners(g, q * 30 / 39, k, v)


@_case
def tiny_weights_and_large_rows(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """A key's largest weights meet small rows of dO, and its small ones large rows."""
    x = plain(gen, depth, keys)
    by = np.exp2(np.where(np.arange(ROWS) % 2 == 0, -20.0, 0))
    mask = np.where(np.arange(ROWS) % 2 == 0, 0, -15.0)[:, None] * (np.arange(keys) % 3 == 0)
    return GradientOperands.of(x.g * by[:, None], x.q, x.k, x.v, mask)


@_case
def large_delta_of_a_small_row(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """One row of a block, with a small dO and a large delta, has the largest weights of most keys.

    These weights are tiny, and enlarged.
    """
    mask, g = np.full((ROWS, keys), -30.0), np.ones((ROWS, depth))
    small = np.arange(ROWS) % 64 == 1
    mask[:, -1], mask[small], g[small] = 0, -14, 2.0**-4
    mask[small, 0] = 0
    v = np.full((keys, depth), 2.0**-6) * gen.random((keys, depth))
    v[0] = 2.0**6
    q = normal(gen, ROWS, depth)
    return GradientOperands.of(g, q, 0.1 * normal(gen, keys, depth), v, mask)


@_case
def exponents_with_offset(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Logits with an offset of up to 2^12, in float32's last bits of the logsumexp."""
    x = plain(gen, depth, keys)
    x.q[..., 0], x.k[:, 0] = np.linspace(0, 2.0**12, ROWS), 1
    return GradientOperands.of(gen.random(x.g.shape), x.q, x.k, x.v, scale=1)


# --- sums -----------------------------------------------------------------------------------


@_case
def truncated_sums(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """In each window of dV one product of 1 and others that are cut off."""
    g = np.full((ROWS, depth), 2.0**-24 * (1 - 2.0**-9)) * np.linspace(0.4, 4, depth)
    g[::64] = 1
    k = np.zeros((keys, depth))
    return GradientOperands.of(g, normal(gen, ROWS, depth), k, normal(gen, keys, depth))


@_case
def lost_windows(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """The first window has nearly all of the sum; the others each add less than half a unit."""
    g = np.full((4, ROWS, depth), 2.0**-24 * (1 - 2.0**-9)) * np.linspace(0.1, 0.3, depth)
    g[0, :64] = 1
    q = normal(gen, 4, ROWS, depth)
    return GradientOperands.of(g, q, np.zeros((keys, depth)), normal(gen, keys, depth))


# --- values ---------------------------------------------------------------------------------


@_case
def values_of_all_sizes(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Rows of V down to 2^-100 of their block's largest: keys have bounds of their own."""
    x = plain(gen, depth, keys)
    by = np.exp2(-gen.permutation(np.linspace(0, 100, keys)))[:, None]
    return GradientOperands.of(x.g, x.q, x.k, x.v * by)


@_case
def values_without_delta(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Rows of V of many sizes that dO meets where the output is 0: delta is 0."""
    x = plain(gen, depth, keys)
    by = np.exp2(-np.resize(np.arange(0, 100, 3.0), keys // 2 + 1).repeat(2)[:keys])[:, None]
    v = x.v * by
    v[1::2] = -v[: keys // 2 * 2 : 2]
    k = np.zeros((keys, depth))
    return GradientOperands.of(x.g, x.q, k, v)


@_case
def huge_values_behind_a_mask(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Values of keys that take no part are 2^40 times as large."""
    x = plain(gen, depth, keys)
    mask = np.tile(np.arange(keys) % 2 == 0, (ROWS, 1))
    x.v[1::2] *= 2.0**40
    return GradientOperands.of(x.g, x.q, x.k, x.v, mask)


@_case
def huge_keys_behind_a_mask(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = huge_values_behind_a_mask(gen, depth, keys)
    x.k[1::2] *= 2.0**20
    x.v[1::2] *= 2.0**-40
    return x


@_case
def one_huge_value_element(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = plain(gen, depth, keys)
    x.v[keys // 3, depth // 2] = 2.0**20
    return x


@_case
def queries_of_all_sizes(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """Rows of Q and of K from 2^-40 of their block's largest."""
    x = plain(gen, depth, keys)
    of_q, of_k = (np.exp2(-gen.integers(0, 41, n))[:, None] for n in (ROWS, keys))
    return GradientOperands.of(x.g, x.q * of_q, x.k * of_k, x.v)


@_case
def tiny_gradients(gen: Gen, depth: int, keys: int) -> GradientOperands:
    """dS near the least bound that planes are scaled by, 2^-100."""
    x = plain(gen, depth, keys)
    by = np.exp2(-np.linspace(80, 120, ROWS))[:, None]
    return GradientOperands.of(x.g * by, x.q, x.k, x.v)


@_case
def subnormal_gradients(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = plain(gen, depth, keys)
    return GradientOperands.of(x.g * 2.0**-140, x.q, x.k, x.v)


@_case
def large_gradients(gen: Gen, depth: int, keys: int) -> GradientOperands:
    x = plain(gen, depth, keys)
    return GradientOperands.of(x.g * 2.0**90, x.q * 2.0**20, x.k * 2.0**-20, x.v)
