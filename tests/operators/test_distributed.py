"""Products of DTensors: what aten's give, in value and placement, in two and four processes.

Operands are small integers, so every order of summation gives the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
from support.data import integers
from support.mesh import Processes
from support.process import python

import torch_sgemm
from torch_sgemm.torch_ops import linear
from torch_sgemm.torch_ops import product as products

tensor = pytest.importorskip("torch.distributed.tensor")
Partial, Replicate, Shard = tensor.Partial, tensor.Replicate, tensor.Shard

# The processes of a mesh serve all its tests: those stay with one worker.
pytestmark = [pytest.mark.xdist_group("distributed"), pytest.mark.slow]

SIZES = {
    "1": 1,
    "b": 4,
    "m": 6,
    "k": 5,
    "n": 8,
}  # 6 and 5 leave some of four processes fewer, or none
EQUATIONS = {"mm": ("mk", "kn"), "bmm": ("bmk", "bkn")}
SUMS = {"addmm": "mm", "baddbmm": "bmm"}
MESHES = [(2,), (4,), (2, 2)]
# True if DTensor can flatten dimensions of which an inner one is split.
FLATTENS = hasattr(tensor._ops._view_ops, "_ViewShardingPropagator")


def _setup(device: str, shape: tuple[int, ...]):
    marks = []
    if device == "cuda":
        found = torch.cuda.device_count()
        needed = torch.Size(shape).numel()
        missing = f"needs {needed} CUDA GPUs with NCCL: torch sees {found}"
        marks = [pytest.mark.gpu, pytest.mark.skipif(found < needed, reason=missing)]
    name = f"{device}-{'x'.join(map(str, shape))}"
    return pytest.param((device, shape), marks=marks, id=name)


@pytest.fixture(
    scope="module", params=[*(_setup("cpu", shape) for shape in MESHES), _setup("cuda", (2,))]
)
def processes(request, tmp_path_factory) -> Iterator[Processes]:
    device, shape = request.param
    started = Processes(device, shape, tmp_path_factory.mktemp("store"))
    yield started
    started.end()


# --- operands --------------------------------------------------------------------------------


def _distributed(x: torch.Tensor, mesh, placements):
    """``x`` with ``placements``; a partial sum has another addend in each process."""
    whole = [Replicate() if p.is_partial() else p for p in placements]
    local = tensor.distribute_tensor(x, mesh, whole).to_local()
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            local = local * (mesh.size(dim) if mesh.get_local_rank(dim) == 0 else -1)
    return tensor.DTensor.from_local(
        local, mesh, placements, run_check=False, shape=x.shape, stride=x.stride()
    )


def _shape(letters: str) -> tuple[int, ...]:
    return tuple(SIZES[letter] for letter in letters)


def _placements(dims: int) -> list:
    return [Replicate(), *(Shard(dim) for dim in range(dims)), Partial()]


def _choices(mesh, *dims: int) -> Iterator[list[tuple]]:
    """Placements of operands of ``dims`` dimensions: all, or some fifteen evenly spaced."""
    single = list(itertools.product(*(_placements(d) for d in dims)))
    every = list(itertools.product(single, repeat=mesh.ndim))
    step = 1 if len(every) <= 64 else len(every) // 15 | 1
    for choice in every[::step]:
        yield [tuple(per_tensor) for per_tensor in zip(*choice, strict=True)]


def _same(ours, atens, expected: torch.Tensor, what: object) -> None:
    assert ours.placements == atens.placements, (what, ours.placements, atens.placements)
    assert ours.shape == atens.shape == expected.shape, what
    assert torch.equal(ours.to_local(), atens.to_local()), what
    assert torch.equal(ours.full_tensor(), expected), what


# --- values and placements --------------------------------------------------------------------


def _check_products(mesh, name: str) -> None:
    a, b = (integers(_shape(x), i, mesh.device_type) for i, x in enumerate(EQUATIONS[name]))
    ours, atens = getattr(torch.ops.sgemm, name), getattr(torch, name)
    for placed in _choices(mesh, a.dim(), b.dim()):
        x, y = (_distributed(t, mesh, p) for t, p in zip((a, b), placed, strict=True))
        _same(ours(x, y), atens(x, y), atens(a, b), placed)


@pytest.mark.parametrize("name", EQUATIONS)
def test_products(processes: Processes, name: str) -> None:
    processes(_check_products, name)


def _check_sums(mesh, name: str, addend: str) -> None:
    equation = (addend, *EQUATIONS[SUMS[name]])
    c, a, b = (integers(_shape(x), i, mesh.device_type) for i, x in enumerate(equation))
    ours, atens = getattr(torch.ops.sgemm, name), getattr(torch, name)
    for i, placed in enumerate(_choices(mesh, c.dim(), a.dim(), b.dim())):
        if any(p.is_shard() and c.shape[p.dim] < mesh.size(d) for d, p in enumerate(placed[0])):
            continue
        factors = {"beta": 1 + i % 3, "alpha": 1 - i % 2 * 3}  # other ones, at equal placements too
        z, x, y = (_distributed(t, mesh, p) for t, p in zip((c, a, b), placed, strict=True))
        _same(
            ours(z, x, y, **factors), atens(z, x, y, **factors), atens(c, a, b, **factors), placed
        )


def _check_heads(mesh) -> None:
    """Batches of two dimensions, for which aten's matmul makes others."""
    a, b = (integers(_shape(x), i, mesh.device_type) for i, x in enumerate(("bnmk", "bnkm")))
    for placed in _choices(mesh, 4, 4):
        x, y = (_distributed(t, mesh, p) for t, p in zip((a, b), placed, strict=True))
        result = torch_sgemm.matmul(x, y)
        assert result.shape == (a @ b).shape
        assert torch.equal(result.full_tensor(), a @ b), placed


