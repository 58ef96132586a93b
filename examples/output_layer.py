"""Log-probabilities of sampled tokens in reinforcement learning, from a float32 output layer.

    python examples/output_layer.py [--small]

Trainer and sampler must agree on log-probabilities, so both compute the logits in float32, although
the hidden states and the weight are bfloat16. ``torch_sgemm.matmul(hidden, weight.T,
out_dtype=torch.float32)`` multiplies them without a float32 copy of either.

Data: bfloat16 hidden states and weight, normal. Gain: two operands with bfloat16 values take one
tensor-core product, and the weight needs no float32 copy; torch alone keeps one here, made
beforehand. The errors are those of the log-probabilities of the first tokens.
"""

import torch
from beside import Recipe, against, main
from torch import Tensor

import torch_sgemm

CHECKED = 64


def log_probabilities(logits: Tensor, sampled: Tensor) -> Tensor:
    """Returns log softmax(logits) at the sampled tokens."""
    return logits.gather(1, sampled[:, None])[:, 0] - logits.logsumexp(dim=1)


@torch.no_grad()
def recipe(device: torch.device, small: bool) -> Recipe:
    tokens, hidden, words = (64, 96, 512) if small else (4096, 4096, 151936)
    states = torch.randn(tokens, hidden, device=device).bfloat16()
    weight = (torch.randn(words, hidden, device=device) / hidden**0.5).bfloat16()
    sampled = torch.randint(words, (tokens,), device=device)
    weight32 = weight.float()

    @torch.no_grad()
    def theirs() -> Tensor:
        return log_probabilities(states.float() @ weight32.T, sampled)

    @torch.no_grad()
    def ours() -> Tensor:
        logits = torch_sgemm.matmul(states, weight.T, out_dtype=torch.float32)
        return log_probabilities(logits, sampled)

    logits = states[:CHECKED].double() @ weight.double().T
    error = against(log_probabilities(logits, sampled[:CHECKED]))
    size = f"log-probabilities of {tokens} tokens, {hidden} values to {words} words"
    return Recipe(size, theirs, ours, "log-probabilities", lambda found: error(found[:CHECKED]))


if __name__ == "__main__":
    main(recipe, __doc__)
