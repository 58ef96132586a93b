"""``invariant``: batch-invariant products of layers, beside torch.mm, ``auto`` and Triton.

Times x @ weight.t() for batches of 1 to 2048 rows. Each way is timed by turns with torch.mm, in one
run. A batch-invariant product has the same bits for a row in every batch. Triton's kernel in
peer_triton.py, which is batch-invariant too, shows what this costs by FFMA.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch_sgemm
from benchmarks import peers, tables
from benchmarks.measure import Measurement
from benchmarks.peer_builds import UnavailableError
from benchmarks.problems import Pool, Problem, positive
from benchmarks.session import Session
from benchmarks.sides import Side, packed_side
from benchmarks.timing import quantile

KERNEL = "batch_invariant"
GPU_WEIGHTS = ((256, 7168), (1024, 1024), (4096, 4096), (11008, 4096))
GPU_ROWS = (1, 8, 64, 128, 512, 2048)
CPU_WEIGHTS, CPU_ROWS = ((64, 64),), (1, 64)
PACKED, AUTO, TRITON = "packed", "auto", "triton"
TORCH_LINE = "torch.mm: time"
LEGEND = (
    "A weight is n x k and lies like nn.Linear's. A packed weight was split before. `auto` is not "
    "batch-invariant. Triton's kernel is that of "
    "[peer_triton.py](../benchmarks/peer_triton.py): float32 products without TF32, tiles of "
    "128 x 128 for every number of rows, as vLLM's batch-invariant mode has them for float32. "
    "Errors are the largest of 64 rows against float64 in any of the columns, in units of "
    "2⁻²⁴·(|A||B|)."
)


def _unpacked(at: Measurement, session: Session) -> dict:
    return at.row(KERNEL, session.sampler)


def _packed(at: Measurement, session: Session) -> dict:
    first = at.pool.sets[0]
    chosen = torch_sgemm.explain(first.a, first.b, kernel=KERNEL).chosen
    return at.side(packed_side(PACKED, at.pool, KERNEL), chosen, session.sampler)


def _auto(at: Measurement, session: Session) -> dict:
    return at.row(AUTO, session.sampler)


def _triton_side(_: Problem, __: Pool, ___: Path | None) -> Side:
    mm = peers.imported("benchmarks.peer_triton").invariant_mm
    return Side(TRITON, lambda s: mm(s.a, s.b, s.c))


def _triton(at: Measurement, session: Session) -> dict:
    return peers.measure(at, TRITON, _triton_side, session, None)


WAYS: dict[str, tuple[str, Callable[[Measurement, Session], dict]]] = {
    KERNEL: ("batch-invariant", _unpacked),
    PACKED: ("batch-invariant, weight packed", _packed),
    AUTO: ("`auto`", _auto),
    TRITON: ("Triton, batch-invariant", _triton),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --rows and --way."""
    parser.add_argument(
        "--rows", type=positive, nargs="+", help="of x (default: 1 ... 2048)", metavar="M"
    )
    parser.add_argument("--way", nargs="+", choices=tuple(WAYS), default=list(WAYS))


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record, prints the table."""
    session = Session(args)
    weights = GPU_WEIGHTS if session.on_gpu else CPU_WEIGHTS
    counts = args.rows or (GPU_ROWS if session.on_gpu else CPU_ROWS)
    missing: dict[str, str] = {}
    with session.progress(len(args.way) * len(weights) * len(counts)) as step:
        for n, k in weights:
            for m in counts:
                problem = Problem(m, n, k, "NT")
                at = Measurement(problem, session.device, session.seed, session.options)
                about = {"weight": f"{n} x {k}", "label": problem.label}
                for name in args.way:
                    title, measure = WAYS[name]
                    step(f"{problem.label} {title}")
                    if name in missing:
                        continue
                    try:
                        row = measure(at, session)
                    except UnavailableError as reason:
                        missing[name] = f"{title}: {reason}"
                    else:
                        session.record["rows"].append(about | {"way": title} | row)
                del at
    session.record["missing"] = list(missing.values())
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def show(found: dict) -> None:
    """Prints the table, the spread of its times, and what is missing."""
    columns, rows = cells(found)
    tables.show("Batch-invariant products: speed relative to torch.mm", columns, rows, left=2)
    tables.say(spread(found))
    for line in found["missing"]:
        tables.console.print(f"Not measured: {line}", markup=False)


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per weight and way, one column per number of rows, the largest error last."""
    counts = sorted({r["m"] for r in found["rows"]})
    lines = []
    for weight in dict.fromkeys(r["weight"] for r in found["rows"]):
        rows = [r for r in found["rows"] if r["weight"] == weight]
        measured = [r for r in rows if "failed" not in r]
        torchs = {r["m"]: tables.time(r["torch_us"]) for r in reversed(measured)}  # the first way's
        errors = _largest(r["torch_error_max"] for r in measured)
        lines.append([weight, TORCH_LINE, *_cells(torchs, counts), errors])
        for way in dict.fromkeys(r["way"] for r in rows):
            of_way = [r for r in rows if r["way"] == way]
            speeds = {r["m"]: _speed(r) for r in of_way}
            errors = _largest(r["error_max"] for r in of_way if "failed" not in r)
            lines.append([weight, way, *_cells(speeds, counts), errors])
    columns = ["weight", "by", *(f"{m} rows" if m > 1 else "1 row" for m in counts)]
    return [*columns, "largest error"], lines


def _cells(texts: dict[int, str], counts: list[int]) -> list[str]:
    return [texts.get(m, tables.NONE) for m in counts]


def _largest(errors: Iterable[float]) -> str:
    """Returns the largest of errors as text, NaN if there is one."""
    found = sorted(errors, key=lambda error: (math.isnan(error), error))
    return tables.digits(found[-1] if found else None)


def _speed(row: dict) -> str:
    """Returns torch's time over that of a way. Another library's larger errors are not wrong."""
    return tables.verdict({"correct": True} | row) or f"{row['percent_of_torch'] / 100:.2f}"


def spread(found: dict) -> str:
    """Says how far the replays of a side, whose median is its time, lie apart."""
    shares = [
        (r[f"{side}_us_p90"] - r[f"{side}_us_p10"]) / r[f"{side}_us"]
        for r in found["rows"]
        if "failed" not in r
        for side in ("kernel", "torch")
    ]
    if not shares:
        return "No way was measured."
    half, most = (tables.percent(100 * quantile(shares, q)) for q in (0.5, 1.0))
    return (
        "A time is the median of a side's replays. From the fastest tenth of the replays to the "
        f"slowest is {half} of the median for half of the times, and {most} at most."
    )
