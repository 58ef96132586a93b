"""Shapes, layouts, strides, offsets and batches; every operand lies in guarded memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data import integers
from support.layouts import PAIRS, READABLE, WRITABLE, Guarded
from support.sizes import SIZES, Shape, latin, tile_edges
from support.table import Kernel, fit

SMALL = tuple(size for size in SIZES if size <= 9)
MIDDLE = tuple(size for size in SIZES if 31 <= size <= 65)
LARGE = tuple(size for size in SIZES if size >= 127)
LATIN_ROWS = {"cpu": {SMALL: None, MIDDLE: None, LARGE: [0, 2]}, "cuda": {}}


def check_mm(
    row: Kernel,
    device: str,
    shape: Shape,
    layouts: tuple[str, str],
    out_layout: str = "N",
    batch: int = 0,
) -> None:
    """One product of integers: exact, every element written, nothing else touched."""
    m, n, k = shape = fit(row, *shape)
    lead = (batch,) if batch else ()
    a = Guarded((*lead, m, k), layouts[0], device, integers((*lead, m, k), 1, device))
    b = Guarded((*lead, k, n), layouts[1], device, integers((*lead, k, n), 2, device))
    out = Guarded((*lead, m, n), out_layout, device)
    op = torch.ops.sgemm.bmm_out if batch else torch.ops.sgemm.mm_out
    op(a.view, b.view, kernel=row.name, out=out.view)
    where = f"{row.name} {device} {shape} {layouts} -> {out_layout} batch {batch}"
    assert torch.equal(out.view.double(), a.view.double() @ b.view.double()), where
    assert out.guards_unchanged(), where
    assert a.unchanged() and b.unchanged(), where


@pytest.mark.parametrize("layouts", PAIRS)
@pytest.mark.parametrize("sizes", [SMALL, MIDDLE, LARGE], ids=["small", "middle", "large"])
def test_sizes(row: Kernel, device: str, sizes: tuple[int, ...], layouts: str) -> None:
    for shape in latin(sizes, LATIN_ROWS[device].get(sizes)):
        check_mm(row, device, shape, (layouts[0], layouts[1]))


@pytest.mark.parametrize("layouts", PAIRS)
def test_tile_edges(row: Kernel, device: str, layouts: str) -> None:
    for shape in tile_edges(row):
        check_mm(row, device, shape, (layouts[0], layouts[1]))


@pytest.mark.parametrize("layout", READABLE)
def test_layouts(row: Kernel, device: str, layout: str) -> None:
    """Each layout on either side; the other operand and the output go through all of theirs."""
    shift = READABLE.index(layout)
    for i, other in enumerate(READABLE if device == "cuda" else READABLE[shift % 3 :: 3]):
        out_layout = WRITABLE[(i + shift) % len(WRITABLE)]
        check_mm(row, device, (33, 35, 20), (layout, other), out_layout)
        check_mm(row, device, (20, 67, 33), (other, layout), out_layout)


@pytest.mark.parametrize("out_layout", WRITABLE)
def test_in_place_layouts(row: Kernel, device: str, out_layout: str) -> None:
    """gemm_ reads and writes C through its own strides."""
    m, n, k = fit(row, 45, 37, 29)
    a, b = integers((m, k), 1, device), integers((k, n), 2, device)
    c = Guarded((m, n), out_layout, device, integers((m, n), 3, device))
    expected = 2 * (a.double() @ b.double()) - c.view.double()
    torch.ops.sgemm.gemm_(c.view, a, b, alpha=2, beta=-1, kernel=row.name)
    assert torch.equal(c.view.double(), expected)
    assert c.guards_unchanged()


@pytest.mark.parametrize("batch", [1, 3])
def test_batches(row: Kernel, device: str, batch: int) -> None:
    for i, layouts in enumerate((("N", "N"), ("T", "N_pad"), ("sliced", "T"), ("N_off1", "T_pad"))):
        check_mm(row, device, (33, 34, 19), layouts, WRITABLE[3 * i], batch)
    check_mm(row, device, (70, 3, 5), ("N", "N"), "T", batch)


def test_shared_and_permuted_batches(row: Kernel, device: str) -> None:
    """A batch stride of 0, and a batch that is the innermost dimension."""
    a = Guarded((4, 21, 18), "N", device, integers((4, 21, 18), 1, device), shared=True)
    b = integers((18, 23, 4), 2, device).permute(2, 0, 1)
    out = torch.full((21, 23, 4), float("nan"), device=device).permute(2, 0, 1)
    torch.ops.sgemm.bmm_out(a.view, b, kernel=row.name, out=out)
    assert torch.equal(out.double(), a.view.double() @ b.double())


def test_c_of_addmm_in_every_layout(row: Kernel, device: str) -> None:
    """addmm's C may be expanded or strided, and broadcasts."""
    m, n, k = fit(row, 34, 39, 17)
    a, b = integers((m, k), 1, device), integers((k, n), 2, device)
    for layout in READABLE:
        c = Guarded((m, n), layout, device, integers((m, n), 3, device))
        out = Guarded((m, n), "N_pad", device)
        torch.ops.sgemm.addmm_out(c.view, a, b, beta=-2, alpha=3, kernel=row.name, out=out.view)
        expected = 3 * (a.double() @ b.double()) - 2 * c.view.double()
        assert torch.equal(out.view.double(), expected), layout
        assert c.unchanged() and out.guards_unchanged(), layout


extent = st.integers(0, 70)
scalar = st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0, -3.0])


@pytest.mark.parametrize("part", range(2))
def test_random_problems(row: Kernel, device: str, part: int) -> None:
    """Random shapes, layouts, batches and scalars, shrunk to the smallest failure."""

    @settings(max_examples=60 if device == "cuda" else 30)
    @given(
        shape=st.tuples(extent, extent, extent),
        layouts=st.tuples(
            st.sampled_from(READABLE), st.sampled_from(READABLE), st.sampled_from(WRITABLE)
        ),
        batch=st.sampled_from([0, 0, 1, 3]) if part else st.just(0),
        alpha=scalar,
        beta=scalar,
        seed=st.integers(0, 2**16),
    )
    def run(shape, layouts, batch, alpha, beta, seed) -> None:
        m, n, k = fit(row, *shape)
        lead = (batch,) if batch else ()
        a = Guarded((*lead, m, k), layouts[0], device, integers((*lead, m, k), seed, device))
        b = Guarded((*lead, k, n), layouts[1], device, integers((*lead, k, n), seed + 1, device))
        c = Guarded((*lead, m, n), layouts[2], device, integers((*lead, m, n), seed + 2, device))
        expected = alpha * (a.view.double() @ b.view.double()) + beta * c.view.double()
        torch.ops.sgemm.gemm_(c.view, a.view, b.view, alpha=alpha, beta=beta, kernel=row.name)
        assert torch.equal(c.view.double(), expected)
        assert c.guards_unchanged() and a.unchanged() and b.unchanged()

    run()
