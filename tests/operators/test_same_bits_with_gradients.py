"""Rows and bits are the same with gradients, without gradients and in inference mode.

So a reentrant checkpoint, whose first forward runs without gradients, doesn't change gradients.
Under ``enable()`` PyTorch's own functions promise the same bits in batch-invariant mode.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import pytest
import torch
from support.activations import ACTIVATIONS, each_activation, each_function
from support.operators import VARIANTS
from support.table import KERNELS, PROVEN_FAMILIES, Kernel, arch, each_device, families
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch_sgemm

SEQUENCES, HEADS = 2, 3
SIZES = {"cpu": (8, 36, 60), "cuda": (200, 132, 96)}  # m, n, k


def _requests() -> list:
    """``auto`` and all families that the devices run."""
    found = []
    for device, name in itertools.product(("cpu", "cuda"), ("auto", *families())):
        rows = [row for row in KERNELS if row.family == name and device in row.devices]
        if name != "auto" and not rows:
            continue
        marks = [pytest.mark.gpu] if device == "cuda" else []
        if device == "cuda" and rows and not any(row.runs_on(arch()) for row in rows):
            marks.append(pytest.mark.skip(reason=f"no row of {name} runs here"))
        found.append(pytest.param(name, device, marks=marks, id=f"{device}-{name}"))
    return found


each_request = pytest.mark.parametrize("kernel, device", _requests())


def ways(call: Callable[..., Tensor], tensors: list[Tensor | None]):
    """Calls in every mode, of tensors of which none, some and all require grad."""
    present = [x is not None for x in tensors]
    for wanted in itertools.product((False, True), repeat=sum(present)):
        each = iter(wanted)
        leaves = [x if x is None else x.detach().requires_grad_(next(each)) for x in tensors]
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):

            def run(mode=mode, leaves=leaves, wanted=wanted) -> Tensor:
                with mode():
                    result = call(*leaves)
                assert result.requires_grad == (mode is torch.enable_grad and any(wanted))
                return result.detach()

            yield run


def taken(run: Callable[[], Tensor]) -> tuple[Tensor, list[str]]:
    """The result, and the rows that were taken for what: the ranges that a profiler sees."""
    with torch.profiler.profile() as profile:
        result = run()
    return result, sorted(x.name for x in profile.events() if "[" in x.name and "::" in x.name)


def assert_same(call: Callable[..., Tensor], *tensors: Tensor | None) -> None:
    first, *others = (taken(run) for run in ways(call, list(tensors)))
    assert first[1]
    for result, rows in others:
        assert rows == first[1]
        assert torch.equal(result, first[0])


def assert_same_bits(call: Callable[..., Tensor], *tensors: Tensor | None) -> None:
    """The rows may differ."""
    first, *others = (run() for run in ways(call, list(tensors)))
    for result in others:
        assert torch.equal(result, first), [None if x is None else x.shape for x in tensors]


# --- matmul ---------------------------------------------------------------------------------


def heads(rows: int, cols: int, device: str, kind: str = "heads") -> Tensor:
    """(SEQUENCES, HEADS, rows, cols) in memory as models have it."""
    if kind == "heads":
        return torch.randn(SEQUENCES, rows, HEADS, cols, device=device).transpose(1, 2)
    if kind == "transposed heads":
        return heads(cols, rows, device).mT
    if kind == "one head":
        return torch.randn(SEQUENCES, 1, rows, cols, device=device).expand(-1, HEADS, -1, -1)
    if kind == "one sequence":
        return torch.randn(1, HEADS, rows, cols, device=device).expand(SEQUENCES, -1, -1, -1)
    return torch.randn(SEQUENCES, HEADS, rows, cols, device=device)


KINDS = ("heads", "transposed heads", "one head", "one sequence", "contiguous")


@pytest.mark.parametrize("kind", KINDS)
@each_request
def test_heads(kernel: str, device: str, kind: str) -> None:
    m, n, k = SIZES[device]
    a, b = heads(m, k, device, kind), heads(k, n, device)
    for left, right in ((a, b), (b.mT, a.mT)):
        assert_same(lambda x, y: torch_sgemm.matmul(x, y, kernel=kernel), left, right)


def operands(device: str) -> list[tuple[Tensor, Tensor]]:
    """They have every number of dimensions; some broadcast, and some have rows that lie apart."""
    m, n, k = SIZES[device]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    apart = drawn(m, 4, k).transpose(0, 1)
    return [
        (drawn(m, k), drawn(k, n)),
        (drawn(m, k), drawn(n, k).t()),
        (drawn(4, m, k), drawn(4, k, n)),
        (drawn(4, m, k), drawn(k, n)),
        (apart, drawn(k, n)),
        (drawn(4, k, m).mT, drawn(n, k).t()),
        (drawn(2, m, 4, k).transpose(1, 2), drawn(k, n)),
        (drawn(m, k), drawn(4, k, n)),
        (drawn(k, m).t(), apart.mT),
        (drawn(m, k), drawn(2, 4, k, n)),
        (drawn(1, m, k), drawn(4, k, n)),
        (drawn(4, m, k), drawn(1, k, n)),
        (apart, drawn(1, n, k).mT),
        (drawn(2, 1, m, k), drawn(4, k, n)),
        (drawn(2, 2, 4, m, k), drawn(4, k, n)),
        (drawn(k), drawn(k, n)),
        (drawn(m, k), drawn(k)),
        (drawn(k), drawn(k)),
        (drawn(k), drawn(4, k, n)),
        (apart, drawn(k)),
        (drawn(k), apart.mT),
    ]


@each_request
def test_all_shapes(kernel: str, device: str) -> None:
    for a, b in operands(device):
        assert_same(lambda x, y: torch_sgemm.matmul(x, y, kernel=kernel), a, b)


@pytest.mark.parametrize("name", [name for name, _ in VARIANTS[:4]])
@each_request
def test_operators(kernel: str, device: str, name: str) -> None:
    m, n, k = SIZES[device]
    lead = (3,) if "bmm" in name else ()
    operator = getattr(torch.ops.sgemm, name)
    tensors = [torch.randn(*lead, *shape, device=device) for shape in ((m, k), (k, n))]
    if "add" in name:
        factors = {"beta": 0.5, "alpha": -1.5}
        addend = torch.randn(n, device=device)
        assert_same(lambda *x: operator(*x, kernel, **factors), addend, *tensors)
    else:
        assert_same(lambda *x: operator(*x, kernel), *tensors)


# --- PyTorch's own products under enable() ----------------------------------------------------


@each_request
def test_pytorch_s_products(kernel: str, device: str) -> None:
    m, n, k = SIZES[device]
    batches = torch.randn(3, m, k, device=device), torch.randn(3, k, n, device=device)
    a, b, c = batches[0][0], batches[1][0], torch.randn(n, device=device)
    with torch_sgemm.enabled(kernel, devices=(device,)):
        assert_same(torch.mm, a, b)
        assert_same(torch.bmm, *batches)
        assert_same(torch.addmm, c, a, b)
        assert_same(lambda *x: torch.addmm(*x, beta=0.5, alpha=2), c, a, b)
        assert_same(torch.baddbmm, torch.randn(3, m, n, device=device), *batches)
        assert_same(functional.linear, a, b.t(), None)
        assert_same(functional.linear, a, b.t(), c)
        assert_same(lambda x, y: torch.einsum("bij,bjk->bik", x, y), *batches)


def batch_invariant(device: str) -> AbstractContextManager[None]:
    """With gradients PyTorch calls other operators for some functions than without.

    In this mode they give the same bits.
    """
    return torch_sgemm.enabled(batch_invariant=True, devices=(device,))


@pytest.mark.parametrize("kind", KINDS)
@each_device
def test_heads_under_enable(device: str, kind: str) -> None:
    m, n, k = SIZES[device]
    a, b = heads(m, k, device, kind), heads(k, n, device)
    with batch_invariant(device):
        for left, right in ((a, b), (b.mT, a.mT)):
            assert_same_bits(torch.matmul, left, right)


@each_device
def test_all_shapes_under_enable(device: str) -> None:
    """On GPUs a vector, a matrix or a batch of one times a batch is left out.

    If it requires grad, PyTorch transposes both sides, and a row of the family split then gives
    other bits.
    """
    with batch_invariant(device):
        for a, b in operands(device):
            one_left = math.prod(a.shape[:-2]) == 1 and b.dim() >= 3
            if device == "cpu" or not one_left:
                assert_same_bits(torch.matmul, a, b)


@each_device
def test_layers_and_einsum_under_enable(device: str) -> None:
    m, n, k = SIZES[device]
    batch, rows = torch.randn(3, m, k, device=device), torch.randn(m, 3, k, device=device)
    b, c = torch.randn(k, n, device=device), torch.randn(n, device=device)
    with batch_invariant(device):
        for x, bias in itertools.product((batch[0], batch, rows.transpose(0, 1)), (None, c)):
            assert_same_bits(functional.linear, x, b.t(), bias)
        assert_same_bits(lambda x, y: torch.einsum("bij,jk->bik", x, y), rows.transpose(0, 1), b)


# --- layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@each_activation
@each_request
def test_layer(kernel: str, device: str, activation: str | None, biased: bool) -> None:
    m, n, k = SIZES[device]
    weight = torch.randn(n, k, device=device)
    bias = torch.randn(n, device=device) if biased else None
    for x in (
        torch.randn(m, k, device=device),
        torch.randn(3, m, k, device=device),
        torch.randn(m, 3, k, device=device).transpose(0, 1),
        torch.randn(k, device=device),
        torch.randn(0, k, device=device),
    ):
        for call in (
            lambda *x: torch_sgemm.linear(*x, activation, kernel=kernel),
            lambda *x: torch.ops.sgemm.linear(*x, activation, kernel),
        ):
            if x.numel():
                assert_same(call, x, weight, bias)
            else:
                assert all(run().shape == (0, n) for run in ways(call, [x, weight, bias]))


@each_activation
@each_request
def test_packed_weight(kernel: str, device: str, activation: str | None) -> None:
    """Only a frozen weight that doesn't require grad has planes."""
    m, n, k = SIZES[device]
    x, bias = torch.randn(3, m, k, device=device), torch.randn(n, device=device)
    for needs_grad, frozen in itertools.product((False, True), repeat=2):
        weight = torch.randn(n, k, device=device).requires_grad_(needs_grad)
        packed = torch_sgemm.pack(weight.t(), frozen=frozen)

        def call(x: Tensor, bias: Tensor | None, packed=packed) -> Tensor:
            return torch_sgemm.linear(x, packed, bias, activation, kernel=kernel)

        results = []
        for addend, mode, wanted in itertools.product(
            (None, bias), (torch.no_grad, torch.inference_mode, torch.enable_grad), (False, True)
        ):
            leaf = x.detach().requires_grad_(wanted)
            with mode():
                result, rows = taken(lambda leaf=leaf, addend=addend: call(leaf, addend))
            graph = mode is torch.enable_grad and (wanted or needs_grad)
            assert result.requires_grad == graph
            results.append((addend is None, result.detach(), rows))
        for plain, result, rows in results:
            first = next(x for x in results if x[0] == plain)
            assert rows == first[2] and torch.equal(result, first[1])


