"""Memory: how much a product or a gradient asks for, and what happens where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.process import python
from support.table import each_device

import torch_sgemm
from benchmarks.attention_backward import peak_bytes
from torch_sgemm.torch_ops import library

# A row that copies what it can't read directly: A, of as much memory as the process may still have.
WORKSPACE = """
import resource, sys
import torch, torch_sgemm
from torch_sgemm.dropin import overrides

a, b = torch.ones(1 << 17, 256).t(), torch.ones(1 << 17, 16)  # 128 MiB and 8
c, out = torch.zeros(256, 16), torch.empty(256, 16)
run = eval(sys.argv[1])
run()  # what PyTorch sets up, it has then
def refuse(*args, **kwargs):
    raise AssertionError("PyTorch's kernel was called anew, into another result")
overrides._covered = lambda name, key: refuse
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (96 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with torch_sgemm.enabled("vector_prefetch", devices="cpu"):
    result = run()
assert (result == 1 << 17).all(), result
print(torch_sgemm.stats().hits, torch_sgemm.stats().fallbacks)
"""
# Bytes that the process grows by in 20,000 calls.
GROWTH = """
import json, sys
import torch, torch_sgemm

a, out, ops = torch.ones(4, 4), torch.empty(4, 4), torch.ops.sgemm
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def grown(call):
    code = compile(call, "call", "eval")
    for i in range(23000):
        if i == 3000:
            before = resident()
        eval(code)
    return resident() - before
print(json.dumps({call: grown(call) for call in json.loads(sys.argv[1])}))
"""
REPEATED = (
    "ops.mm(a, a)",
    "ops.mm_out(a, a, out=out)",
    "ops.addmm(out, a, a)",
    "ops.gemm_(out, a, a, kernel='triple_loop')",
    "ops.linear(a, a, None, 'relu')",
    "torch_sgemm.matmul(a, a, kernel='ladder')",
)
CALLS = {
    "mm": "lambda: torch.mm(a, b)",
    "mm.out": "lambda: torch.mm(a, b, out=out)",
    "addmm": "lambda: torch.addmm(c, a, b)",
    "addmm_": "lambda: torch.zeros(256, 16).addmm_(a, b)",
    "bmm": "lambda: torch.bmm(a[None], b[None])[0]",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_workspace_that_finds_no_memory(name: str) -> None:
    """The result that is there already is PyTorch's kernel's, and no message is printed."""
    done = python("-c", WORKSPACE, CALLS[name])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"{{}} {{('{name}', 'failed'): 1}}"
    assert done.stderr == ""


def test_a_batch_invariant_product_that_finds_none_is_an_error() -> None:
    """PyTorch's kernel would have other bits."""
    script = WORKSPACE.replace("vector_prefetch", "batch_invariant")
    for call in CALLS.values():
        done = python("-c", script, call)
        assert done.returncode != 0
        assert "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried" in done.stderr


@each_device
def test_a_result_that_finds_no_memory_is_an_error_without_a_message(
    device: str, capfd: pytest.CaptureFixture
) -> None:
    a = torch.empty(1 << 23, 1, device=device)
    if device == "cuda":
        kind, message = torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate {} bytes"
    else:
        kind = RuntimeError
        message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes"
    message = message.format(4 << 46) + " for a product of torch_sgemm."
    for product in (torch_sgemm.matmul, torch.ops.sgemm.mm):
        with pytest.raises(RuntimeError) as found:
            product(a, a.t())
        assert found.type is kind
        assert str(found.value) == message
    assert capfd.readouterr().err == ""


@each_device
@pytest.mark.parametrize("inference", [False, True])
def test_large_results_are_like_small_ones(inference: bool, device: str) -> None:
    """They are allocated by Python from 64 MiB on."""
    with torch.inference_mode(inference):
        for size in (64, 4096 + 64):
            a, b = torch.ones(size, 1, device=device), torch.ones(1, size, device=device)
            for result in (
                torch_sgemm.matmul(a, b),
                torch_sgemm.linear(a, b.t()),
                torch_sgemm.matmul(a[None], b[None])[0],
            ):
                assert result.shape == (size, size) and result.is_contiguous()
                assert result.is_inference() == inference and not result.requires_grad
                assert not result._is_view() or result._base.dim() == 3
                assert result.device == a.device and (result[::97] == 1).all()


def test_none_where_there_is_no_room() -> None:
    assert library._allocate(1 << 46, torch.float32, -1) is None
    assert library._allocate(3, torch.float64, -1).dtype == torch.float64


@pytest.mark.gpu
def test_a_workspace_of_a_process_that_may_take_no_more(
    has_planes: None, capfd: pytest.CaptureFixture
) -> None:
    a, b = (torch.ones(8192, 8192, device="cuda") for _ in range(2))
    expected = (a @ b).clone()
    out = torch.empty_like(expected)
    torch.cuda.empty_cache()
    most = torch.cuda.memory_reserved() + (128 << 20)  # the planes take 512 MiB
    before = torch_sgemm.stats()
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
    try:
        with torch_sgemm.enabled("split_fp16x3"):
            torch.mm(a, b, out=out)
            after = torch_sgemm.stats()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(out, expected)
    key = ("mm.out", "failed")
    assert after.fallbacks.get(key, 0) == before.fallbacks.get(key, 0) + 1
    assert capfd.readouterr().err == ""


# --- attention's gradients ---------------------------------------------------------------------

BLOCK = 64  # a head's rows are rounded up to a multiple of it
SHAPES = [  # batches, heads, groups, queries, keys, depth
    (2, 4, 4, 200, 200, 64),
    (2, 8, 2, 130, 300, 128),
    (3, 4, 4, 256, 77, 40),
    (4, 16, 16, 1024, 1024, 64),
    (64, 12, 12, 32, 32, 64),
]


def workspace_of_gradients(
    batch: int, heads: int, groups: int, rows: int, keys: int, depth: int
) -> int:
    """The bytes of docs/attention.md: planes of Q, dO, K and V, and scales and norms of rows."""
    queries = batch * heads * -(-rows // BLOCK) * BLOCK
    others = batch * groups * -(-keys // BLOCK) * BLOCK
    padded = 64 if depth <= 64 else 128
    return queries * (8 * padded + 35) + others * (8 * padded + 5)


def peak_of_gradients(shape: tuple[int, ...], **options) -> tuple[int, int]:
    """Returns the most bytes that gradients ask for at once, and those of the results."""
    batch, heads, groups, rows, keys, depth = shape
    sizes = (batch, heads, rows, depth), *[(batch, groups, keys, depth)] * 2
    inputs = [torch.randn(size, device="cuda", requires_grad=True) for size in sizes]
    grad = torch.randn(batch, rows, heads, depth, device="cuda").transpose(1, 2)  # by rows
    out = torch_sgemm.attention(*inputs, enable_gqa=True, kernel="split", **options)
    taken = peak_bytes(lambda: torch.autograd.grad(out, inputs, grad))
    return taken, sum(x.nbytes for x in inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_attention_take_the_memory_of_their_workspace(
    shape: tuple[int, ...], causal: bool
) -> None:
    taken, results = peak_of_gradients(shape, is_causal=causal)
    assert results <= taken <= results + workspace_of_gradients(*shape) + 2**13  # rounded up


@pytest.mark.gpu
def test_gradients_of_attention_keep_the_workspace_s_limit(
    limit_workspace: Callable[[int], None],
) -> None:
    shape = (4, 16, 16, 1024, 1024, 64)
    limit_workspace(16)
    taken, results = peak_of_gradients(shape)
    assert (
        results <= taken <= results + (16 << 20) + 2**13 < results + workspace_of_gradients(*shape)
    )


# --- the limit of the workspace ---------------------------------------------------------------

LIMIT = "import torch, torch_sgemm; a = torch.ones(3, 3); torch.ops.sgemm.mm(a, a)"


@pytest.mark.parametrize("text", ["lots", "4GB", "0", "-5", "1.5", "9999999999999999999999"])
def test_a_workspace_that_is_no_number_of_mib_is_refused(text: str) -> None:
    done = python("-c", LIMIT, TORCH_SGEMM_WORKSPACE=text)
    assert done.returncode != 0
    assert f"TORCH_SGEMM_WORKSPACE is '{text}'; accepted: a whole number of MiB" in done.stderr


@pytest.mark.parametrize("text", ["", "1", "20000"])
def test_a_workspace_in_mib_is_accepted(text: str) -> None:
    done = python("-c", LIMIT, TORCH_SGEMM_WORKSPACE=text)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_repeated_calls_keep_nothing() -> None:
    done = python("-c", GROWTH, json.dumps(REPEATED))
    assert done.returncode == 0, done.stderr
    for call, grown in json.loads(done.stdout.splitlines()[-1]).items():
        assert grown < 200_000, call  # a string of each call would be 960,000
