"""``sgemm::packed_mm``: a product with a right operand that was split once.

``packed_mm(c, a, b, kernel, pack, *, beta=1, alpha=1, activation=None)`` is activation(beta c +
alpha a @ b) for every ``pack``. The planes are a cache of the packed matrix with that number, which
the operator's kernel looks up when it runs. So compiled programs, captured graphs and derivatives
can't be stale either.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.activations import ACTIVATIONS, check_activation, followed
from torch_sgemm.torch_ops.autograd import below, implement
from torch_sgemm.torch_ops.derivatives import SgemmSum, scaled
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import NAMESPACE, operators, out_of_memory, qualified
from torch_sgemm.torch_ops.ops import check_addend, product_shape
from torch_sgemm.torch_ops.past_dispatcher import is_plain, kernels_of
from torch_sgemm.torch_ops.vmap import addend, batched

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define(
    "packed_mm(Tensor? c, Tensor a, Tensor b, str kernel, SymInt pack, *, float beta=1, "
    "float alpha=1, str? activation=None) -> Tensor"
)
packed_mm = operators.packed_mm.default
_with_inner = operators._packed_mm_with_inner.default
_KERNELS, _KERNELS_OF_LAYERS = kernels_of("_packed_mm"), kernels_of("_packed_linear")

packs: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()  # PackedMatrix


def straight(a: Tensor, *rest, **factors: float) -> Tensor:
    """Multiplies past the dispatcher. Precondition: ``reaches_kernel`` of the tensors."""
    return _past_dispatcher(_KERNELS, a, *rest, **factors)


def straight_layer(x: Tensor, b: Tensor, planes: Tensor | None, bias: Tensor | None, *rest):
    """Returns activation(x b + bias) for x (..., k) and ``rest``: kernel, activation.

    Precondition: ``reaches_kernel`` of the tensors, whose shapes fit.
    """
    return _past_dispatcher(_KERNELS_OF_LAYERS, x, b, planes, bias, *rest)


def _past_dispatcher(kernels, a: Tensor, *rest, **factors: float) -> Tensor:
    function, keys = kernels[a.is_cuda]
    try:
        return function(keys, a, *rest, **factors)
    except RuntimeError as failure:
        raise out_of_memory(failure, a.is_cuda) from None


def _planes_for(pack: int, b: Tensor) -> Tensor | None:
    packed = packs.get(pack)
    return None if packed is None else packed.planes_of(b)


@private.uncompiled
def _run(c, a, b, kernel: str, pack: int, *, activation: str | None = None, **factors) -> Tensor:
    return straight(a, b, _planes_for(pack, b), c, kernel, activation, **factors)


for _backend in ("CPU", "CUDA"):
    _library.impl("packed_mm", _run, _backend)


def _differentiated(
    keyset, c, a, b, kernel, pack, *, beta=1.0, alpha=1.0, activation=None
) -> Tensor:
    check_activation(qualified("packed_mm"), activation)

    def product(run: Callable[..., Tensor]) -> Tensor:
        return SgemmSum.at_level(run, c, a, b, beta, alpha, kernel, pack)

    if activation is None or not is_plain(a, b, c):
        return ACTIVATIONS[activation](product(partial(below, packed_mm, keyset)))

    def run(c, a, b, kernel: str, pack: int, **factors: float) -> tuple[Tensor, Tensor]:
        planes = _planes_for(pack, b)
        return below(_with_inner, keyset, a, b, planes, c, kernel, activation, **factors)

    return followed(product, run, activation)


implement("packed_mm", _differentiated)


@torch.library.register_fake(qualified("packed_mm"))
def _(c, a, b, kernel, pack, *, beta=1.0, alpha=1.0, activation=None):
    check_activation(qualified("packed_mm"), activation)
    register_lowerings(["packed_mm"])
    shape = product_shape("packed_mm", a, b, 2)
    if c is not None:
        check_addend("packed_mm", c, a, shape)
    return a.new_empty(shape, dtype=torch.float32)


@torch.library.register_vmap(qualified("packed_mm"))
def _(info, in_dims, c, a, b, kernel, pack, *, beta=1.0, alpha=1.0, activation=None):
    """Joins the rows of all a in one matrix, unless b is batched as well."""
    check_activation(qualified("packed_mm"), activation)
    of_c, of_a, of_b, *_ = in_dims
    size = info.batch_size
    a = batched(a, of_a, size)
    b = b if of_b is None else b.movedim(of_b, 0)
    shape = (*a.shape[:2], b.shape[-1])
    c = None if c is None else addend(c, of_c, 2).expand(shape)
    if of_b is None:
        c = None if c is None else c.flatten(0, 1)
        a = a.flatten(0, 1)
        rows = packed_mm(c, a, b, kernel, pack, beta=beta, alpha=alpha, activation=activation)
        return rows.unflatten(0, shape[:2]), 0
    if c is None:
        result = scaled(operators.bmm(a, b, kernel), alpha)
    else:
        result = operators.baddbmm(c, a, b, kernel, beta=beta, alpha=alpha)
    return ACTIVATIONS[activation](result), 0