def test_heads(processes: Processes) -> None:
    processes(_check_heads)


ADDENDS = [("addmm", x) for x in ("mn", "n", "1n", "m1")] + [("baddbmm", x) for x in ("bmn", "mn")]


@pytest.mark.parametrize("name, addend", ADDENDS)
def test_sums(processes: Processes, name: str, addend: str) -> None:
    processes(_check_sums, name, addend)


def _check_canonical(mesh, letter: str) -> None:
    """Both operands split along ``letter`` on the mesh's first dimension, or whole without it."""
    from torch.distributed.tensor.debug import CommDebugMode

    name = "bmm" if letter == "b" else "mm"
    letters = EQUATIONS[name]
    rest = [Replicate()] * (mesh.ndim - 1)
    placed = [[Shard(x.index(letter)) if letter in x else Replicate(), *rest] for x in letters]
    a, b = (integers(_shape(x), i, mesh.device_type) for i, x in enumerate(letters))
    x, y = (_distributed(t, mesh, p) for t, p in zip((a, b), placed, strict=True))
    with CommDebugMode() as counted:
        c = getattr(torch.ops.sgemm, name)(x, y)
    assert counted.get_total_counts() == 0, counted.get_comm_counts()
    split = {"b": Shard(0), "m": Shard(0), "n": Shard(c.dim() - 1), "k": Partial()}
    assert c.placements == (split[letter], *rest), c.placements
    assert torch.equal(c.full_tensor(), a @ b)


@pytest.mark.parametrize("letter", "bmkn")
def test_split_products_need_no_communication(processes: Processes, letter: str) -> None:
    processes(_check_canonical, letter)


