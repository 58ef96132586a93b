"""A program's float32 products and attention, and their gains: ``with recording() as record:``.

A TorchDispatchMode sees the products below autograd, also those of a backward, as ``enable()``
does. It doesn't see replays of CUDA graphs or products inside PyTorch's kernels, and runs
``torch.compile`` uncompiled.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_sgemm.choice.explain import Device
from torch_sgemm.dropin import overrides
from torch_sgemm.measure.calls import AttentionKey, Key, OtherKey, View
from torch_sgemm.measure.record import Record
from torch_sgemm.torch_ops.attention import Call, refused_shape
from torch_sgemm.torch_ops.library import qualified
from torch_sgemm.torch_ops.private import OpOverload, TorchDispatchMode, named_arguments

# Index of A among the arguments, by operator.
PRODUCTS = {
    **{f"aten::{name}": 0 for name in ("mm", "bmm")},
    **{f"aten::{name}": 1 for name in ("addmm", "baddbmm", "addmm_", "baddbmm_")},
    **{qualified(name): 0 for name in ("mm", "mm_out", "bmm", "bmm_out", "linear")},
    **{qualified(name): 0 for name in ("_matmul", "_packed_mm")},
    **{qualified(name): 1 for name in ("addmm", "addmm_out", "baddbmm", "baddbmm_out")},
    **{qualified(name): 1 for name in ("gemm_", "packed_mm")},
}
# Operators whose beta is 0 unless given.
_PLAIN = {name for name, first in PRODUCTS.items() if first == 0} | {qualified("gemm_")}

_LINEAR = qualified("linear")
# Attention, and whether it is the backward; on a GPU, the CPU's would be the memory-efficient one.
ATTENTION = {
    f"aten::_scaled_dot_product_{kind}{name}": bool(name)
    for kind in ("efficient_attention", "flash_attention_for_cpu")
    for name in ("", "_backward")
}
ATTENTION |= {qualified("attention"): False, qualified("_attention_backward"): True}
# Operators of PyTorch that multiply, but stay PyTorch's: regular expressions of the names after
# "aten::", by the reason.
REASONS = {
    "matrix times vector": r"mv|dot|vdot|addmv_?",
    "attention in one kernel": r"_(scaled_dot_product|(flash|efficient|cudnn)_attention)\w*",
    "convolution": r"_?convolution\w*|\w*_convolution\w*|_?slow_conv\w*|_?conv_depthwise\w*",
    "recurrent layer": r"(_cudnn|mkldnn|miopen)_rnn\w*",
    "products inside, not seen": (
        r"_native_multi_head_attention|_transformer_encoder_layer_fwd|_addmm_activation"
        r"|addbmm_?|_cdist_(for|back)ward|_euclidean_dist|_trilinear"
    ),
    "dtype": r"_(scaled|scaled_grouped|grouped|int)_mm|_weight_int\w*",
    "layout": r"_sparse_mm\w*|_cslt_sparse_mm|_sparse_semi_structured\w*|sspaddmm",
}


@cache
def why_it_stays(operation: str) -> str | None:
    """Returns a key of REASONS for, say, ``"aten::mv"``; None if it doesn't multiply."""
    space, _, name = operation.partition("::")
    if space != "aten":
        return None
    return next((why for why, names in REASONS.items() if re.fullmatch(names, name)), None)


def flops_of(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any
) -> int | None:
    """Counts as PyTorch's counter does; None for an operator that it doesn't know."""
    from torch.utils.flop_counter import flop_registry  # takes longer to import than this package

    packet = func.overloadpacket
    name = func.name().partition(".")[0].removeprefix("aten::")
    if name in ("mv", "addmv", "addmv_"):
        return 2 * next(x.numel() for x in args if isinstance(x, Tensor) and x.dim() == 2)
    if name in ("dot", "vdot"):
        return 2 * args[0].numel()
    if "_for_cpu" in name:  # the same operands in the same order
        packet = getattr(torch.ops.aten, name.replace("_for_cpu", ""))
    count = flop_registry.get(packet)
    return None if count is None else int(count(*args, **kwargs, out_val=result))


def _view(x: Tensor) -> View:
    """Describes a matrix, or a batch, whose dimensions before the last two count as one."""
    batch = math.prod(x.shape[:-2])
    stride = x.stride(-3) if x.dim() > 2 and batch > 1 else 0
    strides = stride, x.stride(-2), x.stride(-1)
    return View((batch, x.shape[-2], x.shape[-1]), strides, x.storage_offset() % 4)


