"""``choice``: how well ``auto`` chooses, on random problems that no cost model was fitted to.

Each problem is computed by torch and by the rows predicted to be fastest. So the record shows the
right choice, and the error of each prediction.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

import torch_sgemm
from benchmarks import tables, worth
from benchmarks.measure import Measurement, geomean
from benchmarks.problems import Problem, positive
from benchmarks.session import Session
from benchmarks.timing import quantile

DEFAULTS = {"rounds": 4, "budget": 0.2, "idle": 0.005}
Sizes = Callable[[random.Random], tuple[int, int, int]]
COUNT_GPU, COUNT_CPU = 200, 6
LARGEST_BYTES, LARGEST_FLOPS = 3e8, 6e10  # limits of a problem on a GPU
CPU_SHIFT = 6  # on the CPU, sizes are divided by 2^CPU_SHIFT
# Measured are the two rows predicted to be fastest, and up to this many rows that are predicted to
# take at most this many times the least time.
MOST_ROWS, WITHIN = 3, 1.6
WELL = 0.98  # a choice should reach this share of torch's speed


def _size(rng: random.Random, low: float, high: float) -> int:
    """Returns a size from 2^low to 2^high; two in three are round, like most in practice."""
    size = int(2 ** rng.uniform(low, high))
    steps = [step for step in (8, 32, 64, 128) if step <= size // 4]
    if not steps or rng.random() < 1 / 3:
        return size
    step = rng.choice(steps)
    return size // step * step


def _either(rng: random.Random, x: int, y: int, k: int) -> tuple[int, int, int]:
    """Returns m and n in either order."""
    return (x, y, k) if rng.random() < 0.5 else (y, x, k)


def _few(rng: random.Random) -> tuple[int, int, int]:
    return _either(rng, _size(rng, 0, 6.3), _size(rng, 9, 14), _size(rng, 7, 13.5))


def _tall(rng: random.Random) -> tuple[int, int, int]:
    return _either(rng, _size(rng, 1.5, 8), _size(rng, 14, 19), _size(rng, 2, 9))


def _cube(low: float, high: float) -> Sizes:
    return lambda rng: (_size(rng, low, high), _size(rng, low, high), _size(rng, low, high))


def _long(rng: random.Random) -> tuple[int, int, int]:
    return _size(rng, 4, 9.3), _size(rng, 4, 9.3), _size(rng, 12, 17)


KINDS: dict[str, tuple[Sizes, int]] = {  # (m, n, k), and the batch's largest power of two
    "matrices": (_cube(4, 12.3), 0),
    "few rows or columns": (_few, 0),
    "long k": (_long, 0),
    "tall or wide": (_tall, 0),
    "batches": (_cube(3, 10.5), 12),
    "tiny": (_cube(1, 6), 13),
}


def problems(
    count: int, seed: int, shift: int = 0, of_kinds: dict[str, tuple[Sizes, int]] = KINDS
) -> list[tuple[str, Problem]]:
    """Yields problems of each kind in turn, in random layouts; sizes are divided by 2^shift."""
    rng = random.Random(seed)
    kinds = list(of_kinds)
    found: list[tuple[str, Problem]] = []
    while len(found) < count:
        kind = kinds[len(found) % len(kinds)]
        sizes, batch = of_kinds[kind]
        ops = rng.choice(("NN", "NT", "TN", "TT"))
        m, n, k = (max(1, size >> shift) for size in sizes(rng))
        problem = Problem(m, n, k, ops, max(1, int(2 ** rng.uniform(0, batch)) >> shift))
        if problem.bytes <= LARGEST_BYTES and problem.flops <= LARGEST_FLOPS:
            found.append((kind, problem))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --count."""
    parser.add_argument("--count", type=positive, help=f"problems (default: {COUNT_GPU})")


