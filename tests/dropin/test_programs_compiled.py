"""Compiled programs under the drop-in: graph breaks, backwards and settings inside."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from support.table import each_device
from torch import Tensor
from torch.nn import functional

import torch_sgemm


def broken_up(x: Tensor, w: Tensor) -> Tensor:
    """Graph breaks in each kind of block that can't be resumed from."""
    with torch.no_grad():
        y = x @ w
        torch._dynamo.graph_break()
        y = torch.matmul(y, w)
    try:
        y = y @ w
        torch._dynamo.graph_break()
        y = torch.addmm(y, y, w)
    finally:
        y = y + 1
    for _ in range(2):
        y = y.unsqueeze(0) @ w
        torch._dynamo.graph_break()
        y = torch.bmm(y, w.unsqueeze(0)).squeeze(0)
    with threading.Lock():
        y = torch_sgemm.matmul(y, w)
        torch._dynamo.graph_break()
        y = torch_sgemm.linear(y, w) + functional.linear(y, w)
        y = torch.ops.sgemm.mm(y, w) / y.abs().max()
    return y


def with_a_backward(x: Tensor, w: Tensor) -> Tensor:
    w = w.detach().requires_grad_()
    torch_sgemm.linear(x @ w, w).sum().backward()
    torch._dynamo.graph_break()
    (torch_sgemm.matmul(x, w) @ w).sum().backward()
    return w.grad


@each_device
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [broken_up, with_a_backward])
def test_compiled_programs_with_graph_breaks(
    program: Callable[..., Tensor], backend: str, device: str
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 16, device=device), torch.randn(16, 16, device=device) / 4
    expected = program(x, w)
    torch._dynamo.reset()
    with torch_sgemm.enabled(devices=device):
        found = torch.compile(program, backend=backend)(x, w)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@each_device
@pytest.mark.parametrize("entered", ["enabled", "enable"])
def test_a_compiled_function_that_changes_the_setting(entered: str, device: str) -> None:
    """The change breaks the graph once, and the rest runs unchanged within the setting."""

    def program(x: Tensor) -> Tensor:
        x = torch.relu(x @ x)
        if entered == "enable":
            torch_sgemm.enable("ladder", devices=(device,))
            x = x @ x
            torch_sgemm.disable()
            return x @ x
        with torch_sgemm.enabled("ladder", devices=(device,)):
            x = torch.relu(x @ x)
        return x @ x

    x = torch.randn(16, 16, device=device) / 4
    expected = program(x)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(program)
    for _ in range(2):
        torch_sgemm.reset_stats()
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
        assert sum(torch_sgemm.stats().hits.values()) == 1
    assert sum(counters["graph_break"].values()) <= 2
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(program, fullgraph=True)(x)
