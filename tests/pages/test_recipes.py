"""The recipes of examples/: they run, by these kernels too, and are measured and reported."""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from support.process import ROOT, python
from support.records import gpu_record

import torch_sgemm
from benchmarks import recipes, record
from benchmarks.__main__ import main

pytestmark = pytest.mark.xdist_group("models")  # one process imports transformers

UNCHANGED = {"gaussian_process", "neighbours", "encoder"}  # they run within enabled()
CPU = torch.device("cpu")


def made(name: str) -> recipes.Recipe:
    return importlib.import_module(name).recipe(CPU, True)


@pytest.fixture
def by_the_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions that recipes call run the ladder on CPU tensors, through the emulator."""
    torch_sgemm.reset_stats()
    taken = partial(torch_sgemm.enabled, "ladder", devices=("cpu",))
    monkeypatch.setattr(torch_sgemm, "enabled", taken)
    for name in ("matmul", "linear"):
        function = partial(getattr(torch_sgemm, name), kernel="ladder")
        monkeypatch.setattr(torch_sgemm, name, function)


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_both_sides_are_exact(name: str, by_the_ladder: None) -> None:
    found = recipes.errors(made(name))
    assert found["correct"] and 0 <= found["torch_error_max"] < 1e4
    assert (name in UNCHANGED) == bool(torch_sgemm.stats().hits)
    if name == "batch_invariant":
        assert found["figure"] == 0
    if name in ("router", "neighbours"):
        assert found["figure"] <= 1


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_scripts_print_speed_and_errors(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    script, beside = importlib.import_module(name), importlib.import_module("beside")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--small"])
    monkeypatch.setattr(beside, "TURNS", 2)
    beside.main(script.recipe, script.__doc__)
    text = capsys.readouterr().out
    assert re.search(r"^torch +[\d.]+ ms  speed +1\.00  error", text, re.M)
    assert re.search(r"^torch_sgemm +[\d.]+ ms  speed +[\d.]+  error", text, re.M)


def test_a_script_runs_by_itself() -> None:
    result = python(str(ROOT / "examples" / "soap.py"), "--small")
    assert result.returncode == 0, result.stderr[-3000:]
    assert "torch_sgemm" in result.stdout and "Warning" not in result.stderr


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_scripts_are_short_and_say_what_they_measure(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 65
    about = text.split('"""')[1]
    assert f"python examples/{name}.py" in about
    assert "Data: " in about and "Gain: " in about and "error" in about


def test_the_page_names_every_recipe() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in recipes.RECIPES if f"](../examples/{name}.py)" not in page] == []
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert scripts == {*recipes.RECIPES, "beside", "train_block"}


# --- the benchmark ---


def test_runs_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    run = ["recipes", "--device", "cpu", "--rounds", "3", "--budget", "0.01"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    assert [r["recipe"] for r in found["rows"]] == list(recipes.RECIPES)
    assert found["options"]["small"]
    for r in found["rows"]:
        assert r["correct"] and r["step_us"] > 0 and r["torch_step_us"] > 0
        assert r["percent_of_torch"] == pytest.approx(100 * r["torch_step_us"] / r["step_us"])
        assert r["steps"] == r["torch_steps"] == 3


def test_what_fails_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    path = tmp_path / "r.json"
    run = ["recipes", "--device", "cpu", "--recipe", "encoder", "--output", str(path)]
    assert main(run) == 1
    (row,) = record.load(path)["rows"]
    assert "transformers" in row["failed"] and not row["correct"]
    assert "encoder" in capsys.readouterr().out


@pytest.mark.gpu
def test_runs_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert main(["recipes", "--small", "--budget", "0.1", "--output", str(path)]) == 0
    found = record.load(path)
    assert found["machine"]["device"] == "cuda" and len(found["rows"]) == len(recipes.RECIPES)
    figures = {r["recipe"]: r["figure"] for r in found["rows"] if "figure" in r}
    assert figures["batch_invariant"] == 0


def test_the_report_writes_the_table(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    page.write_text("<!-- begin:recipes -->\nold\n<!-- end:recipes -->\n")
    row = {"recipe": "router", "label": "router", "kernel": "auto", "size": "64 tokens"}
    row |= {"of": "scores", "error_max": 1.0, "torch_error_max": 4.0, "correct": True}
    row |= {"step_us": 100.0, "torch_step_us": 300.0, "percent_of_torch": 300.0}
    row |= {"also": "other experts", "figure": 0.0, "torch_figure": 2.0}
    failed = {"recipe": "pinn", "label": "pinn", "failed": "why", "correct": False}
    found = gpu_record("recipes", [row, failed])
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    link = "[router](../examples/router.py)"
    line = f"| {link} | 64 tokens | 300 µs | 100 µs | 3.00 | scores | 1.00 | 4.00 |"
    assert line in text and "| failed | - |" in text and recipes.LEGEND in text
    assert "- router: other experts: 0, by torch 2." in text and "Test GPU" in text
