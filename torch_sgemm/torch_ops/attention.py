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
128), ``"aten"`` (PyTorch's kernels) or ``"auto"``, the one that is predicted to be faster.
RuntimeError means wrong arguments, or that ``"split"`` can't take the call; docs/attention.md has
the error's bound. attention_backward.py has the gradients, attention_derivatives.py autograd.
"""

import functools
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.distributed import register_if_loaded
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import NAMESPACE, operators, out_of_memory, qualified
from torch_sgemm.torch_ops.ops import about, broadcasts
from torch_sgemm.torch_ops.vmap import batched

KERNELS = ("auto", "split", "aten")
PADDED = 32  # logsumexp's rows are multiples of it, as PyTorch's
MOST_DEPTH = 128  # of csrc/attention/attention.h
MOST_ROWS = (1 << 30) - 1  # of csrc/binding/attention_arguments.h

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
    'bool is_causal=False, float? scale=None, bool enable_gqa=False, str kernel="auto")'
    " -> (Tensor, Tensor)"
)
attention_op = operators.attention.default


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
            and broadcasts(attn_mask, shape),
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
    if batch * max(heads * rows, groups * keys) > MOST_ROWS:
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


def is_taken(op: str, call: Call, kernel: str, is_faster: Callable[[Call], bool]) -> bool:
    """True if the kernels of csrc/attention compute a call; RuntimeError if they should, but can't.

    ``op`` is the operator that the error names.
    """
    if kernel == "aten":
        return False
    _, why = refusal(call)
    if kernel == "split" and why:
        raise RuntimeError(f"{qualified(op)}: argument 'kernel' is 'split': {why}")
    return not why and (kernel == "split" or is_faster(call))


def with_unit_stride(x: Tensor) -> Tensor:
    """Returns x, or a copy if its last dimension has another stride than 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


def split_attention(call: Call, with_logsumexp: bool = True) -> tuple[Tensor, Tensor]:
    """Computes a call by csrc/attention. Precondition: no :func:`refusal`."""
    query, key, value = map(with_unit_stride, call[:3])
    try:
        return operators._attention(query, key, value, *call[3:], with_logsumexp)
    except RuntimeError as failure:
        raise out_of_memory(failure, True) from None


# ---- PyTorch's kernels


def repeated(x: Tensor, heads: int) -> Tensor:
    """Returns keys or values with as many heads as the queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def added(mask: Tensor | None) -> Tensor | None:
    """Returns the mask as PyTorch's fused kernels read it: float32, which is added."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    once = mask[tuple(slice(None if step else 1) for step in mask.stride())]  # not expanded
    return (
        torch.zeros_like(once, dtype=torch.float32).masked_fill_(~once, -math.inf).expand_as(mask)
    )


def bias_of(mask: Tensor | None) -> Tensor | None:
    """Returns the mask as PyTorch's memory-efficient kernel reads it: added, aligned rows."""
    mask = added(mask)
    if mask is None:
        return None
    keys = mask.shape[-1]
    if keys % 16 or mask.stride(-1) != 1 or any(step % 16 for step in mask.stride()[:-1]):
        mask = functional.pad(mask, (0, -keys % 16))[..., :keys]
    return mask


def is_efficient(call: Call) -> bool:
    """True if PyTorch's memory-efficient kernels take the call."""
    return call.query.is_cuda and 0 not in call.shape and not any(n % 4 for n in call.shape[5:])


def is_flash(call: Call) -> bool:
    """True if PyTorch's flash attention on CPUs takes the call."""
    return not call.query.is_cuda and 0 not in call.shape and call.shape[5] == call.shape[6]


def _logits(call: Call) -> Tensor:
    logits = (call.query * call.scale) @ repeated(call.key, call.query.shape[1]).mT
    if call.is_causal:
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        logits = logits.masked_fill(~ones.tril(), -math.inf)
    if call.mask is None:
        return logits
    if call.mask.dtype is torch.bool:
        return logits.masked_fill(~call.mask, -math.inf)
    return logits + call.mask


def softmax_over_keys(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns softmax's weights, zeros in rows without keys, and True for these rows, [..., 1]."""
    none = (logits == -math.inf).all(-1, keepdim=True)
    return torch.softmax(logits.masked_fill(none, 0), -1).masked_fill(none, 0), none


def weights_by_products(call: Call) -> tuple[Tensor, Tensor]:
    """Returns softmax's weights, zeros in rows without keys, and the rows' logsumexp, detached."""
    logits = _logits(call)
    weights, none = softmax_over_keys(logits)
    return weights, torch.logsumexp(logits.detach(), -1).masked_fill(none.squeeze(-1), 0)


def attention_by_products(call: Call) -> tuple[Tensor, Tensor]:
    """Computes a call by operators of PyTorch that have all derivatives."""
    weights, logsumexp = weights_by_products(call)
    out = weights @ repeated(call.value, call.query.shape[1])
    return by_rows(out), _padded(logsumexp)


def _padded(logsumexp: Tensor) -> Tensor:
    return functional.pad(logsumexp, (0, -logsumexp.shape[-1] % PADDED), value=math.inf)


def by_rows(x: Tensor) -> Tensor:
    """Lays out (B, H, L, D) as (B, L, H, D), as PyTorch's kernels do; a copy if x is not."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


class _Asked(threading.local):
    """True in a thread that calls PyTorch's own kernel, which an override leaves to it."""

    pytorch_s = False


asked = _Asked()


@contextmanager
def pytorch_s() -> Iterator[None]:
    """Overrides leave this thread's calls to PyTorch's own kernels."""
    asked.pytorch_s = True
    try:
        yield
    finally:
        asked.pytorch_s = False


def _pytorch_attention(call: Call) -> tuple[Tensor, Tensor]:
    heads = call.query.shape[1]
    tensors = call.query, repeated(call.key, heads), repeated(call.value, heads)
    if is_flash(call):
        out, logsumexp = private.flash_cpu(
            *map(with_unit_stride, tensors), 0.0, call.is_causal,
            attn_mask=added(call.mask), scale=call.scale,
        )  # fmt: skip
        return by_rows(out), _padded(logsumexp)
    if not is_efficient(call):
        return attention_by_products(call)
    with pytorch_s():
        return private.efficient(
            *tensors, bias_of(call.mask), True, 0.0, call.is_causal, scale=call.scale
        )[:2]


# ---- the operator


@private.uncompiled
def _run(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False,
         kernel="auto"):  # fmt: skip
    call = checked(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel)
    with private.below_views():
        if not is_taken("attention", call, kernel, is_faster):
            return _pytorch_attention(call)
        return split_attention(call)


for _backend in ("CPU", "CUDA"):
    _library.impl("attention", _run, _backend)


@torch.library.register_fake(qualified("attention"))
def _(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False,
      kernel="auto"):  # fmt: skip
    register_lowerings(["attention"])
    register_if_loaded()
    checked(query, key, value, attn_mask, is_causal, scale, enable_gqa, kernel)
    batch, heads, rows, _ = query.shape
    out = query.new_empty((batch, rows, heads, value.shape[3])).transpose(1, 2)
    return out, query.new_empty((batch, heads, (rows + PADDED - 1) // PADDED * PADDED))


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
