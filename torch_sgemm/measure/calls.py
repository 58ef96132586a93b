"""The calls of a program that a record holds: products, attention, and others."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class View(NamedTuple):
    """An operand's (batch, rows, columns), strides, and offset from an aligned address."""

    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    offset: int

    @property
    def letter(self) -> str:
        """N: rows are contiguous; T: columns are; S: neither."""
        if self.strides[2] == 1 or self.shape[2] == 1:
            return "N"
        return "T" if self.strides[1] == 1 or self.shape[1] == 1 else "S"

    def tensor(self, device: str) -> Tensor:
        """Returns a tensor like it, of normal elements unless ``device`` is meta."""
        steps = zip(self.shape, self.strides, strict=True)
        span = self.offset + 1 + sum((size - 1) * stride for size, stride in steps)
        flat = torch.empty(span, device=device)
        if device != "meta":
            flat.normal_()
        x = flat.as_strided(self.shape, self.strides, self.offset)
        return x if self.shape[0] > 1 else x[0]


class Key(NamedTuple):
    operation: str
    device: str
    sizes: tuple[int, int, int, int]  # batch, m, n, k
    layout: str
    factors: tuple[float, float]


class AttentionKey(NamedTuple):
    operation: str
    device: str
    sizes: tuple[int, int, int, int, int, int, int]  # batch, heads, groups, L, S, D, Dv
    is_causal: bool
    masked: bool
    backward: bool = False

    def tensors(self, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Returns query, key, value and mask, of normal elements unless ``device`` is meta."""
        batch, heads, groups, rows, keys, depth, value_depth = self.sizes
        shapes = (heads, rows, depth), (groups, keys, depth), (groups, keys, value_depth)
        fill = torch.empty if device == "meta" else torch.randn
        mask = fill(rows, keys, device=device) if self.masked else None
        query, key, value = (fill(batch, *shape, device=device) for shape in shapes)
        return query, key, value, mask


class OtherKey(NamedTuple):
    operation: str
    device: str
    what: str
    reason: str


class _Timed:
    """Times of equal calls."""

    calls: int
    predicted_torch: float
    predicted: float
    measured_torch: float | None
    measured: float | None

    @property
    def seconds_torch(self) -> float:
        """PyTorch's time for all calls, seconds, measured if possible, else predicted."""
        one = self.predicted_torch if self.measured_torch is None else self.measured_torch
        return one * self.calls

    @property
    def seconds(self) -> float:
        """The time of ``row`` for all calls, seconds, measured if possible, else predicted."""
        return (self.predicted if self.measured is None else self.measured) * self.calls

    @property
    def gain(self) -> float:
        """PyTorch's time over that of ``row``: 2.0 if ``row`` is twice as fast."""
        return self.seconds_torch / self.seconds


@dataclass(frozen=True)
class Product(_Timed):
    """Equal float32 products of a program. Times are those of one call's kernels, in seconds."""

    operation: str
    """``"aten::addmm"``, or an operator of this package."""
    device: str
    batch: int
    m: int
    n: int
    k: int
    layout: str
    """Storage of A and then B: N row-major, T transposed, S neither."""
    calls: int
    row: str
    """The row that ``"auto"`` takes, ``"aten"`` if that is PyTorch's own kernel."""
    predicted_torch: float
    predicted: float
    measured_torch: float | None = None
    """Measured times are None unless :meth:`Record.measure` had memory for the operands."""
    measured: float | None = None

    @property
    def label(self) -> str:
        """``512 x 4096 x 1024 NT``: m, n, k and layout, after the batch if any."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.layout}"

    @property
    def flops(self) -> int:
        """Operations of all calls, 2 m n k a product."""
        return 2 * self.batch * self.m * self.n * self.k * self.calls


@dataclass(frozen=True)
class Attention(_Timed):
    """Equal calls of float32 attention, or of its gradients. Times are those of one call's kernels,
    in seconds."""

    operation: str
    """``"aten::_scaled_dot_product_efficient_attention"``, say, or this package's operator."""
    device: str
    batch: int
    heads: int
    groups: int
    """Heads of keys and values."""
    queries: int
    keys: int
    depth: int
    value_depth: int
    is_causal: bool
    masked: bool
    backward: bool
    """True for gradients."""
    calls: int
    row: str
    """``"split"``, or ``"aten"`` if ``"auto"`` takes PyTorch's memory-efficient kernel."""
    predicted_torch: float
    predicted: float
    measured_torch: float | None = None
    measured: float | None = None

    @property
    def label(self) -> str:
        """``8 x 16 x 512 x 64 causal``: B, H, L and D, with H / groups, S and Dv if they differ.

        It ends with ``backward`` for gradients.
        """
        heads = f"{self.heads}" + (f" / {self.groups}" if self.groups != self.heads else "")
        keys = f" x {self.keys}" if self.keys != self.queries else ""
        depth = f"{self.depth}" + (
            f" / {self.value_depth}" if self.value_depth != self.depth else ""
        )
        kind = " causal" * self.is_causal + " mask" * self.masked + " backward" * self.backward
        return f"{self.batch} x {heads} x {self.queries}{keys} x {depth}{kind}"


@dataclass(frozen=True)
class Other:
    """An operation that stays PyTorch's, and why."""

    operation: str
    device: str
    what: str
    """The shapes of the tensors, and their dtype."""
    reason: str
    calls: int
    flops: int | None
    """Operations of all calls; None if PyTorch's counter doesn't know the operator."""
