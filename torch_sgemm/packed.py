"""Right operands that are split once and multiplied many times, such as a layer's weights."""

import torch
from torch import Tensor

from torch_sgemm.derivatives import of_factors, save_factors, scaled


class PackedMatrix:
    """A matrix ``b`` beside its float16 planes, as :func:`pack` makes it.

    The planes take 4 bytes an element. ``b`` itself is kept: what the guard of the split family
    marks is computed again from it. Where ``b`` has been written since, which PyTorch's version
    counter tells, it is packed again before the next product.
    """

    def __init__(self, b: Tensor) -> None:
        if b.is_inference():
            raise RuntimeError(
                "torch_sgemm.pack: argument 'b' is an inference tensor, whose changes PyTorch "
                "doesn't count; accepted: a tensor made outside torch.inference_mode()"
            )
        self.b = b
        self._repack()

    def _repack(self) -> None:
        self._state = self._now()
        self._planes = torch.ops.sgemm._pack(self.b.detach())

    def _now(self) -> tuple:
        return self.b._version, self.b.data_ptr(), self.b.shape, self.b.stride()

    @property
    def shape(self) -> torch.Size:
        """(k, n)"""
        return self.b.shape

    def planes(self) -> Tensor:
        """The planes of ``b`` as it is now."""
        if self._now() != self._state:
            self._repack()
        return self._planes

    def __repr__(self) -> str:
        return f"PackedMatrix(shape={tuple(self.shape)}, device={self.b.device})"

    def mm(
        self, a: Tensor, c: Tensor | None = None, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        """``alpha a @ b``, with ``beta c`` added if there is a c.

        Args:
            a: float32 of shape (m, k), any strides, on b's device.
            c: float32, broadcasts to (m, n).

        Gradients reach a, b and c.

        Raises:
            RuntimeError: an argument of another shape, dtype or device.
        """
        return SgemmPackedProduct.apply(a, self.b, c, self, float(beta), float(alpha))


class SgemmPackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, c, packed: PackedMatrix, beta: float, alpha: float) -> Tensor:
        save_factors(ctx, a, b, *ctx.needs_input_grad[:2])
        ctx.addend, ctx.beta, ctx.alpha = None if c is None else c.shape, beta, alpha
        return torch.ops.sgemm._mm_packed(a, b, packed.planes(), c, beta=beta, alpha=alpha)

    @staticmethod
    def backward(ctx, grad: Tensor):
        needs_a, needs_b, needs_c = ctx.needs_input_grad[:3]
        gradients = of_factors(ctx, scaled(grad, ctx.alpha), needs_a, needs_b, "auto")
        grad_c = (grad * ctx.beta).sum_to_size(ctx.addend) if needs_c else None
        return *gradients, grad_c, None, None, None


def pack(b: Tensor) -> PackedMatrix:
    """Splits a right operand once, for :func:`torch_sgemm.matmul` and :meth:`PackedMatrix.mm`.

    Products with it take the row ``split_fp16x3`` (docs/split.md) and save the pass over ``b``.

    Args:
        b: float32 of shape (k, n), any strides, on a GPU of compute capability 9.0; for a
            ``torch.nn.Linear``, ``weight.t()``.

    Raises:
        RuntimeError: b is of another dtype, dimension or device, or an inference tensor; the build
            has no kernels of the family split.
    """
    return PackedMatrix(b)
