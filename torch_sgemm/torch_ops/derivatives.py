"""Derivatives of the operators, by the operators themselves.

For C = A B the gradients are dA = dC Bᵀ and dB = Aᵀ dC, and the tangent is tA B + A tB. These are
products with transposes as strides, so derivatives of any order are products too. They use the
forward's ``kernel``.

Operators that write their result have no derivative, and raise an error where one is needed.
Without an autograd kernel, PyTorch would take what they write as constant and return wrong
gradients.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor

from torch_sgemm.torch_ops.autograd import Derivative, below, implement, needed, with_primals
from torch_sgemm.torch_ops.library import operators, qualified
from torch_sgemm.torch_ops.ops import WRITERS
from torch_sgemm.torch_ops.product import of_gradients, product


def save_factors(ctx, a: Tensor, b: Tensor, needs_a: bool, needs_b: bool) -> None:
    """Saves those factors of a product that :func:`of_factors` needs."""
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.dtypes = a.dtype, b.dtype


def of_factors(
    ctx, grad: Tensor, needs_a: bool, needs_b: bool, kernel: str
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the gradients of a product's factors, in their dtypes."""
    a, b = ctx.saved_tensors
    kernel, (of_a, of_b) = of_gradients(kernel), ctx.dtypes
    grad_a = product(grad, b.mT, kernel).to(of_a) if needs_a else None
    grad_b = product(a.mT, grad, kernel).to(of_b) if needs_b else None
    return grad_a, grad_b


class SgemmProduct(Derivative):
    """C = A B"""

    @staticmethod
    def of(operator, keyset, a: Tensor, b: Tensor, kernel: str = "auto") -> Tensor:
        return SgemmProduct.at_level(operator, keyset, a, b, kernel)

    @staticmethod
    def forward(ctx, operator, keyset, a: Tensor, b: Tensor, kernel: str) -> Tensor:
        save_factors(ctx, a, b, *ctx.needs_input_grad[2:4])
        ctx.save_for_forward(a, b)
        ctx.kernel = kernel
        return below(operator, keyset, a, b, kernel)

    @staticmethod
    def backward(ctx, grad: Tensor):
        gradients = of_factors(ctx, grad, *needed(ctx)[2:4], ctx.kernel)
        return None, None, *gradients, None

    @staticmethod
    @with_primals
    def jvp(ctx, saved, _operator, _keyset, tangent_a, tangent_b, _kernel) -> Tensor:
        return _tangent(*saved, tangent_a, tangent_b, ctx.kernel)


class SgemmSum(Derivative):
    """beta C + alpha A B by ``run``; ``rest``: arguments after ``kernel`` without a derivative."""

    @staticmethod
    def of(
        operator,
        keyset,
        c: Tensor | None,
        a: Tensor,
        b: Tensor,
        kernel: str = "auto",
        *rest,
        beta: float = 1.0,
        alpha: float = 1.0,
    ) -> Tensor:
        run = partial(below, operator, keyset)
        return SgemmSum.at_level(run, c, a, b, beta, alpha, kernel, *rest)

    @staticmethod
    def forward(
        ctx,
        run: Callable[..., Tensor],
        c: Tensor | None,
        a: Tensor,
        b: Tensor,
        beta: float,
        alpha: float,
        kernel: str,
        *rest,
    ) -> Tensor:
        save_factors(ctx, a, b, *ctx.needs_input_grad[2:4])
        ctx.save_for_forward(a, b)
        ctx.kernel, ctx.beta, ctx.alpha = kernel, beta, alpha
        ctx.addend = None if c is None else c.shape
        return run(c, a, b, kernel, *rest, beta=beta, alpha=alpha)

    @staticmethod
    def backward(ctx, grad: Tensor):
        _, needs_c, needs_a, needs_b, *others = needed(ctx)
        grad_c = (grad * ctx.beta).sum_to_size(ctx.addend) if needs_c else None
        gradients = of_factors(ctx, scaled(grad, ctx.alpha), needs_a, needs_b, ctx.kernel)
        return None, grad_c, *gradients, *(None for _ in others)

    @staticmethod
    @with_primals
    def jvp(ctx, saved, _run, tangent_c, tangent_a, tangent_b, *_) -> Tensor:
        a, b = saved
        if tangent_a is None and tangent_b is None:
            return spread(scaled(tangent_c, ctx.beta), (*a.shape[:-1], b.shape[-1]))
        tangent = scaled(_tangent(a, b, tangent_a, tangent_b, ctx.kernel), ctx.alpha)
        return tangent if tangent_c is None else tangent + scaled(tangent_c, ctx.beta)


def _tangent(
    a: Tensor, b: Tensor, tangent_a: Tensor | None, tangent_b: Tensor | None, kernel: str
) -> Tensor:
    """Returns the tangent of A B; at least one operand has one."""
    if tangent_a is None:
        return product(a, tangent_b, kernel)
    if tangent_b is None:
        return product(tangent_a, b, kernel)
    return product(tangent_a, b, kernel) + product(a, tangent_b, kernel)


def spread(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Broadcasts x into a new contiguous tensor, because a tangent may be written."""
    return x.expand(shape).clone(memory_format=torch.contiguous_format)


def scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def differentiate(name: str, derivative: type[Derivative]) -> None:
    implement(name, partial(derivative.of, getattr(operators, name).default))


differentiate("mm", SgemmProduct)
differentiate("bmm", SgemmProduct)
differentiate("_matmul", SgemmProduct)
differentiate("addmm", SgemmSum)
differentiate("baddbmm", SgemmSum)


def _refuse_derivatives(name: str) -> None:
    def refuse(*args, **kwargs) -> NoReturn:
        raise RuntimeError(
            f"{qualified(name)}: writes its result, which has no derivative, but an argument "
            "requires grad or has a tangent; accepted: tensors that don't, torch.no_grad(), or an "
            "operator that returns its result"
        )

    implement(name, refuse)


for _name in WRITERS:
    _refuse_derivatives(_name)
