"""Bad input: refused before anything is written, by a message that names what is wrong."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.operators import BATCH, VARIANTS, K, M, N, good, variant_id
from support.table import DEVICES, KERNELS, runnable
from torch import Tensor

each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_id)
each_device = pytest.mark.parametrize("device", DEVICES)


def refused(call, *expected: str) -> str:
    """Runs ``call``: it must raise and leave its output alone. Returns the message."""
    before = version = None
    if call.written is not None:
        before, version = call.tensors[call.written].clone(), call.tensors[call.written]._version
    with pytest.raises(RuntimeError) as caught:
        call.run()
    message = str(caught.value)
    assert f"sgemm::{call.op}" in message
    for text in expected:
        assert text in message, message
    if before is not None:
        after = call.tensors[call.written]
        assert torch.equal(after, before), "the output was written"
        assert after._version == version, "autograd takes the output for written"
    return message


def described(name: str, tensor: Tensor) -> tuple[str, ...]:
    """Returns the texts that a message must contain about an argument."""
    return (
        f"'{name}'",
        f"shape {list(tensor.shape)}",
        f"strides {list(tensor.stride())}",
        f"dtype {str(tensor.dtype).removeprefix('torch.')}",
        f"device {tensor.device}",
        "accepted",
    )


def arguments(variant: tuple[str, bool]) -> tuple[str, ...]:
    """Names of an operator's tensor arguments."""
    return tuple(good(*variant).tensors)


def argument_params() -> list:
    """(variant, argument) for every tensor argument of every operator."""
    return [
        pytest.param(variant, name, id=f"{variant_id(variant)}-{name}")
        for variant in VARIANTS
        for name in arguments(variant)
    ]


each_argument = pytest.mark.parametrize(("variant", "name"), argument_params())


SHORT = (torch.float16, torch.bfloat16)
DTYPES = (torch.float64, *SHORT, torch.int32, torch.int64, torch.complex64)


def wrong_dtypes() -> list:
    """Returns (variant, argument, dtype) for every wrong dtype.

    Operands of 16 bits are not among them; see tests/kernels/test_16_bits.py.
    """
    return [
        pytest.param(*given.values, dtype, id=f"{given.id}-{str(dtype).removeprefix('torch.')}")
        for given in argument_params()
        for dtype in DTYPES
        if not (given.values[1] in ("a", "b") and dtype in SHORT)
    ]


@pytest.mark.parametrize(("variant", "name", "dtype"), wrong_dtypes())
@each_device
def test_dtype(device: str, variant: tuple[str, bool], name: str, dtype: torch.dtype) -> None:
    call = good(*variant, device)
    call.tensors[name] = call.tensors[name].to(dtype)
    refused(call, "float32", *described(name, call.tensors[name]))


@each_argument
@each_device
def test_number_of_dimensions(device: str, variant: tuple[str, bool], name: str) -> None:
    call = good(*variant, device)
    addend = name == "c" and not call.op.startswith("gemm_")
    if not addend:  # an addend of fewer dimensions broadcasts
        call.tensors[name] = call.tensors[name][0]
        # gemm_ takes its number of dimensions from a.
        blamed = name if not (call.op == "gemm_" and name == "a" and variant[1]) else "b"
        refused(call, *described(blamed, call.tensors[blamed]))
    call = good(*variant, device)
    call.tensors[name] = call.tensors[name][None]
    blamed = name if not (call.op == "gemm_" and name == "a" and not variant[1]) else "b"
    refused(call, *described(blamed, call.tensors[blamed]))


@each_variant
@each_device
def test_inner_size(device: str, variant: tuple[str, bool]) -> None:
    call = good(*variant, device)
    call.tensors["b"] = torch.randn(*call.tensors["b"].shape[:-2], K + 1, N, device=device)
    message = refused(call, *described("b", call.tensors["b"]))
    assert f"shape {list(call.tensors['a'].shape)}" in message


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v[1]], ids=variant_id)
@each_device
def test_batch_size(device: str, variant: tuple[str, bool]) -> None:
    for size in (1, BATCH + 1):  # bmm doesn't broadcast, as in torch
        call = good(*variant, device)
        call.tensors["b"] = torch.randn(size, K, N, device=device)
        refused(call, *described("b", call.tensors["b"]))


