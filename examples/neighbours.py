"""Nearest neighbours by brute force: every image's nearest one in a database.

    python examples/neighbours.py [--small]

|q - x|^2 - |q|^2 = |x|^2 - 2 q x is a product with an addend, and its least element is the nearest
image's. The code runs unchanged within ``torch_sgemm.enabled()``.

Data: pixels, 0 to 255, in float32. Gain: pixels have 8 bits, so that the product takes one
tensor-core product instead of three. TF32 holds pixels too, but not embeddings; this code is as
exact for them. The errors are those of |x|^2 - 2 q x, for the first queries.
"""

import torch
from beside import Recipe, against, main
from torch import Tensor

import torch_sgemm

CHECKED = 256


def nearest(queries: Tensor, images: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Returns |x|^2 - 2 q x of each query's nearest image, and the image's index."""
    return torch.addmm(squares, queries, images.T, alpha=-2).min(dim=1)


def recipe(device: torch.device, small: bool) -> Recipe:
    queries, count, pixels = (32, 500, 64) if small else (4096, 100000, 784)
    images, asked = (
        torch.randint(256, (rows, pixels), device=device).float() for rows in (count, queries)
    )
    squares = images.square().sum(dim=1)

    def theirs() -> tuple[Tensor, Tensor]:
        return nearest(asked, images, squares)

    def ours() -> tuple[Tensor, Tensor]:
        with torch_sgemm.enabled():
            return nearest(asked, images, squares)

    wide = images.double()
    values, indices = nearest(asked[:CHECKED].double(), wide, wide.square().sum(dim=1))
    error = against(values)

    def others(run) -> float:
        return float((run()[1][:CHECKED] != indices).sum())

    size = f"{queries} queries among {count} images of {pixels} pixels"
    also = ("queries with another neighbour than in float64", others)
    return Recipe(size, theirs, ours, "distances", lambda found: error(found[0][:CHECKED]), also)


if __name__ == "__main__":
    main(recipe, __doc__)
