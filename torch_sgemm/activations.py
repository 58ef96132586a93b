"""The activations that a layer's product may end with, by name: PyTorch's own functions.

Where a gradient is wanted, what goes into the activation is stored beside the result, which has the
same bits as without: :func:`followed`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from torch_sgemm.autograd import Derivative

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
    """Whether there is one, for the operator or function ``name``."""
    if not isinstance(activation, str | None) or activation not in ACTIVATIONS:
        raise RuntimeError(
            f"{name}: argument 'activation' is {activation!r}; accepted: "
            + ", ".join(map(repr, ACTIVATIONS))
        )


def through_relu(flow: Tensor, result: Tensor) -> Tensor:
    """A gradient or tangent, zero where the result is."""
    return _aten.threshold_backward.default(flow, result, 0)


def _through_silu(grad: Tensor, x: Tensor) -> Tensor:
    """PyTorch's operator has no derivative of its own."""
    if not torch.is_grad_enabled():
        return _aten.silu_backward.default(grad, x)
    sigmoid = x.sigmoid()
    return grad * sigmoid * (1 + x * (1 - sigmoid))


# Of the gradient that flows to the result and of what went in; for ReLU, of the result itself.
_BACKWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": through_relu,
    "gelu": _gelu_backward,
    "gelu_tanh": partial(_gelu_backward, approximate="tanh"),
    "silu": _through_silu,
}


class _Followed(Derivative):
    """An activation that has been computed: its derivative."""

    @staticmethod
    def forward(ctx, inner: Tensor, results: list[Tensor], activation: str) -> Tensor:
        result = results.pop()  # in a list, for it is no argument that is returned as it is
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
    """A product with an activation, of which a gradient is wanted, and nothing else.

    ``run`` computes it and, second, what went into the activation. ``product`` gives that a
    derivative: that of what it is called with computes.
    """
    results: list[Tensor] = []

    def inner_of(*args, **kwargs) -> Tensor:
        result, inner = run(*args, **kwargs)
        results.append(result)
        return inner

    return _Followed.at_level(product(inner_of), results, activation)
