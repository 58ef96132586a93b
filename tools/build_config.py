"""The build's decisions, as pure functions: no probing, no printing, no files.

`build_env` inspects the machine and passes its findings to these functions; setup.py and
tests/project/test_build.py use the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

TORCH_FLOOR = (2, 10)
CMAKE_FLOOR = (3, 24)
PORTABLE_ARCHS = ("80", "86", "89", "90", "100", "120")
HOPPER_ARCH = "90a"  # csrc/*/*_sm90a.cu uses instructions of this architecture alone
NATIVE = "native"  # in TORCH_CUDA_ARCH_LIST: this machine's GPUs
WITHOUT_GPU = ("80", HOPPER_ARCH)  # what a native build compiles where there is no GPU to run it
GIB_PER_JOB = 3.0  # most memory of one nvcc process over the kernel table
PYPI_CUDA_FLOOR = 13  # the CUDA 12 packages on PyPI carry ptxas, but no nvcc
PYPI_TOOLKIT = (
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
    "nvidia-cuda-cccl",
    "nvidia-cuda-runtime",
)


class BuildError(SystemExit):
    """A build that can't continue. The user sees only its text, without a traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\ntorch_sgemm: {text}\n")


def version_tuple(text: str) -> tuple[int, int]:
    """Returns (major, minor) of a version, "13.2", "2.15.0+cu132" or "2.11.0a0+git1234"."""
    found = re.match(r"\s*v?(\d+)(?:\.(\d+))?", text)
    if not found:
        raise ValueError(f"not a version: {text!r}")
    return int(found[1]), int(found[2] or 0)


# --- torch ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Torch:
    """The contents of torch/version.py, and the location of that torch."""

    version: str
    cuda: str | None
    hip: str | None
    root: str


def check_torch(torch: Torch | None, environment: str) -> Torch:
    """Returns the torch to build against, or raises a BuildError that says what to install."""
    wanted = ".".join(map(str, TORCH_FLOOR))
    if torch is None:
        raise BuildError(
            f"no torch is installed in {environment}. Install one first\n"
            f"    python -m pip install 'torch>={wanted}'\n"
            "or leave out --no-build-isolation: the build then fetches one by itself."
        )
    if version_tuple(torch.version) < TORCH_FLOOR:
        raise BuildError(
            f"torch {torch.version} is installed in {environment}, but torch >= {wanted} is "
            "needed (the first with the stable ABI used here).\n"
            f"    python -m pip install --upgrade 'torch>={wanted}'"
        )
    return torch


# --- CUDA or not, and with which toolkit -----------------------------------------------------


@dataclass(frozen=True)
class Nvcc:
    """An nvcc found on the machine; release as it prints it, e.g. "13.0.88"."""

    path: str
    release: str


@dataclass(frozen=True)
class Toolkit:
    """The decision to build CUDA kernels or not, its reason, and the toolkit.

    kind: "machine" (nvcc is set), "pypi" (requirements is set) or "none" (CPU only).
    """

    kind: str
    reason: str
    nvcc: Nvcc | None = None
    requirements: tuple[str, ...] = ()

    @property
    def cuda(self) -> bool:
        return self.kind != "none"


