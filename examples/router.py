"""A float32 router of a mixture of experts: bfloat16 activations times a float32 weight.

    python examples/router.py [--small]

Routers score in float32, because a rounded score picks another expert. Such a router is
``F.linear(x.float(), weight)``. ``torch_sgemm.linear(x, weight)`` replaces that line, takes the
bfloat16 activations, and has the same derivatives.

Data: activations with bfloat16 values, normal; a normal weight. Gain: no float32 copy of the
activations, and fewer tensor-core products, because a bfloat16 value has only 8 bits of mantissa.
The errors are those of the scores.
"""

import torch
from beside import Recipe, against, main
from torch import Tensor, nn
from torch.nn import functional as F

import torch_sgemm

CHOSEN = 8


class Router(nn.Module):
    """Scores of all experts, in float32."""

    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden) / hidden**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch_sgemm.linear(x, self.weight)


class TorchRouter(Router):
    """The same by torch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.float(), self.weight)


@torch.no_grad()
def recipe(device: torch.device, small: bool) -> Recipe:
    tokens, hidden, experts = (64, 96, 16) if small else (16384, 7168, 256)
    ours, theirs = Router(hidden, experts).to(device), TorchRouter(hidden, experts).to(device)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(tokens, hidden, device=device).bfloat16()
    exact = x.double() @ ours.weight.double().mT
    chosen = exact.topk(CHOSEN).indices.sort().values

    def others(run) -> float:
        return float((run().topk(CHOSEN).indices.sort().values != chosen).any(dim=1).sum())

    size = f"{tokens} tokens of {hidden} bfloat16 values, scores of {experts} experts"
    run_theirs, run_ours = (torch.no_grad()(lambda m=m: m(x)) for m in (theirs, ours))
    also = ("tokens whose experts differ from float64's", others)
    return Recipe(size, run_theirs, run_ours, "scores", against(exact), also)


if __name__ == "__main__":
    main(recipe, __doc__)
