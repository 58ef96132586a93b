"""The kernels of csrc/attention/backward for one head of keys, on the CPU, in float64.

support/attention_model.py has the numbers, the tensor cores and the forward. Operands have a
dimension in front for the heads of queries that share the keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from support.attention_model import (
    GROUP,
    LOG2E,
    MOST_MASKED,
    TOP,
    Kernel,
    Planes,
    dots,
    power_of_scale,
    products,
    single,
    split_block,
)

ROWS, WARP = 64, 16  # of a block; of a tile that a warp owns
LOG2E_REST = float(single(math.log2(math.e) - LOG2E))


def by_size(y: Array) -> Array:
    """Units that ex2.approx is off by: small weights get too much, and large ones too little."""
    return np.where(y < TOP - 0.5, 2, -2)


@dataclass(frozen=True)
class GradientKernel(Kernel):
    """The backward kernels' own steps. Mutation tests spoil one field at a time."""

    planes: frozenset[str] = frozenset("qkvgps")  # g: dO, s: dS
    least_shift: int = -60  # of a row of dO, beside its block
    scales_rows: bool = True  # of dO, each by its own power of two
    bounds_ds: bool = True  # its planes' scale comes from a bound
    bounds_rows: bool = True  # of a key, where rows of V differ much
    enlarges: bool = True  # tiny weights
    rows_as_scaled: bool = True  # in the bound of dS for dK: rows of dO by their own scales
    rest_of_log2e: float = LOG2E_REST
    of_delta: float = 1.0
    most_bound: float = 2.0**120


@dataclass(frozen=True)
class Gradients:
    q: Array  # [H, L, D]
    k: Array  # [S, D]
    v: Array  # [S, Dv]
    ds: Array  # [H, L, S]: the gradient of a mask
    recomputed_queries: Array  # [H, L]
    recomputed_keys: Array  # [S]


def _padded(x: Array, axis: int, fill: float = 0) -> Array:
    short = [(0, 0)] * x.ndim
    short[axis] = (0, -x.shape[axis] % ROWS)
    return np.pad(x, short, constant_values=fill)


def _exponent(bound: Array) -> Array:
    """Returns the exponent of the power of two that dS is divided by."""
    exponent = np.where(bound == 0, -127, np.frexp(np.nan_to_num(bound, nan=1))[1] - 1)
    return np.maximum(np.where(np.isfinite(bound), exponent, 127), -100)


def _dot(x: Array, y: Array, depth: int) -> Array:
    """Rows of x times rows of y, as lanes of the pass in front add them up."""
    x, y = (np.pad(a, ((0, 0), (0, depth - a.shape[1]))) for a in (x, y))
    x, y = (a.reshape(len(a), -1, 4) for a in (x, y))
    pairs = [
        single(x[..., i] * y[..., i] + single(x[..., j] * y[..., j])) for i, j in ((0, 1), (2, 3))
    ]
    sums = single(pairs[0] + pairs[1])
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = single(sums[:, :half] + sums[:, half:])
    return sums[:, 0]


def _norm(x: Array, factor: Array | float, depth: int) -> Array:
    scaled = single(x * factor)
    return single(single(np.sqrt(_dot(scaled, scaled, depth))) * float(single(1.0001)))


# --- the pass in front ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Queries:
    """64 queries: QueryBlock."""

    q: Planes
    g: Planes
    q_scale: float
    top: float  # the largest scale of a row of dO
    scales: Array  # of rows of dO
    norms: Array
    deltas: Array
    shift: Array  # 14 + log2(scales / top)
    logits: Array  # what log2 of a weight begins with in tiles of keys, without shift with a mask
    row_logits: Array
    least_logits: Array
    least_outs: Array
    mask: Array | None  # [64, S]
    exists: Array

    @staticmethod
    def of(part: slice, q, g, out, lse, mask, scale: float, depth: int, kernel) -> _Queries:
        q, g, out, lse = (x[part] for x in (q, g, out, lse))
        mask = None if mask is None else mask[part]
        planes, q_scale = split_block(math.copysign(1, scale) * q, "q" in kernel.planes)
        own = power_of_scale(np.abs(g).max(1))
        top = own.max()
        less = np.log2(own / top) if kernel.scales_rows else np.zeros(ROWS)
        less = np.maximum(less, kernel.least_shift)
        scales = top * np.exp2(less)
        deltas = single(_dot(g, out, depth) * kernel.of_delta)
        exists = np.isfinite(lse)
        largest = np.abs(out).max(1)

        def logits(shift: Array | float) -> Array:
            if mask is not None:
                return -lse
            return single(-lse * LOG2E + single(-lse * kernel.rest_of_log2e + shift))

        of_logit = np.maximum(1, np.abs(lse))
        if mask is None:
            of_logit = np.where(of_logit > kernel.most_logit, 0, of_logit)
        return _Queries(
            planes, Planes.of(single(g / scales[:, None]), "g" in kernel.planes), q_scale, top,
            scales, _norm(g, 1 / scales[:, None], depth), deltas, TOP + less, logits(TOP + less),
            logits(TOP), of_logit if mask is None else np.minimum(of_logit, MOST_MASKED),
            np.where(largest == 0, np.inf, largest), mask, exists,
        )  # fmt: skip


