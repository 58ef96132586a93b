"""Inspects the machine for the build: torch, nvcc, compiler, cores, memory. Decides nothing."""

from __future__ import annotations

import ast
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from build_config import CMAKE_FLOOR, BuildError, Nvcc, Torch, no_compiler, no_tool, version_tuple


def output_of(*command: str | Path) -> str:
    """Returns a program's output, or "" if it can't be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# --- torch -----------------------------------------------------------------------------------


def site_directories() -> list[Path]:
    """Returns this environment's package directories.

    pip's build isolation takes the environment's own packages off sys.path, but the interpreter
    still knows where they are. Other front ends build in an environment of their own, and leave the
    activated one in VIRTUAL_ENV.
    """
    found: list[str] = [p for p in sys.path if p]
    found += [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    venv = os.environ.get("VIRTUAL_ENV")
    if venv:
        found += map(str, sorted(Path(venv).glob("lib/python3*/site-packages")))
    return [Path(p) for p in dict.fromkeys(found)]


def read_torch(root: Path) -> Torch | None:
    """Reads torch's version.py without importing torch (isolation hides what it needs)."""
    try:
        tree = ast.parse((root / "version.py").read_text())
    except (OSError, SyntaxError):
        return None
    values: dict[str, str | None] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant):
            values[target.id] = node.value.value
    version = values.get("__version__")
    if not version:
        return None
    return Torch(version, values.get("cuda"), values.get("hip"), str(root))


def find_torch(directories: Iterable[Path] | None = None) -> Torch | None:
    """Returns the first torch on this environment's path, or None."""
    for directory in site_directories() if directories is None else directories:
        torch = read_torch(directory / "torch")
        if torch:
            return torch
    return None


# --- compilers and tools ---------------------------------------------------------------------


def find_compiler() -> str:
    """Returns the host C++ compiler: CXX if set, else the first of the usual names."""
    chosen = os.environ.get("CXX", "").split()
    if len(chosen) > 1:
        raise BuildError(
            f"CXX is {' '.join(chosen)!r}; accepted: one program; a launcher such as ccache is "
            "named by CMAKE_CXX_COMPILER_LAUNCHER"
        )
    for name in chosen or ("c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return path
    raise no_compiler()


def compiler_name(path: str) -> str:
    """Returns the first line of --version, e.g. "g++ (Debian 12.2.0-14) 12.2.0"."""
    lines = output_of(path, "--version").splitlines()
    return lines[0] if lines else Path(path).name


def find_nvcc() -> list[Nvcc]:
    """Returns every nvcc on the machine, the one that CUDA_HOME or PATH names first."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    paths = [Path(home) / "bin" / "nvcc" for home in homes if home]
    on_path = shutil.which("nvcc")
    if on_path:
        paths.append(Path(on_path))
    paths.append(Path("/usr/local/cuda/bin/nvcc"))
    paths += sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"), reverse=True)
    found = []
    for path in dict.fromkeys(paths):
        release = re.search(r"V(\d+\.\d+\.\d+)", output_of(path, "--version"))
        if release:
            found.append(Nvcc(str(path), release[1]))
    return found


def supported_archs(nvcc: Nvcc) -> list[str]:
    """Returns the architectures of this nvcc: ["75", "80", ...]."""
    return re.findall(r"compute_(\d+)\b", output_of(nvcc.path, "--list-gpu-arch"))


def capabilities() -> list[str]:
    """Returns the compute capabilities of this machine's GPUs: ["9.0", "9.0"]."""
    answer = output_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    return re.findall(r"^\d+\.\d$", answer, re.MULTILINE)


def find_tool(name: str) -> str:
    """Finds cmake or ninja on PATH, or beside this Python if its environment isn't activated.

    Under build isolation a script of a hidden environment is on PATH but can't run. So each
    candidate is asked for its version.
    """
    candidates = [
        Path(directory) / name
        for directory in [
            *os.environ.get("PATH", "").split(os.pathsep),
            str(Path(sys.executable).parent),
            sysconfig.get_path("scripts"),
        ]
    ]
    floor = CMAKE_FLOOR if name == "cmake" else (1, 0)
    for path in dict.fromkeys(candidates):
        version = re.search(r"\d+\.\d+", output_of(path, "--version") if path.is_file() else "")
        if version and version_tuple(version[0]) >= floor:
            return str(path)
    raise no_tool(name, ".".join(map(str, floor)) if name == "cmake" else "")


def install_toolkit(requirements: tuple[str, ...], target: Path) -> Nvcc:
    """Returns nvcc from PyPI in `target`, and installs it if it isn't there already."""
    if not list(target.glob("nvidia/*/bin/nvcc")):
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        # The isolated build's PYTHONPATH would hide pip from its own interpreter.
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        tail = ["install", "--no-deps", "--target", str(partial), *requirements]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *tail]
        if subprocess.run([sys.executable, "-m", "pip", "--version"], env=env,
                          capture_output=True).returncode:  # fmt: skip
            uv = shutil.which("uv")
            if not uv:
                raise BuildError(
                    f"the CUDA toolkit has to be fetched from PyPI, but {sys.executable} has no "
                    "pip:\n    python -m ensurepip"
                )
            pip = [uv, "pip", "install", "--python", sys.executable, *tail[1:]]
        if subprocess.run(pip, env=env).returncode:
            raise BuildError(
                "the CUDA toolkit could not be installed from PyPI (pip's message is above):\n"
                f"    {' '.join(requirements)}\n"
                "A CUDA toolkit on this machine whose major version is torch's is used as it is; "
                "TORCH_SGEMM_CUDA=0 builds without CUDA kernels."
            )
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    for path in target.glob("nvidia/*/bin/nvcc"):
        release = re.search(r"V(\d+\.\d+\.\d+)", output_of(path, "--version"))
        if release:
            return Nvcc(str(path), release[1])
    raise BuildError(f"the toolkit from PyPI has no working nvcc: {' '.join(requirements)}")


# --- cores and memory --------------------------------------------------------------------------


def cores() -> int:
    """Returns the cores that this process may use, a container's CPU quota counted."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def available_gib() -> float | None:
    """Returns the available memory, a container's limit counted; None if it is unknown."""
    found: list[float] = []
    try:
        free = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        if free:
            found.append(int(free[1]) / 2**20)
    except OSError:
        pass
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            stat = (group / "memory.stat").read_text()
            cache = re.search(r"^inactive_file (\d+)", stat, re.M)
            used = int((group / "memory.current").read_text()) - int(cache[1] if cache else 0)
            found.append((int(limit) - used) / 2**30)
    except (OSError, ValueError):
        pass
    return min(found) if found else None
