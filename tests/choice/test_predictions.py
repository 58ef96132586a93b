"""Predicted times beside recorded ones: the choice of a row is as good as its cost models.

A record from another GPU may need wider limits.
"""

from __future__ import annotations

import math
from statistics import median

from support.layouts import meta

import torch_sgemm
from benchmarks import choice, machine, record


def explain(r: dict, found: dict) -> torch_sgemm.Explanation:
    """Explains the choice for a row of a record, on the record's device."""
    batch = (r["batch"],) if r["batch"] > 1 else ()
    a = meta(r["m"], r["k"], r["ops"][0], batch)
    b = meta(r["k"], r["n"], r["ops"][1], batch)
    return torch_sgemm.explain(a, b, device=machine.predicted_for(found["machine"]))


def predicted_to_measured(kernel: str) -> dict[str, list[tuple[float, str]]]:
    """Returns for each row the ratios of predicted to measured time, with their problems."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    found = record.latest_gpu("suite")
    assert found
    for r in found["rows"]:
        if r["kernel"] != kernel or "failed" in r:
            continue
        seconds = {verdict.name: verdict.seconds for verdict in explain(r, found).verdicts}
        for name, us in {r["chosen"]: r["kernel_us"], "aten": r["torch_us"]}.items():
            if name in seconds:  # the row is there still
                ratios.setdefault(name, []).append((seconds[name] * 1e6 / us, r["label"]))
    return ratios


def test_pytorchs_kernel_is_hardly_ever_faster_than_predicted() -> None:
    ratios = sorted(predicted_to_measured("auto")["aten"])
    assert len(ratios) > 90
    assert ratios[-1][0] < 1.3, ratios[-1]  # with the caution of models.h
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


def test_what_is_chosen_is_hardly_ever_slower_than_torch() -> None:
    """Checks random problems, for which the record has the rows predicted to be fastest."""
    found = record.latest_gpu("choice")
    assert found
    problems = [
        (row, speeds, explain(row, found).chosen) for row, speeds in choice.by_problem(found)
    ]
    ratios = sorted(
        (speeds[name], row["label"]) for row, speeds, name in problems if name in speeds
    )
    assert len(ratios) > 0.9 * len(problems) > 50
    assert ratios[0][0] > 0.8, ratios[0]
    assert ratios[len(ratios) // 20][0] > 0.98, ratios[: len(ratios) // 20]
