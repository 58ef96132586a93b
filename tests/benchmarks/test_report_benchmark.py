"""``report``: what it writes into pages, and when it writes nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.process import ROOT
from support.records import gpu_record
from test_benchmarks import ladder_record, measured

from benchmarks import accuracy, plots, record, report, suite
from benchmarks.__main__ import main

PAGE = "before\n<!-- begin:ladder -->\nold\n<!-- end:ladder -->\nafter\n"


def test_blocks_are_replaced_and_nothing_else():
    new = report.replace_blocks(PAGE, lambda name: f"new {name}\n")
    assert new == PAGE.replace("old", "new ladder")
    assert report.replace_blocks(new, lambda name: f"new {name}\n") == new
    assert report.replace_blocks("no block\n", pytest.fail) == "no block\n"


@pytest.mark.parametrize(
    "text",
    [
        PAGE.replace("ladder", "unheard-of"),
        PAGE.replace("<!-- end:ladder -->", ""),
        PAGE.replace("<!-- begin:ladder -->", ""),
        PAGE.replace("end:ladder", "end:suite"),
    ],
)
def test_malformed_blocks_are_refused(text):
    with pytest.raises(RuntimeError, match="block|partner"):
        report.replace_blocks(text, lambda name: "")


def test_report_writes_the_recorded_figures(tmp_path):
    results, page = tmp_path / "results", tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(PAGE + PAGE.replace("ladder", "ladder-chart") + PAGE.replace("ladder", "call"))
    arguments = ["report", str(page), "--results", str(results)]
    other = gpu_record("models", [])
    record.save(other, record.default_path(other, results))
    assert main(arguments) == 0
    assert page.read_text().count("No record yet") == 3
    found = ladder_record(rows=[measured(), measured("double_buffer", percent_of_torch=93.0)])
    path = record.save(found, record.default_path(found, results))
    assert main([*arguments, "--check"]) == 1
    assert page.read_text().count("No record yet") == 3
    assert main(arguments) == 0
    text = page.read_text()
    assert "| double_buffer | 1.50 (93 %) |" in text and "Test GPU" in text and "a" * 12 in text
    assert f"](../results/plots/{path.stem}.png)" in text and record.chart_path(path).exists()
    assert text.count("No record yet") == 1
    assert main([*arguments, "--check"]) == 0


def folder(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("check", [[], ["--check"]])
@pytest.mark.parametrize(
    ("wrong", "there_is"),
    [
        (["--gpu", "unheard-of"], "test-gpu"),
        (["--results", "unheard-of"], "no GPU's record"),
        (["unheard-of.md"], "no such file"),
        (["lone.md"], "partner"),
    ],
)
def test_nothing_is_written_where_something_is_missing(
    wrong, there_is, check, tmp_path, capsys, monkeypatch
):
    """No figures are replaced by "No record yet", and no part of the pages is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "lone.md").write_text(PAGE.replace("end:", "end-of:"))
    found = ladder_record()
    record.save(found, record.default_path(found, tmp_path / "results"))
    before = folder(tmp_path)
    assert main(["report", "--results", "results", "page.md", *wrong, *check]) == 2
    assert there_is in " ".join(capsys.readouterr().out.split())
    assert folder(tmp_path) == before


def test_a_line_of_the_models(tmp_path):
    page = tmp_path / "page.md"
    found = gpu_record(
        "models",
        [
            {"label": "MLP", "percent_of_torch": 291.0},
            {"label": "broken", "failed": "why"},
            {"label": "ViT", "percent_of_torch": 50.0},
        ],
    )
    text = report.BLOCKS["models-line"][1](found, page)
    assert text.endswith("relative to torch alone: 2.91 for MLP; 0.50 for ViT.")


def test_marks_tell_families_and_rows_apart():
    styles = plots._styles(["split_a", "split_b", "ieee_a", "ieee", "ladder", "unheard_of"])
    colors = [style["color"] for style in styles.values()]
    assert colors[0] == colors[1] and colors[2] == colors[3] and len(set(colors)) == 4
    assert len({(s["color"], s["marker"]) for s in styles.values()}) == len(styles)
    assert plots.RING["color"] not in colors and plots.RING["fillstyle"] == "none"


def test_the_project_s_pages_show_its_records() -> None:
    assert main(["report", "--check"]) == 0


def test_report_writes_errors_and_the_suite(tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.md"
    names = ("accuracy", "accuracy-large", "accuracy-chart", "suite", "suite-chart")
    page.write_text("".join(PAGE.replace("ladder", name) for name in names))
    rows = [
        measured(name, distribution="normal", m=30, n=20, k=k, error_max=error, good=error < 8)
        for name, error in (("split_fp16x3", 1.5), ("split_bf16x6", math.nan))
        for k in (7, 128, 8192, 65536)
    ]
    large = [measured("split_fp16x3", distribution="gram", m=9, n=9, k=9, good=True)]
    found = gpu_record("accuracy", rows, summary=accuracy.summarise(rows), large=large)
    record.save(found, record.default_path(found, results))
    rows = [measured("auto", group="x", label="x 1")]
    found = gpu_record("suite", rows, summary=suite.summarise(rows))
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "old" not in text and text.count("Test GPU") == 5
    assert "| gram | 9 x 9 x 9 | 2.00 / 0.30 | 2.00 / 0.30 | - | - |" in text
    figures = "2.00 / 0.30 | 1.50 / 0.30 | nan / 0.30 BAD |"
    assert f"| normal | {figures} {figures} {figures}" in text and "30 x 20 x k" in text
    assert "| auto | x | 1 | 0 | 0.50 | 0.50 (x 1) |" in text and suite.LEGEND in text
    for chart in ("accuracy-test-gpu.png", "suite-test-gpu.png"):
        assert f"](results/plots/{chart})" in text and (results / "plots" / chart).exists()


def test_pages_hold_what_the_records_say():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    files = [str(page) for page in pages if page.exists()]
    if files:
        assert main(["report", "--check", *files]) == 0
