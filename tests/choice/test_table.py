"""Properties of every row of the kernel table."""

from __future__ import annotations

import fnmatch
import re

import pytest
import torch
from support.process import ROOT
from support.table import ANY, KERNELS, Kernel, families, rows

import torch_sgemm

pytestmark = pytest.mark.rows(takes_float32=ANY, tiles=False)
each_own = pytest.mark.rows(where=lambda row: row.family)


def test_names_are_unique_and_no_selector() -> None:
    names = [row.name for row in KERNELS]
    assert len(set(names)) == len(names)
    assert not set(names) & {"auto", *families()}


def test_a_selection_without_rows_is_refused() -> None:
    """Otherwise a misspelt name would leave a test without rows, unnoticed."""
    with pytest.raises(ValueError, match="no row of the table"):
        rows(family="unheard_of")
    with pytest.raises(AttributeError, match="unheard_of"):
        rows(unheard_of=True)


def test_first_row_is_pytorch() -> None:
    assert KERNELS[0].name == "aten"
    assert KERNELS[0].family == ""
    assert set(KERNELS[0].devices) == {"cpu", "cuda"}
    assert all(row.family for row in KERNELS[1:])


def test_the_ladder_is_the_documented_one() -> None:
    """Each rung has the rows that docs/ladder.md names, and no row is without a rung there.

    The rows that the seeds have figures of are looked for in test_benchmarks.py.
    """
    text = (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\d\d_\w+)` \| (.*?) \|", text, re.MULTILINE)
    names_of: dict[str, list[str]] = {}
    for row in KERNELS:
        if row.source.startswith("ladder/"):
            names_of.setdefault(row.source, []).append(row.name)
    assert [f"ladder/{rung}.cuh" for rung, _ in table] == list(names_of)
    for (rung, cell), names in zip(table, names_of.values(), strict=True):
        patterns = re.findall(r"`(.*?)`", cell.replace("…", "*"))
        found = [fnmatch.filter(names, pattern) for pattern in patterns]
        assert all(found) and sorted(sum(found, [])) == sorted(names), rung


def test_devices_are_known(row: Kernel) -> None:
    assert set(row.devices) <= {"cpu", "cuda"}
    assert row.min_arch == 0 or 70 <= row.min_arch <= 130
    assert row.max_arch is None or row.min_arch <= row.max_arch <= 130
    assert row.idea.strip() and "\n" not in row.idea


@each_own
def test_source_exists_and_is_the_row_s(row: Kernel) -> None:
    path = ROOT / "csrc" / row.source
    assert path.is_file()
    assert path.suffix in (".cuh", ".cu")
    # It is compiled by itself, or something includes it: otherwise it would be dead.
    included = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "csrc").rglob("*.cu"))
    assert path.suffix == ".cu" or row.source in included


@each_own
def test_tile_fields_are_consistent(row: Kernel) -> None:
    assert min(row.bm, row.bn, row.bk, row.tm, row.tn, row.threads) >= 1
    assert row.bm % row.tm == 0 and row.bn % row.tn == 0
    assert row.threads <= 1024
    # A block's threads cover its tile; more would idle.
    assert row.bm * row.bn == row.threads * row.tm * row.tn
    assert row.reads in ("any", "rows16", "maps", "maps_along_k", "bfloat16")
    assert 0 < row.bits <= 24 and (row.bits == 24) == (row.family != "tf32")
    assert row.max_size is None or row.max_size >= max(row.bm, row.bn)


@each_own
def test_parameters_in_the_name_are_the_row_s(row: Kernel) -> None:
    """A name that says 64x64x16_4x4 must run 64x64x16_4x4."""
    if match := re.search(r"(\d+)x(\d+)x(\d+)_(\d+)x(\d+)$", row.name):
        assert tuple(map(int, match.groups())) == (row.bm, row.bn, row.bk, row.tm, row.tn)
    if match := re.match(r"rows_per_thread_(\d+)", row.name):
        assert row.tm == int(match[1])
    if match := re.match(r"cols_per_thread_(\d+)", row.name):
        assert row.tn == int(match[1])
    if match := re.match(r"(naive|coalesced|\w+_tile|thread_tile_2d)_(\d+)$", row.name):
        assert int(match[2]) in (row.bm, row.bn)


@each_own
def test_every_plain_row_also_runs_on_the_cpu(row: Kernel) -> None:
    """Only a row that needs one architecture's instructions may be for GPUs alone."""
    assert "cpu" in row.devices or row.min_arch >= 90


def test_no_source_without_a_row() -> None:
    sources = {row.source for row in KERNELS}
    for path in (ROOT / "csrc" / "ladder").glob("[0-9][0-9]_*.cuh"):
        assert str(path.relative_to(ROOT / "csrc")) in sources


def test_explanations_of_what_cannot_run() -> None:
    a = torch.ones(300, 300)
    lines = str(torch_sgemm.explain(a, a)).splitlines()
    assert lines[1].startswith("aten ") and lines[1].endswith(" chosen")
    (others,) = lines[2:]  # all for the same reason
    assert others.split()[:3] == [str(len(KERNELS) - 1), "others", "-"]
    assert "of split" in others and "can't" not in others
    with pytest.raises(RuntimeError, match="argument 'device' is 'H200'; accepted: torch_sgemm.D"):
        torch_sgemm.explain(a, a, device="H200")
    with pytest.raises(RuntimeError, match='family "split" can take this problem: not built for'):
        torch_sgemm.explain(a, a, kernel="split")
