"""A program's float32 products, and what each would gain: ``with recording() as record:``.

A TorchDispatchMode sees the products below autograd, also those of a backward, as ``enable()``
does. It doesn't see replays of CUDA graphs or products inside PyTorch's kernels, and runs
``torch.compile`` uncompiled.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_sgemm.choice.explain import Device, explain
from torch_sgemm.choice.table import kernels
from torch_sgemm.dropin import overrides
from torch_sgemm.measure.stays import flops_of, why_it_stays
from torch_sgemm.torch_ops.library import operators, qualified
from torch_sgemm.torch_ops.private import OpOverload, TorchDispatchMode

# Index of A among the arguments, by operator.
PRODUCTS = {
    **{f"aten::{name}": 0 for name in ("mm", "bmm")},
    **{f"aten::{name}": 1 for name in ("addmm", "baddbmm", "addmm_", "baddbmm_")},
    **{qualified(name): 0 for name in ("mm", "mm_out", "bmm", "bmm_out", "linear")},
    **{qualified(name): 0 for name in ("_matmul", "_packed_mm")},
    **{qualified(name): 1 for name in ("addmm", "addmm_out", "baddbmm", "baddbmm_out")},
    **{qualified(name): 1 for name in ("gemm_", "packed_mm")},
}
# Operators whose beta is 0 unless given.
_PLAIN = {name for name, first in PRODUCTS.items() if first == 0} | {qualified("gemm_")}

_LINEAR = qualified("linear")


class _View(NamedTuple):
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


def _view(x: Tensor) -> _View:
    """Describes a matrix, or a batch, whose dimensions before the last two count as one."""
    batch = math.prod(x.shape[:-2])
    stride = x.stride(-3) if x.dim() > 2 and batch > 1 else 0
    strides = stride, x.stride(-2), x.stride(-1)
    return _View((batch, x.shape[-2], x.shape[-1]), strides, x.storage_offset() % 4)


def _rows(x: Tensor) -> _View:
    """Describes a layer's input, whose leading dimensions are rows."""
    if x.dim() == 1:
        return _View((1, 1, x.shape[0]), (0, x.shape[0], x.stride(0)), x.storage_offset() % 4)
    shape = (1, math.prod(x.shape[:-1]), x.shape[-1])
    return _View(shape, (0, x.stride(-2), x.stride(-1)), x.storage_offset() % 4)


class _Key(NamedTuple):
    operation: str
    device: str
    sizes: tuple[int, int, int, int]  # batch, m, n, k
    layout: str
    factors: tuple[float, float]


class _OtherKey(NamedTuple):
    operation: str
    device: str
    what: str
    reason: str


@dataclass
class _Seen:
    """A product's number of calls, and the operands of the first one."""

    a: _View
    b: _View
    calls: int = 0


@dataclass(frozen=True)
class Product:
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


class Record:
    """The result of :func:`recording`. ``str()`` gives tables."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._seen: dict[_Key, _Seen] = {}
        self._others: dict[_OtherKey, list] = {}
        self._measured: dict[_Key, tuple[float, float]] = {}
        self._open = True

    def _add(self, key: _Key, a: _View, b: _View) -> None:
        with self._lock:
            self._seen.setdefault(key, _Seen(a, b)).calls += 1

    def _add_other(self, key: _OtherKey, flops: int | None) -> None:
        with self._lock:
            entry = self._others.setdefault(key, [0, None])
            entry[0] += 1
            if flops is not None:
                entry[1] = (entry[1] or 0) + flops

    @property
    def products(self) -> tuple[Product, ...]:
        """The float32 products, by PyTorch's time, longest first."""
        with self._lock:
            seen = [(key, value.a, value.b, value.calls) for key, value in self._seen.items()]
        found = [self._product(*entry) for entry in seen]
        return tuple(sorted(found, key=lambda p: p.seconds_torch, reverse=True))

    @property
    def others(self) -> tuple[Other, ...]:
        """The operations that stay PyTorch's, most FLOP first."""
        with self._lock:
            found = [Other(*key, *entry) for key, entry in self._others.items()]
        return tuple(sorted(found, key=lambda o: (o.flops or 0, o.calls), reverse=True))

    def measure(self) -> None:
        """Times each product that was recorded on a GPU, ``aten`` and ``auto`` by turns.

        CUDA-graph replays leave out launch times. Operands are normal elements, which stay in the
        L2 cache if they fit. A product whose operands don't fit in memory stays predicted.

        Raises:
            RuntimeError: the ``with`` block is still open, and would record the measurement.
        """
        if self._open:
            raise RuntimeError("torch_sgemm.Record.measure: the recording is still going on")
        for key, seen in list(self._seen.items()):
            if _runs_on_gpu(key.device) and key not in self._measured:
                try:
                    self._measured[key] = _measure(key, seen)
                except RuntimeError as failure:
                    if "out of memory" not in str(failure):
                        raise
                    torch.cuda.empty_cache()

    def __str__(self) -> str:
        from torch_sgemm.advise import text

        return text(self)

    def described(self, device: str) -> Device:
        """Returns the device that products on ``device`` are predicted for."""
        if self._device is not None:
            return self._device
        return Device.of(torch.device(device)) if _runs_on_gpu(device) else Device()

    def _product(self, key: _Key, a: _View, b: _View, calls: int) -> Product:
        alpha, beta = key.factors
        explained = explain(
            a.tensor("meta"), b.tensor("meta"), alpha=alpha, beta=beta,
            device=self.described(key.device),
        )  # fmt: skip
        seconds = {verdict.name: verdict.seconds for verdict in explained.verdicts}
        torchs, ours = seconds["aten"], seconds[explained.chosen]
        measured = self._measured.get(key, (None, None))
        about = key.operation, key.device, *key.sizes, key.layout, calls, explained.chosen
        return Product(*about, torchs, ours, *measured)


