"""A step of SOAP: Gram matrices of a gradient, and the gradient in their eigenvectors' basis.

    python examples/soap.py [--small]

Second-order optimizers multiply in float32, because the eigenvectors of a rounded G Gᵀ differ.
``torch_sgemm.matmul(g, g.T)`` computes half of the tiles, and its result is exactly symmetric.
Muon and Shampoo begin with the same product.

Data: a normal gradient; orthogonal bases. Gain: two Gram matrices at half the work, and four
products on the tensor cores. The errors are those of the update.
"""

from collections.abc import Callable

import torch
from beside import Recipe, against, main
from torch import Tensor

import torch_sgemm

BETA = 0.95
Product = Callable[[Tensor, Tensor], Tensor]


def step(g: Tensor, left: Tensor, right: Tensor, bases: list[Tensor], mm: Product) -> Tensor:
    """Updates the moments left and right in place; returns the update of the weight."""
    left.lerp_(mm(g, g.mT), 1 - BETA)
    right.lerp_(mm(g.mT, g), 1 - BETA)
    u, v = bases
    rotated = mm(mm(u.mT, g), v)
    scaled = rotated / (rotated.abs() + 1)  # stands for Adam in this basis
    return mm(mm(u, scaled), v.mT)


def recipe(device: torch.device, small: bool) -> Recipe:
    m, n = (64, 96) if small else (4096, 4096)
    g = torch.randn(m, n, device=device)
    bases = [torch.linalg.qr(torch.randn(s, s, device=device)).Q for s in (m, n)]

    def run(mm: Product, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        moments = [torch.zeros(s, s, dtype=dtype, device=device) for s in (m, n)]
        update = step(g.to(dtype), *moments, [basis.to(dtype) for basis in bases], mm)
        return update, moments[0]

    def asymmetry(side) -> float:
        left = side()[1]
        return float((left - left.mT).abs().max())

    error = against(run(torch.matmul, torch.float64)[0])
    return Recipe(
        f"a step for a weight of {m} x {n}",
        lambda: run(torch.matmul),
        lambda: run(torch_sgemm.matmul),
        "update",
        lambda found: error(found[0]),
        ("largest difference between G Gᵀ and its transpose", asymmetry),
    )


if __name__ == "__main__":
    main(recipe, __doc__)
