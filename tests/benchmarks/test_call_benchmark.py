"""The call benchmark: what it times, and where."""

from __future__ import annotations

import torch_sgemm
from benchmarks import call, record
from benchmarks.__main__ import main


def test_call_times_every_statement_where_it_belongs(tmp_path):
    run = ["call", "--device", "cpu", "--size", "4", "--kernel", "aten", "--output", str(tmp_path)]
    torch_sgemm.reset_stats()
    assert main(run) == 0
    (path,) = tmp_path.glob("tables/call-*.json")  # a folder gets the record under its usual name
    rows = record.load(path)["rows"]
    assert [r["statement"] for r in rows] == call.statements(["aten"])
    assert all(0 < r["us_min"] <= r["us"] <= r["us_max"] for r in rows)
    assert set(torch_sgemm.stats().hits) == {"mm"}, "one statement was timed under enable()"
