"""A Python program that a command of this package runs as ``python`` would."""

import argparse
import runpy
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``[-m] script [arguments]`` after the command's own."""
    parser.add_argument("-m", dest="module", action="store_true", help="script is a module's name")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exits with the parser's error if there is no such file."""
    if not options.module and not Path(options.script).is_file():
        parser.error(f"{options.script}: no such file")


def run(options: argparse.Namespace) -> int:
    """Runs the program; returns its exit status, or 1 for a text, which goes to stderr."""
    before = sys.argv, list(sys.path)
    sys.argv = [options.script, *options.arguments]
    try:
        if options.module:
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options.script).resolve().parent))
            runpy.run_path(options.script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv, sys.path[:] = before
    return 0
