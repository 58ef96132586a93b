"""tools/sanitize.py's reading of compute-sanitizer: an unread summary would look clean."""

from __future__ import annotations

import pytest
import sanitize

SUMMARIES = {
    "========= ERROR SUMMARY: 0 errors": 0,
    "========= ERROR SUMMARY: 1 error": 1,
    "========= ERROR SUMMARY: 1024 errors\n========= more": 1024,
    "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)": 0,
    "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)": 3,
    "": None,
    "Segmentation fault": None,
}


@pytest.mark.parametrize("text", SUMMARIES)
def test_summary_is_read(text: str) -> None:
    assert sanitize.count_errors(text) == SUMMARIES[text]


@pytest.mark.parametrize(
    ("errors", "planted", "clean"),
    [(0, 5, True), (1, 5, False), (None, 5, False), (0, 0, False), (0, None, False)],
)
def test_only_a_finished_run_that_finds_what_is_planted_is_clean(
    monkeypatch: pytest.MonkeyPatch, errors: int | None, planted: int | None, clean: bool
) -> None:
    counts = {True: planted, False: errors}
    monkeypatch.setattr(sanitize, "run_tool", lambda *a, planted: (counts[planted], ""))
    assert sanitize.report("compute-sanitizer", ["memcheck"], []) is clean


@pytest.mark.parametrize(
    ("small_table", "large_table", "total"),
    [([0, 2], [None, None], 2), ([None, 1], [0, None], 1), ([0, None], [None, None], None)],
)
def test_synccheck_tries_rows_that_it_fails_in_with_a_larger_table(
    monkeypatch: pytest.MonkeyPatch, small_table: list, large_table: list, total: int | None
) -> None:

    def run_tool(program, tool, kernels, planted, options=()):
        assert (tool, planted, len(kernels)) == ("synccheck", False, 1)
        table = large_table if options == ("--num-cuda-barriers", "65536") else small_table
        return table[["a", "b"].index(kernels[0])], ""

    monkeypatch.setattr(sanitize, "run_tool", run_tool)
    assert sanitize.check_barriers("compute-sanitizer", ["a", "b"])[0] == total
