"""Parts that tests of the split family share: its rows, and the contract of their products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.bounds import Reference, contract_units
from support.table import arch, rows

TILE = 128
(ROW,) = rows(name="split_fp16x3", tiles=False)  # takes packed operands' planes


def within_contract(a: Tensor, b: Tensor, result: Tensor) -> bool:
    reference = Reference.of(a, b)
    return reference.units(result) <= contract_units(reference.units(torch.mm(a, b)))


def needs_planes() -> None:
    """Skips where no product reads a packed operand's planes."""
    if not ROW.runs_on(arch()):
        pytest.skip(f"{ROW.name} needs sm_{ROW.min_arch}")
