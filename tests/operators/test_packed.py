"""Packed right operands: the same results as unpacked ones, and planes only by a promise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from support.bounds import UNIT, Reference, contract_units
from support.data import DISTRIBUTIONS, integers, operands
from support.split import within_contract
from torch import Tensor

import torch_sgemm

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
on_both = pytest.mark.parametrize("device", DEVICES)


def some(device: str) -> tuple[Tensor, Tensor, Tensor]:
    """a, b and an addend."""
    sizes = ((50, 60), (60, 40), (40,))
    return tuple(integers(shape, seed, device) for seed, shape in enumerate(sizes))


def write_uncounted(b: Tensor) -> None:
    """Writes b without raising its version counter, so that planes give another product than b."""
    b.data.zero_()


@on_both
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_products(device: str, kernel: str, frozen: bool) -> None:
    if device == "cuda" and kernel == "reference":
        pytest.skip("a row of the CPU")
    a, b, c = some(device)
    packed = torch_sgemm.pack(b, frozen=frozen)
    assert packed.shape == (60, 40)
    assert torch.equal(packed.mm(a, kernel=kernel), a @ b)
    assert torch.equal(packed.mm(a, alpha=2, kernel=kernel), 2 * (a @ b))
    assert torch.equal(packed.mm(a, c, beta=0.5, kernel=kernel), 0.5 * c + a @ b)
    for x in (a[0], a, a.view(5, 10, 60), a[:0], a.view(5, 10, 60)[:, :0]):
        assert torch.equal(torch_sgemm.matmul(x, packed, kernel=kernel), x @ b)
    out = torch.empty(50, 40, device=device)
    assert torch_sgemm.matmul(a, packed, out=out) is out
    assert torch.equal(out, a @ b)
    assert torch.equal(torch_sgemm.linear(a, packed, c, "relu", kernel=kernel), (a @ b + c).relu())
    empty = torch_sgemm.pack(b[:0], frozen=frozen)
    assert torch.equal(empty.mm(a[:, :0], c), c.expand(50, 40))


TRANSFORMS: dict[str, tuple[Callable, tuple[int, ...]]] = {  # and the shape of a
    "vmap": (torch.func.vmap, (3, 4, 60)),
    "vmap of one row": (torch.func.vmap, (3, 1, 60)),
    "vmap along the last": (lambda f: torch.func.vmap(f, 2), (4, 60, 3)),
    "jvp": (lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1], (4, 60)),
    "grad": (lambda f: torch.func.grad(lambda x: f(x).square().sum()), (4, 60)),
    "hessian": (lambda f: torch.func.hessian(lambda x: f(x).square().sum()), (2, 60)),
    "grad of vmap": (
        lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(x).square().sum()),
        (3, 4, 60),
    ),
}


@on_both
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms(
    transform: tuple[Callable, tuple[int, ...]], compiled: bool, device: str
) -> None:
    of, shape = transform
    x = torch.ones(shape, device=device)
    _, b, c = some(device)
    packed = torch_sgemm.pack(b)
    ours = of(lambda a: packed.mm(a, c, beta=2, alpha=3))
    if compiled:
        ours = torch.compile(ours, fullgraph=True)
    assert torch.equal(ours(x), of(lambda a: 2 * c + 3 * (a @ b))(x))


@on_both
def test_vmapped_addends_and_matrices(device: str) -> None:
    a, b, c = some(device)
    packed = torch_sgemm.pack(b)
    addends = torch.stack([c, 2 * c])
    result = torch.func.vmap(lambda c: packed.mm(a, c))(addends)
    assert torch.equal(result, a @ b + addends[:, None])
    b = torch.stack([b, -b])
    operator = torch.ops.sgemm.packed_mm.default
    run = lambda b: operator(c, a, b, "auto", packed._number, alpha=2.0)  # noqa: E731
    assert torch.equal(torch.func.vmap(run)(b), 2 * (a @ b) + c)


@on_both
@pytest.mark.parametrize("addend", [False, True])
def test_gradients(addend: bool, device: str) -> None:
    tensors = [x.requires_grad_() for x in some(device)[: 2 + addend]]
    a, b, *c = tensors
    packed = torch_sgemm.pack(b)
    result = packed.mm(a, *c, alpha=2, beta=3)
    expected = 2 * (a @ b) + (3 * c[0] if addend else 0)
    assert torch.equal(result, expected)
    grads = torch.autograd.grad(result.square().sum(), tensors)
    for x, y in zip(grads, torch.autograd.grad(expected.square().sum(), tensors), strict=True):
        assert torch.equal(x, y)
    with pytest.raises(RuntimeError, match="argument 'out' can't be differentiated"):
        torch_sgemm.matmul(a, packed, out=torch.empty(50, 40, device=device))


@on_both
def test_opcheck(device: str) -> None:
    a, b, c = (x.requires_grad_() for x in some(device))
    packed = torch_sgemm.pack(b)
    for addend in (None, c):
        torch.library.opcheck(
            torch.ops.sgemm.packed_mm.default,
            (addend, a, b, "auto", packed._number),
            {"alpha": 2.0},
        )


class Layer(torch.nn.Module):
    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(60, 40)
        self.packed = torch_sgemm.pack(self.inner.weight.t(), frozen=frozen)

    def forward(self, x: Tensor) -> Tensor:
        return torch_sgemm.linear(x, self.packed, self.inner.bias, "gelu")


@on_both
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_modules_are_packed_with_the_copied_weight(
    how: Callable, frozen: bool, device: str
) -> None:
    layer = Layer(frozen).to(device)
    twin = how(layer)
    x = torch.randn(5, 60, device=device)
    assert torch.equal(twin(x), layer(x))
    twin(x).sum().backward()
    assert twin.inner.weight.grad is not None and layer.inner.weight.grad is None
    with torch.no_grad():
        twin.inner.weight.zero_()
        assert not torch.equal(twin(x), layer(x))
        gelu = torch.nn.functional.gelu(twin.inner.bias.expand(5, 40))
        torch.testing.assert_close(twin(x), gelu)


@on_both
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_module_sees_changes(dynamic: bool, device: str) -> None:
    layer = Layer().to(device)
    run = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    for rows in (5, 300):
        x = torch.randn(rows, 60, device=device)
        torch.testing.assert_close(run(x), layer(x))
        run(x).square().sum().backward()
        with torch.no_grad():
            layer.inner.weight.add_(0.1 * layer.inner.weight.grad)
        expected = torch.nn.functional.linear(x, layer.inner.weight, layer.inner.bias)
        torch.testing.assert_close(run(x), torch.nn.functional.gelu(expected))


@on_both
def test_a_compiled_program_that_writes_the_matrix(device: str) -> None:
    a, b, _ = some(device)
    packed = torch_sgemm.pack(b)

    @torch.compile(fullgraph=True)
    def run(a: Tensor) -> tuple[Tensor, Tensor]:
        first = packed.mm(a)
        packed.b.mul_(2)
        return first, packed.mm(a)

    for _ in range(3):
        before = b.clone()
        first, second = run(a)
        assert torch.equal(first, a @ before)
        assert torch.equal(second, a @ (2 * before))
        assert torch.equal(packed.mm(a), second)


@on_both
def test_views_of_tensors_with_other_memory(device: str) -> None:
    layer, x = Layer().to(device), torch.randn(5, 60, device=device)
    layer(x)
    layer.inner.weight.data = 2 * layer.inner.weight.data
    expected = torch.nn.functional.linear(x, layer.inner.weight, layer.inner.bias)
    torch.testing.assert_close(layer(x), torch.nn.functional.gelu(expected))
    with torch.no_grad():
        layer.inner.weight.data = 2 * layer.inner.weight.data
        layer(x)
    layer(x).sum().backward()
    assert layer.inner.weight.grad.any()
    a, b, _ = some(device)
    packed = torch_sgemm.pack(b[:, 3:])
    assert torch.equal(packed.mm(a), a @ b[:, 3:])
    b.data = 2 * b
    with pytest.raises(RuntimeError, match="is a view of a tensor that has other memory now"):
        packed.mm(a)


@on_both
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_whether_the_weight_requires_grad_now(compiled: bool, device: str) -> None:
    weight, x = torch.nn.Parameter(torch.randn(40, 60, device=device)), some(device)[0]
    with torch.no_grad():
        packed = torch_sgemm.pack(weight.t())
    run = torch.compile(packed.mm, fullgraph=True) if compiled else packed.mm
    for wanted in (True, False, True):
        weight.requires_grad_(wanted)
        result = run(x)
        assert result.requires_grad == wanted
        if wanted:
            (grad,) = torch.autograd.grad(result.sum(), weight)
            torch.testing.assert_close(grad, x.sum(0).expand(40, 60))


@on_both
def test_what_is_not_ours_is_pytorchs(device: str) -> None:
    """Other dtypes, autocast and shapes, as with a matrix that isn't packed."""
    a, b, c = some(device)
    packed, weight = torch_sgemm.pack(b), b.t()
    with torch.autocast(device, torch.bfloat16):
        assert torch_sgemm.matmul(a, packed).dtype == torch.bfloat16
        assert torch_sgemm.linear(a, packed, c, "relu").dtype == torch.bfloat16
    for wrong in (a.double(), a[:, 1:]):
        for ours, theirs in (
            (lambda x: torch_sgemm.matmul(x, packed), lambda x: torch.matmul(x, b)),
            (
                lambda x: torch_sgemm.linear(x, packed, c),
                lambda x: torch.nn.functional.linear(x, weight, c),
            ),
        ):
            with pytest.raises(RuntimeError) as expected:
                theirs(wrong)
            with pytest.raises(RuntimeError) as caught:
                ours(wrong)
            assert str(caught.value) == str(expected.value)
    with pytest.raises(RuntimeError):
        torch_sgemm.linear(a.view(5, 10, 60), packed, torch.ones(50, 40, device=device))


