"""Operators and functions under torch.func's transforms, one within another, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch._dynamo.compiled_autograd
from support.data import integers
from support.table import each_device
from torch import Tensor, func
from torch.autograd import forward_ad
from torch.nn import functional

import torch_sgemm

Function = Callable[..., Tensor]
ops = torch.ops.sgemm

M, N, K, BATCH = 3, 2, 4, 2
_FACTORS = {"beta": 2.0, "alpha": -1.0}


def _relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(x, weight, bias).relu()


# Ours, PyTorch's, and the operands' shapes.
FUNCTIONS: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (ops.mm, torch.mm, ((M, K), (K, N))),
    "bmm": (ops.bmm, torch.bmm, ((BATCH, M, K), (BATCH, K, N))),
    "addmm": (
        lambda c, a, b: ops.addmm(c, a, b, **_FACTORS),
        lambda c, a, b: torch.addmm(c, a, b, **_FACTORS),
        ((N,), (M, K), (K, N)),
    ),
    "baddbmm": (
        lambda c, a, b: ops.baddbmm(c, a, b, **_FACTORS),
        lambda c, a, b: torch.baddbmm(c, a, b, **_FACTORS),
        ((BATCH, 1, N), (BATCH, M, K), (BATCH, K, N)),
    ),
    "linear": (ops.linear, functional.linear, ((BATCH, M, K), (N, K), (N,))),
    "relu": (lambda *x: ops.linear(*x, "relu"), _relu, ((M, K), (N, K), (N,))),
    "matmul": (torch_sgemm.matmul, torch.matmul, ((BATCH, M, K), (K, N))),
    "function linear": (
        lambda *x: torch_sgemm.linear(*x, "relu"),
        _relu,
        ((BATCH, M, K), (N, K), (N,)),
    ),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def _squared(f: Function) -> Function:
    return lambda *x: f(*x).square().sum()


def _of_all(transform: Callable, f: Function, x: tuple[Tensor, ...]):
    return transform(f, tuple(range(len(x))))(*x)


def _tangents(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(1 - y for y in x)


def _jvp(f: Function) -> Function:
    return lambda *x: func.jvp(f, x, _tangents(x))[1]


def _stacked(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.stack([y, y + 1]) for y in x)


TRANSFORMS: dict[str, Callable] = {
    "grad": lambda f, *x: _of_all(func.grad, _squared(f), x),
    "vjp": lambda f, *x: func.vjp(f, *x)[1](torch.ones_like(f(*x))),
    "jvp": lambda f, *x: _jvp(f)(*x),
    "jvp by the first": lambda f, *x: _jvp(lambda y: f(y, *x[1:]))(x[0]),
    "jvp by the last": lambda f, *x: _jvp(lambda y: f(*x[:-1], y))(x[-1]),
    "jacrev": lambda f, *x: _of_all(func.jacrev, f, x),
    "jacfwd": lambda f, *x: _of_all(func.jacfwd, f, x),
    "jvp of jvp": lambda f, *x: _jvp(_jvp(lambda *y: f(*y).square()))(*x),
    "jvp of jvp of jvp": lambda f, *x: _jvp(_jvp(_jvp(_squared(f))))(*x),
    "grad of jvp of jvp": lambda f, *x: _of_all(func.grad, _jvp(_jvp(_squared(f))), x),
    "jvp of grad": lambda f, *x: _jvp(func.grad(_squared(f)))(*x),
    "grad of grad": lambda f, *x: _of_all(
        func.grad, lambda *y: func.grad(_squared(f), 1)(*y).sum(), x
    ),
    "hessian": lambda f, *x: _of_all(func.hessian, _squared(f), x),
    "hessian by the first": lambda f, *x: func.hessian(_squared(lambda y: f(y, *x[1:])))(x[0]),
    "vmap of grad": lambda f, *x: func.vmap(func.grad(_squared(f), 1))(*_stacked(x)),
    "vmap of jvp": lambda f, *x: func.vmap(_jvp(f))(*_stacked(x)),
    "grad of vmap": lambda f, *x: _of_all(func.grad, _squared(func.vmap(f)), _stacked(x)),
    "jvp of vmap": lambda f, *x: _jvp(func.vmap(f))(*_stacked(x)),
}
COMPILED = ("grad", "jvp", "jvp of jvp", "hessian by the first", "vmap of grad")


def operands(name: str, device: str) -> tuple[Tensor, ...]:
    return tuple(integers(shape, i, device, 2) for i, shape in enumerate(FUNCTIONS[name][2]))


def assert_same(result, expected) -> None:
    """Integers, so that the result is PyTorch's exactly."""
    results, others = (torch.utils._pytree.tree_leaves(x) for x in (result, expected))
    assert len(results) == len(others) > 0
    for one, other in zip(results, others, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)


