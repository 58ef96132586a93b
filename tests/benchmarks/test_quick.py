"""The benchmark of ``make bench``, and the table that ends ``make test`` on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import beside_torch
from support.process import ROOT, python
from support.records import gpu_record
from test_benchmarks import measured

from benchmarks import quick, record, session
from benchmarks.__main__ import main


def row(label: str, ratio: float, **changes) -> dict:
    """Makes a row as ``quick`` records it."""
    about = {"label": label, "gram": False, "chosen": "x", "percent_of_torch": 100 * ratio}
    return measured("auto") | about | {"torch_us": 8.0, "kernel_us": 8.0 / ratio} | changes


def test_a_dozen_products_of_all_layouts() -> None:
    assert len(set(quick.PRODUCTS)) == 12
    assert {p.ops for p in quick.PRODUCTS} == {"NN", "NT", "TN", "TT"}
    assert all(quick.tiny(p).flops < 1e6 for p in quick.PRODUCTS)


def test_runs_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "r.json"
    assert main(["quick", "--device", "cpu", "--rounds", "2", "--output", str(path)]) == 0
    found = record.load(path)
    assert {r["ops"] for r in found["rows"]} == {"NN", "NT", "TN", "TT"}
    assert all(r["correct"] and r["kernel"] == "ladder" for r in found["rows"])
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    own, recorded = capsys.readouterr().out.split(session.RECORDED)
    assert found["rows"][0]["chosen"] in own
    assert quick.BAR not in own  # an emulator's speed compares nothing
    assert quick.BAR in recorded


@pytest.mark.gpu
def test_runs_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert main(["quick", "--budget", "0.05", "--output", str(path)]) == 0
    found = record.load(path)
    assert len(found["rows"]) == 12
    assert all(r["correct"] and r["tf32_us"] > 0 for r in found["rows"])


def test_speeds_have_bars(capsys: pytest.CaptureFixture) -> None:
    rows = [
        row("4 x 4 x 4 NN", 4.0, tf32_us=1.0, tf32_error_max=588.0),
        row("5 x 5 x 5 NT", 100.0, gram=True),
        row("6 x 6 x 6 NT", 1.0, failed="why", correct=False),
    ]
    found = gpu_record("quick", rows)
    assert [len(quick.bar(r)) for r in rows] == [12, quick.LONGEST_BAR, 3]
    _, (first, gram, failed) = quick.cells(found)
    assert first[4:] == ["4.00", "2.00", "2.00", "8.00 (588)"]
    assert gram[0].endswith("(A Aᵀ)") and failed[1] == "failed"
    quick.show(found)
    assert quick.BAR * 12 in capsys.readouterr().out


# --- the table behind the tests ---


def test_the_table_has_both_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_, **__) -> list[dict]:
        one, two = "4 x 4 x 4 NN", "5 x 5 x 5 TT"
        failed = {"failed": "why", "correct": False}
        return [row(one, 4.0), row(one, 0.5), row(two, 2.0, correct=False), row(two, 1.0) | failed]

    monkeypatch.setattr(quick, "measure", measure)
    monkeypatch.setattr(beside_torch, "gpu", lambda: torch.device("cpu"))
    head, one, two, about = beside_torch.lines()
    assert head.split() == ["product", "torch.matmul", "error", *["auto", "speed", "error"],
                            *["ladder", "speed", "error"]]  # fmt: skip
    assert " 4.00 " in one and " 0.50 " in one and "WRONG" in two and "failed" in two
    assert "2^-24" in about


def test_a_table_that_fails_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_, **__) -> list[dict]:
        raise RuntimeError("no memory")

    monkeypatch.setattr(quick, "measure", measure)
    monkeypatch.setattr(beside_torch, "gpu", lambda: torch.device("cpu"))
    assert beside_torch.lines() == ["no table: RuntimeError: no memory"]


def test_there_is_no_table_without_a_gpu() -> None:
    here = str(ROOT / "tests" / "benchmarks" / "test_quick.py")
    run = ["-m", "pytest", "-q", "-k", "dozen", "--beside-torch", here]
    result = python(*run, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stdout
    assert "beside torch.matmul" not in result.stdout


@pytest.mark.gpu
def test_the_table_on_a_gpu() -> None:
    lines = beside_torch.lines()
    assert len(lines) == 2 + len(quick.PRODUCTS) and "no table" not in lines[0]
