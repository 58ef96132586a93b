"""Batch-invariant serving: a request's bits don't depend on the requests beside it.

    python examples/batch_invariant.py [--small]

A server batches whatever requests arrive, and PyTorch's kernels add in an order that depends on the
batch. ``torch_sgemm.convert(model, pack=True, batch_invariant=True)`` changes a model's layers so
that a row's bits depend on that row and the weight alone. ``pack`` splits each weight once.

Data: normal activations and weights. Gain: the same bits, beside torch's speed without that
property. The errors are those of the outputs.
"""

import copy

import torch
from beside import Recipe, against, main
from torch import Tensor, nn

import torch_sgemm

ALONE = 16


class Block(nn.Module):
    """A feed-forward layer with a norm and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


@torch.no_grad()
def recipe(device: torch.device, small: bool) -> Recipe:
    rows, width, layers = (24, 32, 2) if small else (512, 4096, 4)
    model = nn.Sequential(*(Block(width) for _ in range(layers))).to(device)
    model.eval().requires_grad_(False)  # a packed weight doesn't change
    ours = torch_sgemm.convert(copy.deepcopy(model), pack=True, batch_invariant=True)
    x = torch.randn(rows, width, device=device)

    def changed(run) -> float:
        together = run()
        alone = (run(x[i : i + 1])[0] for i in range(ALONE))
        return float(sum(not torch.equal(row, together[i]) for i, row in enumerate(alone)))

    exact = copy.deepcopy(model).double()(x.double())
    size = f"{layers} feed-forward layers, {rows} rows of {width}"
    run_theirs, run_ours = (torch.no_grad()(lambda x=x, m=m: m(x)) for m in (model, ours))
    also = (f"rows of {ALONE} whose bits change when they are alone", changed)
    return Recipe(size, run_theirs, run_ours, "outputs", against(exact), also)


if __name__ == "__main__":
    main(recipe, __doc__)
