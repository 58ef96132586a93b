"""Tunes the products of a program: ``tune()`` as a command.

python -m torch_sgemm.tuner script.py [arguments]
"""

import argparse
import os
import sys
from pathlib import Path

from torch_sgemm.measure import program
from torch_sgemm.measure.tuning import tune

DEFAULT_FILE = Path("torch_sgemm-tuned.json")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m torch_sgemm.tuner",
        description="Runs a program and measures which kernel is fastest for its products.",
    )
    top.add_argument("--output", type=Path, metavar="FILE",
                     help=f"default: what TORCH_SGEMM_TUNED names, or {DEFAULT_FILE}")  # fmt: skip
    program.add_arguments(top)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs the program, tunes its products, writes the file; returns the program's exit status."""
    options = parser().parse_args(arguments)
    program.check(options, parser())
    status = 0

    def run() -> None:
        nonlocal status
        status = program.run(options)

    path = options.output or os.environ.get("TORCH_SGEMM_TUNED") or DEFAULT_FILE
    try:
        tuning = tune(run, path=path)
    except RuntimeError as refusal:
        parser().error(str(refusal))
    print(f"\n{tuning}\nWritten: {path}. TORCH_SGEMM_TUNED={path} makes auto take these choices.")
    return status


if __name__ == "__main__":
    sys.exit(main())
