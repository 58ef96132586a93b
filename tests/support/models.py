"""Small models that tests train, copy and pickle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import torch_sgemm


class Products(nn.Module):
    """Two layers whose products are this package's own function."""

    def __init__(self, kernel: str = "auto") -> None:
        super().__init__()
        self.kernel = kernel
        self.first = nn.Parameter(torch.randn(6, 8))
        self.second = nn.Parameter(torch.randn(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch_sgemm.matmul(x, self.first, kernel=self.kernel).relu()
        return torch_sgemm.matmul(hidden, self.second, kernel=self.kernel)


def perceptron(device: str, layers: int = 3) -> nn.Sequential:
    """Linear layers of width 6 with ReLU between them."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(6, 6), nn.ReLU()]
    return nn.Sequential(*parts[:-1]).to(device)
