"""The proven bounds of attention's gradients, searched for a breach: by the model, and on a GPU.

support/attention_gradient_cases.py builds operands from each term of the bounds. The model is
support/attention_gradients_model.py, behind that of the forward. Its ex2.approx, and its log2f and
logf, are as wrong as the PTX ISA and CUDA allow, in several ways. Spoilt models must break a bound,
or else the accuracy that the kernels have on random operands.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from numpy import ndarray as Array
from support.attention_gradient_cases import CASES, Exact, GradientOperands, case
from support.attention_gradients_model import GradientKernel, by_size, differentiate
from support.attention_model import Kernel, against_distance, attend, largest_units, random_units
from torch import Tensor

from torch_sgemm.choice.attention_gradients import attention_gradient_error_bounds

SIZES = ((64, 200), (128, 130), (16, 70))  # depth, keys
GPU_SIZES = (*SIZES, (8, 1), (32, 65), (96, 300), (64, 1000), (128, 500))
each_case = pytest.mark.parametrize("name", CASES)
KERNELS = {
    "random": GradientKernel(random_units),
    "large": GradientKernel(largest_units, log_units=-1),
    "by size": GradientKernel(by_size, log_units=1),
}


def tensors(x: GradientOperands) -> list[Tensor | None]:
    """dO, query, key, value and mask, of one batch."""
    k, v = x.k[None], x.v[None]
    parts = [torch.tensor(part, dtype=torch.float32)[None] for part in (x.g, x.q, k, v)]
    if x.mask is None:
        return [*parts, None]
    return [
        *parts,
        torch.tensor(x.mask, dtype=None if x.mask.dtype == bool else torch.float32)[None],
    ]


def by_name(x: GradientOperands, found: Sequence[Tensor]) -> dict[str, Array]:
    """Each gradient, or its bound, without the batch and a head of keys."""
    of_query, of_key, of_value, of_mask = found
    parts = of_query[0], of_key[0, 0], of_value[0, 0], of_mask[0] if len(of_mask) else of_mask
    return {of: part.double().numpy() for of, part in zip(x.gradients(), parts, strict=False)}


def bounds_of(x: GradientOperands) -> dict[str, Array]:
    options = x.causal, x.scale, True, "m" in x.gradients()
    return by_name(x, attention_gradient_error_bounds(*tensors(x), *options))


@cache
def known(name: str, depth: int, keys: int) -> tuple[GradientOperands, dict, dict]:
    """Operands, exact gradients and their bounds."""
    x = case(name, depth, keys)
    return x, x.exact(), bounds_of(x)


def by_model(
    x: GradientOperands, kernel: GradientKernel, most_factor: float = Kernel().most_factor
) -> dict[str, Array]:
    """``most_factor`` is the forward's."""
    forward = Kernel(against_distance, log_units=kernel.log_units, most_factor=most_factor)
    masks = [None] * len(x.q) if x.mask is None else x.mask
    with np.errstate(all="ignore"):
        heads = [
            attend(q, x.k, x.v, mask, x.causal, x.scale, forward)
            for q, mask in zip(x.q, masks, strict=True)
        ]
        given = (np.stack([part.out for part in heads]), np.stack([h.logsumexp for h in heads]))
        found = differentiate(x.g, x.q, x.k, x.v, x.mask, *given, x.causal, x.scale, kernel)
    parts = found.q, found.k, found.v, found.ds
    return dict(zip(x.gradients(), parts, strict=False))


def share(found: dict[str, Array], exact: dict[str, Exact], bounds: dict[str, Array], of: str):
    """The largest error by its bound; infinite if a result that has one isn't finite."""
    proven = np.isfinite(bounds[of])
    error = np.abs(found[of] - exact[of].values)[proven]
    if not np.isfinite(error).all():
        return math.inf
    return float((error / np.maximum(bounds[of][proven], 1e-300)).max(initial=0))


def shares(found, exact, bounds) -> list[float]:
    return [share(found, exact, bounds, of) for of in exact]


# --- the model ------------------------------------------------------------------------------


def test_gradients_of_equal_weights_and_small_integers_are_exact() -> None:
    """dV of 64 equal weights: 2^-6 of sums of integers."""
    gen = np.random.default_rng(2)
    g, v = (gen.integers(-8, 9, (64, 32)).astype(float) for _ in range(2))
    x = GradientOperands.of(g, np.zeros((64, 32)), gen.standard_normal((64, 32)), v)
    found = by_model(x, GradientKernel(moved=lambda y: np.zeros_like(y)))
    assert np.abs(found["v"] * 64 / g.sum(0) - 1).max() < 2.0**-20  # the logsumexp rounds
    assert np.array_equal(found["k"], np.zeros((64, 32)))


