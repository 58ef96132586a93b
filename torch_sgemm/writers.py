"""Operators that write their result have no derivative: where one is wanted, they say so.

Without a kernel for autograd, what was written would count as constant, and gradients be wrong.
"""

from typing import NoReturn

from torch_sgemm.levels import implement
from torch_sgemm.ops import WRITERS


def _refuse_derivatives(name: str) -> None:
    def refuse(*args, **kwargs) -> NoReturn:
        raise RuntimeError(
            f"sgemm::{name}: writes its result, which has no derivative, but an argument requires "
            "grad or has a tangent; accepted: tensors that don't, torch.no_grad(), or an operator "
            "that returns its result"
        )

    implement(name, refuse)


for _name in WRITERS:
    _refuse_derivatives(_name)
