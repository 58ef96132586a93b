"""``torch_sgemm.matmul`` is ``torch.matmul``: shapes, strides, errors, transforms, compilation."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.bounds import Reference, ffma_units
from support.data import generator, integers
from support.multilinear import assert_accurate, run
from support.table import each_device
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad

import torch_sgemm

each_kernel = pytest.mark.parametrize("kernel", ["auto", "ladder"])

# Shapes of 1 to 5 dimensions on both sides, some broadcast, some with a size of zero.
PAIRS = (
    ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((3, 4), (4, 5)), ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((2, 3, 1, 3, 4), (3, 2, 4, 5)),
    ((2, 3, 0), (0, 5)), ((0, 3, 4), (4, 5)), ((0, 3, 4), (1, 4, 5)), ((0,), (0,)),
)  # fmt: skip


@st.composite
def products(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Operands that fit, of 1 to 5 dimensions, on the CPU, in any order of strides."""
    size = st.integers(0, 5)
    m, n, k = draw(size), draw(size), draw(size)
    batch = draw(st.lists(st.integers(0, 3), max_size=3))

    def lead() -> list[int]:
        kept = batch[len(batch) - draw(st.integers(0, len(batch))) :]
        return [1 if draw(st.booleans()) else extent for extent in kept]

    def operand(shape: list[int], seed: int) -> Tensor:
        order = draw(st.permutations(range(len(shape))))
        step = draw(st.integers(1, 2))
        base = torch.randn([step * shape[i] for i in order], generator=generator(seed))
        back = sorted(range(len(shape)), key=lambda i: order[i])
        return base.permute(back)[tuple(slice(None, None, step) for _ in shape)]

    a = operand([k] if draw(st.integers(0, 3)) == 0 else [*lead(), m, k], 1)
    b = operand([k] if draw(st.integers(0, 3)) == 0 else [*lead(), k, n], 2)
    return a, b


@given(products())
@each_kernel
@each_device
def test_matches_torch(device: str, kernel: str, operands: tuple[Tensor, Tensor]) -> None:
    a, b = (x.to(device) for x in operands)
    expected = torch.matmul(a, b)
    result = torch_sgemm.matmul(a, b, kernel=kernel)
    assert result.shape == expected.shape
    assert result.stride() == expected.stride()
    assert result.dtype == expected.dtype and result.device == expected.device
    reference = Reference(a.double() @ b.double(), a.double().abs() @ b.double().abs())
    assert reference.units(result) <= ffma_units(a.shape[-1])


def drawn(pair: tuple, device: str) -> tuple[Tensor, Tensor]:
    return torch.randn(pair[0], device=device), torch.randn(pair[1], device=device)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@each_kernel
@each_device
def test_gradients(device: str, kernel: str, pair: tuple) -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return ours(a, b, kernel)

    operands = drawn(pair, device)
    seed = torch.randn_like(torch.matmul(*operands))
    assert_accurate(function, operands, {}, run(function, operands, {}, seed), seed)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@each_kernel
@each_device
def test_double_gradients(device: str, kernel: str, pair: tuple) -> None:
    operands = drawn(pair, device)
    seed = torch.randn_like(torch.matmul(*operands))
    for which in (0, 1):

        def gradient(seed: Tensor, *operands: Tensor, which: int = which) -> Tensor:
            value = ours(*operands, kernel)
            return torch.autograd.grad(value, operands[which], seed, create_graph=True)[0]

        arguments = (seed, *operands)
        assert_accurate(gradient, arguments, {}, run(gradient, arguments, {}))


def ours(a: Tensor, b: Tensor, kernel: str) -> Tensor:
    """The function under test for float32, the reference for float64."""
    if a.dtype == torch.float64:
        return torch.matmul(a, b)
    return torch_sgemm.matmul(a, b, kernel=kernel)


# --- what torch.matmul does besides -----------------------------------------------------------

