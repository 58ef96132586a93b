"""Calls that go past the dispatcher, and all who would miss one: ``reaches_kernel``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from support.data import integers
from support.modes import SeenFunctions, SeenOperators
from support.table import each_device
from torch import Tensor
from torch.autograd import forward_ad

import torch_sgemm
from torch_sgemm.torch_ops.past_dispatcher import reaches_kernel


class FunctionSubclass(Tensor):
    """Sees functions, through __torch_function__."""


def operands(device: str) -> tuple[Tensor, Tensor]:
    return integers((3, 4), 1).to(device), integers((4, 5), 2).to(device)


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand_as(x),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "empty": lambda x: x[:0],
}
WATCHED: dict[str, Callable[[Tensor], Tensor]] = {
    "requires grad": lambda x: x.clone().requires_grad_(),
    "computed with grad": lambda x: x.clone().requires_grad_() * 1,
    "subclass": lambda x: x.as_subclass(FunctionSubclass),
    "negative view": lambda x: torch.complex(x, x).conj().imag,
    "float64": lambda x: x.double(),
    "sparse": lambda x: x.to_sparse(),
    "meta": lambda x: x.to("meta"),
}
SCOPES: dict[str, Callable[[str], AbstractContextManager]] = {
    "dispatch mode": lambda _: SeenOperators(),
    "function mode": lambda _: SeenFunctions(),
    "autocast": lambda device: torch.autocast(device, torch.bfloat16),
    "dual numbers": lambda _: forward_ad.dual_level(),
    "fake tensors": lambda _: torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True),
}


@pytest.mark.parametrize("change", PLAIN.values(), ids=PLAIN)
@each_device
def test_plain_operands_go_straight(device: str, change: Callable[[Tensor], Tensor]) -> None:
    a, b = operands(device)
    assert reaches_kernel(change(a), b)
    assert reaches_kernel(a, change(b))
    assert reaches_kernel(a, b, change(a))


@pytest.mark.parametrize("change", WATCHED.values(), ids=WATCHED)
@each_device
def test_watched_operands_do_not(device: str, change: Callable[[Tensor], Tensor]) -> None:
    a, b = operands(device)
    assert not reaches_kernel(change(a), b)
    assert not reaches_kernel(a, change(b))
    assert not reaches_kernel(a, b, change(a))


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
@each_device
def test_nothing_goes_straight_where_someone_watches(
    device: str, scope: Callable[[str], AbstractContextManager]
) -> None:
    a, b = operands(device)
    with scope(device):
        assert not reaches_kernel(a, b)
    assert reaches_kernel(a, b)


@each_device
def test_gradients_matter_where_they_are_on(device: str) -> None:
    a, b = operands(device)
    with torch.no_grad():
        assert reaches_kernel(a.clone().requires_grad_(), b)


@pytest.mark.parametrize("mode", [SeenOperators, SeenFunctions])
@pytest.mark.parametrize("function", [torch_sgemm.matmul, torch_sgemm.linear])
@each_device
def test_modes_see_the_operators(device: str, function: Callable, mode: type) -> None:
    a, b = operands(device)
    b = b if function is torch_sgemm.matmul else b.t()
    with mode() as seen:
        result = function(a, b)
    assert any("sgemm" in call for call in seen.calls)
    assert torch.equal(result, function(a, b))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore::torch.jit.TracerWarning")
@each_device
def test_a_trace_holds_the_operator(device: str) -> None:
    a, b = operands(device)
    traced = torch.jit.trace(torch_sgemm.matmul, (a, b))
    assert "sgemm::mm" in str(traced.graph)
    assert torch.equal(traced(2 * a, b), 2 * (a @ b))


@pytest.mark.parametrize("negated", ["a", "b", "bias"])
@each_device
def test_a_negative_view_counts_with_its_sign(device: str, negated: str) -> None:
    a, b = operands(device)
    bias = integers((5,), 3).to(device)
    given = {"a": a, "b": b, "bias": bias}
    given[negated] = torch.complex(given[negated], given[negated]).conj().imag
    assert given[negated].is_neg()
    result = torch_sgemm.linear(given["a"], given["b"].t(), given["bias"])
    assert torch.equal(result, given["a"].resolve_neg() @ given["b"].resolve_neg() + given["bias"])


@pytest.mark.parametrize("scope", [nullcontext, torch.no_grad, torch.inference_mode])
@each_device
def test_results_are_the_operators(
    device: str, scope: Callable[[], AbstractContextManager]
) -> None:
    a, b = operands(device)
    with scope():
        assert torch.equal(torch_sgemm.matmul(a, b), torch.ops.sgemm.mm(a, b))
        batches = torch_sgemm.matmul(a.expand(2, 3, 4), b.expand(2, 4, 5))
        assert torch.equal(batches, torch.ops.sgemm.bmm(a.expand(2, 3, 4), b.expand(2, 4, 5)))


@each_device
def test_in_a_thread_of_its_own(device: str) -> None:
    a, b = operands(device)
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(reaches_kernel(a, b)))
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.parametrize("function", [torch_sgemm.matmul, torch_sgemm.linear])
def test_what_is_no_tensor_is_refused_by_pytorch(function: Callable) -> None:
    a = integers((4, 4), 1)
    for wrong in (a.numpy(), a.tolist(), None):
        with pytest.raises(TypeError, match="must be Tensor"):
            function(wrong, a)
        with pytest.raises(TypeError, match="must be Tensor"):
            function(a, wrong)


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matrices": lambda x, _: torch_sgemm.matmul(x, x.t()),
    "batches": lambda _, heads: torch_sgemm.matmul(heads[0], heads[0].mT),
    "batches of two dimensions": lambda _, heads: torch_sgemm.matmul(heads, heads.mT),
    "layer": lambda x, _: torch_sgemm.linear(x, x),
    "layer with an activation": lambda x, _: torch_sgemm.linear(x, x, None, "gelu"),
    "packed": lambda x, _: torch_sgemm.pack(x.t(), frozen=True).mm(x),
    "packed layer": lambda x, _: torch_sgemm.linear(
        x, torch_sgemm.pack(x.t(), frozen=True), None, "relu"
    ),
}


@pytest.mark.parametrize("mode", ["plain", "inference", "gradients"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_lacks_memory_is_named_as_pytorch_does(
    way: Callable[[Tensor, Tensor], Tensor], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to a kernel translates its error; on the CPU, an error keeps its type."""
    column, heads = torch.empty(1 << 23, 1), torch.empty(2, 3, 1 << 23, 1)
    column.requires_grad_(mode == "gradients")
    heads.requires_grad_(mode == "gradients")
    seen = []

    def named(failure: RuntimeError, on_gpu: bool) -> RuntimeError:
        seen.append((str(failure)[:42], on_gpu))
        return failure

    ops = ("autograd", "packed_mm", "past_dispatcher", "product")
    for module in ("functional.linear", "functional.packed", *(f"torch_ops.{x}" for x in ops)):
        monkeypatch.setattr(sys.modules[f"torch_sgemm.{module}"], "out_of_memory", named)
    with (
        torch.inference_mode(mode == "inference"),
        pytest.raises(RuntimeError, match="can't allocate memory"),
    ):
        way(column, heads)
    assert seen and set(seen) == {("DefaultCPUAllocator: can't allocate memory", False)}
