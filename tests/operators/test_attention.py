"""torch_sgemm.attention: what PyTorch promises of scaled_dot_product_attention for float32."""

from __future__ import annotations

import itertools
import math
import threading

import pytest
import torch
from support.attention import assert_close, each_device, exact, kernel_on, operands
from torch.nn import functional

import torch_sgemm

DEPTHS = range(8, 136, 8)
LENGTHS = (1, 7, 64, 127, 128, 129, 300)


def attention(*args, **kwargs) -> torch.Tensor:
    return torch_sgemm.attention(*args, **kwargs, kernel=kernel_on(args[0].device.type))


@each_device
@pytest.mark.parametrize("depth", DEPTHS)
def test_all_depths(device: str, depth: int) -> None:
    q, k, v = operands(device, 2, 3, 130, 150, depth)
    for causal in (False, True):
        assert_close(attention(q, k, v, is_causal=causal), exact(q, k, v, causal=causal))


@each_device
@pytest.mark.parametrize(("depth", "of_values"), [(64, 128), (128, 32), (8, 72), (96, 64)])
def test_values_of_another_depth(device: str, depth: int, of_values: int) -> None:
    q, k, _ = operands(device, 2, 3, 130, 150, depth)
    v = operands(device, 2, 3, 130, 150, of_values)[2]
    found = attention(q, k, v)
    assert found.shape == (2, 3, 130, of_values)
    assert_close(found, exact(q, k, v))


@each_device
@pytest.mark.parametrize(("rows", "keys"), itertools.product(LENGTHS, LENGTHS))
def test_all_lengths(device: str, rows: int, keys: int) -> None:
    for depth in (32, 128):
        q, k, v = operands(device, 1, 2, rows, keys, depth)
        assert_close(attention(q, k, v), exact(q, k, v))
        assert_close(attention(q, k, v, is_causal=True), exact(q, k, v, causal=True))


@each_device
@pytest.mark.parametrize("shape", [(200, 151), (1, 151), (200, 1), (3, 1, 151), (2, 1, 200, 151)])
@pytest.mark.parametrize("kind", ["bool", "float", "minus_inf"])
@pytest.mark.parametrize("depth", [64, 128])
def test_masks(device: str, shape: tuple[int, ...], kind: str, depth: int) -> None:
    q, k, v = operands(device, 2, 3, 200, 151, depth)
    gen = torch.Generator().manual_seed(1)
    mask = torch.randn(shape, generator=gen).to(device)
    if kind != "float":
        mask = mask > 0
        if shape[-2] > 5 and shape[-1] > 1:
            mask[..., 5, :] = False
    boolean = mask
    if kind == "minus_inf":
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -math.inf)
    found = attention(q, k, v, mask)
    assert_close(found, exact(q, k, v, mask))
    if kind == "minus_inf" and device == "cuda":
        assert torch.equal(found, attention(q, k, v, boolean))


@each_device
def test_a_mask_of_the_least_float_is_not_minus_infinity(device: str) -> None:
    """A row of it has equal weights, as transformers expect."""
    q, k, v = operands(device, 1, 2, 70, 130, 64)
    mask = torch.zeros(70, 130, device=device)
    mask[:, 100:] = mask[3] = torch.finfo(torch.float32).min
    assert_close(attention(q, k, v, mask), exact(q, k, v, mask.masked_fill(mask < -1, -1e30)))


@each_device
def test_masks_of_any_strides(device: str) -> None:
    q, k, v = operands(device, 2, 3, 129, 131, 64)
    base = operands(device, 2, 3, 300, 300, 264)[0]
    for mask in (base[:, :, :129, :131], base.mT[:, :, :129, :131], base[..., :258:2, 3:265:2]):
        assert_close(attention(q, k, v, mask[..., :129, :131]), exact(q, k, v, mask))


@each_device
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_groups_of_heads(device: str, groups: int) -> None:
    q, k, v = operands(device, 2, 6, 130, 150, 64, groups=groups)
    found = attention(q, k, v, enable_gqa=True)
    assert_close(found, exact(q, k, v))
    repeated = (x.repeat_interleave(6 // groups, 1) for x in (k, v))
    assert torch.equal(found, attention(q, *repeated))


@each_device
@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3, 1e-3, 5.0])
def test_scales(device: str, scale: float) -> None:
    q, k, v = operands(device, 1, 2, 130, 150, 64)
    assert_close(attention(q, k, v, scale=scale), exact(q, k, v, scale=scale), 400)


@each_device
def test_leading_dimensions(device: str) -> None:
    q, k, v = operands(device, 4, 3, 40, 50, 32)
    expected = exact(q, k, v)
    for sizes in ((2, 2), (4, 1), (1, 2, 2)):
        found = attention(*(x.unflatten(0, sizes) for x in (q, k, v)))
        assert_close(found, expected.unflatten(0, sizes))
    mask = torch.rand(4, 1, 40, 50, device=device) > 0.3
    found = attention(*(x.unflatten(0, (2, 2)) for x in (q, k, v)), mask.unflatten(0, (2, 2)))
    assert_close(found, exact(q, k, v, mask).unflatten(0, (2, 2)))
    assert_close(attention(q[0], k[0], v[0], mask[0]), exact(q[:1], k[:1], v[:1], mask[:1])[0])


