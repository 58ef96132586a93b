"""``sgemm::attention``: attention of float32 tensors.

``attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False,
kernel="auto")`` returns the output (B, H, L, Dv) and the logsumexp of each row's logits, (B, H, L)
with L padded to a multiple of 32 by Inf.

``query`` is (B, H, L, D), ``key`` (B, G, S, D) and ``value`` (B, G, S, Dv): float32 on one device,
any strides. G is H, or divides it with ``enable_gqa``. ``attn_mask`` is bool (True takes part) or
float32 (added), of a shape that broadcasts to (B, H, L, S). ``scale`` is 1/sqrt(D) by default. A
key that is masked by False, by -Inf or by causality takes no part; a row without keys gives zeros,
and 0 as its logsumexp.

``kernel`` is ``"split"`` (csrc/attention, on compute capability 9.0: D and Dv multiples of 8 up to
128), ``"aten"`` (PyTorch's kernels) or ``"auto"``, the one that is predicted to be faster. The
operator has first derivatives, by PyTorch's kernels. RuntimeError means wrong arguments, or that
``"split"`` can't take the call; docs/attention.md has the error's bound.
"""

import functools
import json
import math
import threading
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.distributed import register_if_loaded
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import NAMESPACE, operators, out_of_memory, qualified
from torch_sgemm.torch_ops.ops import about
from torch_sgemm.torch_ops.vmap import batched

KERNELS = ("auto", "split", "aten")
PADDED = 32  # logsumexp's rows are multiples of it, as PyTorch's
MOST_DEPTH, MOST_ROWS = 128, (1 << 30) - 1  # of csrc/binding/attention.cpp

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    'bool is_causal=False, float? scale=None, bool enable_gqa=False, str kernel="auto")'
    " -> (Tensor, Tensor)"
)
_library.define(
    "_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "Tensor out, Tensor logsumexp, bool is_causal, float scale, bool wants_mask)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
attention_op = operators.attention.default
_backward = operators._attention_backward.default
_aten = torch.ops.aten


class Call(NamedTuple):
    """The arguments of a call that is right, with the mask expanded to (B, H, L, S)."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    is_causal: bool
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, H, G, L, S, D, Dv)."""
        batch, heads, rows, depth = self.query.shape
        _, groups, keys, value_depth = self.value.shape
        return batch, heads, groups, rows, keys, depth, value_depth


def checked(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel) -> Call:
    """Checks the arguments; RuntimeError names the first that is wrong."""
    op = qualified("attention")

    def require(holds: bool, name: str, x: Tensor, accepted: str) -> None:
        torch._check(holds, lambda: f"{op}: {name!r} has {about(x)}; accepted: {accepted}")

    torch._check(
        kernel in KERNELS,
        lambda: f"{op}: argument 'kernel' is {kernel!r}; accepted: {', '.join(map(repr, KERNELS))}",
    )
    for name, x in (("query", query), ("key", key), ("value", value)):
        require(
            x.dtype is torch.float32 and x.dim() == 4 and x.device == query.device,
            name, x, f"float32 of four dimensions on {query.device}",
        )  # fmt: skip
    batch, heads, rows, depth = query.shape
    _, groups, keys, _ = key.shape
    divides = groups > 0 and heads % groups == 0
    require(
        key.shape[0] == batch
        and (groups == heads or (enable_gqa and divides))
        and key.shape[3] == depth,
        "key", key,
        f"({batch}, {'a divisor of ' if enable_gqa else ''}{heads}, keys, {depth}), as for 'query'",
    )  # fmt: skip
    require(value.shape[:3] == key.shape[:3], "value", value, f"({batch}, {groups}, {keys}, any)")
    if attn_mask is not None:
        shape = (batch, heads, rows, keys)
        require(
            attn_mask.dtype in (torch.bool, torch.float32)
            and attn_mask.device == query.device
            and attn_mask.dim() <= 4
            and all(n in (1, m) for n, m in zip(attn_mask.shape[::-1], shape[::-1], strict=False)),
            "attn_mask", attn_mask,
            f"bool or float32 on {query.device}, of a shape that broadcasts to {list(shape)}",
        )  # fmt: skip
        torch._check(
            not is_causal, lambda: f"{op}: 'attn_mask' beside is_causal=True; accepted: one"
        )
        attn_mask = attn_mask.expand(shape)
    if scale is None:
        scale = 1 / math.sqrt(depth) if depth else 1.0
    return Call(query, key, value, attn_mask, is_causal, scale)


# ---- the kernels of csrc/attention


@functools.cache
def is_built() -> bool:
    """True if this build has the kernels, as it has the rows of the family split."""
    rows = json.loads(operators._kernels())
    return any(row["family"] == "split" and "cuda" in row["devices"] for row in rows)


