"""``convert``: the layers of a model that call this package, without a process-wide override.

A converted layer keeps its parameters, buffers and hooks: only its class changes, as with
``torch.nn.utils.parametrize``. Encoders around it lose PyTorch's fast path, one operator that calls
no layer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional

from torch_sgemm.functional.attention import attention
from torch_sgemm.functional.linear import linear
from torch_sgemm.functional.matmul import matmul
from torch_sgemm.functional.packed import PackedMatrix, pack
from torch_sgemm.functional.route import overrides_functions
from torch_sgemm.torch_ops.attention import softmax_over_keys
from torch_sgemm.torch_ops.library import OPERAND_DTYPES

Filter = Callable[[nn.Module, str], bool]


class _Converted:
    """Base class of converted layers."""

    batch_invariant = False

    def __prepare_scriptable__(self):
        """Refuses torch.jit.script, which would fail with an error about this file's code."""
        raise RuntimeError(
            f"torch_sgemm.convert: torch.jit.script can't compile {type(self).__name__}; accepted: "
            "torch.compile, torch.export, torch.jit.trace, or torch_sgemm.restore() before"
        )


class Linear(_Converted, nn.Linear):
    """``nn.Linear`` by :func:`torch_sgemm.linear`."""

    packs = False  # the caller has promised not to change the weight
    packed: PackedMatrix | None = None  # the weight's, if its dtype and device can be packed

    def forward(self, input: Tensor) -> Tensor:
        weight, packed = self.weight, self.packed
        if packed is not None and packed._source is weight:  # a hook may have replaced the weight
            weight = packed
        return linear(input, weight, self.bias, batch_invariant=self.batch_invariant)

    def _apply(self, fn, recurse=True):
        """Moves the layer, as ``to()`` and ``float()`` do, and packs its weight again."""
        super()._apply(fn, recurse)
        self._pack_again()
        return self

    def _load_from_state_dict(self, *args: Any, **named: Any) -> None:
        super()._load_from_state_dict(*args, **named)
        self._pack_again()

    def _pack_again(self) -> None:
        if self.packs:
            weight = self.weight
            can_be = weight.dtype in OPERAND_DTYPES and weight.device.type in ("cpu", "cuda")
            self.packed = _packed(self) if can_be else None