@dataclass(frozen=True)
class _Keys:
    """64 keys: KeyBlock."""

    k: Planes
    v: Planes
    k_scale: float
    v_scale: float
    norms: Array
    spread: bool

    @staticmethod
    def of(k: Array, v: Array, depth: int, kernel: GradientKernel) -> _Keys:
        k_planes, k_scale = split_block(k, "k" in kernel.planes)
        v_planes, v_scale = split_block(v, "v" in kernel.planes)
        norms = _norm(v, 1 / v_scale, depth)
        some = norms[norms > 0]
        spread = len(some) > 0 and norms.max() > single(16 * some.min())
        return _Keys(k_planes, v_planes, k_scale, v_scale, norms, spread and kernel.bounds_rows)


def _bound(norm: Array, of_dp: Array, delta: Array, kernel: GradientKernel) -> Array:
    bound = single(norm * of_dp + delta)
    return bound if kernel.bounds_ds else np.ones_like(bound)


def _is_coarse(factor, least_logit, v_scale, least_out, bound, kernel: GradientKernel) -> Array:
    coarse = ~(factor <= kernel.most_factor * least_logit) | ~(bound < kernel.most_bound)
    return coarse | ~(v_scale <= least_out) if kernel.guards_values else coarse


# --- tiles ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    queries: list[list[_Queries]]  # of each head
    keys: list[_Keys]
    deciding: list[Array]  # the forward's block of keys, from its first key on, of each block
    scale: float
    factor: float  # of logits
    masked: bool
    causal: bool
    count: int  # of keys
    kernel: GradientKernel

    def order(self, b: int) -> list[int]:
        """The order of S's steps, of the forward's block."""
        return self.kernel.order_of_steps(self.deciding[b])

    def present(self, a: int, b: int) -> Array:
        """[64 queries, 64 keys]: keys that exist, and that causality leaves to a query."""
        exists = np.arange(b * ROWS, (b + 1) * ROWS) < self.count
        before = np.tri(ROWS, ROWS, (a - b) * ROWS if self.causal else ROWS, dtype=bool)
        return exists & before

    def of_keys(self, b: int) -> tuple[Array, Array, bool]:
        """dK and dV of a block of keys, and whether it has to be recomputed."""
        block, kernel = self.keys[b], self.kernel
        dk = np.zeros(block.k.hi.shape)
        dv = np.zeros(block.v.hi.shape)
        again = False
        first = min(b // 2 * 2, len(self.queries[0]) - 1) if self.causal else 0
        for head in self.queries:
            for a in range(first, len(head)):
                rows = head[a]
                c = single(single(rows.q_scale * block.k_scale) * self.factor)
                s = products(block.k, rows.q, kernel, self.order(b))
                weights = self._weights(s, max(c, 2.0**-126), rows, b, self.present(a, b))
                weights, enlarged = self._enlarged(weights)
                dp = products(block.v, rows.g, kernel)
                of_dp = single(rows.top * block.v_scale)
                unit = rows.scales / rows.top
                norm = single(rows.norms * (1 if kernel.rows_as_scaled else unit)).max()
                delta = np.abs(single(rows.deltas / (unit if kernel.rows_as_scaled else 1))).max()
                bound = _bound(single(norm * block.norms.max()), of_dp, delta, kernel)
                exponent = _exponent(bound)
                h = np.exp2(-float(exponent))
                again |= bool(
                    _is_coarse(
                        c, rows.least_logits[rows.exists].min(), block.v_scale,
                        rows.least_outs[rows.exists].min(), bound, kernel,
                    )
                )  # fmt: skip
                deltas = single(rows.deltas * rows.top / rows.scales)
                x = single(weights * single(dp * single(of_dp * h) - deltas * h))
                grown = np.zeros(ROWS)
                if block.spread:
                    of_rows = _bound(single(norm * block.norms), of_dp, delta, kernel)
                    grown = np.clip(exponent - _exponent(of_rows), 0, 126)
                    x = single(x * np.exp2(grown)[:, None])
                ds, p = Planes.of(x, "s" in kernel.planes), Planes.of(weights, "p" in kernel.planes)
                shrunk = np.exp2(-enlarged)
                of_values = single(rows.top * 2.0**-TOP * shrunk)
                of_keys = single(np.exp2(float(exponent) - TOP) * rows.q_scale)
                shrunk = single(shrunk * np.exp2(-grown))
                of_keys = single(single(of_keys * abs(self.scale)) * shrunk)
                dv = self._added(dv, p, rows.g, of_values)
                dk = self._added(dk, ds, rows.q, of_keys)
        return dk, dv, again

    def _added(self, total: Array, weights: Planes, rows: Planes, factor: Array) -> Array:
        for first in range(0, ROWS, self.kernel.window):
            window = slice(first, first + self.kernel.window)
            sums = products(weights.part(window), rows.t().part(window), self.kernel)
            total = single(sums * factor[:, None] + total)
        return total

    def _weights(self, s, c: float, rows: _Queries, b: int, present) -> Array:
        """Returns the weights of tiles of keys, [64 keys, 64 queries]."""
        present = present.T
        if not self.masked:
            return self.kernel.exp2(np.where(present, single(s * c + rows.logits), -np.inf))
        mask = rows.mask[:, b * ROWS : (b + 1) * ROWS].T
        x = np.where(present, single(s * c + mask), -np.inf)
        return self.kernel.exp2(single(np.minimum(single(x + rows.logits), 0) * LOG2E + rows.shift))

    def _enlarged(self, weights: Array) -> tuple[Array, Array]:
        """Rows of tiny weights times powers of two, and their exponents."""
        by_lane = weights.reshape(ROWS, -1, 4, 2).max((1, 3))
        of_warp = (by_lane < 0.125).any(1).reshape(-1, WARP).any(1).repeat(WARP)
        most = by_lane.max(1)
        some = of_warp & (most > 0) & np.isfinite(most) & self.kernel.enlarges
        exponent = np.frexp(np.where(some, most, 1))[1] - 1
        exponent = np.where(some, np.clip(13 - exponent, 0, 126), 0).astype(float)
        return single(weights * np.exp2(exponent)[:, None]), exponent

    def of_queries(self, h: int, a: int) -> tuple[Array, Array, Array]:
        """dQ and dS of a block of queries, and which rows have to be recomputed."""
        rows, kernel = self.queries[h][a], self.kernel
        dq = np.zeros(rows.q.hi.shape)
        ds = np.zeros((ROWS, len(self.keys) * ROWS))
        again = np.zeros(ROWS, bool)
        end = min(a // 2 * 2 + 2, len(self.keys)) if self.causal else len(self.keys)
        for b in range(end):
            block = self.keys[b]
            part = slice(b * ROWS, (b + 1) * ROWS)
            c = single(single(rows.q_scale * self.factor) * block.k_scale)
            s = products(rows.q, block.k, kernel, self.order(b))
            factor, present = max(c, 2.0**-126), self.present(a, b)
            if self.masked:
                x = np.where(present, single(s * factor + rows.mask[:, part]), -np.inf)
                y = single(np.minimum(single(x + rows.row_logits[:, None]), 0) * LOG2E + TOP)
            else:
                y = single(np.where(present, s, -np.inf) * factor + rows.row_logits[:, None])
            weights = kernel.exp2(y)
            dp = products(rows.g, block.v, kernel)
            of_dp = single(rows.scales * block.v_scale)
            norm = single(rows.norms * block.norms.max())
            bound = _bound(norm, of_dp, np.abs(rows.deltas), kernel)
            exponent = _exponent(bound)
            h_row = np.exp2(-exponent.astype(float))
            again |= _is_coarse(c, rows.least_logits, block.v_scale, rows.least_outs, bound, kernel)
            slope = dp * single(of_dp * h_row)[:, None] - (rows.deltas * h_row)[:, None]
            x = single(weights * single(slope))
            unit = np.exp2(exponent.astype(float) - TOP)
            ds[:, part] = single(x * unit[:, None])
            factor = single(single(unit * block.k_scale) * self.scale)
            dq = self._added(dq, Planes.of(x, "s" in kernel.planes), block.k, factor)
        return dq, ds, again


# --- the kernel -----------------------------------------------------------------------------


def differentiate(
    g: Array,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    out: Array,
    logsumexp: Array,
    causal: bool = False,
    scale: float | None = None,
    kernel: GradientKernel = GradientKernel(),
) -> Gradients:
    """Gradients, for q [H, L, D], k [S, D], v [S, Dv], g and out [H, L, Dv], a mask [H, L, S]."""
    g, q, k, v, out = (np.asarray(x, np.float64) for x in (g, q, k, v, out))
    scale = float(single(q.shape[2] ** -0.5 if scale is None else scale))
    heads, rows, depth = len(q), q.shape[1], 64 if max(q.shape[2], v.shape[1]) <= 64 else 128
    if mask is not None:
        mask = np.where(mask, 0, -np.inf) if mask.dtype == bool else np.asarray(mask, np.float64)
        padded = _padded(_padded(mask, 1), 2, -np.inf)
    wide_k, wide_v = _padded(k, 0), _padded(v, 0)
    with np.errstate(all="ignore"):
        blocks = [
            [
                _Queries.of(
                    slice(first, first + ROWS), *(_padded(x[h], 0) for x in (q, g, out)),
                    _padded(logsumexp[h], 0, np.inf), None if mask is None else padded[h],
                    scale, depth, kernel,
                )
                for first in range(0, rows, ROWS)
            ]
            for h in range(heads)
        ]  # fmt: skip
        of_blocks = (slice(first, first + ROWS) for first in range(0, len(wide_k), ROWS))
        keys = [_Keys.of(wide_k[part], wide_v[part], depth, kernel) for part in of_blocks]
        log2e = math.log2(math.e) if mask is None else 1
        factor = float(single(abs(scale) * log2e * kernel.factor_of_logits(q.shape[2])))
        length = kernel.keys_of_block(depth)
        firsts = (ROWS * b // length * length for b in range(len(keys)))
        deciding = [wide_k[first:] for first in firsts]
        problem = _Problem(
            blocks, keys, deciding, scale, factor, mask is not None, causal, len(k), kernel
        )
        by_keys = [problem.of_keys(b) for b in range(len(keys))]
        dk, dv = (np.concatenate([x[i] for x in by_keys])[: len(k)] for i in range(2))
        again = np.repeat([x[2] for x in by_keys], ROWS)[: len(k)]
        dq, ds, of_rows = (
            np.zeros(q.shape),
            np.zeros((heads, rows, len(k))),
            np.zeros((heads, rows), bool),
        )
        for h in range(heads):
            found = [problem.of_queries(h, a) for a in range(len(blocks[h]))]
            of_q, of_logits, of_rows[h] = (
                np.concatenate([x[i] for x in found])[:rows] for i in range(3)
            )
            dq[h], ds[h] = of_q, of_logits[:, : len(k)]
        if again.any() or of_rows.any():
            deltas = [np.concatenate([x.deltas for x in head])[:rows] for head in blocks]
            weights = [
                _recomputed(q[h], k, g[h], v, None if mask is None else mask[h], logsumexp[h],
                            deltas[h], causal, scale)
                for h in range(heads)
            ]  # fmt: skip
            dv[again] = _summed([w.T for w, _ in weights], g)[again]
            dk[again] = single(_summed([s.T for _, s in weights], q) * scale)[again]
            for h in range(heads):
                some = of_rows[h]
                dq[h, some] = single(_summed([weights[h][1]], [k]) * scale)[some]
                ds[h, some] = weights[h][1][some]
    return Gradients(dq, dk, dv, ds, of_rows, again)


# --- recomputed rows ------------------------------------------------------------------------


def _recomputed(q, k, g, v, mask, logsumexp, deltas, causal: bool, scale: float):
    """A head's weights and dS, [L, S]."""
    x = single(dots(q, k) * scale + (0 if mask is None else mask))
    present = np.tri(*x.shape, dtype=bool) if causal else np.ones(x.shape, bool)
    x = np.where(present, x, -np.inf)
    weights = single(np.exp(np.minimum(single(x - logsumexp[:, None]), 0)))
    weights = np.where(x == -np.inf, 0, weights)
    return weights, single(weights * single(dots(g, v) - deltas[:, None]))


def _summed(weights: list[Array], rows: list[Array] | Array) -> Array:
    """The sum over heads of weights [n, m] times rows [m, d]: 32 of m at a time."""
    total = np.zeros((len(weights[0]), rows[0].shape[1]))
    for w, x in zip(weights, rows, strict=True):
        for first in range(0, len(x), GROUP):
            sums = np.zeros_like(total)
            for i in range(first, min(first + GROUP, len(x))):
                sums = single(sums + np.multiply.outer(w[:, i], x[i]))
            total = single(total + sums)
    return total
