"""Plans of split products: properties of all plans, in C++, and predictions of the dispatch."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from support.process import ROOT

import torch_sgemm

CHECKS = {  # programs of tests/cpp, and what they are linked with
    "plan_check": ("split/plan/plan.cpp", "split/plan/seconds.cpp", "models/models.cpp"),
    "slices_check": ("attention/backward/plan.cpp",),
}


@pytest.fixture(scope="module", params=CHECKS)
def check(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of tests/cpp under AddressSanitizer and UBSan."""
    program = tmp_path_factory.mktemp("plan") / request.param
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "there is no C++ compiler, though the library is built with one"
    flags = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    own = [ROOT / "csrc" / name for name in CHECKS[request.param]]
    sources = [ROOT / f"tests/cpp/{request.param}.cpp", *own]
    command = [compiler, *flags, f"-I{ROOT / 'csrc'}", "-o", program, *sources]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return program


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_all_plans_hold(check: Path, seed: str) -> None:
    result = subprocess.run([check, seed], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and result.stdout.endswith(" hold\n"), (
        result.stdout + result.stderr[-3000:]
    )


def test_batches_with_a_long_k_are_predicted_as_they_run() -> None:
    """One matrix after the other."""

    def seconds(batch: int) -> dict[str, float]:
        a = torch.empty(batch, 64, 9000, device="meta")
        b = torch.empty(batch, 9000, 64, device="meta")
        found = torch_sgemm.explain(a, b, kernel="split", device=torch_sgemm.Device())
        return {v.name: v.seconds for v in found.verdicts if v.name.startswith("split_")}

    one, many = seconds(1), seconds(128)
    assert one and all(many[name] == pytest.approx(128 * one[name], rel=1e-4) for name in one)


@pytest.mark.parametrize("sms", [1, 2, 8])
def test_empty_products_on_small_devices(sms: int) -> None:
    """Too few SMs for a cluster."""
    small = torch_sgemm.Device(arch=90, sms=sms)
    for m, n, k in ((0, 5, 1000), (5, 0, 100), (7, 7, 10000)):
        a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
        assert torch_sgemm.explain(a, b, device=small).chosen


NUMBERS = [0, -1, math.nan, math.inf, "x", None]
WRONG = [
    *itertools.product(
        ("clock_ghz", "bandwidth_gbs", "l2_mb", "tensor_rate", "sms", "arch"), NUMBERS
    ),
    *itertools.product(("arch", "sms", "code_arch"), (9.0, 1.5, True)),
    ("arch", 9), ("code_arch", -1), ("type", "xpu"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_devices_that_are_none_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"argument '{name}' is {value!r}; accepted"):
        torch_sgemm.Device(**{name: value})
