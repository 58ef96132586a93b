"""Operators on bfloat16 and float16 operands, and rows that read these without a copy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from support.activations import ACTIVATIONS, each_function
from support.bounds import UNIT, Reference, roundings
from support.data import drawn, integers
from support.layouts import PAIRS, laid_out
from support.modes import SeenOperators
from support.plans import by_each_plan
from support.sizes import around
from support.table import each_device, fit, rows
from torch import Tensor

import torch_sgemm
from benchmarks.problems import in_16_bits
from torch_sgemm import Kernel, error_bound

SGEMM = torch.ops.sgemm
BF16 = torch.bfloat16
SHORT = (BF16, torch.float16)
MIXES = [(x, y) for x in (torch.float32, *SHORT) for y in (torch.float32, *SHORT)][1:]

each_short = pytest.mark.parametrize("short", SHORT, ids=str)
each_mix = pytest.mark.parametrize("dtypes", MIXES, ids=lambda mix: f"{mix[0]}-{mix[1]}")
each_row = pytest.mark.rows(takes_float32=False, device="cuda")


def aligned(x: Tensor, layout: str = "N") -> Tensor:
    """The same values in rows, or columns, that begin at multiples of 16 bytes."""
    return in_16_bits(laid_out(x, layout), x.dtype)


def edges(row: Kernel) -> Iterator[tuple[int, int, int]]:
    """Around tiles' and steps' edges."""
    return zip(around(row.bm), around(row.bn)[::-1], around(row.bk), strict=False)


def sizes(row: Kernel) -> Iterator[tuple[int, int, int]]:
    """The same, and products that blocks share."""
    yield from edges(row)
    yield from ((1, 1, 1), (3, 2 * row.bn + 5, 7), (1, 300, 4096), (2 * row.bm + 3, 2, 1000))
    yield (300, 260, 5000)


# --- the operators, on every device -----------------------------------------------------------


@each_mix
@each_device
def test_results_are_those_of_converted_operands(
    device: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    for m, n, k in ((5, 3, 7), (64, 40, 128), (130, 129, 65)):
        a = drawn(device, m, k, dtype=dtypes[0])
        b = drawn(device, k, n, dtype=dtypes[1], seed=1)
        c = drawn(device, m, n, seed=2)
        for layout in PAIRS:
            x, y = laid_out(a, layout[0]), laid_out(b, layout[1])
            reference = Reference.of(a, b)
            result = SGEMM.mm(x, y)
            assert result.dtype == torch.float32
            assert reference.units(result) <= 8
            out = torch.empty_like(result)
            SGEMM.mm_out(x, y, out=out)
            assert torch.equal(out, result)
            summed = SGEMM.addmm(c, x, y, beta=2, alpha=-0.5)
            assert Reference.of(a, b, c, -0.5, 2).units(summed) <= 8
            in_place = c.clone()
            SGEMM.gemm_(in_place, x, y, alpha=-0.5, beta=2)
            assert torch.equal(in_place, summed)
        batch = SGEMM.bmm(a.expand(3, m, k), b.expand(3, k, n))
        assert reference.units(batch[2]) <= 8
        layer = SGEMM.linear(a, b.mT, c[0], "relu")
        assert reference.units(SGEMM.linear(a, b.mT)) <= 8
        assert torch.equal(layer, SGEMM.addmm(c[0], a, b).relu())


@each_mix
@pytest.mark.rows(tiles=False, where=lambda row: row.family)
def test_by_name_they_are_converted(
    row: Kernel, device: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    m, n, k = fit(row, 133, 35, 40)
    for layout in PAIRS:
        a = laid_out(integers((m, k), 1, device).to(dtypes[0]), layout[0])
        b = laid_out(integers((k, n), 2, device).to(dtypes[1]), layout[1])
        assert torch.equal(SGEMM.mm(a, b, kernel=row.name), a.float() @ b.float()), layout


@each_short
@each_device
def test_gradients(device: str, short: torch.dtype) -> None:
    a, b = (drawn(device, 16, 16, dtype=short, seed=i).requires_grad_() for i in (0, 1))
    grad = drawn(device, 16, 16, seed=2)
    SGEMM.mm(a, b).backward(grad)
    assert a.grad.dtype == b.grad.dtype == short
    assert torch.allclose(a.grad.float(), grad @ b.detach().float().mT, rtol=0.02, atol=0.02)
    assert torch.allclose(b.grad.float(), a.detach().float().mT @ grad, rtol=0.02, atol=0.02)
    x, weight = a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()
    SGEMM.linear(x, weight.mT).backward(grad)
    assert torch.equal(x.grad, a.grad) and torch.equal(weight.grad, b.grad)


@each_mix
@each_device
def test_packed_matrices(device: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    for m, n, k in ((5, 3, 7), (130, 129, 65)):
        a = drawn(device, m, k, dtype=dtypes[0])
        b = drawn(device, k, n, dtype=dtypes[1], seed=1)
        c = drawn(device, m, n, seed=2)
        for layout in PAIRS:
            x, y = laid_out(a, layout[0]), laid_out(b, layout[1])
            packed = torch_sgemm.pack(y, frozen=True)
            result = packed.mm(x)
            assert result.dtype == torch.float32
            assert Reference.of(a, b).units(result) <= 8
            assert Reference.of(a, b, c, -0.5, 2).units(packed.mm(x, c, beta=2, alpha=-0.5)) <= 8
            in_float32 = torch_sgemm.matmul(x, packed, out_dtype=torch.float32)
            assert Reference.of(a, b).units(in_float32) <= 8
    weight, bias = drawn(device, 9, 7, dtype=dtypes[1]).requires_grad_(), drawn(device, 9)
    x = drawn(device, 4, 7, dtype=dtypes[0], seed=1).requires_grad_()
    expected = torch.nn.functional.linear(x.float(), weight.float(), bias)
    packed = torch_sgemm.pack(weight.t(), frozen=True)
    if torch.float32 in dtypes:
        for fused in (torch_sgemm.linear(x, packed, bias), torch_sgemm.linear(x, weight, bias)):
            assert torch.allclose(fused, expected, atol=1e-5)
            wanted = torch.autograd.grad(expected.sum(), (x, weight), retain_graph=True)
            found = torch.autograd.grad(fused.sum(), (x, weight))
            for got, want in zip(found, wanted, strict=True):
                assert got.dtype == want.dtype and torch.allclose(got, want, rtol=0.02, atol=0.02)


@each_short
@each_device
def test_packed_matrices_are_compiled(device: str, short: torch.dtype) -> None:
    torch.compiler.reset()
    packed = torch_sgemm.pack(drawn(device, 7, 9, dtype=short), frozen=True)
    compiled = torch.compile(packed.mm, backend="aot_eager", fullgraph=True)
    x = drawn(device, 4, 7)
    assert torch.allclose(compiled(x), packed.mm(x), atol=1e-5)


@pytest.mark.gpu
@each_short
def test_planes_are_those_of_float32(has_planes: None, short: torch.dtype) -> None:
    a, b = drawn("cuda", 300, 1000), drawn("cuda", 1000, 260, dtype=short, seed=1)
    for layout in "NT":
        of_short = torch_sgemm.pack(laid_out(b, layout), frozen=True).mm(a, kernel="split_fp16x3")
        assert torch.equal(
            of_short, torch_sgemm.pack(b.float(), frozen=True).mm(a, kernel="split_fp16x3")
        )


@each_mix
@each_device
def test_functions_convert_nothing(device: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    """Operands reach the operators unconverted."""
    a, b = drawn(device, 6, 8, dtype=dtypes[0]), drawn(device, 8, 4, dtype=dtypes[1])
    bias, packed = drawn(device, 4), torch_sgemm.pack(b, frozen=True)
    with SeenOperators() as seen:
        torch_sgemm.matmul(a, b, out_dtype=torch.float32)
        torch_sgemm.matmul(a, packed, out_dtype=torch.float32)
        torch_sgemm.linear(a, b.mT, bias)
        torch_sgemm.linear(a, packed, bias)
        if torch.float32 in dtypes:
            torch_sgemm.matmul(a, b)
            torch_sgemm.linear(a, b.mT)
            torch_sgemm.linear(a, packed)
    assert seen.calls and "aten._to_copy.default" not in seen.calls


@each_short
@each_device
def test_transforms(device: str, short: torch.dtype) -> None:
    a, b = (drawn(device, 3, 16, 16, dtype=short, seed=i) for i in (0, 1))
    expected = SGEMM.bmm(a, b)
    assert torch.allclose(torch.vmap(SGEMM.mm)(a, b), expected, atol=1e-5)
    value, tangent = torch.func.jvp(lambda x: SGEMM.mm(x, b[0]), (a[0],), (a[0],))
    assert value.dtype == tangent.dtype == torch.float32 and torch.equal(value, tangent)
    compiled = torch.compile(SGEMM.mm, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a[0], b[0]), SGEMM.mm(a[0], b[0]))


@each_short
@each_device
def test_operators_are_sound(device: str, short: torch.dtype) -> None:
    """Schema, autograd, fakes and traces, by PyTorch's own check."""
    a, b = (drawn(device, 16, 16, dtype=short, seed=i).requires_grad_() for i in (0, 1))
    c = drawn(device, 16)
    torch.library.opcheck(SGEMM.mm.default, (a, b))
    torch.library.opcheck(SGEMM.addmm.default, (c, a, b))
    torch.library.opcheck(SGEMM.linear.default, (a, b, c, "relu"))


