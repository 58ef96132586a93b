"""Loads the compiled library, which registers the operators; kernels past the dispatcher."""

from collections.abc import Callable
from pathlib import Path

import torch

from torch_sgemm.private import DispatchKeySet, key_set, redispatch_of

PATH = Path(__file__).with_name("libtorch_sgemm.so")

if not PATH.exists():
    raise ImportError(
        f"torch_sgemm: {PATH.name} is not in {PATH.parent}; build it with `pip install .`, "
        "or in a checkout with `make build`"
    )
torch.ops.load_library(str(PATH))


AtKey = tuple[Callable, DispatchKeySet]


def kernel_at(name: str, key: str) -> AtKey:
    """The kernel of the operator ``sgemm::name`` at a dispatch key, and the key as a set, its first
    argument.

    Other threads can run meanwhile, which PyTorch's get_kernel() would not let: a launch may have
    to wait for those in front of it. Not a partial() of both, which takes 0.2 microseconds.
    """
    return redispatch_of(getattr(torch.ops.sgemm, name).default), key_set(key)


def kernels_of(name: str) -> dict[bool, AtKey]:
    """Its kernels on CPUs and GPUs, by whether it is a GPU."""
    return {False: kernel_at(name, "CPU"), True: kernel_at(name, "CUDA")}


def out_of_memory(failure: RuntimeError, on_gpu: bool) -> RuntimeError:
    """The failure as PyTorch names it, if that is what happened to our operator."""
    if on_gpu and str(failure).startswith("sgemm: out of memory"):
        return torch.OutOfMemoryError(str(failure))
    return failure
