"""Runs compute-sanitizer's tools over every row of the kernel table, at small sizes.

    python tools/sanitize.py [--tool memcheck ...] [--kernel NAME ...]

memcheck sees accesses outside an allocation, initcheck reads of memory never written, racecheck
hazards in shared memory, synccheck barriers that not all threads reach. Before that, memcheck and
initcheck must find errors that are planted: silence would otherwise prove nothing. Needs a GPU;
prints a table and exits with 1 if anything was found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PLANTABLE = ("memcheck", "initcheck")
MANY_BARRIERS = 65536  # mbarriers of one kernel, on all SMs
OURS = "5sgemm"  # the mangled namespace of our kernels; PyTorch's are not checked

# Sizes: less than a tile, tiles with tails in every direction, whole tiles (small ones for rows
# that take no others), tiles that a cluster's blocks share, and many slices of k. Operands are
# row-major or transposed, and some are only 4-byte aligned.
SHAPES = (
    (1, 7, 3),
    (8, 8, 8),
    (31, 30, 64),
    (65, 67, 33),
    (129, 130, 17),
    (128, 128, 32),
    (129, 65, 300),
    (16, 20, 20000),
)
# More tiles than SMs; racecheck leaves it out, because it would take minutes.
MORE_SHAPES = ((17200, 20, 512),)
LAYOUTS = (("N", "N"), ("N", "T"), ("T", "N"), ("T", "T"), ("off", "off"))


def operand(rows: int, cols: int, layout: str, seed: int, corner: float | None = None):
    """Makes integers on the GPU in an allocation of exactly their size: any step outside is seen.

    They are copied from the CPU, so that no kernel but ours runs. Layouts are N, T, or off, which
    is 4-byte aligned. ``corner`` is the first element.
    """
    import torch

    gen = torch.Generator().manual_seed(seed)
    values = torch.randint(-4, 5, (rows, cols), generator=gen).float()
    if corner is not None:
        values[0, 0] = corner
    if layout == "T":
        return values.t().contiguous().cuda().t()
    if layout == "off":
        return torch.cat([torch.zeros(1), values.flatten()]).cuda()[1:].view(rows, cols)
    return values.cuda()


def check(rows: list, shape: tuple[int, int, int], layouts: tuple[str, str]) -> None:
    """Compares, on the CPU, a product with and one without C by each row that takes it."""
    import torch

    from benchmarks.problems import in_16_bits

    m, n, k = shape
    # Beside a giant, the guard of split products recomputes elements.
    a, b = operand(m, k, layouts[0], 1, corner=2.0**60), operand(k, n, layouts[1], 2)
    # Exact in any order: terms are small integers, or multiples of the giant that absorb the rest.
    product = (a.cpu().double() @ b.cpu().double()).float()
    short = in_16_bits(a), in_16_bits(b)
    for row in (row for row in rows if row.takes(m, n, k)):
        x, y = (a, b) if row.takes_float32 else short
        c = operand(m, n, "off" if "off" in layouts else "N", 3)
        expected = 2 * product - c.cpu()
        out = torch.empty(m, n, device="cuda")
        torch.ops.sgemm.mm_out(x, y, kernel=row.name, out=out)
        torch.ops.sgemm.gemm_(c, x, y, alpha=2, beta=-1, kernel=row.name)
        where = f"{row.name} {shape} {layouts}"
        if not torch.equal(out.cpu(), product):
            raise SystemExit(f"{where}: mm_out is wrong")
        if not torch.equal(c.cpu(), expected):
            raise SystemExit(f"{where}: gemm_ is wrong")


def plant(tool: str, rows: list[str]) -> None:
    """Runs small products whose A is bad: it ends after its first row, or was never written.

    They are small, because the tool takes long over each error. They are 4-byte aligned, because
    the tool can't see loads by tensor maps.
    """
    import torch

    for row in rows:
        b = operand(8, 2, "N", 2)
        a = torch.empty(17, device="cuda")[1:].view(2, 8)
        if tool == "memcheck":
            a.untyped_storage().resize_(9 * 4)
        torch.ops.sgemm.mm(a, b, kernel=row)
        torch.cuda.synchronize()


def rows_of_gpu(names: list[str]) -> list:
    """Returns rows of the table that run on this GPU, once per tile; those of ``names``, if any."""
    import torch

    import torch_sgemm

    major, minor = torch.cuda.get_device_capability()
    arch = 10 * major + minor
    rows = [row for row in torch_sgemm.kernels() if row.family and row.runs_on(arch)]
    tiles = [(row, tile) for row in rows for tile in row.by_tile()]
    return [tile for row, tile in tiles if not names or {row.name, tile.name} & set(names)]


def work(kernels: list[str], planted: str, shapes) -> None:
    """Runs all rows in one process, under a tool."""
    rows = rows_of_gpu(kernels)
    if not rows:
        raise SystemExit("no row of the table is selected and runs on this GPU")
    if planted:
        plant(planted, [row.name for row in rows if row.takes_float32][:1] or ["naive_32"])
        return
    for shape in shapes:
        for layouts in LAYOUTS:
            check(rows, shape, layouts)
    print(f"checked {len(rows)} rows", flush=True)


def sanitizer() -> str | None:
    """Finds compute-sanitizer on PATH or in a CUDA toolkit's usual places."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [f"{home}/{sub}" for home in homes if home for sub in ("bin", "compute-sanitizer")]
    path = os.pathsep.join([os.environ.get("PATH", ""), *places])
    return shutil.which("compute-sanitizer", path=path)


