"""The settings of ``enable()`` and ``enabled()``: what they accept, where they run, and forks."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
from support.process import python

import torch_sgemm
from torch_sgemm.dropin import overrides, settings


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    """Every test leaves PyTorch's products as they were."""
    yield
    assert not overrides.installed() and not settings._scopes and settings._base is None


@pytest.mark.parametrize("switch", [torch_sgemm.enable, torch_sgemm.enabled])
def test_unknown_kernel_and_device(switch: Callable) -> None:
    def on(*args: object, **kwargs: object) -> None:
        scope = switch(*args, **kwargs)
        if scope is not None:
            scope.__enter__()

    with pytest.raises(RuntimeError, match="'laddr'.*accepted"):
        on("laddr", devices=("cpu",))
    for devices in (("mps",), ("cpu", "cuda:0"), ()):
        with pytest.raises(RuntimeError, match="accepted: 'cuda', 'cpu'"):
            on("auto", devices=devices)


CPU_ONLY = """
import sys, warnings
import torch
if sys.argv[1] == "torch":
    torch.version.cuda = None
import torch_sgemm
from torch_sgemm.dropin import overrides, settings
if sys.argv[1] == "build":
    settings.kernels = lambda: [row for row in torch_sgemm.kernels() if not row.family]
def check():
    torch.mm(torch.ones(2, 3), torch.ones(3, 4))
    assert sys.argv[1] == "gpu" or not overrides.installed()
for scope in (False, True):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if scope:
            with torch_sgemm.enabled():
                check()
        else:
            torch_sgemm.enable()
            check()
            torch_sgemm.disable()
    [warning] = caught
    assert warning.filename == "<string>", warning.filename
    print(warning.message)
assert torch_sgemm.stats().hits == {}
"""


@pytest.mark.parametrize(
    "lacking, reason",
    [("gpu", "sees no GPU"), ("torch", "built without CUDA"), ("build", "no CUDA kernels")],
)
def test_without_cuda(lacking: str, reason: str) -> None:
    """The program runs, and a warning says that nothing comes here."""
    result = python("-c", CPU_ONLY, lacking, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(reason) == 2 and result.stdout.count("changes nothing") == 2


@pytest.mark.parametrize("switch", [torch_sgemm.enable, torch_sgemm.enabled])
def test_a_device_without_kernels(switch: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """If PyTorch has no kernel to override, an error is raised and nothing changes."""

    def missing(*_: object) -> None:
        raise RuntimeError("no kernel for this key")

    monkeypatch.setattr(torch.library, "get_kernel", missing)
    with pytest.raises(RuntimeError, match="no kernel for this key"):
        scope = switch(devices=("cpu",))
        scope.__enter__()


@pytest.mark.parametrize(
    "wrong", ["tpu", ("tpu",), (["cpu"],), (), 3, torch.device("cpu")], ids=str
)
def test_wrong_devices(wrong) -> None:
    with pytest.raises(RuntimeError, match="argument 'devices' is .*; accepted: 'cuda', 'cpu'"):
        torch_sgemm.enable(devices=wrong)


def test_one_device_needs_no_tuple() -> None:
    with torch_sgemm.enabled(devices="cpu"):
        before = torch_sgemm.stats().hits.get("mm", 0)
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        assert torch_sgemm.stats().hits["mm"] == before + 1


def test_a_child_finds_the_lock_free() -> None:
    """Another thread holds the lock when a process forks."""
    code = """
        import os, signal, threading, torch_sgemm
        from torch_sgemm.dropin import overrides
        held = threading.Event()

        def hold():
            with overrides.changing:
                held.set()
                threading.Event().wait(0.5)

        threading.Thread(target=hold).start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            torch_sgemm.enable(devices="cpu")
            torch_sgemm.stats()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        torch_sgemm.stats()
    """
    done = python("-W", "ignore", "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_program_may_fork_after_enable() -> None:
    """TORCH_SGEMM=1 enables as early, before the program has done anything."""
    code = """
        import os, torch, torch_sgemm
        torch_sgemm.enable()
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.ones(1, device="cuda").item() == 1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    done = python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
