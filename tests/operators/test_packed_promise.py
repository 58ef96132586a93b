"""The promise of packing.

Tests which matrices have planes, when they are split, and how stale planes are found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from support.data import integers
from support.split import ROW
from support.table import each_device, runnable
from torch import Tensor

import torch_sgemm


def some(device: str) -> tuple[Tensor, Tensor]:
    """a and b."""
    return integers((50, 60), 0, device), integers((60, 40), 1, device)


def write_uncounted(b: Tensor) -> None:
    """Writes b without raising its version counter, so that planes give another product than b."""
    b.data.zero_()


@each_device
@pytest.mark.parametrize("frozen", [False, True])
def test_changes_that_pytorch_counts_are_seen(frozen: bool, device: str) -> None:
    a, b = some(device)
    packed = torch_sgemm.pack(b, frozen=frozen)
    for kernel in ("auto", *(["split_fp16x3"] if ROW in runnable(device) else [])):
        assert torch.equal(packed.mm(a, kernel=kernel), a @ b)
        b.mul_(2)
        assert torch.equal(packed.mm(a, kernel=kernel), a @ b)
        b.data = integers((60, 40), 3, device)
        assert torch.equal(packed.mm(a, kernel=kernel), a @ b)


# Writers that don't always raise the version counter, so that a write can go unnoticed.
WRITERS: dict[str, Callable[[Tensor], object]] = {
    "data": lambda w: w.data.mul_(2),
    "set_data": lambda w: setattr(w, "data", 2 * w.data),
    "no grad": lambda w: torch.no_grad()(w.mul_)(2),
    "fused AdamW": lambda w: fused_step(torch.optim.AdamW, w),
    "fused SGD": lambda w: fused_step(torch.optim.SGD, w),
    "foreach": lambda w: torch._foreach_mul_([w.data], 2.0),
    "numpy": lambda w: w.detach().cpu().numpy().__imul__(2) if w.is_cpu else w.data.mul_(2),
    "inference mode": lambda w: torch.inference_mode()(w.data.mul_)(2),
}


def fused_step(optimizer: type, w: Tensor) -> None:
    w.grad = torch.ones_like(w)
    optimizer([w], lr=0.5, fused=True).step()


@each_device
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_no_writer_makes_a_product_stale(
    writer: str, frozen: bool, trained: bool, device: str
) -> None:
    """A weight without a promise and one that requires grad are read; others after update()."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(40, 60, device=device), requires_grad=trained)
    x = torch.randn(50, 60, device=device)
    packed = torch_sgemm.pack(weight.t(), frozen=frozen)
    kernel = "split_fp16x3" if ROW in runnable(device) else "auto"
    for _ in range(2):
        before = x @ weight.detach().t()
        torch.testing.assert_close(packed.mm(x, kernel=kernel).detach(), before)
        WRITERS[writer](weight)
        after = x @ weight.detach().t()
        assert not torch.allclose(before, after)
        if frozen and not trained:
            packed.update()
        torch.testing.assert_close(packed.mm(x, kernel=kernel).detach(), after)
        with torch.no_grad():
            torch.testing.assert_close(torch_sgemm.linear(x, packed, kernel=kernel), after)