@pytest.mark.parametrize("transform", TRANSFORMS)
@each_function
@each_device
def test_transforms(device: str, name: str, transform: str) -> None:
    ours, theirs, _ = FUNCTIONS[name]
    x = operands(name, device)
    assert_same(TRANSFORMS[transform](ours, *x), TRANSFORMS[transform](theirs, *x))


@pytest.mark.parametrize("transform", COMPILED)
@pytest.mark.parametrize("name", ["mm", "matmul", "function linear"])
@each_device
def test_compiled_transforms(device: str, name: str, transform: str) -> None:
    ours, theirs, _ = FUNCTIONS[name]
    x = operands(name, device)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: TRANSFORMS[transform](ours, *x), fullgraph=True, backend="aot_eager"
    )
    assert_same(compiled(*x), TRANSFORMS[transform](theirs, *x))


@each_function
@each_device
def test_compiled_autograd(device: str, name: str) -> None:
    """A backward that torch.compile captures, of a forward that it doesn't."""
    ours, theirs, _ = FUNCTIONS[name]

    def gradients(f: Function, scope: AbstractContextManager) -> list[Tensor]:
        x = [y.requires_grad_() for y in operands(name, device)]
        result = _squared(f)(*x)
        with scope:
            result.backward()
        return [y.grad for y in x]

    torch.compiler.reset()
    compiled = torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager"))
    assert_same(gradients(ours, compiled), gradients(theirs, nullcontext()))


# --- dual numbers -------------------------------------------------------------------------------


@each_function
@each_device
def test_dual_numbers(device: str, name: str) -> None:
    """Each choice of operands with a tangent gives the expected result."""
    ours, theirs, _ = FUNCTIONS[name]
    x = operands(name, device)
    for mask in range(1, 2 ** len(x)):
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(y, 1 - y) if mask >> i & 1 else y for i, y in enumerate(x)
            ]
            result, expected = (forward_ad.unpack_dual(f(*duals)) for f in (ours, theirs))
            assert_same(tuple(result), tuple(expected))


@each_function
@each_device
def test_a_tangent_can_be_written(device: str, name: str) -> None:
    """Changing a result in place changes no operand's tangent."""
    x = operands(name, device)
    for i, operand in enumerate(x):
        tangent = 1 - operand
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(operand, tangent)
            FUNCTIONS[name][0](*x[:i], dual, *x[i + 1 :]).mul_(7)
        assert torch.equal(tangent, 1 - operand)


@pytest.mark.parametrize("name", ["mm", "matmul", "function linear"])
@each_device
def test_compiled_dual_numbers(device: str, name: str) -> None:
    x, *rest = operands(name, device)

    def tangent(x: Tensor, f: Function) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, 1 - x), *rest)).tangent

    torch.compiler.reset()
    compiled = torch.compile(
        lambda x: tangent(x, FUNCTIONS[name][0]), fullgraph=True, backend="aot_eager"
    )
    assert_same(compiled(x), tangent(x, FUNCTIONS[name][1]))


@each_device
@pytest.mark.parametrize("inner", ["inside", "outside"])
@each_function
def test_no_grad_holds_within_a_tangent(name: str, inner: str, device: str) -> None:
    """A level further out asks for nothing that is computed without gradients."""
    ours, theirs, shapes = FUNCTIONS[name]
    x, *others = (integers(shape, i, device) for i, shape in enumerate(shapes))
    others = [y.requires_grad_() for y in others]

    def tangent(f: Function) -> Tensor:
        def run(x: Tensor) -> Tensor:
            with torch.no_grad() if inner == "inside" else nullcontext():
                return f(x, *others)

        with torch.no_grad() if inner == "outside" else nullcontext():
            return func.jvp(run, (x,), (x,))

    for result, expected in zip(tangent(ours), tangent(theirs), strict=True):
        assert torch.equal(result, expected)
        assert result.requires_grad == expected.requires_grad
    gradient = func.grad(
        lambda x: sum(
            y.sum()
            for y in func.jvp(
                lambda x: torch.no_grad()(ours)(x, *others), (x,), (torch.ones_like(x),)
            )
        )
    )(x)
    assert not gradient.any()
