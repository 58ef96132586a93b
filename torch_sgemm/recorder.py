"""A program's float32 products, and what each would gain: ``with recording() as record:``.

A TorchDispatchMode sees the products below autograd, those of a backward too, as ``enable()`` does.
It doesn't see what a captured CUDA graph replays and what kernels of PyTorch multiply inside;
``torch.compile`` runs uncompiled while it looks.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_sgemm import overrides
from torch_sgemm._library import operators, qualified
from torch_sgemm.choice import Device, explain
from torch_sgemm.private import OpOverload, TorchDispatchMode
from torch_sgemm.stays import flops_of, why_it_stays
from torch_sgemm.table import kernels

# Products, and the place of their first operand among the arguments.
PRODUCTS = {
    **{f"aten::{name}": 0 for name in ("mm", "bmm")},
    **{f"aten::{name}": 1 for name in ("addmm", "baddbmm", "addmm_", "baddbmm_")},
    **{qualified(name): 0 for name in ("mm", "mm_out", "bmm", "bmm_out", "linear")},
    **{qualified(name): 0 for name in ("_matmul", "_packed_mm")},
    **{qualified(name): 1 for name in ("addmm", "addmm_out", "baddbmm", "baddbmm_out")},
    **{qualified(name): 1 for name in ("gemm_", "packed_mm")},
}
# Without an addend, unless beta says otherwise.
_PLAIN = {name for name, first in PRODUCTS.items() if first == 0} | {qualified("gemm_")}

_LINEAR = qualified("linear")


class _View(NamedTuple):
    """An operand without its elements: (batch, rows, columns), their strides, and its first
    element's distance from an aligned address."""

    shape: tuple[int, int, int]
    strides: tuple[int, int, int]
    offset: int

    @property
    def letter(self) -> str:
        """N: rows lie together, T: columns do; S: neither."""
        if self.strides[2] == 1 or self.shape[2] == 1:
            return "N"
        return "T" if self.strides[1] == 1 or self.shape[1] == 1 else "S"

    def tensor(self, device: str) -> Tensor:
        """One like it, of normal elements unless ``device`` is meta."""
        steps = zip(self.shape, self.strides, strict=True)
        span = self.offset + 1 + sum((size - 1) * stride for size, stride in steps)
        flat = torch.empty(span, device=device)
        if device != "meta":
            flat.normal_()
        x = flat.as_strided(self.shape, self.strides, self.offset)
        return x if self.shape[0] > 1 else x[0]


def _view(x: Tensor) -> _View:
    """Of a matrix, or of a batch; dimensions in front of the last two count as one."""
    batch = math.prod(x.shape[:-2])
    stride = x.stride(-3) if x.dim() > 2 and batch > 1 else 0
    strides = stride, x.stride(-2), x.stride(-1)
    return _View((batch, x.shape[-2], x.shape[-1]), strides, x.storage_offset() % 4)


def _rows(x: Tensor) -> _View:
    """Of a layer's input, whose leading dimensions are rows."""
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
    """How often a product came, and the operands of its first call."""

    a: _View
    b: _View
    calls: int = 0


@dataclass(frozen=True)
class Product:
    """Equal float32 products of a program. Times are of one call's kernels, in seconds."""

    operation: str
    """``"aten::addmm"``, or an operator of this package."""
    device: str
    batch: int
    m: int
    n: int
    k: int
    layout: str
    """How A and then B are stored: N row-major, T transposed, S neither."""
    calls: int
    row: str
    """What ``"auto"`` takes, ``"aten"`` where that is PyTorch's own kernel."""
    predicted_torch: float
    predicted: float
    measured_torch: float | None = None
    """The measured ones: None unless :meth:`Record.measure` had room for the operands."""
    measured: float | None = None

    @property
    def label(self) -> str:
        """``512 x 4096 x 1024 NT``: m, n, k, a batch in front."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.layout}"

    @property
    def flops(self) -> int:
        """Of all calls: 2 m n k a product."""
        return 2 * self.batch * self.m * self.n * self.k * self.calls

    @property
    def seconds_torch(self) -> float:
        """PyTorch's time for all calls, measured if it was, else predicted."""
        one = self.predicted_torch if self.measured_torch is None else self.measured_torch
        return one * self.calls

    @property
    def seconds(self) -> float:
        """The time of ``row`` for all calls, measured if it was, else predicted."""
        return (self.predicted if self.measured is None else self.measured) * self.calls

    @property
    def gain(self) -> float:
        """2.0 where ``row`` is twice as fast as PyTorch."""
        return self.seconds_torch / self.seconds


@dataclass(frozen=True)
class Other:
    """What stays PyTorch's, and why."""

    operation: str
    device: str
    what: str
    """The shapes of the tensors, and their dtype."""
    reason: str
    calls: int
    flops: int | None
    """Of all calls; None if nobody has told PyTorch's counter how many there are."""


class Record:
    """What :func:`recording` saw. ``str()`` gives tables."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._seen: dict[_Key, _Seen] = {}
        self._others: dict[_OtherKey, list] = {}
        self._measured: dict[_Key, tuple[float, float]] = {}
        self._open = True

    # --- what the mode tells ---

    def _add(self, key: _Key, a: _View, b: _View) -> None:
        with self._lock:
            self._seen.setdefault(key, _Seen(a, b)).calls += 1

    def _add_other(self, key: _OtherKey, flops: int | None) -> None:
        with self._lock:
            entry = self._others.setdefault(key, [0, None])
            entry[0] += 1
            if flops is not None:
                entry[1] = (entry[1] or 0) + flops

    # --- what a user asks ---

    @property
    def products(self) -> tuple[Product, ...]:
        """The float32 products, those that take PyTorch longest first."""
        with self._lock:
            seen = [(key, value.a, value.b, value.calls) for key, value in self._seen.items()]
        found = [self._product(*entry) for entry in seen]
        return tuple(sorted(found, key=lambda p: p.seconds_torch, reverse=True))

    @property
    def others(self) -> tuple[Other, ...]:
        """What stays PyTorch's, the most operations first."""
        with self._lock:
            found = [Other(*key, *entry) for key, entry in self._others.items()]
        return tuple(sorted(found, key=lambda o: (o.flops or 0, o.calls), reverse=True))

    def measure(self) -> None:
        """Times each product that was recorded on a GPU, ``aten`` and ``auto`` by turns.

        By CUDA-graph replays, so that launches don't count, on normal elements, which stay in the
        L2 cache where they fit. A product whose operands find no memory stays predicted.

        Raises:
            RuntimeError: the ``with`` block is still open, and would record it.
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

    # --- in between ---

    def described(self, device: str) -> Device:
        """The device that products on ``device`` are predicted for."""
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
    """Whether ``device`` is a GPU, and this build has kernels for GPUs."""
    built = any(row.family and "cuda" in row.devices for row in kernels())
    return built and device.startswith("cuda")


def _measure(key: _Key, seen: _Seen) -> tuple[float, float]:
    """Seconds of aten and of auto."""
    from torch_sgemm.timing import seconds_by_turns  # its imports take longer than all else here

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
            with self:  # what an operator is made of, where autograd has not taken it apart
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
        """Notes a float32 product; or says why it is none of ours."""
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

    The block computes what it would without; it takes longer, and what ``torch.compile`` has
    compiled runs uncompiled. Products on the CPU and of meta tensors are recorded as well, so that
    a program may be looked at where there is no GPU.

    Args:
        device: what to predict times for. Unless given, the GPU that a product ran on, and an
            H200, ``Device()``, for products on the CPU or of meta tensors.

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