@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if v[0].endswith(("_out", "gemm_"))], ids=variant_id
)
@each_device
def test_output_shape(device: str, variant: tuple[str, bool]) -> None:
    lead = (BATCH,) if variant[1] else ()
    for shape in ((*lead, M, N + 1), (*lead, N, M), (*lead, 0, N), (*lead, M, 1)):
        call = good(*variant, device)
        call.tensors[call.written] = torch.full(shape, 7.0, device=device)
        message = refused(call, *described(call.written, call.tensors[call.written]))
        assert str([*lead, M, N]) in message


ADDENDS = [v for v in VARIANTS if v[0].startswith(("addmm", "baddbmm"))]


@pytest.mark.parametrize("variant", ADDENDS, ids=variant_id)
@each_device
def test_addend_that_does_not_broadcast(device: str, variant: tuple[str, bool]) -> None:
    for shape in ((M, N + 1), (M + 1, N), (M,), (2,), (0, N)):
        call = good(*variant, device)
        call.tensors["c"] = torch.full(shape, 7.0, device=device)
        message = refused(call, *described("c", call.tensors["c"]))
        assert "broadcast" in message


WRITERS = [v for v in VARIANTS if v[0].endswith(("_out", "gemm_"))]
each_writer = pytest.mark.parametrize("variant", WRITERS, ids=variant_id)


@each_writer
@each_device
def test_output_that_overlaps_itself(device: str, variant: tuple[str, bool]) -> None:
    call = good(*variant, device)
    shape = call.tensors[call.written].shape
    row = torch.full((N,), 7.0, device=device)
    windows = torch.full((64,), 7.0, device=device)
    for out in (row.expand(shape), windows.as_strided(shape, [1] * len(shape))):
        call = good(*variant, device)
        call.tensors[call.written] = out
        refused(call, *described(call.written, call.tensors[call.written]))


@pytest.mark.parametrize("argument", ["a", "b"])
@each_writer
@each_device
def test_output_that_aliases_an_input(
    device: str, variant: tuple[str, bool], argument: str
) -> None:
    """The very same memory, and an overlap of one element at either end."""
    call = good(*variant, device)
    out_count = call.tensors[call.written].numel()
    in_shape = call.tensors[argument].shape
    in_count = in_shape.numel()
    for distance in (0, 1, -1, out_count - 1, -(in_count - 1)):
        memory = torch.full((2 * in_count + 2 * out_count,), 7.0, device=device)
        call = good(*variant, device)
        call.tensors[call.written] = memory[in_count:][:out_count].view(
            call.tensors[call.written].shape
        )
        call.tensors[argument] = memory[in_count + distance :][:in_count].view(in_shape)
        message = refused(call, *described(call.written, call.tensors[call.written]))
        assert f"'{argument}'" in message


@each_writer
@each_device
def test_output_beside_an_input_is_accepted(device: str, variant: tuple[str, bool]) -> None:
    """Memory that only touches does not overlap; different columns of a matrix don't either."""
    lead = (BATCH,) if variant[1] else ()
    call = good(*variant, device)
    expected = good_result(call)
    count = expected.numel()
    memory = torch.cat([call.tensors["a"].flatten(), torch.full((count,), 7.0, device=device)])
    call.tensors["a"] = memory[:-count].view_as(call.tensors["a"])
    call.tensors[call.written] = memory[-count:].view_as(expected)
    assert torch.allclose(call.run(), expected, rtol=1e-5, atol=1e-5)
    if lead:
        return
    both = torch.full((M, K + N), 7.0, device=device)
    both[:, :K] = call.tensors["a"]
    call.tensors["a"], call.tensors[call.written] = both[:, :K], both[:, K:]
    assert torch.allclose(call.run(), expected, rtol=1e-5, atol=1e-5)


def good_result(call) -> Tensor:
    """Returns the expected result of ``call`` with default options."""
    product = call.tensors["a"] @ call.tensors["b"]
    return product + call.tensors["c"] if call.op.startswith(("addmm", "baddbmm")) else product