def candidates(explanation: torch_sgemm.Explanation) -> list[torch_sgemm.Verdict]:
    """Returns the rows, without PyTorch's, that are predicted to be the fastest."""
    families = {row.name: row.family for row in torch_sgemm.kernels()}
    usable = [v for v in explanation.verdicts if not v.reason and families[v.name]]
    usable.sort(key=lambda verdict: verdict.seconds)
    near = [v for v in usable[2:MOST_ROWS] if v.seconds <= WITHIN * usable[0].seconds]
    return usable[:2] + near


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and prints the tables."""
    session = Session(args)
    count = args.count or (COUNT_GPU if session.on_gpu else COUNT_CPU)
    # On CPU tensors auto is PyTorch's kernel; what runs there shows that the rest works.
    kernel = "auto" if session.on_gpu else "ladder"
    drawn = problems(count, session.seed, 0 if session.on_gpu else CPU_SHIFT)
    results = session.record["rows"]
    with session.progress(len(drawn)) as step:
        for index, (kind, problem) in enumerate(drawn):
            step(problem.label)
            at = Measurement(problem, session.device, session.seed, session.options)
            operands = at.pool.sets[0]
            explanation = torch_sgemm.explain(operands.a, operands.b, kernel=kernel)
            torchs = next(v.seconds for v in explanation.verdicts if v.name == "aten")
            about = {"problem": index, "kind": kind, "label": problem.label}
            about |= {"auto": explanation.chosen, "torch_predicted_us": 1e6 * torchs}
            for verdict in candidates(explanation):
                measured = at.row(verdict.name, session.sampler)
                results.append(about | {"predicted_us": 1e6 * verdict.seconds} | measured)
            del at, operands
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def show(found: dict) -> None:
    """Prints all tables."""
    tables.show("Speed relative to torch", *choice_cells(found))
    tables.show("What a row is worth", *worth.cells(found, worth_cases(found)))
    tables.show("Predicted time by measured time", *prediction_cells(found))


def by_problem(found: dict) -> list[tuple[dict, dict[str, float]]]:
    """Returns for each problem one of its rows, and torch's time over that of each row."""
    return [
        (rows[0], {r["kernel"]: r["percent_of_torch"] / 100 for r in rows} | {worth.ATEN: 1.0})
        for rows in _of_problems(found)
    ]


def worth_cases(found: dict) -> list[worth.Case]:
    """Returns the problems whose row was measured, with the row predicted to be next."""
    cases = []
    for rows, (first, ratios) in zip(_of_problems(found), by_problem(found), strict=True):
        auto, predicted = first["auto"], {r["kernel"]: r["predicted_us"] for r in rows}
        predicted[worth.ATEN] = first["torch_predicted_us"]
        if auto in ratios:
            following = min((name for name in predicted if name != auto), key=predicted.__getitem__)
            cases.append(worth.Case(auto, ratios[auto], ratios[following]))
    return cases


def _of_problems(found: dict) -> list[list[dict]]:
    """Groups the rows that didn't fail by problem."""
    measured: dict[int, list[dict]] = {}
    for r in found["rows"]:
        if "failed" not in r:
            measured.setdefault(r["problem"], []).append(r)
    return list(measured.values())


def speeds(found: dict) -> dict[str, list[tuple[float, float]]]:
    """Returns by kind torch's time over the chosen row's, and over the shortest of all."""
    result: dict[str, list[tuple[float, float]]] = {}
    for row, ratios in by_problem(found):
        chosen = ratios.get(row["auto"])
        if chosen is not None:  # it didn't fail
            result.setdefault(row["kind"], []).append((chosen, max(ratios.values())))
    return result


def choice_cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes one line per kind of problem, all kinds first."""
    by_kind = speeds(found)
    lines = {"all": [pair for pairs in by_kind.values() for pair in pairs], **by_kind}
    columns = ["kind", "problems", "auto", "best row", f"auto below {WELL}", "worst"]
    rows = []
    for kind, pairs in lines.items():
        chosen = [pair[0] for pair in pairs]
        rows.append(
            [
                kind,
                str(len(pairs)),
                f"{geomean(chosen):.3f}",
                f"{geomean(pair[1] for pair in pairs):.3f}",
                str(sum(not ratio >= WELL for ratio in chosen)),
                f"{min(chosen, default=math.nan):.2f}",
            ]
        )
    return columns, rows


def prediction_cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per row, PyTorch's kernel first: predicted over measured time."""
    ratios: dict[str, dict[int, float]] = {}
    for r in found["rows"]:
        if "failed" in r:
            continue
        ratios.setdefault("aten", {})[r["problem"]] = r["torch_predicted_us"] / r["torch_us"]
        ratios.setdefault(r["kernel"], {})[r["problem"]] = r["predicted_us"] / r["kernel_us"]
    rows = []
    for name, of_problems in ratios.items():
        values = list(of_problems.values())
        shown = (f"{quantile(values, q):.2f}" for q in (0.05, 0.5, 0.95))
        rows.append([name, str(len(values)), *shown])
    return ["kernel", "problems", "5 %", "median", "95 %"], rows