@pytest.fixture
def split_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes without a GPU: copies that no product reads."""
    module = sys.modules["torch_sgemm.functional.packed"]

    def split(b: Tensor, into: Tensor | None) -> object:
        planes = b.detach().clone() if into is None else into.copy_(b)
        return module._Planes(module._state_of(b), planes, None, None)

    monkeypatch.setattr(module, "_split", split)
    monkeypatch.setattr(module, "_wait", lambda found: None)


def test_who_has_planes(split_here: None) -> None:
    b = integers((60, 40), 1)
    assert torch_sgemm.pack(b).planes_of(b) is None
    packed = torch_sgemm.pack(b, frozen=True)
    planes = packed.planes_of(b)
    assert torch.equal(planes, b)
    assert packed.planes_of(b.clone()) is None  # another matrix
    write_uncounted(b)
    assert packed.planes_of(b) is planes and planes.any()  # until update()
    packed.update()
    assert packed.planes_of(b) is planes and not planes.any()  # in place, for captured graphs
    b.add_(1)
    assert packed.planes_of(b) is planes and torch.equal(planes, b)


def test_a_matrix_that_requires_grad_has_no_planes(split_here: None) -> None:
    weight = torch.nn.Parameter(torch.randn(40, 60))
    packed = torch_sgemm.pack(weight.t(), frozen=True)
    assert packed.planes_of(weight.t()) is None
    with torch.no_grad():
        view = weight[:, 3:]  # doesn't require grad itself
    assert torch_sgemm.pack(view, frozen=True).planes_of(view) is None
    weight.requires_grad_(False)
    packed.update()
    assert torch.equal(packed.planes_of(weight.t()), weight.t())
    weight.requires_grad_(True)
    assert packed.planes_of(weight.t()) is None
    alias = torch_sgemm.pack(weight.detach().t(), frozen=True)
    assert alias.planes_of(weight.t()) is not None


def test_a_broken_promise_can_be_found(split_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module, b = sys.modules["torch_sgemm.functional.packed"], integers((60, 40), 1)
    monkeypatch.setattr(module, "_CHECKS", True)
    monkeypatch.setattr(module, "_planes", lambda b: b.clone())
    packed = torch_sgemm.pack(b, frozen=True)
    packed.planes_of(b)
    write_uncounted(b)
    with pytest.raises(RuntimeError, match=r"matrix of shape \(60, 40\) that was packed with froz"):
        packed.planes_of(b)
    packed.update()
    packed.planes_of(b)


@pytest.mark.gpu
def test_a_broken_promise_is_found_by_an_environment_variable(has_planes: None) -> None:
    code = """
import torch, torch_sgemm
a, b = torch.ones(200, 60, device="cuda"), torch.ones(60, 40, device="cuda")
packed = torch_sgemm.pack(b, frozen=True)
packed.mm(a, kernel="split_fp16x3")
b.data.zero_()
try:
    packed.mm(a, kernel="split_fp16x3")
except RuntimeError as failure:
    print(failure)
"""
    environment = {**os.environ, "TORCH_SGEMM_CHECK_PACKED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True
    )
    assert "has been written; accepted: PackedMatrix.update() after that" in done.stdout


@pytest.mark.gpu
def test_planes_after_a_graph_has_written_the_matrix(has_planes: None) -> None:
    """A replay notifies nothing, so the program must call update()."""
    a, b = some("cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        b.mul_(2)
    plain, packed = torch_sgemm.pack(b), torch_sgemm.pack(b, frozen=True)
    for _ in range(2):
        graph.replay()
        packed.update()
        for x in (plain, packed):
            assert torch.equal(x.mm(a, kernel="split_fp16x3"), a @ b)


def captured(run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


@pytest.mark.gpu
@pytest.mark.parametrize("write", [lambda b: b.mul_(2), write_uncounted], ids=["counted", "not"])
def test_a_captured_product_without_a_promise_reads_the_matrix(
    has_planes: None, write: Callable[[Tensor], object]
) -> None:
    a, b = some("cuda")
    packed = torch_sgemm.pack(b)
    write(b)
    graph, result = captured(lambda: packed.mm(a, kernel="split_fp16x3"))
    for _ in range(2):
        graph.replay()
        assert torch.equal(result, a @ b)
        assert torch.equal(packed.mm(a, kernel="split_fp16x3"), a @ b)
        write(b)


@pytest.mark.gpu
def test_a_captured_product_of_a_frozen_matrix_reads_its_planes(has_planes: None) -> None:
    a, b = some("cuda")
    packed, expected = torch_sgemm.pack(b, frozen=True), a @ b
    graph, result = captured(lambda: packed.mm(a, kernel="split_fp16x3"))
    write_uncounted(b)
    graph.replay()
    assert torch.equal(result, expected)
    packed.update()
    graph.replay()
    assert not result.any()
    b.copy_(torch.ones_like(b))
    with pytest.raises(RuntimeError, match="would not split a packed matrix"):
        captured(lambda: packed.mm(a))
    torch.cuda.synchronize()
    assert torch.equal(packed.mm(a, kernel="split_fp16x3"), a @ b)
    graph.replay()
    assert torch.equal(result, a @ b)


@pytest.mark.gpu
def test_splitting_is_refused_in_a_capture(has_planes: None) -> None:
    _, b = some("cuda")
    packed = torch_sgemm.pack(b, frozen=True)
    for split in (lambda: torch_sgemm.pack(b, frozen=True), packed.update):
        with pytest.raises(RuntimeError, match="the current stream is being captured"):
            captured(split)
        torch.cuda.synchronize()
