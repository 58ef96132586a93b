"""The proven bound of attention's error, searched for a breach: by the model, and on a GPU.

support/attention_cases.py builds operands from each term of the bound. The model is
support/attention_model.py, whose ex2.approx is as wrong as the PTX ISA allows, in several ways.
Spoilt models must break the bound, or else the accuracy that the kernel has on random operands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from numpy import ndarray as Array
from support.attention_cases import CASES, Operands, case
from support.attention_model import (
    Kernel,
    against_distance,
    attend,
    half,
    largest_units,
    multiplied,
    random_units,
    single,
)
from torch import Tensor

from torch_sgemm.choice.attention import attention_error_bound
from torch_sgemm.measure import tensor_cores

SIZES = ((64, 300), (128, 300), (16, 70))  # depth, keys
GPU_SIZES = (*SIZES, (8, 1), (32, 65), (96, 1000), (64, 4000), (128, 8192))
each_case = pytest.mark.parametrize("name", CASES)


def tensor(x: Array | None) -> Tensor | None:
    """As a tensor of one batch and head."""
    if x is None:
        return None
    return torch.tensor(x, dtype=torch.bool if x.dtype == bool else torch.float32)[None, None]


def bound_of(x: Operands) -> Array:
    tensors = [tensor(part) for part in (x.q, x.k, x.v, x.mask)]
    return attention_error_bound(*tensors, x.causal, x.scale)[0, 0].numpy()


@cache
def known(name: str, depth: int, keys: int) -> tuple[Operands, Array, Array]:
    """Operands, the exact result and the bound."""
    x = case(name, depth, keys)
    return x, x.exact()[0], bound_of(x)


def by_model(x: Operands, kernel: Kernel) -> Array:
    with np.errstate(all="ignore"):
        return attend(x.q, x.k, x.v, x.mask, x.causal, x.scale, kernel).out


def share(found: Array, exact: Array, bound: Array) -> float:
    """The largest error by its bound; infinite if a result isn't finite."""
    error = np.abs(found - exact)
    if not np.isfinite(error).all():
        return math.inf
    return float((error / np.maximum(bound, 1e-300)).max())


def units(x: Operands, kernel: Kernel) -> tuple[float, float]:
    """The largest and the mean error in units of 2^-24 (P|V|)."""
    exact, size = x.exact()
    found = np.abs(by_model(x, kernel) - exact) / size * 2.0**24
    return float(found.max()), float(found.mean())


# --- the model ------------------------------------------------------------------------------


@pytest.mark.parametrize("exponents", [(0, 1), (-20, 12), (-24, -10), (12, 15)])
def test_the_tensor_cores_are_those_of_the_measured_model(exponents: tuple[int, int]) -> None:
    gen = np.random.default_rng(1)
    shape = (2, 40, 64)
    x, y = half(gen.standard_normal(shape) / 4 * np.exp2(gen.integers(*exponents, shape)))
    x[:, ::5] = 0
    total = single(gen.standard_normal((40, 40)))
    expected = tensor_cores.multiplied(*(torch.tensor(part) for part in (total, x, y)))
    assert np.array_equal(multiplied(total, x, y), expected.numpy())


def test_equal_weights_of_small_integers_are_exact() -> None:
    gen = np.random.default_rng(2)
    v = gen.integers(-8, 9, (256, 64)).astype(float)
    x = Operands.of(np.zeros((5, 64)), gen.standard_normal((256, 64)), v)
    assert np.array_equal(by_model(x, Kernel()), np.broadcast_to(v.mean(0), (5, 64)))


# --- the bound ------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", [random_units, largest_units, against_distance])
@pytest.mark.parametrize(("depth", "keys"), SIZES)
@each_case
def test_no_element_of_the_model_breaks_the_bound(name: str, depth: int, keys: int, moved) -> None:
    x, exact, bound = known(name, depth, keys)
    assert share(by_model(x, Kernel(moved)), exact, bound) <= 1


