"""``batch_invariant`` by every way in: PyTorch's own products, derivatives, compiled programs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from support.batches import (
    KERNEL,
    MOST,
    WEIGHTS,
    assert_same,
    each_kind,
    normal,
    operands,
    parts,
)  # fmt: skip
from support.table import KERNELS, each_device, needs_cuda_build
from torch import Tensor

import torch_sgemm

# --- PyTorch's own products -----------------------------------------------------------------


@each_kind
@each_device
def test_pytorch_s_products(device: str, kind: str) -> None:
    n, k = WEIGHTS[device][0]
    a, b = operands(kind, MOST[device], n, k, device)
    bias = normal(1, n, 9, device)[0]
    layer = torch.nn.Linear(k, n, device=device)
    layer.load_state_dict({"weight": b.t(), "bias": bias})
    torch_sgemm.reset_stats()
    with torch_sgemm.enabled(batch_invariant=True, devices=(device,)), torch.no_grad():
        whole, layers = a @ b, layer(a)
        assert_same(whole, torch.ops.sgemm.mm(a, b, kernel=KERNEL))
        vectors = a @ b[:, 0]
        for m in (1, 2, 3, 17, 64, MOST[device] - 5):
            for rows in parts(m):
                assert_same(a[rows] @ b, whole[rows], m, rows)
                assert_same(layer(a[rows]), layers[rows], m, rows)
                assert_same(a[rows] @ b[:, 0], vectors[rows], m, rows, "times a vector")
                sums = torch.addmv(vectors[rows], a[rows], b[:, 0], beta=0.5, alpha=1.5)
                assert_same(sums, torch.addmv(vectors, a, b[:, 0], beta=0.5, alpha=1.5)[rows])
        assert_same(a[11] @ b, whole[11], "a vector times a matrix")
        assert_same(a[11] @ b[:, 0], vectors[11], "two vectors")
        assert_same(layer(a[11]), layers[11], "a layer of a vector")
        assert_same(layer(a[:12].view(3, 4, k)).view(12, n), layers[:12], "a layer of a batch")
        assert_same(torch.stack([a[:8], a[8:16]]) @ b, torch.stack([whole[:8], whole[8:16]]))
    assert not torch_sgemm.stats().fallbacks


def test_products_with_vectors_are_pytorch_s_otherwise() -> None:
    a, x = normal(5, 7, 1, "cpu"), normal(1, 7, 2, "cpu")[0]
    expected = a @ x, x @ x
    with torch_sgemm.enabled(devices="cpu"):
        with torch_sgemm.enabled(batch_invariant=True, devices="cpu"):
            torch_sgemm.reset_stats()
            inside = a @ x, x @ x
            assert torch_sgemm.stats().hits == {"addmm_": 1, "mm": 1}
        torch_sgemm.reset_stats()
        assert all(map(torch.equal, (a @ x, x @ x), expected))
        assert not torch_sgemm.stats().hits
    for found, wanted in zip(inside, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_vectors_that_pytorch_takes() -> None:
    """PyTorch handles products of other dtypes, and of shapes that don't fit or broadcast."""
    a, x = normal(5, 7, 1, "cpu"), normal(1, 7, 2, "cpu")[0]
    with torch_sgemm.enabled(batch_invariant=True, devices="cpu"):
        assert (a.double() @ x.double()).dtype == torch.float64
        assert (a.long() @ x.long()).dtype == torch.int64
        with pytest.raises(RuntimeError, match="size mismatch"):
            torch.mv(a, x[:3])
        with pytest.raises(RuntimeError, match="inconsistent tensor size"):
            torch.dot(x, x[:3])
        out = torch.empty(5)
        assert torch.mv(a, x, out=out) is out and torch.equal(out, torch.mv(a, x))
        scalar = torch.addmv(torch.tensor(2.0), a, x)
        assert torch.equal(scalar, torch.addmv(torch.full((5,), 2.0), a, x))


# --- derivatives, transforms, compiled programs ---------------------------------------------


@each_device
def test_gradients_of_rows(device: str) -> None:
    n, k = WEIGHTS[device][0]
    a, b = operands("mixed", 150, n, k, device)
    grad = normal(150, n, 4, device)

    def gradient(rows: slice) -> Tensor:
        x = a[rows].clone().requires_grad_()
        torch_sgemm.matmul(x, b, batch_invariant=True).backward(grad[rows])
        assert x.grad is not None
        return x.grad

    whole = gradient(slice(None))
    expected = torch.ops.sgemm.mm(grad, b.t(), kernel=KERNEL)
    assert_same(whole, expected)
    for m in (1, 2, 17, 64, 129):
        for rows in parts(m):
            assert_same(gradient(rows), whole[rows], m, rows)
    tangent = torch.func.jvp(
        lambda x: torch_sgemm.matmul(x, b, batch_invariant=True), (a[:8],), (a[20:28],)
    )[1]
    # A tangent is a sum, in which a negative zero is lost.
    assert_same(tangent + 0, torch.ops.sgemm.mm(a[20:28], b, kernel=KERNEL) + 0)
    mapped = torch.vmap(lambda x: torch_sgemm.matmul(x, b, batch_invariant=True))(a[:9])
    assert_same(mapped, torch.ops.sgemm.mm(a[:9], b, kernel=KERNEL))


