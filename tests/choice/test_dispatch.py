"""The choice of a row: pure host code, tried for many devices without any of them."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from support.layouts import PAIRS, meta
from support.process import python
from support.table import (
    ANY,
    KERNELS,
    PROVEN_FAMILIES,
    Kernel,
    families,
    fit,
    needs_cuda_build,
)

import torch_sgemm
from benchmarks.measure import operand_dtype

ROWS = {row.name: row for row in KERNELS}

pytestmark = pytest.mark.rows(takes_float32=ANY, tiles=False)
# arch, SMs, GHz, GB/s, MB of L2
DEVICES = {
    "V100-like": (70, 80, 1.38, 900, 6),
    "A100": (80, 108, 1.41, 1555, 40),
    "A10": (86, 72, 1.70, 600, 6),
    "RTX4060": (89, 24, 2.46, 272, 24),
    "L40": (89, 142, 2.49, 864, 96),
    "H100": (90, 114, 1.755, 2039, 50),
    "H200": (90, 132, 1.98, 4300, 60),
    "MIG-slice": (90, 16, 1.98, 600, 8),
    "B200": (100, 148, 1.965, 8000, 126),
    "RTX5090": (120, 170, 2.41, 1792, 96),
    "one-SM": (86, 1, 1.0, 50, 1),
    "odd-SMs": (90, 97, 1.5, 3000, 50),
}
SHAPES = (
    (1, 1, 1), (1, 1, 1 << 20), (1 << 20, 1, 1), (1, 1 << 20, 1), (0, 5, 5), (5, 0, 5), (5, 5, 0),
    (0, 0, 0), (7, 9, 11), (32, 32, 32), (64, 64, 64), (128, 128, 128), (256, 256, 256),
    (512, 512, 512),
    (1000, 1000, 1000), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (16384, 16384, 16384), (4097, 4097, 4097), (2047, 2049, 2050),
    (16, 4096, 4096), (4096, 16, 4096), (128, 128, 65536), (32, 32, 1000000), (1000000, 16, 16),
    (100000, 64, 64), (67108864, 1, 32), (35783, 1, 65133), (65537, 65537, 3), (3, 200000, 70000),
)  # fmt: skip
LAYOUTS = {"N": 0, "T": 1}


def device(name: str) -> torch_sgemm.Device:
    """A described GPU, of which none is needed."""
    arch, sms, clock, bandwidth, l2 = DEVICES[name]
    return torch_sgemm.Device(
        type="cuda", arch=arch, sms=sms, clock_ghz=clock, bandwidth_gbs=bandwidth, l2_mb=l2
    )


@cache
def choice(
    name: str,
    shape,
    layouts: str = "NN",
    pad: int = 0,
    kernel: str = "auto",
    dtype: torch.dtype = torch.float32,
):
    m, n, k = shape
    a, b = meta(m, k, layouts[0], pad=pad).to(dtype), meta(k, n, layouts[1], pad=pad).to(dtype)
    return torch_sgemm.explain(a, b, kernel=kernel, device=device(name))


each_gpu_name = pytest.mark.parametrize("name", DEVICES)


def assert_usable(name: str, explanation) -> None:
    """The chosen row can take the problem and is predicted to be fastest among those that can."""
    verdicts = {verdict.name: verdict for verdict in explanation.verdicts}
    assert list(verdicts) == list(ROWS)
    chosen = verdicts[explanation.chosen]
    assert chosen.reason == ""
    row = ROWS[chosen.name]
    assert row.runs_on(DEVICES[name][0])
    usable = [verdict for verdict in verdicts.values() if verdict.reason == ""]
    assert all(math.isfinite(v.seconds) and v.seconds > 0 for v in usable)
    assert chosen.seconds == min(verdict.seconds for verdict in usable)
    for verdict in verdicts.values():
        row = ROWS[verdict.name]
        if not row.runs_on(DEVICES[name][0]):
            assert verdict.reason, f"{verdict.name} is offered where it can't run"


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@each_gpu_name
def test_auto_always_has_a_row(name: str, layouts: str) -> None:
    for shape in SHAPES:
        for pad in (0, 1, 4):
            assert_usable(name, choice(name, shape, layouts, pad))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if min(shape) == 0])
@each_gpu_name
def test_batches_without_elements_or_steps_are_predicted(name: str, shape) -> None:
    m, n, k = shape
    found = torch_sgemm.explain(meta(m, k, "N", (3,)), meta(k, n, "N", (3,)), device=device(name))
    assert_usable(name, found)
    assert all(0 < verdict.seconds < 1e-4 for verdict in found.verdicts)


@needs_cuda_build
@pytest.mark.parametrize("family", [f for f in families() if f != "reference"])
@each_gpu_name
def test_family_never_falls_back(name: str, family: str) -> None:
    """A family's choice is a row of that family, or an error, never PyTorch's kernel."""
    assert DEVICES[name][0] >= 70
    rows = [r for r in KERNELS if r.family == family and r.runs_on(DEVICES[name][0])]
    for shape in SHAPES:
        if not any(row.takes(*shape) for row in rows):
            with pytest.raises(RuntimeError, match=family):
                choice(name, shape, kernel=family)
            continue
        for layouts in ("NN", "TT"):
            explanation = choice(name, shape, layouts, kernel=family)
            assert ROWS[explanation.chosen].family == family
            assert_usable(name, explanation)
            for verdict in explanation.verdicts:
                if verdict.family != family:
                    assert verdict.reason


@needs_cuda_build
def test_ladder_choice_follows_the_shape() -> None:
    chosen = {shape: choice("H200", shape, kernel="ladder").chosen for shape in SHAPES}
    assert len(set(chosen.values())) >= 4, chosen
    # A row that fills an H200 does not suit a small product.
    assert chosen[8192, 8192, 8192] != chosen[64, 64, 64]
    assert ROWS[chosen[8192, 8192, 8192]].bm >= 64


@needs_cuda_build
def test_ladder_choice_follows_the_layout_and_the_stride() -> None:
    """Some shape has another row when operands are transposed, or rows are not aligned."""
    shapes = [shape for shape in SHAPES if min(shape) > 0]
    by_layout = [
        len({choice("H200", shape, layouts, 0, "ladder").chosen for layouts in ("NN", "TT")})
        for shape in shapes
    ]
    assert max(by_layout) > 1
    by_stride = [
        len({choice("H200", shape, "NN", pad, "ladder").chosen for pad in (0, 1)})
        for shape in shapes
    ]
    assert max(by_stride) > 1


@needs_cuda_build
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (4096, 4096, 4096), (65536, 128, 128)])
def test_slow_tensor_cores_take_longer(shape: tuple[int, int, int]) -> None:
    """An H20 has an H200's compute capability, and a quarter of its tensor cores' rate."""
    m, n, k = shape
    a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
    found = [
        torch_sgemm.explain(a, b, device=torch_sgemm.Device(sms=78, tensor_rate=rate))
        for rate in (1.0, 0.25)
    ]
    fast, slow = ({v.name: v.seconds for v in x.verdicts} for x in found)
    for name, seconds in fast.items():
        split = ROWS[name].family == "split"
        assert slow[name] > seconds if split else slow[name] == seconds
    gain, less = fast["aten"] / fast[found[0].chosen], slow["aten"] / slow[found[1].chosen]
    assert gain > 2 and less < gain / 1.5


@needs_cuda_build
def test_ladder_choice_follows_the_device() -> None:
    lowest = min(row.min_arch for row in KERNELS if row.family == "ladder")
    able = [name for name in DEVICES if DEVICES[name][0] >= lowest]  # a one-architecture build
    chosen = [{choice(name, shape, kernel="ladder").chosen for name in able} for shape in SHAPES]
    assert max(map(len, chosen)) > 1


@each_gpu_name
def test_more_work_never_takes_less_time(name: str) -> None:
    """Predictions grow with m, n, k: a cost model that shrinks somewhere is wrong there."""
    for row in (row for row in KERNELS if "cuda" in row.devices):
        if row.family in PROVEN_FAMILIES and row.max_size is None:
            continue  # plans are cut to fill a device's SMs: twice the work may take less time
        for grow in ((2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)):
            before = 0.0
            for power in range(12):
                shape = tuple(16 * factor**power for factor in grow)
                if not row.takes(*shape):
                    break
                verdicts = choice(name, shape).verdicts
                seconds = next(v.seconds for v in verdicts if v.name == row.name)
                assert seconds >= before * (1 - 1e-9), (row.name, shape)
                before = seconds


@needs_cuda_build
@each_gpu_name
def test_named_row_is_taken(name: str, row: Kernel) -> None:
    if row.runs_on(DEVICES[name][0]):
        shape = fit(row, 104, 104, 104)
        assert choice(name, shape, kernel=row.name, dtype=operand_dtype(row)).chosen == row.name


def test_any_text_is_refused_as_a_row() -> None:
    for text in ("x\ny", 'a "b" \\', "\x01", "\u00e4"):
        with pytest.raises(RuntimeError, match="is unknown"):
            choice(next(iter(DEVICES)), (8, 8, 8), kernel=text)


@pytest.mark.parametrize("field", ["arch", "sms", "code_arch"])
def test_a_device_of_numbers_that_no_gpu_has_is_refused(field: str) -> None:
    a = torch.empty(256, 256, device="meta")
    with pytest.raises(RuntimeError, match="accepted: whole numbers up to"):
        torch_sgemm.explain(a, a, device=torch_sgemm.Device(**{field: 2**32}))


@needs_cuda_build
@pytest.mark.rows(where=lambda row: row.max_size is not None)
@each_gpu_name
def test_row_for_small_problems_is_offered_for_them_alone(name: str, row: Kernel) -> None:
    if not row.runs_on(DEVICES[name][0]):
        with pytest.raises(RuntimeError, match=row.name):
            choice(name, (1, 1, 1), kernel=row.name)
        return
    limit = row.max_size
    for shape in ((limit, limit, limit), (limit, 1, limit), (1, limit, 1), (1, 1, 0)):
        assert row.takes(*shape)
        assert choice(name, shape, kernel=row.name).chosen == row.name
    for shape in ((limit + 1, 1, 1), (1, limit + 1, 1), (1, 1, limit + 1), (4096, 4096, 4096)):
        assert not row.takes(*shape)
        verdict = next(v for v in choice(name, shape).verdicts if v.name == row.name)
        assert verdict.reason == "m, n or k is larger than it takes"
        with pytest.raises(RuntimeError, match=f"accepted: m, n and k up to {limit}"):
            choice(name, shape, kernel=row.name)


@needs_cuda_build
@pytest.mark.rows(where=lambda row: row.auto_from)
def test_auto_takes_a_row_from_its_least_k_on(row: Kernel) -> None:
    reason = "sums of so few terms have larger errors than auto promises"
    for k in (0, 1, row.auto_from - 1, row.auto_from, 4096):
        for shape in ((4096, 4096, k), (65536, 32, k), (1, 1, k)):
            found = choice("H200", shape)
            verdict = next(v for v in found.verdicts if v.name == row.name)
            assert (verdict.reason == reason) == (k < row.auto_from)
            assert k >= row.auto_from or found.chosen != row.name
            for asked in (row.name, *row.tile_names):
                assert choice("H200", shape, kernel=asked).chosen == row.name


@needs_cuda_build
def test_few_rows_are_few_unless_the_row_is_named() -> None:
    reason = "m and n are both larger than it is fast for"
    for shape in ((64, 4096, 4096), (4096, 64, 4096), (65, 4096, 4096), (128, 128, 128)):
        few = min(shape[:2]) <= 64
        for kernel in ("auto", "split"):
            verdicts = choice("H200", shape, kernel=kernel).verdicts
            verdict = next(v for v in verdicts if v.name == "split_fp16x3_few")
            assert verdict.reason == ("" if few else reason)
        assert choice("H200", shape, kernel="split_fp16x3_few").chosen == "split_fp16x3_few"


def batches(count: int, size: int, layouts: str = "NN"):
    """Explains auto's choice for a batch of square products on an H200."""
    a, b = (meta(size, size, layout, (count,)) for layout in layouts)
    return torch_sgemm.explain(a, b, device=device("H200"))