def test_others_are_refused() -> None:
    a = torch.zeros(4, 4)
    for x, y in ((a.double(), a), (a.bfloat16(), a.int())):
        with pytest.raises(RuntimeError, match="accepted: dtype float32, bfloat16 or float16"):
            SGEMM.mm(x, y)
    with pytest.raises(RuntimeError, match="'out'.*bfloat16.*accepted: dtype float32, device"):
        SGEMM.mm_out(a, a, out=a.bfloat16())
    with pytest.raises(RuntimeError, match="'c'.*float16.*accepted: dtype float32, device"):
        SGEMM.addmm(a.half(), a, a)


# --- rows that read 16 bits beside float32 ----------------------------------------------------


@each_mix
@pytest.mark.rows(device="cuda", where=lambda row: row.reads_16_bits or row.streams_16_bits)
def test_the_bits_are_those_of_float32(
    row: Kernel, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    """Tests every plan, with rows that can be read four elements at a time and with others."""
    others = ((1, 1, 1), (1, 128, 2048), (300, 2, 5000), (7, 70, 1002), (33, 16, 515))
    for number, (m, n, k) in enumerate((*edges(row), *others)):
        a = drawn("cuda", m, k, dtype=dtypes[0], seed=number)
        b = drawn("cuda", k, n, dtype=dtypes[1], seed=number + 1)
        if number % 4 == 3:  # sums that overflow in parts, and NaN
            a[0, : k // 2], b[:, -1], a[-1, 0] = 1e38, 1, math.nan
            a[0, k // 2 :] = -a[0, : k - k // 2]
        for layout in PAIRS:
            x, y = laid_out(a, layout[0]), laid_out(b, layout[1])
            wide = laid_out(a.float(), layout[0]), laid_out(b.float(), layout[1])
            expected = dict(by_each_plan(row, *wide))
            for plan, d in by_each_plan(row, x, y):
                same = torch.equal(d.nan_to_num(7), expected[plan].nan_to_num(7))
                assert same, (m, n, k, layout, plan)


# --- rows that read 16 bits alone -------------------------------------------------------------


def test_explain_tells_who_takes_them() -> None:
    device = torch_sgemm.Device()
    wide = torch.empty(4096, 4096, device="meta")
    short_rows = rows(takes_float32=False, tiles=False)
    if not any(row.runs_on(90) for row in short_rows):
        return
    names = {row.name for row in short_rows}
    for short in SHORT:
        x = torch.empty(4096, 4096, device="meta", dtype=short)
        found = torch_sgemm.explain(x, x, device=device)
        assert (found.chosen in names) == (short == torch.bfloat16)
        reasons = {v.name: v.reason for v in torch_sgemm.explain(x, wide, device=device).verdicts}
        assert all("bfloat16" in reasons[name] for name in names)


@each_row
def test_within_the_bound(row: Kernel) -> None:
    for number, (m, n, k) in enumerate(sizes(row)):
        a, b = (drawn("cuda", *shape, dtype=BF16, seed=number) for shape in ((m, k), (k, n)))
        c = drawn("cuda", m, n, seed=number + 1)
        reference = Reference.of(a, b)
        for layout in PAIRS:
            x, y = aligned(a, layout[0]), aligned(b, layout[1])
            for plan, d in by_each_plan(row, x, y):
                assert reference.units(d) <= error_bound(k, row.name), (m, n, k, layout, plan)
            d = c.mT.clone().mT  # written along columns
            SGEMM.gemm_(d, x, y, row.name, alpha=-0.25, beta=2)
            bound = error_bound(k, row.name) + 1
            assert Reference.of(a, b, c, -0.25, 2).units(d) <= bound, (m, n, k, layout)


@each_function
@each_row
def test_an_activation_is_that_of_the_sums(row: Kernel, activation: str) -> None:
    """Some sums are not finite, and are stored one by one."""
    for number, (m, n, k) in enumerate(sizes(row)):
        k += -k % 8  # a layer's operands have no gaps between rows
        x, weight = (drawn("cuda", *shape, dtype=BF16, seed=number) for shape in ((m, k), (n, k)))
        if number % 2:
            x[-1, 0], weight[-1, 0] = math.nan, math.inf
        for bias in (None, drawn("cuda", n)):
            sums = SGEMM.linear(x, weight, bias, None, row.name)
            expected = ACTIVATIONS[activation](sums)
            result = SGEMM.linear(x, weight, bias, activation, row.name)
            assert torch.equal(result.isnan(), expected.isnan()), (m, n, k)
            error = (result - expected).abs().nan_to_num(0)
            assert (error <= 4 * UNIT * sums.abs().nan_to_num(1)).all(), (m, n, k)


@each_row
def test_batches(row: Kernel) -> None:
    a, b = drawn("cuda", 2, 3, 70, 96, dtype=BF16), drawn("cuda", 2, 3, 96, 50, dtype=BF16)
    expected = Reference.of(a, b)
    for x, y in ((a, b), (a.transpose(1, 2).contiguous().transpose(1, 2), b)):
        for layout in PAIRS:
            result = SGEMM._matmul(aligned(x, layout[0]), aligned(y, layout[1]), row.name)
            assert expected.units(result) <= error_bound(96, row.name)
    shared = SGEMM.bmm(aligned(a[0]), aligned(b[0, :1]).expand(3, 96, 50), row.name)
    assert Reference.of(a[0], b[0, 0]).units(shared) <= error_bound(96, row.name)


@each_row
def test_a_matrix_times_its_transpose_is_symmetric(row: Kernel) -> None:
    for m, k in ((40, 64), (300, 1000), (520, 5000)):
        for x in (drawn("cuda", m, k, dtype=BF16), drawn("cuda", k, m, dtype=BF16).mT):
            x = aligned(x, "N" if x.stride(-1) == 1 else "T")
            for _, d in by_each_plan(row, x, x.mT):
                assert torch.equal(d, d.mT)
                assert Reference.of(x, x.mT).units(d) <= error_bound(k, row.name)


@each_row
def test_nothing_is_multiplied(row: Kernel) -> None:
    nan = torch.full((40, 16), math.nan, dtype=BF16, device="cuda")
    c = torch.randn(40, 40, device="cuda")
    assert torch.equal(SGEMM.addmm(c, nan, nan.mT, row.name, beta=3, alpha=0), 3 * c)
    empty = nan[:, :0]
    assert torch.equal(SGEMM.addmm(c, empty, empty.mT, row.name), c)


@each_row
def test_inf_and_nan(row: Kernel) -> None:
    """Inf and NaN stand where IEEE arithmetic puts them, in every plan."""
    for m, n, k in ((40, 48, 64), (300, 136, 2000)):
        for values in ((math.inf,), (-math.inf,), (math.nan,), (math.inf, -math.inf)):
            a, b = drawn("cuda", m, k, dtype=BF16), drawn("cuda", k, n, dtype=BF16, seed=1)
            a[2], b[:, 1] = 0, 0
            for i, value in enumerate(values):
                a[7, 5 * i], b[k // 2 + i, 9] = value, value
            expected = a.double() @ b.double()
            for layout in PAIRS:
                for plan, d in by_each_plan(row, aligned(a, layout[0]), aligned(b, layout[1])):
                    where = (m, values, layout, plan)
                    assert torch.equal(d.isnan(), expected.isnan()), where
                    infinite = expected.isinf()
                    assert torch.equal(d[infinite].double(), expected[infinite]), where
                    assert bool(d[~infinite & ~expected.isnan()].isfinite().all()), where


@each_row
def test_sums_that_overflow_in_parts(row: Kernel) -> None:
    """A result is finite or infinite as the sum in order of k is."""
    k = 2048
    for period in (1, 40, 700):
        sign = 1 - 2 * (torch.arange(k) // period % 2)
        line = (3e38 / period) * sign
        a = torch.ones(64, k).bfloat16()
        a[3:9] = line.bfloat16()
        a[20] = 1e38
        b = torch.ones(k, 72).bfloat16()
        b[:, 5] = 0.5
        expected = torch.zeros(64, 72)
        for q in range(k):
            expected += a[:, q, None].float() * b[q].float()
        for plan, d in by_each_plan(row, a.cuda(), b.cuda()):
            assert torch.equal(d[3:21].cpu(), expected[3:21]), (period, plan)
            assert bool(d.isfinite()[:20].all()), (period, plan)


@each_row
def test_tiny_products(row: Kernel) -> None:
    """Products below float32's normal range lose no more than the smallest subnormal each."""
    for exponent in (-126, -140, -149):
        a = aligned((drawn("cuda", 40, 200) * 2.0**-60).bfloat16())
        b = aligned((drawn("cuda", 200, 48) * 2.0 ** (exponent + 60)).bfloat16())
        reference = Reference.of(a, b)
        for _, d in by_each_plan(row, a, b):
            lost = 2 * roundings(200) * 2.0**-150
            error = (d.double() - reference.value).abs()
            bound = error_bound(200, row.name) * UNIT * reference.scale + lost
            assert bool((error <= bound).all())


@each_row
def test_a_line_of_one_large_product_among_small_ones(row: Kernel) -> None:
    """The large product stands at each place of a window.

    Beside it a tensor core cuts off bits of the small products.
    """
    for at in (0, 15, 16, 31, 32, 63, 64, 127):
        small = 2.0**-24 * (2 - 2.0**-6)
        a = torch.full((8, 128), small).bfloat16().cuda()
        b = torch.ones(128, 8).bfloat16().cuda()
        a[:, at] = 1.0
        for _, d in by_each_plan(row, a, b):
            assert Reference.of(a, b).units(d) <= error_bound(128, row.name)


@each_row
def test_gradients_are_products_of_the_family(row: Kernel) -> None:
    a, b = (drawn("cuda", 64, 64, dtype=BF16, seed=i).requires_grad_() for i in (0, 1))
    SGEMM.mm(a, b, row.name).sum().backward()
    ones = torch.ones(64, 64, device="cuda")
    assert torch.equal(a.grad, SGEMM.mm(ones, b.detach().mT, row.family).to(BF16))
    assert torch.equal(b.grad, SGEMM.mm(a.detach().mT, ones, row.family).to(BF16))


@each_row
def test_wrong_operands_are_refused(row: Kernel) -> None:
    x = torch.zeros(16, 16, device="cuda")
    for a, b in ((x, x), (x.bfloat16(), x), (x.bfloat16(), x.half()), (x.half(), x.half())):
        with pytest.raises(RuntimeError, match="both bfloat16"):
            SGEMM.mm(a, b, row.name)
    odd = torch.zeros(16, 17, device="cuda").bfloat16()[:, 1:]
    with pytest.raises(RuntimeError, match="begin at multiples of 16 bytes"):
        SGEMM.mm(odd, odd, row.name)
    assert SGEMM.mm(odd, odd).dtype == torch.float32
