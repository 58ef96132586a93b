"""Run as a program: every CPU row on operands that touch unreadable pages on one side.

``python -m support.page_guard before|after``: a read or write one element outside an operand
kills the process, and the last line of its output names the row.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import sys

import numpy as np
import torch
from torch import Tensor

from support.data import integers
from support.table import fit, runnable

PAGE = mmap.PAGESIZE
PROT_NONE = 0


def fenced(rows: int, cols: int, side: str) -> Tensor:
    """A packed rows x cols matrix that ends at (or begins right after) an unreadable page."""
    size = 4 * rows * cols
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    for page in (0, pages + 1):
        status = libc.mprotect(
            ctypes.c_void_p(base + page * PAGE), ctypes.c_size_t(PAGE), PROT_NONE
        )
        if status != 0:
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = PAGE if side == "before" else (pages + 1) * PAGE - size
    return torch.from_numpy(np.frombuffer(memory, np.float32, rows * cols, offset)).view(rows, cols)


def main(side: str) -> None:
    faulthandler.enable()
    for row in runnable("cpu"):
        print(row.name, flush=True)
        for shape in ((33, 35, 9), (64, 64, 32), (129, 65, 17), (1, 7, 5)):
            m, n, k = fit(row, *shape)
            a, b, c = fenced(m, k, side), fenced(k, n, side), fenced(m, n, side)
            a.copy_(integers((m, k), 1))
            b.copy_(integers((k, n), 2))
            c.fill_(float("nan"))
            torch.ops.sgemm.gemm_(c, a, b, kernel=row.name)
            assert torch.equal(c.double(), a.double() @ b.double()), (m, n, k)
            # The same memory as column-major operands.
            c.fill_(float("nan"))
            at, bt = a.view(k, m).t(), b.view(n, k).t()
            torch.ops.sgemm.gemm_(c, at, bt, kernel=row.name)
            assert torch.equal(c.double(), at.double() @ bt.double()), (m, n, k)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
