"""Gradients of torch_sgemm.attention, by each kernel, against float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from support.attention import exact, operands
from support.attention_gradients import (
    WAYS,
    Way,
    assert_exact,
    calls,
    check,
    gradients,
    launches,
    reference_kernel,
    way_of,
)
from torch import Tensor

import torch_sgemm
from benchmarks.attention_gradients import Reference, gradients_in_float64

DEPTHS = (8, 16, 40, 64, 72, 96, 128)
LENGTHS = (1, 7, 33, 64, 65, 127, 128, 129, 200)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch: pytest.MonkeyPatch) -> Way:
    return way_of(request.param, monkeypatch)


def with_grad(device: str, *sizes: int, groups: int | None = None) -> list[Tensor]:
    """Returns an output's gradient, query, key and value of sizes (B, H, L, S, D)."""
    return [operands(device, *sizes, seed=1)[0], *operands(device, *sizes, groups=groups)]


def test_the_closed_form_is_autograd_s() -> None:
    """The references of all tests here, with every option."""
    grad, q, k, v = (x.double() for x in with_grad("cpu", 2, 6, 9, 11, 8, groups=2))
    mask = torch.randn(6, 1, 11, dtype=torch.float64)
    mask[2, 0, 5:] = -math.inf
    causal, boolean = torch.ones(9, 11, dtype=torch.bool).tril(), torch.rand(9, 11) > 0.3
    boolean[4] = False
    for options in ({"mask": mask}, {"mask": boolean}, {"mask": causal}, {"scale": -0.3}):
        leaves = {"query": q, "key": k, "value": v}
        if options.get("mask") is mask:
            leaves["mask"] = mask
        for x in leaves.values():
            x.requires_grad_()
        expected = torch.autograd.grad(exact(q, k, v, **options), list(leaves.values()), grad)
        found = gradients_in_float64(grad, q, k, v, **options)
        assert set(found) == set(leaves)
        for x, y in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(x.exact, y)
            assert bool((x.exact.abs() <= x.magnitude * (1 + 1e-12)).all())
    same = gradients_in_float64(grad, q, k, v, is_causal=True)["key"].exact
    torch.testing.assert_close(gradients_in_float64(grad, q, k, v, causal)["key"].exact, same)


# ---- values


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_all_depths(way: Way, depth: int, causal: bool) -> None:
    check(way, *with_grad(way.device, 2, 3, 130, 150, depth), is_causal=causal)


