"""The worth of a row of the table: the speed that ``auto`` would lose without it.

If ``auto`` takes the row, the row that it would take next replaces it; all other problems stay
unchanged.
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
    """Returns the rows that ``auto`` may take, with PyTorch's, by predicted time."""
    usable = [v for v in explanation.verdicts if not v.reason]
    return [v.name for v in sorted(usable, key=lambda verdict: verdict.seconds)]


def lost(cases: list[Case], row: str) -> float:
    """Returns the share of the geometric mean of all cases' speeds that ``row`` is worth."""
    logs = (math.log(case.without / case.speed) for case in cases if case.chosen == row)
    return 1 - math.exp(sum(logs) / len(cases))


def cells(found: dict, cases: list[Case]) -> tuple[list[str], list[list[str]]]:
    """Makes a line per row that ``auto`` may take, in the table's order, without newer rows.

    A row newer than a record was not measured there and came first or second in no choice.
    """
    taken = [case.chosen for case in cases]
    named = {r.get(key) for r in found["rows"] for key in ("kernel", "chosen", "next")}
    rows = [row.name for row in torch_sgemm.kernels() if row.in_auto and row.name in named - {ATEN}]
    lines = [
        [name, f"{taken.count(name)} of {len(cases)}", f"{100 * lost(cases, name):.1f} %"]
        for name in rows
    ]
    return ["row", "taken", "speed lost without it"], lines
