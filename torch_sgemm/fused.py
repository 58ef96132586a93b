"""A layer's product with its bias and activation in one kernel: ``sgemm::linear``.

``sgemm::linear(x, weight, bias=None, activation=None, kernel="auto")`` is
activation(x @ weight.T + bias). Its backward needs what went into the activation. For ReLU the
result says it; otherwise the product is stored and PyTorch's activation follows, where a gradient
is asked for.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from torch_sgemm._library import kernels_of
from torch_sgemm.derivatives import batched, of_any_level
from torch_sgemm.distributed import is_distributed, register_if_loaded
from torch_sgemm.functional import _product
from torch_sgemm.inductor import register_lowerings
from torch_sgemm.packed import PackedMatrix
from torch_sgemm.plain import are_float32, has_tangent, is_untransformed, reaches_kernel

_linear = torch.ops.sgemm.linear.default
_KERNELS = kernels_of("sgemm::linear")

_ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def linear(
    x: Tensor,
    weight: Tensor | PackedMatrix,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    kernel: str = "auto",
) -> Tensor:
    """``activation(torch.nn.functional.linear(x, weight, bias))`` in one kernel.

    Args:
        x: float32 of shape (..., in), any strides; (in,) as well.
        weight: float32 of shape (out, in), any strides. Or ``torch_sgemm.pack(weight.t())``; the
            activation is then a kernel of its own.
        bias: float32 of shape (out,).
        activation: None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` (the approximation by tanh) or
            ``"silu"``, as in ``torch.nn.functional``.
        kernel: ``"auto"``, a family, or a row of :func:`torch_sgemm.kernels`; not used with a
            packed weight.

    Returns:
        float32 of shape (..., out), contiguous.

    It has derivatives of every order, vmap and jvp. Where a gradient is asked for, GELU and SiLU
    are kernels of their own, because backward needs what goes into them. Operands that are not
    float32, under autocast too, and shapes that don't fit go to ``torch.nn.functional.linear``,
    which computes them or words the error.

    Raises:
        RuntimeError: ``activation`` or ``kernel`` is unknown, or ``kernel`` can't take the product.
    """
    if activation not in _ACTIVATIONS:
        raise RuntimeError(
            f"torch_sgemm.linear: argument 'activation' is {activation!r}; accepted: "
            + ", ".join(map(repr, _ACTIVATIONS))
        )
    if isinstance(weight, PackedMatrix):
        result = weight.mm(_rows(x), bias).reshape(*x.shape[:-1], weight.shape[1])
        return _ACTIVATIONS[activation](result)
    straight = reaches_kernel(x, weight) if bias is None else reaches_kernel(x, weight, bias)
    if not ((straight or are_float32(x, weight, bias)) and _fit(x, weight, bias)):
        return _ACTIVATIONS[activation](functional.linear(x, weight, bias))
    if straight:
        function, keys = _KERNELS[x.is_cuda]
        return function(keys, x, weight, bias, activation, kernel)
    if torch.compiler.is_compiling() or is_untransformed():
        return _linear(x, weight, bias, activation, kernel)
    return _differentiable(x, weight, bias, activation, kernel)


def _fit(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        x.dim() > 0
        and weight.dim() == 2
        and x.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
    )


def _rows(x: Tensor) -> Tensor:
    """(..., n) as (rows, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


# --- the operator ---------------------------------------------------------------------------


@torch.library.register_fake("sgemm::linear")
def _(x, weight, bias=None, activation=None, kernel="auto"):
    register_lowerings(["linear"])
    register_if_loaded()
    tensors = [t for t in (x, weight, bias) if t is not None]

    def text() -> str:
        return "sgemm::linear: " + "; ".join(
            [
                *(
                    f"'{name}' has shape {list(t.shape)}, dtype {t.dtype}"
                    for name, t in zip(("x", "weight", "bias"), tensors, strict=False)
                ),
                "accepted: float32 of shapes (..., in), (out, in), (out,)",
            ]
        )

    torch._check(all(t.dtype == torch.float32 for t in tensors), text)
    torch._check(x.dim() >= 1 and weight.dim() == 2, text)
    torch._check(x.shape[-1] == weight.shape[1], text)
    torch._check(bias is None or bias.dim() == 1, text)
    torch._check(bias is None or bias.shape[0] == weight.shape[0], text)
    return x.new_empty([*x.shape[:-1], weight.shape[0]])


def _differentiable(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, kernel: str
) -> Tensor:
    wanted = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, weight, bias)
    )
    if wanted and activation != "relu":
        return _ACTIVATIONS[activation](_Linear.apply(x, weight, bias, None, kernel))
    return _Linear.apply(x, weight, bias, activation, kernel)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias, activation: str | None, kernel: str) -> Tensor:
        return _linear(x, weight, bias, activation, kernel)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        x, weight, bias, ctx.activation, ctx.kernel = inputs
        saved = x, weight, bias, output if ctx.activation == "relu" else None
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx, grad: Tensor):
        saved = ctx.saved_tensors  # once: a checkpoint computes them anew for a single time
        x, weight, _, _ = saved
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad = _Linear._through_activation(ctx, saved, grad)
        if x.dim() > 2 and is_distributed(x):
            return _Linear._backward_of_parts(ctx, x, weight, grad)
        rows = _rows(grad)
        grad_x = _product(rows, weight, ctx.kernel).reshape(x.shape) if needs_x else None
        grad_weight = _product(rows.mT, _rows(x), ctx.kernel) if needs_weight else None
        return grad_x, grad_weight, rows.sum(0) if needs_bias else None, None, None

    @staticmethod
    def _backward_of_parts(ctx, x: Tensor, weight: Tensor, grad: Tensor):
        """The same without flattening, which DTensor refuses of a dimension that is split."""
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_x = _Linear.apply(grad, weight.mT, None, None, ctx.kernel) if needs_x else None
        grad_weight = grad_bias = None
        if needs_weight:
            by_matrix = _product(grad.flatten(0, -3).mT, x.flatten(0, -3), ctx.kernel)
            grad_weight = by_matrix.sum(0)
        if needs_bias:
            grad_bias = grad.sum(tuple(range(grad.dim() - 1)))
        return grad_x, grad_weight, grad_bias, None, None

    @staticmethod
    @of_any_level
    def jvp(ctx, saved, tangent_x, tangent_weight, tangent_bias, *_) -> Tensor:
        x, weight, _, _ = saved
        terms = []
        if tangent_x is not None:
            terms.append(_Linear.apply(tangent_x, weight, None, None, ctx.kernel))
        if tangent_weight is not None:
            terms.append(_Linear.apply(x, tangent_weight, None, None, ctx.kernel))
        if tangent_bias is not None:
            terms.append(tangent_bias.expand(*x.shape[:-1], weight.shape[0]))
        return _Linear._through_activation(ctx, saved, sum(terms[1:], terms[0]))

    @staticmethod
    def _through_activation(ctx, saved: Sequence[Tensor | None], flow: Tensor) -> Tensor:
        """A gradient or tangent times the activation's derivative, element by element."""
        x, weight, bias, output = saved
        if ctx.activation is None:
            return flow
        if ctx.activation == "relu":
            return torch.ops.aten.threshold_backward(flow, output, 0)
        before = _Linear.apply(x, weight, bias, None, ctx.kernel)
        return torch.func.vjp(_ACTIVATIONS[ctx.activation], before)[1](flow)[0]

    @staticmethod
    def vmap(info, in_dims, x, weight, bias, activation: str | None, kernel: str):
        arguments = x, weight, bias, activation, kernel
        return _batched(_differentiable, _product, info.batch_size, in_dims, *arguments)


def _batched(
    fused: Callable, product: Callable, size: int, in_dims, x, weight, bias, activation, kernel
) -> tuple[Tensor, int]:
    """By ``fused`` if only x is batched, else by a product of batches."""
    x = batched(x, in_dims[0], size)
    if in_dims[1] is None and (bias is None or in_dims[2] is None):
        return fused(x, weight, bias, activation, kernel), 0
    weight = batched(weight, in_dims[1], size)
    rows = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    result = product(rows, weight.mT, kernel)
    if bias is not None:
        result = result + (bias if in_dims[2] is None else bias.movedim(in_dims[2], 0).unsqueeze(1))
    return _ACTIVATIONS[activation](result).reshape(*x.shape[:-1], weight.shape[1]), 0


@torch.library.register_vmap("sgemm::linear")
def _(info, in_dims, x, weight, bias=None, activation=None, kernel="auto"):
    arguments = x, weight, bias, activation, kernel
    in_dims = (*in_dims, None)  # they lack what is a default
    return _batched(_linear, torch.ops.sgemm.bmm.default, info.batch_size, in_dims, *arguments)


_library_of_autograd = torch.library.Library("sgemm", "IMPL")
_redispatch = _linear._handle.redispatch_boxed


def _autograd(keyset, *args):
    tangent = has_tangent(*args)
    if tangent and torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "sgemm::linear has no forward-mode derivative under torch.func; torch_sgemm.linear has"
        )
    if tangent or (torch._C._any_requires_grad(*args) and torch.is_grad_enabled()):
        x, weight, bias, activation, kernel = (*args, *(None, None, "auto")[len(args) - 2 :])
        return _differentiable(x, weight, bias, activation, kernel)
    return _redispatch(keyset & torch._C._after_autograd_keyset, *args)


_library_of_autograd.impl("linear", _autograd, "Autograd", with_keyset=True)
