"""The attention kernel of csrc/attention for one head, on the CPU, in float64.

Numbers are float64 arrays whose values are float32's or float16's; ``single`` rounds. The tensor
cores are those of torch_sgemm/measure/tensor_cores.py. Only ex2.approx isn't known bit by
bit: ``Kernel.exp2`` is correctly rounded and then moved by as many units of the last place as
``Kernel.moved`` says, at most the 2 that the PTX ISA allows (9.1, section 9.7.3.21).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from support import tensor_core

TOP = 14  # the largest element of a scaled row, or block, is in [2^14, 2^15)
MOST_SHRINKING = 2.0**-40
MOST_MASKED = 16.0
GROUP, CHAINS = 32, 4  # keys of a sum, and sums of a dot product, of recomputed rows
WARP = 16  # rows


def single(x: Array) -> Array:
    """Rounds to the nearest float32."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float64)


def half(x: Array) -> Array:
    """Rounds to the nearest float16."""
    return x.astype(np.float16).astype(np.float64)


LOG2E, LN2 = (float(single(x)) for x in (math.log2(math.e), math.log(2)))


# --- ex2.approx: how far off, in units of the last place ------------------------------------


def random_units(y: Array) -> Array:
    return np.random.default_rng(len(y)).integers(-2, 3, y.shape)


def largest_units(y: Array) -> Array:
    return np.full(y.shape, 2)


def against_distance(y: Array) -> Array:
    """Keys far from the row's largest get too much, and near ones too little."""
    return np.where(y < -0.5, 2, -2)


@dataclass(frozen=True)
class Kernel:
    """What the kernel does. Mutation tests spoil one field at a time."""

    moved: Callable[[Array], Array] = random_units
    most_units: float = 1.0  # factor of what ``moved`` returns
    log_units: float = 0.0  # units of the last place that log2f and logf are off by
    window: int = 64  # keys that one accumulator of P V adds up
    keys: int | None = None  # of a block; None: 128 up to depth 64, else 64
    planes: frozenset[str] = frozenset("qkpv")  # operands that have a lo plane
    corrections: frozenset[str] = frozenset(("hi lo", "lo hi"))
    corrections_first: bool = True
    large_steps_last: bool = True  # of hi hi of Q K^T
    regains_truncation: bool = True  # of logits, on average
    fused: bool = True  # s c + b in one rounding
    weight_scale: float = 2.0**14
    most_factor: float = 2.0**-16  # of sums, beside the largest logit
    most_logit: float = 2.0**21
    guards_values: bool = True
    rescales_sum: bool = True  # l by alpha
    rescales_output: bool = True  # O by alpha
    follows_value_scale: bool = True

    def exp2(self, y: Array) -> Array:
        y = np.where(np.abs(y) < 2.0**-126, 0, y)
        exact = single(np.exp2(y))
        last = np.exp2(np.frexp(exact)[1] - 24)
        moved = exact + np.where(y == 0, 0, np.rint(self.moved(y) * self.most_units)) * last
        return np.where(exact < 2.0**-126, 0, moved)

    def log(self, exact: Array) -> Array:
        """Returns the result of log2f, or of logf, for an ``exact`` logarithm."""
        rounded = single(exact)
        return rounded + self.log_units * np.exp2(np.frexp(rounded)[1] - 24)

    def keys_of_block(self, depth: int) -> int:
        return self.keys or (128 if depth <= 64 else 64)

    def factor_of_logits(self, depth: int) -> float:
        regained = 0.4 + 0.28 * math.ceil(depth / 16)
        return 1 + regained * self.regains_truncation * 2.0**-24

    def order_of_steps(self, k: Array) -> list[int]:
        """The steps of 16 along the depth; those with large elements in 8 keys go last."""
        steps = range(math.ceil(k.shape[1] / 16))
        if not self.large_steps_last:
            return list(steps)
        most = [np.abs(k[:8, 16 * i : 16 * i + 16]).max() for i in steps]
        bits = np.array(most, np.float32).view(np.int32)
        return sorted(steps, key=lambda i: bool(bits[i] >= max(0, bits.max() - (3 << 23))))


# --- tensor cores ---------------------------------------------------------------------------


def multiplied(total: Array, x: Array, y: Array, steps: Sequence[int] | None = None) -> Array:
    """Returns total + x y for x [m, k] and y [n, k], in steps of 16 of k."""
    count = math.ceil(x.shape[1] / 16)
    return tensor_core.multiplied(total, x, y, range(count) if steps is None else steps)


