"""Whether a call is a plain one: of float32, and nobody else wants to know what it is made of."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

_PLAIN = (Tensor, torch.nn.Parameter)


def are_float32(a: Tensor, b: Tensor, c: Tensor | None = None) -> bool:
    """Strided float32 tensors on one device, for which autocast has no other dtype."""
    return (
        a.dtype is b.dtype is torch.float32
        and a.layout is b.layout is torch.strided
        and not (a.is_nested or b.is_nested)
        and a.device == b.device
        and (c is None or are_float32(a, c))
        and (a.is_meta or not torch.is_autocast_enabled("cuda" if a.is_cuda else a.device.type))
    )


def is_untransformed() -> bool:
    """Neither torch.func nor forward-mode derivatives are at work."""
    return not torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0


def has_tangent(*args) -> bool:
    """Whether an argument is a dual tensor, whose tangent forward-mode derivatives want."""
    if forward_ad._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    tensors = (x for x in args if isinstance(x, Tensor))
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def is_plain(a: Tensor, b: Tensor) -> bool:
    """Strided tensors of which no derivative, no subclass and no mode wants to see more."""
    return (
        type(a) in _PLAIN
        and type(b) in _PLAIN
        and a.layout == b.layout == torch.strided
        and not (a.is_nested or b.is_nested)
        and not (torch._C._any_requires_grad(a, b) and torch.is_grad_enabled())
        and not torch._C._len_torch_dispatch_stack()
        and is_untransformed()
    )
