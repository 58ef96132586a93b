"""Routes of calls of ``matmul``, ``linear`` or a packed matrix to kernels; ``route`` decides."""

from collections.abc import Callable
from enum import Enum, auto

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import OPERAND_DTYPES
from torch_sgemm.torch_ops.past_dispatcher import reaches_kernel


class Route(Enum):
    """Where a call goes."""

    STRAIGHT = auto()
    """To the device's kernel, past the dispatcher: nothing in between observes the call."""
    DISPATCHED = auto()
    """To the operator, so that modes, profilers, transforms and autograd see the call."""
    TRACED = auto()
    """To the tracer of an operand that stands for a tensor, such as torch.fx's proxies."""
    TORCH = auto()
    """To PyTorch's own function, which computes other products or raises the error."""


STRAIGHT, DISPATCHED, TRACED, TORCH = Route  # a global takes a tenth of an attribute's time


def route(
    fit: Callable[[Tensor, Tensor, Tensor | None], bool],
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    packed: object = None,
    out_dtype: torch.dtype | None = None,
) -> Route:
    """Decides how a product of a and b, with c as its addend, reaches its kernel.

    Operands of 16 bits make a float32 product beside a float32 one, or by ``out_dtype``. ``fit``
    returns True if the tensors' shapes fit. ``packed`` is the packed matrix that b comes from.
    """
    if (reaches_kernel(a, b) if c is None else reaches_kernel(a, b, c)) and fit(a, b, c):
        return STRAIGHT
    tensors = (a, b) if c is None else (a, b, c)
    given = tensors if packed is None else (a, packed, *tensors[2:])
    if has_torch_function(given) and not all(isinstance(x, Tensor) for x in given):
        return TRACED
    if _are_operands(*tensors) and _is_float32(out_dtype, *tensors) and fit(a, b, c):
        return DISPATCHED
    return TORCH


_OWN_FUNCTIONS = {Tensor.__torch_function__.__func__, torch.nn.Parameter.__torch_function__}


def overrides_functions(x: Tensor) -> bool:
    """True if the tensor's class overrides PyTorch's functions, as quantized weights do.

    ``has_torch_function`` would be true for every tensor under a mode such as ``torch.device``.
    """
    function = type(x).__torch_function__
    return getattr(function, "__func__", function) not in _OWN_FUNCTIONS


def _are_operands(*tensors: Tensor) -> bool:
    """True for strided tensors on one device, of dtypes that operators take unconverted."""
    return all(
        isinstance(x, Tensor)
        and x.dtype in OPERAND_DTYPES
        and x.layout is torch.strided
        and not x.is_nested
        and x.device == tensors[0].device
        and not private.has_names(x)
        for x in tensors
    )


def _is_float32(out_dtype: torch.dtype | None, *tensors: Tensor | None) -> bool:
    """True if float32, bfloat16 and float16 tensors make a float32 product.

    One of them is float32 and autocast is off, or ``out_dtype`` asks for it.
    """
    given = [x for x in tensors if x is not None]
    if not all(isinstance(x, Tensor) and x.dtype in OPERAND_DTYPES for x in given):
        return False
    if out_dtype is not None:
        return True
    x = given[0]
    autocast = not x.is_meta and torch.is_autocast_enabled("cuda" if x.is_cuda else x.device.type)
    return not autocast and any(x.dtype is torch.float32 for x in given)


def in_float32(x: Tensor | None) -> Tensor | None:
    """Returns the tensor, or a float32 copy of a 16-bit one."""
    return x if x is None or x.dtype is torch.float32 else x.to(torch.float32)


def widened(out_dtype: torch.dtype | None, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns the tensors in float32 if they make a float32 product, otherwise unchanged."""
    return tuple(map(in_float32, tensors)) if _is_float32(out_dtype, *tensors) else tensors


def is_expanded(x: Tensor) -> bool:
    """True if rows_of() would copy rows that share memory."""
    return x.dim() > 2 and any(
        step == 0 and size > 1 for step, size in zip(x.stride()[:-1], x.shape, strict=False)
    )
