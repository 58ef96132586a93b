"""Rules of the source tree: short files, one idea a rung, no path of somebody's machine."""

from __future__ import annotations

import difflib
import re
from itertools import pairwise
from pathlib import Path

import pytest
from support.process import ROOT

pytestmark = pytest.mark.xdist_group("tree")  # one process lists the tree and makes an sdist in it

SOURCES = (".py", ".cu", ".cuh", ".h", ".cpp", ".toml", ".md", ".yaml", ".yml", ".cff")
GENERATED = {
    ".git", ".pytest_cache", ".venv", "CMakeFiles", "__pycache__", "build", "dist", "results",
    "venv",
}  # fmt: skip


def project_files() -> list[Path]:
    """Sources of the project, without what builds and benchmarks leave behind."""
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and (path.suffix in SOURCES or path.name in ("Makefile", "CMakeLists.txt"))
        and not GENERATED & set(path.relative_to(ROOT).parts)
        and not any(part.endswith(".egg-info") for part in path.parts)
    )


def code_lines(path: Path) -> list[str]:
    """Lines without comments and blank lines, so that prose doesn't count as a difference."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
    lines = (line.split("//")[0].rstrip() for line in text.splitlines())
    return [line for line in lines if line.strip()]


def changed_lines(before: list[str], after: list[str]) -> int:
    """Lines of ``after`` that ``before`` lacks, or the reverse, whichever is more in a hunk."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return sum(
        max(old_end - old, new_end - new)
        for tag, old, old_end, new, new_end in matcher.get_opcodes()
        if tag != "equal"
    )


def test_files_are_short() -> None:
    """A file has at most 500 lines, or 400 in csrc and torch_sgemm."""
    counts = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for path in project_files()
    }
    assert len(counts) > 10
    most = {path: 400 if path.parts[0] in ("csrc", "torch_sgemm") else 500 for path in counts}
    assert not {path: count for path, count in counts.items() if count > most[path]}


def test_neighbouring_rungs_differ_little() -> None:
    """Neighbouring rungs differ in at most 60 lines of code, and in 40 on average."""
    rungs = sorted((ROOT / "csrc" / "ladder").glob("[0-9][0-9]_*.cuh"))
    assert len(rungs) > 5
    changes = {
        f"{before.name} -> {after.name}": changed_lines(code_lines(before), code_lines(after))
        for before, after in pairwise(rungs)
    }
    worst = max(changes, key=changes.__getitem__)
    average = sum(changes.values()) / len(changes)
    print(f"average {average:.1f} changed lines, most {changes[worst]} in {worst}")
    assert average <= 40 and changes[worst] <= 60, changes


def test_no_path_of_one_machine() -> None:
    # Spelled in pieces, so that this file doesn't match itself.
    homes = "|".join(("home", "Users", "work", "root", "tmp"))
    pattern = re.compile(rf"(?<![\w./$}}])/({homes})/[\w.]")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "pyproject.toml", "CMakeLists.txt"])
def test_expected_files_exist(name: str) -> None:
    assert (ROOT / name).is_file()


def test_private_names_of_pytorch_are_in_one_file() -> None:
    """Its docstring names the three attributes that others read in place."""
    private = re.compile(
        r"\btorch\._(?!check\b|_version)\w+|\baten\._\w+|\bpy_kernels\b|\bmultiprocessing\b"
        r"|\._(?:handle|schema|destroy|dispatch_cache)\b"
    )
    for path in sorted((ROOT / "torch_sgemm").rglob("*.py")):
        found = private.findall(path.read_text())
        assert bool(found) == (path.name == "private.py"), (path.name, found)


def test_each_file_of_the_package_has_its_line_in_contributing() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    listed = [name for cell in cells for name in re.findall(r"`([\w/]+\.py)`", cell)]
    package = ROOT / "torch_sgemm"
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(listed) == sorted(path.relative_to(package).as_posix() for path in files)
