"""Errors against float64 in units of 2^-24 (|alpha| |A||B| + |beta| |C|), and what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from support.table import FFMA_FAMILIES, Kernel

UNIT = 2.0**-24


@dataclass(frozen=True)
class Reference:
    """A product in float64 and the magnitude that its rounding errors are measured by."""

    value: Tensor
    scale: Tensor

    @staticmethod
    def of(
        a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1, beta: float = 0
    ) -> Reference:
        """alpha A B + beta C for [m, k], [k, n] or batches of them; C is not read if beta is 0."""
        a, b = a.double(), b.double()
        value, scale = alpha * (a @ b), abs(alpha) * (a.abs() @ b.abs())
        if c is not None and beta != 0:
            value, scale = value + beta * c.double(), scale + abs(beta) * c.double().abs()
        return Reference(value, scale)

    def units(self, result: Tensor) -> float:
        """The largest error of ``result`` in units; NaN where an element is NaN."""
        error = (result.double() - self.value).abs()
        # Where the scale is 0 nothing is added up: any error at all is infinitely many units.
        ratio = (error / (self.scale * UNIT)).where(error != 0, 0.0)
        return float(ratio.max()) if ratio.numel() else 0.0


def ffma_units(k: int) -> float:
    """What a product of float32 multiply-adds may be off by."""
    return min(k + 2, 4 * math.sqrt(k) + 8)


def contract_units(torch_units: float) -> float:
    """What any kernel that "auto" may choose may be off by, given torch.mm's own error."""
    return max(2 * torch_units, 8.0)


def allowed_units(row: Kernel, k: int, torch_units: float) -> float:
    """The bound that ``row`` is held to."""
    return ffma_units(k) if row.family in FFMA_FAMILIES else contract_units(torch_units)
