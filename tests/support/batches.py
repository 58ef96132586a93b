"""Operands of which rows are computed alone and beside others, of ``batch_invariant``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.data import generator
from support.table import KERNELS

KERNEL = "batch_invariant"
TILES = sorted(
    {size for row in KERNELS if row.batch_invariant for tile in row.tiles for size in tile}
)
SIZES = {
    "cpu": sorted({1, 2, 3, 8, 16, *(t + d for t in TILES if t <= 64 for d in (-1, 0, 1)), 100}),
    "cuda": sorted(
        {1, 2, 3, 8, 16, *(t + d for t in TILES for d in (-1, 0, 1)), 1000, 4096, 16384}
    ),
}
# (n, k): of layers, odd ones, fewer than a tile, and more of k than a slice has.
WEIGHTS = {
    "cpu": ((70, 33), (1, 200), (65, 128)),
    "cuda": ((1024, 1024), (4096, 1024), (1000, 4096), (129, 65), (1, 333), (64, 20000)),
}
MOST = {"cpu": 100, "cuda": 4096}  # rows, where not all sizes are tried
each_weight = [
    pytest.param(device, n, k, id=f"{device}-{n}x{k}", marks=marks)
    for device, marks in (("cpu", []), ("cuda", [pytest.mark.gpu]))
    for n, k in WEIGHTS[device]
]


# --- data -----------------------------------------------------------------------------------


def normal(rows: int, k: int, seed: int, device: str) -> Tensor:
    return torch.randn(rows, k, generator=generator(seed, device), device=device)


def some_redone(rows: int, k: int, seed: int, device: str) -> Tensor:
    """Few rows have a largest element that meets zeros, at most one row of a tile."""
    x = normal(rows, k, seed, device)
    x[7::160, 0] = 2.0**30
    return x


def all_redone(rows: int, k: int, seed: int, device: str) -> Tensor:
    """Elements of each row from 2^-40 to 2^40, the same for all: whole tiles."""
    powers = torch.randint(-40, 41, (k,), generator=generator(1, device), device=device)
    return normal(rows, k, seed, device) * torch.exp2(powers.float())


def mixed(rows: int, k: int, seed: int, device: str) -> Tensor:
    """Neighbours of all kinds: what one needs must not decide about another."""
    x = normal(rows, k, seed, device)
    gen = generator(seed + 1, device)
    x[1::13] *= torch.exp(3 * torch.randn(x[1::13].shape, generator=gen, device=device))
    x[2::13] = torch.softmax(6 * x[2::13], dim=1)
    x[3::13] = all_redone(rows, k, seed, device)[3::13]
    x[4::13] = 0
    x[5::13, k // 2 :] *= 2.0**-25
    x[6::13] *= 2.0**100  # no plain scale
    x[7::13] *= 2.0**-100  # results are subnormal, beside columns like it
    x[12::13, 0] = 2.0**30  # meets a zero
    x[8::13, k // 3] = torch.inf
    x[9::13, k // 4] = torch.nan
    x[10::13, k // 3] = -torch.inf
    x[10::13, 0] = torch.inf
    x[11::13, : k // 2 + 1] = 3e38  # may overflow in parts
    x[11::13, : k // 2 + 1 : 2] *= -1
    return x


KINDS: dict[str, Callable[[int, int, int, str], Tensor]] = {
    x.__name__: x for x in (normal, some_redone, all_redone, mixed)
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def operands(kind: str, m: int, n: int, k: int, device: str) -> tuple[Tensor, Tensor]:
    """(m, k) and (k, n); where A is scaled along k, B is scaled the other way. B begins with zeros
    where A's rows may have their largest element.
    """
    a = KINDS[kind](m, k, 3, device)
    if kind == "all_redone":
        return a, normal(k, n, 5, device) / (
            all_redone(1, k, 3, device) / normal(1, k, 3, device)
        ).t()
    b = KINDS[kind if kind == "mixed" else "normal"](n, k, 5, device)
    if kind != "normal":
        b[:, 0] = 0
    return a, b.t()


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


def assert_same(part: Tensor, whole: Tensor, *where: object) -> None:
    """Bit by bit; a NaN is a NaN."""
    assert part.shape == whole.shape
    same = (bits(part) == bits(whole)) | (part.isnan() & whole.isnan())
    assert same.all(), (*where, f"{(~same).sum()} of {same.numel()} elements differ")


def parts(m: int) -> list[slice]:
    """Returns the first m rows, m rows that begin within a tile, and the last m rows."""
    return [slice(0, m), slice(5, 5 + m), slice(-m, None)]
