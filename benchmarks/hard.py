"""``hard``: ``auto`` beside torch on data with range, with NaN, with zeros; and its bar for each.

Kernel times are on the same operands by turns, as in ``suite``. The record also has errors, and the
results that the split family's guard recomputed.
"""

from __future__ import annotations

import argparse
import math

import torch

import torch_sgemm
from benchmarks import tables
from benchmarks.data import KINDS, matrices
from benchmarks.errors import limit
from benchmarks.measure import Measurement
from benchmarks.problems import Problem
from benchmarks.session import Session, check_names
from benchmarks.sides import sgemm_side

DEFAULTS = {"rounds": 4, "budget": 0.4, "idle": 0.01}
QUICK = {"rounds": 2, "budget": 0.2, "idle": 0.005}
SHAPES_GPU = (
    Problem(1024, 1024, 1024), Problem(4096, 4096, 4096), Problem(128, 4096, 4096),
    Problem(65536, 128, 128), Problem(512, 512, 16384), Problem(512, 64, 512, batch=64),
)  # fmt: skip
SHAPES_CPU = (Problem(24, 20, 28), Problem(9, 5, 12, batch=3))
LEGEND = (
    "2.00 is twice as fast as torch; **bold** is below the bar. Errors of 64 rows against float64 "
    "in units of 2⁻²⁴·(|A||B|), the largest of all shapes, and torch's."
)


def shape(text: str) -> Problem:
    """Parses ``MxNxK`` or ``BATCHxMxNxK``."""
    sizes = text.lower().split("x")
    if len(sizes) not in (3, 4) or not all(s.isdigit() and int(s) > 0 for s in sizes):
        raise argparse.ArgumentTypeError(f"{text}; accepted: MxNxK or BATCHxMxNxK")
    *batch, m, n, k = map(int, sizes)
    return Problem(m, n, k, batch=batch[0] if batch else 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --only, --shape, --kernel and --quick."""
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these kinds of data only")
    parser.add_argument("--shape", type=shape, nargs="+", metavar="MxNxK", help="instead of six")
    parser.add_argument("--kernel", metavar="NAME", help="a row or family (default: auto)")
    parser.add_argument("--quick", action="store_true", help="two replays of each side")


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and prints the tables."""
    check_names("--only", args.only, KINDS, "data")
    if args.quick:
        vars(args).update(QUICK)
    session = Session(args)
    session.record["options"]["quick"] = args.quick
    shapes = args.shape or (SHAPES_GPU if session.on_gpu else SHAPES_CPU)
    # On CPU tensors auto is PyTorch's kernel; what runs there shows that the rest works.
    kernel = args.kernel or ("auto" if session.on_gpu else "ladder")
    kinds = args.only or list(KINDS)
    with session.progress(len(shapes) * len(kinds)) as step:
        for problem in shapes:
            for name in kinds:
                step(f"{name} {problem.label}")
                session.record["rows"].append(measure(session, name, problem, kernel))
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def measure(session: Session, name: str, problem: Problem, kernel: str) -> dict:
    """Measures one kind of data at one shape."""
    kind = KINDS[name]
    values = matrices(name, problem, session.device, session.seed)
    at = Measurement(problem, session.device, session.seed, session.options, values)
    row = at.row(kernel, session.sampler)
    row |= {"data": name, "bar": kind.bar, "label": f"{name} {problem.label}", "held": False}
    if "failed" in row:
        return row
    row["error_bound"] = limit(row["chosen"], problem.k, row["torch_error_max"], kind.good)
    row["correct"] = row["error_max"] <= row["error_bound"]  # False for NaN
    row["held"] = row["correct"] and row["percent_of_torch"] / 100 >= kind.bar
    return row | redone(at, kernel)


def redone(at: Measurement, kernel: str) -> dict:
    """Returns the elements, and the whole tiles, that the guard recomputes in one product."""
    if at.device.type != "cuda":
        return {}
    try:
        torch.cuda.synchronize()
        before = torch_sgemm.redone(at.device)
        sgemm_side(at.problem, kernel).run(at.pool.sets[0])
        torch.cuda.synchronize()
        after = torch_sgemm.redone(at.device)
    except RuntimeError:  # a build without the family
        return {}
    return {
        "redone_elements": after.elements - before.elements,
        "redone_tiles": after.tiles - before.tiles,
    }


def show(found: dict) -> None:
    """Prints all cases and the summary."""
    rows = []
    for r in found["rows"]:
        if "failed" in r:
            rows.append([r["data"], _shape(r), "failed", *[tables.NONE] * 7])
            continue
        cells = [r["data"], _shape(r), r["chosen"], tables.time(r["kernel_us"])]
        cells += [tables.time(r["torch_us"]), f"{r['percent_of_torch'] / 100:.2f}"]
        cells += [_bar(r) if r["held"] or not r["bar"] else f"{_bar(r)} BELOW"]
        cells += [f"{tables.errors(r)} {tables.verdict(r)}".strip(), tables.errors(r, "torch_")]
        guard = r.get("redone_elements"), r.get("redone_tiles")
        cells += [tables.NONE if None in guard else f"{guard[0]} / {guard[1]}"]
        rows.append(cells)
    columns = ["data", "shape", "row", "time", "torch", "ratio", "bar", "error max / mean"]
    columns += ["torch's", "redone elements / tiles"]
    tables.show("Data with range: speed relative to torch", columns, rows, left=3)
    barred = [r for r in found["rows"] if r["bar"]]
    held = sum(r["held"] for r in barred)
    tables.say(f"The bar held in {held} of {len(barred)} cases that have one.")


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per kind of data: bar, speed relative to torch at each shape, largest errors."""
    by: dict[str, list[dict]] = {}
    for r in found["rows"]:
        by.setdefault(r["data"], []).append(r)
    shapes = list(dict.fromkeys(_shape(r) for r in found["rows"]))
    lines = []
    for name, rows in by.items():
        at = {_shape(r): _ratio(r) for r in rows}
        errors = " / ".join(
            tables.digits(_largest(r.get(key, math.nan) for r in rows))
            for key in ("error_max", "torch_error_max")
        )
        speeds = [at.get(shape, tables.NONE) for shape in shapes]
        lines.append([name, _bar(rows[0]), *speeds, errors])
    return ["data", "bar", *shapes, "error / torch's"], lines


def _bar(row: dict) -> str:
    return f"{row['bar']:.2f}" if row["bar"] else tables.NONE


def _shape(row: dict) -> str:
    batch = f"{row['batch']} x " if row["batch"] > 1 else ""
    return f"{batch}{row['m']} x {row['n']} x {row['k']}"


def _ratio(row: dict) -> str:
    wrong = tables.verdict(row)
    if wrong:
        return f"**{wrong}**"
    ratio = f"{row['percent_of_torch'] / 100:.2f}"
    return ratio if row["held"] else f"**{ratio}**"


def _largest(values) -> float:
    """Returns the maximum, or NaN if one is NaN."""
    values = list(values)
    return math.nan if any(math.isnan(v) for v in values) else max(values)
