"""Calls past PyTorch's dispatcher, which takes half of a call's time on the host.

Calls that a mode, subclass, transform or tracer observes must go through the dispatcher.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import operators, out_of_memory
from torch_sgemm.torch_ops.private import DispatchKey as _Key
from torch_sgemm.torch_ops.private import DispatchKeySet as _Keys

PLAIN = (Tensor, torch.nn.Parameter)
_AUTOCAST = {False: _Key.AutocastCPU, True: _Key.AutocastCUDA}  # by is_cuda
_VIEWS = _Keys(_Key.ADInplaceOrView)
_TENSOR_KEYS = {
    False: _Keys(_Key.CPU) | _Keys(_Key.AutogradCPU) | _Keys(_AUTOCAST[False]) | _VIEWS,
    True: _Keys(_Key.CUDA) | _Keys(_Key.AutogradCUDA) | _Keys(_AUTOCAST[True]) | _VIEWS,
}
_THREAD_KEYS = _Keys(_Key.BackendSelect) | _VIEWS
_keys_of, _keys_of_thread = private.keys_of, private.keys_of_thread
_is_excluded = private.is_excluded
_function_modes, _is_grad_enabled = private.function_modes, torch.is_grad_enabled
_float32 = torch.float32


def is_plain(*tensors: Tensor | None) -> bool:
    """True for strided tensors without a subclass, mode, transform, tangent or tracer."""
    return (
        all(
            type(x) in PLAIN and x.layout is torch.strided and not (x.is_nested or x.is_meta)
            for x in tensors
            if x is not None
        )
        and not private.dispatch_modes()
        and not private.transforms_active()
        and not private.tracing_state()
        and forward_ad._current_level < 0
    )


def reaches_kernel(*tensors: Tensor) -> bool:
    """True if an operator's call would reach the device's kernel with nothing in between.

    That holds for float32 tensors on one kind of device, without a gradient, subclass, mode,
    transform, tracer, autocast or pending negation.
    """
    if torch.compiler.is_compiling() or type(tensors[0]) not in PLAIN:
        return False
    on_gpu, grad = tensors[0].is_cuda, _is_grad_enabled()
    keys = _TENSOR_KEYS[on_gpu]
    for x in tensors:
        if (
            type(x) not in PLAIN
            or x.dtype is not _float32
            or _keys_of(x) != keys
            or (grad and x.requires_grad)
        ):
            return False
    return (
        forward_ad._current_level < 0
        and _keys_of_thread() == _THREAD_KEYS
        and _is_excluded(_AUTOCAST[on_gpu])
        and not _function_modes()
    )


AtKey = tuple[Callable, _Keys]


def kernel_at(name: str, key: str) -> AtKey:
    """Returns ``sgemm::name``'s kernel at a dispatch key, and its first argument, the key as a set.

    Unlike a kernel from PyTorch's get_kernel(), it lets other threads run while a launch waits for
    earlier ones. A partial() of both would take 0.2 microseconds.
    """
    return private.redispatch_of(getattr(operators, name).default), private.key_set(key)


def kernels_of(name: str) -> dict[bool, AtKey]:
    """Returns an operator's kernels on CPUs and GPUs, by ``is_cuda``."""
    return {False: kernel_at(name, "CPU"), True: kernel_at(name, "CUDA")}


def dispatched(operator: private.OpOverload, a: Tensor, *rest) -> Tensor:
    """Calls an operator through the dispatcher: modes, profilers and autograd see the call."""
    if torch.compiler.is_compiling():
        return operator(a, *rest)
    try:
        return operator(a, *rest)
    except RuntimeError as failure:  # inference mode skips the autograd kernel's translation
        raise out_of_memory(failure, a.is_cuda) from None
