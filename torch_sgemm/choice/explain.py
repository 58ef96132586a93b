"""``explain``: which row of the table a product takes, and why not the others."""

import json
import math
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from torch_sgemm.torch_ops.library import OPERAND_DTYPES, operators
from torch_sgemm.torch_ops.ops import about, broadcasts, check_tensors


@dataclass(frozen=True)
class Device:
    """A device as the cost model sees it. The defaults are an H200.

    Raises:
        ValueError: ``type`` is not ``"cuda"`` or ``"cpu"``; a GPU's ``arch``, ``sms`` or
            ``code_arch`` is no integer or too small; a clock, bandwidth or cache size is not
            positive and finite.
    """

    type: str = "cuda"
    arch: int = 90
    """Compute capability, 90 for 9.0."""
    sms: int = 132
    clock_ghz: float = 1.98
    bandwidth_gbs: float = 4300.0
    """Device memory bandwidth of a copy, GB/s, counting bytes read and bytes written."""
    l2_mb: float = 60.0
    code_arch: int | None = None
    """Architecture of the code that runs there, ``arch`` or lower; 0: none, None: ``arch``."""
    name: str = "NVIDIA H200"
    """The name from ``torch.cuda.get_device_name``; tuned choices hold for GPUs of that name."""
    tensor_rate: float = 1.0
    """16-bit tensor-core operations of an SM in a cycle, an H200's being 1: 0.25 for an H20."""

    def __post_init__(self) -> None:
        if self.type not in ("cuda", "cpu"):
            raise self._refusal("type", "'cuda' or 'cpu'")
        if self.type == "cpu":
            return
        for name, least in (("arch", 10), ("sms", 1), ("code_arch", 0)):
            value = getattr(self, name)
            if name == "code_arch" and value is None:
                continue
            if type(value) is not int or value < least:
                raise self._refusal(name, f"a whole number, {least} or more")
        for name in ("clock_ghz", "bandwidth_gbs", "l2_mb", "tensor_rate"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise self._refusal(name, "a finite number above 0")

    def _refusal(self, name: str, accepted: str) -> ValueError:
        found = getattr(self, name)
        return ValueError(
            f"torch_sgemm.Device: argument {name!r} is {found!r}; accepted: {accepted}"
        )

    @staticmethod
    def of(device: torch.device) -> "Device":
        """Describes an existing device.

        Raises:
            RuntimeError: the device is not a CPU or CUDA device, or the build has no CUDA kernels.
        """
        if device.type == "cpu":
            return Device("cpu", arch=0, sms=0, clock_ghz=0, bandwidth_gbs=0, l2_mb=0, name="CPU")
        if device.type != "cuda":
            raise RuntimeError(
                f"torch_sgemm: device {device} is neither a CPU nor a CUDA device; "
                "describe one with Device(...)"
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        _, arch, sms, khz, mbs, l2, code, rate = operators._device(index)
        rates = khz * 1e-6, mbs * 1e-3, l2 / 2**20
        name = operators._device_name(index)
        return Device("cuda", arch, sms, *rates, code, name, rate * 1e-6)

    def _numbers(self) -> list[int]:
        rates = [
            round(self.clock_ghz * 1e6),
            round(self.bandwidth_gbs * 1e3),
            round(self.l2_mb * 2**20),
        ]
        code = self.arch if self.code_arch is None else self.code_arch
        rate = round(self.tensor_rate * 1e6)
        return [int(self.type == "cuda"), self.arch, self.sms, *rates, code, rate]


@dataclass(frozen=True)
class Verdict:
    """The decision about one row."""

    name: str
    family: str
    tile: tuple[int, int] | None
    """The plan's tile, (bm, bn); None if the row has only one, or if the plan has no such tile."""
    seconds: float
    """Predicted time, packing included, seconds."""
    reason: str
    """Why the row can't be taken; ``""`` if it can."""
    error_bound: float | None = None
    """:func:`error_bound` of the row for the problem's k; None for rows that promise none."""
    cut: str = ""
    """How the plan cuts the problem up, such as ``"tile=128x64 cluster=2"``; ``""`` if the row has
    only one plan."""


@dataclass(frozen=True)
class Explanation:
    """The row that a product takes, and why not the others.

    ``str()`` gives a table of the rows that can be taken, the chosen one first, then by predicted
    time. Several rows that can't be taken for the same reason share a line.
    """

    chosen: str
    verdicts: tuple[Verdict, ...]
    measured: bool = False
    """True if :func:`torch_sgemm.tune` measured the choice."""

    def __str__(self) -> str:
        usable = [v for v in self.verdicts if not v.reason]
        usable.sort(key=lambda v: (v.name != self.chosen, v.seconds))
        others: dict[str, list[Verdict]] = {}
        for v in self.verdicts:
            if v.reason:  # aten is what the others are compared with
                others.setdefault("aten" if v.name == "aten" else v.reason, []).append(v)
        lines = [("kernel", "predicted", "error bound", "")]
        lines += [self._line(v) for v in usable]
        for same in sorted(others.values(), key=len):
            lines.append(self._line(same[0]) if len(same) == 1 else _shared_line(same))
        width = max(len(line[0]) for line in lines)
        return "\n".join(
            f"{name:{width}}  {time:>12}  {bound:>11}  {note}".rstrip()
            for name, time, bound, note in lines
        )

    def _line(self, v: Verdict) -> tuple[str, str, str, str]:
        """Returns a row's columns."""
        note = v.reason or "predicted slower"
        if v.name == self.chosen:
            note = "chosen by measurement" if self.measured else "chosen"
            note += _tiles_text(v)
        elif self.measured and not v.reason:
            note = "measured slower"
        could_run = not v.reason or v.reason == "not asked for"
        time = f"{v.seconds * 1e6:.1f} us" if could_run else "-"
        return v.name, time, "-" if v.error_bound is None else f"{v.error_bound:.1f}", note


def _tiles_text(v: Verdict) -> str:
    """Returns the tiles of a plan, or its kernel, behind a comma; empty without either."""
    words = dict(word.split("=") for word in v.cut.split())
    if "few_rows" in words:
        return ", kernel of few rows"
    if "tile" not in words:
        return ""
    tile = words["tile"].split("x")
    return ", tiles of {} x {}".format(*(reversed(tile) if "swapped" in words else tile))


def _shared_line(same: list[Verdict]) -> tuple[str, str, str, str]:
    """Returns the columns of several rows that can't be taken for the same reason."""
    families: dict[str, list[str]] = {}
    for v in same:
        families.setdefault(v.family or v.name, []).append(v.name)
    named = (n[0] if len(n) == 1 else f"{len(n)} of {family}" for family, n in families.items())
    return f"{len(same)} others", "-", "-", f"{same[0].reason}: {', '.join(named)}"


def _address(x: Tensor) -> int:
    """Returns the tensor's address; 0 if it has no memory, as meta and fake tensors."""
    return 0 if x.untyped_storage().device.type == "meta" else x.data_ptr()


def _layout(x: Tensor, place: int) -> list[int]:
    """Returns row, column and batch strides, and an address with the tensor's alignment."""
    address = _address(x) or x.storage_offset() * x.element_size()
    return [x.stride(-2), x.stride(-1), x.stride(0) if x.dim() == 3 else 0, place + address % 16]


def _problem(a: Tensor, b: Tensor, c: Tensor | None = None) -> list[int]:
    """Encodes a product for private operators; of addresses, alignment and equality count."""
    batch = a.shape[0] if a.dim() == 3 else 1
    is_one = _address(a) == _address(b) != 0
    layouts = *_layout(a, 256), *_layout(b, 256 if is_one else 512)
    elements = (OPERAND_DTYPES.index(x.dtype) for x in (a, b))
    numbers = [a.shape[-2], b.shape[-1], a.shape[-1], batch, *layouts, *elements]
    if c is None:
        return numbers
    return [*numbers, *_layout(c.expand(*a.shape[:-1], b.shape[-1]), 768)]


def _check_operands(a: Tensor, b: Tensor, c: Tensor | None) -> None:
    named = {"a": a, "b": b} | ({} if c is None else {"c": c})
    tensors = named.values()
    check_tensors("torch_sgemm.explain", **named)

    def fail(accepted: str) -> NoReturn:
        found = "; ".join(f"{name!r} has {about(x)}, {x.layout}" for name, x in named.items())
        raise RuntimeError(f"torch_sgemm.explain: {found}; accepted: {accepted}")

    if any(x.layout != torch.strided for x in tensors):
        fail("strided tensors")
    if not (a.dtype in OPERAND_DTYPES and b.dtype in OPERAND_DTYPES):
        fail("'a' and 'b' of float32, bfloat16 or float16")
    if c is not None and c.dtype != torch.float32:
        fail("a 'c' of float32")
    if len({x.device for x in tensors}) > 1:
        fail("tensors on one device")
    if a.dim() not in (2, 3) or a.dim() != b.dim():
        fail("'a' and 'b' both of 2 or both of 3 dimensions")
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        fail("as many rows of 'b' as columns of 'a', equal batches")
    shape = (*a.shape[:-1], b.shape[-1])
    if c is not None and not broadcasts(c, shape):
        fail(f"a 'c' that broadcasts to {list(shape)}")


def explain(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    kernel: str = "auto",
    device: Device | None = None,
) -> Explanation:
    """Explains which row ``kernel=`` takes for ``beta c + alpha a @ b``, and why; nothing runs.

    Args:
        a, b: float32, bfloat16 or float16, ([batch,] m, k) and ([batch,] k, n), any strides.
        c: the addend, if there is one; broadcasts to the product's shape.
        alpha: factor of the product.
        beta: factor of c; unless given 1 with c and 0 without.
        kernel: ``"auto"``, ``"batch_invariant"``, a family, a row, or a row with one of its tiles,
            such as ``"split_fp16x3:128x64"``.
        device: the device to choose for, with which operands may be meta tensors; unless given,
            theirs.

    Raises:
        TypeError: an operand is no tensor.
        RuntimeError: the operands don't form a product, or are not strided tensors of these dtypes
            on one device; ``kernel`` is unknown or can't take the product.
    """
    _check_operands(a, b, c)
    if device is not None and not isinstance(device, Device):
        raise RuntimeError(
            f"torch_sgemm.explain: argument 'device' is {device!r}; accepted: "
            "torch_sgemm.Device(...)"
        )
    if beta is None:
        beta = 0.0 if c is None else 1.0
    device = device or Device.of(a.device)
    about = device._numbers(), device.name, kernel
    answer = json.loads(operators._explain(_problem(a, b, c), float(alpha), float(beta), *about))
    if answer["error"]:
        raise RuntimeError(f"torch_sgemm.explain: argument 'kernel': {answer['error']}")
    verdicts = (
        Verdict(**{**v, "tile": v["tile"] and tuple(v["tile"])}) for v in answer["verdicts"]
    )
    return Explanation(answer["chosen"], tuple(verdicts), answer["measured"])
