"""Tables on the terminal (rich) and in Markdown, from the same columns and rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

console = Console()
if not console.is_terminal:  # a log has no width of its own
    console = Console(width=150)
Cells = Sequence[str]
NONE = "-"


def say(text: str) -> None:
    """Prints a line, with rich's markup."""
    console.print(text, highlight=False)


def show(title: str, columns: Cells, rows: Sequence[Cells], left: int = 1) -> None:
    """Prints a table; the first ``left`` columns hold text, the others numbers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, column in enumerate(columns):
        justify = "left" if i < left else "right"
        table.add_column(column, justify=justify, no_wrap=i < left, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown(columns: Cells, rows: Sequence[Cells], left: int = 1) -> str:
    """Returns the same in Markdown."""
    rule = ["---" if i < left else "---:" for i in range(len(columns))]
    lines = [columns, rule, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip


def speed_unit(record: dict) -> tuple[str, float]:
    """Returns the unit that fits a record's device, and how many of it a TFLOP/s is."""
    return ("TFLOP/s", 1.0) if record["machine"]["device"] == "cuda" else ("GFLOP/s", 1e3)


def time(us: float | None) -> str:
    """Formats microseconds in a fitting unit."""
    if us is None:
        return NONE
    if us < 1e3:
        return f"{digits(us)} µs"
    return f"{digits(us / 1e3)} ms" if us < 1e6 else f"{digits(us / 1e6)} s"


def digits(value: float | None) -> str:
    """Formats three significant digits, without exponents."""
    if value is None:
        return NONE
    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:.0f}"
    if size >= 1:
        return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


def percent(value: float | None) -> str:
    """Formats a percentage, with a decimal below 10."""
    if value is None:
        return NONE
    return f"{value:.1f} %" if value < 10 else f"{value:.0f} %"


def errors(row: dict, side: str = "") -> str:
    """Formats ``max / mean`` of a measured row."""
    if row.get(f"{side}error_max") is None:
        return NONE
    return f"{digits(row[f'{side}error_max'])} / {row[f'{side}error_mean']:.2f}"


def ratios(rows: Sequence[dict], line: str, column: str) -> dict[tuple, str]:
    """Formats torch's time over ours, by two keys of the rows; several as ``a / b``."""
    found: dict[tuple, list[str]] = {}
    for row in rows:
        text = verdict(row) or f"{row['percent_of_torch'] / 100:.2f}"
        found.setdefault((row[line], row[column]), []).append(text)
    return {key: " / ".join(texts) for key, texts in found.items()}


def verdict(row: dict) -> str:
    """Returns the problem with a row's figures; empty if there is none."""
    if "failed" in row:
        return "failed"
    return "" if row["correct"] else "WRONG"


def report_failures(rows: Sequence[dict]) -> int:
    """Prints rows that failed or are wrong; returns 1 if there are any, else 0."""
    status = 0
    for row in rows:
        if row.get("correct", True):
            continue
        status = 1
        why = row.get("failed") or row.get("wrong")
        if not why:
            largest, limit = row["error_max"], row["error_bound"]
            why = f"error {largest:.3g} exceeds the bound of {limit:.3g} units"
        where = row.get("label") or f"{row['m']} x {row['n']} x {row['k']}"
        console.print(f"{row['kernel']} at {where}: {why}", style="red", markup=False)
    return status
