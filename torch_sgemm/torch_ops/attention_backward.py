"""``sgemm::_attention_backward``: the gradients of attention, those that are asked for.

``_attention_backward(grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale,
wants_query, wants_keys, wants_mask, kernel="auto")`` returns the gradients of query, key, value and
mask; one that is not asked for has no elements. ``wants_keys`` asks for those of key and value.
``attn_mask`` has all dimensions, and so has its gradient. ``out`` and ``logsumexp`` are results of
``sgemm::attention``, or of PyTorch's fused kernels. ``kernel`` is the forward's.

The kernels of csrc/attention are deterministic. docs/attention-error.md says how exact they are.
"""

import functools

import torch
from torch import Tensor

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.attention import (
    Call,
    added,
    bias_of,
    by_rows,
    is_efficient,
    is_flash,
    is_taken,
    pytorch_s,
    repeated,
    weights_by_products,
    with_unit_stride,
)
from torch_sgemm.torch_ops.distributed import register_if_loaded
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import NAMESPACE, operators, out_of_memory, qualified
from torch_sgemm.torch_ops.vmap import batched

NAME = "_attention_backward"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define(
    f"{NAME}(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor out, "
    "Tensor logsumexp, bool is_causal, float scale, bool wants_query, bool wants_keys, "
    'bool wants_mask, str kernel="auto") -> (Tensor, Tensor, Tensor, Tensor)'
)
backward_op = operators._attention_backward.default
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]  # of query, key, value and mask
Wanted = tuple[bool, bool, bool]  # query, keys, mask


@functools.lru_cache(maxsize=4096)
def _seconds(shape: tuple[int, ...], causal: bool, masked: bool, index: int) -> tuple[float, float]:
    return operators._attention_gradients_seconds(shape, causal, masked, operators._device(index))


def gradients_are_faster(call: Call) -> bool:
    """True if csrc/attention is predicted to compute gradients faster than PyTorch."""
    index = call.query.device.index
    ours, theirs = _seconds(call.shape, call.is_causal, call.mask is not None, index)
    return ours < theirs


def split_gradients(
    call: Call, grad: Tensor, out: Tensor, logsumexp: Tensor, wanted: Wanted
) -> Gradients:
    """Computes gradients by csrc/attention. Precondition: no ``refusal()`` of the call."""
    grad, query, key, value, out = map(with_unit_stride, (grad, *call[:3], out))
    rest = call.mask, out, logsumexp.contiguous(), call.is_causal, call.scale, *wanted
    try:
        return operators._attention_gradients(grad, query, key, value, *rest)
    except RuntimeError as failure:
        raise out_of_memory(failure, True) from None


# ---- PyTorch's kernels


def _by_efficient(call: Call, grad: Tensor, out: Tensor, logsumexp: Tensor, wanted: Wanted):
    heads = call.query.shape[1]
    key, value, bias = repeated(call.key, heads), repeated(call.value, heads), bias_of(call.mask)
    nothing = torch.empty((), dtype=torch.int64)
    with pytorch_s():
        return private.efficient_backward(
            grad.contiguous(), call.query, key, value, bias, out, logsumexp, nothing, nothing, 0.0,
            [True, True, True, wanted[2]], call.is_causal, scale=call.scale,
        )  # fmt: skip


def _by_flash(call: Call, grad: Tensor, out: Tensor, logsumexp: Tensor):
    heads = call.query.shape[1]
    tensors = grad, call.query, repeated(call.key, heads), repeated(call.value, heads), out
    found = private.flash_cpu_backward(
        *map(with_unit_stride, tensors), logsumexp[..., : call.query.shape[2]], 0.0, call.is_causal,
        attn_mask=added(call.mask), scale=call.scale,
    )  # fmt: skip
    return *found, None


