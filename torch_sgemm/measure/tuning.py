"""``tune()``: measures, once, which row and which of its plans is fastest for a program's products.

Results hold for the same products on the same kind of GPU; tuned.py describes the file. Nothing is
measured at any other time.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_sgemm.choice import tuned
from torch_sgemm.choice.explain import Device
from torch_sgemm.choice.table import kernels
from torch_sgemm.choice.tuned import Gpu, Problem, Strides, TunedChoice
from torch_sgemm.dropin.settings import enabled
from torch_sgemm.measure.output import aligned, can_be_written, write
from torch_sgemm.torch_ops.library import operators

HOPELESS = 6.0  # leaves out rows predicted to take this many times the fastest one's time
WITHIN, PLANS = 2.0, 8  # per row: the plans within this factor of its best, at most this many
FINALISTS = 4  # this many are measured again, longer
KEPT = 0.99  # another choice replaces the predicted one if it takes less of its time


class Candidate(NamedTuple):
    """A row's plan, as the library describes it."""

    kernel: str
    plan: int
    plans: int
    seconds: float
    """Predicted time."""


@dataclass(frozen=True)
class Tuning:
    """The result of :func:`tune`. ``str()`` gives a table."""

    gpu: Gpu
    choices: tuple[TunedChoice, ...]
    skipped: tuple[tuple[str, str], ...]
    """Problems that could not be measured, and why."""

    def __str__(self) -> str:
        lines = [("m x n x k", "torch", "predicted choice", "tuned", "gain", "taken")]
        for x in self.choices:
            times = (x.seconds_torch, x.seconds_predicted, x.seconds)
            lines.append(
                (
                    x.problem.label, *(f"{1e6 * t:.1f} us" for t in times),
                    f"{x.seconds_torch / x.seconds:.2f}", x.kernel,
                )
            )  # fmt: skip
        shown = aligned(lines, words=(0, 5)) if self.choices else ["No product was measured."]
        return "\n".join([*shown, *(f"{label}: skipped, {why}" for label, why in self.skipped)])


def tune(
    what: Callable[[], Any] | Iterable[tuple[int, ...]],
    *,
    path: str | os.PathLike | None = None,
    device: torch.device | str | int | None = None,
) -> Tuning:
    """Measures which row and plan is fastest for some products; ``"auto"`` takes it from then on.

    Each product is measured by PyTorch's own kernel and by the plans predicted to be fast, by
    turns. CUDA-graph replays run on normal elements that don't stay in the L2 cache. A choice holds
    for the same sizes, strides, alignment and kind of GPU: in this process at once and, with
    ``path``, wherever :func:`torch_sgemm.use_tuned` or ``TORCH_SGEMM_TUNED`` names the file. It is
    as deterministic as a predicted one, but may differ between machines, and so may the order of
    summation.

    Args:
        what: a function, which is called once under :func:`torch_sgemm.enabled`; the products that
            it asks ``"auto"`` for are tuned. Or sizes: (m, n, k) or (batch, m, n, k) of row-major
            operands.
        path: the file, whose choices for other problems are kept; unless given the one that
            ``TORCH_SGEMM_TUNED`` names, or none.
        device: a CUDA device; the current one unless given.

    Raises:
        RuntimeError: there is no such device or no CUDA kernel in this build; sizes are not three
            or four positive numbers; ``path`` can't be written, or is a file of another kind.
    """
    target = _device(device)
    file = path or os.environ.get("TORCH_SGEMM_TUNED") or None
    kept = {} if file is None else _kept(Path(file))
    run = what if callable(what) else _products(what, target)
    with torch.cuda.device(target):
        problems = problems_of(run)
        tuning = tune_problems(problems, Device.of(target), target)
    choices = {(x.gpu, x.problem): x for x in tuning.choices}
    if file is not None:
        write(Path(file), tuned.text((kept | choices).values()))
    tuned.replace((kept | {(x.gpu, x.problem): x for x in tuned.current()} | choices).values())
    return tuning


