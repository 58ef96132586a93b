"""Predicted times beside recorded ones: the choice of a row is as good as its cost models.

A record from another GPU may need wider limits.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median

import torch

import torch_sgemm

RECORD = Path(__file__).parent.parent / "benchmarks/results/suite-nvidia-h200.json"


def predicted_to_measured(kernel: str) -> dict[str, list[tuple[float, str]]]:
    """By row: predicted time by measured time, and the problem, of all that the record has."""
    record = json.loads(RECORD.read_text())
    machine = record["machine"]
    gpu = torch_sgemm.Device(
        type="cuda",
        arch=machine["arch"],
        sms=machine["sms"],
        clock_ghz=machine["max_sm_mhz"] * 1e-3,
        bandwidth_gbs=4300,
        l2_mb=machine["l2_mb"],
    )
    found: dict[str, list[tuple[float, str]]] = {}
    for r in record["rows"]:
        if r["kernel"] != kernel or "failed" in r:
            continue
        a, b = (
            operand(r["batch"], rows, cols, layout)
            for rows, cols, layout in zip((r["m"], r["k"]), (r["k"], r["n"]), r["ops"], strict=True)
        )
        verdicts = torch_sgemm.explain(a, b, device=gpu).verdicts
        seconds = {verdict.name: verdict.seconds for verdict in verdicts}
        for name, us in {r["chosen"]: r["kernel_us"], "aten": r["torch_us"]}.items():
            found.setdefault(name, []).append((seconds[name] * 1e6 / us, r["label"]))
    return found


def operand(batch: int, rows: int, cols: int, layout: str) -> torch.Tensor:
    """Without memory."""
    sizes = (rows, cols) if layout == "N" else (cols, rows)
    x = torch.empty((batch, *sizes) if batch > 1 else sizes, device="meta")
    return x if layout == "N" else x.mT


def test_pytorchs_kernel_is_hardly_ever_faster_than_predicted() -> None:
    ratios = sorted(predicted_to_measured("auto")["aten"])
    assert len(ratios) > 90
    assert ratios[-1][0] < 1.25, ratios[-1]
    assert ratios[len(ratios) * 9 // 10][0] < 1.1, ratios[len(ratios) * 9 // 10 :]
    assert 0.75 < median(ratio for ratio, _ in ratios) < 1


def test_rows_take_as_long_as_predicted() -> None:
    for kernel in ("auto", "split"):
        for name, ratios in predicted_to_measured(kernel).items():
            if name == "aten":
                continue
            for ratio, label in ratios:
                assert 0.6 < ratio < 1.5, (name, label, ratio)
            mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
            assert 0.8 < mean < 1.25, (name, mean)
