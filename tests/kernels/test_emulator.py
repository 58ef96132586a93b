"""The kernels' CPU build: under sanitizers without torch, and with threads in shuffled order."""

from __future__ import annotations

import pytest
from support.emulator_check import check_programs, run_check
from support.process import python
from support.table import KERNELS, runnable

PROGRAMS = ("emulator_check", "emulator_check_ucontext")
pytestmark = pytest.mark.slow
one_process_builds = pytest.mark.xdist_group("emulator")


@one_process_builds
@pytest.mark.parametrize(
    ("program", "seed"), [(PROGRAMS[0], seed) for seed in "01"] + [(PROGRAMS[1], "20240613")]
)
def test_all_rows_under_sanitizers(program: str, seed: str) -> None:
    """Runs each block's threads in order, and in two shuffled orders, one by each kind of fiber."""
    result = run_check(check_programs() / program, "all", seed)
    report = result.stdout[-4000:] + result.stderr[-4000:]
    assert result.returncode == 0, report
    assert "ERROR: AddressSanitizer" not in report and "runtime error" not in report
    for row in KERNELS:
        if row.family and "cpu" in row.devices:
            assert row.name in result.stdout, f"{row.name} did not run"


@one_process_builds
@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_missing_barrier_is_caught(program: str, seed: str) -> None:
    """A kernel without one of its barriers must not pass in shuffled order."""
    result = run_check(check_programs() / program, "broken", seed)
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
