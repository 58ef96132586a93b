"""Packed right operands on several streams, and in graphs that outlive them."""

from __future__ import annotations

import gc
import math
import sys
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from support.data import integers
from torch import Tensor

import torch_sgemm


def some() -> tuple[Tensor, Tensor]:
    """a and b on the GPU."""
    return integers((50, 60), 0, "cuda"), integers((60, 40), 1, "cuda")


class FakeStream:
    """A stream without a GPU; ``waited`` counts waits for an event."""

    def __init__(self, stream_id: int, handle: int) -> None:
        self.stream_id, self.cuda_stream = stream_id, handle
        self.waited = 0

    def wait_event(self, event: object) -> None:
        self.waited += 1


@pytest.mark.parametrize(
    "stream_id, handle, waits",
    [(0, 0, False), (35, 0x5A20, False), (0x5A20, 0x5A20, True), (2, 2, True)],
    ids=["default", "PyTorch's", "somebody's", "a thread's default"],
)
def test_a_later_stream_with_the_same_handle_waits(
    stream_id: int, handle: int, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that PyTorch has not made may be destroyed, and the next one get its handle."""
    module, b = sys.modules["torch_sgemm.functional.packed"], torch.ones(3, 4)
    stream = FakeStream(stream_id, handle)
    split = SimpleNamespace(_pack=lambda b: torch.ones(5))
    event = SimpleNamespace(record=lambda stream: None)
    monkeypatch.setattr(module, "operators", split)
    monkeypatch.setattr(module, "_stream_of", lambda planes: stream.cuda_stream)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(Tensor, "record_stream", lambda planes, stream: None)
    found = module._split(b, None)
    stream = FakeStream(stream_id, handle)  # the next one
    module._wait(found)
    assert stream.waited == waits
    stream = FakeStream(7, handle + 16)
    module._wait(found)
    assert stream.waited == 1


def test_a_captured_product_gives_the_planes_to_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph may outlive the packed matrix; here without a GPU, with planes that none splits."""
    module, b = sys.modules["torch_sgemm.functional.packed"], torch.ones(3, 4)
    packed, kept, capturing = torch_sgemm.pack(b, frozen=True), [], True
    planes = torch.ones(5)
    packed._planes = module._Planes(module._state_of(b), planes, None, None)
    monkeypatch.setattr(module, "_keep_with_graph", kept.append)
    monkeypatch.setattr(module, "_is_captured", lambda b: capturing)
    monkeypatch.setattr(module, "_wait", lambda found: None)
    assert packed.planes_of(b) is planes and packed.planes_of(b) is planes
    assert len(kept) == 2 and all(x is planes for x in kept)  # each may be of another graph
    capturing = False
    assert packed.planes_of(b) is planes and len(kept) == 2
    references = weakref.ref(planes)
    kept.clear()
    del planes, packed
    gc.collect()
    assert references() is None


@pytest.mark.gpu
def test_a_graph_keeps_the_planes_of_a_matrix_that_is_gone(has_planes: None) -> None:
    a, b = integers((300, 1000), 0, "cuda"), integers((1000, 2000), 1, "cuda")
    expected = a @ b
    packed = torch_sgemm.pack(b, frozen=True)
    size, address = packed._planes.planes.numel(), packed._planes.planes.data_ptr()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = packed.mm(a, kernel="split_fp16x3")
        again = packed.mm(a, kernel="split_fp16x3")
    gc.collect()  # what earlier tests have left
    before = torch.cuda.memory_allocated()
    del packed
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    others = [torch.full((size,), math.nan, device="cuda") for _ in range(8)]
    assert all(other.data_ptr() != address for other in others)
    for _ in range(2):
        result.zero_()
        again.zero_()
        graph.replay()
        assert torch.equal(result, expected) and torch.equal(again, expected)
    del others
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    graph.reset()
    for _ in range(100):  # CUDA reports the graph's end on another thread
        torch_sgemm.pack(b[:8, :8], frozen=True)
        if torch.cuda.memory_allocated() <= before - 4 * size:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the planes outlived their graph")


@pytest.mark.gpu
def test_planes_are_given_to_graphs_only(has_planes: None) -> None:
    planes = torch.ones(5, device="cuda")
    with pytest.raises(RuntimeError, match="the current stream is not being captured"):
        torch.ops.sgemm._keep_with_graph(planes)
    before = torch.cuda.memory_allocated()
    del planes
    torch_sgemm.pack(torch.ones(8, 8, device="cuda"), frozen=True)  # frees what could not be given
    assert torch.cuda.memory_allocated() < before


@pytest.mark.gpu
def test_only_streams_that_pytorch_has_made_are_known_by_their_handle(has_planes: None) -> None:
    a, b = some()
    pooled = torch.cuda.Stream()
    external = torch.cuda.ExternalStream(pooled.cuda_stream)
    for stream, lasts in ((torch.cuda.default_stream(), True), (pooled, True), (external, False)):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            packed = torch_sgemm.pack(b, frozen=True)
            assert (packed._planes.stream is not None) == lasts
            result = packed.mm(a, kernel="split_fp16x3")
        stream.synchronize()
        assert torch.equal(result, a @ b)


@pytest.mark.gpu
def test_products_on_another_stream_wait_for_the_planes(has_planes: None) -> None:
    a, b = integers((300, 4096), 1, "cuda"), integers((4096, 4096), 2, "cuda")
    other = torch.cuda.Stream()
    packed = torch_sgemm.pack(b, frozen=True)
    other.wait_stream(torch.cuda.current_stream())
    for _ in range(5):
        torch.cuda._sleep(10_000_000)
        b.mul_(-1)
        packed.mm(a)  # packs again, later
        done = torch.cuda.Event()
        with torch.cuda.stream(other):
            result = packed.mm(a, kernel="split_fp16x3")
            done.record()
        done.synchronize()
        assert torch.equal(result, packed.mm(a, kernel="split_fp16x3"))
        other.synchronize()
