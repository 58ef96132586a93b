"""A physics-informed network: the loss of Poisson's equation and its gradient.

    python examples/pinn.py [--small]

The Laplacian takes second derivatives of the network, and training differentiates once more.
``torch_sgemm.convert(net)`` changes the layers; the products of all derivatives follow.

Data: points in a square, tanh activations. Gain: faster products, which are only a part of a step
beside tanh and its derivatives. The error is the norm of the gradient's error, relative to the
gradient's norm.
"""

import copy

import torch
from beside import UNIT, Recipe, main
from torch import Tensor, nn

import torch_sgemm


def gradient(net: nn.Module, points: Tensor) -> Tensor:
    """Returns the gradient of the mean of (laplacian u - f)^2 by the weights, as one vector."""
    x = points.requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    laplacian = sum(
        torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i]
        for i in range(x.shape[1])
    )
    source = torch.sin(torch.pi * x.detach()).prod(dim=1)
    loss = (laplacian - source).square().mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights(net))])


def weights(net: nn.Module) -> list[Tensor]:
    """Returns the weights that the loss depends on; the last bias is not among them."""
    return list(net.parameters())[:-1]


def recipe(device: torch.device, small: bool) -> Recipe:
    points, width, layers = (64, 16, 3) if small else (65536, 256, 4)
    sizes = [2, *[width] * layers]
    hidden = [
        part
        for m, n in zip(sizes[:-1], sizes[1:], strict=True)
        for part in (nn.Linear(m, n), nn.Tanh())
    ]
    net = nn.Sequential(*hidden, nn.Linear(width, 1)).to(device)
    ours = torch_sgemm.convert(copy.deepcopy(net))
    x = torch.rand(points, 2, device=device)
    exact = gradient(copy.deepcopy(net).double(), x.double())

    def error(found: Tensor) -> float:
        return float((found.double() - exact).norm() / exact.norm() / UNIT)

    size = f"{points} points, {layers} hidden layers of {width}"
    run_theirs, run_ours = (lambda m=m: gradient(m, x) for m in (net, ours))
    return Recipe(size, run_theirs, run_ours, "gradient", error)


if __name__ == "__main__":
    main(recipe, __doc__)
