"""``explain``: how its table describes the plan of the chosen row."""

from __future__ import annotations

import pytest
import torch
from support.layouts import meta
from support.table import ANY, PROVEN_FAMILIES, Kernel, fit, needs_cuda_build
from torch._subclasses import FakeTensorMode

import torch_sgemm
from benchmarks.measure import operand_dtype

H200 = torch_sgemm.Device()


def verdict_and_line(found: torch_sgemm.Explanation) -> tuple[torch_sgemm.Verdict, str]:
    """The verdict of the chosen row, and its line: the first one behind the columns' names."""
    verdict = next(v for v in found.verdicts if v.name == found.chosen)
    return verdict, str(found).splitlines()[1]


@needs_cuda_build
@pytest.mark.rows(family=PROVEN_FAMILIES, takes_float32=ANY, tiles=False)
@pytest.mark.parametrize("shape", [(8, 4000, 504), (4000, 8, 504), (1000, 1000, 1000)])
def test_tiles_are_those_of_the_plan(row: Kernel, shape: tuple[int, int, int]) -> None:
    """Also of rows whose tiles have no names. They are in rows and columns of D."""
    m, n, k = fit(row, *shape)
    dtype = operand_dtype(row)
    a, b = meta(m, k, "N").to(dtype), meta(k, n, "N").to(dtype)
    verdict, line = verdict_and_line(torch_sgemm.explain(a, b, kernel=row.name, device=H200))
    words = dict(word.split("=") for word in verdict.cut.split())
    assert ("tile" in words) == ("tiles of" in line) and "few_rows" not in words
    if "tile" in words:
        rows, cols = words["tile"].split("x")[:: -1 if "swapped" in words else 1]
        assert line.endswith(f" chosen, tiles of {rows} x {cols}")
    if row.tile_names != (row.name,):
        assert verdict.tile and words["tile"] == "{}x{}".format(*verdict.tile)


@needs_cuda_build
@pytest.mark.parametrize("few", [1, 64])
def test_a_plan_by_the_kernel_of_few_rows_has_no_tile(few: int) -> None:
    """The batch-invariant row has that kernel beside those of its tiles."""
    weight = meta(4096, 4096, "T")
    for rows in (few, 4096):
        found = torch_sgemm.explain(
            meta(rows, 4096, "N"), weight, kernel="batch_invariant", device=H200
        )
        verdict, line = verdict_and_line(found)
        if rows == few:
            assert verdict.tile is None and verdict.cut.startswith("few_rows=1 parts=")
            assert line.endswith(" chosen, kernel of few rows") and "tiles" not in str(found)
        else:
            assert verdict.tile and verdict.cut.startswith("tile=128x")
            assert " chosen, tiles of 128 x " in line


@needs_cuda_build
@pytest.mark.parametrize("size", [(64, 50000, 128), (50000, 64, 128), (192, 200000, 24)])
@pytest.mark.parametrize("same", [("rows", "column"), ("biases", "number")])
def test_addends_that_a_thread_s_choices_do_not_tell_apart(
    size: tuple[int, int, int], same: tuple[str, str]
) -> None:
    """A choice is remembered by whether rows of the addend differ, so nothing else may matter."""
    m, n, k = size
    shapes = {"rows": (m, n), "column": (m, 1), "biases": (n,), "number": (1, 1)}
    tables = {
        str(
            torch_sgemm.explain(
                meta(m, k, "N"), meta(k, n, "N"), torch.empty(shapes[x], device="meta"), device=H200
            )
        )
        for x in same
    }
    assert len(tables) == 1


@needs_cuda_build
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (1000, 64, 3000)])
def test_no_alpha_is_explained_as_no_terms(size: tuple[int, int, int]) -> None:
    """With alpha = 0 the operands aren't read: the choice is that of k = 0."""
    m, n, k = size
    without, empty = (
        torch_sgemm.explain(meta(m, d, "N"), meta(d, n, "N"), alpha=alpha, device=H200)
        for d, alpha in ((k, 0), (0, 1))
    )
    assert without.chosen == empty.chosen


@needs_cuda_build
@pytest.mark.filterwarnings("error")
def test_fake_operands_are_two_matrices() -> None:
    """Their address is unknown; equal addresses would make the product that of a and a.T."""
    real = torch.empty(1024, 2048)
    with FakeTensorMode():
        fakes = torch.empty(1024, 2048), torch.empty(1024, 2048).t()
    apart = meta(1024, 2048, "N"), meta(2048, 1024, "T")
    of_fakes, of_two, of_one = (
        str(torch_sgemm.explain(*operands, device=H200))
        for operands in (fakes, apart, (real, real.t()))
    )
    assert of_fakes == of_two != of_one


def test_arguments_that_are_no_tensors() -> None:
    x = torch.ones(3, 3)
    for name, given in (("a", (None, x)), ("b", (x, 3)), ("c", (x, x, 3))):
        with pytest.raises(TypeError, match=f"explain: argument '{name}' is .*accepted: a tensor"):
            torch_sgemm.explain(*given)