@functools.cache
def _runs_here(index: int) -> bool:
    return is_built() and torch.cuda.get_device_capability(index) == (9, 0)


def refused_shape(shape: tuple[int, ...]) -> str:
    """Returns why the kernels can't take a call of this shape, or ``""``."""
    batch, heads, groups, rows, keys, *depths = shape
    if 0 in shape:
        return "a size is 0"
    if any(n % 8 or n > MOST_DEPTH for n in depths):
        return f"the last dimension is no multiple of 8, or above {MOST_DEPTH}"
    if batch * max(heads * rows, groups * keys) >= MOST_ROWS:
        return "there are 2^30 rows or more"
    return ""


def refusal(call: Call) -> tuple[str, str]:
    """Returns why the kernels can't take a call: a word for ``stats()`` and a text, or ``""``."""
    if not call.query.is_cuda or not _runs_here(call.query.device.index):
        return (
            "device",
            "the device is no GPU of compute capability 9.0 that this build has code for",
        )
    why = refused_shape(call.shape)
    return ("shape" if why else ""), why


@functools.lru_cache(maxsize=4096)
def _seconds(shape: tuple[int, ...], causal: bool, masked: bool, index: int) -> tuple[float, float]:
    return operators._attention_seconds(shape, causal, masked, operators._device(index))


def is_faster(call: Call) -> bool:
    """True if the kernels of csrc/attention are predicted to be faster than PyTorch's."""
    ours, theirs = _seconds(
        call.shape, call.is_causal, call.mask is not None, call.query.device.index
    )
    return ours < theirs


def split_attention(call: Call, with_logsumexp: bool = True) -> tuple[Tensor, Tensor]:
    """Computes a call by csrc/attention. Precondition: no :func:`refusal`."""
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in call[:3])
    return operators._attention(query, key, value, *call[3:], with_logsumexp)


# ---- PyTorch's kernels


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _bias(mask: Tensor | None) -> Tensor | None:
    """Returns the mask as PyTorch's memory-efficient kernel reads it: added, aligned rows."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -math.inf)
    keys = mask.shape[-1]
    if keys % 16 or mask.stride(-1) != 1 or any(step % 16 for step in mask.stride()[:-1]):
        mask = functional.pad(mask, (0, -keys % 16))[..., :keys]
    return mask


def _is_efficient(call: Call) -> bool:
    return call.query.is_cuda and 0 not in call.shape and not any(n % 4 for n in call.shape[5:])


def _logits(call: Call, heads: int) -> Tensor:
    logits = (call.query * call.scale) @ _repeated(call.key, heads).mT
    if call.is_causal:
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        logits = logits.masked_fill(~ones.tril(), -math.inf)
    if call.mask is None:
        return logits
    if call.mask.dtype is torch.bool:
        return logits.masked_fill(~call.mask, -math.inf)
    return logits + call.mask


def _math(call: Call) -> tuple[Tensor, Tensor]:
    """Computes a call by products and softmax; rows without keys give zeros."""
    heads = call.query.shape[1]
    logits = _logits(call, heads)
    none = (logits == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(none, 0), -1).masked_fill(none, 0)
    out = weights @ _repeated(call.value, heads)
    return out, torch.logsumexp(logits, -1).masked_fill(none.squeeze(-1), 0)


class _Asked(threading.local):
    """True in a thread that calls PyTorch's own kernel, which an override leaves to it."""

    pytorch_s = False


asked = _Asked()


def _efficient(call: Call) -> tuple[Tensor, Tensor]:
    heads = call.query.shape[1]
    return _aten._scaled_dot_product_efficient_attention(
        call.query, _repeated(call.key, heads), _repeated(call.value, heads), _bias(call.mask),
        True, 0.0, call.is_causal, scale=call.scale,
    )[:2]  # fmt: skip


def _pytorch_attention(call: Call) -> tuple[Tensor, Tensor]:
    if _is_efficient(call):
        asked.pytorch_s = True
        try:
            return _efficient(call)
        finally:
            asked.pytorch_s = False
    out, logsumexp = _math(call)
    padded = functional.pad(logsumexp, (0, -logsumexp.shape[-1] % PADDED), value=math.inf)
    return out.transpose(1, 2).contiguous().transpose(1, 2), padded


# ---- the operator


@private.uncompiled
def _run(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False,
         kernel="auto"):  # fmt: skip
    call = checked(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel)
    if kernel != "aten":
        _, why = refusal(call)
        if kernel == "split" and why:
            raise RuntimeError(f"{qualified('attention')}: argument 'kernel' is 'split': {why}")
        if not why and (kernel == "split" or is_faster(call)):
            try:
                return split_attention(call)
            except RuntimeError as failure:
                raise out_of_memory(failure, True) from None
    return _pytorch_attention(call)


