"""The models of ``models``, ``training`` and ``logprobs``.

They have random weights in float32, made on the device, and no dropout. Without dropout both sides
and the float64 reference compute the same function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

ATTENTIONS = ("eager", "sdpa")
LEARNING_RATE = 1e-5  # small, so that every step of a run sees nearly the same weights


def float32_convolutions() -> AbstractContextManager:
    """Keeps cuDNN from TF32: a convolution embeds ViT's patches."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


@dataclass
class Task:
    """A model with a batch; a step is inference if there is no loss, else training."""

    model: nn.Module
    inputs: Tensor
    output: Callable[[nn.Module, Tensor], Tensor]
    targets: Tensor | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def training(self) -> bool:
        return self.loss is not None

    def step(self) -> Callable[[], None]:
        """Returns a function that runs one step; training ends in AdamW's update."""
        if not self.training:
            return self._infer
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)

        def train() -> None:
            optimizer.zero_grad()
            self.loss(self.output(self.model, self.inputs), self.targets).backward()
            optimizer.step()

        return train

    @torch.no_grad()
    def _infer(self) -> None:
        self.output(self.model, self.inputs)

    def evaluate(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the output, and the gradients by parameter name (none for inference)."""
        if not self.training:
            with torch.no_grad():
                return self.output(self.model, self.inputs), {}
        self.model.zero_grad()
        output = self.output(self.model, self.inputs)
        self.loss(output, self.targets).backward()
        gradients = {name: p.grad for name, p in self.model.named_parameters()}
        self.model.zero_grad()
        return output.detach(), gradients

    def part(self, batch: int) -> Task:
        """Returns the same model on the first ``batch`` of the inputs."""
        targets = None if self.targets is None else self.targets[:batch]
        return Task(self.model, self.inputs[:batch], self.output, targets, self.loss)

    def double(self) -> Task:
        """Returns the same weights and inputs in float64.

        Attention is torch's own function, because transformers' eager attention of some models goes
        through float32 for every dtype.
        """
        model = copy.deepcopy(self.model).double()
        if hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation("sdpa")
        inputs = self.inputs.double() if self.inputs.is_floating_point() else self.inputs
        targets = self.targets
        if targets is not None and targets.is_floating_point():
            targets = targets.double()
        return Task(model, inputs, self.output, targets, self.loss)


def _transformers() -> ModuleType:
    try:
        import transformers
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        raise RuntimeError(
            "transformers is not installed: pip install transformers, or pip install '.[bench]'"
        ) from missing
    return transformers


def _hidden(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).last_hidden_state


def _logits(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).logits


def _log_probabilities(model: nn.Module, inputs: Tensor) -> Tensor:
    """Returns each token's log-probability, given those before it; the first token has none."""
    log_probabilities = model(inputs).logits.log_softmax(-1)[:, :-1]
    return log_probabilities.gather(-1, inputs[:, 1:, None]).squeeze(-1)


def _apply(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


# Hidden size, layers, heads and feed-forward size of BERT-large, ViT-L, GPT-2 medium, Pythia-410M.
LARGE = (1024, 24, 16, 4096)
SMALL = (32, 2, 2, 64)


def bert(device: torch.device, small: bool, attention: str, length: int = 128) -> Task:
    """Makes BERT-large, inference on 32 texts."""
    t = _transformers()
    width, layers, heads, inner = SMALL if small else LARGE
    config = t.BertConfig(
        vocab_size=101 if small else 30522,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        attn_implementation=attention,
    )
    with device:
        model = t.BertModel(config, add_pooling_layer=False).eval()
        tokens = torch.randint(config.vocab_size, (2, 8) if small else (32, length))
    return Task(model, tokens, _hidden)


def vit(device: torch.device, small: bool, attention: str, training: bool = False) -> Task:
    """Makes ViT-L/16: inference, or a step of training a classifier."""
    t = _transformers()
    width, layers, heads, inner = SMALL if small else LARGE
    config = t.ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        image_size=32 if small else 224,
        patch_size=16,
        num_labels=10 if small else 1000,
        attn_implementation=attention,
    )
    with device:
        images = torch.randn(2 if small else 32, 3, config.image_size, config.image_size)
        if not training:
            return Task(t.ViTModel(config, add_pooling_layer=False).eval(), images, _hidden)
        labels = torch.randint(config.num_labels, (len(images),))
        model = t.ViTForImageClassification(config).train()
    return Task(model, images, _logits, labels, _cross_entropy)


def gpt2(
    device: torch.device, small: bool, attention: str, shape: tuple[int, int] = (8, 512)
) -> Task:
    """Makes GPT-2 medium, a step of training on texts of this number and length."""
    t = _transformers()
    width, layers, heads, inner = SMALL if small else LARGE
    config = t.GPT2Config(
        vocab_size=101 if small else 50257,
        n_positions=16 if small else max(1024, shape[1]),
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_inner=inner,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,  # the defaults lie outside a small vocabulary
        eos_token_id=None,
        attn_implementation=attention,
    )
    with device:
        model = t.GPT2LMHeadModel(config).train()
        tokens = torch.randint(config.vocab_size, (2, 8) if small else shape)
    return Task(model, tokens, _logits, tokens.roll(-1, 1), _cross_entropy)


def pythia(device: torch.device, small: bool, attention: str, shape: tuple[int, int]) -> Task:
    """Makes Pythia-410M, log-probabilities of texts of this number and length.

    It has GPT-2 medium's size, but its layers are nn.Linear: those of GPT-2 are transformers' own.
    """
    t = _transformers()
    width, layers, heads, inner = SMALL if small else LARGE
    config = t.GPTNeoXConfig(
        vocab_size=101 if small else 50304,
        max_position_embeddings=max(2048, shape[1]),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        use_cache=False,
        attn_implementation=attention,
    )
    with device:
        model = t.GPTNeoXForCausalLM(config).eval()
        tokens = torch.randint(config.vocab_size, shape)
    return Task(model, tokens, _log_probabilities)


def mlp(device: torch.device, small: bool, attention: str) -> Task:
    """Makes a field over space: points in, one value out, a step of training."""
    width, points = (32, 64) if small else (1024, 65536)
    sizes = [3, *[width] * 8]
    with device:
        layers = [
            part
            for m, n in zip(sizes[:-1], sizes[1:], strict=True)
            for part in (nn.Linear(m, n), nn.GELU())
        ]
        model = nn.Sequential(*layers, nn.Linear(width, 1))
        x, y = torch.rand(points, 3), torch.randn(points, 1)
    return Task(model, x, _apply, y, nn.functional.mse_loss)


@dataclass(frozen=True)
class Workload:
    """A model by name. ``what``: model, work and batch, of the full size."""

    what: str
    make: Callable[[torch.device, bool, str], Task]
    default: bool = True  # False: is measured only if it is named


WORKLOADS = {
    "bert-large": Workload("BERT-large, inference, 32 x 128 tokens", bert),
    "vit-l16": Workload("ViT-L/16, inference, 32 images of 224 x 224", vit),
    "gpt2-medium": Workload("GPT-2 medium, training, 8 x 512 tokens", gpt2),
    "mlp": Workload("MLP 8 x 1024, training, 65536 points", mlp),
    "bert-large-512": Workload(
        "BERT-large, inference, 32 x 512 tokens", partial(bert, length=512), False
    ),
    "gpt2-medium-2048": Workload(
        "GPT-2 medium, training, 4 x 2048 tokens", partial(gpt2, shape=(4, 2048)), False
    ),
    "vit-l16-training": Workload(
        "ViT-L/16, training, 32 images of 224 x 224", partial(vit, training=True), False
    ),
}
DEFAULT = [name for name, workload in WORKLOADS.items() if workload.default]
