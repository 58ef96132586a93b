"""``ladder``: every row of the kernel table beside torch.mm on square problems."""

from __future__ import annotations

import argparse
import difflib

import torch_sgemm
from benchmarks import plots, record, tables
from benchmarks.measure import Measurement, runnable
from benchmarks.problems import Problem, positive
from benchmarks.session import Session

GPU_SIZES = (1024, 2048, 4096, 8192)
CPU_SIZES = (256,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --size and --kernel."""
    parser.add_argument(
        "--size", type=positive, nargs="+", help="m = n = k (default: 1024 ... 8192)"
    )
    parser.add_argument("--kernel", nargs="+", metavar="NAME", help="these rows only")


def choose_rows(rows: list[torch_sgemm.Kernel], names: list[str] | None) -> list:
    """Returns the rows named, in table order; all if ``names`` is None.

    Raises RuntimeError if no row of this device has a name; the error lists the nearest ones.
    """
    if names is None:
        return rows
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, 3, 0.3)) or ", ".join(known)
            raise RuntimeError(f"--kernel {name}: no row that runs here; nearest: {near}")
    return [row for row in rows if row.name in names]


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the tables."""
    session = Session(args)
    rows = choose_rows(runnable(session.device), args.kernel)
    sizes = args.size or (GPU_SIZES if session.on_gpu else CPU_SIZES)
    results = session.record["rows"]
    taken = {size: [row for row in rows if row.takes(size, size, size)] for size in sizes}
    with session.progress(sum(map(len, taken.values()))) as step:
        for size in sizes:
            problem = Problem.square(size)
            at = Measurement(problem, session.device, session.seed, session.options)
            for row in taken[size]:
                step(f"{size} {row.name}")
                about = {"size": size, "family": row.family, "idea": row.idea}
                results.append(about | at.row(row.name, session.sampler, call=True))
            del at
    for size in sizes:
        show(session, size)
    path, status = session.finish()
    tables.say(f"Chart: {plots.ladder(session.record, record.chart_path(path))}")
    session.show_recorded(show_recorded)
    return status


def show(session: Session, size: int) -> None:
    """Prints the table of one size."""
    timed = "kernel" if session.on_gpu else "call"
    unit, scale = tables.speed_unit(session.record)
    columns = ["row", timed, "p10 … p90", unit, "of torch.mm"]
    columns += ["error max / mean", "torch.mm's"]
    if session.on_gpu:
        columns += ["call", "torch.mm's call", "SM MHz", "W"]
    rows = []
    for r in session.record["rows"]:
        if r["size"] != size:
            continue
        if "failed" in r:
            rows.append([r["kernel"], "failed", *[tables.NONE] * (len(columns) - 2)])
            continue
        spread = f"{tables.time(r['kernel_us_p10'])} … {tables.time(r['kernel_us_p90'])}"
        cells = [r["kernel"], tables.time(r["kernel_us"]), spread]
        cells += [tables.digits(scale * r["kernel_tflops"]), tables.percent(r["percent_of_torch"])]
        cells += [f"{tables.errors(r)} {tables.verdict(r)}".strip(), tables.errors(r, "torch_")]
        if session.on_gpu:
            cells += [tables.time(r.get("call_us")), tables.time(r.get("torch_call_us"))]
            cells += [tables.digits(r.get("sm_mhz")), tables.digits(r.get("power_w"))]
        rows.append(cells)
    tables.show(f"{size} x {size} x {size}", columns, rows)


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    columns, rows = summary(found)
    tables.show("\nRecorded on a GPU: TFLOP/s (of torch.mm)", columns, rows)


def summary(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes one line per row, one column per size: TFLOP/s and percentage of torch.mm."""
    sizes = sorted({r["size"] for r in found["rows"]})
    cells: dict[str, dict[int, str]] = {}
    for r in found["rows"]:
        text = tables.verdict(r)
        if not text:
            text = f"{tables.digits(r['kernel_tflops'])} ({tables.percent(r['percent_of_torch'])})"
        cells.setdefault(r["kernel"], {})[r["size"]] = text
    rows = [[name, *(by.get(size, tables.NONE) for size in sizes)] for name, by in cells.items()]
    return ["row", *(f"{size}³" for size in sizes)], [torch_line(found, sizes), *rows]


def torch_line(found: dict, sizes: list[int]) -> list[str]:
    """Makes torch.mm's line: the median over the runs in which it was the other side."""
    cells = []
    for size in sizes:
        measured = [r for r in found["rows"] if r["size"] == size and "failed" not in r]
        speeds = sorted(r["torch_tflops"] for r in measured)
        cells.append(tables.digits(speeds[len(speeds) // 2]) if speeds else tables.NONE)
    return ["torch.mm", *cells]
