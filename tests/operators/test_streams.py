"""Streams, graphs, threads, devices, memory: what a GPU library owes its caller."""

from __future__ import annotations

import threading

import pytest
import torch
from support.data import integers
from support.layouts import PAIRS, laid_out
from support.table import Kernel, fit, runnable
from torch import Tensor

import torch_sgemm

pytestmark = pytest.mark.gpu

LONG = 40_000_000  # cycles, about 20 ms: longer than any launch takes the host
M, N, K = 150, 131, 77


def operands(
    row: Kernel, layouts: str, seed: int, device: str = "cuda"
) -> tuple[Tensor, Tensor, Tensor]:
    """A, B in ``layouts`` and their exact product; TN and TT need packing for some rows."""
    m, n, k = fit(row, M, N, K)
    a, b = integers((m, k), seed, device), integers((k, n), seed + 1, device)
    expected = (a.double() @ b.double()).float()
    return laid_out(a, layouts[0]), laid_out(b, layouts[1]), expected


@pytest.mark.rows(device="cuda")
def test_runs_on_the_current_stream(row: Kernel, device: str) -> None:
    """The product follows a delay and a copy on its stream; on another it would read old data."""
    stream = torch.cuda.Stream()
    for layouts in PAIRS:
        a, b, expected = operands(row, layouts, 1)
        late = torch.zeros_like(a)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG // 8)
            late.copy_(a)
            c = torch.ops.sgemm.mm(late, b, kernel=row.name)
        stream.synchronize()
        assert torch.equal(c, expected), layouts


