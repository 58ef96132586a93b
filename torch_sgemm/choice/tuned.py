"""Choices that were measured, in the file that ``tune()`` writes and ``TORCH_SGEMM_TUNED`` names.

The file is a JSON object: ``"format"`` is 1; ``"version"`` and ``"library"`` identify the library
that measured, because another one has other plans. ``"choices"`` lists the GPU, the problem, the
row, which of its plans, and the measured times; docs/choice.md describes all fields. A choice holds
for its problem alone: the same sizes, strides, alignment and use of C, on the same kind of GPU.
"""

import json
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch_sgemm.choice.table import kernels
from torch_sgemm.torch_ops.library import INFO, operators

FORMAT = 1
# Bits of csrc/table/choice_key.h: properties that count beside sizes and strides.
FLAGS = {
    "adds C": 1,
    "computes an activation": 2,
    "C has rows": 4,
    "D may add up pieces": 8,
    "B is packed": 16,
    "B is A transposed": 32,
    "A is bfloat16": 64,
    "A is float16": 128,
    "B is bfloat16": 256,
    "B is float16": 512,
}


class Gpu(NamedTuple):
    """A kind of GPU, by properties that no driver changes."""

    name: str
    """The name from ``torch.cuda.get_device_name``."""
    arch: int
    """Compute capability, 90 for 9.0."""
    sms: int


class Strides(NamedTuple):
    """An operand's strides, in elements. ``group``: inner size of a two-dimensional batch."""

    row: int
    column: int
    batch: int
    group: int
    group_stride: int


@dataclass(frozen=True)
class Problem:
    """The properties of a product that a choice depends on."""

    m: int
    n: int
    k: int
    batch: int
    a: Strides
    b: Strides
    d: Strides
    """Strides of the result."""
    alignment: tuple[int, int, int]
    """Addresses of A, B and D modulo 16."""
    workspace: int
    """Bytes that a product may take: ``TORCH_SGEMM_WORKSPACE``."""
    flags: tuple[str, ...]
    """Keys of FLAGS."""

    @staticmethod
    def of(numbers: list[int]) -> "Problem":
        """Decodes a key of csrc/table/choice_key.h."""
        a, b, d = (Strides(*numbers[at : at + 5]) for at in (4, 9, 14))
        alignment = (numbers[19] >> 8 & 15, numbers[19] >> 4 & 15, numbers[19] & 15)
        flags = tuple(name for name, bit in FLAGS.items() if numbers[21] & bit)
        return Problem(*numbers[:4], a, b, d, alignment, numbers[20], flags)

    def numbers(self) -> list[int]:
        """Encodes the problem as that key."""
        sizes = self.m, self.n, self.k, self.batch
        a, b, d = self.alignment
        flags = sum(FLAGS[name] for name in self.flags)
        return [*sizes, *self.a, *self.b, *self.d, a << 8 | b << 4 | d, self.workspace, flags]

    @property
    def label(self) -> str:
        """``512 x 4096 x 1024 NT``: m, n, k and storage of A and B, after the batch if any."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        letters = "".join(
            "N" if x.column == 1 else "T" if x.row == 1 else "S" for x in (self.a, self.b)
        )
        return f"{batch}{self.m} x {self.n} x {self.k} {letters}"


@dataclass(frozen=True)
class TunedChoice:
    """The plan that ``"auto"`` takes for a problem on a GPU, and the measured times, seconds."""

    gpu: Gpu
    problem: Problem
    kernel: str
    """A row; ``"aten"`` is PyTorch's own kernel."""
    plan: int
    """Index of the row's plan."""
    plans: int
    """The row's number of plans; where it differs, the choice does not hold."""
    seconds: float
    seconds_torch: float
    seconds_predicted: float
    """Measured time of the row and plan that are predicted to be fastest."""


class Unusable(ValueError):
    """The reason why a file's choices can't be used."""


class OtherLibrary(Unusable):
    """Another version, or another build of it, measured the choices."""


_current: dict[tuple[Gpu, Problem], TunedChoice] = {}


def library() -> tuple[str, str]:
    """Returns version and digest of the compiled code: another library's plans may differ."""
    about = json.loads(INFO.read_text()) if INFO.exists() else {}
    return about.get("version", ""), about.get("compiled_digest", "")


def current() -> tuple[TunedChoice, ...]:
    """Returns the choices that hold in this process."""
    return tuple(_current.values())


