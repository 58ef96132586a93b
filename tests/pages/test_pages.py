"""Pages: links lead somewhere, commands are commands, and what is quoted exists."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.process import ROOT, python, tool

import torch_sgemm
from benchmarks import report
from benchmarks.__main__ import parser as benchmarks_parser
from torch_sgemm import advise, info, tuner
from torch_sgemm import report as package_report

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "csrc" / "README.md"])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
each_page = pytest.mark.parametrize("name", NAMES)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


# --- links ---


def anchors(text: str) -> set[str]:
    """GitHub's names for a page's headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    headings = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower().replace("`", "")).replace(" ", "-") for h in headings}


@each_page
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(name)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def test_the_first_page_leads_to_every_other() -> None:
    text = text_of("README.md")
    assert not [name for name in NAMES if name != "README.md" and f"]({name}" not in text]
    assert len(text.splitlines()) <= 120


# --- commands ---

COMMANDS = ("make", "pip", "python", "TORCH_SGEMM", ". .venv", ".ci/", "git", "pytest")


def commands(text: str) -> Iterator[str]:
    """Lines of blocks without a language, and spans that begin like a command."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
        if language in ("", "sh", "bash", "console"):
            for line in block.splitlines():
                if line.split("#")[0].strip():
                    yield line
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    for span in re.findall(r"`([^`\n]+)`", prose):
        if span.startswith(COMMANDS) and " " in span:
            yield span


@cache
def make_targets() -> dict[str, str]:
    """Targets that `make help` lists, with their text."""
    return dict(re.findall(r"^([a-z-]+):.*?## (.*)$", text_of("Makefile"), re.M))


def check_make(words: list[str]) -> None:
    for word in words:
        name, is_variable, _ = word.partition("=")
        if is_variable:
            assert re.search(rf"\$\([a-z, ]*{name}\)|\$\({name}\)", text_of("Makefile")), word
        else:
            assert word in make_targets(), word


def check_pip(words: list[str]) -> None:
    """``pip install REQUIREMENT``: of this package, extras that it has."""
    assert words[0] == "install", words
    for word in words[1:]:
        extras = re.fullmatch(r"\.\[([\w,]+)\]", word)
        if extras:
            project = text_of("pyproject.toml")
            assert all(
                re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(",")
            )
        else:
            assert word in (".", "transformers", "torch_sgemm"), word


def check_parsed(parser: argparse.ArgumentParser, words: list[str]) -> None:
    if words in (["COMMAND"], ["COMMAND", "--help"]):
        return
    try:
        parser.parse_args(words)
    except SystemExit as stop:
        assert not stop.code, words


def check_python(words: list[str]) -> None:
    if words[:2] == ["-m", "benchmarks"]:
        check_parsed(benchmarks_parser(), words[2:])
    elif words in (["-m", "torch_sgemm.advise"], ["-m", "torch_sgemm.tuner"]):  # in a sentence
        return
    elif words[:2] == ["-m", "torch_sgemm.tuner"]:
        check_parsed(tuner.parser(), words[2:])
    elif words[:2] == ["-m", "torch_sgemm.advise"]:
        check_parsed(advise.parser(), words[2:])
        if words[2] != "script.py" and not words[2].startswith("-"):
            assert (ROOT / words[2]).is_file(), words
    elif words[:2] == ["-m", "torch_sgemm.report"]:
        check_parsed(package_report.parser(), words[2:])
    elif words[:2] == ["-m", "torch_sgemm.info"]:
        assert words[2:] in ([], ["--json"])
    elif words[:2] == ["-m", "pip"]:
        check_pip(words[2:])
    elif words[0] == "-c":
        done = python(*words)
        assert done.returncode == 0, done.stderr[-2000:]
    else:  # a program of this project, or the user's own
        assert words[0] == "script.py" or (ROOT / words[0]).is_file(), words


def check(line: str) -> None:
    """Asserts that a line of a page can be run."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        variable = words.pop(0).split("=")[0]
        assert variable in info.ENVIRONMENT, variable
    if not words:
        return
    first, *rest = words
    if first == ".":
        assert rest == [".venv/bin/activate"]
    elif first in ("python", "python3"):
        check_python(rest)
    elif first == "make":
        check_make(rest)
    elif first == "pip":
        check_pip(rest)
    else:
        raise AssertionError(f"what is {line!r}?")


@each_page
def test_commands_are_commands(name: str) -> None:
    for line in commands(text_of(name)):
        try:
            check(line)
        except AssertionError as failure:
            raise AssertionError(f"{name}: {line!r}: {failure}") from None


