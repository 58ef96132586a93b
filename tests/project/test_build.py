"""The build's decisions, its account of itself, and the tools that read the library."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from support.process import ROOT

import torch_sgemm
from benchmarks import record
from torch_sgemm import info as package_info

PACKAGE = Path(torch_sgemm.__file__).resolve().parent

import build_config as config  # noqa: E402
import build_env as env  # noqa: E402
import build_library  # noqa: E402
import kernel_symbols  # noqa: E402
import sass  # noqa: E402

CUDA13 = config.Torch("2.15.0+cu132", "13.2", None, "/torch")
CUDA12 = config.Torch("2.10.0+cu128", "12.8", None, "/torch")
CPU = config.Torch("2.15.0+cpu", None, None, "/torch")
ROCM = config.Torch("2.15.0+rocm7", None, "7.0", "/torch")
NVCC12 = config.Nvcc("/opt/cuda-12/bin/nvcc", "12.9.86")
NVCC13 = config.Nvcc("/opt/cuda-13/bin/nvcc", "13.0.88")
SUPPORTED = ["75", "80", "86", "87", "89", "90", "100", "103", "120", "121"]


# --- torch ---


def test_torch_that_fits_is_taken():
    assert config.check_torch(CUDA13, "here") is CUDA13
    nightly = config.Torch("2.10.0a0+git12", None, None, "/torch")
    assert config.check_torch(nightly, "here") is nightly


@pytest.mark.parametrize("version", ["2.9.1+cu130", "1.13.0", "2.4"])
def test_old_torch_is_refused(version):
    with pytest.raises(config.BuildError, match=r"torch >= 2\.10") as caught:
        config.check_torch(config.Torch(version, "13.0", None, "/torch"), "/some/env")
    assert version in str(caught.value) and "/some/env" in str(caught.value)


def test_missing_torch_says_what_to_install():
    with pytest.raises(config.BuildError, match=r"pip install 'torch>=2\.10'"):
        config.check_torch(None, "/some/env")


def test_torch_is_read_without_importing_it(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.12.0+cu130'\n"
        "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    )
    found = env.find_torch([tmp_path / "nothing", tmp_path])
    assert found == config.Torch("2.12.0+cu130", "13.0", None, str(tmp_path / "torch"))
    assert env.find_torch([tmp_path / "nothing"]) is None


def test_this_environment_s_torch_is_found():
    found = env.find_torch()
    assert found is not None
    assert (found.version, found.cuda) == (torch.__version__, torch.version.cuda)


# --- CUDA and its toolkit ---


def test_machine_toolkit_of_the_same_major_is_used():
    chosen = config.choose_toolkit(CUDA13, [NVCC12, NVCC13])
    assert (chosen.kind, chosen.nvcc, chosen.cuda) == ("machine", NVCC13, True)
    assert config.choose_toolkit(CUDA12, [NVCC13, NVCC12]).nvcc == NVCC12


@pytest.mark.parametrize("machine", [[], [NVCC12]])
def test_other_major_or_none_takes_the_pinned_packages(machine):
    chosen = config.choose_toolkit(CUDA13, machine)
    assert (chosen.kind, chosen.nvcc, chosen.cuda) == ("pypi", None, True)
    assert len(chosen.requirements) == 5
    assert all(r.endswith("==13.2.*") for r in chosen.requirements)
    assert all(n.release in chosen.reason for n in machine)


@pytest.mark.parametrize("torch_, why", [(CPU, "without CUDA"), (ROCM, "for ROCm")])
def test_torch_without_cuda_builds_for_the_cpu_and_says_so(torch_, why):
    chosen = config.choose_toolkit(torch_, [NVCC13])
    assert not chosen.cuda
    assert why in chosen.reason and chosen.reason.startswith("CPU only")
    with pytest.raises(config.BuildError, match=why):
        config.choose_toolkit(torch_, [NVCC13], force="1")


def test_forced_choices():
    assert not config.choose_toolkit(CUDA13, [NVCC13], force="0").cuda
    assert config.choose_toolkit(CUDA13, [NVCC13], force="1").nvcc == NVCC13
    assert config.choose_toolkit(CUDA13, [NVCC13], source="pypi").kind == "pypi"
    assert "nvidia-cuda-nvcc==13.0.*" in config.choose_toolkit(CUDA12, [], "", "13.0").requirements
    with pytest.raises(config.BuildError, match="no nvcc 13"):
        config.choose_toolkit(CUDA13, [NVCC12], source="machine")


@pytest.mark.parametrize("force, source", [("yes", ""), ("", "conda")])
def test_unknown_forced_choices_are_refused(force, source):
    with pytest.raises(config.BuildError, match="accepted are"):
        config.choose_toolkit(CUDA13, [NVCC13], force, source)


def test_cuda_12_without_its_toolkit_names_the_ways_out():
    with pytest.raises(config.BuildError) as caught:
        config.choose_toolkit(CUDA12, [NVCC13])
    text = str(caught.value)
    assert "12.8" in text and "13.0.88" in text
    assert "TORCH_SGEMM_TOOLKIT=13.0" in text and "TORCH_SGEMM_CUDA=0" in text


# --- architectures ---


@pytest.mark.parametrize(
    "text, archs",
    [
        ("9.0a", ["90a"]),
        ("9.0a;8.0+PTX", ["90a", "80", "80-virtual"]),
        ("8.0 8.6, 12.0", ["80", "86", "120"]),
        ("8.0;8.0+PTX", ["80", "80-virtual"]),
    ],
)
def test_arch_list(text, archs):
    assert config.parse_arch_list(text) == archs


@pytest.mark.parametrize("text", ["Hopper", "90", "9.0x", "8.0+ptx", "8.0;;9", "native;8.0"])
def test_bad_arch_list_is_refused(text):
    with pytest.raises(config.BuildError, match="TORCH_CUDA_ARCH_LIST"):
        config.parse_arch_list(text)


@pytest.mark.parametrize(
    "supported, arch_list, cmake",
    [
        (SUPPORTED, "", "80;86;89;90;100;120;120-virtual;90a"),
        (["75", "80", "86", "89", "90"], "", "80;86;89;90;90-virtual;90a"),
        (SUPPORTED, "9.0a", "90a"),
        (SUPPORTED, "9.0", "90;90a"),
        (SUPPORTED, "9.0;9.0a", "90;90a"),
        (SUPPORTED, "9.0a;8.0+PTX", "90a;80;80-virtual"),
        (SUPPORTED, "8.0+PTX", "80;80-virtual"),
        (SUPPORTED, "7.0 8.0", "80"),
    ],
)
def test_architectures(supported, arch_list, cmake):
    for capabilities in ([], ["12.0"]):
        assert config.choose_archs(supported, arch_list, capabilities).cmake_list() == cmake


EVERY = "80;86;89;90;100;120;120-virtual;90a"


@pytest.mark.parametrize(
    "capabilities, cmake",
    [
        ([], "80;90a"),
        (["9.0"] * 8, "90a"),
        (["8.0"], "80"),
        (["12.0", "8.9"], "120;89"),
        (["8.6", "9.0"], "86;90a"),
        (["7.5"], EVERY),  # before 8.0 there is no code
        (["9.0", "13.0"], EVERY),  # later than the toolkit: PTX
    ],
)
def test_native_architectures(capabilities, cmake):
    assert config.choose_archs(SUPPORTED, "native", capabilities).cmake_list() == cmake


def test_dropped_architectures_are_named():
    assert config.choose_archs(SUPPORTED, "7.0 8.0").dropped == ("70",)
    with pytest.raises(config.BuildError, match="none of the architectures 70"):
        config.choose_archs(SUPPORTED, "7.0")


# --- jobs, names, messages ---


@pytest.mark.parametrize(
    "cores, gib, max_jobs, count",
    [
        (2, 24.0, "", 2),
        (16, 24.0, "", 8),
        (16, 2.0, "", 1),
        (16, None, "", 16),
        (0, 24.0, "", 1),
        (16, 2.0, "5", 5),
    ],
)
def test_jobs(cores, gib, max_jobs, count):
    assert config.choose_jobs(cores, gib, max_jobs).count == count


def test_jobs_reasons():
    assert "fewer than the 16 cores: 6.5 GiB" in config.choose_jobs(16, 6.5).reason
    for bad in ("0", "-1", "many"):
        with pytest.raises(config.BuildError, match="MAX_JOBS"):
            config.choose_jobs(4, 16.0, bad)


@pytest.mark.parametrize("jobs, files, threads", [(2, 2, 1), (16, 2, 8), (1, 5, 1), (4, 0, 4)])
def test_nvcc_threads(jobs, files, threads):
    assert config.nvcc_threads(jobs, files) == threads


def test_machine_is_measured():
    assert 1 <= env.cores() <= (os.cpu_count() or 1)
    gib = env.available_gib()
    assert gib is None or gib > 0


def test_missing_compiler_names_the_packages(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(config.BuildError, match="apt install g\\+\\+"):
        env.find_compiler()


def test_a_compiler_of_several_words_is_refused(monkeypatch):
    monkeypatch.setenv("CXX", "ccache g++")
    with pytest.raises(config.BuildError, match="CXX is 'ccache g\\+\\+'; accepted: one program"):
        env.find_compiler()


@pytest.mark.parametrize("platform", ["linux-x86_64", "linux_aarch64"])
def test_wheel_tag(platform):
    assert config.wheel_tag(platform) == ("py3", "none", platform.replace("-", "_"))


def test_torch_is_a_build_requirement_only_where_there_is_none(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    backend = pytest.importorskip("build_backend", reason="setuptools isn't installed")
    monkeypatch.setattr(env, "find_torch", lambda: CUDA13)
    assert backend._torch() == []
    monkeypatch.setattr(env, "find_torch", lambda: None)
    assert backend._torch() == ["torch>=2.10"]


# --- the library that is loaded ---


@pytest.fixture(scope="module")
def info():
    return json.loads((PACKAGE / "build_info.json").read_text())


def test_build_info_is_the_loaded_library_s(info):
    assert info["library_digest"] == build_library.file_digest(PACKAGE / build_library.LIBRARY)
    maps = Path("/proc/self/maps").read_text()
    assert str(PACKAGE / build_library.LIBRARY) in maps
    on_gpu = [k.name for k in torch_sgemm.kernels() if k.family and "cuda" in k.devices]
    assert info["cuda"] == bool(on_gpu)


def test_library_is_built_from_the_present_sources(info):
    present = build_library.compiled_digest()
    assert info["compiled_digest"] == present, "sources changed: run make build"


def test_records_and_builds_name_the_same_sources(info):
    """A user can see which tables were measured on the installed sources."""
    assert build_library.csrc_digest is record.csrc_digest
    assert re.fullmatch("[0-9a-f]{64}", info["csrc_digest"])
    shown = package_info.report(package_info.collect())
    assert f"\ncsrc          {info['csrc_digest'][:12]}\n" in shown


def test_compiled_digest_is_of_what_is_compiled(tmp_path):
    (tmp_path / "csrc").mkdir()
    for name in ("csrc/a.cu", "csrc/README.md", "CMakeLists.txt"):
        (tmp_path / name).write_text("1")
    first = build_library.compiled_digest(tmp_path)
    (tmp_path / "csrc" / "README.md").write_text("2")
    assert build_library.compiled_digest(tmp_path) == first
    (tmp_path / "CMakeLists.txt").write_text("2")
    assert build_library.compiled_digest(tmp_path) != first


def test_one_build_of_a_tree_waits_for_another(tmp_path, capsys):
    order = []

    def build_too():
        with build_library.alone_in(tmp_path / "tree"):
            order.append("second")

    with build_library.alone_in(tmp_path / "tree"), build_library.alone_in(tmp_path / "other"):
        other = threading.Thread(target=build_too)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]
    assert "waiting for another build in" in capsys.readouterr().out


def test_build_info_is_complete(info):
    assert info["cuda"] == (info["toolkit"]["kind"] != "none") == bool(info["architectures"])
    assert info["version"] == torch_sgemm.__version__
    assert config.version_tuple(info["torch"]) >= config.TORCH_FLOOR
    assert info["reason"] and info["compiler"] and info["date"] and info["jobs"] >= 1
    assert str(Path.home()) not in json.dumps(info) and str(ROOT) not in json.dumps(info)


def test_library_depends_on_no_python_and_no_cuda_library():
    readelf = shutil.which("readelf")
    if not readelf:
        pytest.skip("readelf (binutils) isn't installed")
    listing = subprocess.run(
        [readelf, "-d", PACKAGE / build_library.LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in listing.splitlines() if "NEEDED" in line]
    assert "libtorch_cpu.so" in needed
    assert not [n for n in needed if any(w in n for w in ("python", "cuda", "cublas", "c10"))]
    assert "RPATH" not in listing and "RUNPATH" not in listing


def test_info_runs():
    command = [sys.executable, "-m", "torch_sgemm.info"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, check=True, env=environment
    )
    answer = json.loads(found.stdout)
    assert [k["name"] for k in answer["kernels"]] == [k.name for k in torch_sgemm.kernels()]
    assert len(answer["gpus"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert all(k.name in text.stdout for k in torch_sgemm.kernels())
    assert torch.__version__ in text.stdout and answer["build"]["reason"] in text.stdout


def test_info_lists_every_variable_that_is_read():
    places = ("csrc", "torch_sgemm", "torch_sgemm_autoload", "tools")
    found = [path for place in places for path in (ROOT / place).rglob("*")]
    files = [path for path in found if path.suffix in (".py", ".cpp", ".h", ".cu")]
    reads = re.compile(r"(?:getenv\(|environ\.get\(|environ\[)\"(TORCH_SGEMM\w*|MAX_JOBS)\"")
    names = {name for path in files for name in reads.findall(path.read_text(encoding="utf-8"))}
    assert len(names) > 6
    assert names <= set(package_info.ENVIRONMENT)
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert not [name for name in package_info.ENVIRONMENT if f"`{name}=" not in page]


# --- the operators' namespace ---


def test_the_operators_namespace(info):
    assert config.check_namespace("") == config.NAMESPACE == "sgemm"
    assert config.check_namespace("_sgemm_1a") == "_sgemm_1a"
    assert info["namespace"] == torch_sgemm.torch_ops.library.NAMESPACE
    assert torch_sgemm.ops.operators.mm is getattr(torch.ops, info["namespace"]).mm


@pytest.mark.parametrize("name", ["1a", "a-b", "a::b", "a b", "aten", "prims"])
def test_a_namespace_that_is_no_identifier_or_is_pytorchs(name):
    with pytest.raises(config.BuildError, match="TORCH_SGEMM_NAMESPACE.*accepted are unset"):
        config.check_namespace(name)


def test_no_file_of_the_package_writes_the_namespace():
    """Docstrings and messages for reading aside, each takes it from library.py."""
    written = re.compile(r"ops\.sgemm\b|[\"']sgemm(?:::|[\"'])")
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
                node.body = node.body[ast.get_docstring(node) is not None :]
        if path.name != "library.py":
            assert not written.search(ast.unparse(tree)), path.name


# --- the wheel ---


def test_wheel_has_the_library_and_one_tag_for_every_python(tmp_path):
    """setuptools packs the right files under the right name."""
    pytest.importorskip("setuptools.command.bdist_wheel", reason="needs setuptools 77 or later")
    shutil.copytree(
        ROOT, tmp_path / "source",
        ignore=shutil.ignore_patterns(".git", ".venv", "build", "results", "*.so"),
    )  # fmt: skip
    source = tmp_path / "source"
    # The compiled library is tested above; here a stand-in keeps CMake out of the packing.
    (source / "tools" / "build_library.py").write_text(
        "LIBRARY, INFO = 'libtorch_sgemm.so', 'build_info.json'\n"
        "def build(destinations, version):\n"
        "    for d in destinations:\n"
        "        d.mkdir(parents=True, exist_ok=True)\n"
        "        (d / LIBRARY).write_bytes(b'library')\n"
        "        (d / INFO).write_text('{}')\n"
    )
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", str(tmp_path)],
        cwd=source, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"torch_sgemm-{torch_sgemm.__version__}-py3-none-linux_")
    names = zipfile.ZipFile(wheel).namelist()
    for file in ("libtorch_sgemm.so", "build_info.json", "info.py", "choice/table.py"):
        assert f"torch_sgemm/{file}" in names
    assert not [n for n in names if n.startswith(("tests", "benchmarks", "tools", "csrc"))]


# --- the disassembler's reading ---

LISTING = """
\t\tFunction : _Z1kv
        /*0000*/                   MOV R1, c[0x0][0x28] ;    /* 0x00000a0000017a02 */
        /*0010*/                   LDG.E R2, [R4.64] ;
        /*0020*/              @!P0 BRA 0x10 ;
        /*0030*/                   LDS.128 R8, [R3] ;
        /*0040*/                   FFMA R5, R8, R9, R5 ;
        /*0050*/                   FFMA R6, R8, R10, R6 ;
        /*0060*/               @P1 BRA 0x10 ;
        /*0070*/                   EXIT ;
        /*0080*/                   BRA 0x80 ;
