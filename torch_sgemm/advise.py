"""Is it faster for this program? ``python -m torch_sgemm.advise script.py [arguments]``.

Runs the program as ``python`` would and lists its float32 products and attention: calls, share of
their time, what ``"auto"`` would take, and the gain. On a GPU it measures each distinct call after
the program's end, beside the prediction; without one, times are predictions for an H200. A last
table lists what stays PyTorch's.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from torch_sgemm.measure import output, program
from torch_sgemm.measure.record import Record, summary, tables, text
from torch_sgemm.measure.recorder import recording


def show(record: Record, most: int | None = None) -> None:
    """Prints the tables and the summary, with rich if it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ModuleNotFoundError:
        print(text(record, most))
        return
    console = Console()
    if not console.is_terminal:  # a log has no width of its own
        console = Console(width=160)
    for table in tables(record, most):
        shown = RichTable(title=table.title, title_justify="left", header_style="bold")
        for column in table.columns:
            words = " x " in column or column in ("operation", "of", "auto takes", "why")
            shown.add_column(column, justify="left" if words else "right", overflow="fold")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    console.print(summary(record), highlight=False, markup=False)


def as_json(record: Record) -> str:
    products, attentions = (
        [asdict(p) | {"label": p.label, "gain": p.gain} for p in found]
        for found in (record.products, record.attentions)
    )
    others = [asdict(o) for o in record.others]
    return json.dumps({"products": products, "attentions": attentions, "others": others}, indent=1)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m torch_sgemm.advise",
        description="Lists a program's float32 products, and what each would gain.",
    )
    top.add_argument("--rows", type=int, default=20, help="of each table, at most (default 20)")
    top.add_argument("--no-measure", action="store_true", help="predictions only, on a GPU too")
    top.add_argument("--json", type=Path, metavar="FILE", help="writes all products there as well")
    program.add_arguments(top)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and prints the tables; keeps the program's exit status or exception."""
    options = parser().parse_args(arguments)
    program.check(options, parser())
    if options.json and not output.can_be_written(options.json):
        parser().error(f"argument --json is {str(options.json)!r}; accepted: a file to write")
    record = None
    try:
        with recording() as record:
            return program.run(options)
    finally:
        if record is not None:
            if not options.no_measure:
                record.measure()
            print()
            show(record, max(1, options.rows))
            if options.json:
                output.write(options.json, as_json(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