WRONG: tuple[Callable[[str], tuple[Tensor, Tensor]], ...] = (
    lambda device: (torch.ones(3, 4, device=device), torch.ones(5, 6, device=device)),
    lambda device: (torch.ones(4, device=device), torch.ones(5, device=device)),
    lambda device: (torch.ones(2, 3, 4, device=device), torch.ones(3, 4, 5, device=device)),
    lambda device: (torch.ones(3, 4, device=device), torch.ones(2, 5, 6, device=device)),
    lambda device: (torch.ones((), device=device), torch.ones(2, 2, device=device)),
    lambda device: (torch.ones(3, 4, device=device), torch.ones(4, 5, device=device).double()),
    lambda device: (torch.ones(3, 4, device=device), torch.ones(4, 5, device=device).int()),
)


@pytest.mark.parametrize("make", WRONG)
@each_device
def test_errors(device: str, make: Callable[[str], tuple[Tensor, Tensor]]) -> None:
    a, b = make(device)
    with pytest.raises(RuntimeError) as expected:
        torch.matmul(a, b)
    with pytest.raises(RuntimeError) as caught:
        torch_sgemm.matmul(a, b)
    assert str(caught.value) == str(expected.value)


@each_device
def test_unknown_kernel(device: str) -> None:
    for pair in PAIRS:
        with pytest.raises(RuntimeError, match='"laddr".*"ladder"'):
            torch_sgemm.matmul(*drawn(pair, device), kernel="laddr")


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@each_device
def test_out(device: str, pair: tuple) -> None:
    a, b = integers(pair[0], 1, device), integers(pair[1], 2, device)
    expected = torch.matmul(a, b)
    strided = torch.full((*expected.shape, 2), math.nan, device=device)[..., 0]
    for out in (torch.empty(0, device=device), torch.full_like(expected, math.nan), strided):
        assert torch_sgemm.matmul(a, b, kernel="ladder", out=out) is out
        assert torch.equal(out, expected)


