"""A program's float32 products, what each would gain, and tables of both.

:mod:`torch_sgemm.measure.recorder` fills a :class:`Record`.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_sgemm.choice.explain import Device, explain
from torch_sgemm.choice.table import kernels
from torch_sgemm.measure.output import aligned
from torch_sgemm.torch_ops.library import operators


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


class OtherKey(NamedTuple):
    operation: str
    device: str
    what: str
    reason: str


@dataclass
class _Seen:
    """A product's number of calls, and the operands of the first one."""

    a: View
    b: View
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
        self._seen: dict[Key, _Seen] = {}
        self._others: dict[OtherKey, list] = {}
        self._measured: dict[Key, tuple[float, float]] = {}
        self._open = True

    def _add(self, key: Key, a: View, b: View) -> None:
        with self._lock:
            self._seen.setdefault(key, _Seen(a, b)).calls += 1

    def _add_other(self, key: OtherKey, flops: int | None) -> None:
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
        return text(self)

    def described(self, device: str) -> Device:
        """Returns the device that products on ``device`` are predicted for."""
        if self._device is not None:
            return self._device
        return Device.of(torch.device(device)) if _runs_on_gpu(device) else Device()

    def _product(self, key: Key, a: View, b: View, calls: int) -> Product:
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


def _measure(key: Key, seen: _Seen) -> tuple[float, float]:
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


class Table(NamedTuple):
    """A title, columns, and rows of texts; the first two columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def products_table(products: Iterable[Product], most: int | None = None) -> Table:
    """Tabulates the first ``most`` products, all if None; times are per call."""
    products = list(products)
    whole = sum(p.seconds_torch for p in products)
    is_measured = any(p.measured is not None for p in products)
    rows = []
    for p in products[:most]:
        cells = [
            p.operation, p.label, str(p.calls), _share(p.seconds_torch, whole),
            _time(p.predicted_torch), _time(p.predicted),
        ]  # fmt: skip
        if is_measured:
            cells += [_time(p.measured_torch), _time(p.measured)]
        rows.append((*cells, p.row, f"{p.gain:.2f}"))
    columns = ["operation", "m x n x k", "calls", "share", "torch", "auto"]
    if is_measured:
        columns[4:] = ["torch, predicted", "auto, predicted", "torch, measured", "auto, measured"]
    return Table("Float32 products", (*columns, "auto takes", "gain"), rows)


def others_table(others: Iterable[Other], most: int | None = None) -> Table:
    """Tabulates the operators that stay PyTorch's."""
    rows = [
        (
            o.operation, o.what, str(o.calls),
            "-" if o.flops is None else f"{o.flops * 1e-9:.3g}", o.reason,
        )
        for o in list(others)[:most]
    ]  # fmt: skip
    return Table("What stays PyTorch's", ("operation", "of", "calls", "GFLOP", "why"), rows)


def summary(record: Record) -> str:
    """Sums up all products in a sentence or two."""
    products = record.products
    if not products:
        return "No float32 product was seen."
    before, after = sum(p.seconds_torch for p in products), sum(p.seconds for p in products)
    how = "measured" if all(p.measured is not None for p in products) else "predicted"
    if how == "predicted" and any(p.measured is not None for p in products):
        how = "partly measured"
    devices = {record.described(p.device) for p in products}
    about = "; ".join(
        f"compute capability {d.arch // 10}.{d.arch % 10}, {d.sms} SMs, {d.clock_ghz:.3g} GHz"
        for d in devices
    )
    said = (
        f"The kernels of {sum(p.calls for p in products)} float32 products take "
        f"{_time(before)} with torch and {_time(after)} with auto, {how} for {about}: "
        f"{before / after:.2f} times as fast. All else takes as long as before."
    )
    if all(p.row == "aten" for p in products):
        said += " No row of this build is predicted to be faster than PyTorch's own kernel."
    return said


def text(record: Record, most: int | None = None) -> str:
    """Returns both tables, aligned, followed by the summary."""
    parts = []
    for table in (products_table(record.products, most), others_table(record.others, most)):
        if table.rows:
            words = (0, 1, len(table.columns) - 2)
            parts += [table.title, *aligned([table.columns, *table.rows], words), ""]
    return "\n".join([*parts, summary(record)])