@pytest.mark.rows(device="cuda")
def test_graph_capture_and_replay(row: Kernel, device: str) -> None:
    """A captured product reads its operands at replay, packing included."""
    problems = [operands(row, layouts, 3) for layouts in PAIRS]
    outs = [torch.empty_like(expected) for _, _, expected in problems]
    c = torch.zeros_like(outs[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a first call may load modules; that can't be captured
        for (a, b, _), out in zip(problems, outs, strict=True):
            torch.ops.sgemm.mm_out(a, b, kernel=row.name, out=out)
        torch.ops.sgemm.gemm_(c, *problems[0][:2], beta=1, kernel=row.name)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for (a, b, _), out in zip(problems, outs, strict=True):
            torch.ops.sgemm.mm_out(a, b, kernel=row.name, out=out)
        new = torch.ops.sgemm.mm(*problems[1][:2], kernel=row.name)
        torch.ops.sgemm.gemm_(c, *problems[0][:2], beta=1, kernel=row.name)
    for seed in (11, 12):
        c.zero_()
        for (a, b, _), layouts in zip(problems, PAIRS, strict=True):
            fresh_a, fresh_b, expected = operands(row, layouts, seed)
            a.copy_(fresh_a)
            b.copy_(fresh_b)
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(out, expected) for out in outs)
        assert torch.equal(new, expected)
        assert torch.equal(c, expected)


@pytest.mark.rows(device="cuda")
def test_no_host_synchronisation(row: Kernel, device: str) -> None:
    """The call comes back while the stream is still busy with what was before it."""
    problems = [operands(row, layouts, 5) for layouts in PAIRS]
    c = torch.empty_like(problems[0][2])
    for a, b, _ in problems:  # a first call may load code, and wait for that
        torch.ops.sgemm.mm(a, b, kernel=row.name)
        torch.ops.sgemm.gemm_(c, a, b, kernel=row.name)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    slept = torch.cuda.Event()
    slept.record()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [torch.ops.sgemm.mm(a, b, kernel=row.name) for a, b, _ in problems]
        for a, b, _ in problems:
            torch.ops.sgemm.gemm_(c, a, b, kernel=row.name)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not slept.query()
    torch.cuda.synchronize()
    for result, (_, _, expected) in zip(results, problems, strict=True):
        assert torch.equal(result, expected)


def test_several_threads_at_once() -> None:
    """Each with a stream and problems of its own, all rows."""
    failures: list[str] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        try:
            start.wait()
            with torch.cuda.stream(stream):
                for row in runnable("cuda"):
                    for layouts in PAIRS:
                        a, b, expected = operands(row, layouts, seed)
                        results = [torch.ops.sgemm.mm(a, b, kernel=row.name) for _ in range(3)]
                        if not all(torch.equal(result, expected) for result in results):
                            failures.append(f"{row.name} {layouts} seed {seed}")
        except Exception as error:  # noqa: BLE001  an exception in a thread must fail the test
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_comes_from_torch_allocator() -> None:
    """A captured product fails if it asks CUDA for memory itself; torch's allocator may.

    Free memory of the GPU is no measure, because other processes allocate as well.
    """

    def given_out() -> int:
        return torch.cuda.memory_stats()["allocated_bytes.all.allocated"]

    def run(size: int) -> None:
        for row in (row for row in runnable("cuda") if row.family):
            (n,) = fit(row, size)
            a = torch.ones(n, n + 1, device="cuda")[:, 1:].t()  # some rows need a copy
            b = torch.ones(n, n, device="cuda")
            before = given_out()
            torch.ops.sgemm.mm(a, b, kernel=row.name)
            assert given_out() - before >= b.nbytes * (2 if row.reads == "rows16" else 1), row.name

    # A kernel's first launch loads its code, which can't be captured. 2040 has the plans of 2048
    # and needs a little less: a workspace that a row kept for itself would have to grow.
    for size in (64, 1200, 2040):
        run(size)
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        run(2048)
    # No workspace outlives its call.
    allocated = torch.cuda.memory_allocated()
    run(512)
    assert torch.cuda.memory_allocated() == allocated


@pytest.mark.rows(device="cuda")
def test_workspace_is_not_reused_too_early(row: Kernel, device: str) -> None:
    """Packed copies on one stream stay whole while another stream allocates and writes."""
    a, b, expected = operands(row, "TT", 7)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG // 8)
        c = torch.ops.sgemm.mm(a, b, kernel=row.name)
    for _ in range(8):  # on the default stream: may get the block only if nothing needs it
        torch.full(a.shape, float("nan"), device=device)
        torch.full(b.shape, float("nan"), device=device)
    torch.cuda.synchronize()
    assert torch.equal(c, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
@pytest.mark.rows(device="cuda")
def test_device_that_is_not_current(row: Kernel, device: str) -> None:
    for layouts in PAIRS:
        a, b, expected = operands(row, layouts, 9, "cuda:1")
        with torch.cuda.device(0):
            c = torch.ops.sgemm.mm(a, b, kernel=row.name)
            assert torch.cuda.current_device() == 0
        assert c.device == a.device
        assert torch.equal(c, expected)


def test_reading_the_guards_counts_leaves_a_capture_alone(has_planes: None) -> None:
    a, b = integers((64, 64), 1, "cuda"), integers((64, 64), 2, "cuda")
    expected = a @ b
    torch_sgemm.redone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.ops.sgemm.mm(a, b)
        torch_sgemm.redone()
        reader = threading.Thread(target=torch_sgemm.redone)
        reader.start()
        reader.join()
    graph.replay()
    assert torch.equal(result, expected)


def test_out_of_memory_is_pytorchs_error() -> None:
    for wanted in (False, True):
        column = torch.ones(1_000_000, 1, device="cuda", requires_grad=wanted)
        for product in (
            lambda x: torch_sgemm.matmul(x, x.t()),
            lambda x: torch.ops.sgemm.mm(x, x.t()),
            lambda x: torch.ops.sgemm.addmm(torch.ones(1, device="cuda"), x, x.t()),
            lambda x: torch_sgemm.linear(x, x),
            lambda x: torch.ops.sgemm.linear(x, x),
            lambda x: torch_sgemm.pack(x.t(), frozen=True).mm(x),
        ):
            with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
                product(column)


def test_out_of_memory_of_heads_and_in_inference_mode_is_pytorchs_error() -> None:
    column = torch.ones(1_000_000, 1, device="cuda")
    heads = torch.ones(2, 3, 1_000_000, 1, device="cuda")
    packed = torch_sgemm.pack(column.t(), frozen=True)
    for inference in (False, True):
        for product in (
            lambda: torch_sgemm.matmul(heads, heads.mT),
            lambda: torch_sgemm.matmul(column, column.t()),
            lambda: torch_sgemm.matmul(heads[0], heads[0].mT),
            lambda: torch_sgemm.linear(column, column),
            lambda: packed.mm(column),
        ):
            with (
                torch.inference_mode(inference),
                pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"),
            ):
                product()
