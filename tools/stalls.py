"""Where the warps of one row's kernel wait, by Nsight Compute's samples (needs a GPU and ncu).

    python tools/stalls.py split_fp16x3 --shape 1024x1024x1024 --data wide_phi_3
    python tools/stalls.py ieee_large --shape 4096x4096x4096 --symbol ieee_large --block 64

The SASS is cut into blocks of as many instructions; those with at least a hundredth of all samples
are shown in the order of their addresses: their part of the samples, how often a warp came there
at most, the reasons of waiting, and the opcodes, by which a block is found in the sources. Reasons
are PTX's and Nsight Compute's: no_inst waits for instructions, long_sb for memory, wait for a fixed
latency, barrier for other warps. One call is sampled, behind two that are not.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from profile_kernel import run_ncu  # noqa: E402

STALL = "stall_"
NOT_ISSUED = "(Not Issued)"  # columns with a part of the samples of those without
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
    """A line of SASS: its opcode, without modifiers; samples, of all reasons and of each."""

    opcode: str
    samples: int
    executed: int
    reasons: Counter[str]


def read_source(output: str) -> dict[str, list[Instruction]]:
    """ncu's ``--page source --csv``: a kernel's name to its instructions."""
    kernels: dict[str, list[Instruction]] = {}
    columns: list[str] = []
    found: list[Instruction] = []
    for row in csv.reader(io.StringIO(output)):
        if row[:1] == ["Kernel Name"]:
            found = kernels.setdefault(row[1], [])
        elif "Source" in row:
            columns = row
        elif columns and len(row) == len(columns):
            found.append(_instruction(columns, row))
    return kernels


def _instruction(columns: Sequence[str], row: Sequence[str]) -> Instruction:
    cells = dict(zip(reversed(columns), reversed(row), strict=True))  # of equal names the first
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


def report(name: str, kernel: Sequence[Instruction], block: int) -> list[str]:
    """The lines that are printed of a kernel."""
    total = sum(x.samples for x in kernel)
    reasons = sum((x.reasons for x in kernel), Counter())
    lines = [name, f"  {total} samples: {_most(reasons, 6)}"]
    for first in range(0, len(kernel), block):
        part = kernel[first : first + block]
        samples = sum(x.samples for x in part)
        if samples * 100 < total or samples == 0:
            continue
        waits = _most(sum((x.reasons for x in part), Counter()), 4)
        opcodes = _most(Counter(x.opcode for x in part), 5)
        most = max(x.executed for x in part)
        lines.append(f"  {first:>6} {samples / total:>6.1%} {most:>9} x  {waits:<60} {opcodes}")
    return lines


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
    for name, kernel in kernels.items():
        print("\n".join(report(name, kernel, options.block)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