# --- the bounds -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "depth", "keys"),
    [*(("by size", *size) for size in SIZES), ("random", 16, 70), ("large", 64, 200)],
)
@each_case
def test_no_element_of_the_model_breaks_a_bound(
    name: str, kernel: str, depth: int, keys: int
) -> None:
    x, *rest = known(name, depth, keys)
    assert max(shares(by_model(x, KERNELS[kernel]), *rest)) <= 1


@pytest.mark.parametrize("seed", range(40))
def test_nor_do_mixtures_of_cases(seed: int) -> None:
    gen = np.random.default_rng(seed)
    depth, keys = ((64, 130), (128, 100), (40, 200), (8, 300))[seed % 4]
    one_headed = [name for name in CASES if not name.startswith(("shared", "lost_windows"))]
    parts = [case(gen.choice(one_headed), depth, keys, seed + i) for i in range(5)]
    g, q, k, v, rest = parts
    x = GradientOperands(g.g, q.q, k.k, v.v, rest.mask, rest.causal, q.scale)
    largest = (np.abs(x.q[0]) @ np.abs(x.k).T).max() * max(1, abs(x.scale or 0))
    if largest < 2.0**127:  # the bounds' condition
        found = by_model(x, GradientKernel(by_size, log_units=1 if seed % 8 < 4 else -1))
        assert max(shares(found, x.exact(), bounds_of(x))) <= 1


# Nothing is proven of rows whose float32 logsumexp is too coarse, of keys that they see, and of
# sums that may overflow.
UNPROVEN = ("huge_logits", "least_float_as_mask", "subnormal_keys")


@pytest.mark.parametrize(("depth", "keys"), SIZES)
@each_case
def test_bounds_are_finite(name: str, depth: int, keys: int) -> None:
    bounds = known(name, depth, keys)[2]
    assert all(np.isfinite(bound).all() for bound in bounds.values()) or name in UNPROVEN


# Shares of a bound that operands reach which are built for a term.
REACHED = {
    ("subnormal_gradient_parts", "v"): 0.8,
    ("vanishing_weights_of_queries", "q"): 0.9,
    ("vanishing_weights_of_keys", "k"): 0.9,
    ("mask_with_offset", "v"): 0.2,
    ("mask_with_offset", "k"): 0.1,
    ("five_keys", "v"): 0.1,
    ("truncated_sums", "v"): 0.1,
    ("rising_maxima", "v"): 0.1,
}


@pytest.mark.parametrize(("name", "of"), REACHED)
def test_terms_are_reached(name: str, of: str) -> None:
    x, *rest = known(name, 64, 200)
    found = [share(by_model(x, kernel), *rest, of) for kernel in KERNELS.values()]
    assert max(found) >= REACHED[name, of]


