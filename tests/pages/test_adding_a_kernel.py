"""The kernels that csrc/README.md adds as examples: in a copy of the sources, on the emulator."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.process import ROOT, tool

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
def test_the_examples_are_kernels(tmp_path: Path) -> None:
    for folder in ("csrc", "tests/cpp"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    names = add(tmp_path)
    assert names == ["backwards", "two_tiles"]
    cmake, ninja = tool("cmake"), tool("ninja")
    assert cmake, "cmake is not in this environment, though the library is built with it"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    build = tmp_path / "build"
    for command in (
        [cmake, "-S", tmp_path, "-B", build, "-DSGEMM_EMULATOR_CHECK=ON", *generator],
        [cmake, "--build", build, "--parallel", "2", "--target", "emulator_check"],
        [build / "emulator_check", "all", "0"],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    for name in names:
        assert re.search(rf"^{name} +\d+ cases, 0 wrong elements$", result.stdout, re.MULTILINE)
