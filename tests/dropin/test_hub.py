"""The Hub's layout: a build beside this one in a process, with a namespace of its own."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import build_library
import hub_layout
import pytest
import torch
from support.process import ROOT, python, tool

import torch_sgemm

# Imports a variant as kernels 0.17 does: the package's name is the metadata's id.
LOAD = """
import importlib.util, json, sys
from pathlib import Path
import torch, torch_sgemm

variant = Path(sys.argv[1])
name = json.loads((variant / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
other = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(other)
theirs, ours = getattr(torch.ops, name), torch.ops.sgemm
a, b = torch.randn(30, 40), torch.randn(40, 50)
"""
CHECKS = {
    "each has its operators and its library": """
assert name != "sgemm" and other.torch_ops.library.NAMESPACE == name
assert other.matmul is not torch_sgemm.matmul
maps = Path("/proc/self/maps").read_text()
assert str(variant / "libtorch_sgemm.so") in maps
assert str(torch_sgemm.torch_ops.library.PATH) in maps
for kernel in ("auto", "ladder", "reference"):
    expected = ours.mm(a, b, kernel)
    assert torch.equal(theirs.mm(a, b, kernel), expected)
    assert torch.equal(other.matmul(a, b, kernel=kernel), expected)
assert [k.name for k in other.kernels()] == [k.name for k in torch_sgemm.kernels()]
""",
    "messages name the operator that was called": """
for space, operators in ((name, theirs), ("sgemm", ours)):
    for wrong in ((a, b.double()), (a.to("meta"), b.double().to("meta"))):
        try:
            operators.mm(*wrong)
        except RuntimeError as error:
            assert str(error).startswith(f"{space}::mm: "), error
        else:
            raise AssertionError(space)
    try:
        operators.gemm_(a.clone().requires_grad_(), a, b)
    except RuntimeError as error:
        assert str(error).startswith(f"{space}::gemm_: writes its result"), error
""",
    "derivatives, transforms, packed operands and compiled programs": """
x = a.clone().requires_grad_()
other.matmul(x, b, kernel="ladder").sum().backward()
torch.testing.assert_close(x.grad, b.sum(1).expand(30, 40))
rows = torch.func.vmap(lambda x: other.matmul(x, b, kernel="ladder"))(a.expand(3, 30, 40))
torch.testing.assert_close(rows[1], a @ b)
torch.testing.assert_close(other.pack(b).mm(a), a @ b)
run = torch.compile(lambda x: other.linear(x, b.t(), None, "relu", kernel="ladder"), fullgraph=True)
torch.testing.assert_close(run(a), (a @ b).relu())
torch.library.opcheck(theirs.mm.default, (a, b), {"kernel": "ladder"})
""",
    "the profiler, the recorder and the counter of flops": """
with torch.profiler.profile() as profile:
    theirs.mm(a, b, "naive_32")
assert any(event.key.startswith(f"{name}::mm[naive_32") for event in profile.key_averages())
with other.recording() as record:
    other.linear(a, b.t())
assert record.products[0].operation == f"{name}::linear" and record.products[0].k == 40
import importlib
importlib.import_module(f"{name}.flops")
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    theirs.mm(a, b)
assert counter.get_total_flops() == 2 * 30 * 40 * 50
""",
    "the drop-in that was turned on last takes the products": """
with torch_sgemm.enabled("ladder", devices="cpu"):
    with other.enabled("ladder", devices="cpu"):
        a @ b
    assert (other.stats().hits, torch_sgemm.stats().hits) == ({"mm": 1}, {})
    a @ b
assert (other.stats().hits, torch_sgemm.stats().hits) == ({"mm": 1}, {"mm": 1})
a @ b
assert (other.stats().hits, torch_sgemm.stats().hits) == ({"mm": 1}, {"mm": 1})
""",
}


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build for the CPU, which takes seconds where the one with CUDA kernels takes minutes."""
    if not (tool("cmake") and tool("ninja")):
        pytest.skip("cmake or ninja isn't installed")
    directory = tmp_path_factory.mktemp("hub")
    done = python(str(ROOT / "tools" / "hub_layout.py"), str(directory), TORCH_SGEMM_CUDA="0")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return Path(done.stdout.splitlines()[-1])


@pytest.mark.xdist_group("hub")  # one process builds
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_two_namespaces_in_one_process(check: str, variant: Path) -> None:
    done = python("-c", LOAD + check, str(variant))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.xdist_group("hub")
def test_a_variant_s_files(variant: Path) -> None:
    about = json.loads((variant / "metadata.json").read_text())
    machine = platform.machine()
    assert variant.parent.name == "build"
    assert variant.name == f"torch-stable-abi210-cpu-{machine}-linux"
    assert about["id"] == hub_layout.unique_namespace("cpu")
    assert (about["name"], about["backend"]) == ("torch-sgemm", {"type": "cpu"})
    info = json.loads((variant / "build_info.json").read_text())
    assert info["namespace"] == about["id"]
    assert info["library_digest"] == build_library.file_digest(variant / "libtorch_sgemm.so")
    package = ROOT / "torch_sgemm"
    names = {path.relative_to(package) for path in package.rglob("*.py")}
    commands = {Path(f"{name}.py") for name in ("advise", "info", "report", "tuner")}
    assert {path.relative_to(variant) for path in variant.rglob("*.py")} == names - commands


# --- without a build ---


def test_modules_import_each_other_relatively() -> None:
    text = "from torch_sgemm import a, b\nfrom torch_sgemm.c import d\n"
    text += "def f():\n    from torch_sgemm.e import g\n    from torch import torch_sgemm\n"
    assert hub_layout.relative(text) == (
        "from . import a, b\nfrom .c import d\n"
        "def f():\n    from .e import g\n    from torch import torch_sgemm\n"
    )
    deeper = "from torch_sgemm import a\nfrom torch_sgemm.b.c import d\n"
    assert hub_layout.relative(deeper, depth=1) == "from .. import a\nfrom ..b.c import d\n"
    for absolute in ("import torch_sgemm", "import torch_sgemm.ops as ops"):
        with pytest.raises(SystemExit, match="line 2 imports torch_sgemm absolutely"):
            hub_layout.relative(f"import os\n{absolute}\n")


def test_a_variant_of_a_cuda_build(tmp_path: Path) -> None:
    """A file stands in for the library."""
    built = tmp_path / "built"
    built.mkdir()
    info = {
        "version": "3.1.4",
        "namespace": "torch_sgemm_cuda_1a",
        "cuda": True,
        "toolkit": {"kind": "machine", "version": "13.2.88"},
        "architectures": ["80", "90a", "100", "120-virtual"],
    }
    (built / build_library.LIBRARY).write_bytes(b"library")
    (built / build_library.INFO).write_text(json.dumps(info))
    for _ in range(2):  # the second replaces the first
        target = hub_layout.lay_out(built, tmp_path / "repository")
        assert target.parent == tmp_path / "repository" / "build"
        assert target.name == f"torch-stable-abi210-cu132-{platform.machine()}-linux"
        assert not (target / "left.py").exists()
        (target / "left.py").touch()
    about = json.loads((target / "metadata.json").read_text())
    assert about["backend"] == {"type": "cuda", "archs": ["8.0", "9.0a", "10.0", "12.0+PTX"]}
    assert (about["id"], about["version"]) == ("torch_sgemm_cuda_1a", 3)


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["here", "--namespace", "a-b"], "TORCH_SGEMM_NAMESPACE='a-b': accepted are"),
        ([str(ROOT / "README.md")], "is a file; accepted: a folder"),
        ([], "required: directory"),
    ],
)
def test_bad_input(
    arguments: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(build_library, "build", lambda *_: pytest.fail("it built"))
    with pytest.raises(SystemExit) as stop:
        hub_layout.main(arguments)
    assert why in f"{stop.value.code} {capsys.readouterr().err}"


def test_the_namespace_of_this_build_is_the_usual_one() -> None:
    """Tests and benchmarks write torch.ops.sgemm."""
    assert torch_sgemm.torch_ops.library.NAMESPACE == "sgemm"
    assert torch_sgemm.torch_ops.library.operators is torch.ops.sgemm
