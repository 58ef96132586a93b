"""A product of float32 matrices by Triton's tl.dot, which splits elements into TF32 or bfloat16.

The kernel is that of Triton's tutorial: a block has a tile of C and walks along k. Blocks are
numbered in groups of rows, so that those that run together share tiles of B in the L2 cache. The
fastest of CONFIGS is found once for each problem. It has no split along k.
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


@triton.autotune(configs=CONFIGS, key=["m", "n", "k", "PRECISION"])
@triton.jit
def _kernel(
    a, b, c, m, n, k,
    a_row, a_col, b_row, b_col, c_row, c_col,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    PRECISION: tl.constexpr, GROUP: tl.constexpr = 8,
):  # fmt: skip
    block = tl.program_id(0)
    across = tl.cdiv(n, TILE_N)
    first = block // (GROUP * across) * GROUP
    high = min(tl.cdiv(m, TILE_M) - first, GROUP)
    tile_m = first + block % (GROUP * across) % high
    tile_n = block % (GROUP * across) // high
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


def mm(a: Tensor, b: Tensor, out: Tensor, precision: str) -> None:
    """Writes a @ b to ``out``; ``precision``: of tl.dot, such as "tf32x3"."""
    (m, k), n = a.shape, b.shape[1]

    def blocks(tile: dict) -> tuple[int]:
        return (triton.cdiv(m, tile["TILE_M"]) * triton.cdiv(n, tile["TILE_N"]),)

    with torch.cuda.device(a.device):
        _kernel[blocks](
            a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride(), PRECISION=precision
        )
