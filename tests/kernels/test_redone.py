"""Elements and whole tiles that are computed again, and their counts."""

from __future__ import annotations

import math
import re

import pytest
import torch
from support.bounds import Reference, contract_units
from support.data import operands
from support.layouts import laid_out
from support.process import ROOT
from support.split import TILE, within_contract
from support.table import Kernel

import torch_sgemm

SPLIT_SOURCES = ROOT / "csrc" / "split"
TALL = (SPLIT_SOURCES / "rows" / "tall_tile.h").read_text(encoding="utf-8")
LISTED = int(re.search(r"kMostElements = (\d+)", TALL)[1])  # per tile of split_fp16x3_tall
REDO = (SPLIT_SOURCES / "redo" / "redo.cuh").read_text(encoding="utf-8")
FEW = int(re.search(r"kFewElements = (\d+)", REDO)[1])  # of a tile
MANY = 8 * FEW  # of two tiles, which blocks may share

pytestmark = pytest.mark.rows(family="split", device="cuda")


@pytest.mark.parametrize("columns", [1, 30, TILE])
@pytest.mark.parametrize("m", [40, TILE])
@pytest.mark.parametrize("k", [256, 1001])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.rows(name="split_fp16x3")
def test_few_and_many_refused_elements(
    row: Kernel, layouts: str, k: int, m: int, columns: int
) -> None:
    """Results made of small elements alone: by a warp each, or by the block."""
    n = TILE
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    a[:, 0] = 2.0**20
    a[:, 1:] *= 2.0**-30
    b[0] = 1
    b[0, torch.randperm(n)[:columns]] = 0  # these columns meet no large element of A
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    c = torch.randn(m, n, device="cuda")
    out = c.clone()
    torch.ops.sgemm.gemm_(out, a, b, alpha=2.0**29, beta=0.5, kernel=row.name)
    torch.cuda.synchronize()
    after = torch_sgemm.redone()
    reference = Reference.of(a, b, c, 2.0**29, 0.5)
    torch_units = reference.units(torch.addmm(c, a, b, alpha=2.0**29, beta=0.5))
    assert reference.units(out) <= contract_units(torch_units)
    assert after.elements - before.elements == m * columns
    assert torch_sgemm.stats().redone[f"cuda:{torch.cuda.current_device()}"] == after
    # A block recomputes a whole tile only if it has more than FEW elements. If there are more than
    # MANY, some block has that many in any of the row's tiles.
    if m * columns <= FEW:
        assert after.tiles == before.tiles
    elif m * columns > MANY:
        assert after.tiles > before.tiles


