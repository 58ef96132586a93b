"""``plans``: every plan of the rows that have several, beside its prediction, on random problems.

A plan is a way to cut a problem up: tile, cluster, slices of k. A row takes the plan that it
predicts to be the fastest. The record shows the best plan and the error of all predictions.
PyTorch's kernel is there as well, as a row of one plan. Each plan is recorded in words, which
``worth --mechanisms`` reads. The cost models are fitted to such records, on other problems than
those of ``choice``. Operands are uniform(-1, 1) numbers, in bfloat16 for rows without float32.

Layers, and other problems of few rows and a wide B, come twice. The second time B is packed, and
only the rows that read its planes are measured.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import replace

import torch
from torch import Tensor

import torch_sgemm
from benchmarks import choice, tables
from benchmarks.choice import COUNT_CPU, CPU_SHIFT, Sizes, problems
from benchmarks.measure import geomean, runnable
from benchmarks.problems import Operands, Pool, Problem, cold_pool, in_16_bits, positive
from benchmarks.session import Session, check_kernels
from benchmarks.sides import Side
from benchmarks.timing import Options, compare, quantile
from benchmarks.worth import ATEN

COUNT_GPU = 350
DEFAULTS = {"rounds": 3, "budget": 0.1, "idle": 0.001}
REPLAY = 0.002  # seconds of work, about; short, because there are many plans
FAMILIES = ("", "ieee", "split")
WITHIN = 3.0  # measures plans predicted to take at most this many times the row's best
BEST, OTHERS = 4, 4  # per row: the plans predicted to be fastest, and some drawn
HOPELESS = 4.0  # leaves out rows predicted to take this many times the fastest
SEED_SHIFT = 1000  # gives other problems than choice's
WITH_PLANES = ("few rows or columns", "layers")  # kinds whose problems come with a packed B as well
Planes = dict[int, Tensor]  # of each set's B, by B's address


def _vector(rng: random.Random) -> tuple[int, int, int]:
    """Makes matrix times vector, and now and then vector times vector."""
    rows, k = int(2 ** rng.uniform(3, 14)), int(2 ** rng.uniform(3, 14))
    return rng.choice(((1, rows, k), (rows, 1, k), (1, rows, k), (rows, 1, k), (1, 1, rows * 16)))


def _round(rng: random.Random) -> tuple[int, int, int]:
    """Makes multiples of 4; in one of two products all sizes are equal."""
    m, n, k = rng.choices((4, 8, 12, 16, 24, 32, 48, 64), k=3)
    return (m, m, m) if rng.random() < 0.5 else (m, n, k)


def _longest(rng: random.Random) -> tuple[int, int, int]:
    """Makes sizes longer than choice's: memory bandwidth decides, and which plan reaches it."""
    return (
        int(2 ** rng.uniform(4, 7.5)),
        int(2 ** rng.uniform(4, 7.5)),
        int(2 ** rng.uniform(15, 20)),
    )


def _square(rng: random.Random) -> tuple[int, int, int]:
    """Makes the most common sizes; in one of two products whole tiles."""
    size = int(2 ** rng.uniform(6, 12))
    size = (size + 63) // 64 * 64 if rng.random() < 0.5 else size
    return size, size, size


def _large(rng: random.Random) -> tuple[int, int, int]:
    """Makes sizes where tensor cores, caches and power are the limit."""
    m, n, k = (int(2 ** rng.uniform(10.5, 13)) for _ in range(3))
    return m, n, k


def _layer(rng: random.Random) -> tuple[int, int, int]:
    """Makes a layer's weight, whose sides are whole tiles, times a batch of rows."""
    rows = rng.choice((1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048))
    n, k = (128 * int(2 ** rng.uniform(1, 6.8)) for _ in range(2))
    return rows, n, k