@each_device
def test_strides(device: str) -> None:
    q, k, v = operands(device, 2, 3, 130, 150, 64)
    expected = exact(q, k, v)

    def laid_out(x: torch.Tensor) -> list[torch.Tensor]:
        by_rows = x.transpose(1, 2).contiguous().transpose(1, 2)
        wide = torch.cat([x, x], -1)[..., :64]
        odd = torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
        return [by_rows, wide, odd, x.mT.contiguous().mT, x.flip(0).flip(0)]

    for parts in zip(*map(laid_out, (q, k, v)), strict=True):
        assert_close(attention(*parts), expected)
    shared = [x[:1].expand(2, -1, -1, -1) for x in (q, k, v)]
    assert_close(attention(*shared), exact(*shared))


@each_device
@pytest.mark.parametrize("sizes", [(0, 3, 4, 5, 8), (2, 3, 0, 5, 8)])
def test_empty_results(device: str, sizes: tuple[int, ...]) -> None:
    q, k, v = operands(device, *sizes)
    assert torch_sgemm.attention(q, k, v).shape == q.shape


@each_device
def test_other_dtypes_and_dropout_are_pytorch_s(device: str) -> None:
    q, k, v = operands(device, 2, 3, 40, 50, 32)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        parts = [x.to(dtype) for x in (q, k, v)]
        found = torch_sgemm.attention(*parts)
        assert found.dtype == dtype
        assert torch.equal(found, functional.scaled_dot_product_attention(*parts))
    assert torch_sgemm.attention(q, k, v, dropout_p=0.5).shape == q.shape


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"query": torch.ones(2, 3, 4, 16)}, "'key' has shape"),
        ({"key": torch.ones(2, 2, 5, 8)}, "'key' has shape"),
        ({"value": torch.ones(2, 3, 6, 8)}, "'value' has shape"),
        ({"value": torch.ones(2, 3, 5, 8).double()}, "'value' has shape"),
        ({"attn_mask": torch.ones(7, 5)}, "'attn_mask' has shape"),
        ({"attn_mask": torch.ones(4, 5).long()}, "'attn_mask' has shape"),
        ({"attn_mask": torch.ones(4, 5), "is_causal": True}, "beside is_causal"),
        ({"kernel": "fast"}, "argument 'kernel' is 'fast'; accepted: 'auto', 'split', 'aten'"),
        ({"kernel": "split"}, "argument 'kernel' is 'split': the device is no GPU"),
    ],
)
def test_wrong_arguments_of_the_operator(change: dict, text: str) -> None:
    q, k, v = operands("cpu", 2, 3, 4, 5, 8)
    with pytest.raises(RuntimeError, match=f"sgemm::attention: .*{text}"):
        torch.ops.sgemm.attention(**{"query": q, "key": k, "value": v} | change)


def test_wrong_arguments_of_the_function_are_pytorch_s() -> None:
    q, k, v = operands("cpu", 2, 3, 4, 5, 8)
    for args in ((q, k[..., :4], v), (q, k, v, torch.ones(9, 9))):
        with pytest.raises(RuntimeError) as expected:
            functional.scaled_dot_product_attention(*args)
        with pytest.raises(RuntimeError) as found:
            torch_sgemm.attention(*args)
        assert str(found.value) == str(expected.value)
    with pytest.raises(RuntimeError, match="argument 'kernel' is 'fast'"):
        torch_sgemm.attention(q, k, v, kernel="fast")
    with pytest.raises(RuntimeError, match="'kernel' is 'split': dropout_p is not 0"):
        torch_sgemm.attention(q, k, v, dropout_p=0.1, kernel="split")


