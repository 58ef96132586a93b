"""The kernels that csrc/README.md adds as examples: in a copy of the sources, on the emulator."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.emulator_check import run_check, with_table_of
from support.process import ROOT

INCLUDE = '#include "../split/rows.h"\n'  # behind the ladder's
FIRST_PLANNED = '    planned_row<Large>("ieee_large"'


def blocks() -> list[tuple[str, str]]:
    """The file that each block of code belongs to, and the code."""
    text = (ROOT / "csrc" / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```cpp\n// csrc/(\S+)\n(.*?)```", text, re.DOTALL)


def add(copy: Path) -> list[str]:
    """Writes the blocks' code where they say it goes. Returns the rows' names."""
    names = []
    for name, code in blocks():
        path = copy / "csrc" / name
        if name != "table/kernels.cu":
            assert not path.exists()
            path.write_text(code, encoding="utf-8")
            continue
        include, row = code.split("\n", 1)
        text = path.read_text(encoding="utf-8")
        for place, new in ((INCLUDE, include + "\n"), (FIRST_PLANNED, row)):
            assert text.count(place) == 1
            text = text.replace(place, new + place)
        path.write_text(text, encoding="utf-8")
        names += re.findall(r'"(\w+)", "ladder"', row)
    return names


@pytest.mark.slow
@pytest.mark.xdist_group("emulator")  # one process builds
def test_the_examples_are_kernels(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    names = add(tmp_path)
    assert names == ["backwards", "two_tiles"]
    result = run_check(with_table_of(tmp_path), "all", "0")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    for name in names:
        assert re.search(rf"^{name} +\d+ cases, 0 wrong elements$", result.stdout, re.MULTILINE)
