"""The proven bound of attention's error, for given operands: docs/attention-error.md derives it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_sgemm.torch_ops.ops import broadcasts, check_tensors

UNIT = 2.0**-24
CUT, LAST = 8.5, 2  # units of a step's largest term, cut off below it, and of its sum's last bit
STEP = 10.55  # both where all are as large as the whole sum, with the corrections' steps
CORRECTIONS = 0.05  # of these
WRITING = 8.01  # units of both operands' lo planes, and of lo * lo
EXP2 = 5.01  # units: ex2.approx is off by 2 units of the last place and a rounding (PTX ISA 9.1)
DISTANCE = 2.3  # units of a logit's distance from its row's largest: roundings, and log2(e)
SCALE = 1  # unit of a logit: the scale as float32
# Units by which logits are multiplied up, with their factor's rounding, and more for each step.
REGAINED = (1.4, 0.28)
DECIDING, LARGE = 8, 3 << 23  # keys that decide on the order of steps; bits between large and small
QUANTUM = 2.0**-25  # largest error of a subnormal lo, beside a largest element from 2^14 on
TOP, LEAST = 14, -112  # that element's exponent; smaller ones of a row or block count as 2^-112
# What a step loses at most because a subnormal operand counts as 2^-14, opposite one of up to 2^15,
# which is what hi of the largest elements rounds to.
SUBNORMALS = 17 * 2 * QUANTUM
# Rows are recomputed in float32 if a block's factor of sums is above MOST_FACTOR times the largest
# logit's magnitude, which counts as 1 at least and with a mask as MOST_MASKED at most; and without
# a mask above a logit of MOST_LOGIT.
MOST_FACTOR, MOST_MASKED, MOST_LOGIT = 2.0**-16, 16.0, 2.0**21
WINDOW = 64  # keys that an accumulator of P V adds up
GROUP, CHAINS = 32, 4  # recomputed: keys of a sum, sums of a dot product
CHUNK = 1 << 21  # elements of a block of logits
MOST = 600.0  # of an exponent, so that infinite bounds of weights stay numbers


@torch.no_grad()
def attention_error_bound(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Bounds the error of each element of ``attention(..., kernel="split")``.

    It is proven for finite operands where value, mask and |query||key|^T, alone and times scale,
    are below 2^127.

    The bound is absolute, not in units: |output - exact| <= bound, where exact is softmax(scale
    query key^T + attn_mask) value of real numbers. It holds for the tensor cores' arithmetic as
    measured (docs/split.md) and the error of ex2.approx that the PTX ISA allows.
    docs/attention-error.md states and proves the formula. It takes float64 products of the
    operands' size, in blocks of queries.

    Args:
        query: (B, H, L, D), float32.
        key: (B, G, S, D); G is H, or with ``enable_gqa`` a divisor of it.
        value: (B, G, S, Dv).
        attn_mask: bool or float32 that broadcasts to (B, H, L, S).
        is_causal: key j takes part in row i if j <= i.
        scale: 1 / sqrt(D) if None.
        enable_gqa: H / G heads of queries share a head of keys.

    Returns:
        The bound, (B, H, L, Dv), float64 on the operands' device. It is 0 for rows without a key.
        It means nothing for rows where a key that takes part isn't finite.

    Raises:
        TypeError: an operand or the mask is no tensor.
        ValueError: sizes don't fit together, or the depth is 0.
    """
    name = "attention_error_bound"
    attn_mask = checked_mask(name, query, key, value, attn_mask, enable_gqa)
    batches, heads, rows, depth = query.shape
    scale = depth**-0.5 if scale is None else float(scale)
    masked = attn_mask is not None
    result = query.new_zeros(batches, heads, rows, value.size(3), dtype=torch.float64)
    if 0 in (*result.shape, key.size(2)):
        return result
    shared = heads // key.size(1)
    for b in range(batches):
        for h in range(heads):
            head = Head.of(key[b, h // shared], value[b, h // shared], scale, masked)
            step = max(1, CHUNK // max(1, key.size(2)))
            for first in range(0, rows, step):
                part = slice(first, first + step)
                mask = attn_mask[b, h, part] if masked else None
                result[b, h, part] = head.rows(query[b, h, part], mask, first, is_causal).bound
    return result


def checked_mask(
    function: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, gqa: bool
) -> Tensor | None:
    """Checks that sizes fit together; returns the mask, expanded to (B, H, L, S)."""

    def require(holds: bool, name: str, tensor: Tensor, accepted: str) -> None:
        if not holds:
            found = tuple(tensor.shape)
            raise ValueError(
                f"torch_sgemm.{function}: {name} is of shape {found}; accepted: {accepted}"
            )

    operands = {"query": query, "key": key, "value": value}
    masks = {} if mask is None else {"attn_mask": mask}
    check_tensors(f"torch_sgemm.{function}", **operands, **masks)
    for name, x in operands.items():
        require(x.dim() == 4, name, x, "(batches, heads, rows, depth)")
    b, h, rows, d = query.shape
    require(d > 0, "query", query, "a depth of 1 or more")
    g, keys = key.shape[1:3]
    require(key.size(0) == b and key.size(3) == d, "key", key, "the query's batches and depth")
    fits = (h % g == 0 if gqa else h == g) if g else h == 0
    require(fits, "key", key, "the query's heads, or a divisor of these with enable_gqa")
    require(value.shape[:3] == key.shape[:3], "value", value, "the key's batches, heads and rows")
    if mask is None:
        return None
    shape = b, h, rows, keys
    require(broadcasts(mask, shape), "attn_mask", mask, f"a shape that broadcasts to {shape}")
    return mask.expand(shape)


def truncations(x: Tensor, y: Tensor, orders: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns |x||y|^T and what the steps of x y^T truncate at most, in units.

    ``orders``: the steps in the order in which they are added up for each row of y.
    """
    steps = math.ceil(x.size(1) / 16)
    if orders is None:
        orders = torch.arange(steps, device=y.device).expand(len(y), steps)
    sizes, result = x.new_zeros(len(x), len(y)), x.new_zeros(len(x), len(y))
    kinds, of_row = orders.unique(dim=0, return_inverse=True)
    for number, order in enumerate(kinds.tolist()):
        rows = of_row == number
        size = units = total = x.new_zeros(len(x), int(rows.sum()))
        for step in order:
            left, right = x[:, 16 * step : 16 * step + 16], y[rows, 16 * step : 16 * step + 16]
            of_step = left.abs() @ right.abs().t()
            size = size + of_step
            units = units + CUT * torch.maximum(total.abs(), of_step)
            total = total + left @ right.t()
            units = units + LAST * total.abs()
        sizes[:, rows] = size
        result[:, rows] = units + CORRECTIONS * steps * size
    return sizes, result


def regained(depth: int) -> float:
    """Returns the units by which the factor of logits makes good for truncation."""
    return REGAINED[0] + REGAINED[1] * math.ceil(depth / 16)


def quanta(x: Tensor, y: Tensor, x_powers: Tensor, y_powers: Tensor) -> Tensor:
    """Returns the error of x y^T that comes from subnormal parts of the planes.

    The powers are those of each row; ``y_powers`` may have a row for each row of x.
    """
    steps = 3 * math.ceil(x.size(1) / 16)
    x_powers = x_powers[:, None]
    elements = x_powers * y.abs().sum(1) + y_powers * x.abs().sum(1)[:, None]
    return QUANTUM * 1.01 * elements + steps * SUBNORMALS * x_powers * y_powers


def powers_of(largest: Tensor) -> Tensor:
    """The powers of two that scale rows, or blocks, with these largest magnitudes."""
    exponent = (torch.frexp(largest)[1] - 1).clamp(min=LEAST)
    exponent = torch.where(largest == 0, LEAST, exponent)
    return torch.ldexp(torch.ones_like(largest), exponent - TOP)


def by_blocks(x: Tensor, length: int, fill: float) -> Tensor:
    """[..., S] as [..., blocks, length]."""
    short = -x.size(-1) % length
    return torch.nn.functional.pad(x, (0, short), value=fill).unflatten(-1, (-1, length))


@dataclass(frozen=True)
class Rows:
    """Some rows of a head: their logits, and bounds."""

    logits: Tensor  # exact, [rows, S]; -Inf where a key takes no part
    errors: Tensor  # bounds of what the weights' logarithms are off by, [rows, S]
    again: Tensor  # rows that may be recomputed, [rows]
    bound: Tensor  # of the output's error, [rows, Dv]


@dataclass(frozen=True)
class Head:
    """A head's keys and values; ``block`` keys share a scale."""

    k: Tensor
    v: Tensor
    scale: float
    masked: bool
    block: int
    finite: bool
    k_powers: Tensor  # [blocks]; infinite for a block with Inf or NaN, where rows are recomputed
    v_powers: Tensor  # [blocks]; 0 for such a block

    @staticmethod
    def of(k: Tensor, v: Tensor, scale: float, masked: bool) -> "Head":
        k, v = k.double(), v.double()
        block = 128 if max(k.size(1), v.size(1)) <= 64 else 64
        largest = [by_blocks(x.abs().amax(1), block, 0).amax(1) for x in (k, v)]
        finite = [x.isfinite() for x in largest]
        powers = [powers_of(x.nan_to_num(1, 1)) for x in largest]
        return Head(
            k.nan_to_num(0, 0, 0),
            v.nan_to_num(0, 0, 0),
            scale,
            masked,
            block,
            all(bool(x.all()) for x in finite),
            powers[0].masked_fill(~finite[0], math.inf),
            powers[1].masked_fill(~finite[1], 0),
        )

    def of_key(self, of_block: Tensor) -> Tensor:
        """[..., blocks] as [..., S]."""
        return of_block.repeat_interleave(self.block, -1)[..., : len(self.k)]

    def orders(self) -> Tensor:
        """The order in which the steps of 16 along the depth are added up, [S, steps]."""
        keys = self.k.abs().float()
        keys = torch.nn.functional.pad(keys, (0, -keys.size(1) % 16, 0, -len(keys) % self.block))
        deciding = keys.unflatten(0, (-1, self.block))[:, :DECIDING].unflatten(2, (-1, 16))
        largest = deciding.amax((1, 3)).view(torch.int32)
        large = largest >= (largest.amax(1, keepdim=True) - LARGE).clamp(min=0)
        return self.of_key(large.int().argsort(dim=1, stable=True).t()).t()

    # --- weights ----------------------------------------------------------------------------

    def logits(self, q: Tensor, mask: Tensor | None, first: int, causal: bool) -> Tensor:
        """Exact logits [rows, S]; -Inf where a key takes no part."""
        x = self.scale * (q @ self.k.t())
        if mask is not None and mask.dtype == torch.bool:
            x = x.masked_fill(~mask, -math.inf)
        elif mask is not None:
            x = x + mask.double()
        if causal:
            row = torch.arange(first, first + len(q), device=q.device)
            x = x.masked_fill(torch.arange(len(self.k), device=q.device) > row[:, None], -math.inf)
        return x

    def factors(self, q_powers: Tensor) -> Tensor:
        """Factors of a block's sums, [rows, blocks]."""
        log2e = 1.0 if self.masked else math.log2(math.e)
        return abs(self.scale) * log2e * q_powers[:, None] * self.k_powers

    def largest_logits(self, x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Least and greatest magnitude of the largest logit up to a block, [rows, blocks].

        They are in the factors' unit; computed logits are off by ``error`` at most, [rows, 1].
        """
        m = by_blocks(x, self.block, -math.inf).amax(2).cummax(1)[0].abs()
        unit = 1.0 if self.masked else math.log2(math.e)
        return (m - error) * unit * (1 - 2.0**-15), (m + error) * unit * (1 + 2.0**-15)

    def allowed(self, largest: Tensor) -> Tensor:
        """The factors beyond which rows are recomputed."""
        return MOST_FACTOR * largest.clamp(min=1, max=MOST_MASKED if self.masked else math.inf)

    def quanta(self, q: Tensor, q_powers: Tensor, largest: Tensor) -> Tensor:
        """Errors of logits from subnormal parts of planes; 0 where rows are recomputed."""
        k_powers = self.of_key(self.k_powers)
        kept = self.of_key(self.factors(q_powers) <= self.allowed(largest) * (1 + 2.0**-20))
        return torch.where(kept, abs(self.scale) * quanta(q, self.k, q_powers, k_powers), 0)

    def log_weight_errors(self, q: Tensor, x: Tensor, again: Tensor) -> Tensor:
        """Bounds of what the weights' logarithms are off by, [rows, S].

        New maxima and the planes' quanta come on top. ``again``: rows that may be recomputed.
        """
        parts = truncations(q, self.k, self.orders())
        size, truncated = (abs(self.scale) * part for part in parts)
        units = (WRITING + SCALE + regained(q.size(1))) * size + truncated
        chains = (math.ceil(q.size(1) / CHAINS) + CHAINS) * size
        units = torch.where(again[:, None], torch.maximum(units, chains), units) + EXP2
        units = units + DISTANCE * (x.amax(1, keepdim=True) - x).nan_to_num(0, 0)
        if self.masked:
            units = units + 1.001 * x.abs()
        return torch.where(x == -math.inf, 0, UNIT * units)

    def new_maxima(self, x: Tensor, errors: Tensor) -> Tensor:
        """How often a row's largest logit may rise behind a key, by groups of 32: [rows, S]."""
        most = by_blocks(x + errors, GROUP, -math.inf).amax(2)
        least = by_blocks(x - errors, GROUP, -math.inf).amax(2).cummax(1)[0]
        rises = torch.zeros_like(most)
        rises[:, 1:] = (most[:, 1:] > least[:, :-1]).double()
        behind = rises.flip(1).cumsum(1).flip(1) - rises
        return behind.repeat_interleave(GROUP, 1)[:, : len(self.k)]

    # --- the bound --------------------------------------------------------------------------

    def units_of_weights(self) -> int:
        """Units of a row's sum of weights."""
        return self.block // 8 + 1 + math.ceil(len(self.k) / self.block)

    def units_of_sums(self, recomputed: Tensor) -> Tensor:
        """Units of P|V| that the sums, their quotient and the planes of P and V cost, [rows, 1]."""
        keys = len(self.k)
        windows = math.ceil(keys / WINDOW)
        of_output = WRITING + STEP * min(math.ceil(keys / 16), WINDOW // 16) + windows
        again = GROUP + 2 * math.ceil(keys / GROUP) + 6
        units = of_output + self.units_of_weights() + 2
        return (units + max(0, again - units) * recomputed.double())[:, None]

    def rows(self, q: Tensor, mask: Tensor | None, first: int, causal: bool) -> Rows:
        """Rows ``first`` to first + len(q) of the output."""
        q = q.double()
        finite = q.isfinite().all(1)
        q = q.nan_to_num(0, 0, 0)
        q_powers = powers_of(q.abs().amax(1))
        x = self.logits(q, mask, first, causal)
        errors = self.log_weight_errors(q, x, torch.ones_like(finite))
        least, most = self.largest_logits(x, errors.amax(1, keepdim=True))
        kept = (self.factors(q_powers) < self.allowed(least) * (1 - 2.0**-20)).all(1)
        if not self.masked:
            kept &= (most < MOST_LOGIT).all(1)
        again = ~kept | ~finite
        if not self.finite:
            again = torch.ones_like(again)
        quanta = self.quanta(q, q_powers, most)
        errors, found = self.bound_of(self.log_weight_errors(q, x, again), quanta, x, again)
        # Rows far below V's largest element are recomputed as well.
        exact = (x - x.logsumexp(1, keepdim=True)).exp().nan_to_num(0) @ self.v
        power = float(self.v_powers.amax())
        small = (exact.abs() - found).amax(1) < power * (1 + 2.0**-10)
        if power > 2.0 ** (LEAST - TOP) and bool((small & ~again).any()):
            again = again | small
            others = self.bound_of(self.log_weight_errors(q, x, again), quanta, x, again)
            errors, found = map(torch.maximum, (errors, found), others)
        return Rows(x, errors, again, found)

    def bound_of(
        self, errors: Tensor, quanta: Tensor, x: Tensor, again: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns bounds of the weights' logarithms, with all terms, and of the output."""
        errors = torch.where(x == -math.inf, 0, errors + quanta)
        top = (x + errors >= (x - errors).amax(1, keepdim=True)) & (x > -math.inf)
        of_top = torch.where(top, errors, 0).amax(1, keepdim=True)
        errors = errors + EXP2 * UNIT * self.new_maxima(x, errors)

        total = x.logsumexp(1, keepdim=True)
        log_p = x - total
        shift = (log_p + errors).logsumexp(1, keepdim=True)
        most = (log_p + errors + shift).clamp(max=MOST).exp()  # of a computed weight
        sizes = self.v.abs()
        exact = log_p.exp() @ sizes
        spread = self.v.amax(0) - self.v.amin(0)
        of_weights = ((most - log_p.exp()) @ sizes).clamp(max=spread)
        units = self.units_of_sums(again)
        of_sums = (UNIT * units).expm1() * (exact + of_weights)
        largest = x.amax(1, keepdim=True)
        inverse = (largest - total + shift + 4 * of_top).clamp(max=0.2).exp()  # of the weights' sum
        tail = self.tail(x - largest + errors, inverse, most.clamp(max=1), x > -math.inf)
        subnormals = (1 + (1.1 * len(self.k) + 4) * again.double())[:, None] * 2.0**-150
        found = of_weights + of_sums + tail + subnormals
        return errors, torch.where(largest == -math.inf, 0, found)

    def tail(self, log_p: Tensor, inverse: Tensor, share: Tensor, present: Tensor) -> Tensor:
        """Errors that don't scale with P|V|: subnormal parts of P's and V's planes, [rows, Dv].

        ``log_p`` are logarithms of weights over their row's largest, ``inverse`` is one over the
        weights' sum, and ``share`` their quotients, all at their largest.
        """
        quantum = QUANTUM * 2.0**-TOP  # of a weight
        lost = log_p.clamp(max=math.log(quantum)).exp() @ self.v.abs()
        powers = self.v_powers
        per_block = by_blocks(present.double(), self.block, 0).amax(2)
        by_alignment = 12 * (self.block // WINDOW) * SUBNORMALS * 2.0**-TOP * (per_block @ powers)
        of_values = (QUANTUM * share) @ self.of_key(powers)
        of_values = torch.minimum(of_values, QUANTUM * (per_block * powers).amax(1))
        by_range = len(self.k) * 2.0**-134 * powers.amax()
        return 1.01 * (inverse * (lost + by_alignment[:, None] + by_range) + of_values[:, None])
