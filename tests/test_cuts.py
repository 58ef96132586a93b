"""Each way to cut a product up, wherever its operands lie: ieee_small, ieee_large, tall rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.data import integers
from support.layouts import PAIRS, Guarded, meta
from support.table import needs_cuda_build, row_params

import torch_sgemm

# On an H200.
SHAPES = {
    # Tiles of 16 x 16 by clusters of 1, 2, 4 and 8 blocks, of 32 x 16 and the other way round, of
    # 32 x 32; each with whole tiles and steps of k and with parts of them; slices of k; an operand
    # that many blocks read.
    "ieee_small": (
        (16, 16, 16), (1, 9, 3), (64, 48, 128), (130, 61, 127), (33, 17, 300), (96, 80, 513),
        (64, 64, 1000), (30, 33, 5003), (24, 20, 20001), (320, 320, 320), (319, 333, 63),
        (700, 600, 40), (5, 3000, 30), (3001, 7, 41), (1000, 1000, 17), (32, 32, 65536),
        (16, 20, 100003), (90, 100, 9001), (44, 301, 711), (353, 39, 718), (130, 211, 760),
        (75, 356, 1394), (296, 100, 683), (156, 182, 1200), (1152, 10, 4070),
        (4, 1000, 64), (600, 4, 200), (12, 3392, 90), (2048, 28, 128),
    ),
    # Clusters of 4, 3 and 2 blocks a tile, and of one; slices of k; all blocks sharing few tiles;
    # whole tiles, and those left over shared; several tiles a block; one, upright and swapped.
    "ieee_large": (
        (128, 128, 128), (300, 201, 1030), (768, 768, 96), (700, 765, 133), (1024, 1024, 64),
        (1000, 999, 131), (1100, 900, 40), (140, 100, 50000), (100, 1001, 5000), (1152, 1100, 1200),
        (2200, 2201, 700), (2600, 2600, 96), (5000, 4000, 33), (1, 300, 40), (20000, 60, 65),
    ),
    # Tiles of 4, 8, 16 and 32 columns, whole and not; several panels; many tiles a warp; pieces of
    # k; both ways round.
    "ieee_tall": (
        (64, 4, 16), (1, 1, 1), (70, 3, 5), (2000, 8, 33), (2001, 7, 9), (4097, 16, 64),
        (4100, 13, 128), (3001, 33, 20), (6000, 32, 31), (999, 70, 147), (64, 1280, 27),
        (197, 3001, 48), (5, 7, 300), (700, 100, 1000), (300001, 4, 4), (2, 300000, 5),
        (150000, 6, 9), (140001, 12, 17), (120000, 16, 8), (60000, 30, 40), (50, 27996, 22),
        (57, 31420, 90),
    ),
    # Each depth of k, whole and not; columns that are stored by fours, by way of shared memory and
    # one by one; several panels, many tiles a warp; pieces and slices of k; both ways round.
    "split_fp16x3_tall": (
        (16, 16, 16), (1, 1, 1), (2, 3, 5), (17, 8, 17), (2000, 24, 33), (2001, 7, 49),
        (4097, 64, 65), (4100, 13, 97), (3001, 33, 128), (6000, 130, 129), (999, 300, 100),
        (64, 1280, 27), (197, 3001, 48), (5, 7, 300), (700, 100, 1100), (300001, 4, 4),
        (2, 300000, 5), (60000, 72, 64), (130, 60001, 40), (40000, 257, 20), (20000, 65, 96),
    ),
}  # fmt: skip
# Of square products.
SIZES = {
    "ieee_small": (40,),
    "ieee_large": (160, 1024, 1200),
    "ieee_tall": (24, 200),
    "split_fp16x3_tall": (24, 100),
}

ROWS = row_params(("cuda",), keep=lambda row: row.name in SHAPES)


def each(cases: dict[str, tuple]) -> list:
    """Each case with its row."""
    return [
        pytest.param(*param.values, case, marks=param.marks, id=f"{param.id}-{case}")
        for param in ROWS
        for case in cases[param.values[0].name]
    ]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("row, device, shape", each(SHAPES))
def test_exact_in_every_layout(row, device, shape, offset, pair) -> None:
    """Alone and in a batch; ``offset`` elements from where four can be read at once."""
    m, n, k = shape
    for batch in (1, 3) if m * n < 2e6 else (1,):
        lead = f"_off{offset}" if offset else ""
        a, b = (
            Guarded((batch, *sizes), name + lead, device, integers((batch, *sizes), 1 + i, device))
            for i, (sizes, name) in enumerate(zip(((m, k), (k, n)), pair, strict=True))
        )
        product = a.view.double() @ b.view.double()
        for layout in "NT":
            c = integers((batch, m, n), 3, device)
            out = Guarded((batch, m, n), layout, device, c)
            torch.ops.sgemm.gemm_(out.view, a.view, b.view, alpha=2, beta=-1, kernel=row.name)
            assert torch.equal(out.view.double(), 2 * product - c.double())
            assert out.guards_unchanged() and a.unchanged() and b.unchanged()
        plain = torch.ops.sgemm.bmm(a.view, b.view, kernel=row.name)
        assert torch.equal(plain.double(), product)


@pytest.mark.parametrize("row, device, size", each(SIZES))
def test_results_follow_each_other(row, device, size) -> None:
    """Kernels that start before the one in front has ended read what it has written."""
    steps = [integers((size, size), seed, device, largest=1) for seed in range(8)]
    x = torch.eye(size, device=device)
    expected = x.double()
    for step in itertools.islice(itertools.cycle(steps), 60):
        x = torch.ops.sgemm.mm(step, x, kernel=row.name).remainder_(7)
        expected = (step.double() @ expected).remainder(7)
    assert torch.equal(x.double(), expected)
    moves = [torch.eye(size, device=device).roll(1 + i, 0) for i in range(6)]
    before = x
    for move in 4 * moves:  # nothing in between
        x = torch.ops.sgemm.mm(move, x, kernel=row.name)
    assert torch.equal(x, before.roll(4 * sum(range(1, 7)), 0))


@needs_cuda_build
@pytest.mark.parametrize(
    "shape",
    [(16, 16, 16), (128, 128, 128), (127, 129, 65), (64, 64, 1024), (16, 16, 500_000)],
)
def test_small_products_are_chosen(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for pair in PAIRS:
        a, b = meta(m, k, pair[0]), meta(k, n, pair[1])
        assert torch_sgemm.explain(a, b, device=torch_sgemm.Device()).chosen == "ieee_small"


@needs_cuda_build
@pytest.mark.parametrize(
    "shape",
    [
        (10**6, 8, 8), (400_000, 4, 4), (300_000, 7, 9), (500_000, 64, 64), (10**6, 32, 32),
        (200_000, 64, 128),
    ],
)  # fmt: skip
def test_tall_products_are_chosen(shape: tuple[int, int, int]) -> None:
    """One of the two rows: where the one takes as long as the other is for the models to say."""
    m, n, k = shape
    for pair in PAIRS:
        a, b = meta(m, k, pair[0]), meta(k, n, pair[1])
        for left, right in ((a, b), (b.mT, a.mT)):
            chosen = torch_sgemm.explain(left, right, device=torch_sgemm.Device()).chosen
            assert chosen in ("ieee_tall", "split_fp16x3_tall")


@needs_cuda_build
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (2048, 2048, 2048), (4097, 4095, 4099)])
def test_large_products_are_the_large_row_s(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    for pair in PAIRS:
        a, b = meta(m, k, pair[0]), meta(k, n, pair[1])
        explanation = torch_sgemm.explain(a, b, kernel="ieee", device=torch_sgemm.Device())
        assert explanation.chosen == "ieee_large"
