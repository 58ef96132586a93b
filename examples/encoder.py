"""A sentence encoder in float32: BERT-base with random weights, mean pooling.

    python examples/encoder.py [--small]

Encoders for search often run in float32, so that a sentence has the same embedding as in the index.
The model is transformers' own and runs unchanged within ``torch_sgemm.enabled()``, which takes the
products of its layers and, on Hopper GPUs, its attention.

Data: random tokens and weights, as transformers initializes them. Gain: faster layers and
attention. The errors are those of the embeddings, which have a norm of 1.
"""

import copy

import torch
from beside import Recipe, against, main
from torch import Tensor, nn

import torch_sgemm

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 64, "vocab_size": 101}


def encode(model: nn.Module, tokens: Tensor) -> Tensor:
    """Returns a vector of norm 1 for each sentence."""
    hidden = model(tokens).last_hidden_state
    return nn.functional.normalize(hidden.mean(dim=1), dim=1)


@torch.no_grad()
def recipe(device: torch.device, small: bool) -> Recipe:
    from transformers import BertConfig, BertModel

    sentences, length = (4, 8) if small else (128, 128)
    config = BertConfig(**(SMALL if small else {}), attn_implementation="sdpa")
    model = BertModel(config, add_pooling_layer=False).to(device).eval()
    tokens = torch.randint(config.vocab_size, (sentences, length), device=device)

    @torch.no_grad()
    def theirs() -> Tensor:
        return encode(model, tokens)

    @torch.no_grad()
    def ours() -> Tensor:
        with torch_sgemm.enabled():
            return encode(model, tokens)

    error = against(encode(copy.deepcopy(model).double(), tokens))
    size = f"BERT, {config.num_hidden_layers} layers of {config.hidden_size}, "
    size += f"{sentences} sentences of {length} tokens"
    return Recipe(size, theirs, ours, "embeddings", error)


if __name__ == "__main__":
    main(recipe, __doc__)
