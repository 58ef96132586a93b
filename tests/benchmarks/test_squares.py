"""The benchmark of square products: its layouts, its two states, and how it shows them."""

import pytest
import torch
from support.records import gpu_record

from benchmarks import plots, record, squares
from benchmarks.__main__ import main
from benchmarks.timing import Options

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def row(ops: str, sustained: bool, percent: float, **changes) -> dict:
    """Makes a row as ``squares`` records it."""
    about = {"size": 64, "ops": ops, "sustained": sustained, "percent_of_torch": percent}
    return about | {"kernel": "auto", "correct": True} | changes


def test_every_layout_is_measured(tmp_path):
    path = tmp_path / "r.json"
    run = ["squares", "--device", "cpu", "--size", "24", "--kernel", "ladder", "--rounds", "2"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    assert [r["ops"] for r in found["rows"]] == list(squares.LAYOUTS)
    assert all(r["correct"] and not r["sustained"] for r in found["rows"])


@pytest.mark.gpu
def test_both_states_are_measured(tmp_path):
    path = tmp_path / "r.json"
    run = ["squares", "--device", "cuda", "--size", "512", "--budget", "0.1"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    wanted = [(ops, state) for ops in squares.LAYOUTS for state in (False, True)]
    assert [(r["ops"], r["sustained"]) for r in found["rows"]] == wanted
    assert all(r["correct"] and r["kernel_us"] > 0 for r in found["rows"])
    assert all(("tf32_us" in r) != r["sustained"] for r in found["rows"])


def test_both_states_are_shown():
    rows = [
        row(ops, *state) for ops in squares.LAYOUTS for state in ((False, 440.0), (True, 373.0))
    ]
    rows[1] |= {"correct": False}
    columns, lines = squares.cells({"rows": rows})
    assert columns[:5] == ["size", *squares.LAYOUTS]
    assert lines == [["64³", "4.40 / WRONG", *["4.40 / 3.73"] * 3, "-", "- / - / -"]]


def beside(size: int, **changes) -> dict:
    """Makes a row of NN after idle, with TF32 for information."""
    figures = {"torch_us": 8.0, "tf32_us": 1.0, "kernel_us": 2.0, "chosen": "x"}
    figures |= {"torch_tflops": 50.0, "tf32_tflops": 400.0, "kernel_tflops": 200.0}
    figures |= {"error_max": 0.7, "torch_error_max": 4.9, "tf32_error_max": 588.0}
    return row("NN", False, 400.0, size=size) | figures | changes


def test_tf32_and_errors_are_shown():
    _, (line,) = squares.cells({"rows": [beside(64), row("NN", True, 373.0)]})
    assert line[-2:] == ["8.00", "0.700 / 4.90 / 588"]


@pytest.mark.parametrize("with_tf32", [False, True])
@pytest.mark.parametrize("others", [0, 2])
def test_the_picture(with_tf32, others, tmp_path, monkeypatch):
    """A line per side, with its error in the legend, and a mark for each library beside it."""
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: drawn.append(figure) or path)
    other = {"way": "Other", "m": 4096, "kernel_tflops": 70.0, "error_max": 3.0}
    other["date"] = "2026-01-02 03:04 UTC"
    monkeypatch.setattr(plots.peers, "beside", lambda slug, results: [other] * others)
    rows = [beside(64), beside(4096), beside(128, failed="why", correct=False)]
    if not with_tf32:
        rows = [{k: v for k, v in r.items() if not k.startswith("tf32")} for r in rows]
    plots.squares(gpu_record("squares", rows), tmp_path / "p.png")
    (axis,) = drawn[0].axes
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert len(labels) == 2 + with_tf32 + others
    assert labels.count("Other\nerror 3.00, run of 2026-01-02") == others
    assert any("TF32\nerror up to 588" in label for label in labels) == with_tf32
    assert "torch_sgemm, float32\nerror up to 0.700" in labels
    assert list(axis.lines[0].get_xdata()) == [64, 4096]


def test_states():
    options = Options()
    assert [o.sustained for o in squares.states(options, CUDA)] == [False, True]
    assert squares.states(options, CPU) == [options]
    sustained = Options(sustained=True)
    assert squares.states(sustained, CUDA) == [sustained]


def test_the_record_says_in_which_states():
    text = squares.describe(Options(), CUDA)
    assert "20 ms idle" in text and "0.5 s of itself" in text
    assert "idle" not in squares.describe(Options(), CPU)


def test_the_report_writes_the_table(tmp_path):
    page, results = tmp_path / "page.md", tmp_path / "results"
    names = ("squares", "squares-chart")
    page.write_text("".join(f"<!-- begin:{x} -->\nold\n<!-- end:{x} -->\n" for x in names))
    found = gpu_record("squares", [beside(64), row("NN", True, 373.0)])
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| 64³ | 4.00 / 3.73 | - | - | - | 8.00 | 0.700 / 4.90 / 588 |" in text
    chart = "plots/squares-test-gpu.png"
    assert f"](results/{chart})" in text and (results / chart).exists() and "Test GPU" in text