@pytest.mark.parametrize("variant", [v for v in ADDENDS if v[0].endswith("_out")], ids=variant_id)
@each_device
def test_addend_and_output(device: str, variant: tuple[str, bool]) -> None:
    """C may be the output itself; any other overlap of the two is refused."""
    call = good(*variant, device)
    expected = good_result(call)
    call.tensors["out"] = call.tensors["c"]
    assert torch.allclose(call.run(), expected, rtol=1e-5, atol=1e-5)
    call = good(*variant, device)
    memory = torch.full((expected.numel() + 1,), 7.0, device=device)
    call.tensors["c"] = memory[1:].view_as(expected)
    call.tensors["out"] = memory[:-1].view_as(expected)
    refused(call, *described("out", call.tensors["out"]), "'c'")
    call = good(*variant, device)
    call.tensors["c"] = call.tensors["out"][..., :1]  # broadcasts, and is overwritten meanwhile
    refused(call, *described("out", call.tensors["out"]), "'c'")


@each_variant
@each_device
def test_factors_beyond_float32(device: str, variant: tuple[str, bool]) -> None:
    """Every row refuses them, as PyTorch's kernels do; infinity is a float32."""
    if "c" not in good(*variant).tensors:
        pytest.skip("takes no factors")
    for kernel, name in itertools.product(("auto", "ladder"), ("alpha", "beta")):
        factor = {name: -1e300}
        refused(good(*variant, device, kernel=kernel, **factor), f"'{name}'", "-1e+300", "accepted")
        factor = {name: -math.inf}
        assert not good(*variant, device, kernel=kernel, **factor).run().isfinite().any()


@each_variant
@each_device
def test_unknown_kernel(device: str, variant: tuple[str, bool]) -> None:
    """The message lists the nearest names: the one that was meant is among them."""
    for row in KERNELS:
        wrong = row.name[:2] + row.name[3:]  # a letter left out
        refused(good(*variant, device, kernel=wrong), f'kernel "{wrong}"', f'"{row.name}"')
    for wrong in ("", "AUTO", "laddr", "no_such_kernel_at_all", "naive_32 "):
        refused(good(*variant, device, kernel=wrong), f'"{wrong}" is unknown', "accepted")


@each_variant
@each_device
def test_none_in_the_place_of_a_tensor(device: str, variant: tuple[str, bool]) -> None:
    for name in good(*variant).tensors:
        if name not in ("a", "b", "c"):
            continue
        call = good(*variant, device)
        call.tensors[name] = None
        with pytest.raises(RuntimeError, match=rf"sgemm::{call.op}: argument '{name}' is None"):
            call.run()


def elsewhere(device: str) -> list[str]:
    """Rows that tensors on ``device`` can't use."""
    return [row.name for row in KERNELS if row not in runnable(device)]


@each_variant
@each_device
def test_row_that_the_device_cannot_use(device: str, variant: tuple[str, bool]) -> None:
    names = elsewhere(device)
    if not names:
        pytest.skip(f"every row of this build runs on {device}")
    for name in names:
        refused(good(*variant, device, kernel=name), "'kernel'", name)


@each_variant
@each_device
def test_row_that_takes_small_problems_only(device: str, variant: tuple[str, bool]) -> None:
    """Each of m, n and k one above the limit: nothing is computed, and the limit is named."""
    rows = [row for row in runnable(device) if row.max_size is not None]
    if not rows:
        pytest.skip(f"no row on {device} has a limit")
    lead = (BATCH,) if variant[1] else ()
    for row in rows:
        for position in range(3):
            m, n, k = (row.max_size + 1 if i == position else 2 for i in range(3))
            call = good(*variant, device, kernel=row.name)
            shapes = {"a": (*lead, m, k), "b": (*lead, k, n)}
            for name in call.tensors:
                shape = shapes.get(name, (*lead, m, n))
                call.tensors[name] = torch.full(shape, 7.0, device=device)
            message = refused(call, "'kernel'", row.name, f"m, n and k up to {row.max_size}")
            assert str([*lead, m, k]) in message and str([*lead, k, n]) in message


@pytest.mark.gpu
@each_argument
def test_mixed_devices(variant: tuple[str, bool], name: str) -> None:
    for device, other in (("cuda", "cpu"), ("cpu", "cuda")):
        call = good(*variant, device)
        call.tensors[name] = call.tensors[name].to(other)
        before = None if call.written is None else call.tensors[call.written].clone()
        message = ""
        with pytest.raises(RuntimeError) as caught:
            call.run()
        message = str(caught.value)
        assert f"sgemm::{call.op}" in message
        assert "cuda:0" in message and "cpu" in message and "accepted" in message, message
        if before is not None:
            assert torch.equal(call.tensors[call.written], before)


