"""Sharding rules of DTensors: ``mm``, ``bmm``, ``addmm``, ``baddbmm``, ``linear``, ``attention``.

The rules are those of the aten operators of the same names, on every dimension of the mesh:

    split along m, n or the batch     C is split in the same way
    A and B split along k             C is a partial sum; the addend is made one as well
    A or B a partial sum              C is a partial sum, where this holds for aten's products
    otherwise                         operands are redistributed, at the least cost

``linear`` multiplies x, whose rows may be split along any of their dimensions, by the weight's
transpose, with the bias as the addend. An activation needs whole sums, so its result is never
partial.

``attention`` and its backward are split by batch or heads. Heads that share a key are split only if
the keys' heads are a multiple of the mesh's processes.

Each process calls the operator on its own parts, so ``kernel="auto"`` chooses by the parts' shapes.
The ``_out`` operators and ``gemm_`` have no rule, and DTensor raises NotImplementedError. Their
placement follows from a tensor that is written, which PyTorch's public registration can't express.
Under ``torch_sgemm.enable()``, products of DTensors follow aten's rules.

The operators' fakes call :func:`register_if_loaded`, and DTensor runs a fake before it looks for
the rule. So the order of imports doesn't matter, and a program without DTensors never loads
``torch.distributed.tensor``. :func:`register` registers the rules explicitly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torch_sgemm.torch_ops.library import operators

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

    # Placements on one dimension of the mesh: the result's, and the operands' that give it.
    Rule = tuple[list[Placement], list[Placement]]

# Dimensions of A, B and C by operator. _ORDER is the order in which aten tries to split them, and
# of rules with equal cost the first holds.
_EQUATIONS = {
    "mm": ("mk", "kn", "mn"),
    "bmm": ("bmk", "bkn", "bmn"),
    "_matmul": ("Abmk", "Abkn", "Abmn"),
}
_ORDER = "bkmn"
_ROWS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # dimensions of linear's rows; an outer batch

_registered = False


def register_if_loaded() -> None:
    """:func:`register`, if the program has imported ``torch.distributed.tensor``."""
    if not _registered and _dtensor() is not None:
        register()


def has_split_rows(x: torch.Tensor) -> bool:
    """True if ``x`` is a DTensor split along an inner dimension: (rows, n) isn't possible."""
    kind = _dtensor()
    if kind is None or not isinstance(x, kind):
        return False
    return any(p.is_shard() and 0 < p.dim % x.dim() < x.dim() - 1 for p in x.placements)


def _dtensor() -> type | None:
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)


def register() -> None:
    """Registers the rules, once. ImportError if this PyTorch was built without distributed."""
    global _registered
    if _registered:
        return
    from torch.distributed.tensor.experimental import register_sharding

    for product, product_sum in (("mm", "addmm"), ("bmm", "baddbmm")):
        register_sharding(getattr(operators, product).default)(_product_rules(product))
        register_sharding(getattr(operators, product_sum).default)(_sum_rules(product))
    register_sharding(operators._matmul.default)(_product_rules("_matmul"))
    register_sharding(operators.linear.default)(_linear_rules)
    register_sharding(operators.attention.default)(_attention_rules)
    register_sharding(operators._attention_backward.default)(_attention_backward_rules)
    _registered = True


def _product_rules(name: str) -> Callable[..., list[Rule]]:
    def rules(a: DTensor, b: DTensor, kernel: str = "auto") -> list[Rule]:
        return _rules(*_EQUATIONS[name], (a, b))

    return rules


def _sum_rules(name: str) -> Callable[..., list[Rule]]:
    def rules(
        c: DTensor,
        a: DTensor,
        b: DTensor,
        kernel: str = "auto",
        *,
        beta: float = 1.0,
        alpha: float = 1.0,
    ) -> list[Rule]:
        dims = len(_EQUATIONS[name][-1])
        return [
            ([out], [_addend(out, c.shape, dims), *operands])
            for [out], operands in _rules(*_EQUATIONS[name], (c, a, b))
        ]

    return rules


def _linear_rules(
    x: DTensor,
    weight: DTensor,
    bias: DTensor | None = None,
    activation: str | None = None,
    kernel: str = "auto",
) -> list[Rule]:
    rows = _ROWS[: len(x.shape) - 1]
    tensors = (x, weight) if bias is None else (x, weight, bias)
    rules = _rules(rows + "k", "nk", rows + "n", tensors)
    if activation is not None:
        rules = [rule for rule in rules if not rule[0][0].is_partial()]
    if bias is None:
        return rules
    return [([out], [*both, _addend(out, bias.shape, len(rows) + 1)]) for [out], both in rules]


