"""Nsight Compute's figures for one row of the kernel table (needs a GPU and ncu).

    python tools/profile_kernel.py coalesced_32 --size 1024
    python tools/profile_kernel.py naive_32 -m 4096 -n 4096 -k 512 --metrics dram__bytes_read.sum

The first call of a row is left out; the next is profiled, its packing passes included.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")
ROOT = Path(__file__).resolve().parent.parent
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_"
REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_"
METRICS = {
    "gpu__time_duration.sum": "time under the profiler",
    f"{SECTORS}ld.sum": "32-byte sectors loaded from global memory",
    f"{SECTORS}st.sum": "32-byte sectors stored to global memory",
    f"{REQUESTS}ld.sum": "load requests to global memory (one a warp instruction)",
    "dram__bytes_read.sum": "read from device memory",
    "dram__bytes_write.sum": "written to device memory",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum": "bank conflicts, shared loads",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum": "bank conflicts, shared stores",
    "smsp__inst_executed.sum": "instructions issued (warps)",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": "FFMA executed (threads)",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy reached",
    "launch__registers_per_thread": "registers per thread",
}
# The profiled program: one product outside the profile for set-up, one inside it.
PROGRAM = """
import torch, torch_sgemm
a = torch.rand({m}, {k}, device="cuda"); b = torch.rand({k}, {n}, device="cuda")
torch.ops.sgemm.mm(a, b, kernel={kernel!r}); torch.cuda.synchronize()
torch.cuda.profiler.start()
torch.ops.sgemm.mm(a, b, kernel={kernel!r}); torch.cuda.synchronize()
torch.cuda.profiler.stop()
"""


def find_ncu() -> str:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    for path in [shutil.which("ncu"), *(f"{home}/bin/ncu" for home in homes if home)]:
        if path and Path(path).is_file():
            return path
    raise SystemExit("no ncu (Nsight Compute) on PATH or in CUDA_HOME: it comes with the CUDA "
                     "toolkit, or as the package nsight-compute")  # fmt: skip


def run_ncu(
    arguments: Sequence[str], symbol: str, program: Sequence[str], read: Callable[[str], Found]
) -> Found:
    """Returns what ``read`` finds in ncu's CSV of a Python program, a source and its arguments.

    ncu profiles kernels between the profiler's start and stop. If ``symbol`` is not empty, it
    profiles only kernels whose demangled name that expression finds.
    """
    command = [find_ncu(), "--profile-from-start", "off", "--csv", *arguments]
    if symbol:
        command += ["--kernel-name-base", "demangled", "--kernel-name", f"regex:{symbol}"]
    done = subprocess.run([*command, sys.executable, "-c", *program], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    found = read(done.stdout)
    if done.returncode or not found:
        if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
            raise SystemExit("this user may not read the GPU's counters: run as root, or load the "
                             "driver with NVreg_RestrictProfilingToAdminUsers=0")  # fmt: skip
        raise SystemExit(f"ncu gave no figures:\n{done.stdout}{done.stderr}")
    return found


def read_csv(output: str) -> dict[tuple[str, str], dict[str, tuple[float, str]]]:
    """Reads ncu's CSV: (launch, kernel) to metric to (value, unit)."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    launches: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines))):
        value = row["Metric Value"].replace(",", "")
        if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", value):
            metrics = launches.setdefault((row["ID"], row["Kernel Name"]), {})
            metrics[row["Metric Name"]] = (float(value), row["Metric Unit"])
    return launches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", help="name of a row of the kernel table")
    parser.add_argument("--size", type=int, default=1024, help="m, n and k where not given")
    for name in "mnk":
        parser.add_argument(f"-{name}", type=int)
    parser.add_argument("--metrics", default="", help="further ncu metrics, comma-separated")
    parser.add_argument("--symbol", default="", metavar="REGEX", help="only kernels of this name")
    options = parser.parse_args()

    sizes = {name: getattr(options, name) or options.size for name in "mnk"}
    extra = [metric for metric in options.metrics.split(",") if metric]
    arguments = ["--print-units", "base", "--metrics", ",".join([*METRICS, *extra])]
    program = PROGRAM.format(kernel=options.kernel, **sizes)
    launches = run_ncu(arguments, options.symbol, [program], read_csv)
    print(f"{options.kernel}: m, n, k = {sizes['m']}, {sizes['n']}, {sizes['k']}")
    for (_, name), metrics in launches.items():
        print(name)
        for metric in [*METRICS, *extra]:
            if metric in metrics:
                value, unit = metrics[metric]
                print(f"  {METRICS.get(metric, metric):<52}{value:>20,.6g} {unit}")
        issued = metrics.get("smsp__inst_executed.sum", (0.0, ""))[0]
        ffma = metrics.get("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", (0.0, ""))[0]
        if issued:
            print(f"  {'FFMA fraction of the instructions issued':<52}{ffma / 32 / issued:>20.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
