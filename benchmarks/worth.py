"""What a row of the table is worth: the speed that ``auto`` would lose without it.

Where ``auto`` takes the row, the row that it would take next has its place; all other problems
stay as they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch_sgemm

ATEN = "aten"


class Case(NamedTuple):
    """The row that ``auto`` takes, and speeds relative to torch: with it, and without it."""

    chosen: str
    speed: float
    without: float


def ranked(explanation: torch_sgemm.Explanation) -> list[str]:
    """The rows that ``auto`` may take, PyTorch's among them; the fastest, as predicted, first."""
    usable = [v for v in explanation.verdicts if not v.reason]
    return [v.name for v in sorted(usable, key=lambda verdict: verdict.seconds)]


def lost(cases: list[Case], row: str) -> float:
    """The share of the geometric mean of all cases' speeds that goes without ``row``."""
    logs = (math.log(case.without / case.speed) for case in cases if case.chosen == row)
    return 1 - math.exp(sum(logs) / len(cases))


def cells(found: dict, cases: list[Case]) -> tuple[list[str], list[list[str]]]:
    """A line a row that ``auto`` may take, in the table's order; none of rows newer than a record.

    Such a row has neither been measured there nor come first or second in a choice.
    """
    taken = [case.chosen for case in cases]
    named = {r.get(key) for r in found["rows"] for key in ("kernel", "chosen", "next")}
    rows = [row.name for row in torch_sgemm.kernels() if row.in_auto and row.name in named - {ATEN}]
    lines = [
        [name, f"{taken.count(name)} of {len(cases)}", f"{100 * lost(cases, name):.1f} %"]
        for name in rows
    ]
    return ["row", "taken", "speed lost without it"], lines