@pytest.mark.parametrize("seed", range(60))
def test_nor_do_mixtures_of_cases(seed: int) -> None:
    gen = np.random.default_rng(seed)
    depth, keys = ((64, 300), (128, 200), (40, 200), (8, 700))[seed % 4]
    parts = [case(gen.choice(list(CASES)), depth, keys, seed + i) for i in range(4)]
    x = Operands(parts[0].q, parts[1].k, parts[2].v, parts[3].mask, parts[3].causal, parts[0].scale)
    largest = (np.abs(x.q) @ np.abs(x.k).T).max() * max(1, abs(x.scale or 0))
    if largest < 2.0**127:  # the bound's condition
        assert share(by_model(x, Kernel(against_distance)), x.exact()[0], bound_of(x)) <= 1


# Shares of the bound that operands reach which are built for a term.
REACHED = {
    "vanishing_weights": 0.9,
    "subnormal_value_parts": 0.9,
    "subnormals": 0.4,
    "opposed_truncation": 0.22,
    "truncated_values": 0.2,
    "mask_with_offset": 0.05,
    "subnormal_key_parts": 0.05,
}


@pytest.mark.parametrize("name", REACHED)
def test_terms_are_reached(name: str) -> None:
    """Rows far below V's largest element are recomputed, unless the guard of values is left out."""
    x, exact, bound = known(name, 64, 300)
    found = by_model(x, Kernel(against_distance, guards_values=False))
    assert share(found, exact, bound) >= REACHED[name]


@each_case
def test_recomputed_rows_keep_it(name: str) -> None:
    """An Inf in a key that is masked for all rows makes the kernel recompute these."""
    x, exact, bound = known(name, 64, 300)
    keys, values = (np.concatenate([part, np.full((1, 64), np.inf)]) for part in (x.k, x.v))
    mask = np.zeros(x.logits().shape) if x.mask is None else x.mask
    last = np.full((len(x.q), 1), False if mask.dtype == bool else -np.inf)
    again = Operands(x.q, keys, values, np.concatenate([mask, last], 1), x.causal, x.scale)
    found = by_model(Operands(x.q, x.k, x.v, mask, x.causal, x.scale), Kernel(most_factor=0))
    assert share(found, exact, bound_of(again)) <= 1


def test_heads_groups_blocks_and_masks_that_broadcast() -> None:
    gen = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, 20, 24, generator=gen) for heads in (6, 3, 3))
    mask = torch.rand(20, 20, generator=gen) < 0.7
    mask[7] = False
    found = attention_error_bound(q, k, v, mask, scale=0.3, enable_gqa=True)
    assert found.shape == (2, 6, 20, 24) and found.dtype == torch.float64
    assert bool((found[:, :, 7] == 0).all()) and bool((found[:, :, 8] > 0).all())
    one = attention_error_bound(q[1:, 5:], k[1:, 2:], v[1:, 2:], mask, scale=0.3)
    assert torch.equal(found[1:, 5:], one)
    # The bound covers the same keys behind a causal mask and an explicit one, which rounds more.
    causal = attention_error_bound(q[:, :3], k, v, is_causal=True)
    explicit = attention_error_bound(q[:, :3], k, v, torch.ones(20, 20, dtype=torch.bool).tril())
    assert bool((causal <= explicit).all()) and bool((explicit < 2 * causal).all())


def test_blocks_of_queries_don_t_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, bound = known("value_scales", 64, 300)
    monkeypatch.setattr("torch_sgemm.choice.attention.CHUNK", 1)
    np.testing.assert_allclose(bound_of(x), bound, rtol=1e-9)


@pytest.mark.parametrize("sizes", [((1, 2, 3, 8), (1, 1, 5, 8)), ((1, 1, 3, 8), (1, 1, 5, 16))])
def test_sizes_that_do_not_fit(sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    q, k = (torch.zeros(size) for size in sizes)
    with pytest.raises(ValueError, match="attention_error_bound: key is of shape"):
        attention_error_bound(q, k, k)


@pytest.mark.parametrize("shape", [(4, 5), (3, 4), (2, 1, 3, 5), (1, 1, 1, 3, 5)])
def test_masks_that_do_not_fit(shape: tuple[int, ...]) -> None:
    q, k = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 5, 8)
    with pytest.raises(ValueError) as caught:
        attention_error_bound(q, k, k, torch.zeros(shape))
    assert f"attn_mask is of shape {shape}; accepted: a shape that" in str(caught.value)
    assert str(caught.value).endswith("broadcasts to (1, 2, 3, 5)")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("empty", range(5))
