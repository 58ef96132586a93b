"""The kernels' CPU build: under sanitizers without torch, and with threads in shuffled order."""

from __future__ import annotations

import fcntl
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from support.process import ROOT, python, tool
from support.table import KERNELS, runnable

BUILD = ROOT / "build" / "emulator_check"
PROGRAMS = ("emulator_check", "emulator_check_ucontext")
pytestmark = pytest.mark.slow


@cache
def check_programs() -> Path:
    """Builds tests/cpp/ and the CPU kernels under AddressSanitizer and UBSan, once a change."""
    BUILD.mkdir(parents=True, exist_ok=True)
    cmake, ninja = tool("cmake"), tool("ninja")
    assert cmake, "cmake is not in this environment, though the library is built with it"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes wait here
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(BUILD), "-DSGEMM_EMULATOR_CHECK=ON", *generator],
            [cmake, "--build", str(BUILD), "--parallel", "2"],
        ):
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return BUILD


def run_check(program: str, mode: str, seed: str) -> subprocess.CompletedProcess:
    """The check program's output; a sanitizer's finding makes it exit with an error."""
    options = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        [str(check_programs() / program), mode, seed],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **options},
        check=False,
    )


@pytest.mark.parametrize("seed", ["0", "1", "20240613"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_all_rows_under_sanitizers(program: str, seed: str) -> None:
    """Runs each block's threads in order, and in two shuffled orders."""
    result = run_check(program, "all", seed)
    report = result.stdout[-4000:] + result.stderr[-4000:]
    assert result.returncode == 0, report
    assert "ERROR: AddressSanitizer" not in report and "runtime error" not in report
    for row in KERNELS:
        if row.family and "cpu" in row.devices:
            assert row.name in result.stdout, f"{row.name} did not run"


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_missing_barrier_is_caught(program: str, seed: str) -> None:
    """A kernel without one of its barriers must not pass in shuffled order."""
    result = run_check(program, "broken", seed)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    assert "caught" in result.stdout


SHUFFLE_PROGRAM = """
import torch, torch_sgemm
from support.data import integers
from support.table import fit, runnable
for row in runnable("cpu"):
    for shape in ((33, 35, 20), (130, 66, 37), (64, 64, 64)):
        m, n, k = fit(row, *shape)
        a, b = integers((m, k), 1), integers((n, k), 2).t()
        c = torch.full((m, n), float("nan"))
        torch.ops.sgemm.gemm_(c, a, b, kernel=row.name)
        assert torch.equal(c.double(), a.double() @ b.double()), (row.name, m, n, k)
    print(row.name, flush=True)
"""


@pytest.mark.parametrize("seed", [1, 7, 4242])
def test_shuffled_threads_change_nothing(seed: int) -> None:
    """The library itself: a row that leans on the order of its threads gives wrong numbers."""
    result = python("-c", SHUFFLE_PROGRAM, TORCH_SGEMM_EMULATOR_SHUFFLE=str(seed))
    assert result.returncode == 0, result.stdout[-500:] + result.stderr[-3000:]
    assert result.stdout.split() == [row.name for row in runnable("cpu")]
