"""Batches of two dimensions, as attention's sequences and heads.

Heads lie side by side in memory, so such a batch has two strides. ``torch_sgemm.matmul`` reads it
in place. ``torch.matmul`` copies it first, also under ``enabled()``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from support.data import integers
from support.modes import SeenOperators
from support.table import Kernel, each_device, fit
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.flop_counter import FlopCounterMode

import torch_sgemm

SEQUENCES, HEADS = 3, 5


def side_by_side(heads: int, length: int, size: int, seed: int, device: str) -> Tensor:
    """(SEQUENCES, heads, length, size), a view of (SEQUENCES, length, heads, size)."""
    return integers((SEQUENCES, length, heads, size), seed, device).transpose(1, 2)


def operand(kind: str, rows: int, cols: int, seed: int, device: str) -> Tensor:
    """(SEQUENCES, HEADS, rows, cols) in memory in one of the ways that models have it."""
    if kind == "heads":
        return side_by_side(HEADS, rows, cols, seed, device)
    if kind == "transposed heads":
        return side_by_side(HEADS, cols, rows, seed, device).transpose(2, 3)
    if kind == "one head":
        return side_by_side(1, rows, cols, seed, device).expand(-1, HEADS, -1, -1)
    if kind == "one sequence":
        return integers((1, HEADS, rows, cols), seed, device).expand(SEQUENCES, -1, -1, -1)
    if kind == "odd":
        return integers((SEQUENCES, HEADS + 1, rows + 1, cols + 3), seed, device)[:, 1:, 1:, 2:-1]
    if kind == "one matrix":
        return integers((rows, cols), seed, device).expand(SEQUENCES, HEADS, -1, -1)
    return integers((SEQUENCES, HEADS, rows, cols), seed, device)


KINDS = (
    "heads", "transposed heads", "one head", "one sequence", "odd", "one matrix", "contiguous",
)  # fmt: skip


def hits() -> dict[str, int]:
    return torch_sgemm.stats().hits


@pytest.fixture(autouse=True)
def counted_from_here() -> None:
    torch_sgemm.reset_stats()


# --- torch_sgemm.matmul -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_takes_heads(row: Kernel, device: str, kind: str) -> None:
    for m, n, k in (fit(row, 40, 36, 32), fit(row, 131, 70, 65)):
        a, b = operand(kind, m, k, 1, device), operand("heads", k, n, 2, device)
        for left, right in ((a, b), (b.mT, a.mT)):
            result = torch_sgemm.matmul(left, right, kernel=row.name)
            assert result.is_contiguous()
            assert torch.equal(result.double(), left.double() @ right.double())


@pytest.mark.parametrize("kind", KINDS)
@each_device
def test_the_function(device: str, kind: str) -> None:
    """``torch_sgemm.matmul`` reads heads of every kind, and has derivatives."""
    a, b = operand(kind, 40, 32, 1, device), operand("heads", 32, 36, 2, device)
    expected = a.double() @ b.double()
    assert torch.equal(torch_sgemm.matmul(a, b, kernel="ladder").double(), expected)
    one = torch_sgemm.matmul(a[:1], b[:, :1], kernel="ladder")
    assert torch.equal(one.double(), a[:1].double() @ b[:, :1].double())
    right = b.detach().requires_grad_()
    result = torch_sgemm.matmul(a, right, kernel="ladder")
    assert torch.equal(result.detach().double(), expected)
    (gradient,) = torch.autograd.grad(result.sum(), right)
    assert torch.equal(gradient.double(), a.double().mT @ torch.ones_like(expected))
    with pytest.raises(RuntimeError, match="'laddr' is unknown|\"laddr\" is unknown"):
        torch_sgemm.matmul(a, b, kernel="laddr")


@each_device
def test_inference_mode_and_edges(device: str) -> None:
    check_edges(partial(torch_sgemm.matmul, kernel="ladder"), device)


def check_edges(product: Callable[[Tensor, Tensor], Tensor], device: str) -> None:
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 7, 8, 2, device)
    with torch.inference_mode():
        whole = product(q, k.mT)
        assert torch.equal(whole.double(), q.double() @ k.mT.double())
        assert product(q[:0], k[:0].mT).shape == (0, HEADS, 9, 7)
        assert product(q[:, :, :0], k.mT).shape == (SEQUENCES, HEADS, 0, 7)
        zeros = q.new_zeros(SEQUENCES, HEADS, 9, 7)
        assert torch.equal(product(q[..., :0], k[..., :0].mT), zeros)
        assert torch.equal(product(q[:1], k[:1].mT), whole[:1])
        assert torch.equal(product(q[:, :1], k[:, :1].mT), whole[:, :1])
        with pytest.raises(RuntimeError, match="Expected size for first two dimensions of batch2"):
            product(q, k)


def gradients(
    product: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor
) -> tuple[Tensor, ...]:
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    return torch.autograd.grad(product(q, k.mT).square().sum(), (q, k))


@each_device
def test_products_and_gradients_read_heads_as_they_lie(device: str) -> None:
    """Each product is one operator, and no operand is copied."""
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 7, 8, 2, device)
    expected = gradients(torch.matmul, q, k)
    with SeenOperators() as seen:
        found = gradients(torch_sgemm.matmul, q, k)
    assert all(map(torch.equal, found, expected))
    assert seen.calls.count(str(torch.ops.sgemm._matmul.default)) == 3
    assert not any(word in call for call in seen.calls for word in ("clone", "copy", "bmm"))


@pytest.mark.parametrize("mib", [1, 3])
@pytest.mark.rows(family="split", device="cuda")
def test_pieces_end_with_a_group(
    row: Kernel, mib: int, limit_workspace: Callable[[int], None]
) -> None:
    limit_workspace(mib)
    for sequences, heads in ((7, 12), (2, 30), (40, 3)):
        q = integers((sequences, 200, heads, 96), 1, "cuda").transpose(1, 2)
        k = integers((sequences, 130, heads, 96), 2, "cuda").transpose(1, 2)
        result = torch_sgemm.matmul(q, k.mT, kernel=row.name)
        assert torch.equal(result.double(), q.double() @ k.mT.double())


@pytest.mark.rows(device="cuda")
def test_pieces_of_a_group(
    row: Kernel, device: str, limit_workspace: Callable[[int], None]
) -> None:
    """The workspace holds some of a sequence's heads, whose count has no divisor."""
    limit_workspace(1)
    length, size, _ = fit(row, 190, 70, 190)
    q = side_by_side(7, length, size, 1, device)
    k = side_by_side(7, length, size, 2, device).mT
    assert torch.equal(torch_sgemm.matmul(q, k, kernel=row.name), torch.matmul(q, k))


