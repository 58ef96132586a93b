"""``convert``: layers that call this package keep all that a model's layers have."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import torch_sgemm
from torch_sgemm.functional import modules
from torch_sgemm.functional.modules import Linear, MultiheadAttention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
each_device = pytest.mark.parametrize("device", DEVICES)


class Block(nn.Module):
    """Attention and two layers, one of a subclass that nobody converts."""

    class Other(nn.Linear):
        pass

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)
        self.other = self.Other(32, 32)

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=need_weights)[0]
        return self.other(x + self.narrow(torch.relu(self.wide(x))))


def block(device: str = "cpu") -> tuple[Block, Tensor]:
    torch.manual_seed(0)
    return Block().to(device), torch.randn(3, 20, 32, device=device)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@each_device
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_results_are_the_same(device: str, mode: str, need_weights: bool) -> None:
    model, x = block(device)
    model.train(mode == "training")
    with torch.inference_mode(mode == "inference"):
        expected = model(x, need_weights)
        close(torch_sgemm.convert(model)(x, need_weights), expected)


def test_gradients_are_the_same() -> None:
    model, x = block()
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch_sgemm.convert(model)(x).sum().backward()
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        close(parameter.grad, grad)


@pytest.mark.parametrize("need_weights", [False, True])
def test_products_and_attention_come_here(monkeypatch, need_weights: bool) -> None:
    called = []
    for name in ("linear", "matmul", "attention"):
        own = getattr(modules, name)

        def counted(*args, own=own, name=name, **kwargs):
            called.append(name)
            return own(*args, **kwargs)

        monkeypatch.setattr(modules, name, counted)
    model, x = block()
    model(x, need_weights)
    assert not called
    torch_sgemm.convert(model)(x, need_weights)
    inside = ["matmul", "matmul"] if need_weights else ["attention"]
    assert called == ["linear", *inside, *["linear"] * 3]
    called.clear()
    torch_sgemm.restore(model)(x, need_weights)
    assert not called


class Encoder(nn.TransformerEncoderLayer):
    """A subclass takes PyTorch's fast path as well."""


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, Encoder])
@pytest.mark.parametrize("padded", [False, True])
def test_encoders_call_their_layers_in_inference(monkeypatch, padded: bool, kind: type) -> None:
    called = []
    own = modules.linear
    monkeypatch.setattr(modules, "linear", lambda *x, **y: called.append(x) or own(*x, **y))
    torch.manual_seed(0)
    model = nn.TransformerEncoder(kind(32, 4, 64, batch_first=True), 2).eval()
    options = [(model.use_nested_tensor, *(x.activation_relu_or_gelu for x in model.layers))]
    x, padding = torch.randn(2, 7, 32), torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = padded
    given = {"src_key_padding_mask": padding} if padded else {}
    with torch.inference_mode():
        expected = model(x, **given)
        torch_sgemm.convert(torch_sgemm.convert(model), batch_invariant=True)
        close(model(x, **given)[~padding], expected[~padding])
        assert len(called) == 2 * 4
        assert torch.equal(torch_sgemm.restore(model)(x, **given), expected)
        assert len(called) == 2 * 4
    options.append((model.use_nested_tensor, *(x.activation_relu_or_gelu for x in model.layers)))
    assert options == [(True, 1, 1)] * 2


def test_encoders_without_converted_layers_keep_their_fast_path() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    torch_sgemm.convert(model, lambda _, name: name.startswith("layers.1"))
    assert [x.activation_relu_or_gelu for x in model.layers] == [1, 0]
    assert not model.use_nested_tensor
    torch_sgemm.convert(torch_sgemm.restore(model), lambda *_: False)
    assert [x.activation_relu_or_gelu for x in model.layers] == [1, 1]
    assert model.use_nested_tensor


OPTIONS = (
    {}, {"batch_first": True}, {"bias": False}, {"kdim": 24, "vdim": 40}, {"add_zero_attn": True},
    {"add_bias_kv": True}, {"dropout": 0.5},
)  # fmt: skip


