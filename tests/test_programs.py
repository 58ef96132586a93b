"""Small programs, each modelled on a public bug report, that torch alone runs without a word."""

from __future__ import annotations

import contextlib
import copy
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from support.table import runnable
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch_sgemm

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
on_both = pytest.mark.parametrize("device", DEVICES)


def enabled(device: str, **more: object) -> contextlib.AbstractContextManager:
    return torch_sgemm.enabled(devices=(device,), **more)


# --- torch.fx -------------------------------------------------------------------------------


class Layers(torch.nn.Module):
    """A layer with its own weight and one with a packed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 5)
        self.packed = torch_sgemm.pack(self.inner.weight.detach().t(), frozen=True)

    def forward(self, x: Tensor) -> Tensor:
        plain = torch_sgemm.linear(x, self.inner.weight, self.inner.bias, "relu", kernel="ladder")
        return plain + torch_sgemm.linear(x, self.packed, kernel="ladder")


PACKED = torch_sgemm.pack(torch.ones(4, 5))
TRACED = {
    "matmul": lambda x: torch_sgemm.matmul(x, x.t(), kernel="ladder"),
    "matmul of a tensor": lambda x: torch_sgemm.matmul(torch.ones(2, 3), x, kernel="ladder"),
    "linear": lambda x: torch_sgemm.linear(x, x, activation="gelu", kernel="ladder"),
    "batch-invariant": lambda x: torch_sgemm.matmul(x, x.t(), batch_invariant=True),
    "operator": lambda x: torch.ops.sgemm.mm(x, x.t(), kernel="ladder"),
    "packed": lambda x: PACKED.mm(x, kernel="ladder", alpha=2),
    "layers": Layers(),
}


@pytest.mark.parametrize("name", TRACED)
def test_symbolic_tracing_keeps_the_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments as well: a product by another kernel has other bits."""
    program = TRACED[name]
    traced = torch.fx.symbolic_trace(program)
    asked = "batch_invariant" if name == "batch-invariant" else "ladder"
    products = [
        node
        for node in traced.graph.nodes
        if node.op == "call_function" and getattr(node.target, "__name__", "") not in ("add", "t")
    ]
    assert products and all(node.kwargs["kernel"] == asked for node in products)
    x = torch.randn(3, 4)
    for run in (traced, copy.deepcopy(traced)):
        assert torch.equal(run(x), program(x))


# --- factors --------------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("alpha", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("size", [1, 5, 70])
def test_alpha_that_is_not_finite_multiplies_the_sum(alpha: float, size: int, device: str) -> None:
    """Inf times an element, added to -Inf times another, would be NaN."""
    torch.manual_seed(0)
    for low in (-2, 1):  # with sums of zero, and without
        a, b, c = (torch.randint(low, 3, (2, size, size)).float().to(device) for _ in range(3))
        exact = alpha * (a @ b)
        rows = [row for row in runnable(device) if row.takes(size, size, size) and row.bits == 24]
        for kernel in ("auto", "aten", *(row.name for row in rows)):
            for beta, addend in ((0, c), (2, c), (1, c[0, 0])):
                wanted = exact + beta * addend if beta else exact
                found = torch.ops.sgemm.baddbmm(addend, a, b, kernel, alpha=alpha, beta=beta)
                torch.testing.assert_close(found, wanted, equal_nan=True)
                one = torch.ops.sgemm.addmm(addend[:1] if addend.dim() == 1 else addend[0],
                                            a[0], b[0], kernel, alpha=alpha, beta=beta)  # fmt: skip
                assert one.shape == (size, size)
        with enabled(device):
            found = torch.baddbmm(c, a, b, alpha=alpha, beta=0)
            torch.testing.assert_close(found, exact, equal_nan=True)
            torch.baddbmm(c, a, b, alpha=alpha, beta=0, out=found)
            torch.testing.assert_close(found, exact, equal_nan=True)
            in_place = c.clone().baddbmm_(a, b, alpha=alpha, beta=2)
            torch.testing.assert_close(in_place, exact + 2 * c, equal_nan=True)


# --- torch.compile --------------------------------------------------------------------------


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


@on_both
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [broken_up, with_a_backward])
def test_compiled_programs_with_graph_breaks(
    program: Callable[..., Tensor], backend: str, device: str
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 16, device=device), torch.randn(16, 16, device=device) / 4
    expected = program(x, w)
    torch._dynamo.reset()
    with enabled(device):
        found = torch.compile(program, backend=backend)(x, w)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@on_both
@pytest.mark.parametrize("entered", ["enabled", "enable"])
def test_a_compiled_function_that_changes_the_setting(entered: str, device: str) -> None:
    """It breaks the graph once, and the rest runs as it is, within the setting."""

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
    with pytest.raises(torch._dynamo.exc.Unsupported, match="torch.compiler.disable"):
        torch.compile(program, fullgraph=True)(x)


# --- autograd -------------------------------------------------------------------------------


