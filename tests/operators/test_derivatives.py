"""Derivatives of the operators against float64, and ``torch.vmap`` of them against a loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from support.multilinear import assert_accurate, run
from support.operators import BATCH, VARIANTS, K, M, N, good
from support.table import each_device
from torch import Tensor

NAMES = tuple(name for name, _ in VARIANTS[:4])
UTILS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)
FACTORS = ({}, {"alpha": -1.5}, {"beta": 0.5}, {"alpha": 2.0, "beta": -3.0}, {"beta": 0.0})
ADDENDS = ((), (1,), (N,), (1, 1), (1, N), (M, 1), (M, N))

each_name = pytest.mark.parametrize("name", NAMES)
each_kernel = pytest.mark.parametrize("kernel", ["auto", "ladder"])


def operator(name: str, kernel: str) -> Callable[..., Tensor]:
    """``sgemm::name`` for float32, the function of torch that it stands for otherwise."""

    def call(*tensors: Tensor, **factors: float) -> Tensor:
        if tensors[0].dtype == torch.float32:
            return getattr(torch.ops.sgemm, name)(*tensors, kernel, **factors)
        if name == "baddbmm":  # torch's own doesn't broadcast over fewer dimensions everywhere
            c, a, b = tensors
            return factors.get("beta", 1) * c + factors.get("alpha", 1) * (a @ b)
        return getattr(torch, name)(*tensors, **factors)

    return call


def arguments(name: str, device: str, addend: tuple[int, ...] = (M, N)) -> list[Tensor]:
    """Operands of ``name``: A column-major, B a slice of a larger matrix."""
    lead = (BATCH,) if "bmm" in name else ()
    a = torch.randn(*lead, K, M, device=device).mT
    b = torch.randn(*lead, K, 2 * N, device=device)[..., ::2]
    return [torch.randn(addend, device=device), a, b] if "add" in name else [a, b]


def problems(name: str, device: str) -> list[tuple[list[Tensor], dict]]:
    """Operands and factors: with an addend, every factor and every shape that broadcasts."""
    if "add" not in name:
        return [(arguments(name, device), {})]
    shapes = ADDENDS if name == "addmm" else (*ADDENDS, (1, M, N), (BATCH, 1, N), (BATCH, M, N))
    return [
        (arguments(name, device, shape), factors)
        for shape, factors in itertools.product(shapes, FACTORS)
    ]


@each_kernel
@each_name
@each_device
def test_gradients(device: str, name: str, kernel: str) -> None:
    function = operator(name, kernel)
    for tensors, factors in problems(name, device):
        shape = function(*tensors, **factors).shape
        seed = torch.randn(shape, device=device)
        result = run(function, tuple(tensors), factors, seed)
        assert_accurate(function, tuple(tensors), factors, result, seed)


@each_kernel
@each_name
@each_device
def test_double_gradients(device: str, name: str, kernel: str) -> None:
    """Derivatives of a gradient, by the operands and by the gradient that flowed in."""
    function = operator(name, kernel)
    for tensors, factors in problems(name, device):
        shape = function(*tensors, **factors).shape
        seed = torch.randn(shape, device=device)
        for which in range(len(tensors)):

            def gradient(seed: Tensor, *tensors: Tensor, which=which, factors=factors) -> Tensor:
                value = function(*tensors, **factors)
                return torch.autograd.grad(value, tensors[which], seed, create_graph=True)[0]

            result = run(gradient, (seed, *tensors), {})
            assert_accurate(gradient, (seed, *tensors), {}, result)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
@each_device
def test_only_wanted_gradients_are_computed(device: str, wanted: tuple[bool, bool]) -> None:
    a, b = arguments("mm", device)
    a.requires_grad_(wanted[0])
    b.requires_grad_(wanted[1])
    with torch.profiler.profile() as profile:
        torch.ops.sgemm.mm(a, b, "ladder").sum().backward()
    calls = [x for x in profile.events() if x.device_type == torch.autograd.DeviceType.CPU]
    assert sum(x.name.startswith("sgemm::mm[") for x in calls) == 2
    assert (a.grad is not None, b.grad is not None) == wanted


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", [*NAMES, "linear"])
@each_device
def test_only_needed_operands_are_kept(device: str, name: str, wanted: tuple[bool, bool]) -> None:
    """An activation in front of frozen weights is free after the forward."""
    if name == "linear":
        tensors = [torch.randn(M, K, device=device), torch.randn(N, K, device=device)]
    else:
        tensors = list(good(name, "bmm" in name, device).tensors.values())
    *_, a, b = tensors
    a.requires_grad_(wanted[0])
    b.requires_grad_(wanted[1])
    result = getattr(torch.ops.sgemm, name)(*tensors)
    kept_a, kept_b, *_ = result.grad_fn.saved_tensors
    assert (kept_b is b, kept_a is a) == wanted
    assert (kept_b is None, kept_a is None) == (not wanted[0], not wanted[1])


@pytest.mark.parametrize("util", UTILS)
@each_kernel
@each_name
@each_device
def test_opcheck_with_gradients(device: str, name: str, kernel: str, util: str) -> None:
    call = good(name, "bmm" in name, device, kernel=kernel)
    for tensor in call.tensors.values():
        tensor.requires_grad_()
    args, kwargs = call.arguments()
    torch.library.opcheck(call.overload, args, kwargs, test_utils=util)


@pytest.mark.parametrize("written", ["mm_out", "addmm_out", "gemm_"])
def test_outputs_take_no_gradients(written: str) -> None:
    """An output that is written has no derivative.

    It raises an error rather than give a wrong gradient.
    """
    call = good(written, False)
    call.tensors["a"].requires_grad_()
    with pytest.raises(RuntimeError):
        call.run().sum().backward()


# --- vmap -----------------------------------------------------------------------------------

SIZE = 3


def in_dims_of(tensors: list[Tensor]) -> list[tuple[int | None, ...]]:
    """Every choice of a batched dimension, first or last, or none, but at least one."""
    choices = [(None, 0, x.dim()) for x in tensors]
    return [dims for dims in itertools.product(*choices) if any(d is not None for d in dims)]


def batched(x: Tensor, dim: int | None) -> Tensor:
    """``SIZE`` variations of x along a new dimension."""
    if dim is None:
        return x
    return torch.stack([x + i for i in range(SIZE)]).movedim(0, dim)


@each_kernel
@each_name
@each_device
def test_vmap(device: str, name: str, kernel: str) -> None:
    function = operator(name, kernel)
    for tensors, factors in problems(name, device)[:: len(FACTORS) + 1]:
        tensors = [x.round() for x in tensors]  # exact in every kernel
        for dims in in_dims_of(tensors):
            inputs = [batched(x, dim) for x, dim in zip(tensors, dims, strict=True)]
            result = torch.vmap(lambda *x: function(*x, **factors), dims)(*inputs)  # noqa: B023
            pairs = list(zip(inputs, dims, strict=True))
            loop = [
                function(*(x if d is None else x.select(d, i) for x, d in pairs), **factors)
                for i in range(SIZE)
            ]
            assert torch.equal(result, torch.stack(loop)), (dims, factors)


@each_name
@each_device
def test_vmap_nests(device: str, name: str) -> None:
    function = operator(name, "ladder")
    tensors = [batched(batched(x.round(), 0), 1) for x in arguments(name, device)]
    result = torch.vmap(torch.vmap(function, 0), 1, out_dims=1)(*tensors)
    loop = [
        torch.stack([function(*(x[j, i] for x in tensors)) for i in range(SIZE)])
        for j in range(SIZE)
    ]
    assert torch.equal(result, torch.stack(loop))