def _device(device: torch.device | str | int | None) -> torch.device:
    built = any(row.family and "cuda" in row.devices for row in kernels())
    if not built or not torch.cuda.is_available():
        why = "PyTorch sees no GPU" if built else "this build has no CUDA kernels"
        raise RuntimeError(f"torch_sgemm.tune: {why}; there is nothing to measure")
    found = torch.device("cuda" if device is None else device)
    index = torch.cuda.current_device() if found.index is None else found.index
    if found.type != "cuda" or index >= torch.cuda.device_count():
        raise RuntimeError(
            f"torch_sgemm.tune: argument 'device' is {device!r}; accepted: a CUDA device, of "
            f"{torch.cuda.device_count()}"
        )
    return torch.device("cuda", index)


def _kept(path: Path) -> dict[tuple[Gpu, Problem], TunedChoice]:
    """Returns the file's choices; none of another version's file, which is then replaced."""
    if not path.exists():
        if not can_be_written(path):
            raise RuntimeError(
                f"torch_sgemm.tune: argument 'path' is {str(path)!r}; accepted: a file that can "
                "be written"
            )
        return {}
    try:
        return {(x.gpu, x.problem): x for x in tuned.read(path)}
    except tuned.OtherLibrary:
        return {}
    except tuned.Unusable as why:
        raise RuntimeError(
            f"torch_sgemm.tune: argument 'path' is {str(path)!r}: {why}; accepted: a new file, or "
            "one that tune wrote"
        ) from None


def _products(sizes: Iterable[tuple[int, ...]], device: torch.device) -> Callable[[], None]:
    """Returns a function that multiplies matrices of these sizes."""
    listed = [tuple(each) for each in sizes]
    for each in listed:
        if len(each) not in (3, 4) or not all(type(x) is int and x > 0 for x in each):
            raise RuntimeError(
                f"torch_sgemm.tune: argument 'what' has sizes {each}; accepted: (m, n, k) or "
                "(batch, m, n, k), positive, or a function"
            )

    def run() -> None:
        for *batch, m, n, k in listed:
            a = torch.empty(*batch, m, k, device=device)
            torch.matmul(a, torch.empty(*batch, k, n, device=device))

    return run


@contextmanager
def noting() -> Iterator[list[tuple[Gpu, Problem]]]:
    """Yields the problems on GPUs that a ``with`` block asks ``"auto"`` for, to read after it."""
    found: list[tuple[Gpu, Problem]] = []
    operators._note_problems(True)
    try:
        yield found
        for x in json.loads(operators._noted_problems()):
            if min(x["problem"][:4]) > 0 and x["arch"]:  # no CPU
                found.append((Gpu(x["name"], x["arch"], x["sms"]), Problem.of(x["problem"])))
    finally:
        operators._note_problems(False)


def problems_of(run: Callable[[], Any]) -> list[tuple[Gpu, Problem]]:
    """Returns the problems of PyTorch's products and of this package's."""
    with noting() as found, enabled():
        run()
    return found


def tune_problems(
    problems: Iterable[tuple[Gpu, Problem]], described: Device, device: torch.device
) -> Tuning:
    """Measures the problems of the device's kind; this process's choices stay as they were."""
    gpu = Gpu(described.name, described.arch, described.sms)
    mine = [problem for found, problem in problems if found == gpu]
    choices, skipped, before = [], [], tuned.current()
    try:
        for problem in _with_progress(mine):
            try:
                choices.append(fastest(problem, gpu, described, device))
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                skipped.append((problem.label, "its operands find no memory"))
    finally:
        tuned.replace(before)
    return Tuning(gpu, tuple(choices), tuple(skipped))


def _with_progress(problems: list[Problem]) -> Iterable[Problem]:
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return problems
    return tqdm(problems, "tuning", unit="product", disable=None)


def candidates(problem: Problem, device: Device) -> list[Candidate]:
    """Returns the plans worth measuring: each row's fastest by prediction."""
    answer = operators._candidates(problem.numbers(), device._numbers(), device.name)
    by_row: dict[str, list[Candidate]] = {}
    for x in json.loads(answer):
        by_row.setdefault(x["kernel"], []).append(Candidate(**x))
    least = min(min(plans, key=_predicted).seconds for plans in by_row.values())
    found = []
    for name, plans in by_row.items():
        plans.sort(key=_predicted)
        near = [x for x in plans[:PLANS] if x.seconds <= WITHIN * plans[0].seconds]
        if name == "aten" or plans[0].seconds <= HOPELESS * least:
            found += near
    return found


def _predicted(x: Candidate) -> float:
    return x.seconds