@pytest.mark.parametrize(("depth", "of_values"), [(64, 128), (128, 32), (8, 72), (96, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_values_of_another_depth(way: Way, depth: int, of_values: int, causal: bool) -> None:
    _, q, k, _ = with_grad(way.device, 2, 3, 130, 150, depth)
    grad, _, _, v = with_grad(way.device, 2, 3, 130, 150, of_values)
    check(way, grad, q, k, v, is_causal=causal)


@pytest.mark.parametrize(("rows", "keys"), list(itertools.product(LENGTHS, LENGTHS)))
def test_all_lengths(way: Way, rows: int, keys: int) -> None:
    for depth in (32, 64, 128):
        parts = with_grad(way.device, 1, 2, rows, keys, depth)
        check(way, *parts)
        check(way, *parts, is_causal=True)


@pytest.mark.parametrize("shape", [(200, 151), (1, 151), (200, 1), (3, 1, 151), (2, 1, 200, 151)])
@pytest.mark.parametrize("kind", ["bool", "float", "minus_inf"])
@pytest.mark.parametrize("depth", [64, 128])
def test_masks(way: Way, shape: tuple[int, ...], kind: str, depth: int) -> None:
    """Gradients of a mask have its own shape; keys that take no part get zeros."""
    grad, q, k, v = with_grad(way.device, 2, 3, 200, 151, depth)
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(way.device)
    if kind != "float":
        mask = mask > 0
        if shape[-1] > 1:
            mask[..., 100:130] = False
        if shape[-2] > 5 and shape[-1] > 1:
            mask[..., 5, :] = False
    if kind == "minus_inf":
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -math.inf)
    check(way, grad, q, k, v, mask)
    if kind != "float" and shape[-1] > 1:
        found = gradients(way, grad, q, k, v, mask)
        assert not found["key"][:, :, 100:130].any() and not found["value"][:, :, 100:130].any()
        if shape[-2] > 5:
            assert not found["query"][:, :, 5].any()


def test_masks_of_any_strides(way: Way) -> None:
    grad, q, k, v = with_grad(way.device, 2, 3, 129, 131, 64)
    base = operands(way.device, 2, 3, 300, 300, 264)[0]
    for mask in (base[:, :, :129, :131], base.mT[:, :, :129, :131], base[..., :258:2, 3:265:2]):
        check(way, grad, q, k, v, mask[..., :129, :131])


def test_all_rows_masked_out(way: Way) -> None:
    grad, q, k, v = with_grad(way.device, 1, 2, 70, 130, 64)
    for mask in (torch.zeros(70, 130) > 0, torch.full((70, 130), -math.inf)):
        found = gradients(way, grad, q, k, v, mask.to(way.device))
        assert all(bool((x == 0).all()) for x in found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys", "depth"), [(64, 64, 64), (33, 50, 40), (1, 64, 8)])
def test_many_short_heads_have_the_bits_of_few(
    rows: int, keys: int, depth: int, causal: bool
) -> None:
    """Many take the kernel that keeps their planes in shared memory; 791 leave a warpgroup over."""
    way = Way("cuda", "split")
    many = with_grad("cuda", 1, 791, rows, keys, depth)
    many[1][:, 3] *= 2.0**40  # is computed again by multiply-adds
    found = gradients(way, *many, is_causal=causal)
    assert takes_resident(way, *many, is_causal=causal)
    for first in (0, 786):
        few = [x[:, first : first + 5].contiguous() for x in many]
        expected = gradients(way, *few, is_causal=causal)
        assert not takes_resident(way, *few, is_causal=causal)
        for name, x in found.items():
            torch.testing.assert_close(x[:, first : first + 5], expected[name], rtol=0, atol=0)


def takes_resident(way: Way, *tensors: Tensor, **options) -> bool:
    return any("differentiate_resident" in name for name in launches(way, *tensors, **options))


@pytest.mark.gpu
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("depth", [64, 128])
def test_what_takes_no_part_may_hold_anything(depth: int, bad: float) -> None:
    way = Way("cuda", "split")
    grad, q, k, v = with_grad("cuda", 1, 2, 130, 200, depth)
    mask = torch.ones(130, 200, dtype=torch.bool, device="cuda")
    mask[:, 100:110] = mask[3, 40:] = False
    expected = gradients_in_float64(grad, q, k, v, mask)
    keys, values = k.clone(), v.clone()
    keys[:, :, 104], values[:, :, 107] = bad, bad
    found = gradients(way, grad, q, keys, values, mask)
    for name, x in found.items():
        assert_exact(x, expected[name])
    # A query's gradient reaches its own keys, and no others of their blocks.
    grad[:, :, 3] = bad
    found = gradients(way, grad, q, k, v, mask)
    others = torch.arange(130, device="cuda") != 3
    assert_exact(
        found["query"][:, :, others], Reference(*(x[:, :, others] for x in expected["query"]))
    )
    assert not found["query"][:, :, 3].isfinite().any()
    for name in ("key", "value"):
        assert_exact(found[name][:, :, 40:], Reference(*(x[:, :, 40:] for x in expected[name])))
        assert not found[name][:, :, :40].isfinite().any()


def test_a_mask_of_the_least_float_is_not_minus_infinity(way: Way) -> None:
    """A row of it has equal weights; its largest elements count as equal."""
    grad, q, k, v = with_grad(way.device, 1, 2, 70, 130, 64)
    mask = torch.zeros(70, 130, device=way.device)
    mask[:, 100:] = torch.finfo(torch.float32).min
    found = gradients(way, grad, q, k, v, mask, wanted="qkv")
    expected = gradients_in_float64(grad, q, k, v, mask)
    for name, x in found.items():
        assert_exact(x, expected[name])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_groups_of_heads(way: Way, groups: int, causal: bool) -> None:
    check(way, *with_grad(way.device, 2, 6, 130, 150, 64, groups=groups), is_causal=causal)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.3, -0.3])
def test_scales(way: Way, scale: float) -> None:
    check(way, *with_grad(way.device, 1, 2, 130, 150, 64), scale=scale)


@pytest.mark.parametrize("wanted", ["q", "k", "v", "m", "qk", "qv", "kv", "qm", "kvm", "qkvm"])
def test_only_what_is_asked_for(way: Way, wanted: str) -> None:
    grad, q, k, v = with_grad(way.device, 2, 3, 130, 150, 64)
    mask = torch.randn(130, 150, generator=torch.Generator().manual_seed(1)).to(way.device)
    found = gradients(way, grad, q, k, v, mask, wanted=wanted)
    # PyTorch's fused backward for CPUs has no gradient of the mask; products give other bits.
    most = "qkvm" if "m" in wanted or way.kernel == "split" else "qkv"
    everything = gradients(way, grad, q, k, v, mask, wanted=most)
    assert [name[0] for name in found] == list(wanted)
    assert all(torch.equal(x, everything[name]) for name, x in found.items())


def test_gradients_of_some_by_name(way: Way) -> None:
    """torch.autograd.grad leaves out tensors that require a gradient."""
    grad, *parts = with_grad(way.device, 2, 3, 33, 40, 64)
    parts = [x.requires_grad_() for x in parts]
    out = torch_sgemm.attention(*parts, kernel=way.kernel)
    (found,) = torch.autograd.grad(out, parts[2], grad)
    assert_exact(found, gradients_in_float64(grad, *(x.detach() for x in parts))["value"])


def test_the_reference_computes_only_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    way = reference_kernel(monkeypatch)
    grad, q, k, v = with_grad("cpu", 2, 3, 33, 40, 64)
    mask = torch.randn(33, 40)
    for wanted in ("q", "k", "v", "m", "qkvm"):
        gradients(way, grad, q, k, v, mask, wanted=wanted)
        assert calls.pop() == ("q" in wanted, bool({"k", "v"} & set(wanted)), "m" in wanted)
    gradients(way, grad, q, k, v, mask > 0)
    assert calls.pop() == (True, True, False)
    for kernel, count in (("aten", 0), ("auto", 1), ("split", 1)):
        gradients(Way("cpu", kernel), grad, q, k, v)
        assert len(calls) == count
        calls.clear()


# ---- layouts


def test_strides(way: Way) -> None:
    grad, *parts = with_grad(way.device, 2, 3, 130, 150, 64)

    def laid_out(x: Tensor) -> list[Tensor]:
        by_rows = x.transpose(1, 2).contiguous().transpose(1, 2)
        wide = torch.cat([x, x], -1)[..., :64]
        odd = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
        return [by_rows, wide, odd, x.mT.contiguous().mT]

    for variants in zip(*map(laid_out, (grad, *parts)), strict=True):
        check(way, *variants)
    shared = [x[:1].expand(2, -1, -1, -1) for x in (grad, *parts)]
    check(way, *shared)


def test_an_expanded_gradient(way: Way) -> None:
    """That of sum() has strides 0."""
    _, q, k, v = with_grad(way.device, 2, 3, 130, 150, 64)
    found = gradients(way, None, q, k, v)
    expected = gradients_in_float64(torch.ones_like(q), q, k, v)
    for name, x in found.items():
        assert_exact(x, expected[name])


def test_gradients_lie_as_queries_of_models_do(way: Way) -> None:
    """As (B, L, H, D), so that a following transpose and view copy nothing."""
    grad, q, k, v = with_grad(way.device, 2, 3, 130, 150, 64)
    for x in gradients(way, grad, q, k, v).values():
        assert x.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("sizes", [(0, 3, 4, 5, 8), (2, 3, 0, 5, 8)])
def test_empty_results(sizes: tuple[int, ...]) -> None:
    grad, q, k, v = with_grad("cpu", *sizes)
    for name, x in gradients(Way("cpu", "auto"), grad, q, k, v).items():
        assert x.shape == {"query": q, "key": k, "value": v}[name].shape and not x.any()


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [64, 128])
def test_the_same_call_has_the_same_bits(depth: int) -> None:
    """Beside another stream that keeps the GPU busy."""
    way = Way("cuda", "split")
    grad, q, k, v = with_grad("cuda", 4, 16, 500, 500, depth)
    mask = operands("cuda", 1, 1, 500, 1, 500, seed=2)[0]
    busy, x = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda")
    for args, options in (((), {}), ((), {"is_causal": True}), ((mask,), {})):
        first = gradients(way, grad, q, k, v, *args, **options)
        for _ in range(10):
            with torch.cuda.stream(busy):
                x @ x
            again = gradients(way, grad, q, k, v, *args, **options)
            assert all(torch.equal(y, again[name]) for name, y in first.items())


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "keys", "depth"), [(33, 65, 40), (129, 127, 64), (200, 72, 128)])
def test_nothing_outside_is_written(rows: int, keys: int, depth: int) -> None:
    """Neighbours of the results' memory keep their values."""
    grad, q, k, v = with_grad("cuda", 2, 3, rows, keys, depth)
    mask = torch.randn(2, 3, rows, keys, device="cuda")
    way = Way("cuda", "split")
    expected = gradients(way, grad, q, k, v, mask)
    sizes = {x.numel() for x in expected.values()}
    canaries = [torch.full((n,), 7.0, device="cuda") for n in sizes for _ in range(64)]
    del canaries[::2]  # results go where these were
    found = gradients(way, grad, q, k, v, mask)
    assert all(bool((x == 7).all()) for x in canaries)
    assert all(torch.equal(x, expected[name]) for name, x in found.items())


