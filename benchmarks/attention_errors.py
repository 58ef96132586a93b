"""Errors of attention on twelve distributions, beside PyTorch's two float32 kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_sgemm
from benchmarks import tables
from benchmarks.distributions import generator
from benchmarks.errors import UNIT, in_units

HEADS, QUERIES, KEYS = 2, 512, 2048
DEPTHS = (64, 128)
COLUMNS = ["operands", "depth", "split", "PyTorch's", "PyTorch's math", "share of the bound"]


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
    for side, out in (("", ours), ("torch_", run("aten")), ("math_", _math(x))):
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
