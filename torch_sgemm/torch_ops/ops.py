"""The operators of ``torch.ops.sgemm`` and what they compute on fake tensors.

All take tensors on one device, CPU or CUDA, of any strides: row-major, column-major, leading
dimensions larger than the row, expanded (stride 0) and sliced views, any alignment. Each of a, b,
x and weight is float32, bfloat16 or float16; c and bias are float32. The result is float32, as if
operands had been converted first. Hopper's tensor cores read two bfloat16 operands without a copy
if their rows begin at multiples of 16 bytes (row ``unsplit``). ``mm``, ``bmm``, ``addmm`` and
``baddbmm`` have derivatives (:mod:`torch_sgemm.derivatives`).

``mm(a, b, kernel="auto")``
    (m, n) = (m, k) @ (k, n).
``bmm(a, b, kernel="auto")``
    (batch, m, n) = (batch, m, k) @ (batch, k, n).
``addmm(c, a, b, kernel="auto", *, beta=1, alpha=1)``
    beta c + alpha a @ b; c broadcasts to (m, n).
``baddbmm(c, a, b, kernel="auto", *, beta=1, alpha=1)``
    The same for batches.
``mm_out(a, b, kernel="auto", *, out)``, ``bmm_out``, ``addmm_out``, ``baddbmm_out``
    Write the same into ``out``, which is not resized, and return nothing.
``gemm_(c, a, b, kernel="auto", *, alpha=1, beta=0)``
    c = alpha a @ b + beta c in place, 2-D or batched; returns nothing.
``linear(x, weight, bias=None, activation=None, kernel="auto")``
    A layer; see :func:`torch_sgemm.linear`.
``packed_mm(c, a, b, kernel, pack, *, beta=1, alpha=1, activation=None)``
    A product with a b that was split once; see :func:`torch_sgemm.pack`.

``kernel`` is ``"auto"`` (the row of the table predicted to be fastest), a family (its best row for
the problem), or a row, alone or with one of its tiles, as in ``"split_fp16x3:128x64"``; see
:func:`torch_sgemm.kernels`. With ``"batch_invariant"`` an element's bits depend on no other row
(docs/reproducibility.md). New outputs are contiguous. With ``beta=0``, c is not read;
with ``alpha=0`` or k = 0, a and b are not.

Every argument is checked before anything runs. ``RuntimeError`` means a wrong dtype, device,
dimension or size, an output that overlaps itself or an input (``out`` may be ``c`` itself), or a
kernel that is unknown or can't run on this device. Operators that write their result also raise it
for tensors that require grad or have a tangent (:mod:`torch_sgemm.derivatives`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_sgemm.torch_ops.distributed import register_if_loaded
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import NAMESPACE, OPERAND_DTYPES, operators, qualified

_DIMS = {"mm": 2, "addmm": 2, "bmm": 3, "baddbmm": 3}
WRITERS = [*(f"{name}_out" for name in _DIMS), "gemm_"]
_NAMES = [*_DIMS, "_matmul", *WRITERS]


def product_shape(op: str, a: Tensor, b: Tensor, dims: int) -> list[int | torch.SymInt]:
    """Returns the product's shape, after the checks that fake tensors allow."""
    register_lowerings(_NAMES)
    register_if_loaded()

    def text() -> str:
        return (
            f"{qualified(op)}: 'a' has {about(a)}; 'b' has {about(b)}; accepted: float32, "
            f"bfloat16 or float16 of {dims} dimensions on one device, as many rows of 'b' as "
            "columns of 'a', equal batches"
        )

    torch._check(a.dtype in OPERAND_DTYPES and b.dtype in OPERAND_DTYPES, text)
    torch._check(a.dim() == dims and b.dim() == dims and a.device == b.device, text)
    torch._check(a.shape[-1] == b.shape[-2], text)
    torch._check(a.shape[:-2] == b.shape[:-2], text)
    return [*a.shape[:-1], b.shape[-1]]


