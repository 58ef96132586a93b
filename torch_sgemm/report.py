"""Times and checks this package on your GPU: ``python -m torch_sgemm.report``.

Runs a dozen products by ``"auto"`` and by PyTorch's own kernel (torch.mm and torch.bmm, TF32 off),
by turns. Kernel times and errors against float64 go into one JSON file to send back, beside the
GPU, its clocks, and the versions. The command takes about a minute.
"""

import argparse
import json
import math
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_sgemm import info
from torch_sgemm.choice.explain import explain
from torch_sgemm.choice.table import kernels
from torch_sgemm.measure import output
from torch_sgemm.measure.output import aligned
from torch_sgemm.measure.tensor_cores import step
from torch_sgemm.measure.timing import seconds_by_turns
from torch_sgemm.torch_ops.library import operators

UNIT = 2.0**-24  # unit of errors, to be multiplied by (|A||B|)_ij
SAMPLE = 64  # this many rows, and products of a batch, are compared with float64
LIMITS = {
    "max_sm_mhz": "clocks.max.sm",
    "max_memory_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
}
Side = Callable[[], object]


class Shape(NamedTuple):
    """A product of benchmarks/shapes.json; ``ops``: storage of A and B, as in that file's head."""

    group: str
    m: int
    n: int
    k: int
    ops: str
    batch: int = 1

    @property
    def label(self) -> str:
        """``16 x 256 x 256 x 256 NN``: m, n, k and ops, after the batch if any."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.ops}"

    def tiny(self) -> "Shape":
        """Returns a similar shape for the CPU, with sizes up to 100."""
        m, n, k, batch = (round(size**0.4) for size in (self.m, self.n, self.k, self.batch))
        return Shape(self.group, m, n, k, self.ops, batch)


SHAPES = (
    Shape("square", 512, 512, 512, "NN"),
    Shape("square", 2048, 2048, 2048, "NN"),
    Shape("square", 4096, 4096, 4096, "NT"),
    Shape("transformer", 4096, 3072, 768, "NT"),
    Shape("transformer", 768, 3072, 4096, "TN"),
    Shape("skinny", 1, 4096, 4096, "NT"),
    Shape("skinny", 16, 4096, 4096, "NT"),
    Shape("tall", 100000, 64, 64, "NN"),
    Shape("large-k", 128, 128, 65536, "NN"),
    Shape("odd", 1023, 1023, 1023, "NN"),
    Shape("batched", 16, 16, 16, "NN", 10000),
    Shape("batched", 256, 256, 256, "NN", 16),
)


def operands(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Returns A, B of normal elements and C full of NaN, float32, with a batch dimension if any."""
    generator = torch.Generator(device).manual_seed(1)

    def stored(rows: int, columns: int, op: str) -> Tensor:
        sizes = (rows, columns) if op == "N" else (columns, rows)
        x = torch.randn(shape.batch, *sizes, device=device, generator=generator)
        x = x if op == "N" else x.mT
        return x if shape.batch > 1 else x[0]

    a = stored(shape.m, shape.k, shape.ops[0])
    b = stored(shape.k, shape.n, shape.ops[1])
    return a, b, torch.full((*a.shape[:-1], shape.n), math.nan, device=device)


def errors(a: Tensor, b: Tensor, c: Tensor) -> tuple[float, float]:
    """Returns the largest and mean error of a sample of C's rows, in units; NaN if C has a NaN."""
    if c.dim() == 2:
        a, b, c = a[None], b[None], c[None]
    generator = torch.Generator().manual_seed(2)
    batch, rows = (
        torch.randperm(size, generator=generator)[:SAMPLE].to(c.device) for size in c.shape[:2]
    )
    at = batch[:, None], rows[None, :]
    a, b, c = a[at].double(), b[batch].double(), c[at].double()
    magnitude = (a.abs() @ b.abs()) * UNIT
    found = (c - a @ b).abs() / magnitude
    return found.max().item(), found.mean().item()


