"""Errors of functions that are linear in each of their tensors: products of any kind, and sums.

Such a function of the operands' absolute values, in float64, is the magnitude that the rounding
errors are measured by. Its gradients are linear in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from support.bounds import Reference, ffma_units

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Outcome:
    """A function's value and its gradients by the operands, in their order."""

    value: Tensor
    gradients: tuple[Tensor | None, ...]

    def tensors(self) -> list[Tensor]:
        return [x for x in (self.value, *self.gradients) if x is not None]


def run(function: Function, args: tuple, kwargs: dict, seed: Tensor | None = None) -> Outcome:
    """Forward and backward; ``seed`` is the gradient that flows in, ones if None."""
    leaves, tree = tree_flatten((args, kwargs))
    leaves = [x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in leaves]
    args, kwargs = tree_unflatten(leaves, tree)
    value = function(*args, **kwargs)
    seed = torch.ones_like(value) if seed is None else seed.to(value.dtype)
    operands = [x for x in leaves if isinstance(x, Tensor)]
    gradients = torch.autograd.grad(value, operands, seed, allow_unused=True)
    return Outcome(value.detach(), gradients)


def references(
    function: Function, args: tuple, kwargs: dict, seed: Tensor | None = None
) -> list[Reference]:
    """Returns the results of :func:`run` in float64, and the magnitudes of their errors."""

    def absolute(x):
        return x.abs() if isinstance(x, Tensor) else abs(x) if isinstance(x, (int, float)) else x

    args, kwargs = tree_map(lambda x: x.double() if isinstance(x, Tensor) else x, (args, kwargs))
    exact = run(function, args, kwargs, seed)
    scale = run(function, *tree_map(absolute, (args, kwargs)), None if seed is None else seed.abs())
    pairs = zip(exact.tensors(), scale.tensors(), strict=True)
    return [Reference(value, magnitude) for value, magnitude in pairs]


def assert_accurate(
    function: Function,
    args: tuple,
    kwargs: dict,
    result: Outcome,
    seed: Tensor | None = None,
    plain: Outcome | None = None,
) -> None:
    """Holds ``result`` to the FFMA bound, or to twice the error of ``plain`` where that is more."""
    expected = references(function, args, kwargs, seed)
    tensors = result.tensors()
    assert len(tensors) == len(expected), "a gradient is missing"
    others = plain.tensors() if plain else [None for _ in tensors]
    operands = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    depth = max((x.numel() for x in operands), default=1)
    for reference, tensor, other in zip(expected, tensors, others, strict=True):
        assert tensor.dtype == torch.float32
        assert tensor.shape == reference.value.shape
        bound = ffma_units(depth)
        if other is not None:
            bound = max(bound, 2 * reference.units(other))
        assert reference.units(tensor) <= bound
