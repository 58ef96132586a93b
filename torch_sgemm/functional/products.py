"""Products of matrices or of batches, for matmul, linear and packed operands.

A batch of two dimensions, attention's sequences and heads, is read directly, because flattening it
may copy it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from torch_sgemm.choice.table import kernels
from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import OPERAND_DTYPES, operators, out_of_memory
from torch_sgemm.torch_ops.ops import about
from torch_sgemm.torch_ops.past_dispatcher import kernels_of, reaches_kernel

# Operators and kernels by the operands' number of dimensions.
_NAMES = {2: "mm", 3: "bmm", 4: "_matmul"}
_OPERATORS = {dims: getattr(operators, name).default for dims, name in _NAMES.items()}
_KERNELS = {dims: kernels_of(name) for dims, name in _NAMES.items()}


def product(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Multiplies, past the dispatcher if possible."""
    return (straight if reaches_kernel(a, b) else dispatched)(a, b, kernel)


def straight(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Multiplies past the dispatcher. Precondition: ``reaches_kernel(a, b)``."""
    function, keys = _KERNELS[a.dim()][a.is_cuda]
    try:
        return function(keys, a, b, kernel)
    except RuntimeError as failure:
        raise out_of_memory(failure, a.is_cuda) from None


def dispatched(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Multiplies through the dispatcher, so that modes, profilers and autograd see the call."""
    if torch.compiler.is_compiling():
        return _OPERATORS[a.dim()](a, b, kernel)
    try:
        return _OPERATORS[a.dim()](a, b, kernel)
    except RuntimeError as failure:  # inference mode skips the autograd kernel's translation
        raise out_of_memory(failure, a.is_cuda) from None


def are_operands(a: Tensor, b: Tensor) -> bool:
    """True for strided tensors on one device, of dtypes that operators take unconverted."""
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.dtype in OPERAND_DTYPES
        and b.dtype in OPERAND_DTYPES
        and a.layout is b.layout is torch.strided
        and not (a.is_nested or b.is_nested)
        and a.device == b.device
        and not (private.has_names(a) or private.has_names(b))
    )


def is_traced(*operands) -> bool:
    """True if an operand stands for a tensor and records calls, as torch.fx's proxies do."""
    return has_torch_function(operands) and any(not isinstance(x, Tensor) for x in operands)


def is_float32_product(a: Tensor, b: Tensor, c: Tensor | None = None) -> bool:
    """True if a or b is float32, c is float32 or None, and autocast is off."""
    return (
        are_operands(a, b)
        and torch.float32 in (a.dtype, b.dtype)
        and (c is None or (are_operands(a, c) and c.dtype is torch.float32))
        and not _is_autocast(a)
    )


def _is_autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled("cuda" if x.is_cuda else x.device.type)


def check_out_dtype(op: str, out_dtype: torch.dtype, a: Tensor, b: Tensor) -> None:
    """Raises unless ``out_dtype`` is float32, and the operands' dtypes allow that product."""
    if out_dtype is torch.float32 and a.dtype in OPERAND_DTYPES and b.dtype in OPERAND_DTYPES:
        return
    raise RuntimeError(
        f"{op}: argument 'out_dtype' is {out_dtype}, 'a' has dtype {a.dtype}, 'b' {b.dtype}; "
        "accepted: None, or torch.float32 for operands of float32, bfloat16 and float16"
    )


def mixes_dtypes(out_dtype: torch.dtype | None, *tensors: Tensor | None) -> bool:
    """True if 16-bit operands make a float32 product, beside a float32 one or by ``out_dtype``."""
    given = [t for t in tensors if t is not None]
    if not all(isinstance(t, Tensor) and t.dtype in OPERAND_DTYPES for t in given):
        return False
    short = [t.dtype is not torch.float32 for t in given]
    return any(short) and not (out_dtype is None and (_is_autocast(given[0]) or all(short)))


def in_float32(x: Tensor | None) -> Tensor | None:
    """Returns the tensor, or a float32 copy of a 16-bit one."""
    return x if x is None else x.to(torch.float32)


def widened(
    out_dtype: torch.dtype | None, *tensors: Tensor | None
) -> tuple[Tensor | None, ...] | None:
    """Returns the operands as float32 if :func:`mixes_dtypes` holds, else None."""
    if not mixes_dtypes(out_dtype, *tensors):
        return None
    return tuple(in_float32(t) for t in tensors)


_FAMILIES_OF_16_BITS = {
    name: row.family
    for row in kernels()
    if not row.takes_float32
    for name in (row.name, *row.tile_names)
}


def of_gradients(kernel: str) -> str:
    """Returns ``kernel=`` of a gradient: the family, if the row takes 16-bit operands alone."""
    return _FAMILIES_OF_16_BITS.get(kernel, kernel)


def check_in_memory(where: str, b: Tensor) -> None:
    """Raises RuntimeError, naming ``where``, unless a kernel can read the elements of ``b``."""
    if not isinstance(b, Tensor):
        found = f"is {b!r}"
    elif (
        b.layout is torch.strided
        and b.device.type in ("cpu", "cuda")
        and b.dim() == 2
        and b.dtype in OPERAND_DTYPES
    ):
        return
    else:
        found = f"has {about(b)}, {b.layout}"
    raise RuntimeError(
        f"{where}: argument 'b' {found}; accepted: a strided matrix of float32, bfloat16 "
        "or float16 on a CPU or CUDA device"
    )


def rows_of(x: Tensor) -> Tensor:
    """Reshapes (..., n) to (rows, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def is_expanded(x: Tensor) -> bool:
    """True if rows_of() would copy rows that share memory."""
    return x.dim() > 2 and any(
        step == 0 and size > 1 for step, size in zip(x.stride()[:-1], x.shape, strict=False)
    )


def with_shape(result: Tensor, shape: Sequence[int]) -> Tensor:
    """Reshapes a new tensor, not to a view for autograd, which could not be written."""
    return private.unsafe_view(result, shape)
