"""``sgemm::linear``: its calls, its fake, its derivatives, and vmap.

``linear(x, weight, bias=None, activation=None, kernel="auto")`` returns activation(x @ weight.T +
bias). Its derivatives need the activation's input. ReLU's derivative follows from the result. For
the others a plain call that needs a gradient stores the input as well. Under a transform, a mode or
a tracer the product is stored and PyTorch's activation follows.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from torch_sgemm.torch_ops.activations import ACTIVATIONS, check_activation, followed, through_relu
from torch_sgemm.torch_ops.autograd import Derivative, below, implement, needed, with_primals
from torch_sgemm.torch_ops.derivatives import spread
from torch_sgemm.torch_ops.distributed import has_split_rows, register_if_loaded
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import OPERAND_DTYPES, operators, qualified
from torch_sgemm.torch_ops.ops import about
from torch_sgemm.torch_ops.past_dispatcher import is_plain, kernels_of
from torch_sgemm.torch_ops.product import of_gradients, product, rows_of
from torch_sgemm.torch_ops.vmap import batched

linear_op, _bmm = operators.linear.default, operators.bmm
KERNELS = kernels_of("linear")
_with_inner = operators._linear_with_inner.default


@torch.library.register_fake(qualified("linear"))
def _(x, weight, bias=None, activation=None, kernel="auto"):
    check_activation(qualified("linear"), activation)
    register_lowerings(["linear"])
    register_if_loaded()
    tensors = [t for t in (x, weight, bias) if t is not None]

    def text() -> str:
        return f"{qualified('linear')}: " + "; ".join(
            [
                *(
                    f"'{name}' has {about(t)}"
                    for name, t in zip(("x", "weight", "bias"), tensors, strict=False)
                ),
                "accepted: float32, bfloat16 or float16 of shapes (..., in), (out, in), and a "
                "float32 bias of (out,), on one device",
            ]
        )

    torch._check(x.dtype in OPERAND_DTYPES and weight.dtype in OPERAND_DTYPES, text)
    torch._check(bias is None or bias.dtype == torch.float32, text)
    torch._check(all(t.device == x.device for t in tensors), text)
    torch._check(x.dim() >= 1 and weight.dim() == 2, text)
    torch._check(x.shape[-1] == weight.shape[1], text)
    torch._check(bias is None or bias.dim() == 1, text)
    torch._check(bias is None or bias.shape[0] == weight.shape[0], text)
    return x.new_empty([*x.shape[:-1], weight.shape[0]], dtype=torch.float32)


class SgemmLinear(Derivative):
    """Without an activation or with ReLU; for others, ``run`` returns the activation's input."""

    @staticmethod
    def forward(
        ctx, run: Callable[..., Tensor], x, weight, bias, activation: str | None, kernel: str
    ) -> Tensor:
        output = run(x, weight, bias, activation, kernel)
        of_relu = output if activation == "relu" else None
        _, needs_x, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None, of_relu)
        ctx.save_for_forward(x, weight, of_relu)
        ctx.kernel, ctx.shape, ctx.dtypes = kernel, x.shape, (x.dtype, weight.dtype)
        return output

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight, output = ctx.saved_tensors
        needs = _, needs_x, needs_weight, needs_bias, *_ = needed(ctx)
        grad = _through(grad, output)
        if has_split_rows(grad) or (needs_weight and has_split_rows(x)):
            return SgemmLinear._backward_of_parts(ctx, needs, x, weight, grad)
        rows, kernel, (of_x, of_weight) = rows_of(grad), of_gradients(ctx.kernel), ctx.dtypes
        grad_x = product(rows, weight, kernel).reshape(ctx.shape).to(of_x) if needs_x else None
        grad_weight = product(rows.mT, rows_of(x), kernel).to(of_weight) if needs_weight else None
        return None, grad_x, grad_weight, rows.sum(0) if needs_bias else None, None, None

    @staticmethod
    def _backward_of_parts(ctx, needs: tuple[bool, ...], x: Tensor, weight: Tensor, grad: Tensor):
        """Differentiates without flattening; sums the weight's gradients over a batch."""
        _, needs_x, needs_weight, needs_bias, *_ = needs
        kernel, (of_x, of_weight) = of_gradients(ctx.kernel), ctx.dtypes
        grad_x = linear_op(grad, weight.mT, None, None, kernel).to(of_x) if needs_x else None
        grad_weight = grad_bias = None
        if needs_weight:
            by_matrix = product(grad.flatten(0, -3).mT, x.flatten(0, -3), kernel)
            grad_weight = by_matrix.sum(0).to(of_weight)
        if needs_bias:
            grad_bias = grad.sum(tuple(range(grad.dim() - 1)))
        return None, grad_x, grad_weight, grad_bias, None, None

    @staticmethod
    @with_primals
    def jvp(ctx, saved, _run, tangent_x, tangent_weight, tangent_bias, *_) -> Tensor:
        x, weight, output = saved
        terms = []
        if tangent_x is not None:
            terms.append(linear_op(tangent_x, weight, None, None, ctx.kernel))
        if tangent_weight is not None:
            terms.append(linear_op(x, tangent_weight, None, None, ctx.kernel))
        if tangent_bias is not None:
            terms.append(spread(tangent_bias, (*x.shape[:-1], weight.shape[0])))
        return _through(sum(terms[1:], terms[0]), output)


def _through(flow: Tensor, of_relu: Tensor | None) -> Tensor:
    """Returns a gradient or tangent through ReLU, unchanged if there is no ReLU."""
    return flow if of_relu is None else through_relu(flow, of_relu)


def _differentiated(keyset, x, weight, bias=None, activation=None, kernel="auto") -> Tensor:
    check_activation(qualified("linear"), activation)

    def product(run: Callable[..., Tensor], activation: str | None = activation) -> Tensor:
        return SgemmLinear.at_level(run, x, weight, bias, activation, kernel)

    run = partial(below, linear_op, keyset)
    if activation in (None, "relu"):
        return product(run)
    if is_plain(x, weight, bias):
        return followed(product, partial(below, _with_inner, keyset), activation)
    return ACTIVATIONS[activation](product(run, None))


implement("linear", _differentiated)


@torch.library.register_vmap(qualified("linear"))
def _(info, in_dims, x, weight, bias=None, activation=None, kernel="auto"):
    """Calls the operator if only x is batched, else a batched product."""
    check_activation(qualified("linear"), activation)
    of_x, of_weight, of_bias, *_ = (*in_dims, None)  # in_dims lacks defaults
    x = batched(x, of_x, info.batch_size)
    if of_weight is None and of_bias is None:
        return linear_op(x, weight, bias, activation, kernel), 0
    weight = batched(weight, of_weight, info.batch_size)
    rows = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    result = _bmm(rows, weight.mT, kernel)
    if bias is not None:
        bias = bias if of_bias is None else bias.movedim(of_bias, 0).unsqueeze(1)
        if bias.shape[-1] != weight.shape[1]:
            raise RuntimeError(
                f"{qualified('linear')}: argument 'bias' has shape {list(bias.shape)} under vmap; "
                f"accepted: {weight.shape[1]} elements, the rows of 'weight'"
            )
        result = result + bias
    return ACTIVATIONS[activation](result).reshape(*x.shape[:-1], weight.shape[1]), 0