@each_device
@pytest.mark.parametrize("masks", ["none", "bool", "float", "heads", "padding", "causal"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_multihead_attention_is_pytorch_s(device: str, options: dict, masks: str) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, **options, device=device).eval()
    if layer.in_proj_bias is not None:
        nn.init.normal_(layer.in_proj_bias)
    query, key, value = (
        torch.randn(*((2, n) if layer.batch_first else (n, 2)), width, device=device)
        for n, width in ((12, 32), (15, layer.kdim), (15, layer.vdim))
    )
    later = torch.ones(12, 15, dtype=torch.bool, device=device).triu(1)
    padding = torch.zeros(2, 15, dtype=torch.bool, device=device)
    padding[1, 9:] = True
    given = {
        "none": {},
        "bool": {"attn_mask": later},
        "float": {"attn_mask": torch.randn(12, 15, device=device)},
        "heads": {"attn_mask": torch.randn(8, 12, 15, device=device), "key_padding_mask": padding},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": later, "is_causal": True},
    }[masks]
    if masks == "heads":
        given["key_padding_mask"] = padding.float().masked_fill(padding, -torch.inf)
    for more in (
        {"need_weights": False}, {"need_weights": True}, {"average_attn_weights": False},
    ):  # fmt: skip
        expected = layer(query, key, value, **given, **more)
        torch_sgemm.convert(layer)
        found = layer(query, key, value, **given, **more)
        torch_sgemm.restore(layer)
        assert found[0].shape == expected[0].shape
        close(found[0], expected[0])
        assert (found[1] is None) == (expected[1] is None)
        if expected[1] is not None:
            close(found[1], expected[1])


def test_multihead_attention_s_errors_are_pytorch_s() -> None:
    layer, x = nn.MultiheadAttention(32, 4), torch.randn(5, 2, 32)
    with pytest.raises(RuntimeError) as expected:
        layer(x, x, x, is_causal=True)
    with pytest.raises(RuntimeError) as found:
        torch_sgemm.convert(layer)(x, x, x, is_causal=True)
    assert str(found.value) == str(expected.value)


def test_only_classes_change_and_come_back() -> None:
    model, _ = block()
    types = [type(layer) for layer in model.modules()]
    parameters, keys = list(model.parameters()), list(model.state_dict())
    torch_sgemm.convert(model, batch_invariant=True)
    assert type(model.wide) is Linear and type(model.attention) is MultiheadAttention
    assert type(model.other) is Block.Other and isinstance(model.wide, nn.Linear)
    assert list(model.state_dict()) == keys
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert torch_sgemm.restore(model) is model
    assert [type(layer) for layer in model.modules()] == types
    assert "batch_invariant" not in vars(model.wide)


def test_hooks_stay() -> None:
    model, x = block()
    seen = []
    model.wide.register_forward_hook(lambda *_: seen.append("wide"))
    torch_sgemm.convert(model)(x)
    assert seen == ["wide"]


def test_a_filter_sees_layers_and_names() -> None:
    model, _ = block()
    names = []

    def wanted(layer: nn.Module, name: str) -> bool:
        names.append(name)
        return isinstance(layer, nn.Linear) and layer.out_features == 64

    torch_sgemm.convert(model, wanted)
    assert names == ["attention", "wide", "narrow"]
    assert type(model.wide) is Linear and type(model.narrow) is nn.Linear
    assert type(model.attention) is nn.MultiheadAttention


class Quantized(Tensor):
    """A weight that computes its layer by itself, and has no other product."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if isinstance(func, torch._ops.OpOverload):
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


def test_layers_with_weights_of_their_own_functions_stay_pytorch_s() -> None:
    model, x = block()
    expected = model.requires_grad_(False)(x)
    for layer in (model.wide, model.attention.out_proj):
        weight = layer.weight.as_subclass(Quantized)
        layer.weight = nn.Parameter(weight, requires_grad=False)
    torch_sgemm.convert(model, pack=True)
    assert type(model.wide) is nn.Linear and type(model.attention) is nn.MultiheadAttention
    assert type(model.narrow) is Linear
    close(model(x), expected)


def test_modes_and_plain_subclasses_do_not_keep_layers_from_it() -> None:
    class Plain(Tensor):
        pass

    model, x = block()
    expected = model.requires_grad_(False)(x)
    model.narrow.weight = nn.Parameter(model.narrow.weight.as_subclass(Plain), requires_grad=False)
    with torch.device("cpu"):
        torch_sgemm.convert(model)
    assert type(model.wide) is type(model.narrow) is Linear
    assert type(model.attention) is MultiheadAttention
    close(model(x).as_subclass(Tensor), expected)


def test_converting_again_gives_the_new_options() -> None:
    model, _ = block()
    torch_sgemm.convert(model.requires_grad_(False), pack=True)
    torch_sgemm.convert(model, batch_invariant=True)
    assert model.wide.batch_invariant and model.attention.batch_invariant
    assert model.wide.packed is None and not model.wide.packs
    torch_sgemm.convert(model, pack=True)
    assert model.wide.packed is not None and not model.wide.batch_invariant


def test_a_layer_itself_and_converted_twice() -> None:
    layer = nn.Linear(8, 8)
    assert torch_sgemm.convert(torch_sgemm.convert(layer)) is layer and type(layer) is Linear


@each_device
def test_rows_have_the_same_bits_in_any_batch(device: str) -> None:
    layer = torch_sgemm.convert(nn.Linear(300, 200).to(device), batch_invariant=True)
    x = torch.randn(64, 300, device=device)
    with torch.no_grad():
        assert torch.equal(layer(x)[:1], layer(x[:1]))


def test_copies_and_pickles() -> None:
    model, x = block()
    torch_sgemm.convert(model.requires_grad_(False), pack=True)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), model(x)) and type(other.wide) is Linear
        assert other.wide.packed.b.data_ptr() == other.wide.weight.data_ptr()
        with torch.no_grad():
            other.wide.weight.zero_()
        assert model.wide.weight.abs().max() > 0


@pytest.mark.parametrize("pack", [False, True])
def test_a_loader_may_name_its_arguments(pack: bool) -> None:
    layer = torch_sgemm.convert(nn.Linear(8, 4).requires_grad_(False), pack=pack)
    state = {"weight": torch.ones(4, 8), "bias": torch.zeros(4)}
    lists = dict.fromkeys(("missing_keys", "unexpected_keys", "error_msgs"), [])
    layer._load_from_state_dict(
        state_dict=state, prefix="", local_metadata={}, strict=True, **lists
    )
    assert (layer(torch.ones(2, 8)) == 8).all()


@each_device
def test_packed_weights_follow_loading_and_moving(device: str) -> None:
    model, x = block(device)
    torch_sgemm.convert(model.requires_grad_(False), pack=True)
    other, _ = block(device)
    for parameter in other.parameters():
        parameter.data.mul_(2)
    expected = other(x)
    for assign in (False, True):
        model.load_state_dict(other.state_dict(), assign=assign)
        close(model(x), expected)
    close(model.double().float()(x), expected)
    assert model.wide.packed.b.data_ptr() == model.wide.weight.data_ptr()


def test_wrong_arguments_convert_nothing() -> None:
    model, _ = block()
    with pytest.raises(RuntimeError, match="pack=True, but the weight of 'wide' requires grad"):
        torch_sgemm.convert(model, pack=True)
    assert type(model.wide) is nn.Linear
    for function in (torch_sgemm.convert, torch_sgemm.restore):
        for wrong in (None, 3):
            accepted = f"argument 'model' is {wrong}; accepted: a torch.nn.Module"
            with pytest.raises(TypeError, match=accepted):
                function(wrong)


def test_checkpoint() -> None:
    model, x = block()
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    torch_sgemm.convert(model)
    out = checkpoint(model, x, use_reentrant=False)
    for grad, other in zip(
        torch.autograd.grad(out.sum(), list(model.parameters())), expected, strict=True
    ):
        close(grad, other)


@pytest.mark.slow
@each_device
def test_compiled(device: str) -> None:
    model, x = block(device)
    torch_sgemm.convert(model)
    close(torch.compile(model, fullgraph=True)(x), model(x))


# --- what hooks, masks and modes change ------------------------------------------------------


def test_a_weight_that_a_hook_makes_is_not_taken_from_the_pack() -> None:
    """``weight_norm`` makes the weight before each call, from parameters that may be loaded."""

    def model() -> nn.Sequential:
        layer = nn.Linear(8, 4)
        nn.utils.weight_norm(layer)
        return nn.Sequential(layer.eval().requires_grad_(False))

    x, packed, other = torch.randn(2, 8), model(), model()
    packed(x), other(x)
    torch_sgemm.convert(packed, pack=True).load_state_dict(other.state_dict())
    torch.testing.assert_close(packed(x), other(x))
    assert packed.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_sequence_without_keys_is_pytorch_s(need_weights: bool, batch_invariant: bool) -> None:
    """NaN where the weights are wanted, else zeros; and gradients of the others don't see it."""
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    ours = torch_sgemm.convert(copy.deepcopy(layer), batch_invariant=batch_invariant)
    x, mask = torch.randn(2, 4, 8), torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]]).bool()
    results = [
        m(x, x, x, key_padding_mask=mask, need_weights=need_weights)[0] for m in (layer, ours)
    ]
    torch.testing.assert_close(results[1], results[0], equal_nan=True)
    if not need_weights:
        results[1][1].sum().backward()
        assert all(p.grad.isfinite().all() for p in ours.parameters())


