"""The activations that a layer's product may end with, by name: PyTorch's own functions.

If a gradient is needed, :func:`followed` stores an activation's input too, at the same bits.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from torch_sgemm.torch_ops.autograd import Derivative

_aten = torch.ops.aten
_gelu_backward = _aten.gelu_backward.default

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def check_activation(name: str, activation: str | None) -> None:
    """Raises RuntimeError, in the name of ``name``, if the activation is unknown."""
    if not isinstance(activation, str | None) or activation not in ACTIVATIONS:
        raise RuntimeError(
            f"{name}: argument 'activation' is {activation!r}; accepted: "
            + ", ".join(map(repr, ACTIVATIONS))
        )


def through_relu(flow: Tensor, result: Tensor) -> Tensor:
    """Returns a gradient or tangent, zero where the result is zero."""
    return _aten.threshold_backward.default(flow, result, 0)


def _through_silu(grad: Tensor, x: Tensor) -> Tensor:
    """Returns SiLU's gradient, differentiable as PyTorch's operator for it is not."""
    if not torch.is_grad_enabled():
        return _aten.silu_backward.default(grad, x)
    sigmoid = x.sigmoid()
    return grad * sigmoid * (1 + x * (1 - sigmoid))


# Each takes the result's gradient and the activation's input; ReLU's takes the result instead.
_BACKWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": through_relu,
    "gelu": _gelu_backward,
    "gelu_tanh": partial(_gelu_backward, approximate="tanh"),
    "silu": _through_silu,
}


class _Followed(Derivative):
    """The derivative of an activation that has already been computed."""

    @staticmethod
    def forward(ctx, inner: Tensor, results: list[Tensor], activation: str) -> Tensor:
        result = results.pop()  # in a list, so that autograd sees no returned argument
        ctx.save_for_backward(result if activation == "relu" else inner)
        ctx.activation = activation
        return result

    @staticmethod
    def backward(ctx, grad: Tensor):
        return _BACKWARDS[ctx.activation](grad, *ctx.saved_tensors), None, None


def followed(
    product: Callable[[Callable[..., Tensor]], Tensor],
    run: Callable[..., tuple[Tensor, Tensor]],
    activation: str,
) -> Tensor:
    """Returns a product with an activation, in a plain call that needs a gradient.

    ``run`` returns the result and the activation's input. ``product`` receives a function that
    returns this input, and makes the input differentiable.
    """
    results: list[Tensor] = []

    def inner_of(*args, **kwargs) -> Tensor:
        result, inner = run(*args, **kwargs)
        results.append(result)
        return inner

    return _Followed.at_level(product(inner_of), results, activation)
