"""The proven bounds of the errors of attention's gradients (docs/attention-error.md)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_sgemm.choice.attention import (
    CHUNK,
    GROUP,
    QUANTUM,
    SCALE,
    STEP,
    SUBNORMALS,
    TOP,
    UNIT,
    WRITING,
    by_blocks,
    checked_mask,
)
from torch_sgemm.choice.gradient_terms import (
    BLOCK,
    MOST_ENLARGED,
    UNDERFLOW,
    Keys,
    Queries,
    blocks_of,
    of_blocks,
    repeated,
)
from torch_sgemm.torch_ops.ops import check_tensors

ENLARGED = 2.0**-22  # quantum of a key's weights, beside the largest
OF_STEPS = 12 * SUBNORMALS / QUANTUM  # of a window, in quanta of both operands' planes
MOST_SUM = 2.0**126


class GradientBounds(NamedTuple):
    """Bounds of the errors of gradients, each of the shape of its operand.

    That of the mask is (B, H, L, S), without the additions over dimensions that it broadcasts to;
    it has no elements unless it was asked for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor


@torch.no_grad()
def attention_gradient_error_bounds(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    wants_mask: bool = False,
) -> GradientBounds:
    """Bounds the error of each element of the gradients of ``attention(..., kernel="split")``.

    They are proven for finite operands that meet the conditions of ``attention_error_bound``, if
    the output and the logsumexp that the gradients start from are those of the same kernel.

    The bounds are absolute, not in units: |gradient - exact| <= bound, where exact is the gradient
    of softmax(scale query key^T + attn_mask) value in real numbers, for this ``grad``. They hold
    for the tensor cores' arithmetic as measured (docs/split.md), the error of ex2.approx that the
    PTX ISA allows, and those of expf, logf and log2f that CUDA documents. docs/attention-error.md
    states and proves the formula. It takes about ten float64 products of the operands' size, in
    blocks of queries.

    Args:
        grad: (B, H, L, Dv), float32: the gradient of the output.
        query: (B, H, L, D), float32.
        key: (B, G, S, D); G is H, or with ``enable_gqa`` a divisor of it.
        value: (B, G, S, Dv).
        attn_mask: bool or float32 that broadcasts to (B, H, L, S).
        is_causal: key j takes part in row i if j <= i.
        scale: 1 / sqrt(D) if None.
        enable_gqa: H / G heads of queries share a head of keys.
        wants_mask: bounds the gradient of an additive mask as well.

    Returns:
        The bounds of query, key, value and mask, float64 on the operands' device. A bound is
        infinite where nothing is proven: where a float32 logsumexp is too coarse for its row's
        weights, and in heads with Inf or NaN or with products near the ends of float32's range.

    Raises:
        TypeError: an operand or the mask is no tensor.
        ValueError: sizes don't fit together, or the depth is 0.
    """
    name = "attention_gradient_error_bounds"
    attn_mask = checked_mask(name, query, key, value, attn_mask, enable_gqa)
    check_tensors(f"torch_sgemm.{name}", grad=grad)
    batches, heads, rows, depth = query.shape
    if grad.shape != (batches, heads, rows, value.size(3)):
        raise ValueError(
            f"torch_sgemm.{name}: grad is of shape {tuple(grad.shape)}; "
            f"accepted: {(batches, heads, rows, value.size(3))}, the output's"
        )
    scale = depth**-0.5 if scale is None else float(scale)
    shapes = query.shape, key.shape, value.shape, (batches, heads, rows, key.size(2))
    shapes = shapes if wants_mask else (*shapes[:3], (0,))
    found = GradientBounds(*(query.new_zeros(x, dtype=torch.float64) for x in shapes))
    if 0 in (*grad.shape, key.size(2)):
        return found
    groups = key.size(1)
    shared = heads // groups
    for b in range(batches):
        for group in range(groups):
            keys = Keys.of(key[b, group], value[b, group], scale, attn_mask is not None)
            sums = _Sums.of(keys)
            for h in range(group * shared, (group + 1) * shared):
                mask = None if attn_mask is None else attn_mask[b, h]
                of_head = query[b, h], grad[b, h], mask, is_causal
                of_mask = found.mask[b, h] if wants_mask else None
                _add_head(keys, sums, *of_head, found.query[b, h], of_mask)
            found.key[b, group], found.value[b, group] = sums.bounds(keys, rows, shared)
    return found


