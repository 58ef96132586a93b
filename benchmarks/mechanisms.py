"""Weighs mechanisms inside rows: the speed that ``auto`` would lose without each of them.

A mechanism is a name and the measured plans of a record that use it. ``auto`` takes the plan that
is predicted to be the fastest. Without the mechanism it takes the plan predicted to be fastest
among the others: a plan of any row, or PyTorch's kernel. Both plans count by their measured times.
A second figure assumes that the choice knows the measured times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NamedTuple

import torch_sgemm
from benchmarks import tables
from benchmarks.worth import ATEN

LEAST_ROWS = 3  # a record needs this many, PyTorch's included, to show other choices

PRODUCT = "split product"  # rows of one kernel template
SHARED = dict.fromkeys(("split_fp16x3", "split_fp16x3_streamed", "split_bf16x6"), PRODUCT)
FIELDS = {  # parts of a plan's cut, by their names in a table
    "slices": "slices of k",
    "parts": "stream-K",
    "sharing": "stream-K",
    "splits_b": "B split in the product's kernel",
    "swapped": "transposed product",
    "balances": "factors of k",
    "long_windows": "long windows",
}


class Plan(NamedTuple):
    """A plan's time, predicted and measured, and the mechanisms that it uses."""

    predicted: float
    measured: float
    uses: frozenset[str]


Choose = Callable[[Plan], float]  # a choice takes the plan with the least value
AUTO: Choose = attrgetter("predicted")
BEST: Choose = attrgetter("measured")


def uses(row: str, cut: str) -> list[str]:
    """Returns a plan's mechanisms: its row and the parts of its cut, "tile=128x64 cluster=2"."""
    if row == ATEN:
        return []
    names, shared = [row], SHARED.get(row, row)
    for field, value in (word.split("=") for word in cut.split()):
        if field in ("tile", "warps"):
            names.append(f"{row}: {field} {value}")
        elif field == "cluster":
            names.append(f"{shared}: clusters of {value}")
        else:
            names.append(f"{shared}: {FIELDS.get(field, field)}")
    return names


def plans_by_problem(found: dict) -> dict[int, list[Plan]]:
    """Returns the plans that ``auto`` may take for each problem of float32 operands.

    Problems with a packed B are left out: they lack the rows that read B itself.
    """
    rows = {row.name: row for row in torch_sgemm.kernels() if row.in_auto and row.takes_float32}
    by_problem: dict[int, list[Plan]] = {}
    for r in found["rows"]:
        row = rows.get(r["kernel"])
        if not row or "failed" in r:
            continue
        problem = found["problems"][r["problem"]]
        if problem["k"] >= row.auto_from and not problem.get("packed"):
            names = frozenset(uses(r["kernel"], r.get("cut", "")))
            plan = Plan(r["predicted_us"], r["plan_us"], names)
            by_problem.setdefault(r["problem"], []).append(plan)
    return by_problem


def left(problems: dict[int, list[Plan]], name: str, choose: Choose) -> dict[int, float]:
    """Returns the share of speed left without a mechanism, of problems whose plan uses it.

    A problem that no other plan computes is left out.
    """
    shares = {}
    for problem, plans in problems.items():
        taken = min(plans, key=choose)
        rest = [plan for plan in plans if name not in plan.uses]
        if name in taken.uses and rest:
            shares[problem] = taken.measured / min(rest, key=choose).measured
    return shares


def lost(shares: dict[int, float], problems: int) -> float:
    """Returns the share that the geometric mean of all problems' speeds loses."""
    return 1 - math.exp(sum(map(math.log, shares.values())) / problems)


def names_of(problems: Iterable[list[Plan]]) -> list[str]:
    """Returns all mechanisms, rows before their parts; of those with equal plans, the first."""
    users: dict[str, list[int]] = {}
    plans = [plan for of_problem in problems for plan in of_problem]
    for index, plan in enumerate(plans):
        for name in plan.uses:
            users.setdefault(name, []).append(index)
    first: dict[tuple[int, ...], str] = {}
    for name in sorted(users):
        first.setdefault(tuple(users[name]), name)
    return sorted(first.values())


def can_be_weighed(found: dict) -> bool:
    """True if a record has plans of several rows in words, and PyTorch's kernel beside them."""
    rows = {r["kernel"] for r in found["rows"] if r.get("cut") or r["kernel"] == ATEN}
    return ATEN in rows and len(rows) >= LEAST_ROWS


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per mechanism."""
    problems = plans_by_problem(found)
    lines = []
    for name in names_of(problems.values()):
        by_auto, by_best = (left(problems, name, choose) for choose in (AUTO, BEST))
        problem, share = min(by_auto.items(), key=lambda item: item[1], default=(0, 1.0))
        label = found["problems"][problem]["label"]
        percents = [f"{100 * lost(shares, len(problems)):.2f} %" for shares in (by_auto, by_best)]
        worst = f"{share:.2f} ({label})" if share < 1 else tables.NONE
        lines.append([name, f"{len(by_auto)} of {len(problems)}", *percents, worst])
    columns = ["mechanism", "taken", "auto loses", "the best choice loses", "auto's worst problem"]
    return columns, lines
