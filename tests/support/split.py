"""What tests of the split family share: its rows, and what a product of theirs has to keep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.bounds import Reference, contract_units
from support.table import KERNELS, TILED, Kernel, arch

SPLIT = [row for row in TILED if row.family == "split"]
each_split = pytest.mark.parametrize("row", SPLIT, ids=lambda row: row.name)
TILE = 128
ROW = next(row for row in KERNELS if row.name == "split_fp16x3")  # takes packed operands' planes


def within_contract(a: Tensor, b: Tensor, result: Tensor) -> bool:
    reference = Reference.of(a, b)
    return reference.units(result) <= contract_units(reference.units(torch.mm(a, b)))


def here(row: Kernel) -> None:
    if not row.runs_on(arch()):
        pytest.skip(f"{row.name} needs sm_{row.min_arch}")
