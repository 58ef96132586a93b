"""``worth``: what rows, or mechanisms inside rows, are worth, from the records.

A row is weighed by the records of choice and suite: the speed that auto loses if it has to take its
second choice. A mechanism is weighed by the records of plans: the speed that auto loses if it has
to take another plan.
"""

from __future__ import annotations

import argparse

from benchmarks import choice, mechanisms, record, suite, tables, worth

CASES = {"choice": choice.worth_cases, "suite": suite.worth_cases}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --mechanisms and --gpu."""
    parser.add_argument("--mechanisms", action="store_true", help="inside rows, not rows")
    parser.add_argument("--gpu", metavar="SLUG", help="records of this GPU (default: all)")


def run(args: argparse.Namespace) -> int:
    """Prints a table per record.

    Raises RuntimeError if there is no record.
    """
    weighed = _mechanisms(args.gpu) if args.mechanisms else _rows(args.gpu)
    for found, title, columns, lines in weighed:
        tables.show(title, columns, lines)
        tables.say(record.provenance(found))
    if not weighed:
        raise RuntimeError(f"there is no record of {'plans' if args.mechanisms else 'choice'}")
    return 0


Weighed = list[tuple[dict, str, list[str], list[list[str]]]]


def _rows(gpu: str | None) -> Weighed:
    newest = [(name, record.latest_gpu(name, slug=gpu)) for name in CASES]
    return [
        (found, f"What a row is worth in {name}", *worth.cells(found, CASES[name](found)))
        for name, found in newest
        if found
    ]


def _mechanisms(gpu: str | None) -> Weighed:
    return [
        (found, "What a mechanism is worth", *mechanisms.cells(found))
        for found in record.all_of("plans", slug=gpu)
        if mechanisms.can_be_weighed(found)
    ]
