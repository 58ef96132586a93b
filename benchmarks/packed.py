"""``packed``: layers with a weight that was split once (torch_sgemm.pack), for batches of any size.

Times x @ weight.t() with and without planes of the weight, beside torch.mm, in one run.
"""

from __future__ import annotations

import argparse

from benchmarks import plots, record, tables
from benchmarks.measure import Measurement
from benchmarks.problems import Problem, positive
from benchmarks.session import Session
from benchmarks.sides import packed_side

GPU_WEIGHTS = ((1024, 1024), (4096, 1024), (4096, 4096))
GPU_ROWS = (1, 8, 32, 128, 512, 2048, 8192)
CPU_WEIGHTS, CPU_ROWS = ((64, 64),), (1, 64)
PACKED = "packed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --rows."""
    parser.add_argument(
        "--rows", type=positive, nargs="+", help="of x (default: 1 ... 8192)", metavar="M"
    )


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the table."""
    session = Session(args)
    weights = GPU_WEIGHTS if session.on_gpu else CPU_WEIGHTS
    counts = args.rows or (GPU_ROWS if session.on_gpu else CPU_ROWS)
    results = session.record["rows"]
    with session.progress(2 * len(weights) * len(counts)) as step:
        for n, k in weights:
            for m in counts:
                problem = Problem(m, n, k, "NT")
                at = Measurement(problem, session.device, session.seed, session.options)
                about = {"weight": f"{n} x {k}", "label": problem.label}
                step(f"{problem.label} auto")
                results.append(about | at.row("auto", session.sampler))
                step(f"{problem.label} {PACKED}")
                side = packed_side(PACKED, at.pool)
                results.append(about | at.side(side, "split_fp16x3", session.sampler))
                del at, side
    show(session.record)
    path, status = session.finish()
    tables.say(f"Chart: {plots.packed(session.record, record.chart_path(path))}")
    session.show_recorded(show)
    return status


def show(found: dict) -> None:
    """Prints the table."""
    columns, rows = cells(found)
    tables.show("Speed relative to torch.mm, unpacked / packed", columns, rows)


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes one line per weight, one column per number of rows: unpacked / packed."""
    ratios = tables.ratios(found["rows"], "weight", "m")
    counts = sorted({m for _, m in ratios})
    lines = [
        [weight, *(ratios.get((weight, m), tables.NONE) for m in counts)]
        for weight in dict.fromkeys(weight for weight, _ in ratios)
    ]
    return ["weight", *(f"{m} rows" if m > 1 else "1 row" for m in counts)], lines
