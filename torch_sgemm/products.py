"""Products of matrices or of batches of them, by the operators or past the dispatcher."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_sgemm import private
from torch_sgemm._library import kernels_of, out_of_memory
from torch_sgemm.plain import reaches_kernel

# By dimensions.
_OPERATORS = {2: torch.ops.sgemm.mm.default, 3: torch.ops.sgemm.bmm.default}
_KERNELS = {2: kernels_of("mm"), 3: kernels_of("bmm")}


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
    return _OPERATORS[a.dim()](a, b, kernel)


def rows_of(x: Tensor) -> Tensor:
    """(..., n) as (rows, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def with_shape(result: Tensor, shape: Sequence[int]) -> Tensor:
    """A new tensor of ours in another shape: no view for autograd, that could not be written."""
    return private.unsafe_view(result, shape)
