"""Attention under autograd, torch.func, torch.compile, checkpoints, graphs and threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import pytest
import torch
from support.attention import operands
from support.attention_gradients import WAYS, Way, assert_exact, calls, reference_kernel, way_of
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import torch_sgemm
from benchmarks.attention_gradients import Reference, gradients_in_float64


@pytest.fixture(params=WAYS)
def way(request, monkeypatch: pytest.MonkeyPatch) -> Way:
    return way_of(request.param, monkeypatch)


def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The same by operators that have all derivatives."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + mask, -1) @ v


def function_on(way: Way) -> Callable[..., Tensor]:
    return lambda q, k, v, mask: torch_sgemm.attention(q, k, v, mask, kernel=way.kernel)


def parts_on(way: Way) -> list[Tensor]:
    """Query, key, value and a mask that batches and heads share."""
    mask = operands(way.device, 1, 1, 9, 1, 11, seed=2)[0][0, 0]
    return [*operands(way.device, 2, 3, 9, 11, 8), mask]


def squares(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*args).square().sum()


def assert_like(found, expected) -> None:
    """Compares relative to the largest element."""
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        limit = 1e-5 * float(y.detach().abs().max()) + 1e-7
        torch.testing.assert_close(x, y, rtol=0, atol=limit)


# ---- higher orders and forward mode


def test_second_and_third_derivatives(way: Way) -> None:
    def of(function: Callable[..., Tensor]) -> list[tuple[Tensor, ...]]:
        leaves = [x.clone().requires_grad_() for x in parts_on(way)]
        y, found = function(*leaves).square().sum(), []
        for _ in range(3):
            found.append(torch.autograd.grad(y, leaves, create_graph=True))
            y = sum(x.square().sum() for x in found[-1])
        return found

    for found, expected in zip(of(function_on(way)), of(plain), strict=True):
        assert_like(found, expected)


def test_second_derivatives_with_every_option(way: Way) -> None:
    """By groups of heads, causal and with a boolean mask; a row without keys has none."""
    q, k, v = operands(way.device, 2, 6, 9, 11, 8, groups=2)
    boolean = torch.ones(9, 11, dtype=torch.bool, device=way.device).tril()
    boolean[4] = False
    causal = torch.ones(9, 11, dtype=torch.bool, device=way.device).tril()
    for mask, options in ((boolean, {"attn_mask": boolean}), (causal, {"is_causal": True})):

        def ours(q, k, v, options=options):
            options = options | {"enable_gqa": True, "kernel": way.kernel}
            return torch_sgemm.attention(q, k, v, **options)

        def theirs(q, k, v, mask=mask):
            k, v = (x.repeat_interleave(3, 1) for x in (k, v))
            logits = (q @ k.mT / math.sqrt(8)).masked_fill(~mask, -1e30)
            return torch.softmax(logits, -1).masked_fill(~mask, 0) @ v

        def second(function) -> tuple[Tensor, ...]:
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            first = torch.autograd.grad(squares(function)(*leaves), leaves, create_graph=True)
            return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

        assert_like(second(ours), second(theirs))


def test_forward_mode(way: Way) -> None:
    parts = parts_on(way)
    tangents = [torch.randn_like(x) for x in parts]
    expected = torch.func.jvp(plain, tuple(parts), tuple(tangents))
    assert_like(torch.func.jvp(function_on(way), tuple(parts), tuple(tangents)), expected)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*both) for both in zip(parts, tangents, strict=True)]
        assert_like(forward_ad.unpack_dual(function_on(way)(*duals)), expected)


@pytest.mark.parametrize("outer", [torch.func.jacfwd, torch.func.jacrev])
def test_hessians(way: Way, outer: Callable) -> None:
    q, *rest = parts_on(way)
    q, rest = q[:1, :1, :3], [x[:1, :1] if x.dim() == 4 else x[:3] for x in rest]

    def hessian(function: Callable[..., Tensor]) -> Tensor:
        return outer(torch.func.jacrev(lambda q: squares(function)(q, *rest)))(q)

    assert_like([hessian(function_on(way))], [hessian(plain)])


def test_gradients_of_functions(way: Way) -> None:
    """torch.func.grad, alone and under vmap, with each operand shared or not."""
    parts = parts_on(way)
    ours, theirs = squares(function_on(way)), squares(plain)
    everything = tuple(range(4))
    expected = torch.func.grad(theirs, everything)(*parts)
    assert_like(torch.func.grad(ours, everything)(*parts), expected)
    for batched in ((0,), (1, 3), (0, 1, 2), (0, 1, 2, 3)):
        args = [torch.stack([x, -x]) if i in batched else x for i, x in enumerate(parts)]
        dims = tuple(0 if i in batched else None for i in everything)
        found, expected = (
            torch.func.vmap(torch.func.grad(f, everything), dims)(*args) for f in (ours, theirs)
        )
        assert_like(found, expected)


# ---- compiled, in checkpoints, in graphs, in threads


def test_compiled(way: Way) -> None:
    q, k, v = (x.requires_grad_() for x in operands(way.device, 2, 3, 40, 50, 32))

    def function(q, k, v):
        return torch_sgemm.attention(q * 2, k, v, is_causal=True, kernel=way.kernel) + 1

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    found, expected = compiled(q, k, v), function(q, k, v)
    assert torch.equal(found, expected)
    for leaves in ((q, k, v), (v,), (q,)):
        both = [torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in (found, expected)]
        assert all(torch.equal(x, y) for x, y in zip(*both, strict=True))


@pytest.mark.slow
def test_compiled_by_inductor(way: Way) -> None:
    parts = [x.requires_grad_() for x in operands(way.device, 2, 3, 40, 50, 32)]
    mask = torch.randn(40, 50, device=way.device).requires_grad_()

    def function(q, k, v, mask):
        heads = torch_sgemm.attention(q, k, v, mask, kernel=way.kernel)
        return heads.transpose(1, 2).flatten(2) * 2

    found, expected = torch.compile(function)(*parts, mask), function(*parts, mask)
    torch.testing.assert_close(found, expected)
    leaves = *parts, mask
    both = [torch.autograd.grad(x.square().sum(), leaves) for x in (found, expected)]
    assert_like(*both)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(way: Way, reentrant: bool) -> None:
    parts = [x.requires_grad_() for x in parts_on(way)]
    direct = torch.autograd.grad(squares(function_on(way))(*parts), parts)
    squares(lambda *x: checkpoint(function_on(way), *x, use_reentrant=reentrant))(*parts).backward()
    assert all(torch.equal(x.grad, y) for x, y in zip(parts, direct, strict=True))


def test_gradients_add_up_in_leaves(way: Way) -> None:
    """One tensor for queries, keys and values, twice."""
    x = operands(way.device, 2, 3, 33, 33, 64)[0].requires_grad_()
    for _ in range(2):
        torch_sgemm.attention(x, x, x, kernel=way.kernel).sum().backward()
    parts = gradients_in_float64(torch.ones_like(x), *[x.detach()] * 3).values()
    assert_exact(x.grad, Reference(*(2 * sum(y) for y in zip(*parts, strict=True))))


@pytest.mark.gpu
def test_graphs_streams_and_threads() -> None:
    parts = [x.requires_grad_() for x in operands("cuda", 4, 8, 300, 300, 64)]
    grad = operands("cuda", 4, 8, 300, 300, 64, seed=1)[0]

    def step() -> tuple[Tensor, ...]:
        out = torch_sgemm.attention(*parts, is_causal=True, kernel="split")
        return torch.autograd.grad(out, parts, grad)

    def same(found: tuple[Tensor, ...]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(found, step(), strict=True))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = step()
    stream.synchronize()
    assert same(found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for factor in (-1, 0.5):
        grad.mul_(factor)
        graph.replay()
        assert same(found)
    results: list[tuple[Tensor, ...]] = []
    threads = [threading.Thread(target=lambda: results.append(step())) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(results) == 4 and all(map(same, results))


# ---- registration


def test_the_gradients_operator_is_registered_as_pytorch_asks() -> None:
    q, k, v = (x.requires_grad_() for x in operands("cpu", 2, 4, 7, 9, 8, groups=2))
    mask = torch.randn(2, 4, 7, 9).requires_grad_()
    results = torch.ops.sgemm.attention(q, k, v, mask, False, 0.3, True)
    out, logsumexp = (x.detach() for x in results)
    grad = torch.randn_like(out).requires_grad_()
    op = torch.ops.sgemm._attention_backward
    for rest in ((True, True, True), (True, False, False), (False, True, False)):
        args = grad, q, k, v, mask, out, logsumexp, False, 0.3, *rest
        torch.library.opcheck(op, args)


def test_flops() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    import torch_sgemm.flops  # noqa: F401

    q, k, v = (x.requires_grad_() for x in operands("cpu", 2, 3, 40, 50, 32))
    out = torch_sgemm.attention(q, k, v)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 10 * 2 * 3 * 40 * 50 * 32


def test_the_kernel_reaches_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through autograd, transforms and compiled programs."""
    reference_kernel(monkeypatch)
    parts = [x.requires_grad_() for x in operands("cpu", 2, 3, 9, 11, 8)]
    mask = torch.randn(9, 11)
    for kernel, count in (("split", 1), ("aten", 0)):
        function = squares(function_on(Way("cpu", kernel)))
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        for run in (
            lambda f=function: torch.autograd.grad(f(*parts, mask), parts),
            lambda f=function: torch.func.grad(f)(*(x.detach() for x in parts), mask),
            lambda f=compiled: torch.autograd.grad(f(*parts, mask), parts),
        ):
            calls.clear()
            run()
            assert len(calls) == count


class Ends(torch.autograd.Function):
    """Copies a tensor; its gradient is None."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def test_an_output_without_a_gradient() -> None:
    """The engine gives None to attention's backward, which has no gradients then."""
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    out = torch_sgemm.attention(q, k, v)
    (Ends.apply(out).sum() + q.sum()).backward()
    assert torch.equal(q.grad, torch.ones_like(q))
    assert k.grad is None or not k.grad.any()


def test_a_default_device_keeps_the_operator_and_its_derivatives() -> None:
    """``torch.device`` as a context is a function mode, which plain tensors don't notice."""
    q = torch.randn(1, 2, 3, 8)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch_sgemm.attention(x, x, x).sum()

    alone = torch.func.hessian(loss)(q)
    with torch.device("cpu"):
        torch.testing.assert_close(torch.func.hessian(loss)(q), alone)