def block(x: Tensor, w: Tensor) -> Tensor:
    """Products of all kinds of shapes, with W on either side."""
    y = torch.relu(x @ w).unsqueeze(0) @ w
    heads = y.view(1, 4, 2, 4).transpose(1, 2)
    return (heads @ heads.mT) @ torch.ones(4, 3, device=x.device) + (w @ y.mT).sum()


@on_both
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", ["forward", "backward", "both"])
def test_a_checkpoint_of_which_a_part_is_enabled(part: str, reentrant: bool, device: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, device=device), torch.randn(8, 8, device=device)
    x.requires_grad_()
    w.requires_grad_()
    expected = torch.autograd.grad(block(x, w).sum(), (x, w))

    def within(name: str) -> contextlib.AbstractContextManager:
        return enabled(device) if part in (name, "both") else contextlib.nullcontext()

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


@on_both
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
    with enabled(device) if product == "enabled" else contextlib.nullcontext():
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


@on_both
@pytest.mark.parametrize("product", ["enabled", "matmul", "linear", "packed"])
@pytest.mark.parametrize("sizes", EMPTY, ids=str)
def test_empty_operands(sizes: tuple, product: str, device: str) -> None:
    """Of an empty inner dimension the product is zero."""
    a, b = (torch.randn(size, device=device, requires_grad=True) for size in sizes)
    with enabled(device) if product == "enabled" else contextlib.nullcontext():
        result = PRODUCTS[product](a, b)
        result.sum().backward()
    assert result.shape == (a.detach() @ b.detach()).shape and not result.any()
    assert a.grad.shape == a.shape and b.grad.shape == b.shape
    assert not a.grad.any() or result.numel()


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


@on_both
@pytest.mark.parametrize("name", ONE_OF_TWO)
@pytest.mark.parametrize("how", ["leaf", "inner", "create_graph", "backward"])
def test_only_the_gradients_that_are_asked_for_are_computed(
    name: str, how: str, device: str
) -> None:
    """Forces are an energy's gradient by positions; its parameters require grad as well."""
    leaf = torch.randn(3, 4, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)
    with enabled(device) if name.startswith("enabled") else contextlib.nullcontext():
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


# --- memory ---------------------------------------------------------------------------------


EXPANDED = {
    "enabled": lambda x, w: x @ w,
    "matmul": torch_sgemm.matmul,
    "linear": lambda x, w: torch_sgemm.linear(x, w.t(), w[0], "relu"),
    "packed": lambda x, w: torch_sgemm.matmul(x, torch_sgemm.pack(w)),
    "packed layer": lambda x, w: torch_sgemm.linear(x, torch_sgemm.pack(w)),
}


@on_both
@pytest.mark.parametrize("name", EXPANDED)
def test_rows_that_share_memory_are_not_copied(name: str, device: str) -> None:
    """64 MiB where a copy of the operand would take four GiB."""
    x = torch.randn(1, 64, 4096, device=device).expand(4096, 64, 4096)
    w = torch.randn(4096, 64, device=device)
    if device == "cpu":  # a copy would show in time and memory; PyTorch counts none on the CPU
        x, w = x[:64], w[:, :4]
    run = EXPANDED[name]
    with enabled(device) if name == "enabled" else contextlib.nullcontext():
        if device == "cuda":
            run(x[:2], w)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        found = run(x, w)
        if device == "cuda":
            assert torch.cuda.max_memory_allocated() - before < 2**28
    expected = run(x[:1], w)
    torch.testing.assert_close(found, expected.expand(found.shape), rtol=1e-3, atol=1e-2)
    assert found.is_contiguous()


WORDS = {"cpu": "DefaultCPUAllocator: can't allocate memory", "cuda": "CUDA out of memory."}
TOO_LARGE = {
    "mm": lambda x: torch.ops.sgemm.mm(x, x.t()),
    "matmul": lambda x: torch_sgemm.matmul(x, x.t()),
    "linear": lambda x: torch_sgemm.linear(x, x),
    "packed": lambda x: torch_sgemm.pack(x.t()).mm(x),
    "enabled": lambda x: x @ x.t(),
}


@on_both
@pytest.mark.parametrize("name", TOO_LARGE)
def test_out_of_memory_is_worded_as_pytorch_words_it(name: str, device: str) -> None:
    """accelerate and Lightning know by the words that a smaller batch may do."""
    rows = 2**25 if device == "cpu" else 2**21
    x = torch.zeros(1, 1, device=device).expand(rows, 1)
    error = torch.OutOfMemoryError if device == "cuda" else RuntimeError
    with (
        enabled(device) if name == "enabled" else contextlib.nullcontext(),
        pytest.raises(error) as found,
    ):
        TOO_LARGE[name](x)
    assert WORDS[device] in found.value.args[0] and len(found.value.args) == 1


# --- threads and processes ------------------------------------------------------------------


