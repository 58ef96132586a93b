"""The benchmarks' command line refuses what no benchmark can run."""

import pytest

from benchmarks.__main__ import main


@pytest.mark.parametrize(
    "wrong",
    ["ladder --size 0", "call --size -1", "squares --size 0", "choice --count 0", "accuracy --k 0"],
)
def test_sizes_are_positive(wrong: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main(wrong.split())
    assert "accepted: 1 and more" in capsys.readouterr().err
