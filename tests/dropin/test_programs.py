"""Small programs, each modelled on a public bug report, that torch alone runs without an error."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from support.table import each_device, runnable
from torch import Tensor

import torch_sgemm

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


@each_device
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
        with torch_sgemm.enabled(devices=device):
            found = torch.baddbmm(c, a, b, alpha=alpha, beta=0)
            torch.testing.assert_close(found, exact, equal_nan=True)
            torch.baddbmm(c, a, b, alpha=alpha, beta=0, out=found)
            torch.testing.assert_close(found, exact, equal_nan=True)
            in_place = c.clone().baddbmm_(a, b, alpha=alpha, beta=2)
            torch.testing.assert_close(in_place, exact + 2 * c, equal_nan=True)


@each_device
@pytest.mark.parametrize("alpha", [torch.inf, torch.nan, 2.0])
def test_a_product_of_no_terms_adds_nothing(alpha: float, device: str) -> None:
    """Any alpha times an empty sum leaves beta c, as in PyTorch."""
    for batch in ((), (2,)):
        c, a, b = (torch.ones(*batch, *size, device=device) for size in ((3, 4), (3, 0), (0, 4)))
        ours, theirs = (
            (torch.ops.sgemm.baddbmm, torch.baddbmm)
            if batch
            else (torch.ops.sgemm.addmm, torch.addmm)
        )
        wanted = theirs(c, a, b, alpha=alpha, beta=3)
        assert torch.equal(wanted, 3 * c)
        for kernel in ("auto", "aten", "naive_32"):
            assert torch.equal(ours(c, a, b, kernel, alpha=alpha, beta=3), wanted)
        with torch_sgemm.enabled(devices=device):
            assert torch.equal(theirs(c, a, b, alpha=alpha, beta=3), wanted)


@each_device
@pytest.mark.parametrize("alpha", [0.5, -2.0])
def test_tuning_measures_products_with_their_alpha(alpha: float, device: str) -> None:
    """The operator that it runs computes alpha a b by any row, without an addend too."""
    a, b = torch.ones(3, 4, device=device), torch.ones(4, 3, device=device)
    out = torch.full((3, 3), torch.nan, device=device)
    torch.ops.sgemm._product(out, a, b, None, None, None, alpha=alpha)
    assert torch.equal(out, torch.full_like(out, 4 * alpha))


# --- memory ---------------------------------------------------------------------------------


EXPANDED = {
    "enabled": lambda x, w: x @ w,
    "matmul": torch_sgemm.matmul,
    "linear": lambda x, w: torch_sgemm.linear(x, w.t(), w[0], "relu"),
    "packed": lambda x, w: torch_sgemm.matmul(x, torch_sgemm.pack(w)),
    "packed layer": lambda x, w: torch_sgemm.linear(x, torch_sgemm.pack(w)),
}


def most_allocated(run: Callable[[], object], device: str) -> int:
    """Bytes of the largest operation on the CPU, of everything at once on a GPU."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        run()
    return max(event.self_cpu_memory_usage for event in profile.key_averages())


@each_device
@pytest.mark.parametrize("name", EXPANDED)
def test_rows_that_share_memory_are_not_copied(name: str, device: str) -> None:
    """A copy of the operand takes four GiB on a GPU, 64 MiB on the CPU; the result a 64th of it."""
    x = torch.randn(1, 64, 4096, device=device).expand(4096 if device == "cuda" else 64, 64, 4096)
    w = torch.randn(4096, 64, device=device)
    run, within = EXPANDED[name], contextlib.nullcontext()
    if name == "enabled":
        within = torch_sgemm.enabled(devices=device)
    with within:
        expected = run(x[:1], w)
        found = run(x, w)
        assert most_allocated(lambda: run(x, w), device) < 4 * x.numel() // 16
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


