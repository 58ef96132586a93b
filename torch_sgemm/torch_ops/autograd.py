"""Registers an operator's derivative at one level of nested transforms, as PyTorch does its own.

torch.func calls an operator once per transform, from the innermost to the outermost. Each time the
operator's autograd kernel records what that transform needs. The public torch.autograd.Function
can't be used there, because it restarts at the innermost transform.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import NAMESPACE, operators, out_of_memory
from torch_sgemm.torch_ops.past_dispatcher import kernel_at

_are_transforms_active = private.transforms_active
_any_requires_grad, _is_grad_enabled = private.any_requires_grad, torch.is_grad_enabled
_after_autograd = private.after_autograd


class _Outside(threading.local):
    """The modes at an operator's call; PyTorch switches them off inside forward()."""

    grad = forward_grad = True


_outside = _Outside()


@contextmanager
def _remembered() -> Iterator[None]:
    before = _outside.grad, _outside.forward_grad
    _outside.grad = _is_grad_enabled()
    _outside.forward_grad = private.is_forward_grad_enabled()
    try:
        yield
    finally:
        _outside.grad, _outside.forward_grad = before


class Derivative(private.SingleLevelFunction):
    """A torch.autograd.Function of the current level; call ``at_level`` instead of ``apply``."""

    _compiled_autograd_key = staticmethod(private.compiled_autograd_key)

    @classmethod
    def at_level(cls, *args) -> Tensor:
        if not _are_transforms_active():
            return cls.apply(*args)
        with private.single_level(), _remembered():
            return cls.apply(*args)


def needed(ctx) -> tuple[bool, ...]:
    """Returns for each argument of forward() whether this backward needs its gradient.

    ``torch.autograd.grad`` and ``backward(inputs=...)`` may leave out arguments that require grad.
    """
    if sum(ctx.needs_input_grad) < 2:
        return ctx.needs_input_grad
    wanted = (_is_executed(node) for node, _ in ctx.next_functions if node is not None)
    return tuple(needs and next(wanted) for needs in ctx.needs_input_grad)


def _is_executed(node) -> bool:
    try:
        return private.is_executed(node)
    except RuntimeError:  # a leaf of torch.autograd.grad, or a traced backward
        return True


def is_wanted(*args) -> bool:
    """True if this level needs a derivative by an argument.

    The tracer of torch.compile sees no tangents, and can't call PyTorch's private functions.
    """
    if torch.compiler.is_dynamo_compiling():
        return _is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
    return (_is_grad_enabled() and _any_requires_grad(*args)) or has_tangent(*args)


def has_tangent(*args) -> bool:
    """True if an argument is a dual tensor, whose tangent forward mode needs.

    Python's count of dual levels misses one that a graph of torch.compile enters.
    """
    traced = private.TracingContext.try_get() is not None
    if not private.is_forward_grad_enabled() or (
        forward_ad._current_level < 0 and not _are_transforms_active() and not traced
    ):
        return False
    # unpack_dual() makes a view, which must not be traced.
    with private.disable_proxy_modes_tracing() if traced else nullcontext():
        return any(isinstance(x, Tensor) and _dual(x).tangent is not None for x in args)


def _dual(x: Tensor) -> forward_ad.UnpackedDualTensor:
    return forward_ad.unpack_dual(x, level=0)  # the only level in PyTorch


def below(operator: private.OpOverload, keyset, *args, **kwargs) -> Tensor:
    """Calls the operator at the outer levels; for forward() of a Derivative."""
    redispatch = private.redispatch_of(operator)
    with private.below_autograd():
        if not _are_transforms_active():
            return redispatch(keyset & _after_autograd, *args, **kwargs)
        with (
            torch.set_grad_enabled(_outside.grad),
            private.set_forward_grad(_outside.forward_grad),
        ):
            return redispatch(keyset & _after_autograd, *args, **kwargs)


def with_primals(jvp: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes a Derivative's jvp(ctx, *tangents) from jvp(ctx, saved, *tangents).

    PyTorch calls it with forward mode off, so the result would have no tangent for outer levels and
    jvp of jvp would be zero. Here forward mode is on, and the saved tensors come without their
    tangents of this level.
    """

    @functools.wraps(jvp)
    def function(ctx, *tangents):
        with private.set_forward_grad(True):
            saved = [x if x is None else _dual(x).primal for x in ctx.saved_tensors]
            return jvp(ctx, saved, *tangents)

    return function


_library = torch.library.Library(NAMESPACE, "IMPL")


def implement(name: str, wanted: Callable) -> None:
    """Registers an autograd kernel: ``wanted`` if a derivative is needed, else the one below."""
    redispatch = private.redispatch_of(getattr(operators, name).default)

    @private.uncompiled
    def autograd(keyset, *args, **kwargs):
        if is_wanted(*args, *kwargs.values()):
            return wanted(keyset, *args, **kwargs)
        return redispatch(keyset & _after_autograd, *args, **kwargs)

    _library.impl(name, autograd, "Autograd", with_keyset=True)
    for backend in ("CPU", "CUDA"):
        _shorten(name, autograd, backend)


def _shorten(name: str, autograd: Callable, backend: str) -> None:
    """Lets calls that need no derivative skip the dispatcher, which takes half of their time.

    A device's own autograd key precedes the alias ``Autograd``. If no mode, subclass or transform
    has a key in between, the kernel is called directly.
    """
    key = f"Autograd{backend}"
    kernel, keys = kernel_at(name, backend)
    plain = keys | private.key_set(key)

    @private.uncompiled
    def shortened(keyset, *args, **kwargs):
        try:
            if (
                keyset == plain
                and forward_ad._current_level < 0
                and not (_is_grad_enabled() and _any_requires_grad(*args, **kwargs))
            ):
                return kernel(keys, *args, **kwargs)
            return autograd(keyset, *args, **kwargs)
        except RuntimeError as failure:
            raise out_of_memory(failure, backend == "CUDA") from None

    _library.impl(name, shortened, key, with_keyset=True)
