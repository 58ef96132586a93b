"""``torch_sgemm.matmul``: torch.matmul's semantics, in as few and as large products as possible."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from torch_sgemm.choice.table import request
from torch_sgemm.functional.packed import PackedMatrix
from torch_sgemm.functional.route import STRAIGHT, TORCH, TRACED, is_expanded, route, widened
from torch_sgemm.torch_ops.autograd import is_wanted
from torch_sgemm.torch_ops.library import OPERAND_DTYPES
from torch_sgemm.torch_ops.ops import about, check_tensors
from torch_sgemm.torch_ops.product import rows_of, straight, through_dispatcher, with_shape


def matmul(
    a: Tensor,
    b: Tensor | PackedMatrix,
    *,
    kernel: str = "auto",
    batch_invariant: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``torch.matmul(a, b)`` by a kernel of this package, with derivatives.

    Args:
        a: shape (k,), (m, k) or (..., m, k), any strides.
        b: shape (k,), (k, n) or (..., k, n), any strides, or a matrix from
            :func:`torch_sgemm.pack`. Leading dimensions broadcast.
        kernel: ``"auto"``, a family, a row of :func:`torch_sgemm.kernels`, or ``"row:tile"``.
        batch_invariant: True makes an element's bits, and its derivatives', depend only on its row
            of ``a`` and its column of ``b``. The same as ``kernel="batch_invariant"``.
        out_dtype: ``torch.float32`` gives a float32 product also of two 16-bit operands (bfloat16
            or float16) and under autocast.
        out: the tensor to write, as for ``torch.matmul``; without derivatives. Another shape is
            resized, with PyTorch's warning unless ``out`` is empty. The product is copied into
            ``out``, whereas ``torch.ops.sgemm.mm_out`` writes in place.

    A bfloat16 or float16 operand beside a float32 one gives a float32 result, as if it were
    converted first; see :mod:`torch_sgemm.ops`. Gradients have their tensors' dtypes. Other dtypes,
    other calls under autocast, and shapes that don't fit go to ``torch.matmul``, which ignores
    ``kernel`` and computes them or raises its error.

    Raises:
        RuntimeError: ``kernel`` is unknown, can't take the product, or is given with
            ``batch_invariant``; ``out_dtype`` is not float32, or an operand's dtype is none of the
            three; ``out`` has another dtype or device; a tensor requires grad where ``out`` is
            given.
    """
    kernel = request("torch_sgemm.matmul", kernel, batch_invariant)
    packed = b if isinstance(b, PackedMatrix) else None
    matrix = b if packed is None else packed.b
    way = route(_fit, a, matrix, None, packed, out_dtype)
    if way is TRACED:
        more = {"kernel": kernel, "out_dtype": out_dtype, "out": out}
        return handle_torch_function(matmul, (a, b), a, b, **more)
    product = straight if way is STRAIGHT else through_dispatcher
    is_packed = packed is not None and not is_expanded(a)
    if way is STRAIGHT and not is_packed and out is None and out_dtype is None:
        return _of_any_dims(a, matrix, kernel, product)
    if out_dtype is not None:
        _check_out_dtype(out_dtype, a, matrix)
    with nullcontext() if out_dtype is None else torch.autocast(a.device.type, enabled=False):
        if way is TORCH:
            return torch.matmul(*widened(out_dtype, a, matrix), out=out)
        if out is not None:
            _check_out(a, matrix, out)
        if is_packed:
            result = packed.linear(way, a, matrix, None, kernel)
        else:
            result = _of_any_dims(a, matrix, kernel, product)
        return result if out is None else _into(out, result)


def _of_any_dims(a: Tensor, b: Tensor, kernel: str, product: Callable[..., Tensor]) -> Tensor:
    if a.dim() == b.dim() == 2:
        return product(a, b, kernel)
    rows = a if a.dim() > 1 else a.unsqueeze(0)
    cols = b if b.dim() > 1 else b.unsqueeze(1)
    result = _matrices(rows, cols, kernel, product)
    if a.dim() == 1:
        return with_shape(result, result.shape[:-2] + result.shape[-1 if b.dim() > 1 else 2 :])
    return with_shape(result, result.shape[:-1]) if b.dim() == 1 else result


def _check_out_dtype(out_dtype: torch.dtype, a: Tensor, b: Tensor) -> None:
    """Raises unless ``out_dtype`` is float32, and the operands' dtypes allow that product."""
    check_tensors("torch_sgemm.matmul", a=a, b=b)
    if out_dtype is torch.float32 and a.dtype in OPERAND_DTYPES and b.dtype in OPERAND_DTYPES:
        return
    raise RuntimeError(
        f"torch_sgemm.matmul: argument 'out_dtype' is {out_dtype}, 'a' has dtype {a.dtype}, "
        f"'b' {b.dtype}; accepted: None, or torch.float32 for operands of float32, bfloat16 and "
        "float16"
    )


def _fit(a: Tensor, b: Tensor, c: None = None) -> bool:
    dims_a, dims_b = a.dim(), b.dim()
    return (
        dims_a > 0
        and dims_b > 0
        and a.shape[-1] == b.shape[max(dims_b - 2, 0)]
        and (dims_a < 3 or dims_b < 3 or _batches_fit(a.shape[:-2], b.shape[:-2]))
    )


def _batches_fit(a: torch.Size, b: torch.Size) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return a == b or all(p == q or p == 1 or q == 1 for p, q in pairs)


def _check_out(a: Tensor, b: Tensor, out: Tensor) -> None:
    if not isinstance(out, Tensor):
        raise RuntimeError(f"torch_sgemm.matmul: argument 'out' is {out!r}; accepted: a tensor")
    if out.dtype != torch.float32 or out.device != a.device:
        raise RuntimeError(
            f"torch_sgemm.matmul: argument 'out' has {about(out)}, strides {list(out.stride())}; "
            f"accepted: torch.float32, {a.device}"
        )
    if is_wanted(a, b, out):
        raise RuntimeError(
            "torch_sgemm.matmul: argument 'out' can't be differentiated, but a tensor requires "
            "grad or has a tangent; accepted: tensors that don't, or torch.no_grad()"
        )


def _into(out: Tensor, result: Tensor) -> Tensor:
    if out.shape != result.shape:  # resizes, and warns unless it was empty
        return torch.mul(result, 1, out=out)
    return out.copy_(result)


def _matrices(a: Tensor, b: Tensor, kernel: str, product: Callable[..., Tensor]) -> Tensor:
    """Returns (..., m, k) @ (..., k, n), by as few and as large products as the shapes allow."""
    if a.dim() == b.dim() == 2:
        return product(a, b, kernel)
    if b.dim() == 2 and not is_expanded(a):  # one B: the rows of all A make one matrix
        return with_shape(product(rows_of(a), b, kernel), (*a.shape[:-1], b.shape[-1]))
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    if len(batch) <= 2:
        return product(a, b, kernel)
    result = product(a.flatten(0, -3), b.flatten(0, -3), kernel)
    return with_shape(result, (*batch, a.shape[-2], b.shape[-1]))
