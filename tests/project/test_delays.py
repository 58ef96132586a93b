"""tools/delays.py's verdict: products that are missing or differ must not look clean."""

from __future__ import annotations

import sys
from pathlib import Path

import delays
import pytest
import torch

SAME = {"row 1 x 1 x 1 NN": torch.tensor([1.0, 2.0])}
OTHER = {"row 1 x 1 x 1 NN": torch.tensor([1.0, 2.0000002])}


@pytest.mark.parametrize(
    ("ordinary", "dawdling", "verdict"),
    [(SAME, SAME, 0), (SAME, OTHER, 1), ({}, {}, 1), (SAME, {}, 1), ({}, SAME, 1)],
)
def test_verdict(
    monkeypatch: pytest.MonkeyPatch, ordinary: dict, dawdling: dict, verdict: int
) -> None:
    def run(library: Path, rounds: int, output: Path, kernels: list[str]) -> None:
        assert kernels == []
        torch.save(dawdling if library.name == "dawdling.so" else ordinary, output)

    monkeypatch.setattr(delays, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sys, "argv", ["delays.py", "--library", "dawdling.so"])
    assert delays.main() == verdict


@pytest.mark.parametrize("layout", ["N", "T"])
def test_operands_have_scales_chosen_on_the_way(layout: str) -> None:
    x = delays.operand(40, 60, layout, 1, "cpu")
    begin, end = x[20, :30].abs().max(), x[20, 30:].abs().max()
    assert end > 2**8 * begin and x.abs().max() > 2.0**40
    assert x.is_contiguous() == (layout == "N")
