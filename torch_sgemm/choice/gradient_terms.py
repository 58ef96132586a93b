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
    MOST_LOGIT,
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
    regained,
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
# Largest row of V by the smallest one for which all surely have the block's bound, and may have it.
LEAST_SPREAD, MOST_SPREAD = 15.9, 16.01
MOST_ENLARGED = 2.0**-126  # powers of two that rows of P and of dS are multiplied by, inverse
UNDERFLOW = 2.0**-110  # of a sum, and of dP: products of very small scales become 0
# Beyond these float16 planes may overflow: of P times 2^14, and of dS times 2^15 over its bound.
ROOM, ROOM_OF_DS = 3.9, 1.98
MOST_WEIGHT = 1.001  # of rows with a mask, and of recomputed ones
TINY, DOUBLED = 2.0**-8, 2.02  # a scaled row below TINY may be twice as large in its planes
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


def _overflow(weights: Tensor, slope: Tensor, bound: Tensor, share: Tensor) -> Tensor:
    """True where planes of weights times ``slope`` may overflow.

    ``bound`` is the least that the kernel's bound of |dP - delta| can be, and ``share`` is the
    largest |dP| by its part of the bound. delta has its own part, which isn't below it.
    """
    allowed = ROOM_OF_DS * bound.clamp(min=LEAST_BOUND)
    fits = (weights * slope <= allowed) | (weights * share.clamp(min=1) <= ROOM_OF_DS)
    return ~fits


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
    least_norms: Tensor  # [S]: the least that the kernel may take for ``bound_norms``

    @staticmethod
    def of(k: Tensor, v: Tensor, scale: float, masked: bool) -> "Keys":
        head = Head.of(k, v, scale, masked)
        k, v = head.k, head.v
        largest = v.abs().amax(1)
        v_powers = powers_of(of_blocks(largest))
        norms = v.norm(dim=1)
        block_norms = of_blocks(norms)
        # Norms of rows far below their block's largest may underflow, and count then as 0.
        least, least_sure = (
            repeated(
                by_blocks(norms.masked_fill(rest, math.inf), BLOCK, math.inf).amin(1), 0, len(k)
            )
            for rest in (norms == 0, norms < LOST * v_powers)
        )
        spread = block_norms > MOST_SPREAD * least_sure
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
            largest < TINY * v_powers,
            torch.where(block_norms > LEAST_SPREAD * least, norms, block_norms),
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
        parts = truncations(q, self.k, self.head.orders())
        size, truncated = (abs(self.scale) * part for part in parts)
        chains = (math.ceil(q.size(1) / CHAINS) + CHAINS) * size
        truncated = (WRITING + SCALE + regained(q.size(1))) * size + truncated
        units = torch.maximum(truncated, chains) + EXP2
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
    shrunk_k: Tensor  # [rows, S]: that of the block, times the least power of two
    again: Tensor  # [rows, S]: the kernel may recompute what depends on these blocks
    infinite_q: Tensor  # [rows]: nothing is proven of dQ
    infinite_k: Tensor  # [S]: nothing is proven of dK
    infinite_v: Tensor  # [S]: nothing is proven of dV

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
        limited = (total.abs() - of_total > MOST_LOGIT) | keys.masked
        most = torch.where(limited, most.clamp(max=MOST_WEIGHT), most)
        off = torch.maximum(most - p, p * -(-errors).expm1())
        off = off + torch.minimum(p, LEAST_WEIGHT * (g_tops / g_powers)[:, None])

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
        shrunk = (g_powers / g_tops)[:, None]
        norms, deltas = g.norm(dim=1)[:, None], delta.abs()[:, None]
        of_deltas, of_block = of_delta[:, None], of_blocks((norms / shrunk)[:, 0])[:, None]
        bound_q = BOUND * norms * keys.block_norms + deltas + of_deltas
        most_delta = of_blocks(((deltas + of_deltas) / shrunk)[:, 0])[:, None]
        shrunk_k = MOST_ENLARGED * (BOUND * of_block * keys.block_norms + most_delta)
        bound_k = torch.maximum(BOUND * of_block * keys.bound_norms + most_delta, shrunk_k)

        # Planes that may overflow. A key's largest weight in a block, with the scales of dO's rows,
        # may be enlarged to 1; the weight of a small row then exceeds 1.
        largest_p = repeated(blocks_of(shrunk * (p - off).clamp(min=0)), 0, len(q))
        enlarged = torch.minimum(most / largest_p.clamp(min=MOST_ENLARGED), present / shrunk)
        enlarged = torch.maximum(most, torch.where(largest_p < 0.5, enlarged, 0))
        deltas = (deltas - of_deltas).clamp(min=0)
        least_q = norms * keys.block_norms + deltas
        least_k = of_block * keys.least_norms + of_blocks((deltas / shrunk)[:, 0])[:, None]
        doubled = torch.where(keys.tiny | (own < TINY * g_powers)[:, None], DOUBLED, BOUND)
        share_q = doubled * (keys.norms / keys.block_norms).nan_to_num(0)
        share_k = doubled * (norms / shrunk / of_block).nan_to_num(0)
        overflow_q = _overflow(most, most_slope, least_q, share_q)
        overflow_k = _overflow(enlarged * shrunk, most_slope / shrunk, least_k, share_k)
        recomputed = largest < keys.v_powers * (1 - 2.0**-20)
        of_v = most > ROOM
        of_q, of_k = (of_v | overflow & ~recomputed for overflow in (overflow_q, overflow_k))
        if not keys.masked:
            coarse = coarse | (total.abs() + of_total >= MOST_LOGIT)
        again = coarse | (keys.v_powers >= least * (1 - 2.0**-20))
        return Queries(
            keys, q, g, q_powers, g_powers, g_tops, present, most, off,
            (1 + 3 * UNIT) * most * most_slope, off_ds,
            bound_q.clamp(min=LEAST_BOUND), bound_k.clamp(min=LEAST_BOUND), shrunk_k,
            again, of_q.any(1), of_k.any(0), of_v.any(0),
        )  # fmt: skip
