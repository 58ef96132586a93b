"""An exact Gaussian process: solves (K + noise I) X = Y by conjugate gradients.

    python examples/gaussian_process.py [--small]

Y has the targets and probe vectors for the log determinant, as in GPyTorch. The time goes into
products of K and a few columns. The solver is written with torch alone and runs unchanged within
``torch_sgemm.enabled()``.

Data: the Gaussian kernel of normal points, with elements from 1 down to nearly 0; normal columns.
Gain: faster products with K. The error is the residual |Y - (K + noise I) X| in float64, relative
to |Y|, after enough steps that only rounding is left.
"""

import torch
from beside import UNIT, Recipe, main
from torch import Tensor

import torch_sgemm

NOISE = 0.5


def kernel_matrix(x: Tensor, scale: float) -> Tensor:
    """Returns exp(-|x_i - x_j|^2 / (2 scale^2))."""
    return torch.exp(torch.cdist(x, x).square_().div_(-2 * scale**2))


def solve(k: Tensor, y: Tensor, steps: int) -> Tensor:
    """Solves (k + NOISE I) x = y, all columns at once, by conjugate gradients."""
    x, r = torch.zeros_like(y), y.clone()
    p, rr = r.clone(), r.square().sum(dim=0)
    for _ in range(steps):
        kp = k @ p + NOISE * p
        alpha = rr / (p * kp).sum(dim=0)
        x += alpha * p
        r -= alpha * kp
        before, rr = rr, r.square().sum(dim=0)
        p = r + rr / before * p
    return x


def recipe(device: torch.device, small: bool) -> Recipe:
    points, columns, steps = (256, 5, 40) if small else (16384, 64, 100)
    k = kernel_matrix(torch.randn(points, 8, device=device), scale=1.0)
    y = torch.randn(points, columns, device=device)

    def ours() -> Tensor:
        with torch_sgemm.enabled():
            return solve(k, y, steps)

    def residual(x: Tensor) -> float:
        x = x.double()
        left = y.double() - NOISE * x
        for rows, part in zip(left.split(2048), k.split(2048), strict=True):
            rows -= part.double() @ x
        return float(left.norm() / y.double().norm() / UNIT)

    size = f"{steps} steps of conjugate gradients, {points} points, {columns} columns"
    return Recipe(size, lambda: solve(k, y, steps), ours, "residual", residual)


if __name__ == "__main__":
    main(recipe, __doc__)