def check_addend(op: str, c: Tensor, a: Tensor, shape: list[int | torch.SymInt]) -> None:
    """Checks that c broadcasts to the product's shape."""

    def text() -> str:
        return (
            f"{qualified(op)}: 'c' has {about(c)}; accepted: float32 on {a.device}, a shape that "
            f"broadcasts to {shape}"
        )

    torch._check(c.dtype == torch.float32 and c.device == a.device, text)
    torch._check(c.dim() <= len(shape), text)
    torch._check(list(torch.broadcast_shapes(c.shape, shape)) == shape, text)


def _check_target(
    op: str, name: str, x: Tensor, a: Tensor, shape: list[int | torch.SymInt]
) -> None:
    """Checks that the product can be written to x."""

    def text() -> str:
        return (
            f"{qualified(op)}: {name!r} has {about(x)}; accepted: float32 on {a.device} of {shape}"
        )

    torch._check(x.dtype == torch.float32 and x.device == a.device, text)
    torch._check(list(x.shape) == shape, text)


def about(x: Tensor) -> str:
    """Describes a tensor for an error."""
    return f"shape {list(x.shape)}, dtype {x.dtype}, device {x.device}"


def check_tensors(function: str, **arguments: object) -> None:
    """Raises TypeError for the first argument that is no tensor."""
    for name, x in arguments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{function}: argument {name!r} is {x!r}; accepted: a tensor")


def broadcasts(x: Tensor, shape: Sequence[int]) -> bool:
    """True if the tensor can be expanded to the shape."""
    sizes = zip(x.shape[::-1], shape[::-1], strict=False)
    return x.dim() <= len(shape) and all(n in (1, m) for n, m in sizes)


def _register_fakes(op: str) -> None:
    dims = _DIMS[op]

    if "add" in op:

        @torch.library.register_fake(qualified(op))
        def _(c, a, b, kernel="auto", *, beta=1.0, alpha=1.0):
            shape = product_shape(op, a, b, dims)
            check_addend(op, c, a, shape)
            return a.new_empty(shape, dtype=torch.float32)

        @torch.library.register_fake(qualified(f"{op}_out"))
        def _(c, a, b, kernel="auto", *, beta=1.0, alpha=1.0, out):
            shape = product_shape(f"{op}_out", a, b, dims)
            check_addend(f"{op}_out", c, a, shape)
            _check_target(f"{op}_out", "out", out, a, shape)

    else:

        @torch.library.register_fake(qualified(op))
        def _(a, b, kernel="auto"):
            return a.new_empty(product_shape(op, a, b, dims), dtype=torch.float32)

        @torch.library.register_fake(qualified(f"{op}_out"))
        def _(a, b, kernel="auto", *, out):
            shape = product_shape(f"{op}_out", a, b, dims)
            _check_target(f"{op}_out", "out", out, a, shape)


for _op in _DIMS:
    _register_fakes(_op)


@torch.library.register_fake(qualified("_matmul"))
def _(a, b, kernel="auto"):
    return a.new_empty(product_shape("_matmul", a, b, 4), dtype=torch.float32)


@torch.library.register_fake(qualified("gemm_"))
def _(c, a, b, kernel="auto", *, alpha=1.0, beta=0.0):
    _check_target("gemm_", "c", c, a, product_shape("gemm_", a, b, 3 if a.dim() == 3 else 2))


# PyTorch resolves a view's negative bit by a fallback that is wrong for operators without a result.
_resolving = torch.library.Library(NAMESPACE, "IMPL")


def _resolve_negative(name: str) -> None:
    operator = getattr(operators, name).default

    def resolve(value):
        return value.resolve_neg() if isinstance(value, Tensor) else value

    def resolved(*args, **kwargs) -> None:
        values, named = [resolve(x) for x in args], {key: resolve(x) for key, x in kwargs.items()}
        operator(*values, **named)
        target = kwargs.get("out", args[0])
        if target.is_neg():
            target.copy_(named.get("out", values[0]))

    _resolving.impl(name, resolved, "Negative")


for _name in WRITERS:
    _resolve_negative(_name)
