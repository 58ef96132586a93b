"""The functions that a layer may end with, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}

each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)
each_function = pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name])