WRONG_SHAPES = (
    {"key_padding_mask": (1, 6)}, {"key_padding_mask": (3, 1)}, {"key_padding_mask": (6,)},
    {"key_padding_mask": (3, 1, 6)}, {"key_padding_mask": (1, 1, 6)},
    {"attn_mask": (1, 6)}, {"attn_mask": (4, 1)}, {"attn_mask": (6,)}, {"attn_mask": (3, 4, 6)},
    {"attn_mask": (6, 1, 6)}, {"attn_mask": (1, 4, 6)}, {"attn_mask": (3, 2, 4, 6)},
    {"key": (1, 6, 8), "value": (1, 6, 8)}, {"key": (3, 1, 8)}, {"value": (3, 6)},
    {"query": (3, 4, 10)}, {"value": (3, 6, 10)},
)  # fmt: skip


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("wrong", WRONG_SHAPES, ids=str)
def test_shapes_that_do_not_fit_are_pytorch_s_errors(
    wrong: dict[str, tuple[int, ...]], need_weights: bool, batch_first: bool
) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    inputs = {"query": (3, 4, 8), "key": (3, 6, 8), "value": (3, 6, 8)} | wrong
    given = {name: torch.zeros(shape) for name, shape in inputs.items()}
    if not batch_first:
        given |= {name: given[name].transpose(0, 1) for name in ("query", "key", "value")}
    with pytest.raises((AssertionError, RuntimeError)) as expected:
        layer(**given, need_weights=need_weights)
    with pytest.raises(expected.type) as found:
        torch_sgemm.convert(layer)(**given, need_weights=need_weights)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("need_weights", [False, True])
