"""The override of PyTorch's memory-efficient attention.

``scaled_dot_product_attention`` takes ``aten::_scaled_dot_product_efficient_attention`` for float32
on GPUs. The override has its results, so that PyTorch's backward follows it: the logsumexp, padded
by Inf, and a seed and an offset, which matter for dropout only.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from torch_sgemm.torch_ops.attention import Call, asked, is_faster, refusal, split_attention
from torch_sgemm.torch_ops.private import uncompiled

NAME = "_scaled_dot_product_efficient_attention"

_lock = threading.Lock()
_counts: Counter[str] = Counter()  # by reason; "" for calls that were taken
_chooses = True


def chooses(wanted: bool) -> None:
    """True: a call is taken only if it is predicted to be faster than PyTorch's kernel."""
    global _chooses
    _chooses = wanted


def counts() -> dict[str, int]:
    """Returns the calls so far by the reason that left them to PyTorch."""
    with _lock:
        return dict(_counts)


def reset_counts() -> None:
    """Sets the counters to zero."""
    with _lock:
        _counts.clear()


def _reason(call: Call, dropout_p: float, holds: bool, ieee: bool) -> str:
    """Returns why the call is left to PyTorch's kernel, or ``""``."""
    tensors = [x for x in call[:4] if x is not None]
    if any(x.dtype is not torch.float32 for x in tensors):
        return "dtype"
    if any(x.device != call.query.device for x in tensors):
        return "device"
    if any(x.dim() != 4 for x in tensors) or not _fit(call):
        return "shape"
    if dropout_p:
        return "dropout"
    if not ieee:
        return "precision"
    if not holds:
        return "disabled"
    return refusal(call)[0] or ("" if not _chooses or is_faster(call) else "predicted slower")


def _fit(call: Call) -> bool:
    """True if the tensors have the shapes of one attention, the mask expanded."""
    batch, heads, rows, depth = call.query.shape
    keys = call.key.shape[2]
    return (
        call.key.shape == (batch, heads, keys, depth)
        and call.value.shape[:3] == call.key.shape[:3]
        and (call.mask is None or call.mask.shape == (batch, heads, rows, keys))
    )


def override(covered: Callable, holds: Callable[[], bool], is_ieee: Callable[[], bool]) -> Callable:
    """Returns the override, which leaves calls to ``covered`` that it doesn't take."""

    @uncompiled
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Tensor | None,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ):
        rest = attn_bias, compute_log_sumexp, dropout_p, is_causal
        if asked.pytorch_s:
            return covered(query, key, value, *rest, scale=scale)
        factor = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
        call = Call(query, key, value, attn_bias, is_causal, factor)
        reason = _reason(call, dropout_p, holds(), is_ieee())
        with _lock:
            _counts[reason] += 1
        if reason:
            return covered(query, key, value, *rest, scale=scale)
        seed, offset = torch.empty((2,), dtype=torch.int64).unbind()
        return *split_attention(call, compute_log_sumexp), seed, offset

    return attention
