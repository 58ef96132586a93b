"""Errors of attention and its gradients on twelve distributions, beside PyTorch's two kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_sgemm
from benchmarks import tables
from benchmarks.attention_gradients import Reference, gradients_in_float64
from benchmarks.distributions import generator
from benchmarks.errors import UNIT, Errors, good_up_to, in_units

HEADS, QUERIES, KEYS = 2, 512, 2048
DEPTHS = (64, 128)
COLUMNS = ["operands", "depth", "split", "PyTorch's", "PyTorch's math", "share of the bound"]
GRADIENTS = {"query": "dQ", "key": "dK", "value": "dV"}
SIDES = ("", "torch_", "math_")


class Inputs(NamedTuple):
    """Arguments of attention; the mask has all dimensions."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    is_causal: bool = False


DISTRIBUTIONS: dict[str, Callable[[int, Generator], Inputs]] = {}


def _distribution(make: Callable[[int, Generator], Inputs]) -> Callable[[int, Generator], Inputs]:
    DISTRIBUTIONS[make.__name__] = make
    return make


def _normal(depth: int, gen: Generator, queries: int | None = None) -> Inputs:
    shapes = [(1, HEADS, rows, depth) for rows in (queries or QUERIES, KEYS, KEYS)]
    return Inputs(*(torch.randn(x, generator=gen, device=gen.device) for x in shapes))


@_distribution
def normal(depth: int, gen: Generator) -> Inputs:
    return _normal(depth, gen)


@_distribution
def uniform_0_1(depth: int, gen: Generator) -> Inputs:
    shapes = [(1, HEADS, rows, depth) for rows in (QUERIES, KEYS, KEYS)]
    return Inputs(*(torch.rand(x, generator=gen, device=gen.device) for x in shapes))


@_distribution
def four_times_normal(depth: int, gen: Generator) -> Inputs:
    """Sharp weights: few keys decide."""
    return Inputs(*(4 * x for x in _normal(depth, gen)[:3]))


@_distribution
def common_offset(depth: int, gen: Generator) -> Inputs:
    """All keys share a part that softmax takes out again."""
    x = _normal(depth, gen)
    return x._replace(key=x.key + 8)