@each_device
@pytest.mark.parametrize("name", TOO_LARGE)
def test_out_of_memory_is_worded_as_pytorch_words_it(name: str, device: str) -> None:
    """accelerate and Lightning recognise the message, and then try a smaller batch."""
    rows = 2**25 if device == "cpu" else 2**21
    x = torch.zeros(1, 1, device=device).expand(rows, 1)
    error = torch.OutOfMemoryError if device == "cuda" else RuntimeError
    with (
        torch_sgemm.enabled(devices=device) if name == "enabled" else contextlib.nullcontext(),
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
    """The other thread's clock shows a time in the middle of the product."""
    run, x = FALLBACKS[name]()
    beats: list[float] = []
    done = threading.Event()

    def beat() -> None:
        while not done.is_set():
            time.sleep(1e-3)
            beats.append(time.perf_counter())

    thread = threading.Thread(target=beat)
    expected = run(x)
    with torch_sgemm.enabled(devices="cpu"):
        thread.start()
        begin = time.perf_counter()
        found = run(x)
        taken = time.perf_counter() - begin
        done.set()
        thread.join()
    assert torch.equal(found, expected)
    assert any(0.25 * taken < at - begin < 0.75 * taken for at in beats)


AUTOLOAD = {
    "no GPU": {"TORCH_SGEMM": "1", "CUDA_VISIBLE_DEVICES": ""},
    "unknown kernel": {"TORCH_SGEMM": "nonsense"},
    "unknown device": {"TORCH_SGEMM": "1", "TORCH_SGEMM_DEVICES": "tpu"},
    "unknown setting": {"TORCH_SGEMM": "1", "TORCH_SGEMM_BATCH_INVARIANT": "perhaps"},
    "no file": {"TORCH_SGEMM": "1", "TORCH_SGEMM_TUNED": "/nowhere"},
}


@pytest.mark.parametrize("name", AUTOLOAD)
def test_autoload_never_raises(name: str) -> None:
    """Autoload must not raise even if warnings are errors, or `import torch` itself would fail."""
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


@each_device
def test_names_are_pytorch_s(device: str) -> None:
    """Products name their dimensions as PyTorch's do. PyTorch had named tensors up to 2.14."""
    if not hasattr(torch.Tensor, "has_names"):
        pytest.skip("this PyTorch has no names")
    a, b = torch.randn(2, 3, device=device), torch.randn(3, 4, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = a.refine_names("A", "B"), b.refine_names("B", "C")
        batch = x.rename(None).expand(2, 2, 3).refine_names("Z", "A", "B")
    products = (torch.matmul, torch.mm, torch_sgemm.matmul, lambda x, y: x @ y)
    with torch_sgemm.enabled(devices=device):
        for product in products:
            found = product(x, y)
            assert found.names == ("A", "C")
            torch.testing.assert_close(found.rename(None), a @ b)
            assert product(x.rename(None), y).names == (None, "C")
        found = torch.bmm(batch, batch.rename("Z", "B", "A").transpose(1, 2).rename("Z", "B", "C"))
        assert found.names == ("Z", "A", "C")
        out = torch.empty(2, 4, device=device)
        assert torch.mm(x, y, out=out) is out and out.names == ("A", "C")
        with pytest.raises(RuntimeError):
            torch.mm(x, b.refine_names("B", "A"))
        for product, operands in itertools.product((torch.mm, torch.bmm), [(x, x), (batch, batch)]):
            with pytest.raises(RuntimeError, match="with names, .*; accepted: shapes that can be"):
                product(*operands)
        for product, operands in ((torch.mm, (batch, batch.mT)), (torch.bmm, (x, y))):
            with pytest.raises(RuntimeError, match="with names, .*; accepted: shapes that can be"):
                product(*operands)
        if device == "cuda":
            with pytest.raises(RuntimeError, match="with names, .*; accepted: all on one CPU or"):
                torch.mm(x.cpu(), y)
    assert torch_sgemm.linear(x, b.t()).names == ("A", None)
