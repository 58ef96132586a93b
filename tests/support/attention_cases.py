"""Operands of one head that reach the terms of attention's error bound (docs/attention-error.md).

A case makes queries, keys and values for a depth, which all three share, and a number of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from support.attention_model import WARP, half, single
from support.crafted import CLASSES, LOWER

ROWS = 3 * WARP
Gen = np.random.Generator


@dataclass(frozen=True)
class Operands:
    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    causal: bool = False
    scale: float | None = None

    @staticmethod
    def of(q, k, v, mask=None, causal=False, scale=None) -> Operands:
        if mask is not None and mask.dtype != bool:
            mask = single(mask)
        return Operands(single(q), single(k), single(v), mask, causal, scale)

    def logits(self) -> Array:
        """Exact logits; -Inf where a key takes no part."""
        scale = self.q.shape[1] ** -0.5 if self.scale is None else self.scale
        x = self.q @ self.k.T * scale
        if self.mask is not None:
            x = x + (np.where(self.mask, 0, -np.inf) if self.mask.dtype == bool else self.mask)
        return np.where(np.tri(*x.shape, dtype=bool), x, -np.inf) if self.causal else x

    def exact(self) -> tuple[Array, Array]:
        """P V and P |V|; 0 for rows without a key."""
        x = self.logits()
        largest = x.max(1, keepdims=True)
        p = np.exp(x - np.where(largest == -np.inf, 0, largest))
        p = p / np.maximum(p.sum(1, keepdims=True), 1e-300)
        return p @ self.v, p @ np.abs(self.v)


CASES: dict[str, Callable[[Gen, int, int], Operands]] = {}


def _case(make: Callable[[Gen, int, int], Operands]) -> Callable[[Gen, int, int], Operands]:
    CASES[make.__name__] = make
    return make


def case(name: str, depth: int, keys: int, seed: int = 0) -> Operands:
    return CASES[name](np.random.default_rng(seed + depth + 1000 * keys), depth, keys)


def normal(gen: Gen, *shape: int) -> Array:
    return gen.standard_normal(shape)


def mantissas(gen: Gen, rows: int, depth: int) -> Array:
    """Numbers in [1, 2), each row of one class, so that lo's rounding errors have one sign."""
    result = np.empty((rows, depth))
    for i in range(rows):
        first, end, modulus, residue = CLASSES[i % len(CLASSES)]
        lower = first // modulus * modulus + residue
        lower = lower + modulus * gen.integers(max(1, (end - first) // modulus), size=depth)
        upper = gen.integers(1 if i // len(CLASSES) % 2 == 0 else 64, size=depth)
        result[i] = 1 + (upper * 2**LOWER + lower % 2**LOWER) * 2.0**-23
    return result


def signs(keys: int, depth: int) -> Array:
    """1 for even keys and -1 for odd ones: a key's weight that is too large, and one too small."""
    return np.where(np.arange(keys) % 2 == 0, 1.0, -1.0)[:, None] * np.ones(depth)


# --- distributions --------------------------------------------------------------------------


@_case
def plain(gen: Gen, depth: int, keys: int) -> Operands:
    return Operands.of(normal(gen, ROWS, depth), normal(gen, keys, depth), normal(gen, keys, depth))


@_case
def one_signed(gen: Gen, depth: int, keys: int) -> Operands:
    """Truncation has one sign in all steps."""
    return Operands.of(*(gen.random((rows, depth)) for rows in (ROWS, keys, keys)))


@_case
def large_logits(gen: Gen, depth: int, keys: int) -> Operands:
    """Logits from -80 to 80."""
    x = plain(gen, depth, keys)
    by = 80 / np.abs(x.logits()).max()
    return Operands.of(x.q * by, x.k, x.v, causal=True)


@_case
def huge_logits(gen: Gen, depth: int, keys: int) -> Operands:
    """From just before rows are recomputed to what would overflow float16 weights."""
    q = normal(gen, ROWS, depth) * np.exp2(np.linspace(0, 30, ROWS))[:, None]
    return Operands.of(q, 30 * normal(gen, keys, depth), normal(gen, keys, depth))


@_case
def small_scale(gen: Gen, depth: int, keys: int) -> Operands:
    x = plain(gen, depth, keys)
    return Operands.of(x.q * 2.0**40, x.k, x.v, scale=-(2.0**-40) / 3)


# --- keys -----------------------------------------------------------------------------------


@_case
def one_dominates(gen: Gen, depth: int, keys: int) -> Operands:
    x = plain(gen, depth, keys)
    x.k[gen.integers(keys)] = 4 * x.q[0]
    x.k[gen.integers(keys)] = 4 * x.q[1]
    return Operands.of(x.q, x.k, x.v)


@_case
def common_offset(gen: Gen, depth: int, keys: int) -> Operands:
    q, k = 8 + 0.1 * normal(gen, ROWS, depth), 8 + 0.1 * normal(gen, keys, depth)
    return Operands.of(q, k, signs(keys, depth))


@_case
def opposed_truncation(gen: Gen, depth: int, keys: int) -> Operands:
    """A product of 1 and many that are cut off; these are positive for even keys.

    Elements of the first keys that meet 0 keep the steps in memory's order.
    """
    q, k = np.full((ROWS, depth), 2.0**-7), np.full((keys, depth), 2.0**-12)
    q[:, 1:] *= np.linspace(0.5, 1 - 2.0**-9, ROWS)[:, None]
    q[:, 0] = k[:, 0] = 8
    k[:, 1:] *= signs(keys, depth)[:, 1:]
    q[:, 16::16], k[:8, 16::16] = 0, 8
    return Operands.of(q, k, signs(keys, depth), scale=1)


@_case
def last_bits(gen: Gen, depth: int, keys: int) -> Operands:
    """lo's errors of one sign in a key, and of any in others: tests/support/crafted.py."""
    v = signs(keys, depth) * mantissas(gen, keys, depth)
    return Operands.of(mantissas(gen, ROWS, depth), mantissas(gen, keys, depth), v)


@_case
def subnormal_key_parts(gen: Gen, depth: int, keys: int) -> Operands:
    """A large element, which meets 0, makes 2^-25 the error of the others."""
    q, k = np.full((ROWS, depth), 1.99), np.full((keys, depth), 2.0**-16)
    k += signs(keys, depth) * 2.0**-25 * (1 - 2.0**-6)
    q[:, 0], k[:, 0] = 0, 1.99 * 2.0**14
    return Operands.of(q, k, signs(keys, depth), scale=0.17)


@_case
def rising_maxima(gen: Gen, depth: int, keys: int) -> Operands:
    """Each block's largest logit is a little above those before: all weights shrink each time."""
    k = normal(gen, keys, depth) * 0.01
    k[:, 0] = np.arange(keys) * 2.0**-6
    return Operands.of(1 + 0.1 * normal(gen, ROWS, depth), k, normal(gen, keys, depth))


@_case
def key_scales(gen: Gen, depth: int, keys: int) -> Operands:
    """Blocks of keys whose sizes differ by 2^60; the largest ones' factors are just allowed."""
    by = np.exp2(np.repeat(np.array([0.0, -60, 3, -30, 8, -57]), 64))
    k = normal(gen, keys, depth) * np.resize(by, keys)[:, None]
    return Operands.of(normal(gen, ROWS, depth), k, normal(gen, keys, depth))


# --- masks ----------------------------------------------------------------------------------


@_case
def all_but_one(gen: Gen, depth: int, keys: int) -> Operands:
    x = plain(gen, depth, keys)
    mask = np.zeros((ROWS, keys), bool)
    mask[np.arange(ROWS - 1), gen.integers(keys, size=ROWS - 1)] = True  # none in the last row
    return Operands.of(x.q, x.k, x.v, mask)


@_case
def mask_with_offset(gen: Gen, depth: int, keys: int) -> Operands:
    x = plain(gen, depth, keys)
    mask = normal(gen, ROWS, keys) + np.exp2(np.linspace(-3, 14, ROWS))[:, None]
    return Operands.of(x.q, x.k, signs(keys, depth), mask)


@_case
def least_float_as_mask(gen: Gen, depth: int, keys: int) -> Operands:
    x = plain(gen, depth, keys)
    mask = np.where(gen.random((ROWS, keys)) < 0.3, float(np.finfo(np.float32).min), 0)
    mask[3] = mask.min()
    return Operands.of(x.q, x.k, x.v, mask)


@_case
def garbage_in_masked_keys(gen: Gen, depth: int, keys: int) -> Operands:
    """Keys that take no part are up to 2^40 times as large."""
    x = plain(gen, depth, keys)
    mask = gen.random((ROWS, keys)) < 0.5
    mask[:, keys // 2 :] = False
    x.k[keys // 2 :] *= np.exp2(np.linspace(0, 40, keys - keys // 2))[:, None]
    return Operands.of(x.q, x.k, x.v, mask)


# --- values ---------------------------------------------------------------------------------


@_case
def one_huge_value(gen: Gen, depth: int, keys: int) -> Operands:
    x = plain(gen, depth, keys)
    x.v[keys // 3, depth // 2] = 2.0**60
    return Operands.of(x.q, x.k, x.v)


@_case
def value_scales(gen: Gen, depth: int, keys: int) -> Operands:
    """Blocks of values whose sizes differ by 2^120; a row sees those of one size."""
    part = np.arange(keys) // 128
    v = normal(gen, keys, depth) * np.exp2(np.array([0, 60, -60])[part % 3])[:, None]
    mask = part % 3 == np.arange(ROWS)[:, None] % min(3, part[-1] + 1)
    return Operands.of(normal(gen, ROWS, depth), normal(gen, keys, depth), v, mask)


@_case
def huge_values_ahead(gen: Gen, depth: int, keys: int) -> Operands:
    """Values that causality keeps from all rows, in the same block, are 2^20 times as large."""
    x = plain(gen, depth, keys)
    x.v[ROWS:] *= 2.0**20
    return Operands.of(x.q, x.k, x.v, causal=True)


@_case
def subnormal_value_parts(gen: Gen, depth: int, keys: int) -> Operands:
    """A column's large element makes all other columns of its block lose just below 2^-25."""
    v = np.full((keys, depth), 2.0**-25 * (1 - 2.0**-10))
    v[:, 0] = 2.0**14
    return Operands.of(normal(gen, ROWS, depth), normal(gen, keys, depth), v)


@_case
def vanishing_weights(gen: Gen, depth: int, keys: int) -> Operands:
    """One key has the weight 1, the others just less than float16's planes hold: 2^-39."""
    k = np.zeros((keys, depth))
    k[0, 0] = 1
    q = np.zeros((ROWS, depth))
    q[:, 0] = math.log(2) * np.linspace(38.9, 39.2, ROWS)
    v = np.ones((keys, depth))
    v[0] = 0
    return Operands.of(q, k, v, scale=1)


@_case
def subnormals(gen: Gen, depth: int, keys: int) -> Operands:
    """Subnormal values; keys that are far below 1 and queries that are far above it."""
    q, k = normal(gen, ROWS, depth) * 2.0**100, normal(gen, keys, depth) * 2.0**-100
    return Operands.of(q, k, normal(gen, keys, depth) * 2.0**-135)


@_case
def subnormal_keys(gen: Gen, depth: int, keys: int) -> Operands:
    q, k = normal(gen, ROWS, depth) * 2.0**120, normal(gen, keys, depth) * 2.0**-128
    return Operands.of(q, k, half(normal(gen, keys, depth)), scale=2.0**8)


@_case
def truncated_values(gen: Gen, depth: int, keys: int) -> Operands:
    """In each window one product of 1 and others that are cut off."""
    k = np.zeros((keys, depth))
    v = np.full((keys, depth), 2.0**-24 * (1 - 2.0**-9)) * np.linspace(0.4, 4, depth)
    v[::64] = 1
    return Operands.of(normal(gen, ROWS, depth), k, v)


@_case
def lost_promotions(gen: Gen, depth: int, keys: int) -> Operands:
    """The first window has nearly all of the sum; the others each add less than half a unit."""
    v = np.full((keys, depth), 2.0**-24 * (1 - 2.0**-9)) * np.linspace(0.25, 1, depth)
    v[:64] = 1
    return Operands.of(normal(gen, ROWS, depth), np.zeros((keys, depth)), v)