def fastest(problem: Problem, gpu: Gpu, described: Device, device: torch.device) -> TunedChoice:
    """Measures the candidates briefly, and the best of them, PyTorch's and the predicted longer."""
    from torch_sgemm.measure.timing import seconds_by_turns

    found = candidates(problem, described)
    chosen = min(found, key=_predicted)
    sets = operands(problem, device, 1024 * 1024 * described.l2_mb)

    def side(x: Candidate) -> Callable[[], None]:
        each = cycle(sets)
        choice = TunedChoice(gpu, problem, x.kernel, x.plan, x.plans, 1.0, 1.0, 1.0)

        def run() -> None:
            if tuned.current() != (choice,):
                tuned.replace([choice])
            next(each)()

        return run

    def measured(some: list[Candidate], **how: Any) -> dict[Candidate, float]:
        return dict(
            zip(some, seconds_by_turns([side(x) for x in some], device, **how), strict=True)
        )

    first = measured(found, replay=0.002, rounds=2)
    last = sorted(found, key=first.__getitem__)[:FINALISTS]
    last += [x for x in found if (x is chosen or x.kernel == "aten") and x not in last]
    seconds = measured(last)
    best = min(last, key=seconds.__getitem__)
    if seconds[best] > KEPT * seconds[chosen]:
        best = chosen
    torchs = next(seconds[x] for x in last if x.kernel == "aten")
    return TunedChoice(
        gpu, problem, best.kernel, best.plan, best.plans, seconds[best], torchs, seconds[chosen]
    )


def operands(problem: Problem, device: torch.device, l2_bytes: float) -> list[Callable[[], None]]:
    """Returns the problem's product, on as many sets of operands as don't fit in the L2 cache."""
    first = _set(problem, device)
    size = sum(x.untyped_storage().nbytes() for x in first.tensors())
    free, _ = torch.cuda.mem_get_info(device)
    count = min(max(1, -(-3 * int(l2_bytes) // size)), max(1, free // 2 // size), 64)
    return [first.run, *(_set(problem, device).run for _ in range(1, int(count)))]


@dataclass(frozen=True)
class _Operands:
    d: Tensor
    a: Tensor
    b: Tensor
    c: Tensor | None
    planes: Tensor | None
    activation: str | None
    alpha: float

    def tensors(self) -> list[Tensor]:
        return [x for x in (self.d, self.a, self.b, self.c, self.planes) if x is not None]

    def run(self) -> None:
        operators._product(
            self.d, self.a, self.b, self.c, self.planes, self.activation, alpha=self.alpha
        )


def _set(problem: Problem, device: torch.device) -> _Operands:
    flags, batch = problem.flags, problem.batch
    group = max(x.group for x in (problem.a, problem.b, problem.d))

    def dtype(name: str) -> torch.dtype:
        if f"{name} is bfloat16" in flags:
            return torch.bfloat16
        return torch.float16 if f"{name} is float16" in flags else torch.float32

    def tensor(
        rows: int, columns: int, strides: Strides, aligned_to: int, dtype: torch.dtype
    ) -> Tensor:
        sizes, steps = [rows, columns], [strides.row, strides.column]
        if group:
            sizes = [batch // group, group, *sizes]
            far = strides.group_stride if strides.group else group * strides.batch
            steps = [far, strides.batch, *steps]
        elif batch > 1:
            sizes, steps = [batch, *sizes], [strides.batch, *steps]
        first = aligned_to // dtype.itemsize
        last = first + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        return torch.randn(last + 1, device=device, dtype=dtype).as_strided(sizes, steps, first)

    at_a, at_b, at_d = problem.alignment
    a = tensor(problem.m, problem.k, problem.a, at_a, dtype("A"))
    is_gram = "B is A transposed" in flags
    b = a.mT if is_gram else tensor(problem.k, problem.n, problem.b, at_b, dtype("B"))
    d = tensor(problem.m, problem.n, problem.d, at_d, torch.float32)
    c = None
    if "adds C" in flags:
        c = torch.randn_like(d) if "C has rows" in flags else torch.randn(problem.n, device=device)
    return _Operands(
        d, a, b, c,
        operators._pack(b) if "B is packed" in flags else None,
        "relu" if "computes an activation" in flags else None,
        1.0 if c is not None or "D may add up pieces" in flags else 0.5,
    )  # fmt: skip
