"""The private names of PyTorch that this package uses, and what breaks if one of them goes.

No other file mentions one, but for three attributes that are read in place, where a call would cost
as much as what it asks: ``forward_ad._current_level`` (plain.py, levels.py: a dual tensor would
lose its tangent), ``Tensor._version`` and ``Tensor._base`` (packed.py: a weight that was changed
would be multiplied as it was before).
"""

from collections.abc import Callable

import torch
from torch._functorch.utils import (
    enable_single_level_autograd_function as single_level,  # levels.py: derivatives in torch.func
)
from torch._guards import TracingContext  # levels.py: forward mode inside torch.compile
from torch._ops import OpOverload, resolve_key  # overrides.py: matmul while sizes are symbols
from torch.autograd.forward_ad import (
    _set_fwd_grad_enabled as set_forward_grad,  # levels.py: forward over reverse
)
from torch.autograd.function import _SingleLevelFunction as SingleLevelFunction  # levels.py: same
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing  # levels.py: tracing

__all__ = [
    "DispatchKey",
    "DispatchKeySet",
    "OpOverload",
    "SingleLevelFunction",
    "TracingContext",
    "after_autograd",
    "allows_tf32",
    "any_requires_grad",
    "arguments_of",
    "below_autograd",
    "compiled_autograd_key",
    "current_stream",
    "disable_proxy_modes_tracing",
    "dispatch_modes",
    "forget_resolutions",
    "function_modes",
    "inductor",
    "is_excluded",
    "is_forward_grad_enabled",
    "is_included",
    "keys_of",
    "keys_of_thread",
    "redispatch_of",
    "resolve_key",
    "set_forward_grad",
    "single_level",
    "take_back",
    "tracing_state",
    "transforms_active",
]

_C = torch._C

# Kernels past the dispatcher: _library.py, levels.py and overrides.py have to go through it.
DispatchKey, DispatchKeySet = _C.DispatchKey, _C.DispatchKeySet
after_autograd = _C._after_autograd_keyset
below_autograd = _C._AutoDispatchBelowAutograd

# What plain.py asks of a call, and overrides.py: without one of these no call is plain, and all
# take the dispatcher's longer way.
keys_of, keys_of_thread = _C._dispatch_keys, _C._dispatch_tls_local_include_set
is_excluded = _C._dispatch_tls_is_dispatch_key_excluded
is_included = _C._dispatch_tls_is_dispatch_key_included
function_modes, dispatch_modes = _C._len_torch_function_stack, _C._len_torch_dispatch_stack
tracing_state = _C._get_tracing_state
transforms_active = _C._are_functorch_transforms_active
any_requires_grad = _C._any_requires_grad
is_forward_grad_enabled = _C._is_fwd_grad_enabled

compiled_autograd_key = torch.autograd.Function._compiled_autograd_key  # levels.py: torch.compile
allows_tf32 = _C._get_cublas_allow_tf32  # overrides.py: the setting's public name takes longer


def current_stream(device: int) -> int:
    """packed.py: on which stream a weight was packed."""
    return _C._cuda_getCurrentRawStream(device)


def redispatch_of(operator: OpOverload) -> Callable:
    """The operator at a set of dispatch keys, which is its first argument."""
    return operator._handle.redispatch_boxed


def arguments_of(operator: OpOverload) -> list:
    """inductor.py: an operator's arguments in order."""
    return operator._schema.arguments


def forget_resolutions(operator: OpOverload) -> None:
    """overrides.py: tracing would keep an override that was taken back."""
    operator._dispatch_cache.clear()


def take_back(library: torch.library.Library) -> None:
    """overrides.py: ``disable()`` would leave the overrides in place."""
    library._destroy()


inductor = "torch._inductor.lowering"  # inductor.py: compiled calls with kernel= would fail
