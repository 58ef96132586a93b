"""Operands of bfloat16 and float16: beside float32 ones, and where float32 is asked for."""

from __future__ import annotations

import pytest
import torch
from support.bounds import UNIT
from support.data import drawn
from support.table import each_device
from torch import Tensor

import torch_sgemm

SHORT = [torch.bfloat16, torch.float16]
each_short = pytest.mark.parametrize("short", SHORT, ids=str)


def is_product(result: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> bool:
    """Returns True if ``result`` is a @ b + bias at the accuracy of any float32 row."""
    a, b = a.double(), b.double()
    exact, magnitude = torch.matmul(a, b), torch.matmul(a.abs(), b.abs())
    if bias is not None:
        exact, magnitude = exact + bias, magnitude + bias.abs()
    return result.dtype == torch.float32 and bool(
        ((result - exact).abs() <= 8 * UNIT * magnitude).all()
    )


@each_short
@each_device
def test_a_product_is_that_of_the_converted(device: str, short: torch.dtype) -> None:
    shapes = ((5, 7), (7, 3)), ((7,), (7, 3)), ((2, 5, 7), (7, 3)), ((2, 4, 5, 7), (4, 7, 3))
    for shape_a, shape_b in shapes:
        a, b = drawn(device, *shape_a), drawn(device, *shape_b)
        for x, y in ((a, b.to(short)), (a.to(short), b)):
            result = torch_sgemm.matmul(x, y)
            assert is_product(result, x, y)
            out = torch.empty(0, device=device)
            assert torch.equal(torch_sgemm.matmul(x, y, out=out), result)
        both = torch_sgemm.matmul(a.to(short), b.to(short), out_dtype=torch.float32)
        assert is_product(both, a.to(short), b.to(short))


@each_device
def test_two_kinds_of_16_bits(device: str) -> None:
    a, b = drawn(device, 5, 7, dtype=torch.bfloat16), drawn(device, 7, 3, dtype=torch.float16)
    result = torch_sgemm.matmul(a, b, out_dtype=torch.float32)
    assert is_product(result, a, b)
    with pytest.raises(RuntimeError):  # as torch.matmul has it
        torch_sgemm.matmul(a, b)


@each_short
def test_operands_of_16_bits_alone_are_pytorch_s(short: torch.dtype) -> None:
    a, b = drawn("cpu", 5, 7, dtype=short), drawn("cpu", 7, 3, dtype=short)
    assert torch_sgemm.matmul(a, b).dtype == short
    assert torch_sgemm.linear(a, b.t()).dtype == short


@each_short
@each_device
def test_layers(device: str, short: torch.dtype) -> None:
    x, weight, bias = drawn(device, 4, 5, 7), drawn(device, 3, 7), drawn(device, 3)
    for operands in (
        (x, weight.to(short), bias),
        (x.to(short), weight, bias),
        (x, weight, bias.to(short)),
        (x.to(short), weight.to(short), bias),
        (x.to(short)[:1].expand_as(x), weight.to(short), bias),  # rows that share memory
        (x.to(short), weight, None),
    ):
        x, weight, bias = operands
        assert is_product(torch_sgemm.linear(x, weight, bias), x, weight.t(), bias)
        activated = torch_sgemm.linear(*operands, "relu")
        assert torch.equal(activated, torch_sgemm.linear(*operands).relu())


@each_short
@each_device
def test_packed_weights(device: str, short: torch.dtype) -> None:
    x, packed = drawn(device, 5, 7, dtype=short), torch_sgemm.pack(drawn(device, 7, 3), frozen=True)
    for result in (
        torch_sgemm.matmul(x, packed),
        torch_sgemm.matmul(x, packed, out_dtype=torch.float32),
        torch_sgemm.linear(x, packed),
    ):
        assert is_product(result, x, packed.b)


@each_short
@each_device
def test_gradients_have_their_tensors_dtypes(device: str, short: torch.dtype) -> None:
    a, b = drawn(device, 5, 7).requires_grad_(), drawn(device, 7, 3, dtype=short).requires_grad_()
    grad = drawn(device, 5, 3)
    torch_sgemm.matmul(a, b).backward(grad)
    assert a.grad.dtype == torch.float32 and b.grad.dtype == short
    assert is_product(a.grad, grad, b.detach().t())
    of_b = torch_sgemm.matmul(a.detach().t(), grad)
    assert torch.allclose(b.grad.float(), of_b, rtol=2 * torch.finfo(short).eps)


@each_device
def test_transforms_and_compiled_programs(device: str) -> None:
    a, b = drawn(device, 2, 5, 7), drawn(device, 7, 3, dtype=torch.bfloat16)
    assert is_product(torch.func.vmap(torch_sgemm.matmul, (0, None))(a, b), a, b)
    value, tangent = torch.func.jvp(lambda x: torch_sgemm.matmul(x, b), (a,), (a,))
    assert is_product(value, a, b) and torch.equal(tangent, value)
    compiled = torch.compile(torch_sgemm.matmul, backend="eager", fullgraph=True)
    assert is_product(compiled(a, b), a, b)
    asked = torch.compile(
        lambda a, b: torch_sgemm.matmul(a, b, out_dtype=torch.float32), backend="eager"
    )
    assert is_product(asked(a.bfloat16(), b), a.bfloat16(), b)


@each_device
def test_autocast_has_its_dtype_unless_float32_is_asked_for(device: str) -> None:
    a, b = drawn(device, 5, 7), drawn(device, 7, 3, dtype=torch.bfloat16)
    expected = torch_sgemm.matmul(a, b)
    with torch.autocast(device, torch.bfloat16):
        assert torch_sgemm.matmul(a, b).dtype == torch.bfloat16
        assert torch_sgemm.linear(a, b.t()).dtype == torch.bfloat16
        assert torch.equal(torch_sgemm.matmul(a, b, out_dtype=torch.float32), expected)


def test_a_request_is_kept() -> None:
    a, b = drawn("cpu", 5, 7), drawn("cpu", 7, 3, dtype=torch.bfloat16)
    for wrong in ({"kernel": "no_such"}, {"kernel": "naive_32", "batch_invariant": True}):
        with pytest.raises(RuntimeError, match="accepted"):
            torch_sgemm.matmul(a, b, **wrong)
    by_row = torch_sgemm.matmul(a, b, kernel="naive_32")
    assert torch.equal(by_row, torch.ops.sgemm.mm(a, b.float(), "naive_32"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64], ids=str)
def test_others_have_no_float32_product(dtype: torch.dtype) -> None:
    a, b = drawn("cpu", 5, 7), drawn("cpu", 7, 3).to(dtype)
    with pytest.raises(RuntimeError, match=rf"'out_dtype' is torch.float32.*{dtype}.*accepted"):
        torch_sgemm.matmul(a, b, out_dtype=torch.float32)
    with pytest.raises(RuntimeError, match=rf"'out_dtype' is {dtype}.*accepted"):
        torch_sgemm.matmul(a, a.t(), out_dtype=dtype)
    with pytest.raises(TypeError, match="argument 'b' is None; accepted: a tensor"):
        torch_sgemm.matmul(a, None, out_dtype=torch.float32)
    with pytest.raises(RuntimeError):  # as torch.matmul words it
        torch_sgemm.matmul(a.bfloat16(), b)


def test_shapes_that_don_t_fit_are_pytorch_s_errors() -> None:
    a, b = drawn("cpu", 5, 7), drawn("cpu", 6, 3, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch_sgemm.matmul(a, b)
    with pytest.raises(RuntimeError):
        torch_sgemm.linear(a, b)
