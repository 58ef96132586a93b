"""Makes ``torch.utils.flop_counter.FlopCounterMode`` count the operators: 2 m n k a product.

Import ``torch_sgemm.flops`` before a counter is made. ``torch_sgemm`` doesn't import it, because
PyTorch's counter takes longer to import than this whole package. PyTorch's own products are counted
as always, under ``torch_sgemm.enable()`` too.
"""

import math
from collections.abc import Sequence

from torch.utils.flop_counter import register_flop_formula

from torch_sgemm.torch_ops.library import operators as _ops


@register_flop_formula(
    [_ops.mm, _ops.mm_out, _ops.bmm, _ops.bmm_out, _ops._matmul, _ops._packed_mm]
)
def _product(a: Sequence[int], b: Sequence[int], *args, **kwargs) -> int:
    return 2 * math.prod(a) * b[-1]


@register_flop_formula(
    [_ops.addmm, _ops.addmm_out, _ops.baddbmm, _ops.baddbmm_out, _ops.gemm_, _ops.packed_mm]
)
def _sum(c: Sequence[int] | None, a: Sequence[int], b: Sequence[int], *args, **kwargs) -> int:
    return 2 * math.prod(a) * b[-1]


@register_flop_formula(_ops.linear)
def _linear(x: Sequence[int], weight: Sequence[int], *args, **kwargs) -> int:
    return 2 * math.prod(x) * weight[0]


@register_flop_formula(_ops.attention)
def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *args, **kwargs
) -> int:
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


@register_flop_formula(_ops._attention_backward)
def _attention_backward(
    grad: Sequence[int],
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    *args,
    **kwargs,
) -> int:
    """Five products, as PyTorch counts its own: Q Kᵀ, dO Vᵀ, and one for each gradient."""
    return 2 * math.prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])
