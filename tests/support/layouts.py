"""Operands in every layout, inside memory that is guarded on all sides and between rows."""

from __future__ import annotations

import torch
from torch import Tensor

GUARD = 64  # elements before and after an operand; 256 bytes, so that alignment is the layout's own
POISON = 0x7FC5A5A5  # a quiet NaN: what is read from outside an operand shows in the result

# N is row-major, T column-major. pad: a leading dimension larger than the row, off: a storage
# offset that leaves 4-byte (1, 3) or 8-byte (2) alignment, sliced: neither stride is 1.
READABLE = (
    "N", "T", "N_pad", "T_pad", "N_pad4", "T_pad4", "N_off1", "N_off2", "N_off3", "T_off1",
    "T_off3", "sliced", "rows_expanded", "cols_expanded", "all_expanded",
)  # fmt: skip
WRITABLE = tuple(name for name in READABLE if not name.endswith("expanded"))
PAIRS = ("NN", "NT", "TN", "TT")


def strides_of(layout: str, rows: int, cols: int) -> tuple[int, int]:
    """Row and column stride of a rows x cols matrix in ``layout``."""
    base = layout.split("_")[0]
    if layout == "sliced":  # every second row and third column of a larger matrix
        return 2 * (3 * cols + 1), 3
    if layout == "rows_expanded":
        return 0, 1
    if layout == "cols_expanded":
        return 1, 0
    if layout == "all_expanded":
        return 0, 0
    length = cols if base == "N" else rows
    if layout.endswith("_pad"):
        length += 5
    elif layout.endswith("_pad4"):  # 16-byte aligned rows
        length = (length + 3) // 4 * 4 + 4
    length = max(length, 1)
    return (length, 1) if base == "N" else (1, length)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """A row-major matrix as it is (N), or copied to column-major (T)."""
    return x if layout == "N" else x.mT.contiguous().mT


def meta(
    rows: int, cols: int, layout: str = "N", batch: tuple[int, ...] = (), pad: int = 0
) -> Tensor:
    """Makes a matrix without memory, row-major (N) or column-major (T).

    Its rows, or columns, have gaps of ``pad`` elements.
    """
    if layout == "N":
        return torch.empty(*batch, rows, cols + pad, device="meta")[..., :cols]
    return meta(cols, rows, "N", batch, pad).mT


class Guarded:
    """A strided view whose surroundings hold a pattern that must survive.

    ``shape`` is [rows, cols] or [batch, rows, cols]; matrices of a batch lie 7 elements apart,
    or are one and the same where ``shared``. Without ``values`` the view itself holds NaN.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        layout: str = "N",
        device: str | torch.device = "cpu",
        values: Tensor | None = None,
        shared: bool = False,
    ) -> None:
        *batch, rows, cols = shape
        row, col = strides_of(layout, rows, cols)
        span = max(rows - 1, 0) * row + max(cols - 1, 0) * col + 1
        strides = [row, col] if not batch else [0 if shared else span + 7, row, col]
        extent = span if not batch else span + max(batch[0] - 1, 0) * strides[0]
        offset = GUARD + (int(layout[-1]) if "_off" in layout else 0)
        self.buffer = torch.full(
            (offset + extent + GUARD,), POISON, dtype=torch.int32, device=device
        ).view(torch.float32)
        self.view = self.buffer.as_strided(shape, strides, offset)
        if values is not None:
            self.fill(values)
        self.before = self.buffer.clone()

    def fill(self, values: Tensor) -> None:
        """Writes ``values``; an expanded dimension takes the first of them."""
        target = self.view
        for dim, stride in enumerate(target.stride()):
            if stride == 0 and target.shape[dim] > 1:
                target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
        target.copy_(values)
        self.before = self.buffer.clone()

    def unchanged(self) -> bool:
        """Returns True if no bit changed, in the operand or around it."""
        return torch.equal(self.buffer.view(torch.int32), self.before.view(torch.int32))

    def guards_unchanged(self) -> bool:
        """Returns True if no bit changed outside the view's own elements."""
        expected = self.before.clone()
        view = self.view
        expected.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(view)
        return torch.equal(self.buffer.view(torch.int32), expected.view(torch.int32))
