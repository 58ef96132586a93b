"""Failed allocations raise PyTorch's type of error and print nothing.

The library allocates by PyTorch's C interface, which prints a stack on failure. A product that can
do without its workspace would then seem to have failed, so large tensors are allocated here.
"""

import torch
from torch import Tensor

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import NAMESPACE, operators

_library = torch.library.Library(NAMESPACE, "IMPL")


def out_of_memory(failure: RuntimeError, on_gpu: bool) -> RuntimeError:
    """Returns an operator's out-of-memory failure as PyTorch's type, other failures unchanged.

    The library's message has PyTorch's own words, by which other libraries recognize it.
    """
    if on_gpu and str(failure).startswith("CUDA out of memory."):
        return torch.OutOfMemoryError(str(failure))
    return failure


@private.uncompiled
def _allocate(elements: int, dtype: torch.dtype, index: int) -> Tensor | None:
    """Returns a tensor on a GPU, or on the CPU for ``index`` -1; None if there is no memory."""
    device = torch.device("cpu") if index < 0 else torch.device("cuda", index)
    try:
        return torch.empty(elements, dtype=dtype, device=device)
    except RuntimeError:
        return None


_library.impl("_allocate", _allocate, "CompositeExplicitAutograd")
operators._let_python_allocate()