@each_function
@pytest.mark.rows(family=PROVEN_FAMILIES, tiles=False, device="cuda")
def test_what_goes_in_gives_the_same_in_a_kernel_and_behind_it(
    row: Kernel, activation: str
) -> None:
    """Operands span all magnitudes, and some tiles are computed again."""
    name = row.name
    for m, n, k in ((256, 256, 64), (1000, 200, 1024), (5000, 48, 32), (64, 64, 20000)):
        m, n, k = (min(size, row.max_size or size) for size in (m, n, k))
        x, weight = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        x *= torch.logspace(-42, 5, m, device="cuda")[:, None]
        weight[: n // 4, k // 2 :] = -weight[: n // 4, : k - k // 2] * (1 + 2**-20)
        x[:, k // 2 :] = x[:, : k - k // 2]
        for bias in (None, torch.randn(n, device="cuda")):
            assert_same(lambda *x: torch_sgemm.linear(*x, activation, kernel=name), x, weight, bias)


# --- a checkpoint ---------------------------------------------------------------------------


def block(x: Tensor, matrices: Sequence[Tensor], kernel: str | None) -> Tensor:
    """Attention and a layer; PyTorch's own products without a ``kernel``."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b if kernel is None else torch_sgemm.matmul(a, b, kernel=kernel)

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    q, k, v = (split(product(x, w)) for w in matrices[:3])
    mixed = product(torch.softmax(product(q, k.mT), -1), v).transpose(1, 2).flatten(2)
    if kernel is None:
        return functional.gelu(functional.linear(mixed.transpose(0, 1), matrices[3].t()))
    hidden = torch_sgemm.linear(mixed, matrices[3], None, "gelu", kernel=kernel)
    return torch_sgemm.linear(hidden, torch_sgemm.pack(matrices[4]), None, "silu", kernel=kernel)


def check_checkpoint(device: str, reentrant: bool, kernel: str | None) -> None:
    width = 20 * HEADS
    x = torch.randn(SEQUENCES, SIZES[device][0], width, device=device)
    matrices = [torch.randn(width, width, device=device) / width**0.5 for _ in range(5)]

    def gradients(saved: bool) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, *matrices)]

        def run(x: Tensor, *matrices: Tensor) -> Tensor:
            return block(x, matrices, kernel)

        result = checkpoint(run, *leaves, use_reentrant=reentrant) if saved else run(*leaves)
        result.square().sum().backward()
        return (result.detach(), *(t.grad for t in leaves if t.grad is not None))

    plain, again = gradients(False), gradients(True)
    assert len(plain) == len(again) >= 6
    assert all(map(torch.equal, plain, again))


each_checkpoint = pytest.mark.parametrize(
    "reentrant", [True, False], ids=["reentrant", "not reentrant"]
)


@each_checkpoint
@each_request
def test_checkpoint(kernel: str, device: str, reentrant: bool) -> None:
    check_checkpoint(device, reentrant, kernel)


@each_checkpoint
@each_device
def test_checkpoint_under_enable(device: str, reentrant: bool) -> None:
    with batch_invariant(device):
        check_checkpoint(device, reentrant, None)


# --- what the gradients are, and what is kept for them ----------------------------------------


@each_device
def test_operands_are_kept_as_they_lie(device: str) -> None:
    q, k = heads(9, 8, device), heads(7, 8, device).mT
    for x in (q, k):
        x.requires_grad_()
    result = torch_sgemm.matmul(q, k)
    kept = [(x.data_ptr(), x.stride()) for x in result.grad_fn.saved_tensors]
    assert kept == [(x.data_ptr(), x.stride()) for x in (q, k)]
    result = torch_sgemm.matmul(q.detach(), k)
    assert [x is None for x in result.grad_fn.saved_tensors] == [False, True]


def derivatives(call: Callable[..., Tensor], tensors: list[Tensor], order: int) -> list[Tensor]:
    """Returns the derivatives of the mean of squares.

    Each further order derives the sum of the mean squares of the derivatives before.
    """
    leaves = [x.detach().requires_grad_() for x in tensors]
    found, value = [], call(*leaves).square().mean()
    for _ in range(order):
        grads = torch.autograd.grad(value, leaves, create_graph=True)
        found += grads
        value = sum(x.square().mean() for x in grads)
    return found


def assert_derivatives(call: Callable[..., Tensor], exact: Callable, *tensors: Tensor) -> None:
    found = derivatives(call, list(tensors), 3)
    expected = derivatives(exact, [x.double() for x in tensors], 3)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4)


@each_device
def test_derivatives_of_products(device: str) -> None:
    """Heads, rows that lie apart, and a batch with one left matrix."""
    apart = torch.randn(4, 3, 5, device=device).transpose(0, 1)
    cases = (
        (heads(4, 5, device), heads(6, 5, device).mT),
        (heads(4, 5, device), heads(6, 5, device, "one head").mT),
        (apart, torch.randn(5, 6, device=device)),
        (torch.randn(6, 4, device=device), apart),
        (torch.randn(4, device=device), apart),
        (torch.randn(1, 6, 4, device=device), apart),
        (apart, torch.randn(1, 5, 6, device=device)),
    )
    for a, b in cases:
        assert_derivatives(
            lambda x, y: torch_sgemm.matmul(x, y, kernel="ladder"), torch.matmul, a, b
        )
        with torch_sgemm.enabled("ladder", devices=(device,)):
            assert_derivatives(torch.matmul, torch.matmul, a, b)
    one_right = torch.randn(5, 6, device=device)
    with torch_sgemm.enabled("ladder", devices=(device,)):
        assert_derivatives(lambda x: x @ one_right, lambda x: x @ one_right.double(), apart)


@each_function
@each_device
def test_derivatives_of_layers(device: str, activation: str) -> None:
    x, weight = torch.randn(2, 3, 4, device=device), torch.randn(5, 4, device=device)
    bias = torch.randn(5, device=device)
    plain = ACTIVATIONS[activation]

    def exact(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return plain(functional.linear(x, weight, bias))

    assert_derivatives(
        lambda *x: torch_sgemm.linear(*x, activation, kernel="ladder"), exact, x, weight, bias
    )
    assert_derivatives(
        lambda x, w, c: torch_sgemm.linear(x, torch_sgemm.pack(w.t()), c, activation),
        exact, x, weight, bias,
    )  # fmt: skip


@each_device
def test_a_batch_of_gradients(device: str) -> None:
    """A vmapped backward of what was multiplied outside of vmap."""
    q, k = heads(4, 5, device).requires_grad_(), heads(6, 5, device).mT.requires_grad_()
    result = torch_sgemm.matmul(q, k, kernel="ladder")
    seeds = torch.randn(3, *result.shape, device=device)
    found = torch.autograd.grad(result, (q, k), seeds, is_grads_batched=True)
    for batched, x in zip(found, (seeds @ k.mT, q.mT @ seeds), strict=True):
        torch.testing.assert_close(batched, x)
