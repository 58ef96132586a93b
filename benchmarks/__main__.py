"""Command line: ``python -m benchmarks COMMAND``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

try:
    from benchmarks import (
        accuracy,
        attention,
        call,
        choice,
        fit,
        hard,
        invariant,
        ladder,
        logprobs,
        models,
        packed,
        peers,
        plans,
        quick,
        recipes,
        report,
        seeds,
        squares,
        suite,
        tables,
        training,
        users,
        weigh,
    )
except ModuleNotFoundError as missing:
    sys.exit(f"benchmarks: {missing}; install the package with its extra: pip install '.[bench]'")

MEASURING = {
    "quick": quick,
    "ladder": ladder,
    "suite": suite,
    "squares": squares,
    "packed": packed,
    "invariant": invariant,
    "choice": choice,
    "plans": plans,
    "hard": hard,
    "users": users,
    "seeds": seeds,
    "call": call,
    "accuracy": accuracy,
    "models": models,
    "training": training,
    "logprobs": logprobs,
    "attention": attention,
    "recipes": recipes,
    "peers": peers,
}


def about(module: ModuleType) -> str:
    """Returns a module's docstring without its command's name and without markup."""
    return (module.__doc__ or "").split(": ", 1)[1].replace("``", "").strip()


def parser() -> argparse.ArgumentParser:
    """Builds the whole command line; a command is a module with add_arguments and run."""
    top = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures, records, and reports what was recorded."
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name, module in MEASURING.items():
        text = about(module)
        sub = commands.add_parser(name, help=text.splitlines()[0], description=text)
        module.add_arguments(sub)
        shared = sub.add_argument_group("timing and record")
        shared.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
        shared.add_argument(
            "--output",
            type=Path,
            help="FILE.json, FILE.jsonl.gz, or a folder for tables, plots and plans, which is made "
            "(default: benchmarks/results)",
        )
        shared.add_argument("--seed", type=int, default=1)
        shared.add_argument("--rounds", type=int, default=8, help="replays of each side, at most")
        shared.add_argument("--budget", type=float, default=1.0, help="seconds a pair, about")
        shared.add_argument("--idle", type=float, default=0.02, help="pause before a replay, s")
        shared.add_argument(
            "--sustained", action="store_true", help="time each side after 0.5 s of itself"
        )
        sub.set_defaults(run=module.run, **getattr(module, "DEFAULTS", {}))
    for name, module in {"fit": fit, "worth": weigh, "report": report}.items():
        text = about(module)
        sub = commands.add_parser(name, help=text.splitlines()[0], description=text)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return top


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns 1 if a row failed, is wrong, or a file is old."""
    args = parser().parse_args(argv)
    try:
        return args.run(args)
    except RuntimeError as failure:
        tables.console.print(f"benchmarks {args.command}: {failure}", style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
