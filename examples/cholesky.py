"""A blocked Cholesky factorization whose updates are products, beside torch.linalg.cholesky.

    python examples/cholesky.py [--small]

Each panel of columns subtracts the product of the finished columns and their own transposed rows.
Then its diagonal block is factored, by smaller panels or by torch, and the rest of the panel is
multiplied by the block's inverse. All but a small part of the work is in products.

Data: X Xᵀ / n + I with normal X, as in GPTQ and Gaussian processes. Gain: float32 products on the
tensor cores instead of cuSOLVER's. The error is the residual |A - L Lᵀ| in float64, relative to
|A|, in the Frobenius norm.
"""

import torch
from beside import UNIT, Recipe, main
from torch import Tensor

import torch_sgemm

PANELS = (1024, 256)


def cholesky_(a: Tensor, width: int = 0, *narrower: int) -> Tensor:
    """Factors a positive definite ``a`` in place; its upper triangle becomes scratch."""
    if not width or len(a) <= width:
        return a.copy_(torch.linalg.cholesky_ex(a).L)
    for j in range(0, len(a), width):
        panel, done = a[j:, j : j + width], a[j:, :j]
        if j:  # panel -= done @ done[:width].T
            torch.ops.sgemm.gemm_(panel, done, done[:width].mT, alpha=-1.0, beta=1.0)
        block, below = panel[:width], panel[width:]
        cholesky_(block, *narrower)
        if len(below):
            one = torch.eye(len(block), device=a.device, dtype=a.dtype)
            inverse = torch.linalg.solve_triangular(block.tril(), one, upper=False)
            below.copy_(torch_sgemm.matmul(below, inverse.mT))
    return a


def recipe(device: torch.device, small: bool) -> Recipe:
    n, panels = (192, (64, 16)) if small else (16384, PANELS)
    x = torch.randn(n, n, device=device)
    a = (x @ x.mT).div_(n).add_(torch.eye(n, device=device))
    del x

    def residual(factor: Tensor) -> float:
        left, total = torch.zeros((), device=device), a.double()
        wide = factor.double()
        for rows, part in zip(total.split(2048), wide.split(2048), strict=True):
            left = left + (rows - part @ wide.mT).square().sum()
        return float(left.sqrt() / total.norm() / UNIT)

    return Recipe(
        f"Cholesky factor of {n} x {n}",
        lambda: torch.linalg.cholesky(a),
        lambda: cholesky_(a.clone(), *panels).tril_(),
        "residual",
        residual,
    )


if __name__ == "__main__":
    main(recipe, __doc__)