# --- torch.matmul under enabled() ---------------------------------------------------------------


@each_device
def test_pytorch_makes_one_batch_of_heads(device: str) -> None:
    with torch_sgemm.enabled("ladder", devices=(device,)):
        check_edges(torch.matmul, device)
    assert torch_sgemm.stats().fallbacks["bmm", "shape"] == 1
    assert hits().keys() == {"bmm"}


@each_device
def test_gradients_are_batches(device: str) -> None:
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 7, 8, 2, device)
    expected = gradients(torch.matmul, q, k)
    with torch_sgemm.enabled("ladder", devices=(device,)):
        found = gradients(torch.matmul, q, k)
        assert hits() == {"bmm": 3}
        with torch.no_grad():
            q.requires_grad_() @ k.mT
        assert hits() == {"bmm": 4}
    assert all(map(torch.equal, found, expected))


class Logged(Tensor):
    """A subclass that logs the operators that reach it."""

    seen: list[str]

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        Logged.seen.append(str(function))
        return super().__torch_dispatch__(function, types, args, kwargs or {})


@each_device
def test_who_wants_to_see_the_parts_sees_them(device: str) -> None:
    """Subclasses, modes and transforms see the same as without ``enable()``."""
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 7, 8, 2, device)
    expected = q @ k.mT
    Logged.seen = []
    q.as_subclass(Logged) @ k.mT
    seen = Logged.seen
    with torch_sgemm.enabled("ladder", devices=(device,)):
        with FlopCounterMode(display=False) as flops:
            assert torch.equal(q @ k.mT, expected)
        assert flops.get_total_flops() == 2 * 9 * 7 * 8 * SEQUENCES * HEADS

        batch = torch.stack((q, 2 * q))
        found = torch.func.vmap(lambda x: x @ k.mT)(batch)
        assert torch.equal(found, torch.stack((expected, 2 * expected)))

        value, tangent = torch.func.jvp(lambda x: x @ k.mT, (q,), (torch.ones_like(q),))
        assert torch.equal(value, expected)
        assert torch.equal(tangent, torch.ones_like(q) @ k.mT)

        Logged.seen = []
        q.as_subclass(Logged) @ k.mT
        assert Logged.seen == seen != []