def choose_toolkit(
    torch: Torch, machine: Sequence[Nvcc], force: str = "", source: str = ""
) -> Toolkit:
    """Chooses CUDA or CPU only by torch's own build, never by the GPUs in sight.

    machine: the nvcc programs found, the preferred one first.
    force:   TORCH_SGEMM_CUDA: "" (torch decides), "0" or "1".
    source:  TORCH_SGEMM_TOOLKIT: "" (the machine's if it fits, else PyPI's), "machine", "pypi",
             or a version such as "13.0" to fetch from PyPI, for any CUDA version of torch.
    """
    if force not in ("", "0", "1"):
        raise BuildError(f"TORCH_SGEMM_CUDA={force!r}: accepted are 0, 1 and unset.")
    if force == "0":
        return Toolkit("none", "CPU only: TORCH_SGEMM_CUDA=0")
    if not torch.cuda:
        why = f"torch {torch.version} is built " + ("for ROCm" if torch.hip else "without CUDA")
        if force == "1":
            raise BuildError(
                f"TORCH_SGEMM_CUDA=1 asks for CUDA kernels, but {why}. Install a CUDA torch, "
                "or unset TORCH_SGEMM_CUDA."
            )
        return Toolkit("none", f"CPU only: {why}")

    if re.fullmatch(r"\d+\.\d+", source):
        return _pypi(source, f"TORCH_SGEMM_TOOLKIT={source}")
    if source not in ("", "machine", "pypi"):
        raise BuildError(
            f"TORCH_SGEMM_TOOLKIT={source!r}: accepted are machine, pypi, a version such as "
            "13.0, and unset."
        )
    major = version_tuple(torch.cuda)[0]
    fits = [n for n in machine if version_tuple(n.release)[0] == major]
    seen = ", ".join(dict.fromkeys(n.release for n in machine)) or "none"
    if fits and source != "pypi":
        return Toolkit(
            "machine", f"nvcc {fits[0].release} of this machine fits torch's CUDA {torch.cuda}",
            nvcc=fits[0],
        )  # fmt: skip
    if source == "machine":
        raise BuildError(
            f"TORCH_SGEMM_TOOLKIT=machine, but no nvcc {major}.x is on this machine "
            f"(found: {seen}); torch {torch.version} is built for CUDA {torch.cuda}."
        )
    return _pypi(
        torch.cuda,
        "TORCH_SGEMM_TOOLKIT=pypi" if source == "pypi"
        else f"torch is built for CUDA {torch.cuda}, nvcc on this machine: {seen}",
    )  # fmt: skip


def _pypi(cuda: str, why: str) -> Toolkit:
    major, minor = version_tuple(cuda)
    if major < PYPI_CUDA_FLOOR:
        raise BuildError(
            f"no nvcc {major}.x was found ({why}), and PyPI has none before CUDA "
            f"{PYPI_CUDA_FLOOR}. One of these helps:\n"
            f"    a torch for CUDA {PYPI_CUDA_FLOOR} or later;\n"
            f"    a CUDA {major} toolkit on this machine (CUDA_HOME, or nvcc on PATH);\n"
            f"    TORCH_SGEMM_TOOLKIT={PYPI_CUDA_FLOOR}.0: nvcc {PYPI_CUDA_FLOOR} from PyPI; the "
            "kernels then need a driver for CUDA 13 (580 or later);\n"
            "    TORCH_SGEMM_CUDA=0: no CUDA kernels."
        )
    return Toolkit(
        "pypi", f"nvcc {major}.{minor} from PyPI: {why}",
        requirements=tuple(f"{name}=={major}.{minor}.*" for name in PYPI_TOOLKIT),
    )  # fmt: skip


# --- architectures ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Archs:
    """portable: for every .cu file ("90", "120-virtual"); hopper: build *_sm90a.cu too."""

    portable: tuple[str, ...]
    hopper: bool
    dropped: tuple[str, ...] = ()

    def cmake_list(self) -> str:
        extra = (HOPPER_ARCH,) if self.hopper and HOPPER_ARCH not in self.portable else ()
        return ";".join(self.portable + extra)


def parse_arch_list(text: str) -> list[str]:
    """Maps TORCH_CUDA_ARCH_LIST to CMake names: "9.0a;8.0+PTX" is ["90a", "80", "80-virtual"]."""
    archs: list[str] = []
    for item in re.split(r"[;,\s]+", text.strip()):
        found = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", item)
        if not found:
            raise BuildError(
                f"TORCH_CUDA_ARCH_LIST={text!r}: {item!r} isn't of the form 8.0, 9.0a or "
                "12.0+PTX (separated by ; or spaces), and the whole isn't native."
            )
        name = found[1] + found[2] + found[3]
        archs += [name, f"{name}-virtual"] if found[4] else [name]
    return list(dict.fromkeys(archs))


def native_archs(supported: Sequence[str], capabilities: Sequence[str]) -> list[str]:
    """Returns the architectures of GPUs with these compute capabilities ("9.0").

    The list is empty if the toolkit, or this library, has no code of its own for one of them.
    """
    archs = [c.replace(".", "") for c in dict.fromkeys(capabilities)]
    if any(a not in supported or int(a) < int(PORTABLE_ARCHS[0]) for a in archs):
        return []
    return [HOPPER_ARCH if a == _base(HOPPER_ARCH) else a for a in archs] or list(WITHOUT_GPU)


