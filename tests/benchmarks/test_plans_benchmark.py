"""The benchmark of plans: what it records, and what its table says of it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import torch_sgemm
from benchmarks import plans, record
from benchmarks.__main__ import main
from benchmarks.problems import Problem
from benchmarks.tables import NONE


def plan(problem: int, index: int, predicted: float, measured: float, own: float) -> dict:
    """Makes a row as ``plans`` records it."""
    figures = {"predicted_us": predicted, "plan_us": measured, "own_choice_us": own}
    return {"kernel": "x", "problem": problem, "plan": index} | figures


def record_of(tmp_path: Path, *arguments: str) -> dict:
    assert main(["plans", "--rounds", "2", "--output", str(tmp_path), *arguments]) == 0
    (path,) = tmp_path.glob("plans/plans-*.jsonl.gz")  # a folder gets the record in one of its own
    return record.load(path)


def test_plans_of_tiny_products_on_the_cpu(tmp_path: Path) -> None:
    found = record_of(tmp_path, "--device", "cpu", "--count", "16")
    rows = found["rows"]
    assert {p["kind"] for p in found["problems"]} == set(plans.KINDS)
    assert {r["kernel"] for r in rows} == {"aten", "ieee_tiny"}
    tiny = [r for r in rows if r["kernel"] == "ieee_tiny"]
    for problem in {r["problem"] for r in tiny}:
        found = [r for r in tiny if r["problem"] == problem]
        assert [r["plan"] for r in found] == sorted({r["plan"] for r in found})
        least = min(r["predicted_us"] for r in found)
        for r in found:
            assert r["plan_us"] > 0 and r["own_choice_us"] > 0
            assert r["predicted_us"] <= plans.WITHIN * least
            assert re.fullmatch(r"tile=(\d+)x\1", r["cut"])
    assert not any("cut" in r for r in rows if r["kernel"] == "aten")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["ieee_small", "split_fp16x3"])
def test_plans_on_a_gpu(tmp_path: Path, kernel: str) -> None:
    rows = record_of(tmp_path, "--count", "6", "--kernel", kernel)["rows"]
    assert {r["kernel"] for r in rows} == {kernel}
    assert {r["problem"] for r in rows} == set(range(6))
    assert all(r["plan_us"] > 0 for r in rows)


def test_few_rows_come_with_a_packed_matrix_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a row that is measured reads the planes."""
    table = {row.name: row for row in torch_sgemm.kernels()}
    asked = []
    monkeypatch.setattr(plans, "runnable", lambda *_, **__: list(table.values()))
    monkeypatch.setattr(plans, "measure", lambda *given: asked.append(given[1:]) or [])
    of_split = ("--kernel", "aten", "split_fp16x3_few")
    found = record_of(tmp_path, "--device", "cpu", "--count", "66", *of_split)
    problems = found["problems"]
    packed = [i for i, p in enumerate(problems) if p.get("packed")]
    assert len(problems) == 66 + len(packed) and packed
    for i in packed:
        assert problems[i] == problems[i - 1] | {"packed": True}
        assert problems[i]["kind"] in plans.WITH_PLANES and problems[i]["m"] <= problems[i]["n"]
    assert [i for i, given in enumerate(asked) if given[2]] == packed
    plain = record_of(tmp_path, "--device", "cpu", "--count", "66", "--kernel", "ieee_small")
    assert not any("packed" in p for p in plain["problems"]) and len(plain["problems"]) == 66


def test_a_row_for_few_rows_is_measured_with_few_rows() -> None:
    table = {row.name: row for row in torch_sgemm.kernels()}
    few, tiny = table["split_fp16x3_few"], table["ieee_tiny"]
    assert few.takes_planes and few.most_rows == 64 and tiny.most_rows is None
    assert [row.name for row in table.values() if row.takes_planes] == ["split_fp16x3", few.name]
    for m, n, fits in ((64, 4096, True), (4096, 64, True), (65, 4096, False)):
        assert plans.is_measured(few, Problem(m, n, 512)) == fits
    assert plans.is_measured(tiny, Problem.square(64))
    assert not plans.is_measured(tiny, Problem.square(65))


@pytest.mark.gpu
def test_plans_with_planes_on_a_gpu(tmp_path: Path) -> None:
    rows = ("split_fp16x3", "split_fp16x3_few")
    found = record_of(tmp_path, "--count", "8", "--kind", plans.WITH_PLANES[0], "--kernel", *rows)
    packed = {i for i, p in enumerate(found["problems"]) if p.get("packed")}
    of_packed = [r for r in found["rows"] if r["problem"] in packed]
    assert packed and {r["problem"] for r in of_packed} == packed
    assert {r["kernel"] for r in of_packed} == set(rows)
    assert all(r["plan_us"] > 0 and r["own_choice_us"] > 0 for r in of_packed)


def test_the_table_tells_what_a_choice_loses() -> None:
    rows = [plan(0, 0, 8, 10, 10), plan(0, 1, 9, 5, 10), plan(1, 0, 4, 4, 4), plan(1, 2, 6, 8, 4)]
    failed = {"kernel": "y", "problem": 0, "failed": "for a reason", "correct": False}
    columns, [line] = plans.cells({"rows": [*rows, failed]})
    assert len(line) == len(columns) and NONE not in line
    assert line[:5] == ["x", "2", "4", "0.707", "0.50"]
    assert line[6] == "0.90"  # of 0.75, 0.8, 1.0 and 1.8


def test_rows_that_have_no_plans_are_refused(capsys: pytest.CaptureFixture) -> None:
    assert main(["plans", "--device", "cpu", "--count", "1", "--kernel", "naive_32"]) == 2
    assert "--kernel naive_32: accepted here: aten, ieee_tiny" in capsys.readouterr().out


def test_the_fastest_plans_are_drawn_and_some_others() -> None:
    predicted = [5.0, 1.0, 9.0, 2.0, 2.5, 1.5, *(2.9 for _ in range(20))]
    chosen = plans.drawn_plans(predicted, random.Random(0))
    assert chosen == sorted(chosen) and {1, 3, 4, 5} <= set(chosen)
    assert len(chosen) == plans.BEST + plans.OTHERS and not {0, 2} & set(chosen)
    assert plans.drawn_plans([3.0], random.Random(0)) == [0]
