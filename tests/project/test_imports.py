"""Folders of torch_sgemm import each other in one order: none imports one that imports it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

from support.process import ROOT

PACKAGE = ROOT / "torch_sgemm"
# Each imports itself and what stands before it; "": the package's own modules, the commands.
ORDER = ("torch_ops", "choice", "functional", "dropin", "measure", "")


def imports() -> dict[Path, set[Path]]:
    """Returns the modules of the package that each module imports, also inside functions."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found[path] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_sgemm"):
                folder = ROOT / node.module.replace(".", "/")
                modules = [folder] if not folder.is_dir() else [folder / x.name for x in node.names]
                found[path] |= {module.with_suffix(".py") for module in modules}
    return found


def folder(path: Path) -> str:
    return path.parent.relative_to(PACKAGE).as_posix().removeprefix(".")


def test_every_folder_has_its_place() -> None:
    assert {folder(path) for path in imports()} == set(ORDER)


def test_folders_import_what_stands_before_them() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {other.relative_to(ROOT)}"
        for path, others in imports().items()
        for other in others
        if not other.is_file() or ORDER.index(folder(other)) > ORDER.index(folder(path))
    ]
    assert not wrong


def test_no_modules_import_each_other() -> None:
    TopologicalSorter(imports()).prepare()  # CycleError names them
