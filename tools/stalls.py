"""Where the warps of one row's kernel wait, by Nsight Compute's samples (needs a GPU and ncu).

    python tools/stalls.py split_fp16x3 --shape 1024x1024x1024 --data wide_phi_3
    python tools/stalls.py ieee_large --shape 4096x4096x4096 --symbol ieee_large --block 64

A kernel is its own code and the functions that are not inlined, each with its share of the samples.
Their SASS is cut into blocks of ``--block`` instructions. Blocks with at least a hundredth of the
samples are shown in the order of their addresses. The columns are the block's share, the largest
number of times that a warp came there, the stall reasons, and the opcodes, which identify the block
in the sources. Reasons are Nsight Compute's: no_inst waits for instructions, long_sb for memory,
wait for a fixed latency, barrier for other warps. One call is sampled, after two that are not.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from kernel_symbols import demangle  # noqa: E402
from profile_kernel import run_ncu  # noqa: E402
from sass import LIBRARY, architectures, find_cuobjdump  # noqa: E402

STALL = "stall_"
NOT_ISSUED = "(Not Issued)"  # such columns hold a part of the samples of those without
PROGRAM = """
import sys, torch, torch_sgemm
from benchmarks.data import matrices
from benchmarks.hard import shape
kernel, problem, data = sys.argv[1], shape(sys.argv[2]), sys.argv[3]
a, b = matrices(data, problem, torch.device("cuda"), 0)
product = torch.ops.sgemm.mm if problem.batch == 1 else torch.ops.sgemm.bmm
for _ in range(2):
    product(a, b, kernel=kernel)
torch.cuda.synchronize()
torch.cuda.profiler.start()
product(a, b, kernel=kernel)
torch.cuda.synchronize()
torch.cuda.profiler.stop()
"""


@dataclass(frozen=True)
class Instruction:
    """A line of SASS: opcode without modifiers; samples, of all reasons and of each."""

    opcode: str
    samples: int
    executed: int
    reasons: Counter[str]


def read_source(output: str) -> dict[str, list[Instruction]]:
    """Reads ncu's ``--page source --csv``: a kernel's name to its instructions, of all launches.

    An instruction that ncu prints twice for a launch counts once.
    """
    kernels: dict[str, list[list[Instruction]]] = {}
    columns: list[str] = []
    table: list[Instruction] = []
    for row in csv.reader(io.StringIO(output)):
        if row[:1] == ["Kernel Name"]:
            table = []
            kernels.setdefault(row[1], []).append(table)
        elif "Source" in row:
            columns = row
        elif columns and len(row) == len(columns):
            table.append(_instruction(columns, row))
    return {name: _added_up(tables) for name, tables in kernels.items()}


def _added_up(tables: Sequence[list[Instruction]]) -> list[Instruction]:
    """Adds up a kernel's instructions over its launches."""
    launches = [table for i, table in enumerate(tables) if table not in tables[:i]]
    return [
        Instruction(
            same[0].opcode,
            sum(x.samples for x in same),
            sum(x.executed for x in same),
            sum((x.reasons for x in same), Counter()),
        )
        for same in zip(*launches, strict=True)
    ]


def _instruction(columns: Sequence[str], row: Sequence[str]) -> Instruction:
    cells = dict(zip(reversed(columns), reversed(row), strict=True))  # the first of equal names
    words = [word for word in cells["Source"].split() if not word.startswith("@")]
    reasons = Counter(
        {
            name.removeprefix(STALL): int(value)
            for name, value in cells.items()
            if name.startswith(STALL) and NOT_ISSUED not in name and int(value) > 0
        }
    )
    executed = int(cells["Instructions Executed"])
    return Instruction(words[0].split(".")[0], int(cells["# Samples"]), executed, reasons)


