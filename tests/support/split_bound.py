"""The error bound of the rows of the family split: a copy of csrc/split/bound.h, term by term.

tests/kernels/test_mutations.py compares it with ``error_bound``, so it follows the original.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from support.split_model import BF16X6, FP16X3, Format

OF_STEP = 17 * 0.5 + 2
GROUP, STEP, WINDOW, LONG_WINDOW = 16, 32, 32, 64
CHAIN, STAGE, PIECE = 32, 64, 128


@dataclass(frozen=True)
class Constants:
    """Constants of a bound, in units of 2^-24 |A||B|."""

    writing: float
    left_out: float
    guard: float
    corrections: float  # for each of k
    aligned: float = 17 * 0.5  # for each step of 16 of k, and so is what is behind 24 bits
    last: float = 2
    promotion: float = 1  # for each 32 of k
    end: float = 3

    def shares(self, k: int, window: int) -> dict[str, float]:
        """Each term's part of the bound, by the name of its loss in split_losses.py."""
        steps = min(math.ceil(k / GROUP), window // GROUP)
        return {
            "writing": self.writing,
            "left out": self.left_out,
            "guard": self.guard,
            "corrections": self.corrections * k,
            "aligned": self.aligned * steps,
            "last": self.last * steps,
            "promotion": self.promotion * math.ceil(k / STEP),
            "end": self.end,
        }

    def sums(self, k: int, window: int) -> float:
        """The terms that all rows share: sum_bound()."""
        steps = min(math.ceil(k / GROUP), window // GROUP)
        of_windows = self.promotion * math.ceil(k / STEP)
        return (self.aligned + self.last) * steps + of_windows + self.end

    def bound(self, k: int, window: int) -> float:
        before = self.writing + self.left_out + self.guard + self.corrections * k
        return before + self.sums(k, window)


def chains(k: int) -> float:
    """Bounds the error of an element that is computed again (csrc/split/redo/chains.cuh)."""
    return min(k, CHAIN) + (k - 1) // CHAIN + 2


COPY: dict[Format, Constants] = {
    FP16X3: Constants(4, 4, 7.25, 2 * OF_STEP * 2 / 2048 / 16),
    BF16X6: Constants(0, 1, 2, 5 * OF_STEP * 1.02 / 128 / 16),
}


def bound(k: int, name: str) -> float:
    """``error_bound`` of the row ``name``, by its first name."""
    if name == "unsplit":
        return max(COPY[FP16X3].sums(k, LONG_WINDOW), chains(k))
    constants = COPY[BF16X6 if name == "split_bf16x6" else FP16X3]
    short = k <= LONG_WINDOW or name in ("split_fp16x3_streamed", "split_fp16x3_tall")
    found = max(constants.bound(k, WINDOW if short else LONG_WINDOW), chains(k))
    if name == "split_fp16x3_streamed":
        found += math.ceil(k / STAGE)
    if name == "split_fp16x3_tall":
        found += math.ceil(k / PIECE)
    return found
