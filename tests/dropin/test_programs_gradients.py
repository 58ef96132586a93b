"""Uses of autograd other than a plain backward, under the drop-in and without it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support.table import each_device
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import torch_sgemm


def enabled_if(wanted: bool, device: str) -> contextlib.AbstractContextManager:
    return torch_sgemm.enabled(devices=device) if wanted else contextlib.nullcontext()


def block(x: Tensor, w: Tensor) -> Tensor:
    """Products of all kinds of shapes, with W on either side."""
    y = torch.relu(x @ w).unsqueeze(0) @ w
    heads = y.view(1, 4, 2, 4).transpose(1, 2)
    return (heads @ heads.mT) @ torch.ones(4, 3, device=x.device) + (w @ y.mT).sum()


@each_device
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", ["forward", "backward", "both"])
def test_a_checkpoint_of_which_a_part_is_enabled(part: str, reentrant: bool, device: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, device=device), torch.randn(8, 8, device=device)
    x.requires_grad_()
    w.requires_grad_()
    expected = torch.autograd.grad(block(x, w).sum(), (x, w))

    def within(name: str) -> contextlib.AbstractContextManager:
        return enabled_if(part in (name, "both"), device)

    with within("forward"):
        y = checkpoint(block, x, w, use_reentrant=reentrant)
    with within("backward"):
        y.sum().backward()
    torch.testing.assert_close((x.grad, w.grad), expected, rtol=1e-4, atol=1e-4)


def product_pairs(product: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Callable]:
    """Functions of one (4, 4) matrix."""
    draw = torch.Generator().manual_seed(0)
    batch, row = torch.randn(3, 4, 4, generator=draw), torch.randn(4, generator=draw)
    return {
        "W @ X": lambda w: product(w, batch.to(w.device)),
        "X @ W": lambda w: product(batch.to(w.device), w),
        "v @ W": lambda w: product(row.to(w.device), w),
        "v @ X": lambda w: product(w[0], batch.to(w.device)),
        "(1, m, k) @ X": lambda w: product(w.unsqueeze(0), batch.to(w.device)),
        "X @ (1, k, n)": lambda w: product(batch.to(w.device), w.unsqueeze(0)),
        "heads": lambda w: product(w.expand(2, 3, 4, 4), batch.to(w.device)),
    }


PRODUCTS = {
    "enabled": torch.matmul,
    "matmul": torch_sgemm.matmul,
    "linear": lambda x, y: torch_sgemm.linear(x, y.mT) if y.dim() == 2 else torch.matmul(x, y),
    "packed": lambda x, y: torch_sgemm.matmul(x, torch_sgemm.pack(y)) if y.dim() == 2 else x @ y,
}


@each_device
@pytest.mark.parametrize("shapes", product_pairs(torch.matmul))
@pytest.mark.parametrize("product", PRODUCTS)
def test_vectorised_derivatives(product: str, shapes: str, device: str) -> None:
    torch.manual_seed(0)
    ours, theirs = (
        product_pairs(function)[shapes] for function in (PRODUCTS[product], torch.matmul)
    )
    w = torch.randn(4, 4, device=device)
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    close = torch.testing.assert_close
    expected = jacobian(theirs, w), hessian(lambda w: theirs(w).square().sum(), w)
    w.requires_grad_()
    with enabled_if(product == "enabled", device):
        close(jacobian(ours, w, vectorize=True), expected[0], rtol=1e-4, atol=1e-4)
        second = hessian(lambda w: ours(w).square().sum(), w, vectorize=True)
        close(second, expected[1], rtol=1e-4, atol=1e-4)
        y = ours(w)
        each = torch.eye(y.numel(), device=device).view(-1, *y.shape)
        (found,) = torch.autograd.grad(y, w, each, is_grads_batched=True)
    close(found.view(expected[0].shape), expected[0], rtol=1e-4, atol=1e-4)


EMPTY = [
    ((3, 0), (2, 0, 5)), ((2, 3, 0), (0, 5)), ((0,), (0, 5)), ((0,), (2, 0, 5)), ((2, 3, 0), (0,)),
    ((2, 2, 3, 0), (2, 2, 0, 5)), ((1, 3, 0), (4, 0, 5)), ((3, 4), (0, 4, 5)), ((2, 0, 4), (4, 5)),
    ((0, 4), (4, 5)), ((3, 4), (4, 0)), ((4, 3, 0), (1, 0, 5)), ((3, 0), (2, 3, 0, 5)),
]  # fmt: skip


@each_device
@pytest.mark.parametrize("product", ["enabled", "matmul", "linear", "packed"])
@pytest.mark.parametrize("sizes", EMPTY, ids=str)
def test_empty_operands(sizes: tuple, product: str, device: str) -> None:
    """If the inner dimension is empty, the product is zero."""
    a, b = (torch.randn(size, device=device, requires_grad=True) for size in sizes)
    with enabled_if(product == "enabled", device):
        result = PRODUCTS[product](a, b)
        result.sum().backward()
    assert result.shape == (a.detach() @ b.detach()).shape and not result.any()
    assert a.grad.shape == a.shape and b.grad.shape == b.shape
    assert not a.grad.any() and not b.grad.any()


ONE_OF_TWO = {
    "mm": lambda x, w: torch.ops.sgemm.mm(x, w.t()),
    "addmm": lambda x, w: torch.ops.sgemm.addmm(w[0], x, w.t()),
    "matmul": lambda x, w: torch_sgemm.matmul(x, w.t()),
    "batch": lambda x, w: torch_sgemm.matmul(w, x.expand(2, 3, 4).mT),
    "heads": lambda x, w: torch_sgemm.matmul(x.expand(2, 2, 3, 4), w.expand(2, 2, 4, 4)),
    "linear": torch_sgemm.linear,
    "linear, bias": lambda x, w: torch_sgemm.linear(x, w, w[0]),
    "linear, activation": lambda x, w: torch_sgemm.linear(x, w, None, "gelu"),
    "packed": lambda x, w: torch_sgemm.pack(w.t()).mm(x),
    "packed layer": lambda x, w: torch_sgemm.linear(x, torch_sgemm.pack(w.t()), None, "silu"),
    "enabled": lambda x, w: x @ w.t(),
    "enabled, W @ X": lambda x, w: w @ x.expand(2, 3, 4).mT,
}


@each_device
@pytest.mark.parametrize("name", ONE_OF_TWO)
@pytest.mark.parametrize("how", ["leaf", "inner", "create_graph", "backward"])
def test_only_the_gradients_that_are_asked_for_are_computed(
    name: str, how: str, device: str
) -> None:
    """Forces are an energy's gradient by positions; its parameters require grad as well."""
    leaf = torch.randn(3, 4, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)
    with enabled_if(name.startswith("enabled"), device):
        x = leaf * 2 if how == "inner" else leaf
        energy = ONE_OF_TWO[name](x, w).sum()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            if how == "backward":
                energy.backward(inputs=[leaf])
            else:
                torch.autograd.grad(energy, x, create_graph=how == "create_graph")
    seen = Counter(event.name for event in profile.events())
    ranges = sum(
        count for event, count in seen.items() if event.startswith("sgemm::") and "[" in event
    )
    assert ranges == 1, seen
    if how == "backward":
        assert w.grad is None and leaf.grad is not None