@pytest.mark.gpu
def test_a_device_operator_checks_what_it_gets() -> None:
    q, k, v = operands("cuda", 2, 3, 4, 5, 8)
    op = torch.ops.sgemm._attention
    for parts, text in [
        ((q, k[:, :2], v[:, :2]), "'key' has shape"),
        ((q, k, v[:, :, :4]), "'value' has shape"),
        ((q, k.mT.contiguous().mT, v), "'key' has shape"),
        ((q[..., :4], k[..., :4], v), "'query' has shape"),
        ((q, k, v.double()), "'value' has shape"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            op(*parts, None, False, 1.0, False)
    for mask in (q.new_ones(4, 5), q.new_ones(2, 3, 4, 6), q.new_ones(2, 3, 4, 5).long()):
        with pytest.raises(RuntimeError, match="'attn_mask' has shape"):
            op(q, k, v, mask, False, 1.0, False)


# ---- transforms, registration


@each_device
def test_vmap(device: str) -> None:
    q, k, v = operands(device, 4, 3, 40, 50, 32)
    q = q.unflatten(0, (2, 2))
    mask = torch.rand(2, 40, 50, device=device) > 0.3
    found = torch.vmap(lambda q, mask: attention(q, k[:2], v[:2], mask))(q, mask)
    for i in range(2):
        assert_close(found[i], exact(q[i], k[:2], v[:2], mask[i]))


def test_the_operator_is_registered_as_pytorch_asks() -> None:
    q, k, v = (x.requires_grad_() for x in operands("cpu", 2, 4, 7, 9, 8, groups=2))
    mask = torch.randn(7, 9)
    torch.library.opcheck(torch.ops.sgemm.attention, (q, k, v, mask, False, 0.3, True))


def test_flops() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    import torch_sgemm.flops  # noqa: F401

    q, k, v = operands("cpu", 2, 3, 40, 50, 32)
    with FlopCounterMode(display=False) as counter:
        torch_sgemm.attention(q, k, v)
    assert counter.get_total_flops() == 4 * 2 * 3 * 40 * 50 * 32


# ---- bits


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [64, 128])
def test_the_same_call_has_the_same_bits(depth: int) -> None:
    q, k, v = operands("cuda", 8, 16, 500, 500, depth)
    for causal in (False, True):
        first = attention(q, k, v, is_causal=causal)
        for _ in range(5):
            assert torch.equal(attention(q, k, v, is_causal=causal), first)


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [32, 64, 96, 128])
def test_a_row_depends_on_no_other(depth: int) -> None:
    """Not on the batch, the heads or the other queries."""
    q, k, v = operands("cuda", 5, 4, 300, 333, depth)
    mask = operands("cuda", 5, 4, 300, 1, 333, seed=1)[0]
    for of_mask in (None, mask):
        out = attention(q, k, v, of_mask)
        some = None if of_mask is None else of_mask[2:3, 1:2, 100:177]
        part = attention(q[2:3, 1:2, 100:177], k[2:3, 1:2], v[2:3, 1:2], some)
        assert torch.equal(part, out[2:3, 1:2, 100:177])
    q[2, 1, 120] = math.nan
    spoilt = attention(q, k, v)
    plain = attention(q.nan_to_num(0), k, v)
    others = torch.arange(300, device="cuda") != 120
    assert torch.equal(spoilt[2, 1, others], plain[2, 1, others])
    assert spoilt[2, 1, 120].isnan().all()


@pytest.mark.gpu
def test_graphs_streams_and_threads() -> None:
    q, k, v = operands("cuda", 4, 8, 300, 300, 64)
    expected = attention(q, k, v)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = attention(q, k, v)
    stream.synchronize()
    assert torch.equal(found, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = attention(q, k, v)
    for sign in (1, -1):
        q.mul_(sign)
        graph.replay()
        assert torch.equal(found, attention(q, k, v))
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(attention(q, k, v))) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(results) == 4 and all(torch.equal(x, found) for x in results)


# ---- Inf and NaN


@each_device
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("depth", [64, 128])
def test_inf_and_nan_reach_what_they_reach(device: str, where: str, bad: float, depth: int) -> None:
    parts = dict(
        zip(("query", "key", "value"), operands(device, 1, 2, 200, 151, depth), strict=True)
    )
    parts[where][0, 1, 70, 5] = bad
    q, k, v = parts.values()
    logits = q.double() @ k.double().mT / math.sqrt(depth)
    expected = torch.softmax(logits, -1) @ v.double()
    found = attention(q, k, v)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    assert_close(found[finite], expected[finite])


@pytest.mark.gpu
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("depth", [64, 128])
def test_masked_keys_do_no_harm(bad: float, depth: int) -> None:
    q, k, v = operands("cuda", 1, 2, 200, 300, depth)
    mask = torch.ones(200, 300, dtype=torch.bool, device="cuda")
    mask[:, 170:] = False
    expected = exact(q, k, v, mask)
    causal = exact(q, k, v, causal=True)
    k[:, :, 230:], v[:, :, 230:] = bad, bad
    assert_close(attention(q, k, v, mask), expected)
    assert_close(attention(q, k, v, is_causal=True), causal)


@pytest.mark.gpu
@pytest.mark.parametrize("of_mask", [math.nan, math.inf])
def test_a_mask_of_inf_or_nan_spoils_its_row(of_mask: float) -> None:
    q, k, v = operands("cuda", 1, 2, 200, 300, 64)
    mask = torch.zeros(200, 300, device="cuda")
    mask[9, 140] = of_mask
    found = attention(q, k, v, mask)
    assert found[:, :, 9].isnan().all()
    others = torch.arange(200, device="cuda") != 9
    assert_close(found[:, :, others], exact(q, k, v)[:, :, others])
