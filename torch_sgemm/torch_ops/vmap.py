"""The operators under ``torch.vmap``: many products become one, of more rows or matrices."""

import torch
from torch import Tensor

from torch_sgemm.torch_ops.library import operators, qualified

_mm, _bmm = operators.mm, operators.bmm


def batched(x: Tensor, dim: int | None, size: int) -> Tensor:
    """Puts the vmapped dimension first; without one expands x, which copies nothing."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


@torch.library.register_vmap(qualified("mm"))
def _(info, in_dims, a, b, kernel="auto"):
    a = batched(a, in_dims[0], info.batch_size)
    if in_dims[1] is None:  # the rows of all A make one matrix
        return _mm(a.flatten(0, 1), b, kernel=kernel).unflatten(0, a.shape[:2]), 0
    return _bmm(a, batched(b, in_dims[1], info.batch_size), kernel=kernel), 0


def _register_batches(name: str) -> None:
    """Registers vmap for an operator on batches: the batches become one."""
    operator = getattr(operators, name)

    @torch.library.register_vmap(qualified(name))
    def _(info, in_dims, a, b, kernel="auto"):
        a, b = batched(a, in_dims[0], info.batch_size), batched(b, in_dims[1], info.batch_size)
        result = operator(a.flatten(0, 1), b.flatten(0, 1), kernel=kernel)
        return result.unflatten(0, a.shape[:2]), 0


_register_batches("bmm")
_register_batches("_matmul")


def addend(c: Tensor, dim: int | None, dims: int) -> Tensor:
    """Reshapes c to ``dims`` dimensions, after the vmapped one if it has that."""
    missing = dims - (c.dim() - (dim is not None))
    if missing < 0:
        raise RuntimeError(
            f"torch_sgemm: argument 'c' has {dims - missing} dimensions in each of the vmapped "
            f"products; accepted: {dims} or fewer"
        )
    c = c if dim is None else c.movedim(dim, 0)
    at = 0 if dim is None else 1
    return c.reshape(*c.shape[:at], *([1] * missing), *c.shape[at:])


@torch.library.register_vmap(qualified("addmm"))
def _(info, in_dims, c, a, b, kernel="auto", *, beta=1.0, alpha=1.0):
    size = info.batch_size
    c = addend(c, in_dims[0], 2)
    a, b = batched(a, in_dims[1], size), batched(b, in_dims[2], size)
    return operators.baddbmm(c, a, b, kernel=kernel, beta=beta, alpha=alpha), 0


@torch.library.register_vmap(qualified("baddbmm"))
def _(info, in_dims, c, a, b, kernel="auto", *, beta=1.0, alpha=1.0):
    size = info.batch_size
    a, b = batched(a, in_dims[1], size), batched(b, in_dims[2], size)
    shape = (size, *a.shape[1:-1], b.shape[-1])
    c = addend(c, in_dims[0], 3).expand(shape).flatten(0, 1)
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    out = operators.baddbmm(c, a, b, kernel=kernel, beta=beta, alpha=alpha)
    return out.unflatten(0, shape[:2]), 0
