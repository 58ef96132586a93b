"""Trains a small transformer block with and without torch_sgemm, and compares loss and speed.

    python examples/train_block.py [--steps 50] [--kernel auto]

Without a GPU the products of CPU tensors are sent here, at a small size: a demonstration, not a
measurement.
"""

import argparse
import time
from contextlib import nullcontext

import torch
from torch import nn

import torch_sgemm


class Block(nn.Module):
    """Attention and a feed-forward layer, with nothing but torch's own modules."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed_forward(self.norms[1](x))


def train(device: torch.device, steps: int, width: int, tokens: int) -> tuple[float, float]:
    """The last loss and the seconds a step."""
    torch.manual_seed(0)
    block = Block(width, heads=8).to(device)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    x = torch.randn(8, tokens, width, device=device)
    target = torch.roll(x, 1, dims=1)
    for step in range(steps + 1):
        if step == 1:  # the first step warms up
            _wait(device)
            start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(block(x), target)
        loss.backward()
        optimizer.step()
    _wait(device)
    return loss.item(), (time.perf_counter() - start) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--kernel", default="auto")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps {options.steps}; accepted: 1 and more")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width, tokens = (1024, 512) if device.type == "cuda" else (64, 16)
    for name, scope in (
        ("torch", nullcontext()),
        ("torch_sgemm", torch_sgemm.enabled(options.kernel, devices=(device.type,))),
    ):
        with scope:
            loss, seconds = train(device, options.steps, width, tokens)
        print(f"{name:12} loss {loss:.6f}   {seconds * 1e3:8.2f} ms a step")
    print(torch_sgemm.stats())


if __name__ == "__main__":
    main()
