"""Calls of ``mm``, ``bmm`` and ``_matmul``, by the operands' number of dimensions.

A batch of two dimensions, attention's sequences and heads, is read directly, because flattening it
may copy it.
"""

import json
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import operators, out_of_memory
from torch_sgemm.torch_ops.past_dispatcher import dispatched, kernels_of, reaches_kernel

_NAMES = {2: "mm", 3: "bmm", 4: "_matmul"}
_OPERATORS = {dims: getattr(operators, name).default for dims, name in _NAMES.items()}
_KERNELS = {dims: kernels_of(name) for dims, name in _NAMES.items()}


def product(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Multiplies, past the dispatcher if possible."""
    return (straight if reaches_kernel(a, b) else through_dispatcher)(a, b, kernel)


def straight(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Multiplies past the dispatcher. Precondition: ``reaches_kernel(a, b)``."""
    function, keys = _KERNELS[a.dim()][a.is_cuda]
    try:
        return function(keys, a, b, kernel)
    except RuntimeError as failure:
        raise out_of_memory(failure, a.is_cuda) from None


def through_dispatcher(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Multiplies by the operator."""
    return dispatched(_OPERATORS[a.dim()], a, b, kernel)


_FAMILIES_OF_16_BITS = {
    name: row["family"]
    for row in json.loads(operators._kernels())
    if row["reads"] == "bfloat16"
    for name in (row["name"], *row["tile_names"])
}


def of_gradients(kernel: str) -> str:
    """Returns ``kernel=`` of a gradient: the family, if the row takes 16-bit operands alone."""
    return _FAMILIES_OF_16_BITS.get(kernel, kernel)


def rows_of(x: Tensor) -> Tensor:
    """Reshapes (..., n) to (rows, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def with_shape(result: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshapes a new tensor, not to a view for autograd, which could not be written.

    Precondition: no backward reads the tensor, because autograd doesn't see writes to the result.
    torch.jit.trace would record the shape's numbers as an operator's arguments, but not view()'s.
    """
    return result.view(shape) if torch.jit.is_tracing() else private.unsafe_view(result, shape)
