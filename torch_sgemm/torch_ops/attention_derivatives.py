"""Derivatives of ``sgemm::attention`` and of its gradients.

First derivatives are those of ``sgemm::_attention_backward``. Those of higher order, and tangents
of forward mode, take PyTorch's products and softmax, with all weights in memory: PyTorch's fused
kernels have none.
"""

import math
from functools import partial

import torch
from torch import Tensor

from torch_sgemm.torch_ops.attention import Call, attention_by_products, attention_op, checked
from torch_sgemm.torch_ops.attention_backward import NAME, backward_op, gradients_by_products
from torch_sgemm.torch_ops.autograd import Derivative, below, has_tangent, implement, needed


class SgemmAttention(Derivative):
    """The output, and the logsumexp of its rows, which has no derivative."""

    @staticmethod
    def forward(ctx, run, query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel):
        out, logsumexp = run(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel)
        ctx.mark_non_differentiable(logsumexp)
        ctx.set_materialize_grads(False)  # no zeros for logsumexp
        ctx.save_for_backward(query, key, value, attn_mask, out, logsumexp)
        ctx.is_causal, ctx.kernel = is_causal, kernel
        ctx.scale = 1 / math.sqrt(query.shape[3] or 1) if scale is None else scale
        return out, logsumexp

    @staticmethod
    def backward(ctx, grad: Tensor | None, _):
        if grad is None:  # what reads the output has no derivative
            return (None,) * len(ctx.needs_input_grad)
        query, key, value, mask, out, logsumexp = ctx.saved_tensors
        _, of_query, of_key, of_value, of_mask, *rest = needed(ctx)
        logits = (*query.shape[:3], key.shape[2])
        gradients = backward_op(
            grad, query, key, value, None if mask is None else mask.expand(logits), out, logsumexp,
            ctx.is_causal, ctx.scale, of_query, of_key or of_value, of_mask, ctx.kernel,
        )  # fmt: skip
        *found, for_logits = (
            x if wanted else None
            for x, wanted in zip(gradients, (of_query, of_key, of_value, of_mask), strict=True)
        )
        for_mask = for_logits.sum_to_size(mask.shape) if of_mask else None
        return None, *found, for_mask, *(None for _ in rest)


class SgemmAttentionGradients(Derivative):
    """Gradients of attention as functions of grad, query, key, value and mask alone."""

    @staticmethod
    def forward(ctx, run, grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale,
                wants_query, wants_keys, wants_mask, kernel):  # fmt: skip
        ctx.save_for_backward(grad, query, key, value, attn_mask)
        ctx.is_causal, ctx.scale = is_causal, scale
        ctx.wanted = wanted = wants_query, wants_keys, wants_mask
        rest = attn_mask, out, logsumexp, is_causal, scale, *wanted, kernel
        found = run(grad, query, key, value, *rest)
        nothing = [x for x in found if x.dim() == 1]  # was not wanted
        ctx.mark_non_differentiable(*nothing)
        return found

    @staticmethod
    def backward(ctx, *grads: Tensor):
        *tensors, mask = ctx.saved_tensors
        is_added = mask is not None and mask.dtype == torch.float32

        def gradients(grad, query, key, value, *added):
            call = Call(query, key, value, *(added or (mask,)), ctx.is_causal, ctx.scale)
            return tuple(x for x in gradients_by_products(call, grad, ctx.wanted) if x.dim() == 4)

        if is_added:
            tensors.append(mask)
        _, pull = torch.func.vjp(gradients, *tensors)
        found = list(pull(tuple(x for x in grads if x.dim() == 4)))
        return None, *found, *(None for _ in range(13 - len(found)))


def _attention(keyset, query, key, value, attn_mask=None, is_causal=False, scale=None,
               enable_gqa=False, kernel="auto"):  # fmt: skip
    args = query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel
    if has_tangent(query, key, value, attn_mask):
        return attention_by_products(checked(*args))
    return SgemmAttention.at_level(partial(below, attention_op, keyset), *args)


def _gradients(keyset, grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale,
               wants_query, wants_keys, wants_mask, kernel="auto"):  # fmt: skip
    rest = is_causal, scale, wants_query, wants_keys, wants_mask, kernel
    if has_tangent(grad, query, key, value, attn_mask):
        call = Call(query, key, value, attn_mask, is_causal, scale)
        return gradients_by_products(call, grad, (wants_query, wants_keys, wants_mask))
    run = partial(below, backward_op, keyset)
    return SgemmAttentionGradients.at_level(
        run, grad, query, key, value, attn_mask, out, logsumexp, *rest
    )


implement("attention", _attention)
implement(NAME, _gradients)