def test_empty_sizes(empty: int, masked: bool) -> None:
    """The bound is 0: no element, or no key."""
    b, h, rows, keys, width = (0 if i == empty else size for i, size in enumerate((1, 2, 3, 5, 4)))
    q, k, v = (torch.ones(b, h, *size) for size in ((rows, 8), (keys, 8), (keys, width)))
    found = attention_error_bound(q, k, v, torch.ones(rows, keys) if masked else None)
    assert found.shape == (b, h, rows, width) and bool((found == 0).all())


def test_no_depth_and_no_tensors() -> None:
    q = torch.ones(1, 2, 3, 8)
    with pytest.raises(ValueError, match="query is of shape .*0.; accepted: a depth of 1 or more"):
        attention_error_bound(q[..., :0], q[..., :0], q)
    with pytest.raises(TypeError, match="argument 'value' is 3; accepted: a tensor"):
        attention_error_bound(q, q, 3)
    with pytest.raises(TypeError, match="argument 'attn_mask' is 3; accepted: a tensor"):
        attention_error_bound(q, q, q, 3)


# --- spoilt models --------------------------------------------------------------------------

BREAKS_THE_BOUND = {
    "queries without lo": (Kernel(planes=frozenset("kpv")), "large_logits"),
    "keys without lo": (Kernel(planes=frozenset("qpv")), "large_logits"),
    "weights without lo": (Kernel(planes=frozenset("qkv")), "one_signed"),
    "values without lo": (Kernel(planes=frozenset("qkp")), "all_but_one"),
    "no hi lo": (Kernel(corrections=frozenset(("lo hi",))), "all_but_one"),
    "no lo hi": (Kernel(corrections=frozenset(("hi lo",))), "large_logits"),
    "the sum isn't rescaled": (Kernel(rescales_sum=False), "rising_maxima"),
    "the output isn't rescaled": (Kernel(rescales_output=False), "rising_maxima"),
    "V's scale isn't followed": (
        Kernel(follows_value_scale=False, guards_values=False),
        "one_huge_value",
    ),
    "weights up to 1": (Kernel(weight_scale=1, guards_values=False), "vanishing_weights"),
    "weights up to 2^13": (Kernel(weight_scale=2.0**13, guards_values=False), "vanishing_weights"),
    "large factors": (Kernel(most_factor=2.0**90, most_logit=math.inf), "huge_logits"),
    "huge logits": (Kernel(most_logit=math.inf), "huge_logits"),
    "blocks of 256 keys": (Kernel(keys=256, guards_values=False), "value_scales"),
}


@pytest.mark.parametrize("spoilt", BREAKS_THE_BOUND)
def test_a_spoilt_model_breaks_the_bound(spoilt: str) -> None:
    kernel, name = BREAKS_THE_BOUND[spoilt]
    x, exact, bound = known(name, 64, 300)
    assert share(by_model(x, kernel), exact, bound) > 1


@dataclass(frozen=True)
class Accuracy:
    """Limits of an error in units of 2^-24 (P|V|), a quarter above what the model has."""

    largest: float
    mean: float


ACCURACY = {
    "normal": Accuracy(3.0, 0.36),
    "uniform": Accuracy(9.0, 3.7),
    "outlier channels": Accuracy(43.0, 2.6),
}
LOSES_ACCURACY = {
    "a window of 128": (Kernel(window=128), "uniform"),
    "corrections last": (Kernel(corrections_first=False), "uniform"),
    "steps in memory's order": (Kernel(large_steps_last=False), "outlier channels"),
    "truncation isn't made good for": (Kernel(regains_truncation=False), "normal"),
    "2^x off by 2^-18": (Kernel(most_units=16), "normal"),
    "2^x off by 2^-20": (Kernel(most_units=4), "normal"),
}


