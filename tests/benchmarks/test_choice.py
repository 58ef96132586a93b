"""The benchmark of auto's choices: its problems, its rows, and how it sums them up."""

from __future__ import annotations

import math

import pytest
import torch
from support.records import gpu_record
from support.table import needs_cuda_build

import torch_sgemm
from benchmarks import choice, record
from benchmarks.__main__ import main


def row(problem: int, kernel: str, auto: str, percent: float, **changes) -> dict:
    """Makes a row as ``choice`` records it; its prediction is twice the measured time."""
    times = {"kernel_us": 100 / percent, "predicted_us": 200 / percent}
    about = {"problem": problem, "kind": "tiny", "auto": auto, "kernel": kernel, "correct": True}
    torchs = {"torch_us": 1.0, "torch_predicted_us": 2.0, "percent_of_torch": percent}
    return about | times | torchs | changes


def test_problems_are_of_all_kinds_and_the_same_again() -> None:
    found = choice.problems(60, seed=3)
    assert found == choice.problems(60, seed=3) != choice.problems(60, seed=4)
    assert {kind for kind, _ in found} == set(choice.KINDS)
    assert {problem.ops for _, problem in found} == {"NN", "NT", "TN", "TT"}
    for _, problem in found:
        assert min(problem.m, problem.n, problem.k, problem.batch) >= 1
        assert problem.bytes <= choice.LARGEST_BYTES
    assert max(problem.flops for _, problem in choice.problems(30, 1, choice.CPU_SHIFT)) < 1e7


@needs_cuda_build
def test_candidates_are_the_fastest_as_predicted() -> None:
    a = torch.empty(1024, 1024, device="meta")
    explanation = torch_sgemm.explain(a, a, device=torch_sgemm.Device(), kernel="ladder")
    found = choice.candidates(explanation)
    assert found[0].name == explanation.chosen and len(found) <= choice.MOST_ROWS
    assert all(v.seconds <= choice.WITHIN * found[0].seconds for v in found[2:])
    assert sorted(found, key=lambda v: v.seconds) == found


def test_runs_on_the_cpu(tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["choice", "--device", "cpu", "--count", "2", "--rounds", "2", "--output", str(path)]
    assert main(run) == 0
    found = record.load(path)
    assert {r["problem"] for r in found["rows"]} == {0, 1}
    assert all(r["correct"] and r["kernel_us"] > 0 for r in found["rows"])


@pytest.mark.gpu
def test_runs_on_a_gpu(tmp_path) -> None:
    path = tmp_path / "r.json"
    assert main(["choice", "--device", "cuda", "--count", "12", "--output", str(path)]) == 0
    found = record.load(path)
    assert {r["problem"] for r in found["rows"]} <= set(range(12))
    assert all(r["correct"] and r["predicted_us"] > 0 for r in found["rows"])


def test_choices_are_summed_up() -> None:
    rows = [
        row(0, "x", "x", 400.0),
        row(0, "y", "x", 100.0),
        row(1, "x", "aten", 225.0),  # torch's own kernel was chosen, and is slower
        row(2, "x", "x", 50.0),
        row(3, "x", "x", math.nan, failed="no memory"),
        row(4, "x", "x", math.nan, failed="no memory"),
        row(4, "y", "x", 100.0),
    ]
    columns, lines = choice.choice_cells({"rows": rows})
    assert columns[2:4] == ["auto", "best row"]
    # 4, 1 and 0.5 were chosen; 4, 2.25 and torch's 1 are the best
    assert lines[0] == ["all", "3", "1.260", "2.080", "1", "0.50"]
    assert [line[0] for line in lines] == ["all", "tiny"]


def test_the_report_writes_both_tables(tmp_path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    names = ("choice", "predictions")
    page.write_text("".join(f"<!-- begin:{x} -->\nold\n<!-- end:{x} -->\n" for x in names))
    found = gpu_record("choice", [row(i, "x", "x", 400.0) for i in range(2)])
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| all | 2 | 4.000 | 4.000 | 0 | 4.00 |" in text
    assert "| aten | 2 | 2.00 | 2.00 | 2.00 |" in text


def test_predictions_are_summed_up() -> None:
    rows = [row(i, "x", "x", 100.0, predicted_us=1.0 + i, kernel_us=1.0) for i in range(5)]
    lines = choice.prediction_cells({"rows": rows})[1]
    assert [line[:2] for line in lines] == [["aten", "5"], ["x", "5"]]
    assert lines[0][2:] == ["2.00", "2.00", "2.00"]
    assert lines[1][3] == "3.00"


@needs_cuda_build
def test_code_for_a_lower_architecture() -> None:
    """Such code lacks what its rows need of the device; PyTorch's kernel is left."""
    a = torch.empty(300, 300, device="meta")
    for code in (80, 0):
        found = torch_sgemm.explain(a, a, device=torch_sgemm.Device(code_arch=code))
        assert found.chosen == "aten"
        reasons = {v.name: v.reason for v in found.verdicts}
        assert reasons["ieee_small"] == "not built for the device's architecture"


@needs_cuda_build
def test_an_alpha_that_pieces_of_k_cannot_have() -> None:
    """They are added up apart, one matrix after the other, which takes longer."""
    a = torch.empty(4000, 300, 140, device="meta")
    b = torch.empty(4000, 140, 3, device="meta")
    for name in ("ieee_tall", "split_fp16x3_tall"):
        seconds = [
            next(
                v.seconds
                for v in torch_sgemm.explain(
                    a, b, alpha=alpha, device=torch_sgemm.Device()
                ).verdicts
                if v.name == name
            )
            for alpha in (1.0, 2.0)
        ]
        assert seconds[1] > 4000 * 3e-6 > seconds[0]
