"""The benchmark of attention: its cases, its errors, and how it shows them."""

from __future__ import annotations

import pytest
import torch
from support.records import gpu_record

from benchmarks import attention, attention_backward, attention_errors, plots, record, report
from benchmarks.__main__ import main
from benchmarks.attention_cases import CASES, HEADLINES, Case, make_pool, summary

CPU = torch.device("cpu")


def row(case: Case, kernel: str, ratio: float) -> dict:
    figures = {"kernel_us": 10.0, "torch_us": 10.0 * ratio, "kernel_tflops": 200.0}
    figures |= {"error_max": 4.0, "error_mean": 0.4, "torch_error_max": 8, "torch_error_mean": 0.7}
    about = {"label": case.label, "kernel": kernel, "correct": True}
    return about | figures | {"percent_of_torch": 100 * ratio}


def test_cases_differ_and_cover_what_attention_is_used_for() -> None:
    assert len({case.label for case in CASES}) == len(CASES)
    assert {case.depth for case in CASES} >= {32, 64, 96, 128}
    assert {case.kind for case in CASES} == {"plain", "causal", "mask", "cross", "gqa"}
    assert max(case.rows for case in CASES) == 16384
    for sizes in HEADLINES:
        assert {Case(*sizes, kind) for kind in ("plain", "causal", "mask")} <= set(CASES)


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "gqa"])
def test_errors_are_those_of_a_known_perturbation(kind: str) -> None:
    case = Case(2, 4, 20, 16, kind)
    pool = make_pool(case, CPU, 1)
    x = pool.sets[0]
    side = attention.our_side(case, "auto")
    assert attention.errors(case, side, x).max < 20
    off = attention.Side("off", lambda x: side.run(x) + 2.0**-10)
    found = attention.errors(case, off, x)
    assert found.max > 2.0**14 * 0.9 / x.value.abs().max()


@pytest.mark.parametrize("name", attention_errors.DISTRIBUTIONS)
def test_errors_on_distributions(name: str, monkeypatch) -> None:
    """On the CPU, PyTorch's products take the place of the kernels."""
    monkeypatch.setattr(attention_errors, "QUERIES", 40)
    monkeypatch.setattr(attention_errors, "KEYS", 96)
    found = attention_errors.measure(name, 16, CPU, 1, "auto")
    for side in ("", "torch_", "math_"):
        assert 0 < found[f"{side}error_mean"] < found[f"{side}error_max"] < 1e5
    assert found["not_above_torch"] and found["correct"] == (found["share_of_bound"] <= 1)
    columns, lines = attention_errors.cells([found])
    assert len(lines[0]) == len(columns) and lines[0][0] == name.replace("_", " ")


@pytest.mark.parametrize("name", attention_errors.DISTRIBUTIONS)
def test_errors_of_gradients_on_distributions(name: str, monkeypatch) -> None:
    monkeypatch.setattr(attention_errors, "QUERIES", 40)
    monkeypatch.setattr(attention_errors, "KEYS", 96)
    found = attention_errors.measure_gradients(name, 16, CPU, 1, "auto")
    for side in attention_errors.SIDES:
        for gradient in attention_errors.GRADIENTS:
            most, mean = (found[f"{side}{gradient}_error_{x}"] for x in ("max", "mean"))
            assert 0 < mean < most < 1e5
    assert found["correct"] and found["not_above_torch"]
    columns, lines = attention_errors.gradient_cells([found])
    assert len(lines[0]) == len(columns) and lines[0][0] == name.replace("_", " ")
    spoilt = attention_errors.judged(found | {"key_error_max": float("nan")})
    assert not spoilt["correct"] and spoilt["wrong"] == "dK: nan units"
    assert not spoilt["not_above_torch"]


def test_table_and_caption() -> None:
    cases = CASES[:2]
    rows = [row(case, kernel, ratio) for case, ratio in zip(cases, (4.0, 1.0), strict=True)
            for kernel in attention.KERNELS]  # fmt: skip
    columns, lines = attention.cells({"rows": rows})
    assert [len(line) for line in lines] == [len(columns)] * 2
    assert lines[0][0] == cases[0].label and lines[0][4] == "4.00"
    text = summary({"rows": rows}, attention.SPEED)
    assert "geometric mean of auto 2.00" in text and f"worst 1.00 ({cases[1].label})" in text


def test_page_and_chart(tmp_path) -> None:
    rows = [row(case, kernel, 2.0) for case in CASES for kernel in attention.KERNELS]
    found = gpu_record("attention", rows)
    assert plots.attention(found, tmp_path / "chart.png").stat().st_size > 0
    assert CASES[0].label in report.BLOCKS["attention"][1](found, tmp_path)


@pytest.mark.parametrize("options", [[], ["--backward"]])
def test_other_devices_are_refused(options: list[str], capsys) -> None:
    assert main(["attention", *options, "--device", "cpu"]) == 2
    assert "compute capability 9.0" in capsys.readouterr().out