def read_functions(elf: str) -> dict[str, list[tuple[int, str]]]:
    """Reads ``cuobjdump -elf``: kernel name to (first instruction, name) of functions inside it."""
    bytes_each = 16  # bytes of an instruction
    symbols = re.findall(r"^ *0x\w+ +0x(\w+) .*? \$(_Z\w+)\$(_Z\w+)", elf, re.MULTILINE)
    kernels = demangle([kernel for _, kernel, _ in symbols])
    functions = demangle([function for _, _, function in symbols])
    found: dict[str, list[tuple[int, str]]] = {}
    for (place, _, _), kernel, function in zip(symbols, kernels, functions, strict=True):
        first = int(place, 16) // bytes_each
        found.setdefault(_plain(kernel), []).append((first, _short(function)))
    return {kernel: sorted(inside) for kernel, inside in found.items()}


def _short(function: str) -> str:
    """Returns a demangled function's own name."""
    count = 1
    while count:  # removes template arguments, from the inside out
        function, count = re.subn(r"<[^<>]*>", "", function)
    return function.partition("(")[0].split("::")[-1].split()[-1]


def functions_here() -> dict[str, list[tuple[int, str]]]:
    """Returns read_functions() of the library's code for this machine's GPU."""
    import torch

    own = "sm_{}{}".format(*torch.cuda.get_device_capability())
    functions: dict[str, list[tuple[int, str]]] = {}
    for arch in architectures(LIBRARY):
        if arch in (own, f"{own}a"):
            dump = [find_cuobjdump(), "-elf", "-arch", arch, str(LIBRARY)]
            functions |= read_functions(subprocess.check_output(dump, text=True))
    return functions


def _plain(kernel: str) -> str:
    """Normalises a demangled name of Nsight Compute or c++filt."""
    kernel = kernel.replace("(bool)1", "true").replace("(bool)0", "false")
    return re.sub(r"\(int\)|\s", "", kernel)


def report(
    name: str, kernel: Sequence[Instruction], block: int, inside: Sequence[tuple[int, str]] = ()
) -> list[str]:
    """Returns the lines to print for a kernel; ``inside``: its read_functions()."""
    total = _samples(kernel)
    lines = [name, f"  {total} samples: {_reasons(kernel, 6)}"]
    functions = [(0, "the kernel's own"), *inside]
    ends = [*(first for first, _ in inside), len(kernel)]
    for (begin, function), end in zip(functions, ends, strict=True):
        if not _is_shown(kernel[begin:end], total):
            continue
        lines.append(f"  {function}: {_samples(kernel[begin:end]) / total:.1%}")
        for first in range(begin, end, block):
            part = kernel[first : min(first + block, end)]
            if _is_shown(part, total):
                lines.append(_line(first, part, total))
    return lines


def _samples(part: Sequence[Instruction]) -> int:
    return sum(x.samples for x in part)


def _is_shown(part: Sequence[Instruction], total: int) -> bool:
    return _samples(part) * 100 >= total > 0


def _line(first: int, part: Sequence[Instruction], total: int) -> str:
    opcodes = _most(Counter(x.opcode for x in part), 5)
    most = max(x.executed for x in part)
    share = f"{_samples(part) / total:>6.1%}"
    return f"  {first:>6} {share} {most:>9} x  {_reasons(part, 4):<60} {opcodes}"


def _reasons(part: Sequence[Instruction], some: int) -> str:
    return _most(sum((x.reasons for x in part), Counter()), some)


def _most(counts: Counter[str], some: int) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common(some))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", help="name of a row of the kernel table")
    parser.add_argument("--shape", default="1024x1024x1024", help="MxNxK or BATCHxMxNxK")
    parser.add_argument("--data", default="normal", help="a kind of python -m benchmarks hard")
    parser.add_argument("--symbol", default="", metavar="REGEX", help="only kernels of this name")
    parser.add_argument("--block", type=int, default=96, help="instructions per line")
    options = parser.parse_args()
    arguments = ["--section", "SourceCounters", "--page", "source", "--import-source", "no"]
    program = [PROGRAM, options.kernel, options.shape, options.data]
    kernels = run_ncu(arguments, options.symbol, program, read_source)
    functions = functions_here()
    for name, kernel in kernels.items():
        inside = functions.get(_plain(name), [])
        print("\n".join(report(name, kernel, options.block, inside)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
