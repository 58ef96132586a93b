"""Every row from threads that have not used the GPU before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.table import ANY, each_device, fit
from torch import Tensor

import torch_sgemm
from torch_sgemm import Kernel

THREADS = 8

pytestmark = pytest.mark.rows(takes_float32=ANY)  # those for 16-bit operands as well


def operands(row: Kernel, device: str) -> tuple[Tensor, Tensor]:
    sizes = (256, 256, 256) if device == "cuda" else (24, 16, 32)
    m, n, k = fit(row, *sizes)
    torch.manual_seed(0)
    dtype = torch.float32 if row.takes_float32 else torch.bfloat16
    return torch.randn(m, k).to(device, dtype), torch.randn(k, n).to(device, dtype)


def in_fresh_threads(run: Callable[[], Tensor]) -> list[Tensor]:
    results: list[Tensor | BaseException] = []

    def keep() -> None:
        try:
            result = run()
            if result.is_cuda:
                torch.cuda.current_stream().synchronize()
            results.append(result)
        except BaseException as failure:
            results.append(failure)

    threads = [threading.Thread(target=keep) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [x for x in results if isinstance(x, BaseException)]
    assert not failures, failures
    return results


def test_fresh_threads(row: Kernel, device: str) -> None:
    a, b = operands(row, device)
    expected = torch.ops.sgemm.mm(a, b, kernel=row.name)
    for result in in_fresh_threads(lambda: torch.ops.sgemm.mm(a, b, kernel=row.name)):
        assert torch.equal(result, expected)


def test_a_pool(row: Kernel, device: str) -> None:
    a, b = operands(row, device)
    expected = torch.ops.sgemm.mm(a, b, kernel=row.name)
    with ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(
            lambda _: torch.ops.sgemm.mm(a, b, kernel=row.name).cpu(), range(2 * THREADS)
        )
        assert all(torch.equal(x, expected.cpu()) for x in found)


def test_threads_of_a_backward(row: Kernel, device: str) -> None:
    """PyTorch's engine runs a GPU's backward in a thread of its own, from a fresh one too."""
    a, b = operands(row, device)

    def gradients() -> Tensor:
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        torch.ops.sgemm.mm(x, y, kernel=row.name).sum().backward()
        return torch.cat([x.grad.flatten(), y.grad.flatten()])

    expected = gradients()
    for result in in_fresh_threads(gradients):
        assert torch.equal(result, expected)


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_auto_in_fresh_threads(device: str, dtype: torch.dtype) -> None:
    size = 1024 if device == "cuda" else 32
    a, b = (torch.randn(size, size).to(device, dtype) for _ in range(2))
    packed = torch_sgemm.pack(b, frozen=True)
    for run in (
        lambda: torch_sgemm.matmul(a, b, out_dtype=torch.float32),
        lambda: torch.ops.sgemm.mm(a, b),
        lambda: packed.mm(a),
        lambda: torch_sgemm.pack(b, frozen=True).mm(a),
    ):
        expected = run()
        for result in in_fresh_threads(run):
            assert torch.equal(result, expected)


@each_device
def test_enabled_in_fresh_threads(device: str) -> None:
    a = torch.randn(64, 64, device=device)
    with torch_sgemm.enabled(devices=(device,)):
        expected = a @ a
        for result in in_fresh_threads(lambda: a @ a):
            assert torch.equal(result, expected)
