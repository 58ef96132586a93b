"""What a row is worth: from records, and the row that would be taken next."""

from __future__ import annotations

import math

import pytest
import torch
from support.table import needs_cuda_build

import torch_sgemm
from benchmarks import choice, suite, worth
from benchmarks.worth import Case


def measured(problem: int, kernel: str, predicted: float, speed: float, auto: str) -> dict:
    """As ``choice`` records it; torch is predicted to take 10 us."""
    about = {"problem": problem, "kernel": kernel, "auto": auto, "torch_predicted_us": 10.0}
    return about | {"predicted_us": predicted, "percent_of_torch": 100 * speed}


def test_the_next_row_has_the_place_of_the_one_taken() -> None:
    rows = [
        measured(0, "x", 4, 2.0, "x"),
        measured(0, "y", 5, 1.5, "x"),
        measured(0, "z", 6, 3.0, "x"),  # better, but not what would be taken
        measured(1, "x", 8, 1.2, "x"),
        measured(1, "y", 12, 2.0, "x"),  # PyTorch's is predicted to be faster
        measured(2, "y", 12, 0.5, "aten"),
        measured(3, "y", 2, 1.8, "x") | {"failed": "for a reason"},
    ]
    found = choice.worth_cases({"rows": rows})
    assert found == [Case("x", 2.0, 1.5), Case("x", 1.2, 1.0), Case("aten", 1.0, 0.5)]


def test_suite_records_the_next_row() -> None:
    row = {"chosen": "x", "percent_of_torch": 200.0}
    rows = [row | {"next_percent_of_torch": 150.0}, row, row | {"failed": "for a reason"}]
    assert suite.worth_cases({"rows": rows}) == [Case("x", 2.0, 1.5)]


def test_what_goes_is_the_geometric_mean() -> None:
    cases = [Case("x", 2.0, 1.0), Case("y", 3.0, 3.0), Case("aten", 1.0, 0.5), Case("x", 2.0, 2.0)]
    assert worth.lost(cases, "x") == pytest.approx(1 - math.pow(0.5, 1 / 4))
    assert worth.lost(cases, "y") == worth.lost(cases, "z") == 0
    names = [row.name for row in torch_sgemm.kernels() if row.in_auto and row.family]
    rows = [{"kernel": name} for name in names[3:]] + [{"chosen": names[0], "next": names[2]}]
    columns, lines = worth.cells({"rows": rows}, cases)
    assert [line[0] for line in lines] == [names[0], *names[2:]]  # names[1] is a newer row
    assert all(len(line) == len(columns) for line in lines)


@needs_cuda_build
def test_rows_are_ranked_as_they_are_chosen() -> None:
    a = torch.empty(300, 300, device="meta")
    explanation = torch_sgemm.explain(a, a, device=torch_sgemm.Device())
    first, second, *_ = worth.ranked(explanation)
    assert first == explanation.chosen and second != first
