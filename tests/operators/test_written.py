"""Operators that write: autograd's and pack()'s view of what has changed, and odd targets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.activations import each_activation
from torch import Tensor

import torch_sgemm
from torch_sgemm import linear
from torch_sgemm.torch_ops.activations import ACTIVATIONS

ops = torch.ops.sgemm
WRITERS = ("mm_out", "bmm_out", "addmm_out", "baddbmm_out", "gemm_")


def operands(name: str) -> tuple[Tensor, Tensor]:
    batch = (3,) if name.startswith("b") else ()
    return torch.randn(*batch, 4, 5), torch.randn(*batch, 5, 6)


def write(name: str, target: Tensor) -> Tensor:
    """Writes a product into ``target`` by the operator, and returns the expected value."""
    a, b = operands(name)
    if name == "gemm_":
        ops.gemm_(target, a, b)
    elif "add" in name:
        getattr(ops, name)(torch.zeros(6), a, b, out=target)
    else:
        getattr(ops, name)(a, b, out=target)
    return a @ b


def target_of(name: str) -> Tensor:
    a, b = operands(name)
    return torch.zeros(*a.shape[:-1], b.shape[-1])


each_writer = pytest.mark.parametrize("name", WRITERS)


@each_writer
def test_changes_are_counted(name: str) -> None:
    target = target_of(name)
    expected = write(name, target)
    torch.testing.assert_close(target, expected)
    first = target._version
    assert first > 0
    write(name, target[..., :])  # a view
    assert target._version > first


@each_writer
def test_backward_sees_that_a_saved_tensor_has_changed(name: str) -> None:
    target = target_of(name)
    weight = torch.randn(target.shape, requires_grad=True)
    loss = (weight * target).sum()
    write(name, target)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@each_writer
def test_leaves_that_require_grad_are_refused(name: str) -> None:
    target = target_of(name).requires_grad_()
    with pytest.raises(RuntimeError, match=f"sgemm::{name}: writes its result, which has no"):
        write(name, target)
    assert not target.any()
    with torch.no_grad():
        expected = write(name, target)
    torch.testing.assert_close(target.detach(), expected)


def arguments(name: str, target: Tensor) -> tuple[list[Tensor], Callable[..., None]]:
    """The tensors of a call, and the call of them."""
    a, b = operands(name)
    operator = getattr(ops, name).default
    if name == "gemm_":
        return [target, a, b], lambda c, a, b: operator(c, a, b, beta=1.0)
    if "add" in name:
        return [torch.zeros(6), a, b, target], lambda c, a, b, out: operator(c, a, b, out=out)
    return [a, b, target], lambda a, b, out: operator(a, b, out=out)


@each_writer
def test_wanted_derivatives_are_refused(name: str) -> None:
    """Without an error, autograd would treat the written tensor as constant."""
    for i in range(len(arguments(name, target_of(name))[0])):
        target = target_of(name)
        tensors, call = arguments(name, target)

        def of(x: Tensor, i: int = i, tensors=tensors, call=call) -> Tensor:
            call(*tensors[:i], x, *tensors[i + 1 :])
            return x.sum()

        refused = pytest.raises(RuntimeError, match="has no derivative, but an argument requires")
        with refused:
            of(tensors[i] * torch.ones((), requires_grad=True))
        with refused:
            torch.func.grad(of)(tensors[i])
        with refused:
            torch.func.jvp(of, (tensors[i],), (tensors[i],))
        assert not target.any()


@each_writer
def test_inference_tensors_are_written_in_inference_mode_only(name: str) -> None:
    with torch.inference_mode():
        target = target_of(name)
        expected = write(name, target)
    torch.testing.assert_close(target, expected)
    with pytest.raises(RuntimeError, match="inference tensor"):
        write(name, target)


@each_writer
def test_targets_with_a_negative_bit(name: str) -> None:
    zeros = target_of(name)
    target = torch.complex(zeros, zeros).conj().imag
    assert target.is_neg()
    expected = write(name, target)
    torch.testing.assert_close(target.resolve_neg(), expected)


def test_operands_with_a_negative_bit() -> None:
    a, b, out = torch.randn(4, 5), torch.randn(5, 6), torch.empty(4, 6)
    negative = torch.complex(a, a).conj().imag
    ops.mm_out(negative, b, out=out)
    torch.testing.assert_close(out, -a @ b)


@each_activation
def test_linear_in_a_checkpoint(activation: str | None) -> None:
    x = torch.randn(4, 5)
    grads = []
    for within in (True, False):
        torch.manual_seed(0)
        weight = torch.randn(6, 5, requires_grad=True)

        def layer(x: Tensor, weight: Tensor = weight) -> Tensor:
            return linear(x, weight, None, activation)

        checkpoint = torch.utils.checkpoint.checkpoint
        result = checkpoint(layer, x, use_reentrant=False) if within else layer(x)
        result.sum().backward()
        grads.append(weight.grad)
    torch.testing.assert_close(*grads)


def test_batched_backward_of_linear() -> None:
    x, weight = torch.randn(4, 5), torch.randn(6, 5)
    jacobian = torch.autograd.functional.jacobian
    found = jacobian(lambda x: linear(x, weight), x, vectorize=True)
    torch.testing.assert_close(found, jacobian(lambda x: x @ weight.t(), x))


# --- results --------------------------------------------------------------------------------

WEIGHT = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
PACKED = {frozen: torch_sgemm.pack(WEIGHT.t(), frozen=frozen) for frozen in (False, True)}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: torch_sgemm.matmul(x, WEIGHT.t()),
    "attention": lambda x: torch_sgemm.attention(*[x.reshape(*x.shape[:-2], 2, -1, 5)] * 3),
} | {
    f"{name}, {activation}": lambda x, weight=weight, activation=activation: linear(
        x, weight, None, activation
    )
    for name, weight in {"linear": WEIGHT, "packed": PACKED[False], "frozen": PACKED[True]}.items()
    for activation in ACTIVATIONS
}


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_result_that_is_written_has_the_right_gradient(name: str, shape: tuple[int, ...]) -> None:
    """Or PyTorch's error, where the backward reads the result."""
    gradients = []
    for in_place in (False, True):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        result = FUNCTIONS[name](x)
        result = result.sub_(1) if in_place else result - 1
        try:
            result.square().sum().backward()
        except RuntimeError as failure:
            assert in_place and "modified by an inplace operation" in str(failure)
            assert "relu" in name or name == "attention"
            return
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_attention_s_result_is_no_view() -> None:
    x = torch.randn(2, 3, 4, 8)
    with torch.no_grad():
        result = torch_sgemm.attention(x, x, x)
    assert not result._is_view()
    result += torch.zeros(result.shape, requires_grad=True)
    result.detach_()
    torch_sgemm.attention(x.requires_grad_(), x, x).detach_()