class MultiheadAttention(_Converted, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` by this package's products and attention.

    PyTorch's own computes nested and unbatched inputs, ``add_bias_kv`` and ``add_zero_attn``, and
    raises the errors. torch.fx traces the layer as one node, as it does PyTorch's.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        if isinstance(query, Proxy):
            tracer, inputs = query.tracer, (query, key, value, *masks)
            return tracer.create_proxy("call_module", tracer.path_of_module(self), inputs, {})
        if (
            self.bias_k is not None
            or self.add_zero_attn
            or (is_causal and attn_mask is None)
            or not self._fit(query, key, value, key_padding_mask, attn_mask)
        ):
            return super().forward(query, key, value, *masks)
        q, k, v = self._heads(query, key, value)
        mask = _mask(attn_mask, key_padding_mask, q, k.shape[2])
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights or self.batch_invariant:
            logits = self._multiply(q / self.head_dim**0.5, k.mT)
            logits = logits if mask is None else logits + mask
            # PyTorch's weights of a row without keys are NaN if the caller asks for them, else 0.
            weights = torch.softmax(logits, -1) if need_weights else softmax_over_keys(logits)[0]
            weights = functional.dropout(weights, dropout, self.training)
            heads = self._multiply(weights, v)
        else:
            heads = attention(q, k, v, mask, dropout)
        out = self._linear(heads.transpose(1, 2).flatten(2), *self._out())
        if not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights

    def _fit(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> bool:
        """True if inputs are batches that fit together, and no mask would have to broadcast."""
        inputs, masks = (query, key, value), (key_padding_mask, attn_mask)
        if any(x.is_nested or x.dim() != 3 for x in inputs):
            return False
        sizes = [x.shape[:2] if self.batch_first else x.shape[:2][::-1] for x in inputs]
        (batch, rows), (_, keys) = sizes[:2]
        of_heads = batch * self.num_heads, rows, keys
        return (
            [x.shape[2] for x in inputs] == [self.embed_dim, self.kdim, self.vdim]
            and sizes[1] == sizes[2] == (batch, keys)
            and all(x is None or x.dtype in (torch.bool, query.dtype) for x in masks)
            and (key_padding_mask is None or key_padding_mask.shape == (batch, keys))
            and (attn_mask is None or attn_mask.shape in (of_heads, of_heads[1:]))
        )

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias, batch_invariant=self.batch_invariant)

    def _multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return matmul(a, b, batch_invariant=self.batch_invariant)

    def _out(self) -> tuple[Tensor, Tensor | None]:
        return self.out_proj.weight, self.out_proj.bias

    def _heads(self, *inputs: Tensor) -> list[Tensor]:
        """Projects query, key and value; returns (batch, heads, rows, head_dim) of each."""
        bias = self.in_proj_bias
        if self._qkv_same_embed_dim and inputs[0] is inputs[1] is inputs[2]:
            projected = self._linear(inputs[0], self.in_proj_weight, bias).chunk(3, -1)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if self._qkv_same_embed_dim:
                weights = self.in_proj_weight.chunk(3)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            given = zip(inputs, weights, biases, strict=True)
            projected = [self._linear(x, weight, part) for x, weight, part in given]
        if not self.batch_first:
            projected = [x.transpose(0, 1) for x in projected]
        return [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected]


def _mask(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, query: Tensor, keys: int
) -> Tensor | None:
    """Adds up the masks of ``nn.MultiheadAttention``, whose True takes no part."""

    def added(mask: Tensor) -> Tensor:
        if mask.dtype is not torch.bool:
            return mask
        return torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -torch.inf)

    masks = []
    if attn_mask is not None:
        mask = added(attn_mask)  # (rows, keys) or (batch * heads, rows, keys)
        masks.append(mask.unflatten(0, query.shape[:2]) if mask.dim() == 3 else mask)
    if key_padding_mask is not None:
        masks.append(added(key_padding_mask)[:, None, None])
    total = sum(masks[1:], start=masks[0]) if masks else None
    return None if total is None else total.expand(*query.shape[:3], keys)


CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: Linear,
    nn.MultiheadAttention: MultiheadAttention,
}


# The attribute that lets an encoder take the fast path, and the value with which it doesn't.
FAST_PATHS: dict[type[nn.Module], tuple[str, int]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


def _leave_fast_paths(model: nn.Module) -> None:
    """Makes encoders call their converted layers in inference too."""
    for encoder, name, value in _fast_paths(model):
        if any(type(layer) in CLASSES.values() for layer in encoder.modules()):
            vars(encoder).setdefault("_fast_path", getattr(encoder, name))
            setattr(encoder, name, value)


def _restore_fast_paths(model: nn.Module) -> None:
    for encoder, name, _ in _fast_paths(model):
        if "_fast_path" in vars(encoder):
            setattr(encoder, name, vars(encoder).pop("_fast_path"))


def _fast_paths(model: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
    """Yields a model's encoders with their entries of FAST_PATHS."""
    for encoder in model.modules():
        for kind, entry in FAST_PATHS.items():
            if isinstance(encoder, kind) and hasattr(encoder, entry[0]):
                yield encoder, *entry


def _packed(layer: nn.Linear) -> PackedMatrix:
    return pack(layer.weight.t(), frozen=True)


def _check_model(function: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"torch_sgemm.{function}: argument 'model' is {model!r}; accepted: a torch.nn.Module"
        )


def convert(
    model: nn.Module,
    filter: Filter | None = None,
    pack: bool = False,
    batch_invariant: bool = False,
) -> nn.Module:
    """Makes a model's ``nn.Linear`` and ``nn.MultiheadAttention`` call this package.

    The layers change in place. Their parameters, ``state_dict`` and hooks stay. Instances of other
    classes, subclasses of these two included, don't change, and neither do layers whose weights
    override ``__torch_function__``, as quantized weights do. ``nn.TransformerEncoderLayer`` and
    ``nn.TransformerEncoder`` call their converted layers in inference too, and don't take PyTorch's
    fast path. Layers that were converted before get the new options. :func:`restore` undoes it.
    Convert a model before ``fully_shard`` and ``torch.compile``.

    Args:
        model: the model, or a layer.
        filter: called with each such layer and its name; False leaves the layer as it is.
        pack: splits each linear weight once, for inference. It is a promise, as that of
            ``torch_sgemm.pack(..., frozen=True)``: weights don't change, except by
            ``load_state_dict``, ``to()`` and the like of these modules, which split them again.
            Needs weights that don't require grad.
        batch_invariant: as for :func:`torch_sgemm.linear`. ``nn.MultiheadAttention`` then computes
            attention by products, with all weights in memory.

    Returns:
        ``model``.

    Raises:
        TypeError: ``model`` is no module.
        RuntimeError: with ``pack``, a weight requires grad, or has a dtype or device that can't be
            packed. Nothing is converted then.
    """
    _check_model("convert", model)
    known = {*CLASSES, *CLASSES.values()}
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) in known
        and not any(map(overrides_functions, layer.parameters()))
        and (filter is None or filter(layer, name))
    }
    packs: dict[str, PackedMatrix] = {}
    if pack:
        for name, layer in layers.items():
            if isinstance(layer, nn.Linear):
                if layer.weight.requires_grad:
                    raise RuntimeError(
                        f"torch_sgemm.convert: pack=True, but the weight of {name or 'model'!r} "
                        "requires grad; accepted: model.requires_grad_(False) before"
                    )
                packs[name] = _packed(layer)
    for name, layer in layers.items():
        restore(layer)
        layer.__class__ = CLASSES[type(layer)]
        layer.batch_invariant = batch_invariant
        if name in packs:
            layer.packs, layer.packed = True, packs[name]
    _leave_fast_paths(model)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Makes converted layers PyTorch's own again, in place; returns ``model``.

    Raises:
        TypeError: ``model`` is no module.
    """
    _check_model("restore", model)
    originals = {converted: original for original, converted in CLASSES.items()}
    for layer in model.modules():
        if type(layer) in originals:
            layer.__class__ = originals[type(layer)]
            for name in ("batch_invariant", "packs", "packed"):
                vars(layer).pop(name, None)
    _restore_fast_paths(model)
    return model