@cache
def drawn(name: str) -> Operands:
    gen = np.random.default_rng(5)
    draw = gen.random if name == "uniform" else gen.standard_normal
    depth = 128 if name == "outlier channels" else 64
    q, k, v = (draw((rows, depth)) for rows in (64, 512, 512))
    if name == "outlier channels":  # one of them, 30 times as large
        q, k = (np.where(np.arange(depth) == 3, 30 * x, x) for x in (q, k))
        q = q / 30
    return Operands.of(q, k, v)


def is_accurate(kernel: Kernel, name: str) -> bool:
    largest, mean = units(drawn(name), kernel)
    return largest <= ACCURACY[name].largest and mean <= ACCURACY[name].mean


@pytest.mark.parametrize("name", ACCURACY)
def test_random_operands(name: str) -> None:
    assert is_accurate(Kernel(), name)


@pytest.mark.parametrize("spoilt", LOSES_ACCURACY)
def test_a_spoilt_model_loses_accuracy(spoilt: str) -> None:
    """The bound has room for these: it allows for the worst case in each step at once."""
    assert not is_accurate(*LOSES_ACCURACY[spoilt])


# Keys that take no part, and what keeps them from doing harm.
GUARDED = {
    "garbage_in_masked_keys": Kernel(most_factor=2.0**90, most_logit=math.inf),
    "huge_values_ahead": Kernel(guards_values=False),
}


def units_of_rows(found: Array, x: Operands) -> float:
    """The largest error in units of 2^-24 of its row's largest P|V|."""
    exact, size = x.exact()
    return float((np.abs(found - exact) / size.max(1, keepdims=True)).max() * 2.0**24)


@pytest.mark.parametrize("name", GUARDED)
def test_keys_that_take_no_part_do_no_harm(name: str) -> None:
    x = case(name, 64, 300)
    assert units_of_rows(by_model(x, Kernel()), x) <= 16
    assert units_of_rows(by_model(x, GUARDED[name]), x) > 32


# --- a GPU ----------------------------------------------------------------------------------


def on_gpu(x: Operands) -> Array:
    tensors = [part if part is None else part.cuda() for part in map(tensor, (x.q, x.k, x.v))]
    mask = None if x.mask is None else tensor(x.mask).cuda()
    out = torch.ops.sgemm.attention(*tensors, mask, x.causal, x.scale, False, "split")[0]
    return out[0, 0].cpu().double().numpy()


@pytest.mark.gpu
@pytest.mark.parametrize(("depth", "keys"), GPU_SIZES)
@each_case
def test_no_element_of_a_gpu_breaks_the_bound(name: str, depth: int, keys: int) -> None:
    x, exact, bound = known(name, depth, keys)
    assert share(on_gpu(x), exact, bound) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ACCURACY)
def test_random_operands_on_a_gpu(name: str) -> None:
    x = drawn(name)
    exact, size = x.exact()
    found = np.abs(on_gpu(x) - exact) / size * 2.0**24
    assert found.max() <= ACCURACY[name].largest and found.mean() <= ACCURACY[name].mean


@pytest.mark.gpu
@pytest.mark.parametrize("name", GUARDED)
def test_keys_that_take_no_part_do_no_harm_on_a_gpu(name: str) -> None:
    x = case(name, 64, 300)
    assert units_of_rows(on_gpu(x), x) <= 16


@pytest.mark.gpu
def test_ex2_approx_is_as_exact_as_the_isa_says() -> None:
    """CUDA's exp2f, which torch.exp2 calls, is ex2.approx.ftz where results are normal.

    All float32 in [-126, -2^-26], in parts: below that 2^x rounds to 1.
    """
    first, last = (np.float32(x).view(np.int32) for x in (-(2.0**-26), -126.0))
    for start in range(int(first), int(last), 1 << 24):
        end = min(start + (1 << 24), int(last) + 1)
        x = torch.arange(start, end, device="cuda", dtype=torch.int32).view(torch.float32)
        exact = x.double().exp2()
        assert bool(((x.exp2().double() / exact - 1).abs() <= 5 * 2.0**-24).all())
