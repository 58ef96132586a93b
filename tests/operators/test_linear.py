"""``torch_sgemm.linear`` and ``sgemm::linear``: a product, a bias and an activation at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from support import table
from support.activations import ACTIVATIONS, each_activation
from support.bounds import UNIT, contract_units
from support.data import integers
from support.table import Kernel, each_device, fit
from torch import Tensor
from torch.nn import functional

import torch_sgemm

UTILS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
NAN, INF = float("nan"), float("inf")

each_bias = pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])


def drawn(device: str, lead: tuple[int, ...], inner: int, out: int, biased: bool = True) -> tuple:
    generator = torch.Generator().manual_seed(7)
    shapes = (*lead, inner), (out, inner), (out,)
    x, weight, bias = (torch.randn(s, generator=generator).to(device) for s in shapes)
    return x, weight, bias if biased else None


def reference(activation: str | None, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes the layer in float64, from operands of any dtype."""
    bias = None if bias is None else bias.double()
    return ACTIVATIONS[activation](functional.linear(x.double(), weight.double(), bias))


def assert_accurate(result: Tensor, activation: str | None, *operands: Tensor | None) -> None:
    """Within the contract of a product; an activation's slope is at most 1.13, and it rounds."""
    x, weight, bias = operands
    expected = reference(activation, *operands)
    scale = reference(None, x.abs(), weight.abs(), None if bias is None else bias.abs())
    assert result.dtype == torch.float32 and result.shape == expected.shape
    units = 2 * contract_units(x.shape[-1] ** 0.5 + 8)
    assert ((result.double() - expected).abs() <= units * UNIT * scale).all()


@each_bias
@each_activation
@pytest.mark.rows(bits=24)
def test_every_row(row: Kernel, device: str, activation: str | None, biased: bool) -> None:
    for shape in ((1, 1, 1), (37, 65, 130), (3, 300, 5), (129, 40, 33)):
        rows, inner, out = fit(row, *shape)
        operands = drawn(device, (rows,), inner, out, biased)
        result = torch.ops.sgemm.linear(*operands, activation, row.name)
        assert_accurate(result, activation, *operands)


SPLIT = tuple(row.name for row in table.rows(family="split"))


@pytest.mark.parametrize("kernel", (*SPLIT, "ieee_skinny", "auto"))
@each_bias
@each_activation
@pytest.mark.gpu
def test_large(kernel: str, activation: str | None, biased: bool) -> None:
    """Whole tiles and edges, clusters that share a tile, and slices of k."""
    shapes = (
        (256, 512, 384),
        (300, 1000, 270),
        (128, 16384, 128),
        (1024, 1024, 1024),
        (8, 9000, 3),
    )
    for rows, inner, out in shapes:
        operands = drawn("cuda", (rows,), inner, out, biased)
        result = torch.ops.sgemm.linear(*operands, activation, kernel)
        assert_accurate(result, activation, *operands)


@each_activation
@pytest.mark.rows(family="split", device="cuda")
def test_what_the_guard_redoes(row: Kernel, activation: str | None) -> None:
    """Elements that cancel, in a few places and in whole tiles."""
    for columns in (2, 200):
        x, weight, bias = drawn("cuda", (256,), 512, 256)
        half = x[:, :256] * 2**12
        x = torch.cat([half, half], 1)
        weight[:columns, 256:] = -weight[:columns, :256] * (1 + 2**-20)
        result = torch.ops.sgemm.linear(x, weight, bias, activation, row.name)
        assert_accurate(result, activation, x, weight, bias)


@each_activation
def test_special_values(row: Kernel, device: str, activation: str | None) -> None:
    """NaN, infinities and numbers too large to square give what PyTorch's functions give."""
    values = torch.tensor([NAN, INF, -INF, 1e38, -1e38, 200.0, -200.0, 0.0, -1e-30], device=device)
    x, weight = torch.ones(3, 1, device=device), torch.zeros(9, 1, device=device)
    result = torch.ops.sgemm.linear(x, weight, values, activation, row.name)
    expected = ACTIVATIONS[activation](values)
    if row.name != "aten":  # on a CPU PyTorch's GELU makes NaN of infinity
        expected = torch.where(values == INF, values, expected)
    expected = expected.expand(3, 9)
    torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("kernel", ["auto", "ladder"])
@each_device
def test_shapes(device: str, kernel: str, lead: tuple[int, ...]) -> None:
    for inner, out in ((4, 5), (1, 1), (0, 5), (4, 0)):
        operands = drawn(device, lead, inner, out)
        result = torch_sgemm.linear(*operands, "relu", kernel=kernel)
        assert result.shape == (*lead, out) and result.is_contiguous()
        assert_accurate(result, "relu", *operands)