@private.uncompiled
def _run_backward(grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale, wants_mask):
    call = Call(query, key, value, attn_mask, is_causal, scale)
    heads, groups = query.shape[1], key.shape[1]
    if _is_efficient(call):
        k, v, bias = _repeated(key, heads), _repeated(value, heads), _bias(attn_mask)
        nothing = torch.empty((), dtype=torch.int64)
        grads = _aten._scaled_dot_product_efficient_attention_backward(
            grad.contiguous(), query, k, v, bias, out, logsumexp, nothing, nothing, 0.0,
            [True, True, True, wants_mask], is_causal, scale=scale,
        )  # fmt: skip
    else:
        k, v = _repeated(key, heads), _repeated(value, heads)
        logits, rows = _logits(call, heads), logsumexp[..., : query.shape[2], None]
        weights = torch.exp(logits - rows)
        of_weights = grad @ v.mT - (grad * out).sum(-1, keepdim=True)
        of_logits = torch.where(weights == 0, 0, weights * of_weights)
        scaled = of_logits * scale
        grads = scaled @ k, scaled.mT @ query, weights.mT @ grad, of_logits
    by_group = [
        x if groups == heads else x.unflatten(1, (groups, heads // groups)).sum(2)
        for x in grads[1:3]
    ]
    of_mask = grads[3] if wants_mask else grad.new_empty(0)
    return tuple(x.contiguous() for x in (grads[0], *by_group, of_mask))


for _backend in ("CPU", "CUDA"):
    _library.impl("attention", _run, _backend)
    _library.impl("_attention_backward", _run_backward, _backend)


@torch.library.register_fake(qualified("attention"))
def _(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False,
      kernel="auto"):  # fmt: skip
    register_lowerings(["attention"])
    register_if_loaded()
    checked(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel)
    batch, heads, rows, _ = query.shape
    out = query.new_empty((batch, rows, heads, value.shape[3])).transpose(1, 2)
    return out, query.new_empty((batch, heads, (rows + PADDED - 1) // PADDED * PADDED))


@torch.library.register_fake(qualified("_attention_backward"))
def _(grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale, wants_mask):
    grads = [x.new_empty(x.shape) for x in (query, key, value)]
    of_mask = attn_mask.new_empty(attn_mask.shape) if wants_mask else grad.new_empty(0)
    return (*grads, of_mask)


def _save(ctx, inputs, output) -> None:
    query, key, value, attn_mask, is_causal, scale, *_ = inputs
    out, logsumexp = output
    ctx.mark_non_differentiable(logsumexp)
    ctx.save_for_backward(query, key, value, attn_mask, out, logsumexp)
    ctx.is_causal, ctx.scale = is_causal, scale
    ctx.wants_mask = attn_mask is not None and attn_mask.requires_grad


def _differentiate(ctx, grad, _):
    query, key, value, attn_mask, out, logsumexp = ctx.saved_tensors
    shape = (*query.shape[:3], key.shape[2])
    scale = 1 / math.sqrt(query.shape[3]) if ctx.scale is None else ctx.scale
    mask = None if attn_mask is None else attn_mask.expand(shape)
    grads = _backward(
        grad, query, key, value, mask, out, logsumexp, ctx.is_causal, scale, ctx.wants_mask
    )
    of_mask = grads[3].sum_to_size(attn_mask.shape) if ctx.wants_mask else None
    return (*grads[:3], of_mask, None, None, None, None)


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        f"{qualified('attention')}: second derivatives are not available; accepted: "
        "torch.nn.functional.scaled_dot_product_attention with SDPBackend.MATH"
    )


torch.library.register_autograd(qualified("attention"), _differentiate, setup_context=_save)
torch.library.register_autograd(qualified("_attention_backward"), _refuse_second)


@torch.library.register_vmap(qualified("attention"))
def _(info, in_dims, query, key, value, attn_mask=None, is_causal=False, scale=None,
      enable_gqa=False, kernel="auto"):  # fmt: skip
    """The vmapped dimension becomes a part of the batch."""
    size, dims = info.batch_size, (*in_dims, None)
    tensors = [batched(x, d, size) for x, d in zip((query, key, value), dims, strict=False)]
    if attn_mask is not None:
        mask = batched(attn_mask, dims[3], size)
        shape = (size, *tensors[0].shape[1:4], tensors[1].shape[3])
        mask = mask.reshape(size, *[1] * (5 - mask.dim()), *mask.shape[1:]).expand(shape)
        attn_mask = mask.flatten(0, 1)
    flat = [x.flatten(0, 1) for x in tensors]
    out = attention_op(*flat, attn_mask, is_causal, scale, enable_gqa, kernel)
    return tuple(x.unflatten(0, (size, -1)) for x in out), (0, 0)
