"""The benchmark of square products: its layouts, its two states, and how it shows them."""

import pytest
import torch
from support.records import gpu_record

from benchmarks import record, squares
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


def test_both_states_are_shown():
    rows = [
        row(ops, *state) for ops in squares.LAYOUTS for state in ((False, 440.0), (True, 373.0))
    ]
    rows[1] |= {"correct": False}
    columns, lines = squares.cells({"rows": rows})
    assert columns == ["size", *squares.LAYOUTS]
    assert lines == [["64³", "4.40 / WRONG", *["4.40 / 3.73"] * 3]]


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
    page.write_text("<!-- begin:squares -->\nold\n<!-- end:squares -->\n")
    found = gpu_record("squares", [row("NN", False, 440.0), row("NN", True, 373.0)])
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| 64³ | 4.40 / 3.73 | - | - | - |" in text and "Test GPU" in text
