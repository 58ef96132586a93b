"""Is it faster for this program? ``python -m torch_sgemm.advise script.py [arguments]``.

Runs the program as ``python`` would and lists its float32 products: calls, share of the products'
time, what ``"auto"`` would take, and the gain. On a GPU it measures each distinct product after the
program's end, beside the prediction; without one, times are predictions for an H200. A second table
lists what stays PyTorch's.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from torch_sgemm.measure import files, program
from torch_sgemm.measure.columns import aligned
from torch_sgemm.measure.recorder import Other, Product, Record, recording


class Table(NamedTuple):
    """A title, columns, and rows of texts; the first two columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def products_table(products: Iterable[Product], most: int | None = None) -> Table:
    """Tabulates the first ``most`` products, all if None; times are per call."""
    products = list(products)
    whole = sum(p.seconds_torch for p in products)
    is_measured = any(p.measured is not None for p in products)
    rows = []
    for p in products[:most]:
        cells = [
            p.operation, p.label, str(p.calls), _share(p.seconds_torch, whole),
            _time(p.predicted_torch), _time(p.predicted),
        ]  # fmt: skip
        if is_measured:
            cells += [_time(p.measured_torch), _time(p.measured)]
        rows.append((*cells, p.row, f"{p.gain:.2f}"))
    columns = ["operation", "m x n x k", "calls", "share", "torch", "auto"]
    if is_measured:
        columns[4:] = ["torch, predicted", "auto, predicted", "torch, measured", "auto, measured"]
    return Table("Float32 products", (*columns, "auto takes", "gain"), rows)


def others_table(others: Iterable[Other], most: int | None = None) -> Table:
    """Tabulates the operators that stay PyTorch's."""
    rows = [
        (
            o.operation, o.what, str(o.calls),
            "-" if o.flops is None else f"{o.flops * 1e-9:.3g}", o.reason,
        )
        for o in list(others)[:most]
    ]  # fmt: skip
    return Table("What stays PyTorch's", ("operation", "of", "calls", "GFLOP", "why"), rows)


def summary(record: Record) -> str:
    """Sums up all products in a sentence or two."""
    products = record.products
    if not products:
        return "No float32 product was seen."
    before, after = sum(p.seconds_torch for p in products), sum(p.seconds for p in products)
    how = "measured" if all(p.measured is not None for p in products) else "predicted"
    if how == "predicted" and any(p.measured is not None for p in products):
        how = "partly measured"
    devices = {record.described(p.device) for p in products}
    about = "; ".join(
        f"compute capability {d.arch // 10}.{d.arch % 10}, {d.sms} SMs, {d.clock_ghz:.3g} GHz"
        for d in devices
    )
    said = (
        f"The kernels of {sum(p.calls for p in products)} float32 products take "
        f"{_time(before)} with torch and {_time(after)} with auto, {how} for {about}: "
        f"{before / after:.2f} times as fast. All else takes as long as before."
    )
    if all(p.row == "aten" for p in products):
        said += " No row of this build is predicted to be faster than PyTorch's own kernel."
    return said


def text(record: Record, most: int | None = None) -> str:
    """Returns both tables, aligned, followed by the summary."""
    parts = []
    for table in (products_table(record.products, most), others_table(record.others, most)):
        if table.rows:
            words = (0, 1, len(table.columns) - 2)
            parts += [table.title, *aligned([table.columns, *table.rows], words), ""]
    return "\n".join([*parts, summary(record)])


def show(record: Record, most: int | None = None) -> None:
    """Prints both tables and the summary, with rich if it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
    except ModuleNotFoundError:
        print(text(record, most))
        return
    console = Console()
    if not console.is_terminal:  # a log has no width of its own
        console = Console(width=160)
    for table in (products_table(record.products, most), others_table(record.others, most)):
        if table.rows:
            shown = RichTable(title=table.title, title_justify="left", header_style="bold")
            for column in table.columns:
                words = column in ("operation", "m x n x k", "of", "auto takes", "why")
                shown.add_column(column, justify="left" if words else "right", overflow="fold")
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)
    console.print(summary(record), highlight=False, markup=False)


def as_json(record: Record) -> str:
    products = [asdict(p) | {"label": p.label, "gain": p.gain} for p in record.products]
    return json.dumps(
        {"products": products, "others": [asdict(o) for o in record.others]}, indent=1
    )


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
    if options.json and not files.can_be_written(options.json):
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
                files.write(options.json, as_json(record) + "\n")


if __name__ == "__main__":
    sys.exit(main())
