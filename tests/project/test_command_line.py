"""Command lines refuse what can't run, and explain themselves in plain text."""

import pytest
from support.process import ROOT, python

from benchmarks.__main__ import MEASURING, main


@pytest.mark.parametrize(
    "wrong",
    ["ladder --size 0", "call --size -1", "squares --size 0", "choice --count 0", "accuracy --k 0"],
)
def test_sizes_are_positive(wrong: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(wrong.split())
    assert "accepted: 1 and more" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *MEASURING, "worth", "report"])
def test_help_is_plain(command: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert "usage:" in shown and "``" not in shown


@pytest.mark.parametrize("steps", ["0", "-1"])
def test_the_example_trains_at_least_a_step(steps: str) -> None:
    result = python(str(ROOT / "examples" / "train_block.py"), "--steps", steps)
    assert result.returncode == 2 and "accepted: 1 and more" in result.stderr
