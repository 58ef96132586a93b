"""``python -m torch_sgemm.report``: a record to send back, tiny on the CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from support.process import ROOT, python

import torch_sgemm
from benchmarks import record as records
from torch_sgemm import info, report

ON_CPU = ["--device", "cpu", "--repeats", "1"]


def test_it_runs_as_a_command(tmp_path: Path) -> None:
    """With TORCH_SGEMM=ladder, torch's side is still PyTorch's kernel."""
    path = tmp_path / "record.json"
    done = python(
        "-m", "torch_sgemm.report", *ON_CPU, "--output", str(path),
        TORCH_SGEMM="ladder", TORCH_SGEMM_DEVICES="cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0 failed or wrong" in done.stdout and str(path) in done.stdout
    found = json.loads(path.read_text())
    assert [row["group"] for row in found["rows"]] == [shape.group for shape in report.SHAPES]
    assert found["csrc_digest"] == info.build_info()["csrc_digest"]
    for row in found["rows"]:
        assert row["correct"] and row["chosen"] == "aten" and row["speed"] > 0, row
        assert 0 <= row["error_mean"] <= row["error_max"] <= row["k"] + 2
        assert max(row["m"], row["n"], row["k"], row["batch"]) <= 100
        assert row["label"] in done.stdout
    assert str(ROOT) not in path.read_text() and str(Path.home()) not in path.read_text()
    assert "CPU" in records.provenance(found)


def test_its_products_are_of_the_suite() -> None:
    cases = json.loads((ROOT / "benchmarks" / "shapes.json").read_text())["cases"]
    keys = ("group", "m", "n", "k", "ops", "batch")
    suite = {tuple(case[key] for key in keys) for case in cases}
    assert set(report.SHAPES) <= suite and len(report.SHAPES) == 12
    kinds = {shape.group for shape in report.SHAPES}
    assert kinds >= {"square", "transformer", "tall", "skinny", "batched"}


def test_settings_stay_as_they_were(tmp_path: Path) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    assert report.main([*ON_CPU, "--output", str(tmp_path / "record.json")]) == 0
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["--device", "tpu"], "argument --device is 'tpu'; accepted: cuda, cuda:1 and so on, or"),
        (["--device", "cuda:x"], "accepted: cuda, cuda:1"),
        ([*ON_CPU, "--repeats", "0"], "argument --repeats is 0; accepted: 1 and more"),
        ([*ON_CPU, "--output", "."], "argument --output is '.'; accepted: a file that can be"),
        ([*ON_CPU, "--output", "none/such.json"], "argument --output is 'none/such.json'"),
        (["--repeats", "many"], "invalid int value: 'many'"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(
    arguments: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(report, "collect", lambda *_: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as stop:
        report.main(arguments)
    assert stop.value.code == 2 and why in capsys.readouterr().err


@pytest.mark.parametrize(
    "gpus, cuda, device, why",
    [
        (0, True, "cuda", "sees no GPU that it can use; --device cpu runs tiny products"),
        (1, False, "cuda", "this build has no CUDA kernels, see python -m torch_sgemm.info"),
        (2, True, "cuda:2", "argument --device is 'cuda:2'; accepted: up to cuda:1"),
    ],
)
def test_without_such_a_gpu_it_says_so(
    gpus: int, cuda: bool, device: str, why: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(info, "build_info", lambda: {"cuda": cuda})
    with pytest.raises(SystemExit) as stop:
        report.main(["--device", device])
    assert stop.value.code == 2 and why in capsys.readouterr().err


def test_a_kernel_that_fails_is_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    calls = []

    def failing(runs: list[report.Side], device: torch.device) -> list[float]:
        calls.append(runs)
        if len(calls) == 3:
            raise RuntimeError("sgemm: launch failed\nwith more")
        return [3e-6, 2e-6]

    monkeypatch.setattr(report, "wall_seconds", failing)
    path = tmp_path / "record.json"
    assert report.main([*ON_CPU, "--output", str(path)]) == 1
    rows = json.loads(path.read_text())["rows"]
    assert [row.get("failed") for row in rows[1:4]] == [None, "sgemm: launch failed", None]
    assert [row["correct"] for row in rows[1:4]] == [True, False, True]
    assert rows[0]["speed"] == 1.5 and rows[0]["torch_us"] == pytest.approx(3)
    shown = capsys.readouterr().out
    assert "aten failed: sgemm: launch failed" in shown and "1 failed or wrong" in shown


def test_a_wrong_result_is_wrong() -> None:
    right = {"k": 8, "error_max": 0.5, "error_bound": 8.0}
    assert report.is_correct(right)
    for worse in ({"error_max": 9.0}, {"error_max": math.nan}, {"failed": "so"}):
        assert not report.is_correct(right | worse)
    assert not report.is_correct(right | {"error_bound": None, "error_max": 11.0})


def test_errors_are_in_units_and_nan_is_seen() -> None:
    shape = report.Shape("batched", 70, 9, 33, "TN", 70)
    a, b, c = report.operands(shape, torch.device("cpu"))
    assert a.shape == (70, 70, 33) and a.stride(-2) == 1 and b.stride(-1) == 1
    assert math.isnan(report.errors(a, b, c)[0])
    most, mean = report.errors(a, b, a @ b)
    assert 0 < mean < most < 35
    assert report._plain({"rows": [math.nan, 1.0]}) == {"rows": ["nan", 1.0]}


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SHAPES", report.SHAPES[:1] + report.SHAPES[-1:])
    path = tmp_path / "record.json"
    assert report.main(["--repeats", "1", "--output", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["machine"]["name"] == torch.cuda.get_device_name()
    names = {row.name for row in torch_sgemm.kernels()}
    for row in found["rows"]:
        assert row["correct"] and row["chosen"] in names and row["torch_us"] > 1, row
    assert records.provenance(found)
