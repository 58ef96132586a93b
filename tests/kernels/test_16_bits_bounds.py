"""The proven bound for bfloat16 and float16 operands, by every row that takes them.

The tensor cores align a subnormal operand as if it were the least normal number, so opposite a
large element it cuts off the products beside it. The row unsplit doesn't scale its operands.
"""

from __future__ import annotations

import pytest
import torch
from support.bounds import Reference, roundings
from support.crafted import classes, in_order, inf_behind_overflow, infs_in_parts
from support.layouts import PAIRS, laid_out
from support.plans import by_each_plan
from support.table import ANY, PROVEN_FAMILIES, Kernel, arch, needs_cuda_build, rows
from torch import Tensor

from benchmarks.problems import in_16_bits
from torch_sgemm import error_bound
from torch_sgemm.measure import tensor_cores

SHORT = (torch.bfloat16, torch.float16)
DEPTHS = (16, 64, 1024)
UNSPLIT = rows(takes_float32=False)
PROVEN = rows(family=PROVEN_FAMILIES, takes_float32=ANY)
NAMES = ("auto", "ieee", "split", *(row.name for row in PROVEN))
each_short = pytest.mark.parametrize("short", SHORT, ids=str)
each_unsplit = pytest.mark.rows(takes_float32=False, device="cuda")
each_name = pytest.mark.parametrize("name", NAMES)
# A subnormal number, what it meets, and two factors whose product is cut off beside these.
HOSTILE = {
    torch.float16: (2.0**-24, 2.0**15, (2 - 2.0**-9) * 2.0**-12, 2.0**-13),
    torch.bfloat16: (2.0**-133, 2.0**100, (2 - 2.0**-6) * 2.0**-26, 2.0**-26),
}
SIZE = 96  # rows and columns: "auto" takes rows that read 16 bits from about 64 on


def subnormals(short: torch.dtype, k: int) -> tuple[Tensor, Tensor]:
    """A, with a subnormal element in each 16, 64 or all of k, and B, in float32."""
    least, large, x, y = HOSTILE[short]
    a, b = torch.full((SIZE, k), x), torch.full((SIZE, k), y)
    for i in range(SIZE):
        distance = (16, 64, k)[i // 16 % 3]
        a[i, i % 16 :: distance], b[i, i % 16 :: distance] = least, large
        if i % 2:
            a[i, i % 16 :: 2 * distance] = -least
    return a, b.t()


def tiny_gradients(k: int) -> tuple[Tensor, Tensor]:
    return torch.randn(SIZE, k) * 3e-7, torch.randn(k, SIZE)


def row_of(name: str) -> Kernel | None:
    return next((row for row in PROVEN if row.name == name), None)


def here(name: str, k: int) -> None:
    row = row_of(name)
    if row is not None and not (row.runs_on(arch()) and row.takes(SIZE, SIZE, k)):
        pytest.skip(f"{name} takes no product of these sizes, or doesn't run on this GPU")


def check(name: str, short: torch.dtype, a: Tensor, b: Tensor) -> None:
    k = a.size(1)
    here(name, k)
    a, b = a.cuda().to(short), b.cuda().to(short)
    reference = Reference.of(a, b)
    for layouts in PAIRS:
        x, y = (in_16_bits(laid_out(z, of), short) for z, of in zip((a, b), layouts, strict=True))
        for left, right, turned in ((x, y, False), (y.mT, x.mT, True)):
            try:
                found = torch.ops.sgemm.mm(left, right, kernel=name)
            except RuntimeError as error:
                if row_of(name) in UNSPLIT and short == torch.float16:
                    pytest.skip(f"{name} doesn't take float16: {error}")
                raise
            found = found.mT if turned else found
            units = reference.units_each(found, 2 * roundings(k))
            assert bool((units <= error_bound(k, name)).all()), (layouts, turned, units.max())


@pytest.mark.parametrize("k", DEPTHS)
@each_short
def test_the_operands_are_hostile(short: torch.dtype, k: int) -> None:
    """One product of the tensor cores alone is far outside, and the elements are 16-bit numbers."""
    a, b = subnormals(short, k)
    for x in (a, b):
        assert torch.equal(x.to(short).float(), x)
    zero = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    x, y = a.double(), b.t().double()
    total = zero
    for q in range(0, k, 64):
        part = slice(q, q + 64)
        total = total + tensor_cores.multiplied(zero, x[:, part], y[:, part], short)
    units = Reference.of(a, b).units_each(total.float(), 2 * roundings(k))
    assert bool((units.diagonal() > 5 * error_bound(k, "unsplit")).any())


@pytest.mark.gpu
@needs_cuda_build
@pytest.mark.parametrize("k", DEPTHS)
@each_short
@each_name
def test_subnormal_elements_keep_the_bound(name: str, short: torch.dtype, k: int) -> None:
    check(name, short, *subnormals(short, k))


@pytest.mark.gpu
@needs_cuda_build
@pytest.mark.parametrize("k", [8, *DEPTHS])
@each_name
def test_tiny_gradients_keep_the_bound(name: str, k: int) -> None:
    """The gradients are subnormal numbers of float16."""
    check(name, torch.float16, *tiny_gradients(k))


@pytest.mark.parametrize("k", [64, 300, 1024, 4096])
@each_unsplit
def test_inf_is_where_a_sum_in_order_has_it(row: Kernel, k: int) -> None:
    """This holds in every plan, also if a part of k overflows to the other Inf before."""
    for a, b in (inf_behind_overflow(k), infs_in_parts(k)):
        a, b = a.bfloat16(), b.bfloat16()
        for left, right in ((a, b), (b.t(), a.t())):
            expected = classes(in_order(left, right))
            x, y = (in_16_bits(z.cuda()) for z in (left, right))
            for plan, result in by_each_plan(row, x, y):
                assert torch.equal(classes(result.cpu()), expected), plan


@each_unsplit
def test_subnormal_elements_keep_the_bound_in_each_plan(row: Kernel) -> None:
    for k in DEPTHS:
        a, b = (x.cuda().bfloat16() for x in subnormals(torch.bfloat16, k))
        reference = Reference.of(a, b)
        for plan, result in by_each_plan(row, in_16_bits(a), in_16_bits(b)):
            units = reference.units_each(result, 2 * roundings(k))
            assert bool((units <= error_bound(k, row.name)).all()), (k, plan)
