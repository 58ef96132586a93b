"""Fixtures, and what the markers ``gpu`` and ``rows`` do.

Operands are seeded, TF32 is off, and nothing depends on the order of tests, so that any subset
runs alone, in any order and in several processes.
"""

from __future__ import annotations

import gc
import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# Some virtual machines advertise AMX and trap it: oneDNN, which PyTorch's CPU kernels call, is kept
# from it before its first use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

settings.register_profile(
    "sgemm",
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
settings.load_profile("sgemm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--beside-torch",
        action="store_true",
        help="on a GPU, end with a table: a dozen products beside torch.matmul, speed and errors",
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("beside_torch") and torch.cuda.is_available():
        from support.beside_torch import lines

        terminalreporter.section("beside torch.matmul, reported only")
        for line in lines():
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU")
    # Several test processes share the machine's cores.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    built = torch.version.cuda or "none"
    reason = f"needs a CUDA GPU: torch sees none here (torch built for CUDA: {built})"
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Keeps the tests themselves out of garbage collections, which else take a second each."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test with an argument ``row`` for rows of the kernel table: see support/table.py."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    names = {name.strip() for x in given for name in (x.split(",") if isinstance(x, str) else x)}
    if "row" in metafunc.fixturenames and "row" not in names:
        from support.table import parametrize_rows

        parametrize_rows(metafunc)


@pytest.fixture(autouse=True)
def ieee_float32():
    """Float32 products of torch itself in full precision, so that both sides compute the same."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def has_planes() -> None:
    """The GPU multiplies by a packed operand's planes."""
    from support.split import needs_planes

    needs_planes()


@pytest.fixture
def limit_workspace():
    """Returns a function that sets the workspace limit in a test, in MiB.

    Outside of tests, TORCH_SGEMM_WORKSPACE sets it, and is read once.
    """
    before: list[int] = []
    yield lambda mib: before.append(torch.ops.sgemm._set_workspace(mib))
    if before:
        torch.ops.sgemm._set_workspace(before[0])


@pytest.fixture(autouse=True)
def seeded():
    """Fixed seeds for whatever a test draws without a generator of its own."""
    torch.manual_seed(20240613)


KEPT_BYTES = 2 << 30  # of device memory that a process may keep between tests: others run beside it


@pytest.fixture(autouse=True)
def device_memory():
    """Gives memory back that a test no longer uses, for test processes share the GPU."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > KEPT_BYTES:
        torch.cuda.empty_cache()