# ---- wrong arguments


@pytest.mark.gpu
def test_the_device_operator_checks_what_it_gets() -> None:
    grad, q, k, v = with_grad("cuda", 2, 3, 4, 5, 8)
    out, logsumexp = torch.ops.sgemm.attention(q, k, v, kernel="split")
    good = {"grad": grad, "query": q, "key": k, "value": v, "attn_mask": None, "out": out,
            "logsumexp": logsumexp}  # fmt: skip
    rest = False, 1.0, True, True, True
    for name, bad in [
        ("key", k[:, :2]),
        ("value", v[:, :, :4]),
        ("key", k.mT.contiguous().mT),
        ("query", q[..., :4]),
        ("value", v.double()),
        ("grad", grad[:, :, :3]),
        ("grad", grad.double()),
        ("out", out[:, :2]),
        ("logsumexp", logsumexp[..., :4]),
        ("attn_mask", q.new_ones(4, 5)),
        ("attn_mask", q.new_ones(2, 3, 4, 6)),
        ("attn_mask", q.new_ones(2, 3, 4, 5).long()),
        ("grad", grad.cpu()),
    ]:
        with pytest.raises(RuntimeError, match="sgemm::_attention_gradients: .*'"):
            torch.ops.sgemm._attention_gradients(*(good | {name: bad}).values(), *rest)