def _check_kernel(mesh) -> None:
    """The argument goes through although DTensor remembers what it did for equal placements."""
    a, b = (integers(_shape(x), i, mesh.device_type) for i, x in enumerate(("mk", "kn")))
    for p in (Shard(0), Shard(1)):  # both pairs of placements need a redistribution
        x, y = (_distributed(t, mesh, [p] * mesh.ndim) for t in (a, b))
        for kernel in ("auto", "aten", "ladder"):
            assert torch.equal(torch.ops.sgemm.mm(x, y, kernel).full_tensor(), a @ b)
            assert torch.equal(torch.ops.sgemm.mm(x, y, kernel=kernel).full_tensor(), a @ b)
        for call in (
            lambda x=x, y=y: torch.ops.sgemm.mm(x, y, "no_such_kernel"),
            lambda x=x, y=y: torch.ops.sgemm.mm(x, y, kernel="no_such_kernel"),
        ):
            with pytest.raises(RuntimeError, match="no_such_kernel"):
                call()


def test_kernel_is_passed_on(processes: Processes) -> None:
    processes(_check_kernel)


def _check_refused(mesh) -> None:
    a, b, c = (integers(_shape(x), 0, mesh.device_type) for x in ("mk", "kn", "mn"))
    x, y, z = (_distributed(t, mesh, [Replicate()] * mesh.ndim) for t in (a, b, c))
    with pytest.raises(NotImplementedError, match="sgemm.mm_out"):
        torch.ops.sgemm.mm_out(x, y, out=z)
    with pytest.raises(NotImplementedError, match="sgemm.gemm_"):
        torch.ops.sgemm.gemm_(z, x, y)
    assert torch.equal(z.to_local(), c)


def test_writing_operators_are_refused(processes: Processes) -> None:
    processes(_check_refused)


def _linear_operands(mesh, dims: int, biased: bool) -> list[torch.Tensor]:
    shapes = ["bmk"[3 - dims :], "nk", "n"][: 3 if biased else 2]
    return [integers(_shape(x), i, mesh.device_type) for i, x in enumerate(shapes)]


def _check_linear(mesh, dims: int, biased: bool, activation: str | None) -> None:
    whole = _linear_operands(mesh, dims, biased)
    expected = torch.nn.functional.linear(*whole)
    expected = expected.relu() if activation else expected
    for placed in _choices(mesh, *(x.dim() for x in whole)):
        if any(p.is_shard() for p in placed[-1]) and whole[-1].shape[0] < mesh.size(0):
            continue
        parts = [_distributed(t, mesh, p) for t, p in zip(whole, placed, strict=True)]
        result = torch_sgemm.linear(*parts, activation=activation)
        assert result.shape == expected.shape
        assert torch.equal(result.full_tensor(), expected), placed


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_linear(processes: Processes, dims: int, biased: bool, activation: str | None) -> None:
    processes(_check_linear, dims, biased, activation)


def _check_split_linear(mesh, activation: str | None) -> None:
    """Split along rows, columns, or (without an activation) k: no communication, the same split."""
    from torch.distributed.tensor.debug import CommDebugMode

    whole = _linear_operands(mesh, 3, biased=True)
    rest = [Replicate()] * (mesh.ndim - 1)
    splits = {
        (Shard(0), Replicate(), Replicate()): Shard(0),
        (Shard(1), Replicate(), Replicate()): Shard(1),
        (Replicate(), Shard(0), Shard(0)): Shard(2),
    }
    if activation is None:
        splits[Shard(2), Shard(1), Partial()] = Partial()
    for placed, of_result in splits.items():
        parts = [_distributed(t, mesh, [p, *rest]) for t, p in zip(whole, placed, strict=True)]
        with CommDebugMode() as counted:
            result = torch_sgemm.linear(*parts, activation=activation)
        assert counted.get_total_counts() == 0, (placed, counted.get_comm_counts())
        assert result.placements == (of_result, *rest), placed
        leaves = [x.detach().requires_grad_() for x in parts]
        dims: list[int] = []

        def product(a, b, kernel, dims=dims):
            dims.append(a.dim())
            return products.product(a, b, kernel)

        with mock.patch.object(linear, "product", product):
            torch_sgemm.linear(*leaves, activation=activation).sum().backward()
        # A weight's gradient for each sample only where rows can't be flattened.
        assert (3 in dims) == (placed[0] == Shard(1)), placed
        ones = [x.clone().requires_grad_() for x in whole]
        expected = torch.nn.functional.linear(*ones)
        (expected.relu() if activation else expected).sum().backward()
        for leaf, right in zip(leaves, ones, strict=True):
            assert torch.equal(leaf.grad.full_tensor(), right.grad), placed


