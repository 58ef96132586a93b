"""The overrides of PyTorch's memory-efficient attention and of its backward.

``scaled_dot_product_attention`` takes ``aten::_scaled_dot_product_efficient_attention`` for float32
on GPUs. The overrides have the results of PyTorch's kernels, so that either backward can follow
either forward: the logsumexp, padded by Inf, and a seed and an offset, which matter for dropout
only. Gradients that autograd doesn't ask for are not computed, and returned as None.
"""

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from torch_sgemm.torch_ops.attention import (
    PADDED,
    Call,
    asked,
    by_rows,
    is_faster,
    refusal,
    split_attention,
)
from torch_sgemm.torch_ops.attention_backward import gradients_are_faster, split_gradients
from torch_sgemm.torch_ops.private import uncompiled

NAME = "_scaled_dot_product_efficient_attention"
BACKWARD = NAME + "_backward"
ALIGNED = 16  # elements that a row of the mask's gradient is a multiple of, as PyTorch's

_Holds = Callable[[], bool]
_lock = threading.Lock()
_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by name; "": was taken
_chooses = True


def chooses(wanted: bool) -> None:
    """True: a call is taken only if it is predicted to be faster than PyTorch's kernel."""
    global _chooses
    _chooses = wanted


def counts() -> dict[str, dict[str, int]]:
    """Returns the calls so far, by name and by the reason that left them to PyTorch."""
    with _lock:
        return {name: dict(reasons) for name, reasons in _counts.items()}


def reset_counts() -> None:
    """Sets the counters to zero."""
    with _lock:
        _counts.clear()


def _count(name: str, reason: str) -> bool:
    """Counts a call; True if it is taken."""
    with _lock:
        _counts[name][reason] += 1
    return not reason


def _call(query, key, value, mask, is_causal: bool, scale: float | None) -> Call:
    factor = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    return Call(query, key, value, mask, is_causal, factor)


def _reason(
    call: Call, results: tuple[Tensor | None, ...], dropout_p: float, holds: bool, ieee: bool
) -> str:
    """Returns why the call is left to PyTorch's kernel, apart from its time, or ``""``.

    ``results``: a backward's gradient, output and logsumexp.
    """
    if results and any(x is None for x in results):
        return "shape"
    given, device = [x for x in (*call[:4], *results) if x is not None], call.query.device
    for x in given:  # faster than any() with a generator
        if x.dtype is not torch.float32:
            return "dtype"
    for x in given:
        if x.device != device:
            return "device"
    if not call.query.dim() == call.key.dim() == call.value.dim() == 4 or not _fit(call):
        return "shape"
    if results and not _results_fit(call, *results):
        return "shape"
    if dropout_p:
        return "dropout"
    if not ieee:
        return "precision"
    if not holds:
        return "disabled"
    return refusal(call)[0]


def _fit(call: Call) -> bool:
    """True if the tensors have the shapes of one attention, the mask expanded."""
    batch, heads, rows, depth = call.query.shape
    keys = call.key.shape[2]
    return (
        call.key.shape == (batch, heads, keys, depth)
        and call.value.shape[:3] == call.key.shape[:3]
        and (call.mask is None or call.mask.shape == (batch, heads, rows, keys))
    )


def _results_fit(call: Call, grad: Tensor, out: Tensor, logsumexp: Tensor) -> bool:
    """True if the tensors have the shapes of a call's results, with logsumexp padded."""
    *sizes, _ = call.query.shape
    shape = (*sizes, call.value.shape[3])
    padded = (*sizes[:2], (sizes[2] + PADDED - 1) // PADDED * PADDED)
    return grad.shape == out.shape == shape and logsumexp.shape == padded


def _slower(call: Call, is_faster: Callable[[Call], bool]) -> str:
    return "" if not _chooses or is_faster(call) else "predicted slower"


def _forward(covered: Callable, holds: _Holds, is_ieee: _Holds) -> Callable:
    """Returns the forward's override, which leaves calls to ``covered`` that it doesn't take."""

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
        call = _call(query, key, value, attn_bias, is_causal, scale)
        reason = _reason(call, (), dropout_p, holds(), is_ieee()) or _slower(call, is_faster)
        if not _count(NAME, reason):
            return covered(query, key, value, *rest, scale=scale)
        # Two tensors on the device: compiled programs expect aligned memory that a graph can hold.
        seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
        return *split_attention(call, compute_log_sumexp), seed, offset

    return attention


def _backward(covered: Callable, holds: _Holds, is_ieee: _Holds) -> Callable:
    """Returns the backward's override, which leaves calls to ``covered`` that it doesn't take."""

    @uncompiled
    def attention_backward(
        grad_out: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_bias: Tensor | None,
        out: Tensor,
        logsumexp: Tensor,
        philox_seed: Tensor,
        philox_offset: Tensor,
        dropout_p: float,
        grad_input_mask: list[bool],
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ):
        def pytorch_s():
            rest = philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal
            tensors = grad_out, query, key, value, attn_bias, out, logsumexp
            return covered(*tensors, *rest, scale=scale)

        if asked.pytorch_s:
            return pytorch_s()
        call = _call(query, key, value, attn_bias, is_causal, scale)
        results = grad_out, out, logsumexp
        reason = _reason(call, results, dropout_p, holds(), is_ieee())
        if not _count(BACKWARD, reason or _slower(call, gradients_are_faster)):
            return pytorch_s()
        of_query, of_key, of_value, of_mask = grad_input_mask
        wanted = of_query, of_key or of_value, of_mask and attn_bias is not None
        *found, for_mask = split_gradients(call, *results, wanted)
        found = [by_rows(x) if x.dim() == 4 else None for x in found]
        return *found, _aligned(for_mask) if wanted[2] else None

    return attention_backward


def _aligned(x: Tensor) -> Tensor:
    """Lays out the mask's gradient as PyTorch's kernel does, which compiled programs expect."""
    keys = x.shape[-1]
    if keys % ALIGNED == 0:
        return x.contiguous()
    return torch.nn.functional.pad(x, (0, -keys % ALIGNED))[..., :keys]


OVERRIDES: dict[str, Callable] = {NAME: _forward, BACKWARD: _backward}