"""


def test_hottest_loop_leaves_out_the_loops_inside_it(monkeypatch):
    done = subprocess.CompletedProcess([], 0, LISTING, "")
    monkeypatch.setattr(sass, "find_cuobjdump", lambda: "cuobjdump")
    monkeypatch.setattr(sass.subprocess, "run", lambda *_, **__: done)
    body = sass.disassemble(Path("library"), "sm_90")["_Z1kv"]
    assert len(body) == 9
    assert len(sass.loops(body)) == 2
    assert sass.count(sass.hottest(body)) == {"FFMA": 2, "LDS.128": 1, "BRA": 1}


def test_every_row_of_the_table_source_is_found():
    """Rows that run a kernel of ours are paired with a template, which names the symbol."""
    found = kernel_symbols.templates(kernel_symbols.TABLE.read_text())
    ours = [k.name for k in torch_sgemm.kernels() if k.family not in ("", "reference")]
    assert set(ours) <= set(found)
    pattern = kernel_symbols.symbol_pattern("x_32", 'row<SharedTile<32, 8>>("x_32", 1)')
    assert pattern == r"\b(?:SharedTile|shared_tile)<(?:\w+::)*32,8[>(,]"
    pattern = kernel_symbols.symbol_pattern("x", 'row<shared_tile::Rung<32>>("x", 1)')
    symbol = "void shared_tile::kernel<shared_tile::Rung<32>>(Problem)"
    assert re.search(pattern, symbol) and not re.search(pattern, symbol.replace("shared", "padded"))