def _rows(x: Tensor) -> View:
    """Describes a layer's input, whose leading dimensions are rows."""
    if x.dim() == 1:
        return View((1, 1, x.shape[0]), (0, x.shape[0], x.stride(0)), x.storage_offset() % 4)
    shape = (1, math.prod(x.shape[:-1]), x.shape[-1])
    return View(shape, (0, x.stride(-2), x.stride(-1)), x.storage_offset() % 4)


class _Recorder(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # torch.cond, flex_attention and the like
            result = func(*args, **kwargs)
            operation = f"higher_order::{func.name()}"
            self._stays(None, operation, "products inside, not seen", args, kwargs, result)
            return result
        operation = func.name().partition(".")[0]
        first = PRODUCTS.get(operation)
        if operation in ATTENTION:
            result = func(*args, **kwargs)
            if reason := self._attention(func, operation, args, kwargs):
                self._stays(func, operation, reason, args, kwargs, result)
            return result
        reason = None if first is not None else why_it_stays(operation)
        if first is None and reason is None and func.namespace != "prim":  # prim has no parts
            with self:  # sees the parts of an operator that autograd has not split
                inside = func.decompose(*args, **kwargs)
            if inside is not NotImplemented:
                return inside
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if first is not None:
            reason = self._product(operation, args, kwargs)
        if reason:
            self._stays(func, operation, reason, args, kwargs, result)
        return result

    def _product(self, operation: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        """Records a float32 product; for others returns the reason why they stay."""
        first = PRODUCTS[operation]
        a, b = args[first], args[first + 1]
        if a.dtype != torch.float32 or b.dtype != torch.float32:
            return "dtype"
        if a.layout != torch.strided or b.layout != torch.strided:
            return "layout"
        precision = torch.backends.cuda.matmul.fp32_precision
        if operation.startswith("aten") and precision not in overrides.FLOAT32:
            return "precision"
        plain = operation in _PLAIN or args[0] is None
        factors = kwargs.get("alpha", 1), kwargs.get("beta", 0 if plain else 1)
        if any(isinstance(factor, complex) for factor in factors):
            return "factor"
        device = str(a.device)
        a, b = (_rows(a), _view(b.t())) if operation == _LINEAR else (_view(a), _view(b))
        sizes = (*a.shape[:2], b.shape[2], a.shape[2])
        if all(sizes):
            factors = float(factors[0]), float(factors[1])
            key = Key(operation, device, sizes, a.letter + b.letter, factors)
            self._record._add(key, a, b)
        return ""

    def _attention(
        self, func: OpOverload, operation: str, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> str:
        """Records float32 attention; for other calls returns the reason why they stay."""
        given = named_arguments(func, args, kwargs)
        query, key, value = (given[name] for name in ("query", "key", "value"))
        if any(x.dtype != torch.float32 for x in (query, key, value)):
            return "dtype"
        if given.get("dropout_p", 0.0):
            return "dropout"
        masked = any(given.get(name) is not None for name in ("attn_bias", "attn_mask"))
        call = Call(query, key, value, None, given.get("is_causal", False), 1.0)
        if why := refused_shape(call.shape):
            return why
        self._record._add_attention(
            AttentionKey(
                operation, str(query.device), call.shape, call.is_causal, masked,
                ATTENTION[operation],
            )
        )  # fmt: skip
        return ""

    def _stays(
        self,
        func: OpOverload | None,
        operation: str,
        reason: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        tensors = [x for x in args if isinstance(x, Tensor)][:3]
        shapes = ", ".join(" x ".join(map(str, x.shape)) or "1" for x in tensors)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        device = str(tensors[0].device) if tensors else ""
        key = OtherKey(operation, device, f"{shapes} {dtype}", reason)
        flops = None if func is None else flops_of(func, args, kwargs, result)
        self._record._add_other(key, flops)


@contextmanager
def recording(device: Device | None = None) -> Iterator[Record]:
    """Records a ``with`` block's float32 products and attention, and what stays PyTorch's.

    The block's results don't change, but it takes longer, and functions that ``torch.compile`` has
    compiled run uncompiled. Products on the CPU and of meta tensors are recorded as well, so that a
    program can be examined without a GPU.

    Args:
        device: the device to predict times for. Unless given, it is the GPU that a product ran on,
            or an H200, ``Device()``, for products on the CPU or of meta tensors.

    Yields:
        The :class:`Record`, to be read during the block or afterwards.

    Raises:
        RuntimeError: ``device`` is no :class:`torch_sgemm.Device`.
    """
    if device is not None and not isinstance(device, Device):
        raise RuntimeError(
            f"torch_sgemm.recording: argument 'device' is {device!r}; accepted: "
            "torch_sgemm.Device(...)"
        )
    record = Record(device)
    try:
        with _Recorder(record):
            yield record
    finally:
        record._open = False
