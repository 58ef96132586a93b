"""Builds libtorch_sgemm.so with CMake and writes build_info.json beside it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import build_config as config
import build_env as env
from build_digest import ROOT, csrc_digest

LIBRARY = "libtorch_sgemm.so"
INFO = "build_info.json"
SOURCE_SUFFIXES = (".cpp", ".cu", ".cuh", ".h", ".inc")


def say(text: str) -> None:
    print(f"torch_sgemm build: {text}", flush=True)


def compiled_digest(root: Path = ROOT) -> str:
    """Returns a digest of everything that is compiled; a change requires a new build.

    Compiled are csrc/'s sources without its pages, and CMakeLists.txt, unlike in ``csrc_digest``.
    """
    digest = hashlib.sha256()
    sources = [p for p in (root / "csrc").rglob("*") if p.suffix in SOURCE_SUFFIXES]
    for path in sorted([*sources, root / "CMakeLists.txt"]):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def build(destinations: list[Path], version: str, options: dict[str, str] | None = None) -> None:
    """Decides, configures, compiles; puts the library and build_info.json in each destination.

    ``options`` are CMake definitions beside those decided here, for test builds.
    """
    start = time.monotonic()
    torch = config.check_torch(env.find_torch(), f"the environment {env.sys.prefix}")
    say(f"torch {torch.version}, CUDA {torch.cuda or 'none'}")
    compiler = env.find_compiler()
    cmake, ninja = env.find_tool("cmake"), env.find_tool("ninja")
    jobs = config.choose_jobs(env.cores(), env.available_gib(), os.environ.get("MAX_JOBS", ""))
    toolkit = config.choose_toolkit(
        torch, env.find_nvcc(),
        os.environ.get("TORCH_SGEMM_CUDA", ""), os.environ.get("TORCH_SGEMM_TOOLKIT", ""),
    )  # fmt: skip
    say(toolkit.reason)
    namespace = config.check_namespace(os.environ.get("TORCH_SGEMM_NAMESPACE", ""))
    if namespace != config.NAMESPACE:
        say(f"operators in torch.ops.{namespace}")

    nvcc, archs = toolkit.nvcc, None
    if toolkit.cuda:
        if nvcc is None:
            pinned = toolkit.requirements[0].split("==")[1].rstrip(".*")
            nvcc = env.install_toolkit(
                toolkit.requirements, ROOT / "build" / f"cuda-toolkit-{pinned}"
            )
        archs = config.choose_archs(
            env.supported_archs(nvcc),
            os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
            env.capabilities(),
        )
        if archs.dropped:
            say(f"nvcc {nvcc.release} doesn't support {' '.join(archs.dropped)}: left out")
        say(f"architectures {archs.cmake_list().replace(';', ' ')}")
    say(f"compiler {env.compiler_name(compiler)}; {jobs.count} jobs ({jobs.reason})")

    cuda_files = sum(1 for _ in (ROOT / "csrc").rglob("*.cu"))
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "CMAKE_CXX_COMPILER": compiler,
        "SGEMM_TORCH_INCLUDE": ";".join(
            f"{torch.root}/{d}" for d in ("include", "include/torch/csrc/api/include")
        ),
        "SGEMM_TORCH_LIB": f"{torch.root}/lib",
        "SGEMM_WITH_CUDA": "ON" if toolkit.cuda else "OFF",
        "SGEMM_NAMESPACE": namespace,
        **(options or {}),
    }
    if nvcc and archs:
        definitions |= {
            "CMAKE_CUDA_COMPILER": nvcc.path,
            "CMAKE_CUDA_HOST_COMPILER": compiler,
            "SGEMM_CUDA_ARCHS": archs.cmake_list(),
            "SGEMM_NVCC_THREADS": str(config.nvcc_threads(jobs.count, cuda_files)),
        }
    identity = [torch.version, compiler, nvcc and [nvcc.path, nvcc.release, archs.cmake_list()]]
    if options:
        identity.append(options)
    if namespace != config.NAMESPACE:  # the others share a tree: few sources name the operators
        identity.append("another namespace")
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:8]
    tree = ROOT / "build" / f"cmake-{'cuda' + nvcc.release if nvcc else 'cpu'}-{key}"
    with alone_in(tree):
        run([cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja",
             *(f"-D{name}={value}" for name, value in definitions.items())])  # fmt: skip
        run([cmake, "--build", str(tree), "--target", "torch_sgemm", "-j", str(jobs.count)])

        seconds = time.monotonic() - start
        info = {
            "version": version,
            "namespace": namespace,
            "cuda": toolkit.cuda,
            "reason": toolkit.reason,
            "toolkit": {"kind": toolkit.kind, "version": nvcc.release if nvcc else None},
            "architectures": archs.cmake_list().split(";") if archs else [],
            "compiler": env.compiler_name(compiler),
            "torch": torch.version,
            "torch_cuda": torch.cuda,
            "csrc_digest": csrc_digest(),
            "compiled_digest": compiled_digest(),
            "library_digest": file_digest(tree / LIBRARY),
            "jobs": jobs.count,
            "jobs_reason": jobs.reason,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        for directory in destinations:
            directory.mkdir(parents=True, exist_ok=True)
            changed = install(tree / LIBRARY, directory / LIBRARY)
            if changed or not same_account(directory / INFO, info):
                (directory / INFO).write_text(json.dumps(info, indent=2) + "\n")
    say(f"{LIBRARY} is up to date ({seconds:.0f} s)")


@contextmanager
def alone_in(tree: Path) -> Iterator[None]:
    """Waits until no other process builds in ``tree``: ninja doesn't see another ninja."""
    tree.mkdir(parents=True, exist_ok=True)
    with (tree / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build in {tree}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(command: list[str]) -> None:
    done = subprocess.run(command)
    if done.returncode:
        raise config.BuildError(f"this step failed, its message is above:\n    {' '.join(command)}")


def install(source: Path, target: Path) -> bool:
    """Replaces target by a copy in one step (a process may have the old file mapped)."""
    if target.exists() and file_digest(source) == file_digest(target):
        return False
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copy2(source, partial)
    os.replace(partial, target)
    return True


def same_account(path: Path, info: dict[str, object]) -> bool:
    """True if the build_info.json on disk is equal; its date then stays that of the build."""
    try:
        old = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    transient = ("date", "jobs", "jobs_reason")
    return {k: v for k, v in old.items() if k not in transient} == {
        k: v for k, v in info.items() if k not in transient
    }