@pytest.mark.parametrize(
    "b", [None, [[1.0]], torch.empty(3, 4, device="meta"), torch.eye(3).to_sparse()], ids=str
)
def test_what_is_no_matrix_in_memory_is_refused(b: object) -> None:
    with pytest.raises(RuntimeError, match=r"torch_sgemm.pack: argument 'b' .*; accepted: a str"):
        torch_sgemm.pack(b)


@on_both
@pytest.mark.parametrize("frozen", [False, True])
def test_inference_tensors(device: str, frozen: bool) -> None:
    with torch.inference_mode():
        a, b, _ = some(device)
        packed = torch_sgemm.pack(b, frozen=frozen)
        assert torch.equal(packed.mm(a), a @ b)
    assert torch.equal(packed.mm(a), a @ b)


@on_both
def test_bad_input(device: str) -> None:
    a, b, _ = some(device)
    for bad in (b[0], b.double(), b[None]):
        for frozen in (False, True):
            with pytest.raises(RuntimeError, match=r"torch_sgemm.pack: argument 'b' is a Tensor"):
                torch_sgemm.pack(bad, frozen=frozen)
    packed = torch_sgemm.pack(b)
    for bad in (a[:, 1:], a.double(), a[None]):
        with pytest.raises(RuntimeError, match="sgemm::packed_mm: argument '[ab]'"):
            packed.mm(bad)
    with pytest.raises(RuntimeError, match="argument 'c'"):
        packed.mm(a, torch.ones(3, device=device))
    with pytest.raises(RuntimeError, match="at least 1D"):
        torch_sgemm.matmul(a[0, 0], packed)
    with pytest.raises(RuntimeError, match='kernel "split_fp16" is unknown'):
        packed.mm(a, kernel="split_fp16")
    with pytest.raises(RuntimeError, match="argument 'activation'"):
        torch_sgemm.linear(a, packed, activation="sigmoid")