# ---- forward and backward together


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "gqa"])
def test_gradients_are_checked(kind: str) -> None:
    """PyTorch's are right, and an error of 2^-10 is seen."""
    case = Case(2, 8, 20, 16, kind)
    x = make_pool(case, CPU, 1, backward=True).sets[0]
    checked = attention_backward.Checked(case, x)
    ours, theirs = attention_backward.our_side(case, "auto"), attention_backward.torch_side(case)
    for side in (ours, theirs):
        assert all(0 < value < 20 for value in checked.errors(side).values())
    off = attention.Side("off", lambda x: [y + 2.0**-10 for y in ours.run(x)])
    assert all(v > 300 for key, v in checked.errors(off).items() if key.endswith("max"))


def gradient_row(case: Case, kernel: str, ratio: float) -> dict:
    names = [f"{side}{name}" for side in ("", "torch_") for name in attention_errors.GRADIENTS]
    errors = {f"{name}_error_{kind}": 3.0 for name in names for kind in ("max", "mean")}
    return row(case, kernel, ratio) | errors


def test_table_of_both() -> None:
    cases = attention_backward.CASES
    assert len({case.label for case in cases}) == len(cases)
    assert {case.kind for case in cases} == {case.kind for case in CASES}
    rows = [gradient_row(case, kernel, 2.0) for case in cases for kernel in attention.KERNELS]
    columns, lines = attention_backward.cells({"rows": rows})
    assert [len(line) for line in lines] == [len(columns)] * len(cases)
    assert "geometric mean of auto 2.00" in summary({"rows": rows}, attention_backward.SPEED)
    assert attention_backward.notes({"rows": rows}) == [] and "memory" not in columns


def test_memory_of_both(tmp_path) -> None:
    """It is beside PyTorch's in the table, and the largest ratio in a line below."""
    cases = attention_backward.CASES[:2]
    rows = [
        gradient_row(case, kernel, 2.0)
        | {"kernel_peak_bytes": bytes_of_ours, "torch_peak_bytes": 1000}
        for case, bytes_of_ours in zip(cases, (1350, 570), strict=True)
        for kernel in attention.KERNELS
    ]
    columns, lines = attention_backward.cells({"rows": rows})
    assert [len(line) for line in lines] == [len(columns)] * 2 and columns[-1] == "memory"
    assert [line[-1] for line in lines] == ["1.35", "0.57"]
    text = report.BLOCKS["attention-backward"][1](gpu_record("attention-backward", rows), tmp_path)
    assert text.endswith(f"without the operands; at most 1.35 ({cases[0].label}).")


def test_pages(tmp_path) -> None:
    """Each block from its record, also where an older record has no errors."""
    names = ("attention-errors", "attention-backward", "attention-gradient-errors")
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- begin:{n} -->\nold\n<!-- end:{n} -->\n" for n in names))

    def reported(*records: dict) -> str:
        for found in records:
            record.save(found, record.default_path(found, tmp_path))
        assert main(["report", str(page), "--results", str(tmp_path)]) == 0
        return page.read_text()

    rows = [row(case, kernel, 2.0) for case in CASES for kernel in attention.KERNELS]
    text = reported(gpu_record("attention", rows))
    assert "No record yet: `python -m benchmarks attention` on" in text
    assert text.count("No record yet: `python -m benchmarks attention --backward` on") == 2
    label = {"distribution": "wide_values", "depth": 64, "share_of_bound": 0.01}
    errors = row(CASES[0], "split", 2.0) | label | {"math_error_max": 9, "math_error_mean": 1}
    forward = gpu_record("attention", rows) | {"errors": [errors]}
    rows = [gradient_row(case, x, 2.0) for case in CASES[:2] for x in attention.KERNELS]
    both = gpu_record("attention-backward", rows) | {"errors": [rows[0] | label]}
    text = reported(forward, both)
    assert "No record" not in text and text.count("| wide values | 64 |") == 2
    assert CASES[0].label in text and text.count("Test GPU") == 3


@pytest.mark.gpu
def test_small_cases_of_both_are_measured(tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["attention", "--backward", "--small", "--budget", "0.02", "--rounds", "2", "--idle", "0"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    assert found["command"] == "attention-backward" and len(found["errors"]) == 24
    assert all(r["kernel_us"] > 0 for r in found["rows"])
    assert all(r["correct"] for r in found["rows"] + found["errors"])
    assert all(r["kernel_peak_bytes"] > 0 < r["torch_peak_bytes"] for r in found["rows"])


@pytest.mark.gpu
def test_small_cases_are_measured(tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["attention", "--small", "--budget", "0.02", "--rounds", "2", "--idle", "0"]
    assert main([*run, "--output", str(path)]) == 0
    rows = record.load(path)["rows"]
    small = [case.label for case in CASES if case.flops < 1e10]
    assert [r["label"] for r in rows if r["kernel"] == "split"] == small
    assert all(r["correct"] and r["kernel_us"] > 0 for r in rows)
