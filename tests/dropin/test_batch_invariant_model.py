"""A language model's log-probabilities, alone and in a batch: the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.batches import assert_same
from support.table import DEVICES
from torch import Tensor, nn

import torch_sgemm

WORDS, WIDTH, HEADS, LENGTH = 50, 64, 4, 12


class Block(nn.Module):
    """Attention, by products of matrices or fused, and a layer with an activation."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_heads, self.from_heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.to_heads(self.first(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if self.fused:
            attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.mT / (WIDTH // HEADS) ** 0.5
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            attended = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        x = x + self.from_heads(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.second(x))))


class Model(nn.Module):
    """Blocks between an embedding and an output layer."""

    def __init__(self, blocks: int, fused: bool) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.Sequential(*(Block(fused) for _ in range(blocks)))

    def forward(self, words: Tensor) -> Tensor:
        """Each word's log-probability, given those before it."""
        logits = self.output(self.blocks(self.embedding(words[:, :-1])))
        return logits.log_softmax(-1).gather(-1, words[:, 1:, None]).squeeze(-1)


def check(model: Callable[[Tensor], Tensor], words: Tensor) -> None:
    """Sequences alone, in parts of several sizes and all at once."""
    with torch_sgemm.enabled(batch_invariant=True, devices=(words.device.type,)):
        batch = model(words).detach()
        alone = torch.cat([model(sequence[None]) for sequence in words]).detach()
        parts = torch.cat([model(part) for part in words.split([1, 7, 40, 16])]).detach()
    assert batch.isfinite().all()
    assert_same(alone, batch)
    assert_same(parts, batch)


def model_and_words(device: str, blocks: int = 2, fused: bool = False) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    return Model(blocks, fused).to(device), torch.randint(WORDS, (64, LENGTH), device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "training"])
def test_log_probabilities(device: str, mode: str) -> None:
    model, words = model_and_words(device)
    contexts = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with contexts.get(mode, torch.enable_grad)():
        check(model.train(mode == "training"), words)


@pytest.mark.gpu
@pytest.mark.parametrize("training", [False, True])
def test_log_probabilities_with_fused_attention(training: bool) -> None:
    """The kernel here takes all calls, also those for which PyTorch's is predicted to be faster."""
    model, words = model_and_words("cuda", fused=True)
    before = attention_calls()
    with torch.set_grad_enabled(training):
        check(model.train(training), words)
    assert attention_calls() - before == 2 * (1 + len(words) + 4)  # blocks, by calls of the model


def attention_calls() -> int:
    return torch_sgemm.stats().hits.get("_scaled_dot_product_efficient_attention", 0)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_change_nothing(device: str) -> None:
    model, words = model_and_words(device)
    with torch_sgemm.enabled(batch_invariant=True, devices=(device,)):
        recorded = model(words)
        with torch.no_grad():
            assert recorded.isfinite().all()
            assert_same(model(words), recorded.detach())


@pytest.mark.slow
def test_compiled() -> None:
    """Runs on the CPU; Inductor's own GPU kernels, such as softmax, may depend on the batch."""
    model, words = model_and_words("cpu", blocks=1)
    with torch.no_grad():
        check(torch.compile(model, dynamic=True), words)