def count_errors(output: str) -> int | None:
    """The number in a tool's summary; None where there is no summary, as after a crash.

    >>> count_errors("========= ERROR SUMMARY: 3 errors")
    3
    >>> count_errors("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)")
    2
    """
    found = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    return sum(int(a or b) for a, b in found) if found else None


def run_tool(
    program: str, tool: str, kernels: list[str], planted: bool, options: tuple[str, ...] = ()
) -> tuple[int | None, str]:
    """Returns the errors that ``tool`` counts, or None if it did not finish, and the output."""
    command = [program, "--tool", tool, "--kernel-regex", f"kns={OURS}", "--print-limit", "20"]
    command += ["--show-backtrace", "device"]
    command += options
    if tool == "racecheck":
        command += ["--racecheck-report", "all"]
    worker = [sys.executable, str(Path(__file__).resolve()), "--worker", "--tool", tool]
    for kernel in kernels:
        worker += ["--kernel", kernel]
    if planted:
        worker += ["--plant", tool]
    env = {
        **os.environ,
        # Each tensor has its own allocation: the allocator's blocks would hide steps outside.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run([*command, *worker], capture_output=True, text=True, env=env, check=False)
    output = done.stdout + done.stderr
    errors = count_errors(output)
    finished = planted or "checked " in done.stdout
    return (errors if finished else None), output


def check_barriers(program: str, kernels: list[str]) -> tuple[int | None, str]:
    """Returns synccheck's findings in each row, each in a process of its own.

    Its table of mbarriers is too small for kernels with many of them on every SM, whose launch then
    fails. With a larger table synccheck itself fails in other kernels. So a row that it did not
    finish is checked once more with the larger table.
    """
    total, outputs = 0, ""
    for kernel in kernels or [row.name for row in rows_of_gpu([])]:
        errors, output = run_tool(program, "synccheck", [kernel], planted=False)
        if errors is None:
            table = ("--num-cuda-barriers", str(MANY_BARRIERS))
            errors, output = run_tool(program, "synccheck", [kernel], planted=False, options=table)
        if errors is None:
            return None, output
        total += errors
        outputs += output if errors else ""
    return total, outputs


def report(program: str, tools: list[str], kernels: list[str]) -> bool:
    """Prints tool, errors, seconds. True if all is clean and every planted error was found."""
    print(f"{'tool':10} {'planted':>10} {'errors':>8} {'seconds':>8}")
    clean = True
    for tool in tools:
        start = time.monotonic()
        found = "-"
        if tool in PLANTABLE:
            planted, _ = run_tool(program, tool, kernels, planted=True)
            found = "found" if planted else "MISSED"
        if tool == "synccheck":
            errors, output = check_barriers(program, kernels)
        else:
            errors, output = run_tool(program, tool, kernels, planted=False)
        shown = "failed" if errors is None else str(errors)
        print(f"{tool:10} {found:>10} {shown:>8} {time.monotonic() - start:8.1f}", flush=True)
        if errors != 0:
            print(output[-8000:])
        clean = clean and errors == 0 and found != "MISSED"
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tool", action="extend", nargs="+", choices=TOOLS, help="default: all four"
    )
    parser.add_argument(
        "--kernel", action="extend", nargs="+", default=[], help="rows; default: all"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plant", default="", choices=PLANTABLE, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        shapes = SHAPES if options.tool == ["racecheck"] else SHAPES + MORE_SHAPES
        work(options.kernel, options.plant, shapes)
        return 0
    program = sanitizer()
    if program is None:
        print("compute-sanitizer was not found: it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    import torch

    if not torch.cuda.is_available():
        print("no CUDA GPU: compute-sanitizer has nothing to run on", file=sys.stderr)
        return 2
    return 0 if report(program, options.tool or list(TOOLS), options.kernel) else 1


if __name__ == "__main__":
    sys.exit(main())
