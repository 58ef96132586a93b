"""The benchmark of batch-invariant products: what it measures, its table, Triton's kernel."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.records import gpu_record

from benchmarks import invariant, record
from benchmarks.__main__ import main
from benchmarks.problems import Problem


def row(way: str, m: int, ratio: float, **changes) -> dict:
    """Makes a row as ``invariant`` records it."""
    problem = Problem(m, 256, 7168, "NT")
    about = {"weight": "256 x 7168", "label": problem.label, "way": invariant.WAYS[way][0]}
    figures = {"kernel": way, "percent_of_torch": 100 * ratio, "error_max": 2.0}
    times = {"torch_us": 8.0, "torch_us_p10": 7.6, "torch_us_p90": 8.4, "torch_error_max": 4.0}
    ours = 8.0 / ratio
    times |= {"kernel_us": ours, "kernel_us_p10": 0.95 * ours, "kernel_us_p90": 1.15 * ours}
    return about | problem.as_dict() | figures | times | {"correct": True} | changes


def recorded(rows: list[dict], *missing: str) -> dict:
    return gpu_record("invariant", rows) | {"missing": list(missing)}


def test_runs_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "r.json"
    assert main(["invariant", "--device", "cpu", "--rounds", "2", "--output", str(path)]) == 0
    found = record.load(path)
    ways = [way for way in invariant.WAYS if way != invariant.TRITON]
    problems = [(m, n, k) for n, k in invariant.CPU_WEIGHTS for m in invariant.CPU_ROWS]
    expected = [(*sizes, way) for sizes in problems for way in ways]
    assert [(r["m"], r["n"], r["k"], r["kernel"]) for r in found["rows"]] == expected
    for r in found["rows"]:
        assert r["correct"] and r["ops"] == "NT" and r["kernel_us"] > 0 and r["torch_us"] > 0
        assert r["way"] == invariant.WAYS[r["kernel"]][0]
    assert found["missing"] == ["Triton, batch-invariant: needs a GPU"]
    shown = capsys.readouterr().out
    assert "Not measured: Triton, batch-invariant: needs a GPU" in shown


def test_rows_and_ways_are_chosen(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run = ["invariant", "--device", "cpu", "--rounds", "2", "--rows", "3", "--way", "packed"]
    assert main([*run, "--output", str(path)]) == 0
    (found,) = record.load(path)["rows"]
    assert found["m"] == 3 and found["kernel"] == "packed"


def test_the_table() -> None:
    rows = [
        row("batch_invariant", 1, 0.5), row("batch_invariant", 64, 2.0, error_max=3.0),
        row("packed", 1, 1.5), row("packed", 64, 4.0, correct=False),
        row("triton", 1, 0.25, failed="why"), row("triton", 64, 0.125, error_max=40.0),
    ]  # fmt: skip
    del rows[-1]["correct"]  # another library's
    columns, lines = invariant.cells(recorded(rows))
    assert columns == ["weight", "by", "1 row", "64 rows", "largest error"]
    assert [line[0] for line in lines] == ["256 x 7168"] * 4
    assert [line[1:] for line in lines] == [
        ["torch.mm: time", "8.00 µs", "8.00 µs", "4.00"],
        ["batch-invariant", "0.50", "2.00", "3.00"],
        ["batch-invariant, weight packed", "1.50", "WRONG", "2.00"],
        ["Triton, batch-invariant", "failed", "0.12", "40.0"],
    ]
    nan = [row("auto", 1, 1.0, error_max=math.nan), row("auto", 8, 1.0)]
    _, lines = invariant.cells(recorded(nan))
    assert lines[-1][-1] == "nan" and lines[0][-1] == "4.00"


def test_the_spread_is_that_of_all_sides() -> None:
    text = invariant.spread(recorded([row("auto", 1, 1.0), row("auto", 8, 1.0, failed="why")]))
    assert "15 % of the median for half of the times, and 20 % at most" in text
    assert invariant.spread(recorded([])) == "No way was measured."


def test_the_report_writes_the_table(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    page.write_text("<!-- begin:invariant -->\nold\n<!-- end:invariant -->\n")
    other = gpu_record("models", [])
    record.save(other, record.default_path(other, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    assert "No record yet: `python -m benchmarks invariant` on a GPU" in page.read_text()
    found = recorded([row("packed", 8, 3.0)], "Triton, batch-invariant: ImportError")
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| 256 x 7168 | batch-invariant, weight packed | 3.00 | 2.00 |" in text
    assert "| 256 x 7168 | torch.mm: time | 8.00 µs | 4.00 |" in text
    assert "Not measured: Triton, batch-invariant: ImportError." in text
    assert invariant.LEGEND in text and invariant.spread(found) in text and "Test GPU" in text


@pytest.mark.gpu
@pytest.mark.slow
def test_runs_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(invariant, "GPU_WEIGHTS", ((256, 1024),))
    path = tmp_path / "r.json"
    run = ["invariant", "--budget", "0.05", "--rows", "1", "300", "--output", str(path)]
    assert main(run) == 0
    found = record.load(path)
    assert [r["kernel"] for r in found["rows"]] == 2 * list(invariant.WAYS)
    assert found["missing"] == [] and all(r["error_max"] < 100 for r in found["rows"])


@pytest.mark.gpu
def test_triton_s_kernel_is_batch_invariant() -> None:
    pytest.importorskip("triton")
    from benchmarks.peer_triton import invariant_mm

    generator = torch.Generator("cuda").manual_seed(1)
    x, weight = (
        torch.empty(size, 1111, device="cuda").uniform_(-1, 1, generator=generator)
        for size in (700, 520)
    )
    whole = x.new_empty(700, 520)
    invariant_mm(x, weight.t(), whole)
    exact = x.double() @ weight.t().double()
    assert (whole - exact).abs().max() < 1e-4
    for rows in (slice(0, 1), slice(17, 18), slice(3, 130), slice(100, 612)):
        part = torch.empty_like(whole[rows])
        invariant_mm(x[rows], weight.t(), part)
        assert torch.equal(part, whole[rows]), rows
