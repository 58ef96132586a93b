"""The split family: what its guard certifies, and how it is cut into pieces.

The guard's arithmetic is tried on the CPU with the constants of csrc/split/format; its kernels
on a GPU, with bad rows, columns, tiles and elements planted anywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from support.data import DISTRIBUTIONS, integers, operands
from support.layouts import laid_out
from support.process import ROOT
from support.split import TILE, within_contract
from support.table import Kernel
from torch import Tensor

import torch_sgemm

pytestmark = pytest.mark.rows(family="split", device="cuda")

FORMAT = (ROOT / "csrc" / "split" / "format" / "formats.cuh").read_text(encoding="utf-8")


# --- the scheme, on the CPU -----------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A number format of the family, with the constants that its kernels are compiled with."""

    name: str
    dtype: torch.dtype
    planes: int

    def constant(self, name: str) -> float:
        body = FORMAT.split(f"struct {self.name} {{")[1]
        text = re.search(rf"\b{name} = ([-+0-9a-fx.p]+?)f?;", body)[1]
        return float.fromhex(text) if "x" in text else float(text)

    def scaled(self, x: Tensor) -> Tensor:
        """Rows times the power of two that brings their largest element to the top."""
        top = int(self.constant("kTopExponent"))
        largest = x.abs().amax(dim=1, keepdim=True).double()
        exponent = torch.floor(torch.log2(largest.clamp(min=2.0**-149)))
        exponent = exponent.clamp(min=top - 126)
        return x.double() * torch.exp2(top - exponent)

    def represented(self, scaled: Tensor) -> Tensor:
        """The sum of the planes."""
        total, rest = torch.zeros_like(scaled), scaled.float()
        for plane in range(self.planes):
            step = 2.0**-11 if self.name == "Fp16x3" and plane else 1.0
            part = (rest / step).to(self.dtype).float() * step
            total, rest = total + part.double(), rest - part
        return total

    def thresholds(self, scaled: Tensor) -> Tensor:
        small = (scaled != 0) & (scaled.abs() < self.constant("kSmall"))
        certain = (scaled == 0).all(dim=1)
        return (small.sum(dim=1) * self.constant("kThreshold")).masked_fill(certain, -math.inf)


FORMATS = (Format("Fp16x3", torch.float16, 2), Format("Bf16x6", torch.bfloat16, 3))
HARD = ("inner_scaled_20", "inner_scaled_40", "wide_phi_4", "softmax_rows", "student_t2", "normal")


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_what_passes_the_guard_is_represented_well(form: Format, name: str) -> None:
    """Certified elements lose at most 2 units of themselves beside the planes' relative error."""
    a, b = operands(name, 60, 50, 400, seed=3)
    a[7] *= 2.0**-100
    a[8, ::2] *= 2.0**-60
    a[9] = 0
    rows, cols = form.scaled(a), form.scaled(b.t().contiguous())
    exact = rows @ cols.t()
    represented = form.represented(rows) @ form.represented(cols).t()
    passes = exact.abs() >= form.thresholds(rows)[:, None] + form.thresholds(cols)[None, :]
    relative = 2.0**-21 if form.name == "Fp16x3" else 0
    allowed = relative * (rows.abs() @ cols.abs().t()) + 2 * 2.0**-24 * exact.abs()
    slack = 2.0**-50 * (rows.abs() @ cols.abs().t())  # float64's own
    lost = (represented - exact).abs()
    assert bool((lost[passes] <= (allowed + slack)[passes]).all())
    assert bool(passes[9].all()), "exact zeros are certain"
    if name == "normal":
        assert bool(passes[:7].all())


def test_fp16_loses_what_the_guard_stops() -> None:
    """Without the guard the bar would be missed by far: the test above could fail."""
    form = FORMATS[0]
    a, b = operands("inner_scaled_40", 40, 40, 300, seed=1)
    rows, cols = form.scaled(a), form.scaled(b.t().contiguous())
    exact, scale = rows @ cols.t(), rows.abs() @ cols.abs().t()
    error = (form.represented(rows) @ form.represented(cols).t() - exact).abs() / (scale * 2.0**-24)
    passes = exact.abs() >= form.thresholds(rows)[:, None] + form.thresholds(cols)[None, :]
    assert float(error.max()) > 1000
    assert not bool(passes[error > 20].any())


