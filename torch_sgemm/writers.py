"""Operators that write their result have no derivative: where one is wanted, they say so.

Without a kernel for autograd, what was written would count as constant, and gradients be wrong.
"""

import torch

from torch_sgemm.levels import implement, is_wanted

NAMES = ("mm_out", "bmm_out", "addmm_out", "baddbmm_out", "gemm_")

_library = torch.library.Library("sgemm", "IMPL")


def _refuse_derivatives(name: str) -> None:
    redispatch = getattr(torch.ops.sgemm, name).default._handle.redispatch_boxed

    def autograd(keyset, *args, **kwargs) -> None:
        if is_wanted(*args, *kwargs.values()):
            raise RuntimeError(
                f"sgemm::{name}: writes its result, which has no derivative, but an argument "
                "requires grad or has a tangent; accepted: tensors that don't, torch.no_grad(), or "
                "an operator that returns its result"
            )
        redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

    implement(_library, name, autograd)


for _name in NAMES:
    _refuse_derivatives(_name)