@needs_cuda_build
@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
def test_auto_takes_batches_of_tiny_products_together(layouts: str) -> None:
    for count, size in ((100000, 8), (10000, 16), (4096, 32)):
        explanation = batches(count, size, layouts)
        assert_usable("H200", explanation)
        assert explanation.chosen == "ieee_tiny"
    assert batches(1, 64, layouts).chosen != "ieee_tiny"
    assert batches(8, 65, layouts).chosen != "ieee_tiny"


# For a request, the rows that were measured to be the fastest, and products for which they are.
# The products are listed here, because the table only has predictions, which make the choice.
FASTEST = {
    ("auto", ("ieee_small",)): (
        (16, 16, 16), (128, 128, 128), (127, 129, 65), (64, 64, 1024), (16, 16, 500_000),
    ),
    ("auto", ("ieee_tall", "split_fp16x3_tall")): (
        (10**6, 8, 8), (400_000, 4, 4), (300_000, 7, 9), (500_000, 64, 64), (10**6, 32, 32),
        (200_000, 64, 128),
    ),
    ("ieee", ("ieee_large",)): ((1024, 1024, 1024), (2048, 2048, 2048), (4097, 4095, 4099)),
}  # fmt: skip


@needs_cuda_build
@pytest.mark.parametrize(
    "kernel, rows, shape", [(*asked, shape) for asked in FASTEST for shape in FASTEST[asked]]
)
def test_rows_are_chosen_where_they_are_the_fastest(
    kernel: str, rows: tuple[str, ...], shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    for pair in PAIRS:
        for sizes in ((m, n, k), (n, m, k)):
            assert choice("H200", sizes, pair, kernel=kernel).chosen in rows


@needs_cuda_build
@pytest.mark.rows(where=lambda row: len(row.tiles) > 1)
def test_named_tile_is_taken(row: Kernel) -> None:
    """A row takes the tile that is predicted to be fastest, or the one that its name says."""
    assert (row.bm, row.bn) == row.tiles[0]
    dtype = operand_dtype(row)
    for shape in ((104, 104, 104), (1000, 40, 4000), (40, 1000, 4000), (3000, 3000, 3000)):
        seconds = {}
        for named, tile in zip(row.by_tile(), row.tiles, strict=True):
            found = choice("H200", shape, kernel=named.name, dtype=dtype)
            assert found.chosen == row.name
            verdict = next(v for v in found.verdicts if v.name == row.name)
            assert verdict.tile == tile and verdict.reason == ""
            seconds[tile] = verdict.seconds
            assert "tiles of {} x {}".format(*tile) in str(found)
        verdicts = choice("H200", shape, dtype=dtype).verdicts
        own = next(v for v in verdicts if v.name == row.name)
        assert own.seconds == seconds[own.tile] == min(seconds.values())


def test_unknown_tile_is_refused() -> None:
    a = torch.ones(40, 40)
    for wrong in ("split_fp16x3:64x64", "split_fp16x3:", "naive_32:32x32", "split:128x64"):
        with pytest.raises(RuntimeError, match=f'kernel "{wrong}" is unknown; the nearest'):
            torch.ops.sgemm.mm(a, a, kernel=wrong)


@needs_cuda_build
def test_tiles_left_over_take_less_than_a_turn_of_their_own() -> None:
    """132 tiles are one for each SM; blocks share what comes on top."""

    def seconds(tiles: int) -> float:
        explanation = choice("H200", (tiles * 128, 128, 2048), kernel="split_fp16x3")
        return next(v.seconds for v in explanation.verdicts if v.name == "split_fp16x3")

    assert seconds(132) < seconds(137) < seconds(132) + 0.6 * (seconds(264) - seconds(132))


@pytest.mark.rows(where=lambda row: "cuda" not in row.devices)
def test_row_the_device_lacks_is_refused(row: Kernel) -> None:
    with pytest.raises(RuntimeError, match=row.name):
        choice("H200", (10, 10, 10), kernel=row.name)


def test_batches_and_c() -> None:
    a = torch.empty(8, 100, 50, device="meta")
    b = torch.empty(8, 50, 70, device="meta")
    explanation = torch_sgemm.explain(a, b, device=device("H200"))
    assert_usable("H200", explanation)
    c = torch.empty(100, 70, device="meta")
    assert_usable("H200", torch_sgemm.explain(a[0], b[0], c, device=device("H200")))


@pytest.mark.parametrize(
    ("changed", "accepted"),
    [
        ({"b": torch.ones(4, 5).double()}, "'a' and 'b' of float32, bfloat16 or float16"),
        ({"c": torch.ones(5).bfloat16()}, "a 'c' of float32"),
        ({"b": torch.ones(4, 5).to_sparse()}, "strided tensors"),
        ({"b": torch.empty(4, 5, device="meta")}, "tensors on one device"),
        ({"c": torch.empty(3, 5, device="meta")}, "tensors on one device"),
        ({"b": torch.ones(1, 4, 5)}, "both of 2 or both of 3 dimensions"),
        ({"b": torch.ones(3, 5)}, "as many rows of 'b' as columns of 'a'"),
        ({"c": torch.ones(4, 5)}, r"a 'c' that broadcasts to \[3, 5\]"),
        ({"c": torch.ones(1, 3, 5)}, r"a 'c' that broadcasts to \[3, 5\]"),
    ],
)
def test_operands_that_form_no_product_are_refused(changed: dict, accepted: str) -> None:
    operands = {"a": torch.ones(3, 4), "b": torch.ones(4, 5), "c": torch.ones(5)}
    assert torch_sgemm.explain(**operands).chosen
    with pytest.raises(RuntimeError, match=accepted):
        torch_sgemm.explain(**operands | changed)


@needs_cuda_build
def test_text_has_the_rows_that_count() -> None:
    """Those that can be taken, by predicted time; the ladder in one line unless asked for."""
    found = choice("H200", (512, 512, 512))
    _, first, *lines = str(found).splitlines()
    assert first.startswith(found.chosen) and " chosen" in first
    slower = [line for line in lines if line.endswith("predicted slower")]
    usable = sorted((v.seconds, v.name) for v in found.verdicts if not v.reason)
    assert [line.split()[0] for line in slower] == [name for _, name in usable[1:]]
    ladder = sum(row.family == "ladder" for row in KERNELS)
    assert sum(f"{ladder} of ladder" in line for line in lines) == 1 and len(lines) < 15
    asked = str(choice("H200", (512, 512, 512), kernel="ladder"))
    assert all(row.name in asked for row in KERNELS if row.family == "ladder")
    (aten,) = (line for line in asked.splitlines() if line.startswith("aten"))
    assert " us " in aten and aten.endswith("not asked for")


def test_cpu_auto_is_pytorch_and_ladder_is_not() -> None:
    a, b = torch.ones(64, 64), torch.ones(64, 64)
    assert torch_sgemm.explain(a, b).chosen == "aten"
    assert ROWS[torch_sgemm.explain(a, b, kernel="ladder").chosen].family == "ladder"


@pytest.mark.gpu
def test_current_device_is_described() -> None:
    a = torch.ones(256, 256, device="cuda")
    explanation = torch_sgemm.explain(a, a)
    assert any(v.name == explanation.chosen and v.reason == "" for v in explanation.verdicts)
    ladder = torch_sgemm.explain(a, a, kernel="ladder").chosen
    named = torch.ops.sgemm.mm(a, a, kernel=ladder)
    assert torch.equal(torch.ops.sgemm.mm(a, a, kernel="ladder"), named)


LOG_PROGRAM = """
import torch, torch_sgemm
a, b = torch.ones(4, 5), torch.ones(5, 6)
for _ in range(3):
    torch.ops.sgemm.mm(a, b)
    torch.ops.sgemm.mm(a, b, kernel="naive_32")
torch.ops.sgemm.mm(b.t(), a.t())
"""


def test_log_tells_each_problem_once() -> None:
    result = python("-c", LOG_PROGRAM, TORCH_SGEMM_LOG="1")
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stderr.splitlines() if "sgemm::mm" in line]
    assert len(lines) == 3, result.stderr
    assert sum("naive_32" in line for line in lines) == 1
    assert sum("aten" in line for line in lines) == 2
    assert "[4, 5]" in lines[0] and "[5, 6]" in lines[0]