def replace(choices: Iterable[TunedChoice]) -> None:
    """Makes these the choices that hold in this process."""
    found = {(x.gpu, x.problem): x for x in choices}
    lines = "".join(f"{x.gpu.name}\t{x.kernel}\n" for x in found.values())
    numbers = [
        number
        for x in found.values()
        for number in (x.gpu.arch, x.gpu.sms, x.plan, x.plans, *x.problem.numbers())
    ]
    operators._set_tuned(lines, numbers)
    _current.clear()
    _current.update(found)


def use_tuned(path: str | os.PathLike | None) -> None:
    """Makes ``"auto"`` take the choices in a file of :func:`torch_sgemm.tune`, and no others.

    They hold for the problems and the kind of GPU that they were measured for; all other choices of
    ``"auto"`` are predicted, as before. ``TORCH_SGEMM_TUNED`` names a file to use from the start.
    If this function would raise, that file is ignored with a warning.

    Args:
        path: the file; None: all choices are predicted again.

    Raises:
        RuntimeError: the file is missing or damaged, or another version of this package wrote it.
    """
    try:
        replace(() if path is None else read(Path(path)))
    except Unusable as why:
        raise RuntimeError(
            f"torch_sgemm.use_tuned: argument 'path' is {str(path)!r}: {why}"
        ) from None


def use_environment() -> None:
    """At import, uses the file that ``TORCH_SGEMM_TUNED`` names, or warns."""
    path = os.environ.get("TORCH_SGEMM_TUNED", "")
    if not path:
        return
    try:
        replace(read(Path(path)))
    except Unusable as why:
        warnings.warn(
            f"torch_sgemm: TORCH_SGEMM_TUNED={path}: {why}; choices are predicted", stacklevel=2
        )


def read(path: Path) -> list[TunedChoice]:
    """Returns a file's choices; raises Unusable if it is missing, damaged or another library's."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unusable(error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise Unusable("it is no JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Unusable(f'it has no "format": {FORMAT}')
    if (found.get("version"), found.get("library")) != library():
        raise OtherLibrary(
            f"version {found.get('version')} of torch_sgemm measured it, library "
            f"{found.get('library')}; this is {' '.join(library())}: tune again"
        )
    rows = {row.name for row in kernels() if row.in_auto}
    try:
        return [_choice(x, rows) for x in found["choices"]]
    except (KeyError, TypeError, ValueError) as error:
        raise Unusable(f"it is damaged: {error!r}") from None


def text(choices: Iterable[TunedChoice]) -> str:
    """Returns a file with these choices."""
    version, digest = library()
    listed = [_as_dict(x) for x in choices]
    about = {"format": FORMAT, "version": version, "library": digest, "choices": listed}
    return json.dumps(about, indent=1) + "\n"


def _as_dict(choice: TunedChoice) -> dict[str, Any]:
    found = asdict(choice)
    strides = {name: getattr(choice.problem, name)._asdict() for name in "abd"}
    return found | {"gpu": choice.gpu._asdict(), "problem": found["problem"] | strides}


def _choice(found: dict[str, Any], rows: set[str]) -> TunedChoice:
    """Raises KeyError, TypeError or ValueError if a field is missing or of another kind."""
    plan, plans = _whole(found, "plan"), _whole(found, "plans")
    if found["kernel"] not in rows or plan >= plans:
        raise ValueError(f"{found['kernel']} has no plan {plan} of {plans}")
    gpu = Gpu(str(found["gpu"]["name"]), *(_whole(found["gpu"], key) for key in ("arch", "sms")))
    if set(gpu.name) & set("\t\n") or max(gpu.arch, gpu.sms) >= 2**31:
        raise ValueError(f"gpu is {gpu}")
    times = (_seconds(found, key) for key in ("seconds", "seconds_torch", "seconds_predicted"))
    return TunedChoice(gpu, _problem(found["problem"]), found["kernel"], plan, plans, *times)


def _problem(found: dict[str, Any]) -> Problem:
    sizes = [_whole(found, key, 1) for key in ("m", "n", "k", "batch")]
    strides = [
        Strides(*(_whole(found[name], key) for key in Strides._fields)) for name in ("a", "b", "d")
    ]
    alignment = [_whole(dict(enumerate(found["alignment"])), i) for i in range(3)]
    flags = tuple(name for name in FLAGS if name in found["flags"])
    if max(alignment) > 15 or len(found["alignment"]) != 3 or len(flags) != len(found["flags"]):
        raise ValueError(f"alignment {found['alignment']}, flags {found['flags']}")
    return Problem(*sizes, *strides, tuple(alignment), _whole(found, "workspace"), flags)


def _whole(found: dict, key: Any, least: int = 0) -> int:
    value = found[key]
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{key} is {value!r}")
    return value


def _seconds(found: dict, key: str) -> float:
    value = found[key]
    if type(value) is not float or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{key} is {value!r}")
    return value