KINDS: dict[str, tuple[Sizes, int]] = {
    **choice.KINDS,
    "vectors": (_vector, 0),
    "round batches": (_round, 16),
    "longest k": (_longest, 0),
    "squares": (_square, 0),
    "layers": (_layer, 0),
    "large matrices": (_large, 0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --count, --kernel and --kind."""
    parser.add_argument("--count", type=positive, help=f"problems (default: {COUNT_GPU})")
    parser.add_argument("--kernel", nargs="+", metavar="NAME", help="these rows only")
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), help="of problems")


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and prints the tables."""
    session = Session(args)
    all_rows = runnable(session.device, of_16_bits=True)
    rows = {row.name: row for row in all_rows if row.family in FAMILIES}
    check_kernels(args.kernel, rows)
    chosen = [rows[name] for name in args.kernel or rows]
    count = args.count or (COUNT_GPU if session.on_gpu else COUNT_CPU)
    shift = 0 if session.on_gpu else CPU_SHIFT
    kinds = {kind: KINDS[kind] for kind in args.kind or KINDS}
    drawn = problems(count, session.seed + SEED_SHIFT, shift, kinds)
    reads_planes = any(row.takes_planes for row in chosen)
    work = [
        (kind, problem, packed)
        for kind, problem in drawn
        for packed in ((False, True) if reads_planes and has_packed(kind, problem) else (False,))
    ]
    session.record["problems"] = []
    with session.progress(len(work)) as step:
        for index, (kind, problem, packed) in enumerate(work):
            step(problem.label)
            about = {"kind": kind, "label": problem.label} | problem.as_dict()
            session.record["problems"].append(about | ({"packed": True} if packed else {}))
            session.record["rows"] += [
                {"problem": index} | r for r in measure(session, problem, chosen, packed)
            ]
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def has_packed(kind: str, problem: Problem) -> bool:
    """True if the problem is measured with a packed B too."""
    return kind in WITH_PLANES and problem.m <= problem.n and problem.batch == 1


def measure(
    session: Session, problem: Problem, rows: list[torch_sgemm.Kernel], packed: bool = False
) -> list[dict]:
    """Makes a line per plan of each row that takes the problem, without hopeless rows."""
    pool = cold_pool(problem, session.device, session.seed)
    if packed:
        planes = {s.b.data_ptr(): torch.ops.sgemm._pack(s.b) for s in pool.sets}
        return measure_in(pool, session, problem, [x for x in rows if x.takes_planes], planes)
    found = measure_in(pool, session, problem, [row for row in rows if row.takes_float32])
    if short := [row for row in rows if not row.takes_float32]:
        sets = [s._replace(a=in_16_bits(s.a), b=in_16_bits(s.b)) for s in pool.sets]
        pool = Pool(sets, pool.cold)
        found += measure_in(pool, session, problem, short)
    return found


def measure_in(
    pool: Pool,
    session: Session,
    problem: Problem,
    rows: list[torch_sgemm.Kernel],
    planes: Planes | None = None,
) -> list[dict]:
    """Does the same for rows that take operands of these dtypes, or ``planes`` of B."""
    first = pool.sets[0]
    of_b = planes and planes[first.b.data_ptr()]
    verdicts = {v.name: v.seconds for v in torch_sgemm.explain(first.a, first.b).verdicts}
    names = [row.name for row in rows if is_measured(row, problem)]
    if planes:  # explain() is of a B without planes
        best = {row: min(plans_with(row, first, of_b)) for row in names}
    else:
        best = {row: verdicts[row] for row in names}
    least = min(best.values(), default=0.0)
    options = replace(session.options, replay=REPLAY)
    found: list[dict] = []
    for row in names:
        if best[row] > HOPELESS * least:
            continue
        predicted = plans_with(row, first, of_b) or [best[row]]
        chosen = drawn_plans(predicted, random.Random(problem.label))
        cuts = cuts_of(row, first, planes is not None)
        try:
            for r in plans_of(row, {i: predicted[i] for i in chosen}, pool, options, planes):
                found.append(r | ({"cut": cuts[r["plan"]]} if cuts[r["plan"]] else {}))
        except RuntimeError as failure:
            failed = {"kernel": row, "label": problem.label, "correct": False}
            found.append(failed | {"failed": str(failure).splitlines()[0]})
    return found


def is_measured(row: torch_sgemm.Kernel, problem: Problem) -> bool:
    """True if the row takes the problem, also without its name."""
    few = row.most_rows is None or min(problem.m, problem.n) <= row.most_rows
    return few and row.takes(problem.m, problem.n, problem.k)


def plans_with(row: str, operands: Operands, planes: Tensor | None) -> list[float]:
    """Returns the predicted times of a row's plans, seconds; none for PyTorch's kernel."""
    a, b, c = operands
    return torch.ops.sgemm._plans(c, a, b, row, planes=planes)


def cuts_of(row: str, operands: Operands, packed: bool) -> list[str]:
    """Returns a row's plans in words, "tile=128x64 cluster=2"; PyTorch's only one is empty."""
    about = torch_sgemm.Device.of(operands.a.device)._numbers()
    problem = torch_sgemm.choice.explain._problem(operands.a, operands.b)
    return torch.ops.sgemm._cuts(problem, about, row, packed).splitlines()


def drawn_plans(predicted: list[float], rng: random.Random) -> list[int]:
    """Returns the plans predicted to be the fastest, and some of the others, in order."""
    near = [i for i, seconds in enumerate(predicted) if seconds <= WITHIN * min(predicted)]
    near.sort(key=predicted.__getitem__)
    return sorted(near[:BEST] + rng.sample(near[BEST:], min(OTHERS, len(near[BEST:]))))


def plans_of(
    row: str,
    predicted: dict[int, float],
    pool: Pool,
    options: Options,
    planes: Planes | None = None,
) -> list[dict]:
    """Returns measured times of the row's plans by index, and of the row's own choice."""
    if planes is None:
        own_plan = Side(row, lambda s: torch.ops.sgemm.gemm_(s.c, s.a, s.b, row))
    else:
        own_plan = side(row, min(predicted, key=predicted.__getitem__), planes)
    others = [side(row, i, planes) for i in predicted] if row != ATEN else [own_plan]
    own, *timings = compare([own_plan, *others], pool, options)
    return [
        {
            "kernel": row,
            "plan": index,
            "predicted_us": rounded(1e6 * seconds),
            "plan_us": rounded(1e6 * timing.typical),
            "own_choice_us": rounded(1e6 * own.typical),
        }
        for (index, seconds), timing in zip(predicted.items(), timings, strict=True)
    ]


def rounded(us: float) -> float:
    """Rounds to five digits, because there are many numbers."""
    return float(f"{us:.5g}")


def side(row: str, index: int, planes: Planes | None = None) -> Side:
    """Returns the side that computes the product by one plan of a row."""

    def product(s: Operands) -> None:
        of_b = planes and planes[s.b.data_ptr()]
        torch.ops.sgemm._run_plan(s.c, s.a, s.b, row, index, planes=of_b)

    return Side(f"{row} {index}", product)


def show(found: dict) -> None:
    """Prints the table."""
    tables.show("Plans: what a row loses by its choice, and predicted by measured", *cells(found))


def by_row(found: dict) -> dict[str, dict[int, list[dict]]]:
    """Groups the plans by row and problem."""
    rows: dict[str, dict[int, list[dict]]] = {}
    for r in found["rows"]:
        if "failed" not in r:
            rows.setdefault(r["kernel"], {}).setdefault(r["problem"], []).append(r)
    return rows


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per row: its own choice beside its best plan, and its predictions."""
    columns = ["kernel", "problems", "plans", "best plan / own choice", "worst"]
    columns += ["predicted / measured 5 %", "median", "95 %"]
    lines = []
    for name, of_problems in by_row(found).items():
        plans = [plan for of_problem in of_problems.values() for plan in of_problem]
        losses = [
            min(plan["plan_us"] for plan in of_problem) / of_problem[0]["own_choice_us"]
            for of_problem in of_problems.values()
        ]
        ratios = [plan["predicted_us"] / plan["plan_us"] for plan in plans]
        shown = (f"{quantile(ratios, q):.2f}" for q in (0.05, 0.5, 0.95))
        lines.append(
            [
                name,
                str(len(of_problems)),
                str(len(plans)),
                f"{geomean(losses):.3f}",
                f"{min(losses, default=math.nan):.2f}",
                *shown,
            ]
        )
    return columns, lines
