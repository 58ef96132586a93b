"""What happens where there is no memory: PyTorch's type of error, and nothing printed on the way.

PyTorch's C interface, by which the library allocates, prints a failure with its stack. A product
that does without the workspace it has asked for would seem to have failed: what is large is
allocated here instead.
"""

import torch
from torch import Tensor

from torch_sgemm import private
from torch_sgemm._library import NAMESPACE, operators

_library = torch.library.Library(NAMESPACE, "IMPL")


def out_of_memory(failure: RuntimeError, on_gpu: bool) -> RuntimeError:
    """The failure by PyTorch's type, if that is what happened to our operator.

    The library's message has PyTorch's own words, by which other libraries know it.
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
