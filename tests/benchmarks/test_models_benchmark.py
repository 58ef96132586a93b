"""``benchmarks models``: a tiny run on the CPU, its parts, and what the report says of a record."""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from support.records import gpu_record

import torch_sgemm
from benchmarks import errors, models, record, steps
from benchmarks.__main__ import main
from benchmarks.timing import Options
from benchmarks.workloads import DEFAULT, WORKLOADS, Task

pytestmark = pytest.mark.xdist_group("models")  # one process imports transformers

CPU = torch.device("cpu")
LADDER = partial(torch_sgemm.enabled, "ladder", devices=("cpu",))


def task(name: str = "mlp") -> Task:
    return WORKLOADS[name].make(CPU, True, "eager")


def measured(**changes) -> dict:
    """A row as ``models`` records it."""
    row = {"model": "mlp", "label": "MLP", "kernel": "auto", "correct": True, "sm_mhz": 1980.0}
    for side, ms in (("step", 50.0), ("torch_step", 150.0)):
        row |= {f"{side}_us": 1e3 * ms, f"{side}_us_p10": 990 * ms, f"{side}_us_p90": 1100 * ms}
    row |= {"percent_of_torch": 300.0, "products": 26, "hits": {"addmm": 9, "mm": 17}}
    row |= {"fallbacks": {}, "batch": 8, "error_batch": 8}
    for prefix in ("", "torch_", "gradient_", "torch_gradient_"):
        row |= {f"{prefix}error_max": 20.0, f"{prefix}error_mean": 0.5}
    return row | changes


# --- a run ----------------------------------------------------------------------------------