@pytest.mark.parametrize("activation", [None, "relu"])
def test_split_linear_needs_no_communication(processes: Processes, activation: str | None) -> None:
    processes(_check_split_linear, activation)


# --- matmul, enabled() and derivatives -----------------------------------------------------------


def _gradients(product: Callable, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in operands]
    result = product(*leaves)
    result.backward(torch.ones_like(result))
    return [x.grad for x in leaves]


def _check_backward(mesh, name: str) -> None:
    equation = EQUATIONS.get(name) or ("n", *EQUATIONS[SUMS[name]])
    whole = [integers(_shape(x), i, mesh.device_type) for i, x in enumerate(equation)]
    ours, atens = getattr(torch.ops.sgemm, name), getattr(torch, name)
    expected = _gradients(atens, whole)
    for letter in "bmkn" if "bmm" in name else "mkn":
        placed = [
            [Shard(x.index(letter)) if letter in x else Replicate()] * mesh.ndim for x in equation
        ]
        parts = [_distributed(t, mesh, p) for t, p in zip(whole, placed, strict=True)]
        results = zip(_gradients(ours, parts), _gradients(atens, parts), expected, strict=True)
        for got, aten, right in results:
            _same(got, aten, right, (name, letter))


@pytest.mark.parametrize("name", [*EQUATIONS, *SUMS])
def test_backward(processes: Processes, name: str) -> None:
    processes(_check_backward, name)


MATMULS = [("mk", "kn"), ("bmk", "kn"), ("bmk", "bkn"), ("k", "kn"), ("mk", "k")]


def _check_matmul(mesh, shapes: tuple[str, str]) -> None:
    whole = [integers(_shape(x), i, mesh.device_type) for i, x in enumerate(shapes)]
    for letter in "bmkn":
        if any(len(x) == 3 and x.find(letter) == 1 for x in shapes):
            continue  # older PyTorch can't flatten what is split in the middle
        placed = [
            [Shard(x.index(letter)) if letter in x else Replicate()]
            + [Replicate()] * (mesh.ndim - 1)
            for x in shapes
        ]
        parts = [_distributed(t, mesh, p) for t, p in zip(whole, placed, strict=True)]
        got, expected = torch_sgemm.matmul(*parts), torch.matmul(*whole)
        assert torch.equal(got.full_tensor(), expected), (shapes, letter)
        for ours, right in zip(
            _gradients(torch_sgemm.matmul, parts), _gradients(torch.matmul, whole), strict=True
        ):
            assert torch.equal(ours.full_tensor(), right), (shapes, letter)


@pytest.mark.parametrize("shapes", MATMULS, ids="@".join)
def test_matmul(processes: Processes, shapes: tuple[str, str]) -> None:
    processes(_check_matmul, shapes)


def _check_flattened(mesh) -> None:
    """Rows of a batch that is split along m: what a view makes of that is a strided split."""
    a, b = (integers(_shape(x), i, mesh.device_type) for i, x in enumerate(("bnk", "km")))
    rest = [Replicate()] * (mesh.ndim - 1)
    x, y = _distributed(a, mesh, [Shard(1), *rest]), _distributed(b, mesh, [Replicate(), *rest])
    rows = x.flatten(0, 1)
    _same(torch.ops.sgemm.mm(rows, y), torch.mm(rows, y), a.flatten(0, 1) @ b, rows.placements)
    _same(torch_sgemm.matmul(x, y), torch.matmul(x, y), a @ b, x.placements)


