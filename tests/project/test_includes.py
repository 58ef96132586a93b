"""Includes in csrc: folders in one order, none that includes the other way; short chains."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from support.process import ROOT

CSRC = ROOT / "csrc"
INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
SPLIT = (
    "plan", "", "format", "redo", "guard", "epilogue", "convert", "gemm", "onthefly", "few_rows",
    "native16", "rows", "launch",
)  # fmt: skip
# Each includes itself and what stands before it.
ORDER = (
    "problem", "emulator", "gpu", "epilogue", "models", "ladder", "ieee",
    *(f"split/{room}".rstrip("/") for room in SPLIT), "attention", "attention/backward", "table",
    "binding",
)  # fmt: skip

MOST_DEPTH = 8  # files of a chain of includes, the compiled one among them


def folder(path: Path) -> str:
    """Returns the folder of csrc; ``gpu/ptx`` is part of ``gpu``."""
    return path.parent.relative_to(CSRC).as_posix().removesuffix("/ptx")


def includes() -> dict[str, set[tuple[str, str]]]:
    """Folders that each folder includes, and a file that does."""
    found = defaultdict(set)
    for path in sorted(CSRC.rglob("*")):
        if path.suffix not in (".h", ".cuh", ".cpp", ".cu"):
            continue
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            included = (path.parent / name).resolve()
            assert included.is_file(), f"{path.relative_to(ROOT)} includes {name}"
            found[folder(path)].add((folder(included), f"{path.relative_to(ROOT)}: {name}"))
    return found


def test_every_folder_has_its_place() -> None:
    assert sorted(includes()) == sorted(ORDER)


def test_folders_include_what_stands_before_them() -> None:
    wrong = [
        where
        for own, others in includes().items()
        for other, where in sorted(others)
        if ORDER.index(other) > ORDER.index(own)
    ]
    assert not wrong


def test_chains_of_includes_stay_short() -> None:
    @cache
    def chain(path: Path) -> tuple[str, ...]:
        names = INCLUDE.findall(path.read_text(encoding="utf-8"))
        # A .cu that is compiled for the CPU as well counts once.
        below = [chain((path.parent / name).resolve()) for name in names]
        longest = max(below, key=len, default=())
        return longest if longest[:1] == ("kernels.cu",) else (path.name, *longest)

    for path in sorted(CSRC.rglob("*.c*")):
        assert len(chain(path.resolve())) <= MOST_DEPTH, " > ".join(chain(path.resolve()))


def test_rooms_stay_small() -> None:
    for room in filter(None, SPLIT):
        files = [path for path in (CSRC / "split" / room).iterdir() if path.is_file()]
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        assert len(files) <= 12, room
        assert lines <= 1100, room