@pytest.mark.parametrize("shape", [(7,), (2, 2), (0,), (5, 3), (1, 3, 5)], ids=str)
@each_device
def test_out_of_another_shape(device: str, shape: tuple[int, ...]) -> None:
    """Resized, and warned of, as torch.matmul does."""
    a, b = integers((3, 4), 1, device), integers((4, 5), 2, device)
    expected = torch.matmul(a, b)
    outcomes = []
    for function in (torch.matmul, torch_sgemm.matmul):
        out = torch.ones(shape, device=device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert function(a, b, out=out) is out
        assert torch.equal(out, expected)
        outcomes.append((out.stride(), [str(warning.message) for warning in caught]))
    assert outcomes[0] == outcomes[1]


@each_device
def test_wrong_out(device: str) -> None:
    a, b = drawn(((3, 4), (4, 5)), device)
    with pytest.raises(RuntimeError, match="float64.*accepted: torch.float32"):
        torch_sgemm.matmul(a, b, out=torch.empty(3, 5, dtype=torch.float64, device=device))
    with pytest.raises(RuntimeError, match="argument 'out' is 3; accepted: a tensor"):
        torch_sgemm.matmul(a, b, out=3)
    for which in (0, 1, 2):
        operands = [*drawn(((3, 4), (4, 5)), device), torch.zeros(3, 5, device=device)]
        operands[which].requires_grad_()
        for function in (torch.matmul, torch_sgemm.matmul):
            with pytest.raises(RuntimeError, match="differentiat"):
                function(*operands[:2], out=operands[2])
            with torch.no_grad():
                function(*operands[:2], out=operands[2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int64])
def test_other_dtypes_are_pytorch_s(dtype: torch.dtype) -> None:
    a, b = integers((2, 3, 4), 1).to(dtype), integers((4, 5), 2).to(dtype)
    result = torch_sgemm.matmul(a, b)
    assert result.dtype == dtype
    assert torch.equal(result, torch.matmul(a, b))


@each_device
def test_autocast(device: str) -> None:
    a, b = drawn(((3, 4), (4, 5)), device)
    with torch.autocast(device, torch.bfloat16):
        result, expected = torch_sgemm.matmul(a, b), torch.matmul(a, b)
    assert result.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(result, expected)


# --- torch.func -------------------------------------------------------------------------------


def transforms() -> dict[str, Callable]:
    """Functions of (product, a, b) that are the same for both products."""
    func = torch.func

    def scalar(product: Callable, a: Tensor, b: Tensor) -> Tensor:
        return product(a, b).square().sum()

    return {
        "grad": lambda f, a, b: func.grad(lambda x: scalar(f, x, b))(a),
        "grad_of_both": lambda f, a, b: func.grad(lambda x, y: scalar(f, x, y), (0, 1))(a, b)[1],
        "grad_of_grad": lambda f, a, b: func.grad(
            lambda x: func.grad(lambda y: scalar(f, a, y))(x).square().sum()
        )(b),
        "jvp_a": lambda f, a, b: func.jvp(lambda x: f(x, b), (a,), (a + 1,))[1],
        "jvp_b": lambda f, a, b: func.jvp(lambda x: f(a, x), (b,), (b + 1,))[1],
        "jvp_both": lambda f, a, b: func.jvp(f, (a, b), (a + 1, b - 1))[1],
        "vjp": lambda f, a, b: func.vjp(f, a, b)[1](torch.ones_like(a @ b))[0],
        "jacrev": lambda f, a, b: func.jacrev(f, 1)(a, b),
        "jacfwd": lambda f, a, b: func.jacfwd(f, 0)(a, b),
        "jacfwd_of_jacfwd": lambda f, a, b: func.jacfwd(
            func.jacfwd(lambda x, y: scalar(f, x, y), 0), 1
        )(a, b),
        "jacrev_of_jacfwd_of_jacfwd": lambda f, a, b: func.jacrev(
            func.jacfwd(func.jacfwd(lambda x, y: scalar(f, x, y), 0), 1), 1
        )(a, b),
        "jvp_of_grad": lambda f, a, b: func.jvp(
            func.grad(lambda x: scalar(f, x, b)), (a,), (a - 1,)
        )[1],
        "grad_per_sample": lambda f, a, b: func.vmap(
            func.grad(lambda x, y: scalar(f, x, y)), (None, 0)
        )(a, torch.stack([b, b + 1])),
    }


@pytest.mark.parametrize("name", transforms())
@each_kernel
@each_device
def test_func(device: str, kernel: str, name: str) -> None:
    """Integers, so that the result is torch's exactly."""
    transform = transforms()[name]
    for pair in (((3, 4), (4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,)), ((2, 3, 4), (2, 4, 5))):
        a, b = integers(pair[0], 1, device), integers(pair[1], 2, device)
        expected = transform(torch.matmul, a, b)
        result = transform(lambda x, y: torch_sgemm.matmul(x, y, kernel=kernel), a, b)
        assert torch.equal(result, expected), pair


@each_kernel
@each_device
def test_forward_mode(device: str, kernel: str) -> None:
    a, b = integers((3, 4), 1, device), integers((4, 5), 2, device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, a + 1)
        result = forward_ad.unpack_dual(torch_sgemm.matmul(dual, b, kernel=kernel)).tangent
    assert torch.equal(result, (a + 1) @ b)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0), (1, 0), (-1, 1), (0, -1)])
@each_kernel
@each_device
def test_vmap(device: str, kernel: str, in_dims: tuple[int | None, int | None]) -> None:
    for pair in PAIRS:
        a, b = (
            x if dim is None else torch.stack([x, x + 1, -x], 0).movedim(0, dim if x.dim() else 0)
            for x, dim in zip(
                (integers(pair[0], 1, device), integers(pair[1], 2, device)), in_dims, strict=True
            )
        )
        expected = torch.vmap(torch.matmul, in_dims)(a, b)
        result = torch.vmap(lambda x, y: torch_sgemm.matmul(x, y, kernel=kernel), in_dims)(a, b)
        assert torch.equal(result, expected), pair