def test_the_split_kernel_is_refused_where_it_cannot_run() -> None:
    grad, q, k, v = with_grad("cpu", 2, 3, 4, 5, 8)
    out, logsumexp = torch.ops.sgemm.attention(q, k, v)
    with pytest.raises(RuntimeError, match="'kernel' is 'split': the device is no GPU"):
        torch.ops.sgemm._attention_backward(
            grad, q, k, v, None, out, logsumexp, False, 1.0, True, True, False, "split"
        )


# ---- errors beside PyTorch's


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [64, 128])
def test_errors_are_about_pytorch_s(depth: int) -> None:
    """The largest error is at most twice PyTorch's, the mean 1.4 times, on twelve distributions.

    PyTorch's own errors differ between runs by a third.
    """
    from benchmarks import attention_errors

    above = []
    for name in attention_errors.DISTRIBUTIONS:
        row = attention_errors.measure_gradients(name, depth, torch.device("cuda"), 1, "split")
        for gradient in attention_errors.GRADIENTS:
            largest, mean = (row[f"{gradient}_error_{x}"] for x in ("max", "mean"))
            of_torch = [row[f"torch_{gradient}_error_{x}"] for x in ("max", "mean")]
            if not (largest <= 2 * of_torch[0] and mean <= 1.4 * of_torch[1] + 0.01):
                above.append((name, gradient, largest, mean, *of_torch))
    assert not above


def test_a_reference_off_by_little_is_seen() -> None:
    """The comparison itself: one element off by 2^-16 of its magnitude, and NaN."""
    x = Reference(torch.ones(4, 4).double(), 2 * torch.ones(4, 4).double())
    assert_exact(torch.ones(4, 4), x)
    for bad in (1 + 2.0**-16, math.nan):
        spoilt = torch.ones(4, 4)
        spoilt[1, 2] = bad
        with pytest.raises(AssertionError, match="off by"):
            assert_exact(spoilt, x)