def wall_seconds(runs: list[Side], device: torch.device) -> list[float]:
    """Returns median seconds per call of each run, by turns, on the CPU's clock."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(5):
        for run, found in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
    return [median(found) for found in times]


def product(shape: Shape, device: torch.device, repeats: int) -> dict[str, Any]:
    """Returns a row of the record: times in microseconds, errors in units, the row taken.

    ``"failed"`` is the error that a kernel raised; results until then are kept.
    """
    row: dict[str, Any] = {**shape._asdict(), "label": shape.label, "kernel": "auto"}
    try:
        a, b, c = operands(shape, device)
        explained = explain(a, b)
        row["chosen"] = explained.chosen
        for verdict in explained.verdicts:
            if verdict.name == explained.chosen:
                row["predicted_us"] = verdict.seconds * 1e6
                row["error_bound"] = verdict.error_bound
        run = operators.mm_out if c.dim() == 2 else operators.bmm_out
        sides = {"torch": lambda: run(a, b, "aten", out=c), "kernel": lambda: run(a, b, out=c)}
        for name, side in sides.items():
            side()
            prefix = "" if name == "kernel" else "torch_"
            row[f"{prefix}error_max"], row[f"{prefix}error_mean"] = errors(a, b, c)
            c.fill_(math.nan)
        by_turns = seconds_by_turns if device.type == "cuda" else wall_seconds
        times = [by_turns(list(sides.values()), device) for _ in range(repeats)]
        speeds = [theirs / ours for theirs, ours in times]
        for i, name in enumerate(sides):
            row[f"{name}_us"] = median(pair[i] for pair in times) * 1e6
        row |= {"speed": median(speeds), "speed_least": min(speeds), "speed_most": max(speeds)}
    except RuntimeError as failure:  # one kernel's failure on a GPU is what the record is for
        row["failed"] = str(failure).splitlines()[0]
    row["correct"] = is_correct(row)
    return row


def is_correct(row: dict[str, Any]) -> bool:
    """True if nothing failed and no error, NaN included, exceeds the row's proven bound.

    PyTorch's own kernel has no bound; that of an ordinary dot product applies to it.
    """
    bound = row.get("error_bound") or row["k"] + 2
    return "failed" not in row and row["error_max"] <= bound


def arithmetic(device: torch.device) -> dict[str, int] | None:
    """Counts elements of one step of the tensor cores, and those whose bits aren't the model's.

    Returns None on a device without the row ``unsplit``, which shows a step. The bound of the
    family split is proven given the model's arithmetic.
    """
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
    row = next(row for row in kernels() if row.name == "unsplit")
    if not row.runs_on(10 * major):
        return None
    spread = torch.randint(-12, 13, (2, 320, 16), device=device)
    x, y = torch.ldexp(torch.randn(2, 320, 16, device=device), spread).bfloat16()
    found = operators.mm(x, y.t(), row.name)
    zero = torch.zeros_like(found, dtype=torch.float64)
    expected = step(zero, x.double(), y.double(), x.dtype).float()
    return {"elements": found.numel(), "differ": int((found != expected).sum())}


class Clocks:
    """SM clocks in MHz that nvidia-smi gives while it is open; none without that program.

    A thread polls, because the GPU lowers its clock when it is idle.
    """

    def __init__(self, device: torch.device) -> None:
        self._uuid = ""
        if device.type == "cuda":
            self._uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        self._found: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> "Clocks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._done.wait(0.1):
            clock = _number(info.smi(self._uuid).get("clocks.sm"))
            if clock is None:
                return
            self._found.append(clock)

    def take(self) -> float | None:
        """Returns the highest clock since the last call."""
        found, self._found = self._found, []
        return max(found, default=None)


def machine(device: torch.device) -> dict[str, Any]:
    """Returns device and versions, under the names of benchmarks' records; no path or host name."""
    about: dict[str, Any] = {
        "device": device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_sgemm": info.build_info()["version"],
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }
    if device.type == "cpu":
        return about | {"name": "CPU", "slug": "cpu"}
    (gpu,) = (gpu for gpu in info.gpus() if gpu["index"] == device.index)
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    about |= {
        "slug": info.slug(gpu["name"]),
        "l2_mb": round(l2 / 2**20, 1),
        "driver": gpu.get("driver_version"),
    }
    about |= {key: gpu[key] for key in ("name", "arch", "sms", "memory_gib")}
    return about | {key: _number(gpu.get(name)) for key, name in LIMITS.items()}


def _number(text: str | None) -> float | None:
    """Returns 1980.0 for ``1980 MHz``; None for ``[N/A]`` or without a text."""
    found = re.match(r"[\d.]+", text or "")
    return float(found[0]) if found else None


