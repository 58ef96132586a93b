"""The two sides of every comparison: torch's own product, and one row of the kernel table.

Both write into a given C, so that neither is charged for an allocation. Other sides show what
float32 costs: torch's product in TF32 and with bfloat16 operands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

import torch_sgemm
from benchmarks.problems import Operands, Pool, Problem

TORCH, TF32, BF16 = "torch", "tf32", "bf16"
OWN_BF16, OWN_MIXED = "own_bf16", "own_mixed"
# Sides other than float32 products of float32 operands: a column's title, and a chart's label.
INFORMATION = {
    TF32: ("TF32", "torch in TF32"),
    BF16: ("bf16", "torch with bf16 operands"),
    OWN_BF16: ("own bf16", "auto with bf16 operands"),
    OWN_MIXED: ("own mixed", "auto with a bf16 B"),
}


@dataclass(frozen=True)
class Side:
    """A name, and a function that works on one set of operands."""

    name: str
    run: Callable[[Operands], None]


def torch_side(problem: Problem) -> Side:
    """Returns the side of torch.mm, torch.bmm, or, with alpha and beta, in-place torch.addmm."""
    if problem.in_place:
        product = torch.baddbmm if problem.batch > 1 else torch.addmm
        scale = {"alpha": problem.alpha, "beta": problem.beta}
        return Side(TORCH, lambda s: product(s.c, s.a, s.b, out=s.c, **scale))
    product = torch.bmm if problem.batch > 1 else torch.mm
    return Side(TORCH, lambda s: product(s.a, s.b, out=s.c))


def sgemm_side(problem: Problem, kernel: str) -> Side:
    """Returns the side of torch.ops.sgemm with ``kernel``: "auto", a family or a row's name."""
    ops = torch.ops.sgemm
    if problem.in_place:
        scale = {"alpha": problem.alpha, "beta": problem.beta}
        return Side(kernel, lambda s: ops.gemm_.default(s.c, s.a, s.b, kernel=kernel, **scale))
    product = ops.bmm_out.default if problem.batch > 1 else ops.mm_out.default
    return Side(kernel, lambda s: product(s.a, s.b, kernel=kernel, out=s.c))


def tf32_side(problem: Problem) -> Side:
    """Returns torch's side with TF32 allowed, only while it is called or captured."""
    float32 = torch_side(problem)

    def run(s: Operands) -> None:
        with _tf32():
            float32.run(s)

    return Side(TF32, run)


def bf16_sides(pool: Pool) -> tuple[Side, Side, Side]:
    """Returns products of operands rounded to bfloat16 before; matrices only, no batches.

    The first is torch.mm's, in float32 on a GPU (torch has no such product on the CPU). The second
    is torch.ops.sgemm's by "auto". In the third only B was rounded, like a layer's weight.
    """
    rounded = _rounded(pool)

    def theirs(s: Operands) -> None:
        a, b = rounded[s.a.data_ptr()]
        if s.c.is_cuda:
            torch.mm(a, b, out_dtype=torch.float32, out=s.c)
        else:
            s.c.copy_(torch.mm(a, b))

    def ours(s: Operands) -> None:
        a, b = rounded[s.a.data_ptr()]
        torch.ops.sgemm.mm_out(a, b, out=s.c)

    def mixed(s: Operands) -> None:
        torch.ops.sgemm.mm_out(s.a, rounded[s.a.data_ptr()][1], out=s.c)

    return Side(BF16, theirs), Side(OWN_BF16, ours), Side(OWN_MIXED, mixed)


def _rounded(pool: Pool) -> dict[int, tuple[Tensor, Tensor]]:
    """Returns A and B of each set in bfloat16, by A's address."""
    rounded = {}
    for s in pool.sets:
        a = s.a.bfloat16()
        rounded[s.a.data_ptr()] = a, a.mT if s.b.data_ptr() == s.a.data_ptr() else s.b.bfloat16()
    return rounded


def packed_side(name: str, pool: Pool, kernel: str = "auto") -> Side:
    """Returns the side with each set's B packed, for graphs too. It returns new tensors."""
    # Packs .data, which has a version of its own: all sets are views of one tensor.
    packed = {s.b.data_ptr(): torch_sgemm.pack(s.b.data, frozen=True) for s in pool.sets}

    def run(s: Operands) -> None:
        result = packed[s.b.data_ptr()].mm(s.a, kernel=kernel)
        if not s.a.is_cuda or not torch.cuda.is_current_stream_capturing():
            s.c.copy_(result)  # outside of timing, so that callers can read C

    return Side(name, run)


def strict_float32() -> None:
    """Turns TF32 off, so that both sides compute float32 products.

    Raises RuntimeError if NVIDIA_TF32_OVERRIDE would turn it on again without torch's knowledge.
    """
    if os.environ.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        raise RuntimeError("NVIDIA_TF32_OVERRIDE is set: torch.mm would not compute in float32")
    name, strict, _ = _precision()
    setattr(torch.backends.cuda.matmul, name, strict)


def _precision() -> tuple[str, str | bool, str | bool]:
    """Returns torch's setting for float32 products, its value without TF32 and with it."""
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return "fp32_precision", "ieee", "tf32"
    return "allow_tf32", False, True


@contextmanager
def _tf32() -> Iterator[None]:
    matmul, (name, _, allowed) = torch.backends.cuda.matmul, _precision()
    before = getattr(matmul, name)
    setattr(matmul, name, allowed)
    try:
        yield
    finally:
        setattr(matmul, name, before)
