"""Derivatives and batching of the operators, by the operators themselves.

The gradients of C = A B are dA = dC Bᵀ and dB = Aᵀ dC, products again with transposes as strides,
so double backward works as well. In a product's backward the forward's ``kernel`` is used.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torch_sgemm._library import kernel_at
from torch_sgemm.plain import has_tangent

_mm, _bmm = torch.ops.sgemm.mm, torch.ops.sgemm.bmm


def _register_derivative(name: str, product) -> None:
    def setup(ctx, inputs, output):
        a, b, kernel = inputs
        ctx.save_for_backward(a, b)
        ctx.kernel = kernel

    def backward(ctx, grad: Tensor):
        a, b = ctx.saved_tensors
        needs_a, needs_b, *kernel = ctx.needs_input_grad  # without ``kernel`` where it is "auto"
        grad_a = product(grad, b.mT, kernel=ctx.kernel) if needs_a else None
        grad_b = product(a.mT, grad, kernel=ctx.kernel) if needs_b else None
        return grad_a, grad_b, *[None for _ in kernel]

    torch.library.register_autograd(f"sgemm::{name}", backward, setup_context=setup)


def _register_derivative_with_addend(name: str, product) -> None:
    def setup(ctx, inputs, keyword_only_inputs, output):
        c, a, b, kernel = inputs
        ctx.save_for_backward(a, b)
        ctx.kernel, ctx.addend = kernel, c.shape
        ctx.alpha, ctx.beta = keyword_only_inputs["alpha"], keyword_only_inputs["beta"]

    def backward(ctx, grad: Tensor):
        a, b = ctx.saved_tensors
        needs_c, needs_a, needs_b, *kernel = ctx.needs_input_grad
        scaled = grad * ctx.alpha if ctx.alpha != 1 else grad
        grad_c = (grad * ctx.beta).sum_to_size(ctx.addend) if needs_c else None
        grad_a = product(scaled, b.mT, kernel=ctx.kernel) if needs_a else None
        grad_b = product(a.mT, scaled, kernel=ctx.kernel) if needs_b else None
        return grad_c, grad_a, grad_b, *[None for _ in kernel]

    torch.library.register_autograd(f"sgemm::{name}", backward, setup_context=setup)


_register_derivative("mm", _mm)
_register_derivative("bmm", _bmm)
_register_derivative_with_addend("addmm", _mm)
_register_derivative_with_addend("baddbmm", _bmm)

_in_front = torch.library.Library("sgemm", "IMPL")


def _shorten(name: str, backend: str) -> None:
    """Calls that need no gradient skip what register_autograd() installed, half of their time.

    A key of one device comes before the alias of all, which register_autograd() takes. Where no
    mode, subclass or transform has a key in between, the kernel is called at once.
    """
    key = f"Autograd{backend}"
    redispatch = getattr(torch.ops.sgemm, name).default._handle.redispatch_boxed
    derivative, derivative_keys = kernel_at(f"sgemm::{name}", key)
    kernel, keys = kernel_at(f"sgemm::{name}", backend)
    plain = keys | derivative_keys
    any_requires_grad, is_grad_enabled = torch._C._any_requires_grad, torch.is_grad_enabled
    below = torch._C._after_autograd_keyset

    def product(keyset, *args, **kwargs):
        if has_tangent(*args):
            raise NotImplementedError(
                f"sgemm::{name} has no forward-mode derivative; torch_sgemm.matmul and "
                "torch_sgemm.linear have"
            )
        if is_grad_enabled() and any_requires_grad(*args):
            return derivative(keyset, *args, **kwargs)
        if keyset == plain:
            return kernel(keys, *args, **kwargs)
        return redispatch(keyset & below, *args, **kwargs)

    _in_front.impl(name, product, key, with_keyset=True)


for _name in ("mm", "bmm", "addmm", "baddbmm"):
    for _backend in ("CPU", "CUDA"):
        _shorten(_name, _backend)


def of_any_level(jvp: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An autograd.Function's jvp(ctx, *tangents) from jvp(ctx, saved, *tangents).

    PyTorch calls it with forward mode off, so that what it computes has no tangent for the
    torch.func.jvp outside: jvp of jvp would be zero. Here forward mode is on, and the saved tensors
    come without their tangents of this level.
    """

    @functools.wraps(jvp)
    def function(ctx, *tangents):
        with forward_ad._set_fwd_grad_enabled(True):
            saved = [
                x if x is None else forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors
            ]
            return jvp(ctx, saved, *tangents)

    return function


def batched(x: Tensor, dim: int | None, size: int) -> Tensor:
    """With the vmapped dimension first; expanded, without a copy, if it has none."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


@torch.library.register_vmap("sgemm::mm")
def _(info, in_dims, a, b, kernel="auto"):
    a, b = batched(a, in_dims[0], info.batch_size), batched(b, in_dims[1], info.batch_size)
    return _bmm(a, b, kernel=kernel), 0


@torch.library.register_vmap("sgemm::bmm")
def _(info, in_dims, a, b, kernel="auto"):
    a, b = batched(a, in_dims[0], info.batch_size), batched(b, in_dims[1], info.batch_size)
    return _bmm(a.flatten(0, 1), b.flatten(0, 1), kernel=kernel).unflatten(0, a.shape[:2]), 0


def _addend(c: Tensor, dim: int | None, dims: int) -> Tensor:
    """c of ``dims`` dimensions, behind the vmapped one if it has that."""
    missing = dims - (c.dim() - (dim is not None))
    c = c if dim is None else c.movedim(dim, 0)
    at = 0 if dim is None else 1
    return c.reshape(*c.shape[:at], *([1] * missing), *c.shape[at:])


@torch.library.register_vmap("sgemm::addmm")
def _(info, in_dims, c, a, b, kernel="auto", *, beta=1.0, alpha=1.0):
    size = info.batch_size
    c = _addend(c, in_dims[0], 2)
    a, b = batched(a, in_dims[1], size), batched(b, in_dims[2], size)
    return torch.ops.sgemm.baddbmm(c, a, b, kernel=kernel, beta=beta, alpha=alpha), 0


@torch.library.register_vmap("sgemm::baddbmm")
def _(info, in_dims, c, a, b, kernel="auto", *, beta=1.0, alpha=1.0):
    size = info.batch_size
    a, b = batched(a, in_dims[1], size), batched(b, in_dims[2], size)
    shape = (size, *a.shape[1:-1], b.shape[-1])
    c = _addend(c, in_dims[0], 3).expand(shape).flatten(0, 1)
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    out = torch.ops.sgemm.baddbmm(c, a, b, kernel=kernel, beta=beta, alpha=alpha)
    return out.unflatten(0, shape[:2]), 0
