"""``squares``: square products in all four layouts, after a pause and after 0.5 s of the same.

A GPU at its power limit lowers its clock under lasting load, and tensor cores lower it more than
other units do. The second figure is the speed in a long run of large products.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from benchmarks import plots, record, tables
from benchmarks.measure import Measurement
from benchmarks.problems import Problem, positive
from benchmarks.session import Session
from benchmarks.sides import tf32_side
from benchmarks.timing import Options

GPU_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384)
CPU_SIZES = (64,)
LAYOUTS = ("NN", "NT", "TN", "TT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --size and --kernel."""
    parser.add_argument(
        "--size", type=positive, nargs="+", help="m = n = k (default: 256 ... 16384)"
    )
    parser.add_argument("--kernel", default="auto", metavar="NAME", help="a row or a family")


def states(options: Options, device: torch.device) -> list[Options]:
    """Returns the options to time each product with: as given, and on a GPU also sustained."""
    if options.sustained or device.type != "cuda":
        return [options]
    return [options, replace(options, sustained=True)]


def describe(options: Options, device: torch.device) -> str:
    """Describes the options in words, to be recorded."""
    first, *others = states(options, device)
    return "; then ".join(
        [first.describe(device), *(other.state_before("replay") for other in others)]
    )


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and prints the table."""
    session = Session(args, describe)
    sizes = args.size or (GPU_SIZES if session.on_gpu else CPU_SIZES)
    of_each = states(session.options, session.device)
    results = session.record["rows"]
    with session.progress(len(sizes) * len(LAYOUTS) * len(of_each)) as step:
        for size in sizes:
            for ops in LAYOUTS:
                problem = Problem(size, size, size, ops)
                at = Measurement(problem, session.device, session.seed, session.options)
                tf32 = at.alone(tf32_side(problem)) if session.on_gpu else {}
                for options in of_each:
                    step(f"{problem.label}{' sustained' if options.sustained else ''}")
                    at.options = options
                    about = {"size": size, "sustained": options.sustained}
                    row = about | at.row(args.kernel, session.sampler)
                    results.append(row | ({} if options.sustained else tf32))
                del at
    show(session.record)
    path, status = session.finish()
    tables.say(f"Chart: {plots.squares(session.record, record.chart_path(path))}")
    session.show_recorded(show)
    return status


def show(found: dict) -> None:
    """Prints the table."""
    columns, rows = cells(found)
    tables.show("Speed relative to torch.mm, after idle / sustained", columns, rows)


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes one line per size: torch.mm's time over ours by layout, TF32's, and largest errors."""
    ratios = tables.ratios(found["rows"], "size", "ops")
    rows = [
        [
            f"{size}³",
            *(ratios.get((size, ops), tables.NONE) for ops in LAYOUTS),
            *_beside([r for r in found["rows"] if r["size"] == size and not r["sustained"]]),
        ]
        for size in dict.fromkeys(size for size, _ in ratios)
    ]
    return ["size", *LAYOUTS, "TF32, NN", "errors / torch.mm's / TF32's"], rows


def _beside(rows: list[dict]) -> tuple[str, str]:
    """Returns the speed of TF32 and the largest errors over the layouts, of rows after idle."""
    speed = (r["torch_us"] / r["tf32_us"] for r in rows if r["ops"] == "NN" and "tf32_us" in r)
    errors = []
    for side in ("", "torch_", "tf32_"):
        found = (r[f"{side}error_max"] for r in rows if f"{side}error_max" in r)
        errors.append(tables.digits(max(found, default=None)))
    return next((f"{x:.2f}" for x in speed), tables.NONE), " / ".join(errors)