def test_masks_of_integers_and_other_values_are_pytorch_s_errors(need_weights: bool) -> None:
    layer = torch_sgemm.convert(nn.MultiheadAttention(8, 2, batch_first=True))
    x, ones = torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.int64)
    with pytest.raises(AssertionError, match="bool and floating"):
        layer(x, x, x, key_padding_mask=ones, need_weights=need_weights)
    with pytest.raises(AssertionError, match="bool and floating"):
        layer(x, x, x, attn_mask=torch.ones(4, 4).int(), need_weights=need_weights)
    with pytest.raises((AssertionError, RuntimeError)):
        layer(x, x, torch.randn(2, 5, 8), need_weights=need_weights)


@pytest.mark.parametrize("need_weights", [False, True])
def test_masks_of_other_floats_are_pytorch_s_errors(need_weights: bool) -> None:
    plain = nn.MultiheadAttention(8, 2, batch_first=True)
    x, mask = torch.randn(2, 4, 8), torch.zeros(4, 4, dtype=torch.float16)
    for layer in (plain, torch_sgemm.convert(copy.deepcopy(plain))):
        with pytest.raises(RuntimeError, match="dtype"):
            layer(x, x, x, attn_mask=mask, need_weights=need_weights)


def test_weights_without_memory_are_not_packed() -> None:
    with FakeTensorMode():
        fake = nn.Linear(4, 4).requires_grad_(False)
    for layer in (fake, nn.Linear(4, 4, device="meta").requires_grad_(False)):
        with pytest.raises(RuntimeError, match="torch_sgemm.pack: argument 'b' is a .*; accepted:"):
            torch_sgemm.convert(layer, pack=True)
        assert type(layer) is nn.Linear
