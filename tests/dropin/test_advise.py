"""``python -m torch_sgemm.advise``: programs run as they would, and a table comes behind."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path

import pytest
from support.process import ROOT, python

import torch_sgemm
from torch_sgemm import advise
from torch_sgemm.measure import record

PROGRAM = """
import sys
import torch
print("arguments", sys.argv[1:], __name__)
torch.ones(30, 40) @ torch.ones(40, 50)
"""


def program(folder: Path, text: str = PROGRAM) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


def test_the_example_s_products(tmp_path: Path) -> None:
    written = tmp_path / "products.json"
    result = python(
        "-m", "torch_sgemm.advise", "--json", str(written),
        str(ROOT / "examples" / "train_block.py"), "--steps", "1",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert "Float32 products" in result.stdout and "Float32 attention" in result.stdout
    assert "What stays PyTorch's" not in result.stdout
    found = json.loads(written.read_text())
    assert {p["operation"] for p in found["products"]} == {"aten::addmm", "aten::mm"}
    assert all(p["gain"] >= 1 and p["calls"] % 2 == 0 for p in found["products"])
    # Two runs of a warm-up and a step; three layers with a bias and their gradients by two operands
    # each, and the products of queries, keys and values.
    assert (
        sum(p["calls"] for p in found["products"] if p["operation"] == "aten::addmm") == 2 * 2 * 3
    )
    calls = {attention["backward"]: attention for attention in found["attentions"]}
    assert set(calls) == {False, True} and not found["others"]
    for backward, attention in calls.items():
        assert attention["calls"] == 4 and attention["gain"] >= 1
        assert attention["label"].endswith("backward") == backward


def test_a_program_gets_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    before = list(sys.argv), list(sys.path)
    assert advise.main([program(tmp_path), "--steps", "3", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "arguments ['--steps', '3', '--json'] __main__" in shown
    assert "30 x 50 x 40 NN" in shown and before == (sys.argv, sys.path)


def test_a_file_that_cannot_be_written_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for file in (tmp_path, tmp_path / "nowhere" / "x.json"):
        with pytest.raises(SystemExit):
            advise.main(["--json", str(file), program(tmp_path)])
        out, err = capsys.readouterr()
        assert "accepted: a file to write" in err and "arguments" not in out


def test_a_module_and_its_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour.py").write_text(PROGRAM)
    assert advise.main([program(tmp_path, "import neighbour")]) == 0
    assert "30 x 50 x 40 NN" in capsys.readouterr().out
    sys.modules.pop("neighbour")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert advise.main(["-m", "neighbour", "x"]) == 0
    assert "arguments ['x'] __main__" in capsys.readouterr().out


@pytest.mark.parametrize("end, status", [("3", 3), ("", 0), ("None", 0), ("'why'", 1), ("True", 1)])
def test_the_exit_status_is_the_program_s(
    end: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert advise.main([program(tmp_path, f"{PROGRAM}sys.exit({end})")]) == status
    shown = capsys.readouterr()
    assert "30 x 50 x 40 NN" in shown.out and (end != "'why'" or "why" in shown.err)


def test_an_exception_comes_behind_the_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        advise.main([program(tmp_path, f"{PROGRAM}1 / 0")])
    assert "30 x 50 x 40 NN" in capsys.readouterr().out


def test_a_missing_program(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        advise.main(["no_such.py"])
    assert stop.value.code == 2 and "no_such.py: no such file" in capsys.readouterr().err


def test_without_rich(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table all the same: rich is of the extra 'bench', not of the package."""
    load = builtins.__import__

    def without(name: str, *rest):
        if name.startswith("rich"):
            raise ModuleNotFoundError(name="rich")
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert advise.main([program(tmp_path)]) == 0
    assert "aten::mm   30 x 50 x 40 NN" in capsys.readouterr().out


def test_long_tables_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = "import torch\nfor n in range(1, 9): torch.ones(7, 7) @ torch.ones(7, n)\n"
    assert advise.main(["--rows", "2", program(tmp_path, text)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("x 7 NN") == 2 and "8 float32 products" in shown


def test_times_shares_and_measured_columns() -> None:
    assert record._time(1.234e-5) == "12.3 us" and record._time(2.5e-3) == "2.5 ms"
    assert record._time(2) == "2 s" and record._time(None) == "-"
    common = ("aten::mm", "cuda:0", 1, 4, 5, 6, "NN", 10, "ieee_small", 3e-6, 2e-6)
    found = [
        torch_sgemm.measure.calls.Product(*common, 9e-6, 3e-6),
        torch_sgemm.measure.calls.Product(*common),
    ]
    table = record.products_table(found)
    assert table.columns[-4:] == ("torch, measured", "auto, measured", "auto takes", "gain")
    assert [row[-1] for row in table.rows] == ["3.00", "1.50"]
    assert table.rows[0][3:8] == ("75.0 %", "3 us", "2 us", "9 us", "3 us")
    assert table.rows[1][6:8] == ("-", "-")


def test_help_is_plain(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        advise.main(["--help"])
    assert "usage: python -m torch_sgemm.advise" in capsys.readouterr().out