def _by_products(call: Call, grad: Tensor, out: Tensor | None):
    """Computes gradients by operators of PyTorch that have all derivatives."""
    heads = call.query.shape[1]
    key, value = repeated(call.key, heads), repeated(call.value, heads)
    weights, _ = weights_by_products(call)
    of_weights = grad @ value.mT - (grad * (weights @ value if out is None else out)).sum(
        -1, keepdim=True
    )
    of_logits = torch.where(weights == 0, 0, weights * of_weights)
    scaled = of_logits * call.scale
    return scaled @ key, scaled.mT @ call.query, weights.mT @ grad, of_logits


def _summed(call: Call, gradients: tuple[Tensor, ...], wanted: Wanted) -> Gradients:
    """Adds up keys' gradients over a group's heads, and drops those that nobody wants."""
    of_query, of_key, of_value, of_mask = gradients
    heads, groups = call.query.shape[1], call.key.shape[1]
    if groups != heads:
        sizes = groups, heads // groups
        of_key, of_value = (x.unflatten(1, sizes).sum(2) for x in (of_key, of_value))
    nothing = call.query.new_empty(0)
    wants_query, wants_keys, wants_mask = wanted
    return (
        of_query if wants_query else nothing,
        *((of_key, of_value) if wants_keys else (nothing, nothing.clone())),
        of_mask if wants_mask else nothing.clone(),
    )


def gradients_by_products(call: Call, grad: Tensor, wanted: Wanted) -> Gradients:
    """Computes gradients by operators of PyTorch that have all derivatives."""
    return _summed(call, _by_products(call, grad, None), wanted)


# ---- the operator


def _laid_out(gradients: Gradients) -> Gradients:
    """Lays out the first three by rows, as PyTorch's kernels do."""
    *by_row, of_mask = gradients
    return *(by_rows(x) if x.dim() == 4 else x for x in by_row), of_mask.contiguous()


@private.uncompiled
def _run(grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale,
         wants_query, wants_keys, wants_mask, kernel="auto"):  # fmt: skip
    call = Call(query, key, value, attn_mask, is_causal, scale)
    wanted = wants_query, wants_keys, wants_mask
    with private.below_views():
        if is_taken(NAME, call, kernel, gradients_are_faster):
            return _laid_out(split_gradients(call, grad, out, logsumexp, wanted))
        if is_efficient(call):
            gradients = _by_efficient(call, grad, out, logsumexp, wanted)
        elif is_flash(call) and not wants_mask:
            gradients = _by_flash(call, grad, out, logsumexp)
        else:
            gradients = _by_products(call, grad, out)
        return _laid_out(_summed(call, gradients, wanted))


for _backend in ("CPU", "CUDA"):
    _library.impl(NAME, _run, _backend)


@torch.library.register_fake(qualified(NAME))
def _(grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale,
      wants_query, wants_keys, wants_mask, kernel="auto"):  # fmt: skip
    register_lowerings([NAME])
    register_if_loaded()

    def like(x: Tensor, wanted: bool) -> Tensor:
        batch, heads, rows, depth = x.shape
        if not wanted:
            return x.new_empty(0)
        return x.new_empty((batch, rows, heads, depth)).transpose(1, 2)

    of_mask = grad.new_empty(attn_mask.shape if wants_mask else 0)
    return like(query, wants_query), like(key, wants_keys), like(value, wants_keys), of_mask


@torch.library.register_vmap(qualified(NAME))
def _(info, in_dims, grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale,
      wants_query, wants_keys, wants_mask, kernel="auto"):  # fmt: skip
    """The vmapped dimension becomes a part of the batch."""
    size = info.batch_size
    tensors = grad, query, key, value, attn_mask, out, logsumexp
    flat = [
        None if x is None else batched(x, dim, size).flatten(0, 1)
        for x, dim in zip(tensors, in_dims, strict=False)
    ]
    wanted = wants_query, wants_keys, wants_mask
    found = backward_op(*flat, is_causal, scale, *wanted, kernel)
    has = wants_query, wants_keys, wants_keys, wants_mask
    results = (x.unflatten(0, (size, -1)) if y else x for x, y in zip(found, has, strict=True))
    return tuple(results), tuple(0 if y else None for y in has)
