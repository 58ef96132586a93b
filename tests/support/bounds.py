"""Errors against float64 in units of 2^-24 (|alpha| |A||B| + |beta| |C|), and what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from benchmarks.errors import tf32_bound
from support.table import FFMA_FAMILIES, Kernel
from torch_sgemm import error_bound

UNIT = 2.0**-24
PROVEN_BELOW = 2.0**127  # |A||B| of a bound that is proven


@dataclass(frozen=True)
class Reference:
    """A product in float64 and the magnitude that its rounding errors are measured by."""

    value: Tensor
    scale: Tensor
    product: Tensor | None = None  # |A||B|, before alpha

    @staticmethod
    def of(
        a: Tensor, b: Tensor, c: Tensor | None = None, alpha: float = 1, beta: float = 0
    ) -> Reference:
        """alpha A B + beta C for [m, k], [k, n] or batches of them; C is not read if beta is 0."""
        a, b = a.double(), b.double()
        product = a.abs() @ b.abs()
        value, scale = alpha * (a @ b), abs(alpha) * product
        if c is not None and beta != 0:
            value, scale = value + beta * c.double(), scale + abs(beta) * c.double().abs()
        return Reference(value, scale, product)

    def units(self, result: Tensor) -> float:
        """The largest error of ``result`` in units; NaN where an element is NaN."""
        error = (result.double() - self.value).abs()
        # Where the scale is 0 nothing is added up: any error at all is infinitely many units.
        ratio = (error / (self.scale * UNIT)).where(error != 0, 0.0)
        return float(ratio.max()) if ratio.numel() else 0.0

    def units_each(self, result: Tensor, subnormals: float = 0) -> Tensor:
        """Every element's error in units, without ``subnormals`` halves of the smallest subnormal.

        0 where |A||B| or the magnitude isn't below PROVEN_BELOW: nothing is proven there.
        """
        error = (result.double() - self.value).abs()
        beyond = (error - subnormals * 2.0**-150).clamp(min=0)  # NaN stays
        ratio = (beyond / (self.scale * UNIT)).where(beyond != 0, 0.0)
        ratio = ratio.masked_fill((self.scale == 0) & ~(error == 0), math.inf)
        large = self.scale if self.product is None else self.scale.maximum(self.product)
        return ratio.masked_fill(large >= PROVEN_BELOW, 0.0)


def ffma_units(k: int) -> float:
    """Bounds the error of a product by float32 multiply-adds."""
    return min(k + 2, 4 * math.sqrt(k) + 8)


def contract_units(torch_units: float) -> float:
    """Bounds the error of any kernel that "auto" may choose, given torch.mm's own error."""
    return max(2 * torch_units, 8.0)


def allowed_units(row: Kernel, k: int, torch_units: float) -> float:
    """The bound that ``row`` is held to."""
    if row.bits < 24:
        return tf32_bound(row.bits, k)
    return ffma_units(k) if row.family in FFMA_FAMILIES else contract_units(torch_units)


def roundings(k: int) -> int:
    """Counts the roundings of a sum that may each be off by half of the smallest subnormal.

    These are a product or an addition for each k, and those of scales, alpha, beta and the store.
    """
    return k + 4


def proven_units(row: Kernel, k: int, alpha: float = 1, beta: float = 0) -> float:
    """Returns the proven bound of ``row``.

    It has one unit more for an alpha that rounds, and one for a C.
    """
    rounds = math.frexp(alpha)[0] not in (0.5, -0.5)
    return error_bound(k, row.name) + rounds + (beta != 0)
