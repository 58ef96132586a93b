"""``benchmarks training``: tiny runs on the CPU, their data, the verdict, and what pages say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.records import gpu_record

from benchmarks import record, training
from benchmarks.__main__ import main
from benchmarks.training import FLOAT64, LABELS, OURS, TRAININGS, YARDSTICKS
from benchmarks.workloads import Task

pytestmark = pytest.mark.xdist_group("models")  # one process imports transformers

CPU = torch.device("cpu")
each_model = pytest.mark.parametrize("name", TRAININGS)


def task(name: str) -> Task:
    torch.manual_seed(1)
    return TRAININGS[name].make(CPU, True)


def batches(name: str, seed: int = 1, steps: int = 3) -> list[training.Batch]:
    return list(TRAININGS[name].batches(task(name), seed, steps))


def curves(**apart: float) -> dict[str, dict]:
    """Runs of three steps, each as far from float64's as ``apart`` says in the last of them."""
    found = {}
    for which in LABELS:
        losses = [4.0, 3.0, 2.0 + apart.get(which, 0.0)]
        found[which] = {"kernel": which, "losses": losses, "peak_bytes": 3 << 29, "hits": {}}
    found[OURS]["hits"] = {"mm": 6, "addmm": 3}
    return found


def rows(**apart: float) -> list[dict]:
    found = training.compared(curves(**apart))
    return [{"model": "vit-l16", "label": "ViT", "sm_mhz": 1980.0} | row for row in found]


# --- runs -----------------------------------------------------------------------------------


def test_tiny_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "training.json"
    run = ["training", "--device", "cpu", "--kernel", "ladder", "--steps", "3"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    assert found["options"]["small"] and found["options"]["steps"] == 3
    assert [(r["model"], r["kernel"]) for r in found["rows"]] == [
        (name, which) for name in TRAININGS for which in LABELS
    ]
    for r in found["rows"]:
        assert r["correct"] and "tiny" in r["label"] and "peak_bytes" not in r
        assert len(r["losses"]) == 3 and all(math.isfinite(x) for x in r["losses"])
        assert bool(r["hits"]) == (r["kernel"] == OURS) and r["fallbacks"] == {}
        assert ("differences" in r) == (r["kernel"] != FLOAT64)
    gpt2 = {r["kernel"]: r for r in found["rows"] if r["model"] == "gpt2-medium"}
    assert gpt2[OURS]["hits"] == {"addmm": 3 * 8, "mm": 3 * 19}
    assert gpt2["order"]["difference_max"] < 1e-5 > gpt2[OURS]["difference_max"]
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "Loss curves of whole models" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong, why",
    [(["--kernel", "laddr"], '"laddr" is unknown'), (["--steps", "0"], "accepted: 1 and more")],
)
def test_bad_options_are_refused(
    wrong: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "training.json"
    assert main(["training", "--device", "cpu", *wrong, "--output", str(path)]) == 2
    assert why in capsys.readouterr().out and not path.exists()


# --- data -----------------------------------------------------------------------------------


@each_model
def test_runs_see_the_same_batches(name: str) -> None:
    first, again, other = batches(name), batches(name), batches(name, seed=2)
    assert len(first) == 3
    for a, b, c in zip(first, again, other, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        assert not torch.equal(a[0], c[0])
    assert not torch.equal(first[0][0], first[1][0])


def test_texts_are_of_one_chain() -> None:
    """Each token has at most four successors in all texts, and the targets are the next tokens."""
    successors: dict[int, set[int]] = {}
    for inputs, targets in batches("gpt2-medium", steps=500):
        assert inputs.shape == targets.shape == (2, 8)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        for token, after in zip(inputs.flatten().tolist(), targets.flatten().tolist(), strict=True):
            successors.setdefault(token, set()).add(after)
    assert len(successors) == 101 and max(map(len, successors.values())) == training.SUCCESSORS


def test_images_have_their_class_s_pattern() -> None:
    found = batches("vit-l16", steps=400)
    images, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    means = torch.stack([images[labels == c].mean(0) for c in range(training.CLASSES)])
    nearest = (images.flatten(1) @ means.flatten(1).T).argmax(1)
    assert 0.8 < (nearest == labels).float().mean() < 0.97  # a tenth of the labels is random


# --- verdict --------------------------------------------------------------------------------


def test_differences_are_from_float64_s_losses() -> None:
    found = {row["kernel"]: row for row in rows(torch_sgemm=-0.5, torch=0.5, order=0.25)}
    assert "differences" not in found[FLOAT64]
    assert found[OURS]["differences"] == [0, 0, 0.5] and found[OURS]["difference_max"] == 0.5
    assert found["order"]["difference_mean"] == 0.25 / 3


@pytest.mark.parametrize(
    "apart, correct",
    [
        ({"torch": 0.1, "torch_sgemm": 0.19}, True),
        ({"order": 0.1, "torch_sgemm": 0.19}, True),
        ({"torch": 0.1, "order": 0.05, "torch_sgemm": 0.21}, False),
        ({"torch_sgemm": 2.0**-19}, True),  # roundings of the losses themselves
        ({"torch_sgemm": 2.0**-15}, False),
        ({"torch": 0.1, "torch_sgemm": math.nan}, False),
    ],
)
def test_a_curve_may_depart_as_far_as_torch_s(apart: dict[str, float], correct: bool) -> None:
    found = rows(**apart)
    assert [row["correct"] for row in found] == [True, True, True, correct]
    assert correct or "allowed" in found[-1]["wrong"]


# --- the report -----------------------------------------------------------------------------


def test_report_writes_table_line_and_chart(tmp_path: Path) -> None:
    names = ("training", "training-line", "training-chart")
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- begin:{n} -->\nold\n<!-- end:{n} -->\n" for n in names))
    arguments = ["report", str(page), "--results", str(tmp_path)]
    other = gpu_record("call", [])
    record.save(other, record.default_path(other, tmp_path))
    assert main(arguments) == 0
    assert page.read_text().count("No record yet: `python -m benchmarks training`") == 3
    found = gpu_record("training", rows(torch=0.125, order=0.25, torch_sgemm=0.5))
    record.save(found, record.default_path(found, tmp_path))
    assert main(arguments) == 0
    text = page.read_text()
    assert "| ViT | torch in float64 | 4.0000 | 2.0000 | - | - | 1.50 GiB | - |" in text
    ours = "4.0000 | 2.5000 | 0.500 | 0.167 | 1.50 GiB | 2 mm, 1 addmm |"
    assert f"| ViT | torch under `enable()` | {ours}" in text
    assert "differs from float64's by 0.167 on average and 0.500 at most" in text
    assert "torch's by 0.042 and 0.125 (with its batches reversed by 0.083 and 0.250)" in text
    assert all(label in text for label in YARDSTICKS.values()) and training.LEGEND in text
    chart = "plots/training-test-gpu.png"
    assert f"]({chart})" in text and (tmp_path / chart).exists()


@pytest.mark.gpu
def test_small_runs_on_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "training.json"
    assert main(["training", "--small", "--steps", "3", "--output", str(path)]) == 0
    found = record.load(path)
    assert found["machine"]["device"] == "cuda" and len(found["rows"]) == 8
    for r in found["rows"]:
        assert r["correct"] and r["peak_bytes"] > 0
        assert bool(r["hits"]) == (r["kernel"] == OURS)
