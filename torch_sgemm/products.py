"""What matmul, linear and packed operands have in common: products of matrices, or of batches.

A batch of two dimensions, attention's sequences and heads, is read as it lies: making one dimension
of them may copy it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from torch_sgemm import private
from torch_sgemm._library import OPERAND_DTYPES, operators
from torch_sgemm.memory import out_of_memory
from torch_sgemm.ops import about
from torch_sgemm.past_dispatcher import kernels_of, reaches_kernel
from torch_sgemm.table import kernels

# By dimensions.
_NAMES = {2: "mm", 3: "bmm", 4: "_matmul"}
_OPERATORS = {dims: getattr(operators, name).default for dims, name in _NAMES.items()}
_KERNELS = {dims: kernels_of(name) for dims, name in _NAMES.items()}


def product(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """The shortest way."""
    return (straight if reaches_kernel(a, b) else dispatched)(a, b, kernel)


def straight(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """Past the dispatcher: only where ``reaches_kernel(a, b)``."""
    function, keys = _KERNELS[a.dim()][a.is_cuda]
    try:
        return function(keys, a, b, kernel)
    except RuntimeError as failure:
        raise out_of_memory(failure, a.is_cuda) from None


def dispatched(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """For whoever watches."""
    if torch.compiler.is_compiling():
        return _OPERATORS[a.dim()](a, b, kernel)
    try:
        return _OPERATORS[a.dim()](a, b, kernel)
    except RuntimeError as failure:  # in inference mode no kernel for autograd translates it
        raise out_of_memory(failure, a.is_cuda) from None


def are_operands(a: Tensor, b: Tensor) -> bool:
    """Strided tensors on one device, of dtypes that operators take: no need to convert them."""
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
    """Whether an operand stands for a tensor and records calls, as torch.fx's proxies do."""
    return has_torch_function(operands) and any(not isinstance(x, Tensor) for x in operands)


def is_float32_product(a: Tensor, b: Tensor, c: Tensor | None = None) -> bool:
    """Operands of which one is float32, and a float32 c, for which autocast has no other dtype."""
    return (
        are_operands(a, b)
        and torch.float32 in (a.dtype, b.dtype)
        and (c is None or (are_operands(a, c) and c.dtype is torch.float32))
        and not _is_autocast(a)
    )


def _is_autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled("cuda" if x.is_cuda else x.device.type)


def check_out_dtype(op: str, out_dtype: torch.dtype, a: Tensor, b: Tensor) -> None:
    """Refuses another dtype than float32, and operands of which there is no such product."""
    if out_dtype is torch.float32 and a.dtype in OPERAND_DTYPES and b.dtype in OPERAND_DTYPES:
        return
    raise RuntimeError(
        f"{op}: argument 'out_dtype' is {out_dtype}, 'a' has dtype {a.dtype}, 'b' {b.dtype}; "
        "accepted: None, or torch.float32 for operands of float32, bfloat16 and float16"
    )


def mixes_dtypes(out_dtype: torch.dtype | None, *tensors: Tensor | None) -> bool:
    """Whether a float32 product has 16-bit operands.

    It is float32's if another operand is, or where ``out_dtype`` is float32.
    """
    given = [t for t in tensors if t is not None]
    if not all(isinstance(t, Tensor) and t.dtype in OPERAND_DTYPES for t in given):
        return False
    short = [t.dtype is not torch.float32 for t in given]
    return any(short) and not (out_dtype is None and (_is_autocast(given[0]) or all(short)))


def in_float32(x: Tensor | None) -> Tensor | None:
    """The tensor, or a copy of one of 16 bits."""
    return x if x is None else x.to(torch.float32)


def widened(
    out_dtype: torch.dtype | None, *tensors: Tensor | None
) -> tuple[Tensor | None, ...] | None:
    """The operands of such a product as float32; None for another."""
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
    """What is asked for a gradient's product: of a row for 16-bit operands alone, its family."""
    return _FAMILIES_OF_16_BITS.get(kernel, kernel)


def check_in_memory(where: str, b: Tensor) -> None:
    """Whether ``b`` is a matrix whose elements a kernel can read; ``where`` is named else.

    Raises:
        RuntimeError: it is no tensor, not strided, neither on a CPU nor on a CUDA device, or of
            another dtype or dimension.
    """
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
    """(..., n) as (rows, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def is_expanded(x: Tensor) -> bool:
    """Whether rows_of() would copy rows that share memory."""
    return x.dim() > 2 and any(
        step == 0 and size > 1 for step, size in zip(x.stride()[:-1], x.shape, strict=False)
    )


def with_shape(result: Tensor, shape: Sequence[int]) -> Tensor:
    """A new tensor of ours in another shape: no view for autograd, that could not be written."""
    return private.unsafe_view(result, shape)