def products(x: Planes, y: Planes, kernel: Kernel, steps: Sequence[int] | None = None) -> Array:
    """Returns x y of planes [m, k] and [n, k]: the corrections, 16 of k at a time, then hi hi."""
    total = np.zeros((len(x.hi), len(y.hi)))
    if not kernel.corrections_first:
        total = multiplied(total, x.hi, y.hi, steps)
    for q in range(0, x.hi.shape[1], 16):
        part = np.s_[:, q : q + 16]
        if "hi lo" in kernel.corrections:
            total = multiplied(total, x.hi[part], y.lo[part])
        if "lo hi" in kernel.corrections:
            total = multiplied(total, x.lo[part], y.hi[part])
    return multiplied(total, x.hi, y.hi, steps) if kernel.corrections_first else total


# --- planes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planes:
    hi: Array
    lo: Array

    @staticmethod
    def of(x: Array, has_lo: bool) -> Planes:
        hi = half(x)
        return Planes(hi, half(x - hi) * has_lo)

    def t(self) -> Planes:
        return Planes(self.hi.T, self.lo.T)

    def part(self, index: slice) -> Planes:
        return Planes(self.hi[:, index], self.lo[:, index])


def power_of_scale(largest: Array) -> Array:
    """The power of two that a row, or a block, with this largest magnitude is divided by."""
    exponent = np.where(largest == 0, -200, np.frexp(largest)[1] - 1)
    return np.exp2(np.maximum(exponent, TOP - 126) - TOP)


def split_block(x: Array, has_lo: bool) -> tuple[Planes, float]:
    scale = float(power_of_scale(np.abs(x).max()))
    return Planes.of(single(x / scale), has_lo), scale


# --- the kernel -----------------------------------------------------------------------------


@dataclass
class _Rows:
    """The state of the online softmax and of the output."""

    extreme: Array  # without a mask the negative of the largest c s, else the largest x
    lanes: Array  # [rows, 4]: each lane's part of the weights' sum
    out: Array
    unit: float = 0.0
    top: float = 0.0


def _sum_of_lanes(weights: Array) -> Array:
    """Each lane's sum of a block: neighbours apart, then together."""
    eights = weights.reshape(len(weights), -1, 4, 2)
    sums = np.zeros((len(weights), 4, 2))
    for i in range(eights.shape[1]):
        sums = single(sums + eights[:, i])
    return single(sums[..., 0] + sums[..., 1])


def _weigh(rows: _Rows, s: Array, c: Array, mask: Array | None, present: Array, kernel: Kernel):
    """Turns a block's sums into weights; returns these and the factor of the blocks before."""
    c = c[:, None]
    if mask is None:
        x = np.where(present, s, -np.inf)
        add = np.minimum(rows.extreme, single(-x.max(1) * c[:, 0]))
        alpha = kernel.exp2(single(add - rows.extreme))
        y = single((x * c if kernel.fused else single(x * c)) + add[:, None])
        rows.extreme = add
    else:
        x = np.where(present, single(s * c + mask), -np.inf)
        largest = np.maximum(rows.extreme, x.max(1))
        add = np.where(largest == -np.inf, 0, -largest)
        alpha = kernel.exp2(single(single(rows.extreme + add) * LOG2E))
        y = single(single(x + add[:, None]) * LOG2E)
        rows.extreme = largest
    return kernel.exp2(y) * kernel.weight_scale, alpha


def _accumulate(rows: _Rows, weights: Array, values: Planes, scale: float, alpha: Array, kernel):
    rows.top = max(rows.top, scale)
    unit = max(scale, rows.top * MOST_SHRINKING)
    ratio = single(rows.unit / unit) if kernel.follows_value_scale else 1
    factor, of_new = single(alpha * ratio), scale / unit
    rows.unit = unit
    p = Planes.of(weights, "p" in kernel.planes)
    for first in range(0, weights.shape[1], kernel.window):
        window = slice(first, first + kernel.window)
        sums = single(products(p.part(window), values.part(window), kernel) * of_new)
        rows.out = single(rows.out * (factor[:, None] if first == 0 else 1) + sums)


@dataclass(frozen=True)
class Result:
    out: Array  # [L, Dv], float32's values
    recomputed: Array  # [L]
    logsumexp: Array  # [L]; 0 for a row without keys


