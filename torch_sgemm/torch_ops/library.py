"""Loads the compiled library, which registers the operators, and allocates memory for it.

The library allocates by PyTorch's C interface, which prints a stack on failure. A product that can
do without its workspace would then seem to have failed, so large tensors are allocated here. A
failed allocation raises PyTorch's type of error.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from torch_sgemm.torch_ops import private

PATH = Path(__file__).parent.with_name("libtorch_sgemm.so")
INFO = PATH.with_name("build_info.json")

if not PATH.exists():
    raise ImportError(
        f"torch_sgemm: {PATH.name} is not in {PATH.parent}; build it with `pip install .`, "
        "or in a checkout with `make build`"
    )
torch.ops.load_library(str(PATH))

# Two builds with namespaces of their own can be loaded into one process.
NAMESPACE = json.loads(INFO.read_text())["namespace"] if INFO.exists() else "sgemm"
operators = getattr(torch.ops, NAMESPACE)

# Dtypes of an operand, in the order of csrc/problem/problem.h's ElementType.
OPERAND_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def qualified(name: str) -> str:
    """An operator's name with its namespace: ``"sgemm::mm"``."""
    return f"{NAMESPACE}::{name}"


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


_implementations = torch.library.Library(NAMESPACE, "IMPL")
_implementations.impl("_allocate", _allocate, "CompositeExplicitAutograd")
operators._let_python_allocate()