def test_thresholds_fit_a_row_scale() -> None:
    """The upper 24 bits of a float hold the threshold of as many small elements as a slice has."""
    plan = (ROOT / "csrc" / "split" / "plan" / "sizes.h").read_text(encoding="utf-8")
    most = int(re.search(r"kMaxSlice = (\d+);", plan)[1])
    for form in FORMATS:
        counts = torch.arange(most + 1, dtype=torch.float32) * form.constant("kThreshold")
        assert torch.equal((counts.view(torch.int32) & -256).view(torch.float32), counts)


# --- the kernels, on a GPU ------------------------------------------------------------------


PLANTS = {
    "small": lambda x: x.mul_(2.0**-45),
    "tiny": lambda x: x.mul_(2.0**-120),
    "subnormal": lambda x: x.mul_(2.0**-140),
    "huge": lambda x: x.mul_(2.0**90),
    "largest": lambda x: x.fill_(3.4e38),
    "alternating": lambda x: x[..., ::2].mul_(2.0**-50),
    "zero": lambda x: x.zero_(),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_rows_change_only_their_own_results(row: Kernel, plant: str) -> None:
    """A bad row of A or column of B: right there, and the same bits as before everywhere else."""
    m, n, k = 300, 270, 500
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    before = torch.ops.sgemm.mm(a, b, kernel=row.name)
    for i in (0, 127, 128, 299):
        bad = a.clone()
        PLANTS[plant](bad[i])
        result = torch.ops.sgemm.mm(bad, b, kernel=row.name)
        others = torch.arange(m, device="cuda") != i
        assert torch.equal(result[others], before[others])
        if plant != "largest":  # there IEEE sums overflow, in an order of their own
            assert within_contract(bad[i : i + 1], b, result[i : i + 1])
    for j in (0, 127, 128, 269):
        bad = b.clone()
        PLANTS[plant](bad[:, j])
        result = torch.ops.sgemm.mm(a, bad, kernel=row.name)
        others = torch.arange(n, device="cuda") != j
        assert torch.equal(result[:, others], before[:, others])
        if plant != "largest":
            assert within_contract(a, bad[:, j : j + 1], result[:, j : j + 1])


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
def test_single_giants(row: Kernel, layouts: str) -> None:
    """One giant element in A and one in B: they meet in one sum, and spoil a row and a column."""
    m, n, k = 200, 180, 700
    for giant in (2.0**40, 2.0**60, 2.0**100):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        a[130, 3] = giant
        b[5, 129] = giant
        a_in, b_in = laid_out(a, layouts[0]), laid_out(b, layouts[1])
        assert within_contract(a, b, torch.ops.sgemm.mm(a_in, b_in, kernel=row.name))


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("giant", [0, 17, 290])
def test_elements_that_scaling_leaves_nothing_of(row: Kernel, giant: int, layouts: str) -> None:
    """Beside 2^120 the others underflow as their row is scaled; but it meets zeros only."""
    a, b = torch.randn(150, 300, device="cuda") * 2.0**-100, torch.randn(300, 140, device="cuda")
    a[:, giant] = 2.0**120
    b[giant] = 0
    for left, right in ((a, b), (b.t(), a.t())):
        left_in, right_in = laid_out(left, layouts[0]), laid_out(right, layouts[1])
        result = torch.ops.sgemm.mm(left_in, right_in, kernel=row.name)
        assert within_contract(left, right, result)


def grown(x: Tensor, begin: int, factor: float) -> Tensor:
    """Some of the rows of ``x`` larger from column ``begin`` on; one has zeros before."""
    x = x.clone()
    x[3:90:7, begin:] *= factor
    x[5, :begin] = 0
    x[6] = 0
    x[6, -1] = factor
    return x


@pytest.mark.parametrize("factor", [4.0, 2.0**10, 2.0**25, 2.0**70, 2.0**110, math.inf])
@pytest.mark.parametrize("begin", [1, 31, 32, 33, 290, 599])
def test_rows_that_grow_along_k(row: Kernel, begin: int, factor: float) -> None:
    """Scales that are chosen on the way change with what comes; what was added up before counts."""
    a, b = torch.randn(140, 600, device="cuda"), torch.randn(600, 150, device="cuda")
    b[begin:, 40:50] = 0  # here the small elements before are all there is
    for left, right in ((grown(a, begin, factor), b), (a, grown(b.t(), begin, factor).t())):
        for x in (left, left.t().contiguous().t()):
            result = torch.ops.sgemm.mm(x, right, kernel=row.name)
            expected = (left.double() @ right.double()).float()
            finite = expected.isfinite()
            assert torch.equal(result.isfinite(), finite)
            assert torch.equal(result.isnan(), expected.isnan())
            if bool(finite.all()):
                assert within_contract(left, right, result)


def test_rows_that_grow_far_are_not_redone(row: Kernel) -> None:
    a, b = torch.randn(140, 600, device="cuda"), torch.randn(600, 150, device="cuda").abs()
    a[3:90:7, 290:] = a[3:90:7, 290:].abs() * 2.0**40
    torch.cuda.synchronize()
    before = torch_sgemm.redone()
    result = torch.ops.sgemm.mm(a, b, kernel=row.name)
    torch.cuda.synchronize()
    assert torch_sgemm.redone().elements - before.elements <= 10  # small by cancellation
    assert within_contract(a, b, result)


@pytest.mark.parametrize("k", [300, 4100, 20000])
def test_infinities_along_k(row: Kernel, k: int) -> None:
    """Rows with Inf whose columns have NaN, or the opposite Inf, in another part of k."""
    a, b = torch.randn(140, k, device="cuda"), torch.randn(k, 70, device="cuda")
    a[3, [k // 7, k - 9]] = math.inf
    a[5, k // 2] = -math.inf
    a[90] = math.inf
    b[k // 2, :5] = 0
    b[k // 3, 7] = math.nan
    b[k - 3, 9] = math.inf
    a[7, k - 3] = 0
    result = torch.ops.sgemm.mm(a, b, kernel=row.name)
    expected = (a.double() @ b.double()).float()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result[expected.isinf()], expected[expected.isinf()])
    assert torch.equal(result.isfinite(), expected.isfinite())


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [1.0, -2.7, 2.0**-20, 1e6])
@pytest.mark.parametrize("exponent", [-100, -30, 0, 40, 60])
@pytest.mark.parametrize("shape", [(TILE, 2 * TILE), (200, 180), (TILE + 1, TILE + 2), (131, 129)])
def test_every_way_of_sums_to_memory(row: Kernel, shape, exponent, alpha, beta) -> None:
    """Tests whole tiles and edges at several scales and factors, with neighbours or without."""
    (m, n), k = shape, 70
    a = torch.ldexp(torch.randn(m, k, device="cuda"), torch.tensor(float(exponent), device="cuda"))
    b = torch.randn(k, n, device="cuda")
    a[m // 2] = 0
    c = torch.ldexp(torch.randn(m, n, device="cuda"), torch.tensor(float(exponent), device="cuda"))
    exact = alpha * (a.double() @ b.double()) + beta * c.double()
    magnitude = abs(alpha) * (a.double().abs() @ b.double().abs()) + abs(beta) * c.double().abs()
    torch.ops.sgemm.gemm_(c, a, b, alpha=alpha, beta=beta, kernel=row.name)
    unit = (2.0**-24 * magnitude).clamp(min=2.0**-149)
    assert bool(((c.double() - exact).abs() <= 10 * unit).all())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_batches_and_slices_keep_the_contract(row: Kernel, name: str) -> None:
    a, b = operands(name, 3 * 140, 150, 300, "cuda", seed=5)
    batch = torch.ops.sgemm.bmm(a.view(3, 140, 300), b.expand(3, -1, -1), kernel=row.name)
    assert within_contract(a, b, batch.view(420, 150))
    a, b = operands(name, 70, 60, 20000, "cuda", seed=6)
    assert within_contract(a, b, torch.ops.sgemm.mm(a, b, kernel=row.name))


@pytest.mark.parametrize(
    "shape",
    [(2, 64, 64, 16384), (20, 256, 256, 16384), (5, 4, 4, 8822), (3, 200, 70, 20001)],
    ids=str,
)
def test_batches_with_a_long_k(row: Kernel, shape: tuple[int, ...]) -> None:
    """Slices of k and a batch at once: one matrix after the other."""
    batch, m, n, k = shape
    a, b = integers((batch, m, k), 1, "cuda"), integers((batch, k, n), 2, "cuda")
    out = torch.ops.sgemm.bmm(a, b, kernel=row.name)
    assert torch.equal(out.double(), a.double() @ b.double())


@pytest.mark.parametrize("size", [(60, 2, 1006), (512, 512, 10000), (300, 260, 20003)], ids=str)
def test_operands_expanded_along_k(row: Kernel, size: tuple[int, int, int]) -> None:
    """All slices read the same elements, but the last reads fewer."""
    m, n, k = size
    a = integers((m, 1), 1, "cuda").expand(m, k)
    b = integers((1, n), 2, "cuda").expand(k, n)
    out = torch.ops.sgemm.mm(a, b, kernel=row.name)
    assert torch.equal(out.double(), a.double() @ b.double())


def left_over(row: Kernel) -> int:
    """Rows whose tiles, in one column of them, are three more than there are SMs."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return row.bm * (properties.multi_processor_count + 3) - 7


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("k", [999, 4100])
def test_tiles_left_over(row: Kernel, k: int, layouts: str) -> None:
    """Blocks share each of the last tiles: exact, certified, and the same beside busy streams."""
    m, n = left_over(row), row.bn - min(28, row.bn // 2)

    a, b, c = (integers(shape, 1, "cuda") for shape in ((m, k), (k, n), (m, n)))
    out = c.clone()
    operands_in = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    torch.ops.sgemm.gemm_(out, *operands_in, alpha=2.0, beta=-1.0, kernel=row.name)
    assert torch.equal(out.double(), 2 * (a.double() @ b.double()) - c.double())

    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    a[-4 * TILE :, k // 2] = 2.0**60
    a[-5:] *= 2.0**-120
    b[k - 1, 3] = 2.0**50
    a_in, b_in = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    first = torch.ops.sgemm.mm(a_in, b_in, kernel=row.name)
    last = slice(-5 * TILE, None)
    assert within_contract(a[last], b, first[last])
    load = torch.randn(2048, 2048, device="cuda")
    busy = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(busy):
        for _ in range(4):
            load @ load
    for _ in range(4):
        assert torch.equal(torch.ops.sgemm.mm(a_in, b_in, kernel=row.name), first)
    torch.cuda.synchronize()


@pytest.mark.parametrize("mib", [1, 3, 20])
def test_workspace_limit(row: Kernel, mib: int, limit_workspace: Callable[[int], None]) -> None:
    """Pieces of the batch, of m and n, of k: the same exact sums, in the memory allowed."""
    limit_workspace(mib)
    for m, n, k, batch in ((1000, 900, 500, 1), (130, 260, 30000, 1), (200, 100, 700, 9)):
        a = integers((batch, m, k), 1, "cuda")
        b = integers((batch, k, n), 2, "cuda")
        out = integers((batch, m, n), 3, "cuda")
        expected = -(a.double() @ b.double()) - out.double()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        allocated = torch.cuda.memory_allocated()
        torch.ops.sgemm.gemm_(out, a, b, alpha=-1.0, beta=-1.0, kernel=row.name)
        torch.cuda.synchronize()
        taken = torch.cuda.max_memory_allocated() - allocated
        assert torch.equal(out.double(), expected), (m, n, k, batch)
        assert taken <= (mib << 20) + 2**20  # what the allocator rounds up
        assert taken > 0