FALLBACKS = {
    "float64": lambda: (lambda x: x @ x, torch.randn(1200, 1200, dtype=torch.float64)),
    "bfloat16": lambda: (lambda x: x @ x, torch.randn(1200, 1200).bfloat16()),
    "complex": lambda: (lambda x: x @ x, torch.randn(900, 900, dtype=torch.complex64)),
    "integers": lambda: (lambda x: x @ x, torch.ones(700, 700, dtype=torch.int64)),
    "batch": lambda: (lambda x: x @ x, torch.randn(4, 700, 700, dtype=torch.float64)),
    "sum": lambda: (lambda x: torch.addmm(x, x, x), torch.randn(1200, 1200, dtype=torch.float64)),
    "out": lambda: (
        lambda x: torch.mm(x, x, out=torch.empty_like(x)),
        torch.randn(1200, 1200, dtype=torch.float64),
    ),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_other_threads_run_during_a_product_that_stays_pytorch_s(name: str) -> None:
    run, x = FALLBACKS[name]()
    beats, longest, done = 0, 0.0, threading.Event()

    def beat() -> None:
        nonlocal beats, longest
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(1e-3)
            now = time.perf_counter()
            beats, longest, last = beats + 1, max(longest, now - last), now

    thread = threading.Thread(target=beat)
    expected = run(x)
    with enabled("cpu"):
        thread.start()
        begin = time.perf_counter()
        found = run(x)
        taken = time.perf_counter() - begin
        done.set()
        thread.join()
    assert torch.equal(found, expected)
    assert longest < taken / 2, (beats, longest, taken)


AUTOLOAD = {
    "no GPU": {"TORCH_SGEMM": "1", "CUDA_VISIBLE_DEVICES": ""},
    "unknown kernel": {"TORCH_SGEMM": "nonsense"},
    "unknown device": {"TORCH_SGEMM": "1", "TORCH_SGEMM_DEVICES": "tpu"},
    "unknown setting": {"TORCH_SGEMM": "1", "TORCH_SGEMM_BATCH_INVARIANT": "perhaps"},
    "no file": {"TORCH_SGEMM": "1", "TORCH_SGEMM_TUNED": "/nowhere"},
}


@pytest.mark.parametrize("name", AUTOLOAD)
def test_autoload_never_raises(name: str) -> None:
    """Where warnings are errors, too: `import torch` itself would fail."""
    code = (
        "import warnings; warnings.simplefilter('error', UserWarning)\n"
        "import torch_sgemm_autoload; torch_sgemm_autoload.enable_if_asked()\n"
        "import torch; print(torch.ones(2, 2) @ torch.ones(2, 2))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **AUTOLOAD[name]},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0 and "[2., 2.]" in done.stdout, done.stderr
    if name != "no GPU" or not torch.cuda.is_available():
        assert "torch_sgemm: TORCH_SGEMM=" in done.stderr


@pytest.mark.gpu
def test_stats_with_another_allocator(tmp_path) -> None:
    """PyTorch counts no memory of a CUDAPluggableAllocator."""
    source = tmp_path / "allocator.cpp"
    source.write_text("""
#include <cstddef>
#include <cuda_runtime_api.h>
extern "C" void* take(std::size_t size, int, cudaStream_t) {
  void* found = nullptr;
  cudaMalloc(&found, size);
  return found;
}
extern "C" void give(void* memory, std::size_t, int, cudaStream_t) { cudaFree(memory); }
""")
    library = tmp_path / "allocator.so"
    home = "/usr/local/cuda"
    subprocess.run(
        ["g++", "-shared", "-fPIC", f"-I{home}/include", source, "-o", library,
         f"-L{home}/lib64", "-lcudart"], check=True,
    )  # fmt: skip
    code = f"""
import torch, torch_sgemm
new = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "take", "give")
torch.cuda.memory.change_current_allocator(new)
torch_sgemm.enable()
x = torch.ones(300, 300, device="cuda")
print((x @ x).sum().item(), torch_sgemm.stats().hits, torch_sgemm.stats().redone.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.returncode == 0 and "'mm': 1" in done.stdout, done.stderr


@on_both
def test_names_are_pytorch_s(device: str) -> None:
    """Of tensors with names, which PyTorch had up to 2.14."""
    if not hasattr(torch.Tensor, "has_names"):
        pytest.skip("this PyTorch has no names")
    a, b = torch.randn(2, 3, device=device), torch.randn(3, 4, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = a.refine_names("A", "B"), b.refine_names("B", "C")
        batch = x.rename(None).expand(2, 2, 3).refine_names("Z", "A", "B")
    products = (torch.matmul, torch.mm, torch_sgemm.matmul, lambda x, y: x @ y)
    with enabled(device):
        for product in products:
            found = product(x, y)
            assert found.names == ("A", "C") and torch.equal(found.rename(None), a @ b)
            assert product(x.rename(None), y).names == (None, "C")
        found = torch.bmm(batch, batch.rename("Z", "B", "A").transpose(1, 2).rename("Z", "B", "C"))
        assert found.names == ("Z", "A", "C")
        out = torch.empty(2, 4, device=device)
        assert torch.mm(x, y, out=out) is out and out.names == ("A", "C")
        with pytest.raises(RuntimeError):
            torch.mm(x, b.refine_names("B", "A"))
    assert torch_sgemm.linear(x, b.t()).names == ("A", None)
