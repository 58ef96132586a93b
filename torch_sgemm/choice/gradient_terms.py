"""Bounds the errors of weights and of dS, for the bounds of attention's gradients.

docs/attention-error.md derives the terms.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_sgemm.choice.attention import (
    CHAINS,
    DISTANCE,
    EXP2,
    GROUP,
    MOST,
    MOST_FACTOR,
    MOST_MASKED,
    SCALE,
    TOP,
    UNIT,
    WRITING,
    Head,
    Rows,
    by_blocks,
    powers_of,
    quanta,
    truncations,
)

BLOCK = 64  # rows of a scale, and of a window
FACTOR = 1.3  # units of a logit: its factor has log2(e), without a mask
OF_SUM = 2.1  # units of the logsumexp: its last two operations
LOG = 1.5  # units of the last place that log2f and logf are off by, with a rounding
OF_SHIFT = 2.1  # units of |shift|, which log2 of a weight begins with
DELTA = 8  # units of |dO||O|: a chain of two, and lanes that add up in pairs
OF_PRODUCT = 2.01  # units of dS: its last two operations
BOUND = 1.001  # what the kernel's bound of |dS| may exceed |dO||V| + |delta| by
LEAST_SHIFT = 2.0**-60  # a row of dO has at least this scale, beside its block's
LEAST_WEIGHT = 2.0**-140  # smaller ones become 0
LEAST_BOUND = 2.0**-100  # of dS
MOST_SPREAD = 16.01  # largest row of V by the smallest one for which all have the block's bound
MOST_ENLARGED = 2.0**-126  # powers of two that rows of P and of dS are multiplied by, inverse
UNDERFLOW = 2.0**-110  # of a sum, and of dP: products of very small scales become 0
ROOM = 1.99  # beyond it a float16 of P or of dS may overflow: 2^15 of it
TINY = 2.0**-8  # a scaled row below it may be twice as large in its planes
LOST = 2.0**-64  # a scaled row below it may have a norm that underflows to 0
MOST_SCALE, MOST_SIZE, MOST_FACTORS = 2.0**64, 2.0**118, 2.0**150


def repeated(of_block: Tensor, dim: int, rows: int) -> Tensor:
    """Returns each block's element for each of its rows: [..., rows, ...]."""
    return of_block.repeat_interleave(BLOCK, dim).narrow(dim, 0, rows)


def of_blocks(x: Tensor) -> Tensor:
    """Returns the largest element of each row's block, [..., rows]."""
    return repeated(by_blocks(x, BLOCK, 0).amax(-1), -1, x.size(-1))


def blocks_of(x: Tensor) -> Tensor:
    """Returns the largest element of each block of rows: [rows, S] becomes [blocks, S]."""
    return by_blocks(x.t(), BLOCK, 0).amax(2).t()