def _add_head(
    keys: Keys,
    sums: "_Sums",
    q: Tensor,
    g: Tensor,
    mask: Tensor | None,
    causal: bool,
    of_query: Tensor,
    of_mask: Tensor | None,
) -> None:
    """Adds a head of queries to ``sums``, and stores the bounds of its dQ and its dS."""
    q, g = q.double(), g.double()
    if not keys.are_proven(q, g):
        for infinite in sums.infinite:
            infinite.fill_(True)
        for bound in (of_query, of_mask):
            if bound is not None:
                bound.fill_(math.inf)
        return
    step = max(BLOCK, CHUNK // len(keys.k) // BLOCK * BLOCK)
    for first in range(0, len(q), step):
        part = slice(first, first + step)
        of_part = None if mask is None else mask[part]
        rows = Queries.of(keys, q[part], g[part], of_part, first, causal)
        sums.add(rows)
        of_query[part] = _bound_of_query(rows)
        if of_mask is not None:
            found = rows.off_ds + 2.0**-149 * rows.present  # its scale may make it subnormal
            of_mask[part] = found.masked_fill(rows.infinite_q[:, None], math.inf)


def _bound_of_query(rows: Queries) -> Tensor:
    """Returns the bound of dQ, [rows, D]."""
    keys, count = rows.keys, len(rows.keys.k)
    quantum = QUANTUM * 2.0**-TOP * torch.where(rows.present, rows.bound_q, 0)
    sizes = keys.k.abs()
    found = (rows.off_ds + 1.01 * quantum) @ sizes
    units = _units_of_sums(count, math.ceil(count / BLOCK), rows.again.any(1)[:, None])
    largest = rows.most_ds @ sizes
    found = found + (UNIT * units).expm1() * largest
    per_block = by_blocks(quantum * keys.k_powers, BLOCK, 0).amax(2).sum(1)
    tail = QUANTUM * (rows.most_ds @ keys.k_powers) + OF_STEPS * per_block
    found = _with_tail(found, tail, largest, keys.scale, math.ceil(count / BLOCK))
    return found.masked_fill(rows.infinite_q[:, None], math.inf)


@dataclass
class _Sums:
    """Terms of the bounds of dK and dV, added up over queries; [S], or [S, D] and [S, Dv]."""

    off: list[Tensor]  # of dK, of dV
    largest: list[Tensor]
    tail: list[Tensor]
    infinite: list[Tensor]
    again: Tensor

    @staticmethod
    def of(keys: Keys) -> "_Sums":
        k, v = keys.k, keys.v
        nothing = torch.zeros_like(k[:, 0])
        return _Sums(
            [torch.zeros_like(k), torch.zeros_like(v)],
            [torch.zeros_like(k), torch.zeros_like(v)],
            [nothing, nothing.clone()],
            [nothing.bool(), nothing.bool()],
            nothing.bool(),
        )

    def add(self, rows: Queries) -> None:
        shrunk = rows.g_powers / rows.g_tops
        largest = blocks_of(2.0**TOP * shrunk[:, None] * rows.most)
        quantum = (ENLARGED * largest).clamp(QUANTUM * MOST_ENLARGED, QUANTUM)
        quantum = 2.0**-TOP * repeated(quantum, 0, len(rows.q)) * rows.present
        of_p = torch.minimum(quantum / shrunk[:, None], rows.most)
        of_ds = quantum * rows.bound_k
        parts = (
            (rows.off_ds, of_ds, rows.most_ds, rows.q, rows.q_powers, rows.q_powers),
            (rows.off, of_p, rows.most, rows.g, rows.g_powers, rows.g_tops),
        )
        for i, (off, planes, most, other, powers, tops) in enumerate(parts):
            self.off[i] += (off + 1.01 * planes).t() @ other.abs()
            self.largest[i] += most.t() @ other.abs()
            # Two powers of two that dS was multiplied by may be a 0 together.
            steps = OF_STEPS * (of_ds if i == 0 else quantum)
            steps = steps + rows.shrunk_k * rows.present if i == 0 else steps
            self.tail[i] += QUANTUM * (most.t() @ powers) + blocks_of(steps * tops[:, None]).sum(0)
        self.again |= rows.again.any(0)
        for infinite, new in zip(self.infinite, (rows.infinite_k, rows.infinite_v), strict=True):
            infinite |= new

    def bounds(self, keys: Keys, rows: int, shared: int) -> tuple[Tensor, Tensor]:
        windows = shared * math.ceil(rows / BLOCK)
        again = of_blocks(self.again.double()) > 0
        units = _units_of_sums(rows, windows, again[:, None], shared)
        found = []
        for i, scale in enumerate((keys.scale, 1.0)):
            sums = self.off[i] + (UNIT * units).expm1() * self.largest[i]
            sums = _with_tail(sums, self.tail[i], self.largest[i], scale, windows)
            found.append(sums.masked_fill(self.infinite[i][:, None], math.inf))
        return found[0], found[1]


def _units_of_sums(rows: int, windows: int, again: Tensor, shared: int = 1) -> Tensor:
    """Returns units that a sum over ``rows`` rows of ``shared`` heads loses, with its planes."""
    units = WRITING + STEP * min(math.ceil(rows / 16), BLOCK // 16) + windows + SCALE
    chains = GROUP + shared * math.ceil(rows / GROUP) + 1 + SCALE
    return units + max(0, chains - units) * again.double()


def _with_tail(off: Tensor, tail: Tensor, largest: Tensor, scale: float, windows: int) -> Tensor:
    """Returns a bound from all of its terms; it is infinite where sums may overflow."""
    underflow = windows * UNDERFLOW * max(1, abs(scale))
    found = abs(scale) * (off + 1.01 * tail[:, None]) + underflow
    return found.masked_fill(~(max(1, abs(scale)) * largest < MOST_SUM), math.inf)
