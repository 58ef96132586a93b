"""Products of float32 matrices by Triton's tl.dot.

Both kernels are those of Triton's tutorials: a block has a tile of C and walks along k, without a
split along k. Tiles are numbered in groups of rows, so that those that are computed together share
tiles of B in the L2 cache.

``mm`` splits elements into TF32 or bfloat16. It has a block for each tile, and the fastest of
CONFIGS, which is found once for each problem.

``invariant_mm`` multiplies in float32 by FFMA. It has a block for each SM, and the same tiles for
every problem, so that a row of the result has the same bits for every m. vLLM's batch-invariant
mode has such a kernel, with these tiles for float32, but lets tl.dot take TF32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILES = (  # of m, n and k, warps, stages
    (128, 256, 32, 8, 3),
    (256, 128, 32, 8, 3),
    (128, 128, 32, 8, 3),
    (128, 128, 32, 4, 3),
    (128, 128, 64, 8, 2),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 64, 32, 4, 4),
    (32, 64, 64, 4, 4),
    (16, 64, 64, 4, 4),
)
CONFIGS = [
    triton.Config({"TILE_M": m, "TILE_N": n, "TILE_K": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in TILES
]


INVARIANT = {"TILE_M": 128, "TILE_N": 128, "TILE_K": 32}
INVARIANT_WARPS, INVARIANT_STAGES = 8, 3


@triton.jit
def _multiply(
    at, a, b, c, m, n, k,
    a_row, a_col, b_row, b_col, c_row, c_col,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    PRECISION: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Computes the tile with the number ``at``."""
    across = tl.cdiv(n, TILE_N)
    first = at // (GROUP * across) * GROUP
    high = min(tl.cdiv(m, TILE_M) - first, GROUP)
    tile_m = first + at % (GROUP * across) % high
    tile_n = at % (GROUP * across) // high
    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    cols = tile_n * TILE_N + tl.arange(0, TILE_N)
    depth = tl.arange(0, TILE_K)
    # Rows and columns beyond the end repeat others; their results aren't stored.
    a_at = a + (rows % m).to(tl.int64)[:, None] * a_row + depth[None, :] * a_col
    b_at = b + depth[:, None] * b_row + (cols % n).to(tl.int64)[None, :] * b_col
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, TILE_K)):
        left = k - step * TILE_K
        a_tile = tl.load(a_at, mask=depth[None, :] < left, other=0.0)
        b_tile = tl.load(b_at, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(a_tile, b_tile, total, input_precision=PRECISION)
        a_at += TILE_K * a_col
        b_at += TILE_K * b_row
    c_at = c + rows.to(tl.int64)[:, None] * c_row + cols[None, :] * c_col
    tl.store(c_at, total, mask=(rows < m)[:, None] & (cols < n)[None, :])


@triton.autotune(configs=CONFIGS, key=["m", "n", "k", "PRECISION"])
@triton.jit
def _kernel(
    a, b, c, m, n, k,
    a_row, a_col, b_row, b_col, c_row, c_col,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    PRECISION: tl.constexpr, GROUP: tl.constexpr = 8,
):  # fmt: skip
    _multiply(
        tl.program_id(0), a, b, c, m, n, k, a_row, a_col, b_row, b_col, c_row, c_col,
        TILE_M, TILE_N, TILE_K, PRECISION, GROUP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["m"])  # the same code for every m
def _persistent_kernel(
    a, b, c, m, n, k,
    a_row, a_col, b_row, b_col, c_row, c_col,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP: tl.constexpr = 8,
):  # fmt: skip
    tiles = tl.cdiv(m, TILE_M) * tl.cdiv(n, TILE_N)
    for at in range(tl.program_id(0), tiles, tl.num_programs(0)):
        _multiply(
            at, a, b, c, m, n, k, a_row, a_col, b_row, b_col, c_row, c_col,
            TILE_M, TILE_N, TILE_K, "ieee", GROUP,
        )  # fmt: skip


def _tiles(m: int, n: int, tile: dict) -> int:
    return triton.cdiv(m, tile["TILE_M"]) * triton.cdiv(n, tile["TILE_N"])


def mm(a: Tensor, b: Tensor, out: Tensor, precision: str) -> None:
    """Writes a @ b to ``out``; ``precision``: of tl.dot, such as "tf32x3"."""
    (m, k), n = a.shape, b.shape[1]
    with torch.cuda.device(a.device):
        _kernel[lambda tile: (_tiles(m, n, tile),)](
            a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(), PRECISION=precision
        )


def invariant_mm(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Writes a @ b to ``out``; a row of it has the same bits for every number of rows."""
    (m, k), n = a.shape, b.shape[1]
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    with torch.cuda.device(a.device):
        _persistent_kernel[(min(sms, _tiles(m, n, INVARIANT)),)](
            a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(), **INVARIANT,
            num_warps=INVARIANT_WARPS, num_stages=INVARIANT_STAGES,
        )  # fmt: skip