def _runs_on_gpu(device: str) -> bool:
    """True if ``device`` is a GPU and this build has kernels for GPUs."""
    built = any(row.family and "cuda" in row.devices for row in kernels())
    return built and device.startswith("cuda")


def _measure(key: _Key, seen: _Seen) -> tuple[float, float]:
    """Returns the seconds of aten and of auto."""
    from torch_sgemm.measure.timing import (
        seconds_by_turns,  # its imports take longer than all else here
    )

    alpha, beta = key.factors
    batch, m, n, _ = key.sizes
    a, b = seen.a.tensor(key.device), seen.b.tensor(key.device)
    c = torch.zeros((batch, m, n) if batch > 1 else (m, n), device=key.device)

    def side(kernel: str):
        return lambda: operators.gemm_(c, a, b, kernel=kernel, alpha=alpha, beta=beta)

    torchs, ours = seconds_by_turns([side("aten"), side("auto")], c.device)
    return torchs, ours


class _Recorder(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # torch.cond, flex_attention and the like
            result = func(*args, **kwargs)
            operation = f"higher_order::{func.name()}"
            self._stays(None, operation, "products inside, not seen", args, kwargs, result)
            return result
        operation = func.name().partition(".")[0]
        first = PRODUCTS.get(operation)
        reason = None if first is not None else why_it_stays(operation)
        if first is None and reason is None:
            with self:  # sees the parts of an operator that autograd has not split
                inside = func.decompose(*args, **kwargs)
            if inside is not NotImplemented:
                return inside
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if first is not None:
            reason = self._product(operation, args, kwargs)
        if reason:
            self._stays(func, operation, reason, args, kwargs, result)
        return result

    def _product(self, operation: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Records a float32 product; for others returns the reason why they stay."""
        first = PRODUCTS[operation]
        a, b = args[first], args[first + 1]
        if a.dtype != torch.float32 or b.dtype != torch.float32:
            return "dtype"
        if a.layout != torch.strided or b.layout != torch.strided:
            return "layout"
        precision = torch.backends.cuda.matmul.fp32_precision
        if operation.startswith("aten") and precision not in overrides.FLOAT32:
            return "precision"
        plain = operation in _PLAIN or args[0] is None
        factors = kwargs.get("alpha", 1), kwargs.get("beta", 0 if plain else 1)
        if any(isinstance(factor, complex) for factor in factors):
            return "factor"
        device = str(a.device)
        a, b = (_rows(a), _view(b.t())) if operation == _LINEAR else (_view(a), _view(b))
        sizes = (*a.shape[:2], b.shape[2], a.shape[2])
        if all(sizes):
            factors = float(factors[0]), float(factors[1])
            key = _Key(operation, device, sizes, a.letter + b.letter, factors)
            self._record._add(key, a, b)
        return ""

    def _stays(
        self,
        func: OpOverload | None,
        operation: str,
        reason: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        tensors = [x for x in args if isinstance(x, Tensor)][:3]
        shapes = ", ".join(" x ".join(map(str, x.shape)) or "1" for x in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        device = str(tensors[0].device) if tensors else ""
        key = _OtherKey(operation, device, f"{shapes} {dtype}", reason)
        flops = None if func is None else flops_of(func, args, kwargs, result)
        self._record._add_other(key, flops)


@contextmanager
def recording(device: Device | None = None) -> Iterator[Record]:
    """Records the float32 products of a ``with`` block, and what stays PyTorch's.

    The block's results don't change, but it takes longer, and functions that ``torch.compile`` has
    compiled run uncompiled. Products on the CPU and of meta tensors are recorded as well, so that a
    program can be examined without a GPU.

    Args:
        device: the device to predict times for. Unless given, it is the GPU that a product ran on,
            or an H200, ``Device()``, for products on the CPU or of meta tensors.

    Yields:
        The :class:`Record`, to be read during the block or afterwards.

    Raises:
        RuntimeError: ``device`` is no :class:`torch_sgemm.Device`.
    """
    if device is not None and not isinstance(device, Device):
        raise RuntimeError(
            f"torch_sgemm.recording: argument 'device' is {device!r}; accepted: "
            "torch_sgemm.Device(...)"
        )
    record = Record(device)
    try:
        with _Recorder(record):
            yield record
    finally:
        record._open = False
