"""The benchmark of data with range: its kinds, its bars, and what it writes."""

from __future__ import annotations

import argparse
import math

import pytest
import torch
from support.records import gpu_record

from benchmarks import errors, hard, record
from benchmarks.__main__ import main
from benchmarks.data import KINDS, matrices
from benchmarks.problems import Problem

CPU = torch.device("cpu")
NOT_FINITE = ("one_nan", "nan_rows", "inf_row")
each_kind = pytest.mark.parametrize("name", KINDS)


def row(data: str, ratio: float, **changes) -> dict:
    """Makes a row as ``hard`` records it."""
    about = {"data": data, "bar": 0.98, "label": data, "m": 8, "n": 9, "k": 7, "batch": 1}
    figures = {"percent_of_torch": 100 * ratio, "error_max": 2.0, "error_mean": 0.5}
    figures |= {"torch_error_max": 3.0, "torch_error_mean": 0.5, "correct": True}
    figures |= {"kernel_us": 5.0, "torch_us": 5.0 * ratio, "chosen": "x", "kernel": "auto"}
    return about | figures | {"held": ratio >= 0.98} | changes


@each_kind
def test_data_is_what_its_kind_says(name: str) -> None:
    problem = Problem(40, 24, 33)
    a, b = matrices(name, problem, CPU, seed=1)
    assert a.shape == (40, 33) and b.shape == (33, 24)
    assert a.dtype == b.dtype == torch.float32
    assert bool(b.isfinite().all())
    assert bool(a.isfinite().all()) == (name not in NOT_FINITE)
    again, other = matrices(name, problem, CPU, 1), matrices(name, problem, CPU, 2)
    assert torch.equal(a.nan_to_num(), again[0].nan_to_num()) and torch.equal(b, again[1])
    if name != "zeros":
        assert not (torch.equal(a, other[0]) and torch.equal(b, other[1]))
    assert KINDS[name].bar == 0 or 0.9 < KINDS[name].bar <= 0.98


@each_kind
def test_batches_differ_from_matrix_to_matrix(name: str) -> None:
    a, b = matrices(name, Problem(12, 6, 20, batch=3), CPU, seed=1)
    assert a.shape == (3, 12, 20) and b.shape == (3, 20, 6)
    if name != "zeros":
        assert not (torch.equal(a[0], a[1]) and torch.equal(b[0], b[1]))


def test_kinds_have_the_range_that_they_stand_for() -> None:
    """Some rows have elements that two float16 can't hold beside their largest, others none."""

    def small(name: str) -> float:
        a, _ = matrices(name, Problem(200, 8, 200), CPU, seed=3)
        largest = a.abs().amax(dim=1, keepdim=True)
        return float(((a != 0) & (a.abs() < largest * 2.0**-28)).float().mean())

    for name in ("softmax_rows", "gaussian_kernel_2", "wide_phi_4", "inner_scaled_20"):
        assert small(name) > 0, name
    for name in ("normal", "zeros", "one_feature", "squared_gradients", "bf16_values"):
        assert small(name) < 1e-3, name
    assert float((matrices("sparse_90", Problem(99, 1, 99), CPU, 1)[0] == 0).float().mean()) > 0.85


def test_shapes_are_read() -> None:
    assert hard.shape("8x9x7") == Problem(8, 9, 7)
    assert hard.shape("4x8x9x7") == Problem(8, 9, 7, batch=4)
    for text in ("8x9", "8x0x7", "axbxc", "1x2x3x4x5", "8x-9x7"):
        with pytest.raises(argparse.ArgumentTypeError, match="accepted: MxNxK"):
            hard.shape(text)


def test_values_that_are_not_finite_are_compared() -> None:
    exact = torch.tensor([[math.nan, math.inf, -math.inf, 1.0]], dtype=torch.float64)
    good = exact.float()
    assert errors.in_units(good, exact, exact.abs()) == (0, 0)
    for i in range(4):
        for spoil in (math.nan, math.inf, -math.inf, 1.0, 0.0):
            bad = good.clone()
            bad[0, i] = spoil
            same = torch.equal(bad.nan_to_num(7), good.nan_to_num(7))
            assert (errors.in_units(bad, exact, exact.abs()).max <= 8) == same, (i, spoil)


def test_runs_on_the_cpu(tmp_path) -> None:
    path = tmp_path / "r.json"
    names = ("softmax_rows", "one_nan", "inf_row", "zeros")
    run = ["hard", "--device", "cpu", "--quick", "--only", *names, "--shape", "9x7x5", "2x8x4x6"]
    assert main([*run, "--seed", "5", "--output", str(path)]) == 0
    found = record.load(path)
    assert [(r["data"], r["m"]) for r in found["rows"]] == [(x, m) for m in (9, 8) for x in names]
    assert all(r["correct"] and r["kernel_us"] > 0 for r in found["rows"])
    assert all(r["held"] == (r["percent_of_torch"] >= 98) for r in found["rows"])
    assert found["options"]["quick"] and found["options"]["seed"] == 5


def test_unknown_data_is_refused(capsys, tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["hard", "--device", "cpu", "--only", "unheard_of", "--output", str(path)]
    assert main(run) == 2
    assert "softmax_rows" in capsys.readouterr().out
    assert not path.exists()


@pytest.mark.gpu
def test_runs_on_a_gpu(tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["hard", "--device", "cuda", "--quick", "--shape", "512x512x512", "--output", str(path)]
    assert main([*run, "--only", "normal", "wide_phi_4", "nan_rows"]) == 0
    normal, *_ = found = record.load(path)["rows"]
    assert all(r["correct"] and r["torch_us"] > 0 for r in found)
    assert normal.get("redone_elements", 0) == 0


def test_bars_that_did_not_hold_are_bold() -> None:
    rows = [
        row("a", 2.0),
        row("a", 0.97, m=16, error_max=5.0),
        row("b", 1.0, correct=False, held=False, error_max=math.nan),
        row("b", 0.5, m=16, failed="why", correct=False, held=False),
    ]
    columns, lines = hard.cells({"rows": rows})
    assert columns == ["data", "bar", "8 x 9 x 7", "16 x 9 x 7", "error / torch's"]
    assert lines[0] == ["a", "0.98", "2.00", "**0.97**", "5.00 / 3.00"]
    assert lines[1] == ["b", "0.98", "**WRONG**", "**failed**", "nan / 3.00"]


def test_data_without_a_bar_are_not_counted(capsys) -> None:
    rows = [row("a", 2.0), row("a", 0.5, m=16), row("b", 0.2, bar=0.0, held=True)]
    assert hard.cells({"rows": rows})[1][1][1] == "-"
    hard.show({"rows": rows})
    assert "The bar held in 1 of 2 cases" in capsys.readouterr().out


def test_the_report_writes_the_table(tmp_path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    page.write_text("<!-- begin:hard -->\nold\n<!-- end:hard -->\n")
    found = gpu_record("hard", [row("softmax_rows", 2.0), row("softmax_rows", 0.5, m=16)])
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| softmax_rows | 0.98 | 2.00 | **0.50** | 2.00 / 3.00 |" in text
    assert hard.LEGEND in text and "Test GPU" in text
