"""``torch_sgemm.linear``, a layer's product with its bias and activation in one kernel."""

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function

from torch_sgemm.choice.table import request
from torch_sgemm.functional.matmul import matmul
from torch_sgemm.functional.packed import PackedMatrix
from torch_sgemm.functional.route import (
    STRAIGHT,
    TORCH,
    TRACED,
    in_float32,
    is_expanded,
    route,
    widened,
)
from torch_sgemm.torch_ops.activations import ACTIVATIONS, check_activation
from torch_sgemm.torch_ops.library import out_of_memory
from torch_sgemm.torch_ops.linear import KERNELS, linear_op
from torch_sgemm.torch_ops.past_dispatcher import dispatched


def linear(
    x: Tensor,
    weight: Tensor | PackedMatrix,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> Tensor:
    """``activation(torch.nn.functional.linear(x, weight, bias))`` in one kernel.

    Args:
        x: float32 of shape (..., in) or (in,), any strides. ``x``, ``weight`` and ``bias`` may be
            bfloat16 or float16 if another is float32, as for :func:`torch_sgemm.matmul`.
        weight: float32 of shape (out, in), any strides, or ``torch_sgemm.pack(weight.t())``.
        bias: float32 of shape (out,).
        activation: None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` (the approximation by tanh) or
            ``"silu"``, as in ``torch.nn.functional``.
        kernel: ``"auto"``, a family, a row of :func:`torch_sgemm.kernels`, or ``"row:tile"``.
        batch_invariant: as for :func:`torch_sgemm.matmul`.

    Returns:
        float32 of shape (..., out), contiguous.

    The function supports derivatives of every order, vmap and jvp. Gradients don't change the
    result's bits, but make GELU and SiLU separate passes, because the backward needs their input.
    Other dtypes, calls under autocast, and shapes that don't fit go to
    ``torch.nn.functional.linear``, which computes them or raises its error.

    Raises:
        RuntimeError: ``activation`` or ``kernel`` is unknown; ``kernel`` can't take the product or
            is given with ``batch_invariant``.
    """
    check_activation("torch_sgemm.linear", activation)
    kernel = request("torch_sgemm.linear", kernel, batch_invariant)
    packed = weight if isinstance(weight, PackedMatrix) else None
    matrix = weight if packed is None else packed.b  # (in, out) if packed
    way = route(_fit if packed is None else _fit_packed, x, matrix, bias, packed)
    if way is STRAIGHT and packed is None and not is_expanded(x):
        function, keys = KERNELS[x.is_cuda]
        try:
            return function(keys, x, matrix, bias, activation, kernel)
        except RuntimeError as failure:
            raise out_of_memory(failure, x.is_cuda) from None
    if way is TRACED:
        tensors = (x, weight) if bias is None else (x, weight, bias)
        more = {"activation": activation, "kernel": kernel}
        return handle_torch_function(linear, tensors, x, weight, bias, **more)
    if way is TORCH:
        own = matrix if packed is None else matrix.t()
        return ACTIVATIONS[activation](functional.linear(*widened(None, x, own, bias)))
    bias = in_float32(bias)
    if is_expanded(x):
        right = matrix.t() if packed is None else matrix
        result = matmul(x, right, kernel=kernel, out_dtype=torch.float32)
        return ACTIVATIONS[activation](result if bias is None else result + bias)
    if packed is not None:
        return packed.linear(way, x, matrix, bias, kernel, activation)
    return dispatched(linear_op, x, matrix, bias, activation, kernel)


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        x.dim() > 0
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
    )


def _fit_packed(x: Tensor, matrix: Tensor, bias: Tensor | None) -> bool:
    return (
        x.dim() > 0
        and x.shape[-1] == matrix.shape[0]
        and (bias is None or bias.shape == matrix.shape[1:])
    )
