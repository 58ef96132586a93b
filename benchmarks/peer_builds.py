"""Builds other libraries' products from checkouts of their sources, and loads them.

``--sources DIR`` has a folder for each, named as its repository. The library that is built from it
is kept there, as DIR/libpeer_NAME.so, and isn't built again.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

OWN = Path(__file__).parent / "peer_libraries"
SEARCH_ROUNDS = 3  # calls of each variant, to find the fastest


class UnavailableError(Exception):
    """The reason why a way isn't measured."""


@dataclass(frozen=True)
class Source:
    """A repository, its files and include folders, and nvcc's flags.

    ``shim``: a file of peer_libraries that calls it with the arguments of ``peer_mm``.
    """

    repository: str
    include: tuple[str, ...]
    files: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("-std=c++17",)
    shim: bool = True
    torch: bool = False  # the files use PyTorch's headers


CUMPSGEMM = ("cumpsgemm", "handle", "dynamic_launch", "dynamic_scaling", "exp_stats", "culip",
             "default_cumpsgemm_rule", "instance_sm80", "instance_sm86")  # fmt: skip
SOURCES = {
    "cutlass": Source("NVIDIA/cutlass", ("include",)),
    "gemmul8": Source(
        "RIKEN-RCCS/GEMMul8",
        ("GEMMul8/include", "GEMMul8/src"),
        flags=("-std=c++20", "-lcublas", "-lcublasLt"),
    ),
    "cumpsgemm": Source(
        "enp1s0/cuMpSGEMM",
        ("include", *(f"submodules/{x}/include" for x in ("cutf", "wmma_extension"))),
        tuple(f"src/{name}.cu" for name in CUMPSGEMM),
        ("-std=c++17", "-lcublas"),
    ),
    "hpc_ops": Source(
        "Tencent/hpc-ops",
        (".", "3rd/cutlass/include"),
        ("src/gemm/sm90/gemm_bf16xfp32.cu", "src/gemm/sm90/entry.cc", "src/utils/utils.cc"),
        ("-std=c++17", "--expt-relaxed-constexpr", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED",
         "-DNDEBUG", "-lcuda"),
        shim=False,
        torch=True,
    ),
}  # fmt: skip


def library(name: str, folder: Path | None) -> Path:
    """Returns the library's path in ``folder``; builds it if it isn't there.

    Raises:
        UnavailableError: there are no sources, no nvcc, or it doesn't compile.
    """
    source = SOURCES[name]
    if folder is None:
        raise UnavailableError(f"--sources DIR with a checkout of {source.repository} is needed")
    built = folder / f"libpeer_{name}.so"
    if built.exists():
        return built
    root = folder / source.repository.split("/")[1]
    if not root.is_dir():
        raise UnavailableError(f"no sources of {source.repository} in --sources")
    command = compile_command(name, root, built)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line or "fatal" in line]
        raise UnavailableError(f"nvcc: {(lines or ['failed'])[0][:200]}")
    return built


def compile_command(name: str, root: Path, built: Path) -> list[str]:
    """Returns nvcc's command for the sources in ``root``."""
    source, nvcc = SOURCES[name], shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        raise UnavailableError("no nvcc to build it with")
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    arch = f"{major}{minor}{'a' if major >= 9 else ''}"
    folders = [str(root / path) for path in source.include]
    linked = []
    if source.torch:
        from torch.utils import cpp_extension  # which looks for a toolkit when it is imported

        folders += [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
        linked = [f"-L{Path(torch.__file__).parent / 'lib'}"]
        linked += [f"-l{name}" for name in ("c10", "torch", "torch_cpu", "c10_cuda", "torch_cuda")]
    files = [str(root / path) for path in source.files]
    if source.shim:
        files.append(str(OWN / f"{name}.cu"))
    return [
        nvcc, "-shared", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-cudart=shared",
        "-Xcompiler=-fPIC", "-diag-suppress=177", *(f"-I{path}" for path in folders),
        *source.flags, *files, *linked, "-o", str(built),
    ]  # fmt: skip


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(path))
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    loaded.peer_mm.argtypes = [*[pointer] * 3, *[size] * 3, ctypes.c_int, pointer]
    return loaded


def product(name: str, folder: Path | None) -> Callable[[Tensor, Tensor, Tensor], None]:
    """Returns f(a, b, out) for row-major matrices; it takes the variant that is fastest there.

    Raises:
        UnavailableError: the library can't be built or loaded.
    """
    path = library(name, folder)
    try:
        loaded = _load(path)
    except OSError as failure:
        raise UnavailableError(str(failure)) from None
    fastest: dict[tuple[int, int, int], int] = {}

    def call(a: Tensor, b: Tensor, out: Tensor, variant: int) -> int:
        m, k = a.shape
        stream = torch.cuda.current_stream(a.device).cuda_stream
        at = (x.data_ptr() for x in (a, b, out))
        return loaded.peer_mm(*at, m, b.shape[1], k, variant, stream)

    def mm(a: Tensor, b: Tensor, out: Tensor) -> None:
        if not (a.is_contiguous() and b.is_contiguous() and out.is_contiguous()):
            raise RuntimeError("accepted: row-major matrices")
        key = (*a.shape, b.shape[1])
        if key not in fastest:  # the first call, which no graph captures
            fastest[key] = _fastest(loaded.peer_variants(), lambda i: call(a, b, out, i))
        if status := call(a, b, out, fastest[key]):
            raise RuntimeError(f"{path.name}: peer_mm returned {status}")

    return mm


def _fastest(variants: int, call: Callable[[int], int]) -> int:
    """Returns the variant that takes the least time; raises RuntimeError if none runs."""
    times = {}
    for i in range(variants):
        if call(i):
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(SEARCH_ROUNDS):
            call(i)
        end.record()
        end.synchronize()
        times[i] = begin.elapsed_time(end)
    if not times:
        raise RuntimeError("peer_mm: no variant runs")
    return min(times, key=times.__getitem__)
