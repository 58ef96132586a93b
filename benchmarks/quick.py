"""``quick``: a dozen products in all layouts, auto beside torch.matmul: speed, errors, a chart.

For information, torch in TF32 shows what float32 costs, and its error what float32 is for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks import plots, record, tables
from benchmarks.machine import Sampler
from benchmarks.measure import Measurement
from benchmarks.problems import Problem
from benchmarks.session import Session
from benchmarks.sides import TF32, tf32_side
from benchmarks.timing import Options

PRODUCTS = (
    Problem(512, 512, 512, "NN"),
    Problem(1024, 1024, 1024, "NT"),
    Problem(2048, 2048, 2048, "TN"),
    Problem(4096, 4096, 4096, "TT"),
    Problem(4096, 3072, 768, "NT"),
    Problem(768, 3072, 4096, "TN"),
    Problem(16, 4096, 4096, "NT"),
    Problem(4096, 256, 7168, "NT"),
    Problem(100000, 64, 64, "NN"),
    Problem(128, 128, 65536, "TN"),
    Problem(4096, 4096, 1024, "NT", gram=True),
    Problem(256, 256, 256, "NN", batch=16),
)
CPU_SIZES = (40, 40, 64)  # largest m, n and k for the emulator
DEFAULTS = {"budget": 0.5}
LEGEND = (
    "Errors are the largest of 64 rows against float64, in units of 2⁻²⁴·(|A||B|). TF32 is "
    "torch.matmul's with TF32 allowed: speed, and the largest error in brackets."
)
BAR = "█"
BARS_A_TORCH, LONGEST_BAR = 3, 30  # characters for torch's speed, and at most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --kernel."""
    parser.add_argument("--kernel", metavar="NAME", help="a row or family (default: auto)")


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the table."""
    session = Session(args)
    # On CPU tensors auto is PyTorch's kernel; what runs there shows that the rest works.
    kernel = args.kernel or ("auto" if session.on_gpu else "ladder")
    problems = PRODUCTS if session.on_gpu else tuple(dict.fromkeys(map(tiny, PRODUCTS)))
    with session.progress(len(problems)) as step:
        session.record["rows"] += measure(
            problems, (kernel,), session.device, session.options, session.sampler, step
        )
    show(session.record)
    path, status = session.finish()
    tables.say(f"Chart: {plots.speeds(session.record, record.chart_path(path))}")
    session.show_recorded(show)
    return status


def measure(
    problems: Sequence[Problem],
    kernels: Sequence[str],
    device: torch.device,
    options: Options,
    sampler: Sampler,
    step: Callable[[str], None] = lambda _: None,
    information: bool = True,
) -> list[dict]:
    """Returns a row for each problem and kernel; with ``information`` also torch in TF32."""
    rows = []
    for problem in problems:
        step(problem.label)
        at = Measurement(problem, device, 1, options)
        alone = {}
        if information and device.type == "cuda":  # a CPU has no TF32
            alone = at.alone(tf32_side(problem))
        for kernel in kernels:
            about = {"label": problem.label, "gram": problem.gram}
            rows.append(about | at.row(kernel, sampler) | alone)
    return rows


def tiny(problem: Problem) -> Problem:
    """Returns the same with sizes for the emulator."""
    sizes = problem.m, problem.n, problem.k
    m, n, k = (min(pair) for pair in zip(sizes, CPU_SIZES, strict=True))
    return replace(problem, m=m, n=n, k=k, batch=min(problem.batch, 2))


def show(found: dict) -> None:
    """Prints the table; with a GPU's figures, a bar for each speed."""
    columns, rows = cells(found)
    title = f"{found['rows'][0]['kernel']} beside torch.matmul"
    if found["machine"]["device"] != "cuda":
        tables.show(title, columns, rows, left=2)
        return
    columns = [*columns[:2], f"{BAR * BARS_A_TORCH} torch's speed", *columns[2:]]
    bars = [bar(r) for r in found["rows"]]
    rows = [[*row[:2], length, *row[2:]] for row, length in zip(rows, bars, strict=True)]
    tables.show(title, columns, rows, left=3)
    tables.say(LEGEND)


def bar(row: dict) -> str:
    """Returns a bar as long as the speed relative to torch."""
    speed = row.get("percent_of_torch", 0.0) / 100
    return BAR * min(LONGEST_BAR, round(BARS_A_TORCH * speed))


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per product, to print or for Markdown."""
    rows = []
    for r in found["rows"]:
        note = " (A Aᵀ)" if r["gram"] else ""
        if "failed" in r:
            rows.append([r["label"] + note, "failed", *[tables.NONE] * 6])
            continue
        tf32 = tables.NONE
        if f"{TF32}_us" in r:
            error = tables.digits(r[f"{TF32}_error_max"])
            tf32 = f"{r['torch_us'] / r[f'{TF32}_us']:.2f} ({error})"
        rows.append(
            [
                r["label"] + note,
                r["chosen"],
                tables.time(r["torch_us"]),
                tables.time(r["kernel_us"]),
                tables.verdict(r) or f"{r['percent_of_torch'] / 100:.2f}",
                tables.digits(r["error_max"]),
                tables.digits(r["torch_error_max"]),
                tf32,
            ]
        )
    columns = ["product", "row", "torch", "time", "speed", "error", "torch's", "TF32"]
    return columns, rows