def test_every_model_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "models.json"
    run = ["models", "--device", "cpu", "--kernel", "ladder", "--rounds", "3", "--budget", "0.1"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    assert [r["model"] for r in found["rows"]] == DEFAULT
    assert found["options"]["small"] and found["options"]["attention"] == "eager"
    for r in found["rows"]:
        assert r["correct"] and r["error_max"] <= max(8, 2 * r["torch_error_max"])
        assert 0 < r["error_mean"] <= r["error_max"]
        assert r["step_us"] > 0 and r["torch_step_us"] > 0 and r["steps"] == r["torch_steps"] == 3
        assert r["percent_of_torch"] == pytest.approx(100 * r["torch_step_us"] / r["step_us"])
        assert r["products"] == sum(r["hits"].values()) and r["fallbacks"] == {}
        assert r["error_batch"] == r["batch"] and "tiny" in r["label"]
        assert ("gradient_error_max" in r) == (r["model"] in ("gpt2-medium", "mlp"))
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "No GPU is used" in capsys.readouterr().out


def test_models_that_have_to_be_named(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    names = [name for name in WORKLOADS if name not in DEFAULT]
    assert names == ["bert-large-512", "gpt2-medium-2048", "vit-l16-training"]
    run = ["models", "--device", "cpu", "--attention", "sdpa", "--model", *names]
    assert main([*run, "--rounds", "3", "--budget", "0.1", "--output", str(path)]) == 0
    rows = record.load(path)["rows"]
    assert [r["model"] for r in rows] == names and all(r["correct"] for r in rows)
    assert ["gradient_error_max" in r for r in rows] == [False, True, True]


def test_fused_attention(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    run = ["models", "--device", "cpu", "--attention", "sdpa", "--model", "bert-large"]
    assert main([*run, "--budget", "0.1", "--output", str(path)]) == 0
    (row,) = record.load(path)["rows"]
    assert row["hits"] == {"addmm": 12}


def test_without_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that says what to install; the model that needs none runs all the same."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    path = tmp_path / "models.json"
    run = ["models", "--device", "cpu", "--output", str(path), "--budget", "0.1", "--model"]
    assert main([*run, "mlp", "vit-l16"]) == 2
    assert "pip install transformers" in capsys.readouterr().out
    assert not path.exists()
    assert main([*run, "mlp"]) == 0


def test_an_unknown_kernel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "models.json"
    assert main(["models", "--device", "cpu", "--kernel", "laddr", "--output", str(path)]) == 2
    assert '"laddr" is unknown' in capsys.readouterr().out
    assert not path.exists()


# --- its parts ------------------------------------------------------------------------------


def test_steps_take_turns_within_their_scopes() -> None:
    order = []

    @contextmanager
    def scope():
        order.append("(")
        time.sleep(0.05)  # not to be timed
        yield
        order.append(")")

    ways = [
        steps.Way(lambda: order.append("a")),
        steps.Way(lambda: order.append("b"), scope),
    ]
    found = steps.compare(ways, CPU, Options(rounds=4, idle=0.0))
    assert [len(t.seconds) for t in found] == [4, 4]
    assert all(t.best < 0.01 for t in found)
    assert "".join(order) == "aa(bb)" + 2 * "a(b)(b)a"  # warm, then each first in turn


def test_rounds_keep_to_the_budget() -> None:
    ways = [steps.Way(lambda: time.sleep(0.01))] * 2
    found = steps.compare(ways, CPU, Options(rounds=100, budget=0.1, idle=0.0))
    assert all(steps.LEAST_ROUNDS <= len(t.seconds) <= 5 for t in found)


def test_errors_in_units_of_the_root_mean_square() -> None:
    exact = [torch.full((3,), 2.0).double(), torch.full((1,), 2.0).double()]
    values = [x.float() for x in exact]
    values[0][1] += 2.0**-20  # 16 units of 2, half of that for an rms of 2
    assert errors.in_units_of_rms(values, exact) == (8, 2)
    values[1][0] = math.nan
    assert all(math.isnan(x) for x in errors.in_units_of_rms(values, exact))


def test_every_model_can_be_halved() -> None:
    for name in WORKLOADS:
        whole = task(name)
        output, gradients = whole.evaluate()
        half = whole.part(len(whole.inputs) // 2)
        assert len(half.evaluate()[0]) == len(output) // 2
        assert bool(gradients) == whole.training


def test_errors_of_a_part_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    original = models.errors

    def scarce(part: Task, ours: models.Scope) -> dict:
        if len(part.inputs) > 20:
            raise torch.OutOfMemoryError("no memory")
        return original(part, ours)

    monkeypatch.setattr(models, "errors", scarce)
    found = models.checked(task(), LADDER)
    assert found["correct"] and (found["error_batch"], found["batch"]) == (16, 64)
    (note,) = models.notes({"rows": [measured() | found]})
    assert note == "MLP: errors on the first 16 of 64, for lack of memory."


@pytest.mark.parametrize("what", ["output", "gradients"])
def test_wrong_results_are_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spoilt where our side runs, in one element."""
    evaluate, on = Task.evaluate, []

    @contextmanager
    def ours():
        on.append(True)
        yield
        on.clear()

    def spoilt(self: Task) -> tuple:
        output, gradients = evaluate(self)
        if on:
            victim = output if what == "output" else gradients["2.weight"]
            victim.view(-1)[0] = math.nan
        return output, gradients

    monkeypatch.setattr(Task, "evaluate", spoilt)
    found = models.errors(task(), ours)
    assert not found["correct"] and f"error of the {what}: nan units" in found["wrong"]


def test_fallbacks_are_counted_with_their_reasons() -> None:
    x = torch.ones(2, 2)

    def step() -> None:
        torch.mm(x, x)
        torch.mm(x.double(), x.double())

    found = models.counted(step, LADDER)
    assert found == {"products": 2, "hits": {"mm": 1}, "fallbacks": {"mm: dtype": 1}}
    (note,) = models.notes({"rows": [measured(**found)]})
    assert note == "MLP: to PyTorch's own kernel went 1 mm: dtype."


# --- the report -----------------------------------------------------------------------------


def test_report_writes_table_and_chart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- begin:{n} -->\nold\n<!-- end:{n} -->\n" for n in ("models", "models-chart"))
    )
    arguments = ["report", str(page), "--results", str(tmp_path)]
    other = gpu_record("call", [])
    record.save(other, record.default_path(other, tmp_path))
    assert main(arguments) == 0
    assert page.read_text().count("No record yet: `python -m benchmarks models`") == 2
    rows = [
        measured(fallbacks={"bmm: dtype": 2}),
        measured(label="broken", failed="no memory", correct=False),
    ]
    options = {"attention": "eager", "kernel": "auto", "small": False}
    found = gpu_record("models", rows, options=options)
    record.save(found, record.default_path(found, tmp_path))
    assert main(arguments) == 0
    text = page.read_text()
    assert (
        "| MLP | 150 ms (148 … 165) | 50.0 ms (49.5 … 55.0) | 3.00 | 26 | 9 addmm, 17 mm |" in text
    )
    assert "| broken | failed |" in text and "went 2 bmm: dtype." in text
    chart = "plots/models-test-gpu.png"
    assert f"]({chart})" in text and (tmp_path / chart).exists()
    assert text.count("Test GPU") == 2 and "attention `eager`" in text


@pytest.mark.gpu
def test_small_run_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    assert main(["models", "--small", "--budget", "0.5", "--output", str(path)]) == 0
    found = record.load(path)
    assert found["machine"]["device"] == "cuda" and len(found["rows"]) == len(DEFAULT)
    assert all(r["correct"] and r["fallbacks"] == {} for r in found["rows"])
