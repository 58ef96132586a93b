"""The torch-free check programs of the CPU kernels, built under AddressSanitizer and UBSan."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from support.process import ROOT, tool

BUILD = ROOT / "build" / "emulator_check"
TABLE = "csrc/table/kernels_emulated.cpp"  # the only source that includes the table of kernels


def succeed(command: Sequence[str | Path], cwd: Path = ROOT) -> str:
    """Runs a command. Returns its output."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@cache
def check_programs() -> Path:
    """Builds tests/cpp/ and the CPU kernels, once a change. Returns the build's folder."""
    BUILD.mkdir(parents=True, exist_ok=True)
    cmake, ninja = tool("cmake"), tool("ninja")
    assert cmake, "cmake is not in this environment, though the library is built with it"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes wait here
        succeed([cmake, "-S", ROOT, "-B", BUILD, "-DSGEMM_EMULATOR_CHECK=ON", *generator])
        succeed([cmake, "--build", BUILD, "--parallel", "2"])
    return BUILD


def with_table_of(copy: Path) -> Path:
    """Builds emulator_check with the table of a copy of csrc/, and the other objects as they are.

    ``copy`` is the folder of csrc/. Only what the table includes may differ from csrc/.
    """
    build = check_programs()
    objects = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        target = words.index("-o") + 1
        output = Path(entry["directory"]) / words[target]
        if entry["file"] == str(ROOT / TABLE):
            words = [word.replace(str(ROOT / "csrc"), str(copy / "csrc")) for word in words]
            output = copy / "kernels_emulated.o"
            words[target] = str(output)
            succeed(words, build)
        if "emulator_check_ucontext.dir" not in output.parts:
            objects.append(output)
    program = copy / "emulator_check"
    sanitize = "-fsanitize=address,undefined"
    succeed([words[0], sanitize, *objects, "-pthread", "-o", program])
    return program


def run_check(program: Path, mode: str, seed: str) -> subprocess.CompletedProcess:
    """Returns a check program's result. A sanitizer's finding makes it exit with an error."""
    options = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        [str(program), mode, seed],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **options},
        check=False,
    )