@dataclass(frozen=True)
class Keys:
    """A head's keys and values."""

    head: Head  # as the forward sees it
    k: Tensor
    v: Tensor
    scale: float
    masked: bool
    k_powers: Tensor  # [S], of each key's block of 64
    v_powers: Tensor
    norms: Tensor  # [S]: |V_j|
    block_norms: Tensor  # [S]: the largest of the block
    bound_norms: Tensor  # [S]: those of the bound of dS for dK
    tiny: Tensor  # [S]: rows of V far below their block's largest

    @staticmethod
    def of(k: Tensor, v: Tensor, scale: float, masked: bool) -> "Keys":
        head = Head.of(k, v, scale, masked)
        k, v = head.k, head.v
        largest = v.abs().amax(1)
        v_powers = powers_of(of_blocks(largest))
        norms = v.norm(dim=1)
        block_norms = of_blocks(norms)
        of_others = norms.masked_fill(norms < LOST * v_powers, math.inf)
        least = by_blocks(of_others, BLOCK, math.inf).amin(1)
        spread = block_norms > MOST_SPREAD * repeated(least, 0, len(k))
        return Keys(
            head,
            k,
            v,
            scale,
            masked,
            powers_of(of_blocks(k.abs().amax(1))),
            v_powers,
            norms,
            block_norms,
            torch.where(spread, norms, block_norms),
            (largest > 0) & (largest < TINY * v_powers),
        )

    def are_proven(self, q: Tensor, g: Tensor) -> bool:
        """True if all is finite, and no product of scales leaves float32's range."""
        scale = abs(self.scale)
        if not (self.head.finite and bool(q.isfinite().all()) and bool(g.isfinite().all())):
            return False
        size = 2 * float(g.norm(dim=1).max()) * float(self.norms.max())  # of dP - delta
        largest = max(float(q.abs().max()), float(self.k.abs().max())) * max(1, scale)
        of_scale = scale == 0 or 1 / MOST_SCALE <= scale <= MOST_SCALE
        return of_scale and size < MOST_SIZE and size * largest < MOST_FACTORS

    def factors(self, q_powers: Tensor) -> Tensor:
        """Returns the factors that turn sums into logits, [rows, S]."""
        log2e = 1.0 if self.masked else math.log2(math.e)
        return abs(self.scale) * log2e * q_powers[:, None] * self.k_powers

    def allowed(self, logsumexp: Tensor) -> Tensor:
        """The factors beyond which rows are recomputed."""
        most = MOST_MASKED if self.masked else math.inf
        return MOST_FACTOR * logsumexp.clamp(min=1, max=most)

    def logsumexp_errors(self, rows: Rows, log_p: Tensor, logsumexp: Tensor) -> Tensor:
        """Bounds the error of the logsumexp, [rows, 1]."""
        errors, x, keys = rows.errors, rows.logits, len(self.k)
        if not self.masked:
            errors = errors + FACTOR * UNIT * x.abs().nan_to_num(0, 0, 0)
        of_weights = (log_p + errors).logsumexp(1, keepdim=True).clamp(min=0)
        last = 2 * 2.0 ** math.floor(math.log2(TOP + 0.01 + math.log2(keys)))  # of log2f's result
        units = self.head.units_of_weights() + LOG * math.log(2) * last
        again = 2 * math.ceil(keys / GROUP) + 7 + LOG * 2 * math.log(keys)
        units = units + max(0, again - units) * rows.again.double()[:, None]
        return 1.001 * (of_weights + UNIT * (units + OF_SUM * (logsumexp.abs() + of_weights)))

    def log_weight_errors(self, q: Tensor, x: Tensor, logsumexp: Tensor, shift: Tensor) -> Tensor:
        """Bounds the errors of the weights' logarithms, [rows, S], given the logsumexp.

        The planes' quanta come on top.
        """
        size, truncated = (abs(self.scale) * part for part in truncations(q, self.k))
        chains = (math.ceil(q.size(1) / CHAINS) + CHAINS) * size
        units = torch.maximum((WRITING + SCALE) * size + truncated, chains) + EXP2
        units = units + DISTANCE * (logsumexp - x) + OF_SHIFT * shift[:, None]
        if self.masked:
            units = units + 1.001 * x.abs()
        else:
            units = units + FACTOR * x.abs() + 1.01 * logsumexp.abs()
        return torch.where(x == -math.inf, 0, UNIT * units)