@pytest.mark.skipif(not FLATTENS, reason=f"DTensor of torch {torch.__version__} flattens no split")
def test_flattened_batches(processes: Processes) -> None:
    processes(_check_flattened)


def _check_converted(mesh) -> None:
    """Layers that ``convert`` has changed, by tensor parallelism and by FSDP."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    def model() -> torch.nn.Sequential:
        torch.manual_seed(0)
        layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)
        return torch.nn.Sequential(*layers).to(mesh.device_type)

    torch.manual_seed(1)
    x = torch.randn(6, 8, device=mesh.device_type)
    expected = model()(x)
    split = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallel = parallelize_module(torch_sgemm.convert(model()), mesh, split)
    torch.testing.assert_close(parallel(x), expected)
    sharded = torch_sgemm.convert(model())
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=mesh)
    out = sharded(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert all(p.grad is not None for p in sharded.parameters())


@pytest.mark.parametrize("processes", [("cpu", (2,))], indirect=True, ids=["cpu-2"])
def test_converted_layers(processes: Processes) -> None:
    processes(_check_converted)


def _check_enabled(mesh) -> None:
    whole = [integers(_shape(x), i, mesh.device_type) for i, x in enumerate(("n", "mk", "kn"))]
    placed = [[Replicate()], [Shard(0)], [Replicate()]]
    c, a, b = (
        _distributed(t, mesh, p * mesh.ndim).requires_grad_()
        for t, p in zip(whole, placed, strict=True)
    )
    torch_sgemm.reset_stats()
    with torch_sgemm.enabled(devices=(mesh.device_type,)):
        product, product_sum = a @ b, torch.addmm(c, a, b)
        assert torch_sgemm.stats().hits == {"mm": 1, "addmm": 1}
        (product + product_sum).sum().backward()
        assert torch_sgemm.stats().hits == {"mm": 5, "addmm": 1}
    assert torch_sgemm.stats().fallbacks == {}
    assert product.placements == product_sum.placements == a.placements
    assert torch.equal(product.full_tensor(), whole[1] @ whole[2])
    assert torch.equal(product_sum.full_tensor(), torch.addmm(*whole))
    ones = torch.ones_like(whole[1] @ whole[2])
    assert torch.equal(a.grad.full_tensor(), 2 * ones @ whole[2].T)
    assert torch.equal(b.grad.full_tensor(), 2 * whole[1].T @ ones)


def test_products_of_pytorch_arrive_on_the_parts(processes: Processes) -> None:
    processes(_check_enabled)


# --- registration ------------------------------------------------------------------------------

ONE_PROCESS = """
import sys
import torch
{first}
import torch.distributed as dist
{then}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
from torch.distributed.tensor import distribute_tensor, init_device_mesh
x = distribute_tensor(torch.ones(2, 2), init_device_mesh("cpu", (1,)))
torch.ops.sgemm.mm(torch.ones(2, 2), torch.ones(2, 2))
c = torch.ops.sgemm.mm(x, x)
assert torch.equal(c.full_tensor(), 2 * torch.ones(2, 2))
"""


@pytest.mark.parametrize(
    "first, then",
    [
        ("import torch_sgemm", "import torch.distributed.tensor"),
        ("import torch.distributed.tensor", "import torch_sgemm"),
        ("import torch_sgemm", "torch_sgemm.torch_ops.distributed.register()"),
    ],
    ids=["before", "after", "register"],
)
def test_rules_register_themselves(first: str, then: str) -> None:
    done = python("-c", ONE_PROCESS.format(first=first, then=then))
    assert done.returncode == 0, done.stderr


def test_programs_without_dtensors_do_not_load_them() -> None:
    program = """
import sys, torch, torch_sgemm
x = torch.ones(2, 2, requires_grad=True)
torch_sgemm.matmul(x, x).sum().backward()
torch.ops.sgemm.mm(x, x).sum().backward()
assert "torch.distributed.tensor" not in sys.modules
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