@each_variant
def test_fakes_refuse_wrong_shapes_too(variant: tuple[str, bool]) -> None:
    """A model that can't run must not trace."""
    call = good(*variant, "meta")
    call.tensors["b"] = torch.empty(*call.tensors["b"].shape[:-2], K + 1, N, device="meta")
    with pytest.raises(RuntimeError):
        call.run()


@pytest.mark.parametrize("name", ["mm_out", "addmm_out", "gemm_"])
def test_fakes_check_what_is_written(name: str) -> None:
    a, b = torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")
    operator = getattr(torch.ops.sgemm, name)
    for bad in (
        torch.empty(7, 7, device="meta"),
        torch.empty(3, 5),
        torch.empty(3, 5, device="meta", dtype=torch.float64),
    ):
        with pytest.raises(RuntimeError, match=f"sgemm::{name}: '(out|c)' has shape"):
            if name == "gemm_":
                operator(bad, a, b)
            else:
                operator(*([torch.empty(5, device="meta")] if "add" in name else []), a, b, out=bad)


def test_fakes_check_addends_and_devices() -> None:
    a, b = torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta")
    for bad in (torch.empty(3, 5), torch.empty(2, 3, 5, device="meta")):
        with pytest.raises(RuntimeError, match="sgemm::addmm: 'c' has shape"):
            torch.ops.sgemm.addmm(bad, a, b)
    row = torch.empty(1, 4, device="meta")
    with pytest.raises(RuntimeError, match="sgemm::addmm: 'c' has shape"):
        torch.ops.sgemm.addmm(torch.empty(3, 5, device="meta"), row, b)
    with pytest.raises(RuntimeError, match="on one device"):
        torch.ops.sgemm.linear(torch.ones(3, 4), torch.ones(5, 4), torch.empty(5, device="meta"))


def test_vmapped_addends_are_checked() -> None:
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    with pytest.raises(RuntimeError, match="argument 'c' has 3 dimensions in each"):
        torch.func.vmap(lambda a, b: torch.ops.sgemm.addmm(torch.ones(2, 3, 5), a, b))(a, b)
    with pytest.raises(RuntimeError, match=r"'bias' has shape \[1\] under vmap"):
        torch.func.vmap(lambda w: torch.ops.sgemm.linear(torch.ones(3, 4), w, torch.ones(1)))(
            torch.ones(2, 5, 4)
        )


@pytest.mark.parametrize("activation", ["tanh", ""])
def test_activations_are_checked_where_a_gradient_is_wanted(activation: str) -> None:
    x, weight = torch.ones(3, 4, requires_grad=True), torch.ones(5, 4)
    with pytest.raises(RuntimeError, match="sgemm::linear: argument 'activation' is"):
        torch.ops.sgemm.linear(x, weight, None, activation)
    with pytest.raises(RuntimeError, match="sgemm::linear: argument 'activation' is"):
        torch.func.vmap(lambda w: torch.ops.sgemm.linear(x, w, None, activation))(weight[None])


def test_outputs_beside_their_operands() -> None:
    """Outputs may be other columns of the operands' matrix or batch.

    They are refused if they share memory.
    """
    matrix = torch.arange(24.0).reshape(6, 4)
    expected = matrix[:, :3] @ torch.ones(3, 1)
    torch.ops.sgemm.mm_out(matrix[:, :3], torch.ones(3, 1), out=matrix[:, 3:])
    assert torch.equal(matrix[:, 3:], expected)
    batch = torch.arange(60.0).reshape(2, 3, 10)
    expected = batch[:, :, :3] @ torch.ones(2, 3, 3)
    torch.ops.sgemm.bmm_out(batch[:, :, :3], torch.ones(2, 3, 3), out=batch[:, :, 4:7])
    assert torch.equal(batch[:, :, 4:7], expected)
    for a, out in (
        (batch[:, :, :3], batch[:, :, 2:5]),
        (batch[:, :, 5:8], batch[:, :, 3:6]),
        (batch.transpose(0, 2)[:3], batch.permute(2, 1, 0)[:3, :, :2]),
    ):
        with pytest.raises(RuntimeError, match="shares no memory"):
            torch.ops.sgemm.bmm_out(a, torch.ones(a.shape[0], a.shape[2], out.shape[2]), out=out)
