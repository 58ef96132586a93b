"""``call``: what one call from Python costs on problems too small to matter on the device."""

from __future__ import annotations

import argparse
import statistics
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils.benchmark import Timer

import torch_sgemm
from benchmarks import tables
from benchmarks.measure import families
from benchmarks.problems import Problem, make_pool, positive
from benchmarks.session import Session

GPU_SIZES = (16, 64, 256)
CPU_SIZES = (16, 64)
TURNS = 5
TIMING = (
    "wall clock a call by torch.utils.benchmark, in blocks that end in a synchronisation, "
    "one thread, all statements by turns"
)
BASELINE = "torch.mm(a, b)"
ENABLED = "torch.mm(a, b)  # under enable()"
BLOCK_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --size and --kernel."""
    parser.add_argument("--size", type=positive, nargs="+", help="m = n = k")
    parser.add_argument(
        "--kernel", nargs="+", metavar="NAME", help="rows (default: aten and each family's choice)"
    )


def statements(kernels: list[str]) -> list[str]:
    """Returns the statements to time; they use a, b and out."""
    calls = [BASELINE, "torch.mm(a, b, out=out)", ENABLED, "torch_sgemm.matmul(a, b)"]
    calls += ["torch.ops.sgemm.mm(a, b)", "torch.ops.sgemm.mm.default(a, b)"]
    calls += [f'torch.ops.sgemm.mm.default(a, b, kernel="{name}")' for name in kernels]
    return [*calls, "torch.ops.sgemm.mm_out.default(a, b, out=out)"]


def run(args: argparse.Namespace) -> int:
    """Times all statements by turns, saves the record and prints the table."""
    session = Session(args, TIMING)
    torch_sgemm.disable()  # the environment may have enabled it
    sizes = args.size or (GPU_SIZES if session.on_gpu else CPU_SIZES)
    results = session.record["rows"]
    with session.progress(len(sizes) * TURNS) as step:
        for size in sizes:
            problem = Problem.square(size)
            a, b, out = make_pool(problem, session.device, session.seed).sets[0]
            kernels = args.kernel or default_kernels(a, b, session.device)
            variables = {"torch": torch, "torch_sgemm": torch_sgemm, "a": a, "b": b, "out": out}
            timers = {s: Timer(s, globals=variables) for s in statements(kernels)}
            times: dict[str, list[float]] = {s: [] for s in timers}
            for turn in range(TURNS):
                step(f"{size}, turn {turn + 1}")
                for statement, timer in timers.items():
                    with scope(statement, session.device):
                        block = timer.blocked_autorange(min_run_time=BLOCK_SECONDS)
                    times[statement].append(1e6 * block.median)
            for statement, us in times.items():
                results.append(
                    {
                        "size": size,
                        "statement": statement,
                        "us": statistics.median(us),
                        "us_min": min(us),
                        "us_max": max(us),
                        "torch_us": statistics.median(times[BASELINE]),
                    }
                )
    columns, rows = cells(session.record)
    tables.show("Microseconds per call from Python", columns, rows)
    _, status = session.finish()
    session.show_recorded(show_recorded)
    return status


def scope(statement: str, device: torch.device) -> AbstractContextManager:
    """Returns the context of a statement: with the override on, or off."""
    if statement == ENABLED:
        return torch_sgemm.enabled(devices=(device.type,))
    return nullcontext()


def default_kernels(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> list[str]:
    """Returns PyTorch's kernel through our operator, and the row that each family takes."""
    chosen = [torch_sgemm.explain(a, b, kernel=name).chosen for name in families(device)]
    return list(dict.fromkeys(["aten", *chosen]))


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per statement and a column per size: microseconds and their range."""
    sizes = sorted({r["size"] for r in found["rows"]})
    by: dict[str, dict[int, str]] = {}
    for r in found["rows"]:
        text = f"{r['us']:.1f} ({r['us_min']:.1f} … {r['us_max']:.1f})"
        by.setdefault(r["statement"], {})[r["size"]] = text
    rows = [[name, *(line.get(size, tables.NONE) for size in sizes)] for name, line in by.items()]
    return ["statement", *(f"{size}³" for size in sizes)], rows


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    columns, rows = cells(found)
    tables.show("\nRecorded on a GPU: microseconds a call", columns, rows)
