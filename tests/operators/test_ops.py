"""The operators as PyTorch sees them: schemas, fakes, tracing, broadcasting, zero sizes."""

from __future__ import annotations

import pytest
import torch
from support.data import integers
from support.operators import BATCH, VARIANTS, K, M, N, good, variant_id
from support.table import DEVICES, Kernel, selectors
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torch_sgemm

each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_id)
each_device = pytest.mark.parametrize("device", DEVICES)
UTILS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


@pytest.mark.parametrize("util", UTILS)
@pytest.mark.parametrize("kernel", ["auto", "ladder"])
@each_variant
@each_device
def test_opcheck(device: str, variant: tuple[str, bool], kernel: str, util: str) -> None:
    call = good(*variant, device, kernel=kernel)
    args, kwargs = call.arguments()
    torch.library.opcheck(call.overload, args, kwargs, test_utils=util)


@pytest.mark.parametrize("layouts", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("variant", VARIANTS[:4], ids=variant_id)
@each_device
def test_fake_equals_real(device: str, variant: tuple[str, bool], layouts: str) -> None:
    """Sizes, strides, dtype and device of what an operator returns."""
    call = good(*variant, device)
    for name, layout in zip("ab", layouts, strict=True):
        if layout == "T":
            tensor = call.tensors[name]
            call.tensors[name] = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    real = call.run()
    with FakeTensorMode() as mode:
        args, kwargs = call.arguments()
        fake = call.overload(*map(mode.from_tensor, args), **kwargs)
    assert fake.shape == real.shape
    assert fake.stride() == real.stride()
    assert fake.dtype == real.dtype and fake.device == real.device


@pytest.mark.parametrize("variant", VARIANTS[:4], ids=variant_id)
def test_meta_tensors(variant: tuple[str, bool]) -> None:
    result = good(*variant, "meta").run()
    assert result.device.type == "meta"
    assert tuple(result.shape[-2:]) == (M, N)


@each_variant
@each_device
def test_matches_torch(device: str, variant: tuple[str, bool]) -> None:
    """Defaults and scalars mean what they mean in torch."""
    for options in ({}, {"alpha": 2.0}, {"beta": -0.5}, {"alpha": 0.5, "beta": 3.0}):
        call = good(*variant, device)
        if "c" not in call.tensors and options:
            continue
        call.options.update(options)
        a, b = call.tensors["a"], call.tensors["b"]
        expected = options.get("alpha", 1) * (a @ b)
        if "c" in call.tensors:
            beta = options.get("beta", 0 if call.op == "gemm_" else 1)
            expected = expected + beta * call.tensors["c"]
        torch.testing.assert_close(call.run(), expected)


@each_variant
def test_out_variants_return_nothing(variant: tuple[str, bool]) -> None:
    call = good(*variant)
    args, kwargs = call.arguments()
    returned = call.overload(*args, **kwargs)
    assert (returned is None) == (call.written is not None)


def test_every_operator_reaches_the_row(row: Kernel, device: str) -> None:
    for variant in VARIANTS:
        call = good(*variant, device, kernel=row.name)
        a, b = (integers(call.tensors[name].shape, 3, device) for name in "ab")
        call.tensors.update(a=a, b=b)
        expected = a.double() @ b.double()
        if "c" in call.tensors and call.op != "gemm_":
            expected += 7
        assert torch.equal(call.run().double(), expected), call.op


@pytest.mark.parametrize("shape", [(), (1,), (N,), (1, 1), (1, N), (M, 1), (M, N)], ids=str)
def test_addend_broadcasts(row: Kernel, device: str, shape: tuple[int, ...]) -> None:
    a, b, c = (integers(s, i, device) for i, s in enumerate(((M, K), (K, N), shape)))
    result = torch.ops.sgemm.addmm(c, a, b, beta=2, kernel=row.name)
    assert torch.equal(result, torch.addmm(c, a, b, beta=2))
    a, b = integers((BATCH, M, K), 1, device), integers((BATCH, K, N), 2, device)
    for lead in ((), (1,), (BATCH,)):
        if lead and len(shape) < 2:
            continue
        c = integers((*lead, *shape), 3, device)
        result = torch.ops.sgemm.baddbmm(c, a, b, beta=2, kernel=row.name)
        assert torch.equal(result, torch.baddbmm(c.expand(BATCH, M, N), a, b, beta=2))


ZEROS = ((0, N, K), (M, 0, K), (M, N, 0), (0, 0, K), (0, N, 0), (M, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("shape", ZEROS, ids=str)
def test_zero_sizes(row: Kernel, device: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = (integers(s, i, device) for i, s in enumerate(((m, k), (k, n), (m, n))))
    ops, options = torch.ops.sgemm, {"kernel": row.name}
    assert torch.equal(ops.mm(a, b, **options), torch.mm(a, b))
    assert torch.equal(ops.addmm(c, a, b, beta=2, **options), torch.addmm(c, a, b, beta=2))
    for batch in (0, 2):
        a3, b3, c3 = (x.expand(batch, -1, -1) for x in (a, b, c))
        assert torch.equal(ops.bmm(a3, b3, **options), torch.bmm(a3, b3))
        assert torch.equal(
            ops.baddbmm(c3, a3, b3, beta=2, **options), torch.baddbmm(c3, a3, b3, beta=2)
        )
    out = torch.full((m, n), float("nan"), device=device)
    ops.mm_out(a, b, out=out, **options)
    assert torch.equal(out, torch.mm(a, b))


@pytest.mark.parametrize("kernel", ["auto", "ladder"])
@each_device
def test_a_profiler_shows_the_choice(device: str, kernel: str) -> None:
    """Operator, row and sizes, within the operator's own range."""
    a, b = integers((3, 4), 1, device), integers((4, 5), 2, device)
    a3, b3 = a.expand(2, 3, 4), b.expand(2, 4, 5)
    with torch.profiler.profile() as profile:
        torch.ops.sgemm.mm(a, b, kernel)
        torch.ops.sgemm.addmm(b[0], a, b, kernel)
        torch.ops.sgemm.bmm(a3, b3, kernel)
    row = torch_sgemm.explain(a, b, kernel=kernel).chosen
    parents = {event.name: event.cpu_parent for event in profile.events()}
    assert parents[f"sgemm::mm[{row} 3x5x4]"].name == "sgemm::mm"
    assert any(name.startswith("sgemm::addmm[") for name in parents)
    [batched] = [name for name in parents if name.startswith("sgemm::bmm[")]
    assert batched.endswith(" 2x3x5x4]")


@each_device
def test_families_and_auto_give_the_product(device: str) -> None:
    a, b = integers((70, 40), 1, device), integers((40, 50), 2, device)
    for kernel in selectors(device):
        result = torch.ops.sgemm.mm(a, b, kernel=kernel)
        assert torch.equal(result.double(), a.double() @ b.double()), kernel


@pytest.mark.parametrize("kernel", ["auto", "ladder"])
@each_device
def test_compile_fullgraph(device: str, kernel: str) -> None:
    """One graph with functional, in-place and out operators, also with dynamic sizes."""

    def model(c, a, b):
        x = torch.ops.sgemm.mm(a, b, kernel=kernel)
        out = torch.empty_like(x)
        torch.ops.sgemm.mm_out(a, b, kernel=kernel, out=out)
        y = torch.ops.sgemm.addmm(c, a, b, beta=2, kernel=kernel)
        torch.ops.sgemm.gemm_(x, a, b, alpha=3, beta=1, kernel=kernel)
        return x + out - y

    compiled = torch.compile(model, fullgraph=True)
    for m in (9, 12, 15):
        a, b = integers((m, 8), 1, device), integers((8, 7), 2, device)
        c = integers((7,), 3, device)
        assert torch.equal(compiled(c, a, b), model(c, a, b))


@each_device
def test_compiled_batches(device: str) -> None:
    def model(c, a, b):
        out = torch.empty_like(c)
        torch.ops.sgemm.baddbmm_out(c, a, b, out=out)
        return out - torch.ops.sgemm.bmm(a, b)

    a, b = integers((3, 4, 5), 1, device), integers((3, 5, 6), 2, device)
    c = integers((3, 4, 6), 3, device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(c, a, b), c)


def test_traces_have_nothing_but_the_operator() -> None:
    """The check whether a derivative is wanted runs outside of the traced code."""

    def program(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        torch.ops.sgemm.mm_out(a, b, out=out)
        return torch.ops.sgemm.mm(a, out)

    fakes = FakeTensorMode()
    with fakes, tracing(TracingContext(fakes)):
        graph = make_fx(program)(*(torch.empty(3, 3) for _ in range(3))).graph
    calls = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert calls == ["sgemm.mm_out.default", "sgemm.mm.default"]
