"""The private names of PyTorch that this package uses, and what breaks if one of them goes.

Other files read only three such attributes in place, because a call would double the cost.
They are ``forward_ad._current_level`` (past_dispatcher.py, autograd.py: a dual tensor would lose
its tangent), ``Tensor._version`` and ``Tensor._base`` (packed.py: a changed weight would be
multiplied as it was before).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.utils
import torch._guards
import torch.fx.experimental.proxy_tensor
import torch.utils._python_dispatch
from torch.autograd import forward_ad

_C = torch._C

# Kernels past the dispatcher: without these, all calls have to go through it.
DispatchKey, DispatchKeySet = _C.DispatchKey, _C.DispatchKeySet
after_autograd = _C._after_autograd_keyset
below_autograd = _C._AutoDispatchBelowAutograd

# Checks of past_dispatcher.py and overrides.py: without one of these no call is plain, and all take
# the dispatcher's longer way.
keys_of, keys_of_thread = _C._dispatch_keys, _C._dispatch_tls_local_include_set
is_excluded = _C._dispatch_tls_is_dispatch_key_excluded
function_modes, dispatch_modes = _C._len_torch_function_stack, _C._len_torch_dispatch_stack
tracing_state = _C._get_tracing_state
transforms_active = _C._are_functorch_transforms_active
any_requires_grad = _C._any_requires_grad
is_forward_grad_enabled = _C._is_fwd_grad_enabled

# autograd.py: derivatives at one level of nested ones, forward over reverse, torch.compile.
SingleLevelFunction = torch.autograd.function._SingleLevelFunction
single_level = torch._functorch.utils.enable_single_level_autograd_function
set_forward_grad = forward_ad._set_fwd_grad_enabled
TracingContext = torch._guards.TracingContext
disable_proxy_modes_tracing = torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing
is_executed = _C._will_engine_execute_node
compiled_autograd_key = torch.autograd.Function._compiled_autograd_key

OpOverload = torch._ops.OpOverload  # the type of an operator
allows_tf32 = _C._get_cublas_allow_tf32  # overrides.py: the setting's public name takes longer
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode  # recorder.py: sees no product
inductor = "torch._inductor.lowering"  # inductor.py: compiled calls with kernel= would fail
unsafe_view = torch.ops.aten._unsafe_view.default  # product.py: a view can't be written
# attention.py, attention_backward.py: PyTorch's side would be products, with all weights in memory.
efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
efficient_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
flash_cpu_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
UNLOADED = "SafeKernelFunction has been invalidated"  # overrides.py: begins such an error


_eval_frame = _C._dynamo.eval_frame
_SKIP = _eval_frame._FrameAction.SKIP


def uncompiled(function: Callable) -> Callable:
    """Keeps torch.compile from compiling a function and all that it calls.

    ``torch.compiler.disable`` would import the compiler. Kernels in Python need this as well: after
    a graph break the compiler would compile the frames that the dispatcher calls.
    """
    strategy = _eval_frame._FrameExecStrategy(_SKIP, _SKIP)
    _eval_frame.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True
    return function


def key_set(name: str) -> DispatchKeySet:
    """Returns a dispatch key, by its name, as a set."""
    return DispatchKeySet(getattr(DispatchKey, name))


_views = key_set("ADInplaceOrView")


def below_views():
    """attention.py: in this context views are none for autograd, as in PyTorch's own operators.

    Without it results could not be written in place.
    """
    return _C._ExcludeDispatchKeyGuard(_views)


def has_context(device: int) -> bool:
    """settings.py: True if this process uses a GPU, with any allocator."""
    return _C._cuda_hasPrimaryContext(device)


def current_stream(device: int) -> int:
    """packed.py: the stream on which a weight is packed."""
    return _C._cuda_getCurrentRawStream(device)


def has_names(x: torch.Tensor) -> bool:
    """route.py: True if operators would refuse a named tensor; PyTorch <= 2.14."""
    return hasattr(x, "has_names") and not torch.compiler.is_compiling() and x.has_names()


def redispatch_of(operator: OpOverload) -> Callable:
    """Returns the operator at a set of dispatch keys, which is its first argument."""
    return operator._handle.redispatch_boxed


def arguments_of(operator: OpOverload) -> list:
    """inductor.py: an operator's arguments in order."""
    return operator._schema.arguments


def overload(name: str) -> OpOverload:
    """overrides.py: an operator of aten, such as ``"mm.out"``."""
    name, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, name), variant or "default")


def is_pytorch_s(kernel) -> bool:
    """overrides.py: True if PyTorch's build registered it. If unknown, calls hold the GIL."""
    return "/aten/src/ATen/Register" in repr(kernel)


def register(library: torch.library.Library, name: str, key: str, function: Callable) -> None:
    """overrides.py: ``Library.impl`` would refuse all other libraries the same kernel."""
    library.m.impl(name, key, function, False)


def take_back(library: torch.library.Library) -> None:
    """overrides.py: without this ``disable()`` would leave the overrides in place."""
    library._destroy()


def named_arguments(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict:
    """Returns an operator's arguments by name; recorder.py would see no attention."""
    names = (argument.name for argument in func._schema.arguments)
    return dict(zip(names, args, strict=False)) | kwargs
