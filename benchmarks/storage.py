"""Records as text: a line a row.

A table's record is JSON, in which neighbouring rows with the same fields form a group that names
them once. A record of plans is gzipped, with a JSON object per line: first the record without its
rows, then each row.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable
from itertools import groupby

DIGITS = 7  # significant digits of a number: more than a measurement has
COMPACT = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}


def as_json(record: dict) -> str:
    """Formats a record of a table."""
    parts = [f"{_text(key)}:{_value(value)}" for key, value in _map(_finite, record).items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def from_json(text: str) -> dict:
    """Reads the output of ``as_json``, and JSON whose rows are objects."""
    return {key: _ungrouped(value) for key, value in _map(_not_finite, json.loads(text)).items()}


def as_lines(record: dict) -> bytes:
    """Formats a record of plans. The same rows give the same bytes."""
    head = {key: value for key, value in record.items() if key != "rows"}
    lines = [_map(_finite, head), *(_map(_short, row) for row in record["rows"])]
    text = "".join(_text(line) + "\n" for line in lines)
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
        file.write(text.encode())
    return packed.getvalue()


def from_lines(data: bytes) -> dict:
    """Reads the output of ``as_lines``."""
    head, *rows = map(json.loads, gzip.decompress(data).decode().splitlines())
    return _map(_not_finite, head | {"rows": rows})


def _text(value: object) -> str:
    return json.dumps(value, **COMPACT)


def _value(value: object) -> str:
    """Formats a list of rows by groups, a line per row; other values as JSON on one line."""
    if not (isinstance(value, list) and value and all(isinstance(row, dict) for row in value)):
        return _text(value)
    groups = []
    for names, rows in groupby(value, key=tuple):
        cells = ",\n".join(_text(_map(_short, list(row.values()))) for row in rows)
        groups.append(f'{{"columns":{_text(names)},"cells":[\n{cells}\n]}}')
    return "[\n" + ",\n".join(groups) + "\n]"


def _ungrouped(value: object) -> object:
    if not (isinstance(value, list) and value and all(_is_group(x) for x in value)):
        return value
    return [dict(zip(x["columns"], row, strict=True)) for x in value for row in x["cells"]]


def _is_group(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {"columns", "cells"}


def _finite(value: object) -> object:
    """Replaces NaN and infinity, which JSON lacks, by the strings "nan", "inf" and "-inf"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: object) -> object:
    """Rounds a number to DIGITS digits; infinities and NaN become strings."""
    value = _finite(value)
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _not_finite(value: object) -> object:
    return float(value) if value in ("nan", "inf", "-inf") else value


def _map(change: Callable[[object], object], value: object) -> object:
    """Returns ``value`` with ``change`` applied to every leaf."""
    if isinstance(value, dict):
        return {key: _map(change, v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map(change, v) for v in value]
    return change(value)