# --- compilation ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@each_device
def test_compile_with_dynamic_shapes(device: str, backend: str) -> None:
    """One graph for all sizes, forward and backward."""
    torch.compiler.reset()
    graphs = CompileCounterWithBackend(backend)

    def model(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        hidden = torch_sgemm.matmul(x, w, kernel="ladder")
        return torch_sgemm.matmul(hidden.mT, hidden) @ v + torch_sgemm.matmul(hidden, v).sum()

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=graphs)
    for batch, m, n in ((2, 3, 5), (4, 7, 6), (3, 9, 8)):
        sizes = ((batch, m, 4), (4, n), (n,))
        operands = [integers(s, i, device).requires_grad_() for i, s in enumerate(sizes)]
        expected, result = model(*operands), compiled(*operands)
        assert torch.equal(result, expected)
        wanted = torch.autograd.grad(expected.sum(), operands)
        given_back = torch.autograd.grad(result.sum(), operands)
        assert all(map(torch.equal, given_back, wanted))
    assert graphs.frame_count == 1


@each_device
def test_compiled_with_out(device: str) -> None:
    """In one graph; operands that require grad are refused, as without torch.compile."""
    torch.compiler.reset()

    def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        return torch_sgemm.matmul(a, b, kernel="ladder", out=out)

    a, b = integers((2, 3, 4), 1, device), integers((4, 5), 2, device)
    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    for requires_grad in (False, True):
        a.requires_grad_(requires_grad)
        out = torch.full((2, 3, 5), math.nan, device=device)
        with torch.no_grad():
            assert compiled(a, b, out) is out
            assert torch.equal(out, a @ b)
    with pytest.raises(RuntimeError, match="argument 'out' can't be differentiated"):
        torch.compile(product, backend="aot_eager")(a, b, out)


@each_device
def test_export(device: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            return torch_sgemm.matmul(x, w, kernel="ladder")

    rows = torch.export.Dim("rows", min=2, max=64)
    example = integers((2, 6, 4), 1, device), integers((4, 5), 2, device)
    program = torch.export.export(Model(), example, dynamic_shapes=({1: rows}, None))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "sgemm.mm.default" in called
    for count in (3, 17):
        x = integers((2, count, 4), count, device)
        assert torch.equal(program.module()(x, example[1]), x @ example[1])


@each_device
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_results_are_no_views(pair: tuple[tuple[int, ...], tuple[int, ...]], device: str) -> None:
    """Like torch.matmul's, results can be written by operators that record gradients."""
    a, b = (integers(shape, i, device) for i, shape in enumerate(pair))
    with torch.no_grad():
        result = torch_sgemm.matmul(a, b)
    assert not result._is_view()
    result += torch.zeros(result.shape, device=device, requires_grad=True)
    assert result.requires_grad
    result.detach_()


@each_device
def test_traced_products_keep_their_derivatives(device: str) -> None:
    for shapes in (((3, 4), (4, 5)), ((2, 3, 4, 5), (2, 3, 5, 6))):
        a, b = (integers(shape, i, device) for i, shape in enumerate(shapes))
        traced = torch.jit.trace(lambda a, b: torch_sgemm.matmul(a, b), (a, b), check_trace=False)
        a.requires_grad_()
        b.requires_grad_()
        grads = torch.autograd.grad(traced(a, b).square().sum(), (a, b))
        expected = torch.autograd.grad((a @ b).square().sum(), (a, b))
        assert all(torch.equal(x, y) for x, y in zip(grads, expected, strict=True))


def test_meta_tensors() -> None:
    for a, b in PAIRS:
        result = torch_sgemm.matmul(torch.empty(a, device="meta"), torch.empty(b, device="meta"))
        assert result.is_meta
        assert result.shape == torch.matmul(torch.empty(a), torch.empty(b)).shape


def test_other_threads_run_during_a_product() -> None:
    """PyTorch allows this too, because a launch may have to wait for earlier ones."""
    a, b = torch.ones(200, 300), torch.ones(300, 200)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for product in (torch_sgemm.matmul, torch.ops.sgemm.mm):
            during = []  # one of several products: a busy machine may not get to the thread in each
            for _ in range(5):
                before = counted[0]
                product(a, b, kernel="naive_32")
                during.append(counted[0] - before)
            assert max(during) > 10
    finally:
        stop.set()
        thread.join()
