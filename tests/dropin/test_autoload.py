"""TORCH_SGEMM=1 at ``import torch``, without touching the program."""

from __future__ import annotations

import importlib.metadata

import pytest
from support.process import python

PROGRAM = """
import torch
torch.mm(torch.ones(3, 4), torch.ones(4, 5))
import sys
print("loaded" if "torch_sgemm" in sys.modules else "not loaded")
import torch_sgemm
print(torch_sgemm.stats().hits)
"""


def installed() -> bool:
    """Returns True if torch finds the entry point.

    Installed packages have entry points, also if the install is editable.
    """
    found = importlib.metadata.entry_points(group="torch.backends")
    return any(point.value.startswith("torch_sgemm_autoload") for point in found)


pytestmark = pytest.mark.skipif(not installed(), reason="needs torch_sgemm installed by pip")


@pytest.mark.parametrize("value", ["1", "ladder", "padded_tile_32"])
def test_enabled_at_import(value: str) -> None:
    result = python("-c", PROGRAM, TORCH_SGEMM=value, TORCH_SGEMM_DEVICES="cpu")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["loaded", "{'mm': 1}"]


@pytest.mark.parametrize("first", ["import torch_sgemm", "import torch_sgemm.info"])
def test_enabled_where_this_package_is_imported_first(first: str) -> None:
    """Its import imports torch, which calls the entry point when half of this package is there."""
    result = python("-c", first + PROGRAM, TORCH_SGEMM="1", TORCH_SGEMM_DEVICES="cpu")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["loaded", "{'mm': 1}"]


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_loaded_unasked(value: str) -> None:
    result = python("-c", PROGRAM, TORCH_SGEMM=value, TORCH_SGEMM_DEVICES="cpu")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["not loaded", "{}"]


def test_only_named_devices() -> None:
    """On a machine without a GPU the default, CUDA tensors only, changes nothing."""
    result = python("-c", PROGRAM, TORCH_SGEMM="1")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["loaded", "{}"]


@pytest.mark.parametrize(
    "kernel, devices, why",
    [
        ("no_such_kernel", "cpu", "argument 'kernel' is 'no_such_kernel'"),
        ("1", "tpu", "argument 'devices' is ('tpu',)"),
    ],
)
def test_a_wrong_setting_is_printed_and_the_program_goes_on(
    kernel: str, devices: str, why: str
) -> None:
    result = python("-c", PROGRAM, TORCH_SGEMM=kernel, TORCH_SGEMM_DEVICES=devices)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["loaded", "{}"]
    assert f"torch_sgemm: TORCH_SGEMM={kernel}: torch_sgemm.enable: {why}" in result.stderr


def test_a_warning_that_is_an_error_is_printed_and_the_program_goes_on() -> None:
    """enable() warns where PyTorch sees no GPU."""
    program = "import warnings; warnings.simplefilter('error', UserWarning)" + PROGRAM
    result = python("-c", program, TORCH_SGEMM="1", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["loaded", "{}"]
    assert "torch_sgemm: TORCH_SGEMM=1: torch_sgemm.enable: devices=('cuda',)" in result.stderr