@contextmanager
def _without_tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def collect(device: torch.device, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Returns the record: machine, build, options, a row a product; ``say`` gets each label."""
    build = info.build_info()
    record: dict[str, Any] = {
        "command": "report",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(device),
        "csrc_digest": build["csrc_digest"],
        "build": {key: build[key] for key in ("architectures", "toolkit", "torch", "compiler")},
        "timing": "CUDA-graph replays by CUDA events, both sides by turns, operands stay in L2"
        if device.type == "cuda"
        else "calls by the wall clock, both sides by turns",
        "options": {"repeats": repeats, "tiny": device.type == "cpu"},
        "rows": [],
    }
    with _without_tf32(), Clocks(device) as clocks:
        for shape in SHAPES:
            shape = shape if device.type == "cuda" else shape.tiny()
            say(shape.label)
            row = product(shape, device, repeats)
            record["rows"].append(row | {"sm_mhz": clocks.take()})
    record["tensor_cores"] = arithmetic(device)
    return record


def table(record: dict[str, Any]) -> str:
    """Returns the rows, aligned, followed by the summary."""
    lines = [("group", "m x n x k", "torch", "auto", "speed", "error, torch", "error", "taken")]
    for row in record["rows"]:
        cells = [row["group"], row["label"]]
        if "failed" in row:
            cells += ["-", "-", "-", "-", "-", f"{row.get('chosen', '?')} failed: {row['failed']}"]
        else:
            cells += [f"{row[key]:.1f} us" for key in ("torch_us", "kernel_us")]
            cells += [f"{row['speed']:.2f}"]
            cells += [f"{row[key]:.2f}" for key in ("torch_error_max", "error_max")]
            cells += [row["chosen"] + ("" if row["correct"] else ", WRONG")]
        lines.append(tuple(cells))
    return "\n".join([*aligned(lines, words=(0, 1, 7)), "", summary(record)])


def summary(record: dict[str, Any]) -> str:
    """Returns the mean speed, and how many products failed or were wrong."""
    rows, where = record["rows"], record["machine"]["name"]
    speeds = [row["speed"] for row in rows if "speed" in row]
    bad = sum(not row["correct"] for row in rows)
    mean = f"{geometric_mean(speeds):.2f} times as fast as torch" if speeds else "not timed"
    found = record["tensor_cores"]
    model = ""
    if found:
        proof = (
            "so the error bounds are not proven here" if found["differ"] else "as the proof says"
        )
        model = f" Tensor cores: {found['differ']} of {found['elements']} sums differ, {proof}."
    return (
        f"{len(rows)} products on {where}: {mean} (geometric mean); {bad} failed or wrong. Errors "
        f"are the largest of a sample, in units of 2^-24 (|A||B|).{model}"
    )


def _plain(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON lacks, by strings, as in benchmarks' records."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    return [_plain(x) for x in value] if isinstance(value, list) else value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m torch_sgemm.report",
        description="Times a dozen float32 products on your GPU and writes a record to send back.",
    )
    top.add_argument("--device", default="cuda", help="cuda (default), cuda:1, ...; cpu: a trial")
    top.add_argument("--repeats", type=int, default=5, help="of each measurement (default 5)")
    top.add_argument("--output", type=Path, metavar="FILE",
                     help="the record (default: torch_sgemm-report-GPU.json here)")  # fmt: skip
    return top


def _device(text: str) -> torch.device:
    """Raises ValueError for a device that this installation can't use, and says why."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise ValueError(f"argument --device is {text!r}; accepted: cuda, cuda:1 and so on, or cpu")
    if text == "cpu":
        return torch.device("cpu")
    trial = "; --device cpu runs tiny products, to try the command"
    if not torch.cuda.is_available():
        raise ValueError(f"PyTorch {torch.__version__} sees no GPU that it can use{trial}")
    if not info.build_info()["cuda"]:
        raise ValueError(f"this build has no CUDA kernels, see python -m torch_sgemm.info{trial}")
    index, count = int(text[5:] or torch.cuda.current_device()), torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"argument --device is {text!r}; accepted: up to cuda:{count - 1}")
    return torch.device("cuda", index)


def _output(asked: Path | None, device: torch.device) -> Path:
    """Raises ValueError for a file that can't be written."""
    path = asked or Path(f"torch_sgemm-report-{machine(device)['slug']}.json")
    if not output.can_be_written(path):
        raise ValueError(
            f"argument --output is {str(path)!r}; accepted: a file that can be written"
        )
    return path


def main(arguments: list[str] | None = None) -> int:
    """Writes the record, and returns 0, or 1 if a product failed or was wrong."""
    options = parser().parse_args(arguments)
    try:
        if options.repeats < 1:
            raise ValueError(f"argument --repeats is {options.repeats}; accepted: 1 and more")
        device = _device(options.device)
        path = _output(options.output, device)
    except ValueError as refusal:
        parser().error(str(refusal))
    record = collect(device, options.repeats, lambda label: print(label, file=sys.stderr))
    output.write(path, json.dumps(_plain(record), indent=1, allow_nan=False) + "\n")
    print(table(record))
    print(f"Written: {path}. Please send it back with a word on the machine (docs/gpus.md).")
    return int(not all(row["correct"] for row in record["rows"]))


if __name__ == "__main__":
    sys.exit(main())