@pytest.mark.parametrize(
    "line",
    [
        "make tset", "make build ARHC=9.0a", "pip install .[tset]", "python -m benchmarks sweet",
        "python -m benchmarks suite --sise 3", "python tools/none.py", "curl something",
        "TORCH_SGEM=1 python script.py", "python -m torch_sgemm.advise --fast script.py",
        "python -m torch_sgemm.report --fast",
    ],
)  # fmt: skip
def test_what_is_no_command_is_found(line: str) -> None:
    with pytest.raises(AssertionError):
        check(line)


def test_commands_are_found() -> None:
    lines = [line for name in NAMES for line in commands(text_of(name))]
    assert len(lines) > 50
    for word in ("make release", "make test-fast", "python -m torch_sgemm.advise", "pip install ."):
        assert any(line.startswith(word) for line in lines), word


def test_make_knows_its_targets() -> None:
    make = tool("make")
    if not make:
        pytest.skip("make isn't installed")
    for target in make_targets():
        if target == "help":
            continue
        command = [make, "-n", target, "VENV=none", "K=naive_32", "OTHER=../before"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, (target, done.stderr)


# --- words ---


@cache
def sources() -> str:
    """All texts of the sources: Python's strings joined as Python joins them, other files whole."""
    parts = [text_of("Makefile")]
    for folder in ("torch_sgemm", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    parts.append(node.value)
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in (".cpp", ".h", ".cu", ".cuh"):
            parts.append(path.read_text(encoding="utf-8"))
    return "\n".join(parts)


def test_messages_that_troubleshooting_quotes_exist() -> None:
    page = text_of("docs/troubleshooting.md")
    quoted = [
        message
        for row in re.findall(r"^\| (.*?) \| .*\|$", page, re.M)
        for message in re.findall(r"`([^`]+)`", row)
    ]
    assert len(quoted) > 10
    missing = [message for message in quoted if message not in sources()]
    assert not missing


def test_reproducibility_names_tests_that_exist() -> None:
    page = text_of("docs/reproducibility.md")
    named = re.findall(r"`(test_\w+)`", page)
    files = set(re.findall(r"\(\.\./(tests/\w+/test_\w+\.py)\)", page))
    tests = "".join(text_of(path) for path in files)
    assert len(named) > 3 and all(f"def {name}(" in tests for name in named)


def test_fallbacks_that_pages_name_are_those_that_are_counted() -> None:
    pages = text_of("docs/troubleshooting.md") + text_of("docs/precision.md")
    table = text_of("docs/dropin.md")
    for reason in ("precision", "dtype"):
        assert f"`{reason}`" in pages and f"`{reason}`" in table


def test_what_there_is_to_gain_on_paper() -> None:
    """A third of the tensor cores' rate by the FFMA rate, and the same GPUs as the first page."""
    page = text_of("docs/gpus.md")
    rows = re.findall(r"^\| ([^|]+) \| (\d+\.\d) \| (\d+) \| (\d+) \| ([\d.]+) \|$", page, re.M)
    assert len(rows) >= 8
    for name, _, ffma, tensor, gain in rows:
        ratio = int(tensor) / 3 / int(ffma)
        assert float(gain) == float(f"{ratio:.2g}" if ratio < 1 else f"{ratio:.1f}"), name


def test_rows_run_where_the_pages_say() -> None:
    first = text_of("README.md")
    for row in torch_sgemm.kernels():
        if row.in_auto and row.family == "ieee" and "cuda" in row.devices:
            everywhere = row.max_arch is None and row.min_arch <= 90
            line = next(line for line in first.splitlines() if line.startswith("| Blackwell"))
            assert (f"`{row.name}`" in line) == everywhere, row.name


# --- tables that are made without a record ---


def test_bounds_are_those_that_are_proven() -> None:
    table = report.BLOCKS["bounds"][1]({}, Path())
    assert f"| {torch_sgemm.error_bound(1024, 'ieee_large'):.0f} |" in table
    assert all(f"`{row}`" in table for row in report.BOUND_ROWS)


def test_precision_is_a_line_for_torch_and_one_a_family() -> None:
    row = {"group": "square", "m": 4096, "n": 4096, "k": 4096, "ops": "NN", "batch": 1}
    row |= {"percent_of_torch": 200.0, "kernel_tflops": 100.0, "torch_tflops": 50.0}
    row |= {"error_max": 1.0, "error_mean": 0.5, "torch_error_max": 4.0, "torch_error_mean": 0.25}
    rows = [row | {"kernel": name, "chosen": f"{name}_x"} for name in ("auto", "ladder", "ieee")]
    table = report.BLOCKS["precision"][1]({"rows": [*rows, rows[0] | {"group": "seed"}]}, Path())
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert [line.split(" | ")[1:] for line in lines] == [
        ["1.00", "50.0", "4.00 / 0.25 |"],
        ["2.00", "100", "1.00 / 0.50 |"],
        ["2.00", "100", "1.00 / 0.50 |"],
    ]