@each_device
def test_parts_of_larger_tensors(device: str) -> None:
    """Operands that begin inside their storage, with and without regular rows."""
    for lead in ((5,), (2, 3), ()):
        x, weight, bias = drawn(device, tuple(n + 2 for n in lead), 11, 13)
        for inner in (slice(2, 9), slice(3, None, 2)):
            inside = *(slice(1, 1 + n) for n in lead), inner
            operands = x[inside], weight[4:10, inner], bias[3:9]
            for row in ("auto", "ladder"):
                result = torch.ops.sgemm.linear(*operands, None, row)
                assert_accurate(result, None, *operands)


@each_device
def test_strides(device: str) -> None:
    """Inputs whose rows form one matrix without a copy, others, and expanded ones."""
    _, weight, bias = drawn(device, (), 4, 5)
    base = torch.randn(6, 5, 3, 8, device=device)
    xs = [base[..., ::2], base[..., :4], base.permute(2, 1, 0, 3)[..., 4:], base.mT[..., :3].mT]
    xs = [x[..., :4] for x in xs]
    for lead in ((1, 1, 1), (6, 1, 1), (1, 5, 1), (6, 1, 3)):
        x = base[tuple(slice(size) for size in (*lead, 4))]
        xs.append(x.expand(6, 5, 3, 4))
    for x, weights in itertools.product(xs, (weight, weight.t().contiguous().t())):
        result = torch_sgemm.linear(x, weights, bias, "silu", kernel="ladder")
        assert_accurate(result, "silu", x, weights, bias)


# --- derivatives ------------------------------------------------------------------------------


def ours(kernel: str, activation: str | None) -> dict[str, Callable[..., Tensor]]:
    """The function and the operator."""
    return {
        "function": lambda *x: torch_sgemm.linear(*x, activation, kernel=kernel),
        "operator": lambda *x: torch.ops.sgemm.linear(*x, activation, kernel),
    }