@dataclass(frozen=True)
class Queries:
    """Whole blocks of a head's queries."""

    keys: Keys
    q: Tensor
    g: Tensor
    q_powers: Tensor  # [rows], of each query's block
    g_powers: Tensor  # [rows], of each row of dO
    g_tops: Tensor  # [rows], the largest of the block
    present: Tensor  # [rows, S]: the key takes part
    most: Tensor  # [rows, S]: the largest computed weight
    off: Tensor  # [rows, S]: what weights are off by, without their planes
    most_ds: Tensor  # [rows, S]: the largest computed |dS|
    off_ds: Tensor  # [rows, S]
    bound_q: Tensor  # [rows, S]: the largest power of two that divides dS, in tiles of queries
    bound_k: Tensor  # [rows, S]: the same in tiles of keys
    again: Tensor  # [rows, S]: the kernel may recompute what depends on these blocks
    infinite: Tensor  # [rows]: nothing is proven of dQ
    infinite_keys: Tensor  # [S]: nothing is proven of dK and dV

    @staticmethod
    def of(keys: Keys, q: Tensor, g: Tensor, mask: Tensor | None, first: int, causal: bool):
        rows = keys.head.rows(q, mask, first, causal)
        x, of_out = rows.logits, rows.bound
        present = x > -math.inf
        total = x.logsumexp(1, keepdim=True)
        total = total.masked_fill(total == -math.inf, 0)
        log_p = x - total
        of_total = keys.logsumexp_errors(rows, log_p, total)
        own = g.abs().amax(1)
        g_tops = powers_of(of_blocks(own))
        g_powers = torch.maximum(powers_of(own), LEAST_SHIFT * g_tops)
        q_powers = powers_of(of_blocks(q.abs().amax(1)))

        # Weights.
        factors = keys.factors(q_powers)
        kept = factors <= keys.allowed(total.abs() + of_total) * (1 + 2.0**-20)
        coarse = factors >= keys.allowed(total.abs() - of_total) * (1 - 2.0**-20)
        shift = (TOP + (g_powers / g_tops).log2()).abs().clamp(min=TOP)
        errors = keys.log_weight_errors(q, x, total, shift) + of_total
        elements = abs(keys.scale) * quanta(q, keys.k, q_powers, keys.k_powers)
        errors = errors + torch.where(kept & present, elements, 0)
        p, most = log_p.exp(), (log_p + errors).clamp(max=MOST).exp()
        off = most - p + torch.minimum(p, LEAST_WEIGHT * (g_tops / g_powers)[:, None])

        # dP and delta.
        out = p @ keys.v
        largest, least = ((out.abs() + sign * of_out).amax(1)[:, None] for sign in (1, -1))
        scales = torch.where(least > 0, largest * (1 + 2.0**-20), math.inf)  # else recomputed
        elements = quanta(g, keys.v, g_powers, torch.minimum(keys.v_powers, scales))
        size, truncated = truncations(g, keys.v)
        chains = (math.ceil(g.size(1) / CHAINS) + CHAINS) * size
        of_dp = UNIT * torch.maximum(WRITING * size + truncated, chains) + elements + UNDERFLOW
        delta = (g * out).sum(1)
        of_delta = (g.abs() * (of_out + DELTA * UNIT * (out.abs() + of_out))).sum(1) + UNDERFLOW
        slope = (g @ keys.v.t() - delta[:, None]).abs()
        of_slope = 1.001 * (of_dp + of_delta[:, None])

        # dS, and the powers of two of its planes.
        most_slope = slope + of_slope
        off_ds = off * slope + most * (of_slope + OF_PRODUCT * UNIT * most_slope)
        norms, deltas = BOUND * g.norm(dim=1), delta.abs() + of_delta
        bound_q = norms[:, None] * keys.block_norms + deltas[:, None]
        norms, deltas = of_blocks(norms)[:, None], of_blocks(deltas)[:, None]
        of_block = MOST_ENLARGED * (norms * keys.block_norms + deltas)
        bound_k = torch.maximum(norms * keys.bound_norms + deltas, of_block)

        # Rows whose weights or dS may overflow float16.
        tiny = (own > 0) & (own < TINY * g_powers) & (bound_q.amax(1) > LEAST_BOUND / 4)
        room = torch.where(tiny, ROOM / 2.02, ROOM / BOUND)
        infinite = (most > room[:, None]).any(1)
        certain = largest < keys.v_powers * (1 - 2.0**-20)  # recomputed
        room = torch.where(keys.tiny & ~certain, ROOM / 2.02, ROOM / BOUND)
        infinite_keys = (most > room).any(0)
        return Queries(
            keys, q, g, q_powers, g_powers, g_tops, present, most, off,
            (1 + 3 * UNIT) * most * most_slope, off_ds,
            bound_q.clamp(min=LEAST_BOUND), bound_k.clamp(min=LEAST_BOUND),
            coarse | (keys.v_powers >= least * (1 - 2.0**-20)), infinite, infinite_keys,
        )  # fmt: skip