def _rules(a: str, b: str, result: str, tensors: Sequence[DTensor]) -> list[Rule]:
    """Returns the rules of a product with these dimension letters, without the addend."""
    from torch.distributed.tensor import Partial, Replicate

    operands = a, b
    rules: list[Rule] = [([Replicate()], [Replicate(), Replicate()])]
    for letter in _ROWS + _ORDER:
        if letter not in a + b:
            continue
        for kind in _kinds_of_shard(tensors):
            rules.append(
                (
                    [_shard(kind, result.index(letter)) if letter in result else Partial()],
                    [
                        _shard(kind, operand.index(letter)) if letter in operand else Replicate()
                        for operand in operands
                    ],
                )
            )
    for reduction in _linear_reductions():
        partial = Partial(reduction)
        rules.append(([partial], [partial, Replicate()]))
        rules.append(([partial], [Replicate(), partial]))
    return rules


def _linear_reductions() -> Sequence[str]:
    """Returns reductions whose partial operands aten's products take: none in older PyTorch."""
    from torch.distributed.tensor import Partial

    return getattr(Partial, "LINEAR_REDUCE_OPS", ())


def _kinds_of_shard(tensors: Sequence[DTensor]) -> list[Placement]:
    """Returns the operands' kinds of shard, as aten's rules do if they take partial operands.

    Besides Shard there is the strided kind, which a view that flattens dimensions makes.
    """
    from torch.distributed.tensor import Shard

    if not _linear_reductions():
        return [Shard(0)]
    kinds: dict[int | None, Placement] = {}
    for placement in (p for tensor in tensors for p in tensor.placements if hasattr(p, "dim")):
        kinds.setdefault(getattr(placement, "split_factor", None), placement)
    return list(kinds.values())


def _shard(kind: Placement, dim: int) -> Placement:
    """Returns a placement of the same kind along ``dim``."""
    factor = getattr(kind, "split_factor", None)
    return type(kind)(dim) if factor is None else type(kind)(dim, split_factor=factor)


def _addend(out: Placement, shape: torch.Size, dims: int) -> Placement:
    """Returns an addend's placement; it broadcasts to a result of ``dims`` dimensions."""
    from torch.distributed.tensor import Replicate

    if not hasattr(out, "dim"):
        return out
    dim = out.dim - (dims - len(shape))
    return Replicate() if dim < 0 or shape[dim] == 1 else _shard(out, dim)


def _split_dims(query: DTensor, key: DTensor) -> list[int]:
    """Returns the dimensions along which attention can be split: batch, heads."""
    heads, groups = query.shape[1], key.shape[1]
    return [0, 1] if heads == groups or groups % query.mesh.size() == 0 else [0]


def _attention_rules(
    query: DTensor,
    key: DTensor,
    value: DTensor,
    attn_mask: DTensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    kernel: str = "auto",
) -> list[Rule]:
    from torch.distributed.tensor import Replicate, Shard

    rules: list[Rule] = []
    for split in (Replicate(), *map(Shard, _split_dims(query, key))):
        mask = [] if attn_mask is None else [_addend(split, attn_mask.shape, 4)]
        rules.append(([split] * 2, [split] * 3 + mask))
    return rules


def _attention_backward_rules(
    grad: DTensor,
    query: DTensor,
    key: DTensor,
    value: DTensor,
    attn_mask: DTensor | None,
    out: DTensor,
    logsumexp: DTensor,
    is_causal: bool,
    scale: float,
    wants_query: bool,
    wants_keys: bool,
    wants_mask: bool,
    kernel: str = "auto",
) -> list[Rule]:
    from torch.distributed.tensor import Replicate, Shard

    wanted = wants_query, wants_keys, wants_keys, wants_mask
    rules: list[Rule] = []
    for split in (Replicate(), *map(Shard, _split_dims(query, key))):
        mask = [] if attn_mask is None else [split]  # it has the shape of the logits
        gradients = [split if wants else Replicate() for wants in wanted]
        rules.append((gradients, [*[split] * 4, *mask, split, split]))
    return rules