def test_log_is_silent_unless_asked() -> None:
    for value in ("", "0"):
        result = python("-c", LOG_PROGRAM, TORCH_SGEMM_LOG=value)
        assert result.returncode == 0, result.stderr
        assert "sgemm" not in result.stderr


CHOICES_PROGRAM = """
import sys, torch, torch_sgemm
def run(m, n, k, layout, offset, kernel):
    a = torch.empty(m * k + offset)[offset:]
    a = a.view(m, k) if layout[0] == "N" else a.view(k, m).t()
    b = torch.empty(k, n) if layout[1] == "N" else torch.empty(n, k).t()
    chosen = torch_sgemm.explain(a, b, kernel=kernel).chosen
    print(f"expected {chosen}", file=sys.stderr)
    torch.ops.sgemm.mm(a, b, kernel=kernel)
for turn in range(2):
    for m in (1, 17, 64, 70):
        for layout in ("NN", "NT", "TN"):
            for offset in (0, 1, 4):
                for kernel in ("auto", "ladder", "naive_32"):
                    run(m, 33, 40 + turn, layout, offset, kernel)
"""


def test_remembered_choices_are_those_explained() -> None:
    """Problems that differ in anything that matters don't share a remembered choice."""
    result = python("-c", CHOICES_PROGRAM, TORCH_SGEMM_LOG="1")
    assert result.returncode == 0, result.stderr
    expected = ""
    logged = 0
    for line in result.stderr.splitlines():
        if line.startswith("expected "):
            expected = line.removeprefix("expected ")
        elif "sgemm::mm" in line:
            assert line.endswith(f"-> {expected}"), line
            logged += 1
    assert logged >= 72
