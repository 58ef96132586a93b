"""A problem, and operands for it that rotate through more memory than the L2 cache holds."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

SHAPES = Path(__file__).parent / "shapes.json"
ALIGN = 64  # elements: 256 bytes, as PyTorch's allocator aligns
L2_MULTIPLE = 4  # memory of all sets of operands, in units of the L2 cache
MAX_SETS = 256


def positive(text: str) -> int:
    """Parses a size or a count from the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}; accepted: 1 and more")
    return value


class Operands(NamedTuple):
    """A, B and C, which is written (and read if beta is not 0)."""

    a: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class Problem:
    """C[m,n] = alpha * op(A)[m,k] op(B)[k,n] + beta * C, float32, ``batch`` times.

    ``ops`` is the storage of A and B: N row-major, T transposed. C is row-major. ``gram``: B is A
    transposed, a view of the same memory, so that ops is NT or TN and n is m.
    """

    m: int
    n: int
    k: int
    ops: str = "NN"
    batch: int = 1
    alpha: float = 1.0
    beta: float = 0.0
    gram: bool = False

    @staticmethod
    def square(size: int) -> Problem:
        """size x size x size, row-major."""
        return Problem(size, size, size)

    @property
    def flops(self) -> float:
        """Floating-point operations: 2 m n k a product."""
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def stored(self) -> list[tuple[int, int, str]]:
        """Returns rows, columns and layout of A, B and C, without a B that is A transposed."""
        a, b, c = (
            (self.m, self.k, self.ops[0]),
            (self.k, self.n, self.ops[1]),
            (self.m, self.n, "N"),
        )
        return [a, c] if self.gram else [a, b, c]

    @property
    def bytes(self) -> int:
        """Memory of A, B and C together."""
        return 4 * self.batch * sum(rows * cols for rows, cols, _ in self.stored)

    @property
    def in_place(self) -> bool:
        """True if it takes alpha and beta: gemm_ and torch.addmm rather than mm."""
        return self.alpha != 1 or self.beta != 0

    @property
    def label(self) -> str:
        """``4096 x 4096 x 768 NT``."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m} x {self.n} x {self.k} {self.ops}"

    def as_dict(self) -> dict:
        """Returns the sizes, to be recorded."""
        return {"m": self.m, "n": self.n, "k": self.k, "ops": self.ops, "batch": self.batch}


@dataclass(frozen=True)
class Pool:
    """Sets of operands of one problem in one allocation.

    ``cold``: True if one pass through the sets displaces the L2 cache. If False, the cache is
    flushed before each timed replay instead, and no set is used twice in a replay.
    """

    sets: list[Operands]
    cold: bool


def in_16_bits(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Returns x in 16 bits, in the same layout; rows, or columns, begin at multiples of 16 bytes.

    The gaps between them are NaN.
    """
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        return in_16_bits(x.mT, dtype).mT
    cols = x.shape[-1]
    room = x.new_full((*x.shape[:-1], -cols % 8 + cols), math.nan, dtype=dtype)
    room[..., :cols] = x
    return room[..., :cols]


def cold_pool(problem: Problem, device: torch.device, seed: int) -> Pool:
    """Makes sets of operands that displace each other from the device's L2 cache."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return make_pool(problem, device, seed, l2)


def make_pool(problem: Problem, device: torch.device, seed: int, l2_bytes: int = 0) -> Pool:
    """Makes uniform(-1, 1) operands on ``device``, as many sets as exceed the L2 cache."""
    stride = _set_elements(problem)
    count = min(max(math.ceil(L2_MULTIPLE * l2_bytes / (4 * stride)), 1), MAX_SETS)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        count = max(1, min(count, free // 2 // (4 * stride)))
    generator = torch.Generator(device=device).manual_seed(seed)
    flat = torch.empty(count * stride, device=device)
    # In pieces: a uniform_ of more than 2^31 elements is needlessly close to index limits.
    for piece in flat.split(1 << 30):
        piece.uniform_(-1, 1, generator=generator)
    sets = [_carve(problem, flat, i * stride) for i in range(count)]
    cold = count * 4 * stride >= L2_MULTIPLE * l2_bytes
    return Pool(sets, cold)


def _padded(elements: int) -> int:
    return (elements + ALIGN - 1) // ALIGN * ALIGN


def _set_elements(p: Problem) -> int:
    return sum(_padded(p.batch * rows * cols) for rows, cols, _ in p.stored)


def _carve(p: Problem, flat: Tensor, offset: int) -> Operands:
    views = []
    for rows, cols, op in p.stored:
        count = p.batch * rows * cols
        part = flat[offset : offset + count]
        view = (
            part.view(p.batch, rows, cols)
            if op == "N"
            else part.view(p.batch, cols, rows).transpose(1, 2)
        )
        views.append(view if p.batch > 1 else view[0])
        offset += _padded(count)
    if p.gram:
        views.insert(1, views[0].mT)
    return Operands(*views)


def load_cases(path: Path = SHAPES) -> list[tuple[str, str, Problem]]:
    """Yields (group, source, problem) of each case of shapes.json."""
    cases = json.loads(path.read_text())["cases"]
    return [
        (c["group"], c["source"], Problem(c["m"], c["n"], c["k"], c["ops"], c["batch"]))
        for c in cases
    ]