@pytest.mark.slow
@each_device
def test_compiled(device: str) -> None:
    n, k = WEIGHTS[device][0]
    a, b = operands("mixed", 40, n, k, device)
    compiled = torch.compile(
        lambda x: torch_sgemm.matmul(x, b, batch_invariant=True) + 0.0, dynamic=True
    )
    expected = torch.ops.sgemm.mm(a, b, kernel=KERNEL) + 0.0
    for m in (1, 3, 40):
        assert_same(compiled(a[:m]), expected[:m], m)


@pytest.mark.gpu
def test_captured() -> None:
    a, b = operands("mixed", 300, 500, 700, "cuda")
    expected = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product = torch_sgemm.matmul(a[:17], b, batch_invariant=True)
    graph.replay()
    assert_same(product, expected[:17])


# --- what is asked for ----------------------------------------------------------------------


@needs_cuda_build
def test_one_row_for_all_problems() -> None:
    """Predicted times don't change the row."""
    devices = {
        "split_fp16x3": torch_sgemm.Device(),
        "register_buffer_64x64x8_8x8": torch_sgemm.Device(arch=100, sms=148),
    }
    for name, device in devices.items():
        assert next(row for row in KERNELS if row.name == name).batch_invariant
        for m, n, k, batch in itertools.product((1, 64, 10**6), (1, 4096), (1, 32, 50000), (1, 7)):
            a = torch.empty(batch, m, k, device="meta")
            b = torch.empty(batch, k, n, device="meta")
            found = torch_sgemm.explain(a, b, kernel=KERNEL, device=device)
            assert found.chosen == name and not found.measured
            others = [v for v in found.verdicts if v.name != name]
            assert others and all(v.reason for v in others)


def test_a_row_beside_it_is_refused() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    packed = torch_sgemm.pack(b)
    calls: list[Callable[[str], object]] = [
        lambda kernel: torch_sgemm.matmul(a, b, kernel=kernel, batch_invariant=True),
        lambda kernel: torch_sgemm.linear(a, b.t(), kernel=kernel, batch_invariant=True),
        lambda kernel: packed.mm(a, kernel=kernel, batch_invariant=True),
        lambda kernel: torch_sgemm.enable(kernel, batch_invariant=True, devices="cpu"),
        lambda kernel: torch_sgemm.enabled(kernel, batch_invariant=True, devices="cpu").__enter__(),
    ]
    for call in calls:
        for kernel in ("ladder", "split_fp16x3", "aten"):
            with pytest.raises(RuntimeError, match=f"'kernel' is '{kernel}' beside .*; accepted"):
                call(kernel)
    for call in calls[:3]:
        assert torch.equal(call(KERNEL), call("auto"))  # type: ignore[arg-type]


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(5, 40, 1, "cpu"), normal(40, 6, 2, "cpu")
    expected = torch.ops.sgemm.mm(a, b, kernel=KERNEL)
    monkeypatch.setenv("TORCH_SGEMM_BATCH_INVARIANT", "1")
    with torch_sgemm.enabled(devices="cpu"):
        assert torch.equal(a @ b, expected)
    with pytest.raises(RuntimeError, match="'kernel' is 'ladder' beside"):
        torch_sgemm.enable("ladder", devices="cpu")
    with torch_sgemm.enabled("padded_tile_32", batch_invariant=False, devices="cpu"):
        assert torch.equal(a @ b, torch.ops.sgemm.mm(a, b, kernel="padded_tile_32"))
    monkeypatch.setenv("TORCH_SGEMM_BATCH_INVARIANT", "yes")
    with pytest.raises(RuntimeError, match="TORCH_SGEMM_BATCH_INVARIANT is 'yes'; accepted: 0, 1"):
        torch_sgemm.enable(devices="cpu")


@needs_cuda_build
def test_too_many_tiles() -> None:
    """No other row steps in."""
    a = torch.empty(1, 1, device="meta").expand(2**40, 1)
    b = torch.empty(1, 1, device="meta").expand(1, 2**9)
    for sm in (90, 100):
        with pytest.raises(RuntimeError, match="no batch-invariant row can take this problem"):
            torch_sgemm.explain(a, b, kernel=KERNEL, device=torch_sgemm.Device(arch=sm))
