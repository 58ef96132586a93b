"""The programs of examples/ run and compute what they say."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.process import ROOT, python

import torch_sgemm
import torch_sgemm.torch_ops.library

TOOLKIT = torch.version.cuda is None or shutil.which("nvcc") or os.environ.get("CUDA_HOME")


def test_training_is_the_same() -> None:
    result = python(str(ROOT / "examples" / "train_block.py"), "--steps", "3")
    assert result.returncode == 0, result.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", result.stdout)]
    assert len(losses) == 2 and abs(losses[0] - losses[1]) <= 1e-4 * losses[0]
    assert "'addmm': 12" in result.stdout and "fallbacks={}" in result.stdout


def code_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_first_page_s_examples_run_anywhere() -> None:
    result = python("-c", "\n".join(code_of("README.md")))
    assert result.returncode == 0, result.stderr[-3000:]
    row, close = result.stdout.splitlines()[0].split()
    assert close == "True" and (torch.cuda.is_available() or row == "aten")
    assert "Stats(hits=" in result.stdout


PAGES = [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)])
def test_examples_of_pages_run_anywhere(page: str) -> None:
    """Each page's by itself, its blocks one after the other."""
    result = python("-c", "\n".join(["import torch, torch_sgemm", *code_of(page)]))
    assert result.returncode == 0, result.stderr[-3000:]


def test_a_choice_for_a_described_device() -> None:
    code = "import torch, torch_sgemm\n" + code_of("docs/choice.md")[0]
    result = python("-c", code)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "chosen" in result.stdout


def test_a_page_names_all_functions() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    functions = [
        name for name in torch_sgemm.__all__ if inspect.isfunction(vars(torch_sgemm)[name])
    ]
    assert not [name for name in functions if f"{name}(" not in text]
    for function, name in (
        (torch_sgemm.explain, "torch_sgemm.explain"), (torch_sgemm.pack, "torch_sgemm.pack"),
        (torch_sgemm.matmul, "torch_sgemm.matmul"), (torch_sgemm.linear, "torch_sgemm.linear"),
        (torch_sgemm.PackedMatrix.mm, "PackedMatrix.mm"),
        (torch_sgemm.recording, "torch_sgemm.recording"),
    ):  # fmt: skip
        shown = re.search(rf"`{re.escape(name)}\((.*?)\)`", text)
        assert shown, name
        arguments = [a.split("=")[0].strip() for a in shown[1].split(",") if a.strip() != "*"]
        assert arguments == [a for a in inspect.signature(function).parameters if a != "self"]


@pytest.mark.slow
@pytest.mark.skipif(not TOOLKIT, reason="find_package(Torch) of a CUDA torch needs a CUDA toolkit")
def test_libtorch_program(tmp_path: Path) -> None:
    here = str(Path(sys.executable).parent)
    cmake = shutil.which("cmake", path=os.pathsep.join([here, os.environ.get("PATH", "")]))
    assert cmake, "cmake is not in this environment, though the library is built with it"
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for command in (
        [cmake, "-S", str(ROOT / "examples" / "libtorch"), "-B", str(tmp_path), prefix],
        [cmake, "--build", str(tmp_path)],
        [str(tmp_path / "product"), str(torch_sgemm.torch_ops.library.PATH)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "100 x 200 x 50" in result.stdout
