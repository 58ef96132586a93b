"""tools/compare_builds.py: a build equals itself, and differences are reported."""

from __future__ import annotations

import doctest
import random

import compare_builds
import pytest
from support.process import ROOT, python

SCRIPT = ROOT / "tools" / "compare_builds.py"


def test_a_build_equals_itself() -> None:
    """--rows leaves a choice and one row's result of each problem."""
    options = ("--problems", "4", "--device", "cpu", "--rows", "naive_3*")
    done = python(str(SCRIPT), str(ROOT), *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 problems, 8 choices and results: 0 differ\n"


def test_other_bits_and_other_choices_are_told() -> None:
    assert doctest.testmod(compare_builds).failed == 0
    before = [{"problem": 1, "found": {"auto": "x", "x": "a", "gone": "a"}}]
    after = [{"problem": 1, "found": {"auto": "y", "x": "a", "new": "b"}}]
    assert compare_builds.differences(before, after) == ["auto: x, y: 1"]
    with pytest.raises(SystemExit):
        compare_builds.differences(before, [{"problem": 2, "found": {}}])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_problems_are_drawn_within_limits(device: str) -> None:
    rng = random.Random(1)
    for _ in range(300):
        p = compare_builds.random_problem(rng, device)
        assert min(p["m"], p["n"], p["k"], p["batch"]) >= 1
        assert p["m"] * p["n"] * p["k"] * p["batch"] <= compare_builds.LARGEST[device]