@_distribution
def dominating_key(depth: int, gen: Generator) -> Inputs:
    x = _normal(depth, gen)
    x.key[:, :, KEYS // 3] = 6 * x.query[:, :, 0]
    return x


@_distribution
def logits_to_80(depth: int, gen: Generator) -> Inputs:
    x = _normal(depth, gen)
    largest = (x.query @ x.key.mT).abs().max() / math.sqrt(depth)
    return x._replace(query=x.query * (80 / largest))


@_distribution
def wide(depth: int, gen: Generator) -> Inputs:
    """Elements over several binades in all three."""
    x = _normal(depth, gen)
    return Inputs(*(y * torch.exp(torch.randn_like(y)) for y in x[:3]))


@_distribution
def wide_values(depth: int, gen: Generator) -> Inputs:
    x = _normal(depth, gen)
    return x._replace(value=x.value * torch.exp(4 * torch.randn_like(x.value)))


@_distribution
def outlier_channels(depth: int, gen: Generator) -> Inputs:
    """Two channels of queries and keys are 30 times as large, as in language models."""
    x = _normal(depth, gen)
    for y in (x.query, x.key):
        y[..., 3] *= 30
        y[..., depth // 2] *= 30
    return x._replace(query=x.query / 30)


@_distribution
def bfloat16_values(depth: int, gen: Generator) -> Inputs:
    return Inputs(*(y.bfloat16().float() for y in _normal(depth, gen)[:3]))


@_distribution
def linear_bias(depth: int, gen: Generator) -> Inputs:
    """An additive mask that falls with the distance, -Inf for later keys."""
    x = _normal(depth, gen)
    keys = torch.arange(KEYS, device=gen.device, dtype=torch.float32)
    distance = keys[:QUERIES, None] - keys
    mask = (-distance / 16).masked_fill(distance < 0, -math.inf)
    return x._replace(mask=mask.expand(1, HEADS, QUERIES, KEYS))


@_distribution
def causal(depth: int, gen: Generator) -> Inputs:
    return _normal(depth, gen, KEYS)._replace(is_causal=True)


def in_float64(x: Inputs) -> tuple[Tensor, Tensor]:
    """Returns P V and P |V|."""
    query, key, value = (y.double() for y in x[:3])
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    if x.is_causal:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(later, -math.inf)
    weights = torch.softmax(logits if x.mask is None else logits + x.mask.double(), -1)
    return weights @ value, weights @ value.abs()


def _math(x: Inputs) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(
            x.query, x.key, x.value, x.mask, is_causal=x.is_causal
        )


def measure(name: str, depth: int, device: torch.device, seed: int, kernel: str) -> dict:
    """Returns the errors of a distribution, in units of 2^-24 of P |V|, over all elements."""
    x = DISTRIBUTIONS[name](depth, generator(seed, device))
    exact, magnitude = in_float64(x)

    def run(kernel: str) -> Tensor:
        return torch.ops.sgemm.attention(*x, None, False, kernel)[0]

    ours = run(kernel)
    bound = torch_sgemm.attention_error_bound(*x)
    found = {"label": f"{name} {depth}", "distribution": name, "depth": depth, "kernel": kernel}
    for side, out in zip(SIDES, (ours, run("aten"), _math(x)), strict=True):
        errors = in_units(out, exact, magnitude)
        found |= {f"{side}error_max": errors.max, f"{side}error_mean": errors.mean}
    share = ((ours.double() - exact).abs() / bound.clamp(min=UNIT**6)).max()
    below = all(found[f"error_{x}"] <= found[f"torch_error_{x}"] for x in ("max", "mean"))
    return found | {
        "share_of_bound": float(share),
        "not_above_torch": below,
        "correct": (correct := bool(share <= 1)),  # False for NaN
        "wrong": "" if correct else f"{share:.3g} of the proven bound",
    }


def gradients_by(run: Callable[..., Tensor], x: Inputs, grad: Tensor) -> list[Tensor]:
    """Returns the gradients of query, key and value."""
    leaves = [y.detach().requires_grad_() for y in x[:3]]
    return list(torch.autograd.grad(run(Inputs(*leaves, *x[3:])), leaves, grad))


def gradient_errors(found: Sequence[Tensor], exact: dict[str, Reference]) -> dict[str, float]:
    """Returns the errors of dQ, dK and dV, in units of 2^-24 of their magnitudes."""
    figures: dict[str, float] = {}
    for name, x in zip(GRADIENTS, found, strict=True):
        errors: Errors = in_units(x, *exact[name])
        figures |= {f"{name}_error_max": errors.max, f"{name}_error_mean": errors.mean}
    return figures


def measure_gradients(name: str, depth: int, device: torch.device, seed: int, kernel: str) -> dict:
    """Returns the errors of a distribution's gradients, for a standard normal dO."""
    gen = generator(seed, device)
    x = DISTRIBUTIONS[name](depth, gen)
    shape = (*x.query.shape[:3], x.value.shape[3])
    grad = torch.randn(shape, generator=gen, device=device)
    exact = gradients_in_float64(grad, *x)

    def side(kernel: str) -> Callable[[Inputs], Tensor]:
        return lambda x: torch.ops.sgemm.attention(*x, None, False, kernel)[0]

    found = {"label": f"{name} {depth}", "distribution": name, "depth": depth, "kernel": kernel}
    for prefix, run in zip(SIDES, (side(kernel), side("aten"), _math), strict=True):
        errors = gradient_errors(gradients_by(run, x, grad), exact)
        found |= {f"{prefix}{key}": value for key, value in errors.items()}
    return found | judged(found)


def judged(row: dict) -> dict:
    """Returns whether gradients are correct, and not above PyTorch's; what is wrong."""
    wrong = [
        f"{GRADIENTS[name]}: {row[f'{name}_error_max']:.3g} units"
        for name in GRADIENTS
        if not row[f"{name}_error_max"] <= good_up_to(row[f"torch_{name}_error_max"])
    ]
    below = all(
        row[f"{name}_error_{kind}"] <= row[f"torch_{name}_error_{kind}"]
        for name in GRADIENTS
        for kind in ("max", "mean")
    )
    return {"not_above_torch": below, "correct": not wrong, "wrong": "; ".join(wrong)}


def gradient_cells(found: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Makes one line per distribution and depth: our errors and PyTorch's, by gradient."""
    columns = ["operands", "depth"]
    columns += [f"{name}{side}" for name in GRADIENTS.values() for side in ("", ", PyTorch's")]
    lines = [
        [row["distribution"].replace("_", " "), str(row["depth"])]
        + [tables.errors(row, f"{side}{name}_") for name in GRADIENTS for side in SIDES[:2]]
        for row in found
    ]
    return columns, lines


def cells(found: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Makes one line per distribution and depth."""
    lines = [
        [
            row["distribution"].replace("_", " "), str(row["depth"]), tables.errors(row),
            tables.errors(row, "torch_"), tables.errors(row, "math_"),
            f"{row['share_of_bound']:.2g}",
        ]
        for row in found
    ]  # fmt: skip
    return COLUMNS, lines
