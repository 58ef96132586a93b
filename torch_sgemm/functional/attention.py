"""``torch_sgemm.attention``, in place of ``torch.nn.functional.scaled_dot_product_attention``."""

import torch
from torch import Tensor
from torch.nn import functional

from torch_sgemm.functional.route import overrides_functions
from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.attention import KERNELS, attention_op
from torch_sgemm.torch_ops.ops import broadcasts
from torch_sgemm.torch_ops.past_dispatcher import PLAIN, dispatched


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    kernel: str = "auto",
) -> Tensor:
    """``softmax(scale * query @ key.mT + attn_mask) @ value`` at float32 accuracy.

    Args:
        query: float32 of shape (..., H, L, D), any strides.
        key: (..., G, S, D). G is H; with ``enable_gqa`` it may divide H, and heads share keys.
        value: (..., G, S, Dv).
        attn_mask: bool, where True takes part, or float32, which is added to the logits. It
            broadcasts to (..., H, L, S).
        dropout_p: a value above 0 goes to PyTorch.
        is_causal: True: key j takes part in row i if j <= i.
        scale: 1/sqrt(D) by default.
        kernel: ``"split"`` (tensor cores, GPUs of compute capability 9.0, D and Dv multiples of 8
            up to 128), ``"aten"`` (PyTorch's) or ``"auto"``, the one that is predicted to be
            faster.

    Returns:
        float32 of shape (..., H, L, Dv). With ``"split"`` a row's bits depend only on its query,
        its keys and values, and its mask.

    ``kernel`` also holds for the gradients, which have the same bits each time with ``"split"``.
    Derivatives of higher order and forward mode take PyTorch's products, with weights in memory.

    Other dtypes, calls under autocast, dropout and shapes that don't fit go to PyTorch's function,
    which computes them or raises its error. docs/attention-error.md has the bound of the error.

    Raises:
        RuntimeError: ``kernel`` is unknown or can't take the call.
    """
    if kernel not in KERNELS:
        raise RuntimeError(
            f"torch_sgemm.attention: argument 'kernel' is {kernel!r}; accepted: "
            f"{', '.join(map(repr, KERNELS))}"
        )
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    why = _obstacle(tensors, dropout_p, is_causal, enable_gqa)
    if why:
        if kernel == "split":
            raise RuntimeError(f"torch_sgemm.attention: argument 'kernel' is 'split': {why}")
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    batch, mask = query.shape[:-3], attn_mask
    if len(batch) != 1:
        query, key, value = (_with_one_batch(x) for x in (query, key, value))
        if mask is not None and mask.dim() > 2:
            mask = _with_one_batch(mask.expand(*batch, *mask.shape[-3:]))
    out, _ = dispatched(attention_op, query, key, value, mask, is_causal, scale, enable_gqa, kernel)
    return out if len(batch) == 1 else out.unflatten(0, batch) if batch else out.squeeze(0)


def _with_one_batch(x: Tensor) -> Tensor:
    return x.unsqueeze(0) if x.dim() == 3 else x.flatten(0, -4)


def _obstacle(
    tensors: tuple[Tensor, ...], dropout_p: float, is_causal: bool, enable_gqa: bool
) -> str:
    """Returns why the operator can't take the call, or ``""``."""
    query, key, value, *masks = tensors
    if any(
        type(x) not in PLAIN and (not isinstance(x, Tensor) or overrides_functions(x))
        for x in tensors
    ):
        return "an argument is no plain tensor"
    if any(x.is_nested or x.layout is not torch.strided or private.has_names(x) for x in tensors):
        return "a tensor is not strided, or has names"
    if dropout_p:
        return "dropout_p is not 0"
    if any(x.dtype is not torch.float32 or x.device != query.device for x in (query, key, value)):
        return "a tensor is not float32, or on another device"
    if not query.is_meta and torch.is_autocast_enabled(query.device.type):
        return "autocast is on"
    dims, shape = query.dim(), query.shape
    if not (3 <= dims == key.dim() == value.dim() and shape[:-3] == key.shape[:-3]):
        return "query, key and value have not the same leading dimensions, or fewer than three"
    if key.shape[:-1] != value.shape[:-1] or key.shape[-1] != shape[-1]:
        return "key and value have not as many rows, or query and key not as many columns"
    groups = key.shape[-3]
    if groups != shape[-3] and not (enable_gqa and groups and shape[-3] % groups == 0):
        return "query and key have not as many heads"
    if 0 in (*shape, *value.shape):
        return "a size is 0"
    return _obstacle_of_mask(masks[0], (*shape[:-1], key.shape[-2]), is_causal) if masks else ""


def _obstacle_of_mask(mask: Tensor, shape: tuple[int, ...], is_causal: bool) -> str:
    if is_causal:
        return "attn_mask beside is_causal=True"
    if mask.dtype not in (torch.bool, torch.float32):
        return "attn_mask is not bool or float32"
    if not broadcasts(mask, shape):
        return f"attn_mask doesn't broadcast to {list(shape)}"
    return ""
