"""The worth of a row, and of a mechanism inside a row.

Both are computed from records, and from the choice that would be taken next.
"""

from __future__ import annotations

import math

import pytest
import torch
from support.table import needs_cuda_build

import torch_sgemm
from benchmarks import choice, mechanisms, record, suite, worth
from benchmarks.__main__ import main
from benchmarks.mechanisms import AUTO, BEST, Plan
from benchmarks.worth import Case


def measured(problem: int, kernel: str, predicted: float, speed: float, auto: str) -> dict:
    """Makes a row as ``choice`` records it; torch is predicted to take 10 us."""
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


# --- mechanisms ---

ROW, OTHER = "split_fp16x3", "split_fp16x3_streamed"  # share a kernel template


def test_a_plan_uses_its_row_and_what_its_cut_tells() -> None:
    cut = "tile=128x64 cluster=4 slices=3 splits_b=1"
    assert mechanisms.uses(OTHER, cut) == [
        OTHER,
        f"{OTHER}: tile 128x64",
        "split product: clusters of 4",
        "split product: slices of k",
        "split product: B split in the product's kernel",
    ]
    assert mechanisms.uses("ieee_tall", "unheard_of=2") == ["ieee_tall", "ieee_tall: unheard_of"]
    assert mechanisms.uses(worth.ATEN, "") == []


def test_the_next_plan_has_the_place_of_the_one_taken() -> None:
    plans = [
        Plan(1.0, 5.0, frozenset("x")),
        Plan(2.0, 10.0, frozenset("y")),
        Plan(3.0, 4.0, frozenset("xz")),
    ]
    problems = {3: plans, 5: [Plan(1.0, 1.0, frozenset("z"))]}
    assert mechanisms.left(problems, "x", AUTO) == {3: 0.5}
    assert mechanisms.left(problems, "x", BEST) == {3: 0.4}
    assert mechanisms.left(problems, "z", AUTO) == {}  # 5 has no other plan
    assert mechanisms.left(problems, "z", BEST) == {3: 0.8}
    assert mechanisms.lost({3: 0.5}, 2) == pytest.approx(1 - math.sqrt(0.5))
    assert mechanisms.lost({}, 2) == 0


def planned(problem: int, kernel: str, cut: str, predicted: float, measured: float) -> dict:
    """Makes a row as ``plans`` records it."""
    figures = {"predicted_us": predicted, "plan_us": measured}
    return {"problem": problem, "kernel": kernel, "cut": cut} | figures


def test_mechanisms_have_a_line_each() -> None:
    rows = [
        planned(0, ROW, "tile=128x128", 2, 2),
        planned(0, ROW, "tile=128x128 cluster=2", 1, 1),
        planned(0, OTHER, "tile=128x64", 3, 4),
        planned(0, "unsplit", "tile=128x128", 0.1, 0.1),  # takes other operands
        planned(0, "ieee_large", "tile=256x128", 0.1, 0.1),  # is not for auto
        planned(1, ROW, "tile=128x128", 0.1, 0.1),  # too short for auto
        planned(1, worth.ATEN, "", 2, 2),
        planned(1, OTHER, "", 1, 1) | {"failed": "for a reason"},
        planned(2, ROW, "tile=128x64", 0.1, 0.1),  # reads the planes of a packed matrix
    ]
    problems = [{"label": "long", "k": 100}, {"label": "short", "k": 8}]
    problems.append({"label": "packed", "k": 100, "packed": True})
    columns, lines = mechanisms.cells({"rows": rows, "problems": problems})
    assert all(len(line) == len(columns) for line in lines)
    assert lines == [
        ["split product: clusters of 2", "1 of 2", "29.29 %", "29.29 %", "0.50 (long)"],
        [ROW, "1 of 2", "50.00 %", "50.00 %", "0.25 (long)"],  # its only tile is the same plans
        [OTHER, "0 of 2", "0.00 %", "0.00 %", "-"],
    ]


def test_a_record_of_few_rows_is_not_weighed() -> None:
    rows = [{"kernel": worth.ATEN}, {"kernel": ROW, "cut": "x=1"}, {"kernel": OTHER, "cut": "x=1"}]
    assert mechanisms.can_be_weighed({"rows": rows})
    assert not any(mechanisms.can_be_weighed({"rows": rows[:i] + rows[i + 1 :]}) for i in range(3))
    assert not mechanisms.can_be_weighed({"rows": [*rows[:2], {"kernel": OTHER}]})


def test_recorded_plans_have_their_cuts() -> None:
    weighed = [found for found in record.all_of("plans") if mechanisms.can_be_weighed(found)]
    assert weighed
    for found in record.all_of("plans"):
        rows = [r for r in found["rows"] if r["kernel"] != worth.ATEN and "failed" not in r]
        assert all(r["cut"] for r in rows), found["path"]
    _, lines = mechanisms.cells(weighed[-1])
    assert {"ieee_small", ROW, "split product: stream-K"} <= {x[0] for x in lines}


def test_the_command_shows_rows_and_mechanisms(capsys: pytest.CaptureFixture) -> None:
    assert main(["worth"]) == 0
    shown = capsys.readouterr().out
    assert "worth in choice" in shown and "worth in suite" in shown and "stream-K" not in shown
    assert main(["worth", "--mechanisms"]) == 0
    assert "split product: stream-K" in capsys.readouterr().out
    assert main(["worth", "--gpu", "unheard-of"]) == 2
    assert "there is no record of choice" in " ".join(capsys.readouterr().out.split())