def attend(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
    kernel: Kernel = Kernel(),
) -> Result:
    """Attention of q [L, D], k [S, D] and v [S, Dv]; ``mask`` [L, S] is bool or float32."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scale = float(single(q.shape[1] ** -0.5 if scale is None else scale))
    rows, keys = len(q), len(k)
    step = kernel.keys_of_block(max(q.shape[1], v.shape[1]))
    present = np.ones((rows, keys), bool) if not causal else np.tri(rows, keys, dtype=bool)
    if mask is not None:
        mask = np.where(mask, 0, -np.inf) if mask.dtype == bool else np.asarray(mask, np.float64)
    padded = math.ceil(keys / step) * step
    extend = ((0, 0), (0, padded - keys))
    present = np.pad(present, extend)
    mask = None if mask is None else np.pad(mask, extend)
    k, v = (np.pad(x, extend[::-1]) for x in (k, v))

    powers = power_of_scale(np.abs(q).max(1))
    queries = Planes.of(single(math.copysign(1, scale) * q / powers[:, None]), "q" in kernel.planes)
    log2e = math.log2(math.e) if mask is None else 1
    factor = float(single(abs(scale) * log2e * kernel.factor_of_logits(q.shape[1])))
    start = np.inf if mask is None else -np.inf
    state = _Rows(np.full(rows, start), np.zeros((rows, 4)), np.zeros((rows, v.shape[1])))
    recomputed = np.zeros(rows, bool)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for first in range(0, padded, step):
            block = slice(first, first + step)
            if not present[:, block].any():
                break  # blocks behind the last query
            planes, of_keys = split_block(k[block], "k" in kernel.planes)
            values, of_values = split_block(v[block], "v" in kernel.planes)
            c = np.maximum(single(factor * (powers * of_keys)), 2.0**-126)
            s = products(queries, planes, kernel, kernel.order_of_steps(k[block]))
            of_mask = None if mask is None else mask[:, block]
            weights, alpha = _weigh(state, s, c, of_mask, present[:, block], kernel)
            largest = np.maximum(1, np.abs(state.extreme))
            most = largest if mask is None else np.minimum(largest, MOST_MASKED)
            recomputed |= ~(c <= kernel.most_factor * most)
            if mask is None:
                recomputed |= ~(largest <= kernel.most_logit)
            of_sum = alpha[:, None] if kernel.rescales_sum else 1
            state.lanes = single(state.lanes * of_sum + _sum_of_lanes(weights))
            alpha = alpha if kernel.rescales_output else np.ones(rows)
            _accumulate(state, weights, values.t(), of_values, alpha, kernel)
        pairs = single(state.lanes[:, ::2] + state.lanes[:, 1::2])
        total = single(pairs.sum(1))
        of_weights = single(kernel.log(np.log2(total)) - TOP)
        if mask is None:
            logsumexp = single(single(of_weights - state.extreme) * LN2)
        else:
            logsumexp = single(of_weights * LN2 + state.extreme)
        logsumexp = np.where(total == 0, 0, logsumexp)
        inverse = np.where(total == 0, 0, single(1 / total))[:, None]
        out = single(single(state.out * inverse) * state.unit)
        if kernel.guards_values and state.top > 2.0**-126:
            recomputed |= (total != 0) & (np.abs(out).max(1) < state.top)
        if recomputed.any():
            again = (q[recomputed], k, v, None if mask is None else mask[recomputed])
            again = *again, present[recomputed], scale, kernel
            out[recomputed], logsumexp[recomputed] = recompute(*again)
    return Result(out, recomputed, logsumexp)


def dots(x: Array, y: Array) -> Array:
    """x y^T of recomputed rows, by four chains of multiply-adds."""
    chains = np.zeros((CHAINS, len(x), len(y)))
    for d in range(x.shape[1]):
        i = d % CHAINS
        chains[i] = single(chains[i] + np.multiply.outer(x[:, d], y[:, d]))
    return single(single(chains[0] + chains[1]) + single(chains[2] + chains[3]))


def recompute(
    q: Array, k: Array, v: Array, mask: Array | None, present: Array, scale: float, kernel: Kernel
) -> tuple[Array, Array]:
    """Rows and their logsumexp, in float32 by multiply-adds and expf: 32 keys at a time."""
    x = single(dots(q, k) * scale + (0 if mask is None else mask))
    x = np.where(present, x, -np.inf)
    largest = np.full(len(q), -np.inf)
    sums, out = np.zeros((len(q), GROUP)), np.zeros((len(q), v.shape[1]))
    for first in range(0, len(k), GROUP):
        part = x[:, first : first + GROUP]
        new = np.maximum(largest, part.max(1))
        finite = np.where(new == -np.inf, 0, new)
        shrunk = np.where(largest == new, 1, single(np.exp(largest - finite)))[:, None]
        weights = single(np.exp(single(part - finite[:, None])))
        largest = new
        sums = single(sums * shrunk + weights)
        fresh = np.zeros_like(out)
        for i in range(GROUP):
            fresh = single(fresh + np.multiply.outer(weights[:, i], v[first + i]))
        out = single(out * shrunk + fresh)
    while sums.shape[1] > 1:
        sums = single(sums[:, ::2] + sums[:, 1::2])
    none = largest == -np.inf
    logsumexp = np.where(none, 0, single(largest + kernel.log(np.log(sums[:, 0]))))
    return np.where(none[:, None], 0, single(out / sums)), logsumexp
