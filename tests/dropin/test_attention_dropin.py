"""Under enable(), scaled_dot_product_attention on a GPU takes csrc/attention."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from support.attention import each_device, operands
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_sgemm
from torch_sgemm.dropin import overrides
from torch_sgemm.dropin.attention import NAME

sdpa = functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def as_before():
    torch_sgemm.reset_stats()
    yield
    torch_sgemm.disable()
    assert not overrides.installed()


def taken() -> int:
    return torch_sgemm.stats().hits.get(NAME, 0)


def left(reason: str) -> int:
    return torch_sgemm.stats().fallbacks.get((NAME, reason), 0)


def test_attention_is_overridden_only_on_gpus_where_asked() -> None:
    torch_sgemm.enable(devices="cpu")
    assert ("CPU", "attention") not in overrides.installed()
    torch_sgemm.disable()
    with nullcontext() if torch.cuda.is_available() else pytest.warns(UserWarning):
        torch_sgemm.enable(devices="cuda", attention=False)
    assert ("CUDA", "attention") not in overrides.installed()


@pytest.mark.gpu
def test_results_are_the_operator_s() -> None:
    q, k, v = operands("cuda", 8, 16, 512, 512, 64)
    mask = torch.randn(512, 512, device="cuda")
    for given in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask > 0}):
        with torch_sgemm.enabled():
            found = sdpa(q, k, v, **given)
        assert torch.equal(found, torch_sgemm.attention(q, k, v, **given, kernel="split"))
    assert taken() == 4
    assert not torch_sgemm.stats().fallbacks
    sdpa(q, k, v)
    assert taken() == 4


@pytest.mark.gpu
def test_what_is_left_to_pytorch_is_counted() -> None:
    q, k, v = operands("cuda", 8, 16, 512, 512, 64)
    with torch_sgemm.enabled(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        sdpa(q, k, v, dropout_p=0.1)
        assert left("dropout") == 1
        sdpa(*(x[..., :20] for x in (q, k, v)))
        assert left("shape") == 1
        sdpa(*(x.half() for x in (q, k, v)))
        assert left("dtype") == 1
        torch.backends.cuda.matmul.allow_tf32 = True
        sdpa(q, k, v)
        assert left("precision") == 1
        torch.backends.cuda.matmul.allow_tf32 = False
        short = operands("cuda", 64, 12, 32, 32, 64)
        assert torch.equal(sdpa(*short), torch_sgemm.attention(*short, kernel="aten"))
        assert left("predicted slower") == 1
        torch_sgemm.attention(q, k, v, kernel="aten")  # PyTorch's, also here
    assert taken() == 0
    with torch_sgemm.enabled("ieee"):
        sdpa(q, k, v)
    with torch_sgemm.enabled(attention=False):
        sdpa(q, k, v)
    assert taken() == 0 and left("disabled") == 0


@pytest.mark.gpu
def test_compiled_programs_take_it() -> None:
    q, k, v = operands("cuda", 8, 16, 512, 512, 64)

    def function(q, k, v):
        return sdpa(2 * q, k, v, is_causal=True) + 1

    with torch_sgemm.enabled():
        expected = function(q, k, v)
        for mode in ("default", "reduce-overhead"):
            compiled = torch.compile(function, mode=mode)
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                assert torch.equal(compiled(q, k, v), expected)
    assert taken() >= 3


SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT = SMALL | {"intermediate_size": 256, "vocab_size": 100}
LLAMA = BERT | {"num_key_value_heads": 2}
VIT = SMALL | {"image_size": 96, "patch_size": 8, "intermediate_size": 256}
# Names in transformers, the configuration, what the model reads, and the calls that come here.
ARCHITECTURES = {
    "bert": ("BertConfig", "BertModel", BERT, "masked words", 2),
    "roberta": ("RobertaConfig", "RobertaModel", BERT | {"pad_token_id": 1}, "masked words", 2),
    "distilbert": (
        "DistilBertConfig", "DistilBertModel",
        {"vocab_size": 100, "dim": 128, "n_layers": 2, "n_heads": 2, "hidden_dim": 256},
        "masked words", 2,
    ),
    "gpt2": (
        "GPT2Config", "GPT2Model", {"vocab_size": 100, "n_embd": 128, "n_layer": 2, "n_head": 2},
        "words", 2,
    ),
    "llama": ("LlamaConfig", "LlamaModel", LLAMA, "words", 2),
    "qwen2": ("Qwen2Config", "Qwen2Model", LLAMA, "words", 2),
    "vit": ("ViTConfig", "ViTModel", VIT, "pictures", 2),
    "dinov2": (
        "Dinov2Config", "Dinov2Model", SMALL | {"image_size": 96, "patch_size": 8, "mlp_ratio": 2},
        "pictures", 2,
    ),
    "clip": ("CLIPVisionConfig", "CLIPVisionModel", VIT, "pictures", 2),
    "t5": (
        "T5Config", "T5EncoderModel",
        {"vocab_size": 100, "d_model": 128, "d_kv": 64, "d_ff": 256, "num_layers": 2,
         "num_heads": 2},
        "words", 0,  # by products
    ),
}  # fmt: skip


@each_device
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_models_give_what_they_give_without(device: str, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    config, model, options, reads, calls = ARCHITECTURES[kind]
    torch.manual_seed(0)
    model = getattr(transformers, model)(getattr(transformers, config)(**options))
    model = model.to(device).eval()
    if reads == "pictures":
        given = {"pixel_values": torch.randn(4, 3, 96, 96, device=device)}
    else:
        given = {"input_ids": torch.randint(2, 100, (4, 200), device=device)}
    if reads == "masked words":
        given["attention_mask"] = torch.arange(200, device=device).lt(150).expand(4, -1).long()
    with torch.no_grad():
        expected = model(**given).last_hidden_state
        with torch_sgemm.enabled("split" if device == "cuda" else "auto", devices=(device,)):
            found = model(**given).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert device == "cpu" or taken() >= calls
