"""``benchmarks logprobs``: tiny runs on the CPU, its parts, and the report of a record."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from support.records import gpu_record
from torch import Tensor, nn

import torch_sgemm
from benchmarks import logprobs, record
from benchmarks.__main__ import main
from benchmarks.invariant import AUTO, KERNEL, PACKED, TRITON
from benchmarks.logprobs import COMPILED, COMPILED_ALONE, GRADIENTS, INVARIANT, TITLES, TORCH
from benchmarks.workloads import Task, pythia

pytestmark = pytest.mark.xdist_group("models")  # one process imports transformers

CPU = torch.device("cpu")
RUN = ["logprobs", "--small", "--rounds", "3", "--budget", "0.1"]


def task(batch: int = 4) -> Task:
    torch.manual_seed(1)
    return pythia(CPU, True, "sdpa", (batch, 8))


def measured(way: str, batch: int, ratio: float, **changes) -> dict:
    """Makes a row as ``logprobs`` records it."""
    row = {"model": "Model", "batch": batch, "length": 8, "label": f"batch {batch}"}
    row |= {"kernel": way, "way": TITLES[way], "percent_of_torch": 100 * ratio}
    step = 1000.0 / ratio
    row |= {"step_us": step, "step_us_p10": 0.95 * step, "step_us_p90": 1.15 * step}
    row |= {"tokens_per_s": batch * 8 * 1e6 / step, "sm_mhz": 1980.0}
    return row | {"error_max": 5.0, "error_mean": 0.5, "sample": batch, "differing": 0} | changes


def recorded(rows: list[dict], *missing: str, **bits: bool) -> dict:
    about = {"options": {"length": 8, "small": False}}
    return gpu_record("logprobs", rows, **about, same_bits=bits, missing=list(missing))


# --- runs -----------------------------------------------------------------------------------


def test_every_way_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "r.json"
    assert main([*RUN, "--device", "cpu", "--no-compile", "--output", str(path)]) == 0
    found = record.load(path)
    ways = [way for way in TITLES if way != TRITON]
    expected = [(batch, way) for batch in logprobs.SMALL_BATCHES for way in ways]
    assert [(r["batch"], r["kernel"]) for r in found["rows"]] == expected
    for r in found["rows"]:
        assert r["sample"] == r["batch"] and r["length"] == 8 and r["way"] == TITLES[r["kernel"]]
        assert 0 < r["error_mean"] <= r["error_max"] < 8 and r["steps"] == 3
        assert r["tokens_per_s"] == pytest.approx(8e6 * r["batch"] / r["step_us"], rel=1e-5)
        assert 0 < r["tokens_per_s_p10"] <= r["tokens_per_s_p90"]
        assert r["kernel"] == TORCH or r["correct"]
        assert r["kernel"] not in INVARIANT or r["differing"] == 0
    assert all(r["percent_of_torch"] == 100 for r in found["rows"] if r["kernel"] == TORCH)
    assert found["same_bits"] == {GRADIENTS: True} and found["options"]["small"]
    assert found["missing"] == [
        "Triton, batch-invariant: needs a GPU",
        "torch.compile: --no-compile",
    ]
    assert "Not measured: torch.compile" in capsys.readouterr().out


@pytest.mark.slow
def test_compiled(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert main([*RUN, "--device", "cpu", "--output", str(path)]) == 0
    found = record.load(path)["same_bits"]
    assert set(found) == {GRADIENTS, COMPILED, COMPILED_ALONE}
    assert found[GRADIENTS] and found[COMPILED_ALONE]


@pytest.mark.gpu
def test_small_run_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "r.json"
    assert main([*RUN, "--no-compile", "--output", str(path)]) == 0
    found = record.load(path)
    assert [r["kernel"] for r in found["rows"]] == 2 * list(TITLES)
    assert found["missing"] == ["torch.compile: --no-compile"] and found["same_bits"][GRADIENTS]
    for r in found["rows"]:
        assert r["error_max"] < 100 and r.get("correct", True)


# --- its parts ------------------------------------------------------------------------------


def test_log_probabilities_of_tokens_given_those_before() -> None:
    made = task(2)
    found, _ = made.evaluate()
    logits = made.model(made.inputs).logits.detach()
    for row in range(2):
        for at in range(1, 8):
            expected = logits[row, at - 1].log_softmax(-1)[made.inputs[row, at]]
            assert abs(found[row, at - 1] - expected) < 1e-5
    assert found.shape == (2, 7)


def test_packed_way_has_a_model_of_its_own() -> None:
    made = task()
    ways = logprobs.ways_of(made, CPU, missing := [])
    assert list(ways) == [TORCH, AUTO, KERNEL, PACKED] and len(missing) == 1
    assert not any(hasattr(layer, "packs") for layer in made.model.modules())
    packed = [layer for layer in ways[PACKED][0].model.modules() if isinstance(layer, nn.Linear)]
    assert len(packed) == 2 * 4 + 1 and all(layer.packed is not None for layer in packed)


def test_products_by_another_function() -> None:
    calls = []

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        calls.append((*a.shape, b.shape[1]))
        out.copy_((a[:, :, None] * b).sum(1))

    x, layer, plain = torch.randn(2, 3, 4), nn.Linear(4, 5), nn.Linear(4, 6, bias=False)
    with torch.no_grad():
        expected = layer(x), plain(x)
        with logprobs.products_by(multiply, "CPU"):
            found = layer(x), plain(x)
            summed = torch.addmm(x[0], x[0], torch.eye(4), beta=3, alpha=2)
        layer(x)
    assert calls == [(6, 4, 5), (6, 4, 6), (3, 4, 4)]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert torch.allclose(summed, 5 * x[0], atol=1e-6)


def test_a_sample_lies_evenly_in_the_batch() -> None:
    assert list(logprobs.sample_of(1)) == [0] and list(logprobs.sample_of(4)) == [0, 1, 2, 3]
    assert list(logprobs.sample_of(64)) == list(range(0, 64, 4))
    assert all(len(logprobs.sample_of(n)) <= logprobs.SAMPLE for n in range(1, 100))


def test_sequences_with_other_bits_are_counted() -> None:
    def output(_: nn.Module, inputs: Tensor) -> Tensor:
        return inputs * (1 if len(inputs) > 1 else inputs[0, 0].clamp(max=2) / 2 + 0.5)

    values = torch.tensor([[1.0], [1.0], [3.0], [math.nan]])
    made = Task(nn.Identity(), values, output)
    found = logprobs.checked(made, nullcontext, values.double())
    assert (found["sample"], found["differing"]) == (4, 2)  # 1 stays 1, 3 becomes 4.5


@pytest.mark.parametrize(
    ("way", "changes", "why"),
    [
        (KERNEL, {}, None),
        (AUTO, {"differing": 4}, None),  # is not batch-invariant
        (KERNEL, {"differing": 1}, "1 of 4 sequences have other bits alone"),
        (PACKED, {"differing": 4}, "4 of 4 sequences have other bits alone"),
        (AUTO, {"error_max": 9.0}, "error 9, 8 allowed"),
        (PACKED, {"error_max": math.nan}, "error nan, 8 allowed"),
    ],
)
def test_verdict(way: str, changes: dict, why: str | None) -> None:
    row = measured(way, 4, 2.0, **changes)
    logprobs.judge(row, 3.0)
    assert row["correct"] == (why is None) and row.get("wrong") == why


def test_bits_of_a_function_that_changes_with_gradients() -> None:
    made = task()
    missing: list[str] = []
    assert logprobs.same_bits(made, nullcontext, missing, False) == {GRADIENTS: True}
    inner = made.output
    made.output = lambda model, x: inner(model, x) * (1.5 if torch.is_grad_enabled() else 1)
    assert logprobs.same_bits(made, nullcontext, missing, False) == {GRADIENTS: False}


def test_a_model_that_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compiled(model, backend=failing))
    made = Task(nn.Linear(3, 3), torch.ones(2, 3), lambda model, x: model(x))
    found = logprobs.same_bits(made, nullcontext, missing := [], True)
    assert found == {GRADIENTS: True} and len(missing) == 1
    assert missing[0].startswith("torch.compile: BackendCompilerFailed: ")


def failing(*_: object) -> None:
    raise ValueError("no compiler here")


def test_nothing_stays_enabled(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    torch_sgemm.enable("ladder", devices=("cpu",))
    assert main([*RUN, "--device", "cpu", "--no-compile", "--output", str(path)]) == 0
    torch_sgemm.reset_stats()
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert not torch_sgemm.stats().hits


# --- the report -----------------------------------------------------------------------------


def test_the_table() -> None:
    rows = [
        measured(way, batch, ratio, differing=differing)
        for batch in (1, 4)
        for way, ratio, differing in ((TORCH, 1.0, batch - 1), (KERNEL, 2.0, 0), (TRITON, 0.25, 0))
    ]
    rows[-2]["correct"] = False
    columns, lines = logprobs.cells(recorded(rows))
    assert columns[:3] == ["by", "1 sequence", "4 sequences"]
    assert lines == [
        ["torch", "8000 (1.00)", "32000 (1.00)", "5.00 / 0.50", "3 of 4"],
        ["batch-invariant", "16000 (2.00)", "64000 (2.00)", "5.00 / 0.50", "0 of 4 WRONG"],
        ["Triton, batch-invariant", "2000 (0.25)", "8000 (0.25)", "5.00 / 0.50", "0 of 4"],
    ]


def test_the_report_writes_the_table(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    page.write_text("<!-- begin:logprobs -->\nold\n<!-- end:logprobs -->\n")
    other = gpu_record("models", [])
    record.save(other, record.default_path(other, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    assert "No record yet: `python -m benchmarks logprobs` on a GPU" in page.read_text()
    rows = [measured(TORCH, 4, 1.0), measured(PACKED, 4, 3.0)]
    bits = {GRADIENTS: True, COMPILED: False}
    found = recorded(rows, "Triton, batch-invariant: ImportError", **bits)
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| batch-invariant, weight packed | 96000 (3.00) | 5.00 / 0.50 | 0 of 4 |" in text
    assert "Model, sequences of 8 tokens: tokens per second." in text and "Test GPU" in text
    assert "with and without gradients: yes; compiled and eager: no." in text
    assert "slowest is 20 % of the median at most" in text and logprobs.LEGEND in text
    assert "Not measured: Triton, batch-invariant: ImportError." in text
