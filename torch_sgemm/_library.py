"""Loads the compiled library, which registers the operators; kernels past the dispatcher."""

from collections.abc import Callable
from pathlib import Path

import torch

PATH = Path(__file__).with_name("libtorch_sgemm.so")

if not PATH.exists():
    raise ImportError(
        f"torch_sgemm: {PATH.name} is not in {PATH.parent}; build it with `pip install .`, "
        "or in a checkout with `make build`"
    )
torch.ops.load_library(str(PATH))


def kernel_at(operator: str, key: str) -> tuple[Callable, torch._C.DispatchKeySet]:
    """An operator's kernel at a dispatch key, and the key as a set, its first argument.

    Not a partial() of both, which takes 0.2 microseconds.
    """
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return torch.library.get_kernel(operator, key).call_boxed, keys


def kernels_of(operator: str) -> dict[bool, tuple[Callable, torch._C.DispatchKeySet]]:
    """Its kernels on CPUs and GPUs, by whether it is a GPU."""
    return {False: kernel_at(operator, "CPU"), True: kernel_at(operator, "CUDA")}
