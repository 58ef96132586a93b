"""Records as files: nothing is lost, bytes depend on the rows alone, and the folders stay small."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from support.records import gpu_record

from benchmarks import record, storage

MOST_BYTES = 4_000_000  # of all records and charts
SUFFIXES = {record.TABLES: record.JSON, record.PLOTS: ".png", record.PLANS: record.LINES}

ROWS = [
    {"kernel": "x", "us": 1.5, "throttle": []},
    {"kernel": "y", "us": math.inf, "throttle": ["power"]},
    {"kernel": "z", "failed": "for a reason"},
    {"kernel": "µ", "us": 123456.78901, "throttle": None},
]


@pytest.mark.parametrize(
    ("write", "read"),
    [(storage.as_json, storage.from_json), (storage.as_lines, storage.from_lines)],
)
def test_a_record_is_read_as_it_was_written(write, read) -> None:
    found = gpu_record("suite", ROWS, summary=[{"mean": 2.0}], problems=[], options={"x": 1 / 3})
    expected = json.loads(json.dumps(found | {"rows": [*ROWS[:3], ROWS[3] | {"us": 123456.8}]}))
    assert read(write(found)) == expected
    assert write(read(write(found))) == write(found)


def test_a_table_has_a_line_a_row() -> None:
    text = storage.as_json({"command": "x", "rows": ROWS})
    lines = [line.rstrip(",") for line in text.splitlines()]
    assert '["x",1.5,[]]' in lines and '["z","for a reason"]' in lines
    assert text.count('"columns":["kernel","us","throttle"]') == 2  # neighbours share one
    json.loads(text, parse_constant=pytest.fail)  # strict JSON


def test_rows_that_somebody_else_wrote_are_read() -> None:
    assert storage.from_json(json.dumps({"rows": ROWS[2:]}))["rows"] == ROWS[2:]
    assert storage.from_json('{"rows": []}') == {"rows": []}


def test_plans_have_a_line_a_row_and_no_time_of_writing() -> None:
    data = storage.as_lines({"command": "plans", "rows": ROWS})
    assert data == storage.as_lines({"command": "plans", "rows": ROWS})
    assert data[4:8] == bytes(4)  # gzip's time
    head, *rows = gzip.decompress(data).decode().splitlines()
    assert json.loads(head) == {"command": "plans"} and len(rows) == len(ROWS)
    assert rows[2] == '{"kernel":"z","failed":"for a reason"}'


def test_each_file_is_in_its_folder() -> None:
    assert {path.name for path in record.RESULTS.iterdir()} == {*SUFFIXES, ".gitignore"}
    for folder, suffix in SUFFIXES.items():
        assert all(path.name.endswith(suffix) for path in (record.RESULTS / folder).iterdir())
    for path in record.RESULTS.glob(f"{record.TABLES}/*"):
        found = record.load(path)
        assert found["rows"] and path.stem.startswith(found["command"])
    assert {record.load(path)["command"] for path in record.RESULTS.glob("plans/*")} == {"plans"}


def test_records_are_small() -> None:
    sizes = [
        path.stat().st_size
        for path in record.RESULTS.rglob("*")
        if path.is_file() and "-cpu" not in path.name
    ]
    assert sum(sizes) < MOST_BYTES