@pytest.mark.parametrize("k", [40, 1001, 4100])
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
def test_few_and_many_have_the_same_bits(row: Kernel, layouts: str, k: int) -> None:
    """The number of a tile's elements that are computed again changes none of them."""
    a, b = torch.randn(TILE, k, device="cuda"), torch.randn(k, TILE, device="cuda")
    a[:, 0] = 2.0**20
    a[:, 1:] *= 2.0**-30
    few = b.clone()
    b[0], few[0], few[0, [3, 70]] = 0, 1, 0  # these columns meet no large element of A
    before = torch_sgemm.redone().elements
    sums = [
        torch.ops.sgemm.mm(laid_out(a, layouts[0]), laid_out(x, layouts[1]), kernel=row.name)
        for x in (b, few)
    ]
    torch.cuda.synchronize()
    if row.name.startswith("split_fp16x3:"):
        assert torch_sgemm.redone().elements - before >= TILE * TILE
    assert torch.equal(sums[0][:, [3, 70]], sums[1][:, [3, 70]])


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(
    "size",
    [(TILE, TILE, 40), (200, 180, 1000), (131, 129, 4100), (300, 72, 2000), (1100, 900, 600)],
    ids=str,
)
def test_whole_tiles_are_redone(row: Kernel, size: tuple[int, int, int], layouts: str) -> None:
    """Data of which the guard certifies nothing, with a row of NaN and an Inf among them."""
    m, n, k = size
    a, b = (x.cuda() for x in operands("inner_scaled_20", m, n, k, seed=3))
    a[m // 3] = math.nan
    a[m // 2, k // 2] = math.inf
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    result = torch.ops.sgemm.mm(a, b, kernel=row.name)
    torch.cuda.synchronize()
    others = [i for i in range(m) if i not in (m // 3, m // 2)]
    assert within_contract(a[others], b, result[others])
    assert result[m // 3].isnan().all()
    assert torch.equal(result[m // 2], b[k // 2] * math.inf)
    if row.name.startswith(("split_fp16x3:", "split_fp16x3_streamed")):
        assert torch_sgemm.redone().tiles > before.tiles


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
def test_tiles_of_120_binades(row: Kernel, unaligned: bool, layouts: str) -> None:
    """No row's scale certifies them, and in one column not even a tall tile's bfloat16s."""
    m, n, k = 150, 140, 520
    units = torch.randint(-60, 61, (k,), device="cuda")
    a = torch.ldexp(torch.randn(m, k, device="cuda"), units)
    b = torch.ldexp(torch.randn(k, n, device="cuda"), -units[:, None])
    b[units > -50, 0] = 0  # what A's smallest elements meet is all of this column
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    if unaligned:
        a, b = a[..., 1:], b[1:]
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    result = torch.ops.sgemm.mm(a, b, kernel=row.name)
    torch.cuda.synchronize()
    assert within_contract(a, b, result)
    if row.name.startswith("split_fp16x3"):
        assert torch_sgemm.redone().elements > before.elements


@pytest.mark.parametrize("k", [40, 1024, 4100])
@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("beta", [0, 0.5])
@pytest.mark.rows(name="split_fp16x3")
def test_elements_of_a_row_are_redone(row: Kernel, beta: float, down: bool, k: int) -> None:
    """A warp's few, at once where k is short; and all others are what they are."""
    m, n = 130, 200
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    columns = torch.tensor([0, 37, 150], device="cuda")
    a[77, 0] = 2.0**20
    a[77, 1:] *= 2.0**-30
    b[0, columns] = 0  # these meet small elements of row 77 alone
    c = torch.randn(n, m, device="cuda").mT if down else torch.randn(m, n, device="cuda")
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    out = c.clone(memory_format=torch.preserve_format)
    torch.ops.sgemm.gemm_(out, a, b, alpha=0.75, beta=beta, kernel=row.name)
    torch.cuda.synchronize()
    reference = Reference.of(a, b, c, 0.75, beta)
    torch_units = reference.units(torch.addmm(c, a, b, alpha=0.75, beta=beta))
    assert reference.units(out) <= contract_units(torch_units)
    assert torch_sgemm.redone().elements - before.elements == len(columns)


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("count", [1, 3, 4, 5, LISTED, LISTED + 1, 90])
@pytest.mark.parametrize("k", [20, 100])
@pytest.mark.rows(name="split_fp16x3_tall")
def test_elements_of_a_tall_tile_are_redone(row: Kernel, k: int, count: int, layouts: str) -> None:
    """One by one or in groups of columns, beside a row with Inf."""
    a, b = torch.randn(1000, k, device="cuda"), torch.randn(k, 100, device="cuda")
    a[77, 0] = 2.0**20
    a[77, 1:] *= 2.0**-30
    b[0, torch.randperm(100)[:count]] = 0  # these meet small elements of row 77 alone
    a[70, k // 2] = -math.inf
    expected = a[70].double() @ b.double()
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    out = torch.ops.sgemm.mm(laid_out(a, layouts[0]), laid_out(b, layouts[1]), kernel=row.name)
    torch.cuda.synchronize()
    assert torch.equal(out[70].double(), expected)
    a[70], out[70] = 0, 0
    assert Reference.of(a, b).units(out) <= contract_units(Reference.of(a, b).units(a @ b))
    redone = torch_sgemm.redone().elements - before.elements
    assert redone >= count + 100
    assert redone == count + 100 or count > LISTED


@pytest.mark.gpu
def test_ordinary_data_is_not_redone(has_planes: None) -> None:
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    for name in ("uniform_0_1", "normal", "one_sided", "small_integers", "identity"):
        a, b = operands(name, 300, 300, 1000, "cuda")
        torch.ops.sgemm.mm(a, b, kernel="split_fp16x3")
    torch.cuda.synchronize()
    assert torch_sgemm.redone() == before


@pytest.mark.gpu
def test_redone_wants_a_gpu() -> None:
    with pytest.raises(RuntimeError, match="accepted: a CUDA device"):
        torch_sgemm.redone("cpu")
    assert math.isfinite(torch_sgemm.redone(0).elements)
