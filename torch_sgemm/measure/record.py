"""A program's float32 products and attention, what each would gain, and tables of them.

:mod:`torch_sgemm.measure.recorder` fills a :class:`Record`.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from torch_sgemm.choice.explain import Device, explain
from torch_sgemm.choice.explain_attention import explain_attention
from torch_sgemm.choice.table import kernels
from torch_sgemm.measure.calls import Attention, AttentionKey, Key, Other, OtherKey, Product, View
from torch_sgemm.measure.output import aligned
from torch_sgemm.torch_ops.attention import checked
from torch_sgemm.torch_ops.library import operators


@dataclass
class _Seen:
    """A product's number of calls, and the operands of the first one."""

    a: View
    b: View
    calls: int = 0


class Record:
    """The result of :func:`recording`. ``str()`` gives tables."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._seen: dict[Key, _Seen] = {}
        self._others: dict[OtherKey, list] = {}
        self._attentions: Counter[AttentionKey] = Counter()
        self._measured: dict[Key | AttentionKey, tuple[float, float]] = {}
        self._open = True

    def _add(self, key: Key, a: View, b: View) -> None:
        with self._lock:
            self._seen.setdefault(key, _Seen(a, b)).calls += 1

    def _add_attention(self, key: AttentionKey) -> None:
        with self._lock:
            self._attentions[key] += 1

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
    def attentions(self) -> tuple[Attention, ...]:
        """The calls of float32 attention and of its gradients, longest first by PyTorch's time."""
        with self._lock:
            seen = list(self._attentions.items())
        found = [self._attention(*entry) for entry in seen]
        return tuple(sorted(found, key=lambda x: x.seconds_torch, reverse=True))

    @property
    def others(self) -> tuple[Other, ...]:
        """The operations that stay PyTorch's, most FLOP first."""
        with self._lock:
            found = [Other(*key, *entry) for key, entry in self._others.items()]
        return tuple(sorted(found, key=lambda o: (o.flops or 0, o.calls), reverse=True))

    def measure(self) -> None:
        """Times what was recorded on a GPU, ``aten`` and ``auto`` by turns.

        CUDA-graph replays leave out launch times. Operands are normal elements, which stay in the
        L2 cache if they fit. Problems that don't fit in memory stay predicted.

        Raises:
            RuntimeError: the ``with`` block is still open, and would record the measurement.
        """
        if self._open:
            raise RuntimeError("torch_sgemm.Record.measure: the recording is still going on")
        measures = {key: partial(_measure, key, seen) for key, seen in self._seen.items()}
        measures |= {key: partial(_measure_attention, key) for key in self._attentions}
        for key, measure in measures.items():
            if _runs_on_gpu(key.device) and key not in self._measured:
                try:
                    self._measured[key] = measure()
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

    def _attention(self, key: AttentionKey, calls: int) -> Attention:
        query, keys, value, mask = key.tensors("meta")
        explained = explain_attention(
            query, keys, value, mask, key.is_causal, enable_gqa=True,
            device=self.described(key.device), backward=key.backward,
        )  # fmt: skip
        seconds = {verdict.name: verdict.seconds for verdict in explained.verdicts}
        measured = self._measured.get(key, (None, None))
        about = *key[:2], *key.sizes, *key[3:], calls, explained.chosen
        return Attention(*about, seconds["aten"], seconds[explained.chosen], *measured)


def _runs_on_gpu(device: str) -> bool:
    """True if ``device`` is a GPU and this build has kernels for GPUs."""
    built = any(row.family and "cuda" in row.devices for row in kernels())
    return built and device.startswith("cuda")


def _measure(key: Key, seen: _Seen) -> tuple[float, float]:
    """Returns the seconds of aten and of auto."""
    alpha, beta = key.factors
    batch, m, n, _ = key.sizes
    a, b = seen.a.tensor(key.device), seen.b.tensor(key.device)
    c = torch.zeros((batch, m, n) if batch > 1 else (m, n), device=key.device)

    def side(kernel: str):
        return lambda: operators.gemm_(c, a, b, kernel=kernel, alpha=alpha, beta=beta)

    return _by_turns(side("aten"), side("auto"), c.device)


def _measure_attention(key: AttentionKey) -> tuple[float, float]:
    """Returns the seconds of aten and of auto."""
    query, keys, value, mask = key.tensors(key.device)
    rest = mask, key.is_causal, None, True

    def forward(kernel: str):
        return lambda: operators.attention(query, keys, value, *rest, kernel)

    def backward(kernel: str):
        call = checked(query, keys, value, *rest, kernel)
        out, logsumexp = operators.attention(query, keys, value, *rest)
        results = out, logsumexp, call.is_causal, call.scale
        wanted, grad = (True, True, False), torch.ones_like(out)
        return lambda: operators._attention_backward(grad, *call[:4], *results, *wanted, kernel)

    side = backward if key.backward else forward
    return _by_turns(side("aten"), side("auto"), query.device)


def _by_turns(torchs, ours, device: torch.device) -> tuple[float, float]:
    # Its imports take longer than all else here.
    from torch_sgemm.measure.timing import seconds_by_turns

    of_torch, of_ours = seconds_by_turns([torchs, ours], device)
    return of_torch, of_ours


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


def products_table(
    products: Iterable[Product | Attention],
    most: int | None = None,
    title: str = "Float32 products",
    sizes: str = "m x n x k",
) -> Table:
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
    columns = ["operation", sizes, "calls", "share", "torch", "auto"]
    if is_measured:
        columns[4:] = ["torch, predicted", "auto, predicted", "torch, measured", "auto, measured"]
    return Table(title, (*columns, "auto takes", "gain"), rows)


def tables(record: Record, most: int | None = None) -> tuple[Table, ...]:
    """Returns the tables that have rows."""
    attentions = products_table(record.attentions, most, "Float32 attention", "B x H x L x S x D")
    found = products_table(record.products, most), attentions, others_table(record.others, most)
    return tuple(table for table in found if table.rows)


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
    attentions = record.attentions
    products = record.products + attentions
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
    what = f"{sum(p.calls for p in record.products)} float32 products"
    if attentions:
        what += f" and {sum(p.calls for p in attentions)} calls of attention"
    said = (
        f"The kernels of {what} take "
        f"{_time(before)} with torch and {_time(after)} with auto, {how} for {about}: "
        f"{before / after:.2f} times as fast. All else takes as long as before."
    )
    if all(p.row == "aten" for p in products):
        said += " No row of this build is predicted to be faster than PyTorch's own kernel."
    return said


def text(record: Record, most: int | None = None) -> str:
    """Returns the tables, aligned, followed by the summary."""
    parts = []
    for table in tables(record, most):
        words = (0, 1, len(table.columns) - 2)
        parts += [table.title, *aligned([table.columns, *table.rows], words), ""]
    return "\n".join([*parts, summary(record)])
