"""The activations that a layer's product may end with, by name: PyTorch's own functions."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
