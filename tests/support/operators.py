"""Every operator with good arguments, so that a test can spoil one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

M, N, K, BATCH = 3, 5, 4, 2


@dataclass
class Call:
    """An operator's arguments by name, in the order of its schema."""

    op: str
    tensors: dict[str, Tensor]
    options: dict[str, object] = field(default_factory=dict)

    @property
    def overload(self) -> Callable:
        return getattr(torch.ops.sgemm, self.op).default

    @property
    def written(self) -> str | None:
        """The argument that the operator writes, None where it returns a new tensor."""
        return "c" if self.op == "gemm_" else "out" if "out" in self.tensors else None

    def arguments(self) -> tuple[tuple, dict]:
        """Positional and keyword arguments."""
        inputs = tuple(value for name, value in self.tensors.items() if name != "out")
        out = {"out": self.tensors["out"]} if "out" in self.tensors else {}
        return inputs, {**self.options, **out}

    def run(self) -> Tensor:
        """The result, wherever the operator leaves it."""
        args, kwargs = self.arguments()
        returned = self.overload(*args, **kwargs)
        return returned if self.written is None else self.tensors[self.written]


NAMES = ("mm", "bmm", "addmm", "baddbmm", "mm_out", "bmm_out", "addmm_out", "baddbmm_out")
# Each once, gemm_ for matrices and for batches.
VARIANTS = (*((name, "bmm" in name) for name in NAMES), ("gemm_", False), ("gemm_", True))


def good(op: str, batched: bool, device: str = "cpu", **options: object) -> Call:
    """Arguments that ``op`` accepts; what is written holds 7s."""
    lead = (BATCH,) if batched else ()
    tensors = {
        "a": torch.randn(*lead, M, K, device=device),
        "b": torch.randn(*lead, K, N, device=device),
    }
    if op.startswith(("addmm", "baddbmm", "gemm_")):
        tensors = {"c": torch.full((*lead, M, N), 7.0, device=device), **tensors}
    if op.endswith("_out"):
        tensors["out"] = torch.full((*lead, M, N), 7.0, device=device)
    return Call(op, tensors, dict(options))


def variant_id(variant: tuple[str, bool]) -> str:
    """A test's name for an entry of ``VARIANTS``."""
    return variant[0] + ("batched" if variant == ("gemm_", True) else "")