class Scores(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT


@each_device
def test_tracing_looks_inside(device: str) -> None:
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 7, 8, 2, device)

    def operators() -> list[str]:
        program = torch.export.export(Scores(), (q, k)).run_decompositions()
        return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]

    expected = operators()
    assert "aten.bmm.default" in expected
    with torch_sgemm.enabled("ladder", devices=(device,)):
        assert operators() == expected


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
@each_device
def test_compiled(device: str, grad_mode) -> None:
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 7, 8, 2, device)
    with torch_sgemm.enabled("ladder", devices=(device,)), grad_mode():
        torch.compiler.reset()
        compiled = torch.compile(Scores(), fullgraph=True)
        assert torch.equal(compiled(q, k).double(), q.double() @ k.mT.double())
    assert "bmm.out" in hits() and "matmul" not in hits()  # Inductor may time products of its own


@pytest.mark.parametrize("grad_mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@each_device
def test_compiled_with_dynamic_shapes(device: str, grad_mode) -> None:
    """There are as many graphs as without ``enable()``: sizes stay symbols."""

    def model(x: Tensor, w: Tensor, q: Tensor, k: Tensor) -> Tensor:
        hidden = x @ w
        return (hidden.mT @ hidden).sum() + (q @ k.mT @ k).sum()

    def graphs() -> int:
        torch.compiler.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
        for batch, m, n in ((2, 3, 5), (4, 7, 6), (3, 9, 8)):
            shapes = ((batch, m, 4), (4, n), (batch, 3, m, n), (batch, 3, n + 1, n))
            operands = [integers(shape, 1, device).requires_grad_() for shape in shapes]
            assert torch.equal(compiled(*operands), model(*operands))
            if torch.is_grad_enabled():
                found = torch.autograd.grad(compiled(*operands), operands)
                expected = torch.autograd.grad(model(*operands), operands)
                assert all(map(torch.equal, found, expected))
        return counter.frame_count

    with grad_mode():
        expected = graphs()
        with torch_sgemm.enabled("ladder", devices=(device,)):
            assert graphs() == expected


@each_device
def test_nested_tensors_and_other_devices_pass_by(device: str) -> None:
    """PyTorch multiplies them as it does without ``enable()``, in inference mode too."""
    rows = torch.nested.nested_tensor([torch.randn(3, n, 5) for n in (4, 6)], device=device)
    meta = torch.empty(2, 3, 4, 4, device="meta")
    with torch.inference_mode():
        expected = rows @ rows.transpose(2, 3)
        with torch_sgemm.enabled("ladder", devices=(device,)):
            found = rows @ rows.transpose(2, 3)
            assert (meta @ meta).shape == meta.shape
    for x, y in zip(found.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(x, y)


@each_device
def test_other_operands_pass_by(device: str) -> None:
    """Each call of ``torch.matmul`` is one product, of matrices or of a batch."""
    q, k = operand("heads", 9, 8, 1, device), operand("heads", 8, 7, 2, device)
    cases = (
        (q.contiguous(), k[0, 0].contiguous(), {"mm": 1}),
        (q[0], k[0], {"bmm": 1}),
        (q, k[:1], {"bmm": 1}),
        (q, k[0], {"bmm": 1}),
        (q[0, 0], k[0, 0], {"mm": 1}),
    )
    for a, b, expected in cases:
        torch_sgemm.reset_stats()
        with torch_sgemm.enabled("ladder", devices=(device,)):
            assert torch.equal((a @ b).double(), a.double() @ b.double())
        assert hits() == expected
    torch_sgemm.reset_stats()
    with torch_sgemm.enabled("ladder", devices=(device,)):
        assert (q.double() @ k.double()).dtype == torch.float64
    assert torch_sgemm.stats().fallbacks == {("bmm", "dtype"): 1}