@pytest.mark.parametrize("which", ["function", "operator"])
@each_bias
@each_activation
@each_device
def test_gradients(device: str, activation: str | None, biased: bool, which: str) -> None:
    for lead in ((), (3,), (2, 3)):
        leaves = [x for x in drawn(device, lead, 4, 5, biased) if x is not None]
        grads, seconds = [], []
        for call, dtype in (
            (ours("ladder", activation)[which], torch.float32),
            (lambda *x: reference(activation, *x), torch.float64),
        ):
            inputs = [x.to(dtype).detach().requires_grad_() for x in leaves]
            arguments = inputs if biased else [*inputs, None]
            value = call(*arguments)
            seed = torch.linspace(-1, 2, value.numel(), dtype=dtype, device=device)
            seed = seed.reshape(value.shape).requires_grad_()
            first = torch.autograd.grad(value, inputs, seed, create_graph=True)
            total = sum(x.square().sum() for x in first)
            grads.append(first)
            seconds.append(torch.autograd.grad(total, [*inputs, seed], allow_unused=True))
        for one, other in zip((*grads[0], *seconds[0]), (*grads[1], *seconds[1]), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", ["function", "operator"])
@each_activation
@each_device
def test_vmap(device: str, activation: str | None, which: str) -> None:
    call = ours("ladder", activation)[which]
    tensors = [x.round() for x in drawn(device, (2, 3), 4, 5)]
    for dims in itertools.product((None, 0, -1), repeat=3):
        if dims == (None, None, None):
            continue
        inputs = [
            x if d is None else torch.stack([x, x + 1, -x]).movedim(0, d)
            for x, d in zip(tensors, dims, strict=True)
        ]
        result = torch.vmap(call, dims)(*inputs)
        expected = torch.vmap(lambda *x: reference(activation, *x), dims)(*inputs)
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


@each_activation
@each_device
def test_func(device: str, activation: str | None) -> None:
    call = ours("ladder", activation)["function"]
    operands = drawn(device, (3,), 4, 5)
    func = torch.func
    transforms = (
        lambda f, *x: func.grad(lambda *y: f(*y).square().sum(), (0, 1, 2))(*x),
        lambda f, *x: (func.jvp(f, x, tuple(y + 1 for y in x))[1],),
        lambda f, x, *y: (func.jacrev(f)(x, *y), func.jacfwd(f)(x, *y)),
        lambda f, *x: func.jacfwd(func.jacfwd(lambda *y: f(*y).square(), (0, 1, 2)), 1)(*x),
        lambda f, x, *y: (func.vmap(func.grad(lambda z: f(z, *y).sum()))(x),),
        lambda f, x, *y: (func.grad(lambda z: func.vmap(lambda v: f(v, *y))(z).sum())(x),),
    )
    for transform in transforms:
        result = transform(call, *operands)
        expected = transform(lambda *x: reference(activation, *x), *(x.double() for x in operands))
        for one, other in zip(result, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("util", UTILS)
@pytest.mark.parametrize("needs_grad", [False, True])
@each_activation
@each_device
def test_opcheck(device: str, activation: str | None, needs_grad: bool, util: str) -> None:
    for lead, biased in (((3,), False), ((2, 3), True)):
        operands = drawn(device, lead, 4, 5, biased)
        for x in operands:
            if x is not None:
                x.requires_grad_(needs_grad)
        args = (*operands, activation, "ladder")
        torch.library.opcheck(torch.ops.sgemm.linear.default, args, test_utils=util)


# --- compilation, other types, errors ---------------------------------------------------------


@each_activation
@each_device
def test_compile(device: str, activation: str | None) -> None:
    torch.compiler.reset()

    def model(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch_sgemm.linear(x, weight, bias, activation, kernel="ladder") * 2

    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for rows in (3, 6):
        operands = [x.requires_grad_() for x in drawn(device, (2, rows), 4, 5)]
        result, expected = compiled(*operands), model(*operands)
        torch.testing.assert_close(result, expected)
        grads = (torch.autograd.grad(x.square().sum(), operands) for x in (result, expected))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*operands), model(*operands))


@each_activation
@each_device
def test_other_types_are_pytorch_s(device: str, activation: str | None) -> None:
    operands = drawn(device, (3,), 4, 5)
    for dtype in (torch.float64, torch.bfloat16):
        cast = [x.to(dtype) for x in operands]
        result = torch_sgemm.linear(*cast, activation)
        assert torch.equal(result, ACTIVATIONS[activation](functional.linear(*cast)))
    with torch.autocast(device, torch.bfloat16):
        result = torch_sgemm.linear(*operands, activation)
        assert torch.equal(result, ACTIVATIONS[activation](functional.linear(*operands)))
        assert result.dtype == torch.bfloat16
        assert torch.ops.sgemm.linear(*operands, activation).dtype == torch.float32
    with torch.inference_mode():
        assert_accurate(torch_sgemm.linear(*operands, activation), activation, *operands)


@each_device
def test_errors(device: str) -> None:
    x, weight, bias = drawn(device, (3,), 4, 5)
    call = torch.ops.sgemm.linear
    for wrong, name, accepted in (
        ((x.double(), weight), "x", "dtype float32"),
        ((x.sum(), weight), "x", "1 dimension"),
        ((x, weight.double()), "weight", "dtype float32"),
        ((x, weight[0]), "weight", "2 dimensions"),
        ((x, weight.t()), "weight", "4 columns"),
        ((x, weight, bias[1:]), "bias", "shape [5]"),
        ((x, weight, weight), "bias", "1 dimension"),
    ):
        with pytest.raises(RuntimeError) as caught:
            call(*wrong)
        position = ("x", "weight", "bias").index(name)
        tensor = wrong[position]
        for text in (
            "sgemm::linear",
            f"'{name}'",
            f"shape {list(tensor.shape)}",
            f"strides {list(tensor.stride())}",
            str(tensor.dtype).removeprefix("torch."),
            accepted,
        ):
            assert text in str(caught.value)
    with pytest.raises(RuntimeError, match="activation.*[\"']tanh.*accepted.*gelu_tanh"):
        call(x, weight, bias, "tanh")
    with pytest.raises(RuntimeError, match="activation.*'tanh'.*accepted.*'gelu_tanh'"):
        torch_sgemm.linear(x, weight, bias, "tanh")
    with pytest.raises(RuntimeError, match="activation.*\\['relu'\\].*accepted"):
        torch_sgemm.linear(x, weight, bias, ["relu"])
    with pytest.raises(RuntimeError, match='"laddr".*"ladder"'):
        torch_sgemm.linear(x, weight, bias, kernel="laddr")
    with pytest.raises(RuntimeError) as expected:
        functional.linear(x, weight.t())
    with pytest.raises(RuntimeError) as caught:
        torch_sgemm.linear(x, weight.t())
    assert str(caught.value) == str(expected.value)


@pytest.mark.gpu
def test_packed_weight() -> None:
    for activation in ACTIVATIONS:
        x, weight, bias = drawn("cuda", (2, 300), 256, 384)
        packed = torch_sgemm.pack(weight.t(), frozen=True)
        result = torch_sgemm.linear(x, packed, bias, activation)
        assert_accurate(result, activation, x, weight, bias)


@each_device
def test_exact_on_integers(device: str) -> None:
    x, weight, bias = (integers(s, i, device) for i, s in enumerate(((9, 40), (7, 40), (7,))))
    result = torch_sgemm.linear(x, weight, bias, "relu", kernel="ladder")
    assert torch.equal(result.double(), reference("relu", x, weight, bias))