@pytest.mark.gpu
def test_planes_must_be_those_of_b(has_planes: None) -> None:
    a, b, _ = some("cuda")
    with pytest.raises(RuntimeError, match="argument '[ab]'"):
        torch_sgemm.pack(b, frozen=True).mm(a.cpu())
    with pytest.raises(RuntimeError, match="argument 'planes'"):
        torch.ops.sgemm._packed_mm(a, b, torch.ones(3, device="cuda"), None, "auto", None)


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "split_fp16x3"])
def test_products_with_addend(has_planes: None, kernel: str, transposed: bool) -> None:
    for m, n, k in ((1, 1, 1), (130, 70, 33), (300, 260, 1000), (1000, 500, 8192)):
        a = torch.randn(m, k, device="cuda")
        b = torch.randn(n, k, device="cuda").t() if transposed else torch.randn(k, n, device="cuda")
        packed = torch_sgemm.pack(b, frozen=True)
        c = torch.randn(n, device="cuda")
        reference = Reference.of(a, b, c.expand(m, n), 2, 0.5)
        result = packed.mm(a, c, alpha=2, beta=0.5, kernel=kernel)
        units = contract_units(reference.units(torch.addmm(c, a, b, alpha=2, beta=0.5)))
        assert reference.units(result) <= units
        assert torch.equal(result, packed.mm(a, c, alpha=2, beta=0.5, kernel=kernel))
        layer = torch_sgemm.linear(a, packed, c, "gelu", kernel=kernel)
        reference = Reference.of(a, b, c.expand(m, n), beta=1)
        steepest = 1.13  # of GELU
        inner = contract_units(reference.units(torch.addmm(c, a, b))) * UNIT * reference.scale
        expected = torch.nn.functional.gelu(reference.value)
        error = (layer.double() - expected).abs()
        assert (error <= steepest * inner + 1e-6 * (1 + expected.abs())).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_contract(has_planes: None, name: str) -> None:
    for k in (65, 1000, 20000):
        a, b = operands(name, 150, 140, k, "cuda")
        assert within_contract(a, b, torch_sgemm.pack(b, frozen=True).mm(a, kernel="split_fp16x3"))


@pytest.mark.gpu
def test_integers_are_exact_for_any_workspace(
    has_planes: None, limit_workspace: Callable[[int], None]
) -> None:
    a, b = integers((1000, 9000), 1, "cuda"), integers((9000, 300), 2, "cuda")
    packed = torch_sgemm.pack(b, frozen=True)
    for mib in (1, 20, 1000):
        limit_workspace(mib)
        product = packed.mm(a, kernel="split_fp16x3")
        assert torch.equal(product.double(), a.double() @ b.double())


@pytest.mark.gpu
def test_when_planes_are_used(has_planes: None) -> None:
    """Planes are used if they are faster, or if their row is requested by name."""
    for m, kernel, used in (
        (2048, "auto", True),
        (2048, "split", True),
        (2048, "split_fp16x3", True),
        (2048, "ieee", False),
        (2048, "aten", False),
        (1, "auto", False),
        (1, "split_fp16x3", True),
    ):
        a, b = torch.ones(m, 2048, device="cuda"), torch.ones(2048, 2048, device="cuda")
        packed = torch_sgemm.pack(b, frozen=True)
        write_uncounted(b)
        assert packed.mm(a, kernel=kernel).any() == used
