"""The table that ends a run of all tests on a GPU: speed and errors beside torch.matmul.

It is reported, never asserted: no test depends on a time.
"""

from __future__ import annotations

import torch

from torch_sgemm.measure.output import aligned

KERNELS = ("auto", "ladder")


def lines() -> list[str]:
    """Returns the table's lines; a single one that says why there is none."""
    try:
        return table()
    except Exception as failure:  # the tests' result is another matter
        return [f"no table: {type(failure).__name__}: {failure}"]


def gpu() -> torch.device:
    """Returns the current GPU."""
    return torch.device("cuda", torch.cuda.current_device())


def table() -> list[str]:
    """Measures a dozen products in a few seconds."""
    from benchmarks import quick, tables
    from benchmarks.machine import Sampler
    from benchmarks.sides import strict_float32
    from benchmarks.timing import Options, spin_up

    strict_float32()
    device = gpu()
    spin_up(device)
    options = Options(rounds=3, budget=0.1, idle=0.005, replay=0.003)
    rows = quick.measure(
        quick.PRODUCTS, KERNELS, device, options, Sampler(device), information=False
    )
    head = ["product", "torch.matmul", "error"]
    for kernel in KERNELS:
        head += [kernel, "speed", "error"]
    cells = [head]
    for at in range(0, len(rows), len(KERNELS)):
        sides = rows[at : at + len(KERNELS)]
        theirs = next((r for r in sides if "failed" not in r), {})
        line = [sides[0]["label"], tables.time(theirs.get("torch_us"))]
        line.append(tables.digits(theirs.get("torch_error_max")))
        for r in sides:
            if "failed" in r:
                line += ["failed", tables.NONE, tables.NONE]
                continue
            speed = tables.verdict(r) or f"{r['percent_of_torch'] / 100:.2f}"
            line += [tables.time(r["kernel_us"]), speed, tables.digits(r["error_max"])]
        cells.append(line)
    about = "Kernel times; errors are the largest of 64 rows, in units of 2^-24 |A||B|."
    return [*aligned(cells, words={0}), about]
