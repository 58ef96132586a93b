"""Maps a row of the kernel table to the symbol of its kernel in the compiled library.

The table's source, csrc/table/kernels.cu, pairs each row's name with a type, as in
row<shared_tile::Rung<32>>("shared_tile_32", ...). The kernel's demangled symbol has that type as an
argument (shared_tile::kernel<shared_tile::Rung<32>>), or the type's arguments behind a name of its
own (split_product<Fp16x3, ...>).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "csrc" / "table" / "kernels.cu"


def demangle(symbols: list[str]) -> list[str]:
    """Returns the symbols as C++ writes them, through cu++filt or c++filt."""
    program = shutil.which("cu++filt") or shutil.which("c++filt")
    if not program:
        raise SystemExit("neither cu++filt nor c++filt was found: install binutils")
    done = subprocess.run(
        [program], input="\n".join(symbols), capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def templates(table: str) -> dict[str, str]:
    """Maps row names to types, as written in the table: {"naive_32": "naive::Rung<32>"}."""
    rows = re.findall(r"<\s*((?:\w+::)?\w+(?:\s*<[^<>]*>)?)\s*>\s*\(\s*\"(\w+)\"", table)
    return {name: re.sub(r"\s+", "", template) for template, name in rows}


def symbol_pattern(row: str, table: str) -> str:
    """Returns a regular expression for the row's kernel among demangled symbols without blanks."""
    found = templates(table).get(row)
    if not found:
        raise SystemExit(
            f"{TABLE.name} has no row {row!r} that names a template; give the kernel's symbol "
            f"with --symbol REGEX. Rows: {' '.join(templates(table))}"
        )
    name, _, arguments = found.rstrip(">").partition("<")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if not arguments:
        return rf"\b(?:{name}|{snake})\b"
    return rf"\b(?:{name}|{snake})<(?:\w+::)*{re.escape(arguments)}[>(,]"


def find_symbol(row: str, symbols: list[str], pattern: str = "") -> tuple[str, str]:
    """Returns (mangled, demangled) of the matching symbol, the first of several instantiations.

    SystemExit lists the symbols found if they are not a single kernel.
    """
    pattern = pattern or symbol_pattern(row, TABLE.read_text())
    pairs = dict(zip(symbols, demangle(symbols), strict=True))
    fits = [(s, d) for s, d in pairs.items() if re.search(pattern, re.sub(r"\s+", "", d))]
    if len({demangled.split("<")[0] for _, demangled in fits}) != 1:
        seen = "\n    ".join(d for _, d in fits or pairs.items())
        raise SystemExit(f"{len(fits)} kernels fit {pattern!r}, one should. Seen:\n    {seen}")
    return min(fits)