def choose_archs(
    supported: Sequence[str], arch_list: str = "", capabilities: Sequence[str] = ()
) -> Archs:
    """Returns the architectures to build for.

    supported: architectures of the toolkit, as nvcc --list-gpu-arch prints them ("80", "90", ...).
    arch_list: TORCH_CUDA_ARCH_LIST; "native" for this machine's GPUs, of these compute
        ``capabilities``; "" for all portable ones and PTX of the newest.
    """
    native = native_archs(supported, capabilities) if arch_list.strip() == NATIVE else []
    if native:
        wanted = native
    elif arch_list.strip() not in ("", NATIVE):
        wanted = parse_arch_list(arch_list)
    else:
        known = [a for a in PORTABLE_ARCHS if a in supported]
        wanted = [*known, f"{known[-1]}-virtual"] if known else list(PORTABLE_ARCHS)
    kept = [a for a in wanted if _base(a) in supported]
    if not kept:
        raise BuildError(
            f"this toolkit supports none of the architectures {' '.join(wanted)}; "
            f"it supports {' '.join(supported)}."
        )
    plain = {a for a in kept if a == _base(a)}
    # A lone a-architecture means its whole GPU: portable files are built for it too.
    portable = tuple(
        a for a in kept if not _specific(a) or (_base(a) not in plain and "-" not in a)
    )
    hopper = "90" in (_base(a) for a in kept if "-" not in a)
    return Archs(portable, hopper, tuple(a for a in wanted if a not in kept))


def _base(arch: str) -> str:
    return arch.split("-")[0].rstrip("af")


def _specific(arch: str) -> bool:
    return arch.split("-")[0][-1] in "af"


# --- the operators' namespace -----------------------------------------------------------------

NAMESPACE = "sgemm"  # unless TORCH_SGEMM_NAMESPACE names another
PYTORCHS = ("aten", "prim", "prims")


def check_namespace(text: str) -> str:
    """Returns the operators' namespace in torch.ops, from TORCH_SGEMM_NAMESPACE."""
    name = text or NAMESPACE
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in PYTORCHS:
        raise BuildError(
            f"TORCH_SGEMM_NAMESPACE={text!r}: accepted are unset ({NAMESPACE}), and letters, "
            f"digits and underscores that begin with no digit, but for {', '.join(PYTORCHS)}."
        )
    return name


# --- jobs, compiler, names ---------------------------------------------------------------------


@dataclass(frozen=True)
class Jobs:
    count: int
    reason: str


def choose_jobs(cores: int, available_gib: float | None, max_jobs: str = "") -> Jobs:
    """Returns the number of concurrent compilers; available_gib is None if it is unknown."""
    if max_jobs:
        if not max_jobs.isdigit() or int(max_jobs) < 1:
            raise BuildError(f"MAX_JOBS={max_jobs!r}: a whole number from 1 is accepted.")
        return Jobs(int(max_jobs), f"MAX_JOBS={max_jobs}")
    cores = max(1, cores)
    if available_gib is None:
        return Jobs(cores, f"{cores} cores")
    fit = max(1, int(available_gib / GIB_PER_JOB))
    if fit >= cores:
        return Jobs(cores, f"{cores} cores, {available_gib:.0f} GiB free")
    return Jobs(
        fit, f"fewer than the {cores} cores: {available_gib:.1f} GiB free, {GIB_PER_JOB:g} a job"
    )


def nvcc_threads(jobs: int, cuda_files: int) -> int:
    """Returns nvcc --threads: architectures of a file at once, if files don't fill the jobs."""
    return max(1, jobs // max(1, cuda_files))


def no_compiler() -> BuildError:
    return BuildError(
        "no C++ compiler was found (CXX, c++, g++, clang++). Install one:\n"
        "    Debian, Ubuntu: apt install g++\n"
        "    Fedora, RHEL:   dnf install gcc-c++\n"
        "    Arch:           pacman -S gcc\n"
        "    conda:          conda install gxx_linux-64"
    )


def no_tool(name: str, floor: str = "") -> BuildError:
    return BuildError(
        f"no {name}{floor and ' >= ' + floor} was found. Install it:\n"
        f"    python -m pip install {name}"
    )


def wheel_tag(platform: str) -> tuple[str, str, str]:
    """Returns one tag for every Python: the library has no Python symbols, only a platform."""
    return "py3", "none", re.sub(r"[-. ]", "_", platform.lower())