@pytest.mark.parametrize("forward", [True, False])
@each_case
def test_recomputed_rows_keep_them(
    name: str, forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conditions that nothing meets make kernels recompute all, and bounds allow for it."""
    x = case(name, 64, 200)
    for module in ("gradient_terms", *(["attention"] if forward else [])):
        monkeypatch.setattr(f"torch_sgemm.choice.{module}.MOST_FACTOR", 0)
    kernel = dataclasses.replace(KERNELS["by size"], most_factor=0)
    found = by_model(x, kernel, 0 if forward else Kernel().most_factor)
    assert max(shares(found, x.exact(), bounds_of(x))) <= 1


def test_heads_groups_blocks_and_masks_that_broadcast() -> None:
    gen = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, 20, 24, generator=gen) for heads in (6, 3, 3))
    g = torch.randn(2, 6, 20, 24, generator=gen)
    mask = torch.rand(20, 20, generator=gen) < 0.7
    mask[7] = False
    found = attention_gradient_error_bounds(g, q, k, v, mask, scale=0.3, enable_gqa=True)
    assert [x.shape for x in found] == [*(x.shape for x in (q, k, v)), (0,)]
    assert all(x.dtype == torch.float64 and bool((x > 0).all()) for x in found)
    part = g[1:, 4:], q[1:, 4:], k[1:, 2:], v[1:, 2:], mask
    one = attention_gradient_error_bounds(*part, scale=0.3, enable_gqa=True)
    expected = found.query[1:, 4:], found.key[1:, 2:], found.value[1:, 2:]
    for x, y in zip(one[:3], expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=0)


def test_blocks_of_queries_don_t_change_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, bounds = known("small_rows_alone", 64, 200)
    for module in ("attention", "attention_gradients"):
        monkeypatch.setattr(f"torch_sgemm.choice.{module}.CHUNK", 1)
    for found, expected in zip(bounds_of(x).values(), bounds.values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_sizes_that_do_not_fit() -> None:
    q, k, g = torch.zeros(1, 2, 3, 8), torch.zeros(1, 1, 5, 8), torch.zeros(1, 2, 3, 16)
    with pytest.raises(ValueError, match="attention_gradient_error_bounds: key is of shape"):
        attention_gradient_error_bounds(q, q, k, k)
    with pytest.raises(ValueError, match="attention_gradient_error_bounds: grad is of shape"):
        attention_gradient_error_bounds(g, q, k, k, enable_gqa=True)
    with pytest.raises(ValueError, match=r"attn_mask is of shape \(4, 5\); accepted: a shape that"):
        attention_gradient_error_bounds(q, q, k, k, torch.zeros(4, 5), enable_gqa=True)
    with pytest.raises(TypeError, match="argument 'grad' is 3; accepted: a tensor"):
        attention_gradient_error_bounds(3, q, k, k, enable_gqa=True)


@pytest.mark.parametrize("empty", range(5))
def test_empty_operands(empty: int) -> None:
    """The bounds are 0: no elements, or no sums."""
    b, h, rows, keys, width = (0 if i == empty else size for i, size in enumerate((1, 2, 3, 5, 4)))
    sizes = (rows, width), (rows, 8), (keys, 8), (keys, width)
    operands = [torch.ones(b, h, *size) for size in sizes]
    found = attention_gradient_error_bounds(*operands, wants_mask=True)
    shapes = [*(x.shape for x in operands[1:]), (b, h, rows, keys)]
    assert [x.shape for x in found] == shapes and all(bool((x == 0).all()) for x in found)


NOTHING_PROVEN = [(i, number) for i in range(4) for number in (math.inf, math.nan)]


@pytest.mark.parametrize(("i", "number"), [*NOTHING_PROVEN, (0, 2.0**120), (3, 2.0**120)])
def test_operands_of_which_nothing_is_proven(i: int, number: float) -> None:
    operands = [torch.ones(1, 2, 4, 8) for _ in range(4)]
    operands[i][0, 0, 1, 3] = number
    found = attention_gradient_error_bounds(*operands, wants_mask=True)
    assert all(bool((x[0, 0] == math.inf).all()) for x in found)
    assert all(bool(x[0, 1].isfinite().all()) for x in found)


# --- spoilt models --------------------------------------------------------------------------

ALL = GradientKernel().planes
BREAKS_A_BOUND = {
    "queries without lo": (GradientKernel(planes=ALL - {"q"}), "large_logits", "v"),
    "keys without lo": (GradientKernel(planes=ALL - {"k"}), "large_logits", "v"),
    "values without lo": (GradientKernel(planes=ALL - {"v"}), "all_but_one", "q"),
    "gradients without lo": (GradientKernel(planes=ALL - {"g"}), "all_but_one", "v"),
    "weights without lo": (GradientKernel(planes=ALL - {"p"}), "one_signed_gradient", "v"),
    "dS without lo": (GradientKernel(planes=ALL - {"s"}), "truncated_sums", "k"),
    "no hi lo": (GradientKernel(corrections=frozenset(("lo hi",))), "all_but_one", "v"),
    "no lo hi": (GradientKernel(corrections=frozenset(("hi lo",))), "large_logits", "v"),
    "one scale for dO": (GradientKernel(scales_rows=False), "small_rows_alone", "q"),
    "rows of dO to 2^-20": (GradientKernel(least_shift=-20), "rows_of_all_sizes", "q"),
    "dS as it is": (GradientKernel(bounds_ds=False), "tiny_gradients", "k"),
    "one bound for a block": (
        GradientKernel(bounds_rows=False),
        "small_values_beside_a_large_one",
        "k",
    ),
    "tiny weights as they are": (GradientKernel(enlarges=False), "unseen_keys", "v"),
    "large factors": (GradientKernel(most_factor=2.0**90), "huge_logits", "q"),
    "rows of dO as they are, for dS": (
        GradientKernel(rows_as_scaled=False),
        "large_delta_of_a_small_row",
        "k",
    ),
    "half of delta": (GradientKernel(of_delta=0.5), "plain", "q"),
}


@pytest.mark.parametrize("spoilt", BREAKS_A_BOUND)
def test_a_spoilt_model_breaks_a_bound(spoilt: str) -> None:
    kernel, name, of = BREAKS_A_BOUND[spoilt]
    x, *rest = known(name, 64, 200)
    assert share(by_model(x, kernel), *rest, of) > 1


@dataclass(frozen=True)
class Accuracy:
    """Limits of errors in units of 2^-24 of magnitudes, a quarter above what the model has."""

    largest: dict[str, float]  # by gradient
    mean: dict[str, float]


ACCURACY = {
    "normal": Accuracy({"q": 1.4, "k": 1.4, "v": 9.0}, {"q": 0.115, "k": 0.14, "v": 1.3}),
    "uniform": Accuracy({"q": 2.6, "k": 1.4, "v": 9.0}, {"q": 0.62, "k": 0.30, "v": 2.7}),
}
LOSES_ACCURACY = {
    "corrections last": (GradientKernel(corrections_first=False), "uniform"),
    "2^x off by 2^-18": (GradientKernel(most_units=16), "normal"),
    "2^x off by 2^-20": (GradientKernel(most_units=4), "normal"),
    "a coarse logsumexp": (GradientKernel(log_units=32), "normal"),
}


@cache
def drawn(name: str) -> GradientOperands:
    gen = np.random.default_rng(5)
    draw = {"normal": gen.standard_normal, "uniform": gen.random}[name]
    return GradientOperands.of(*(draw((rows, 64)) for rows in (192, 192, 256, 256)))


def units(found: dict[str, Array], x: GradientOperands) -> dict[str, tuple[float, float]]:
    """The largest and the mean error of each gradient."""
    result = {}
    for of, (exact, size) in ((of, dataclasses.astuple(y)) for of, y in x.exact().items()):
        error = np.abs(found[of] - exact) / size * 2.0**24
        result[of] = float(error.max()), float(error.mean())
    return result


def are_accurate(found: dict[str, Array], name: str, room: float = 1) -> bool:
    limits = ACCURACY[name]
    return all(
        largest <= room * limits.largest[of] and mean <= room * limits.mean[of]
        for of, (largest, mean) in units(found, drawn(name)).items()
    )


@pytest.mark.parametrize("name", ACCURACY)
def test_random_operands(name: str) -> None:
    assert are_accurate(by_model(drawn(name), GradientKernel()), name)


@pytest.mark.parametrize("spoilt", LOSES_ACCURACY)
def test_a_spoilt_model_loses_accuracy(spoilt: str) -> None:
    """The bounds have room for these: they allow for the worst case in each step at once."""
    kernel, name = LOSES_ACCURACY[spoilt]
    assert not are_accurate(by_model(drawn(name), kernel), name)


# Keys that take no part, and what keeps them from doing harm.
GUARDED = {
    "huge_keys_behind_a_mask": GradientKernel(most_factor=2.0**90),
    "huge_values_behind_a_mask": GradientKernel(guards_values=False),
}


def units_of_rows(found: dict[str, Array], x: GradientOperands) -> float:
    """The largest error in units of 2^-24 of its row's largest magnitude."""
    result = []
    for of, (exact, size) in ((of, dataclasses.astuple(y)) for of, y in x.exact().items()):
        largest = np.maximum(size.max(-1, keepdims=True), 1e-300)
        result.append((np.abs(found[of] - exact) / largest).max() * 2.0**24)
    return max(result)


@pytest.mark.parametrize("name", GUARDED)
def test_keys_that_take_no_part_do_no_harm(name: str) -> None:
    x = case(name, 64, 200)
    assert units_of_rows(by_model(x, GradientKernel()), x) <= 16
    assert units_of_rows(by_model(x, GUARDED[name]), x) > 32


# --- a GPU ----------------------------------------------------------------------------------


def on_gpu(x: GradientOperands) -> dict[str, Array]:
    grad, q, k, v, mask = (part if part is None else part.cuda() for part in tensors(x))
    scale = q.size(3) ** -0.5 if x.scale is None else x.scale
    operators = torch.ops.sgemm
    out, logsumexp = operators.attention(q, k, v, mask, x.causal, scale, True, "split")
    rest = mask, out, logsumexp, x.causal, scale, True, True, "m" in x.gradients(), "split"
    found = operators._attention_backward(grad, q, k, v, *rest)
    return by_name(x, [part.cpu() for part in found])


@pytest.mark.gpu
@pytest.mark.parametrize(("depth", "keys"), GPU_SIZES)
@each_case
def test_no_element_of_a_gpu_breaks_a_bound(name: str, depth: int, keys: int) -> None:
    x, *rest = known(name, depth, keys)
    assert max(shares(on_gpu(x), *rest)) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", ACCURACY)
def test_random_operands_on_a_gpu(name: str) -> None:
    """A GPU's ex2.approx has errors of one sign over ranges, where the model's are random."""
    assert are_accurate(on_gpu(drawn(name)), name, room=1.1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GUARDED)
def test_keys_that_take_no_part_do_no_harm_on_a_gpu(name: str) -> None:
    x = case(name, 64, 200)
    assert units_of_rows(on_gpu(x), x) <= 16
