"""recorder.py: operators of PyTorch that multiply, but stay PyTorch's, and why."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_sgemm.torch_ops.private import OpOverload

# Regular expressions of the names after "aten::".
REASONS = {
    "matrix times vector": r"mv|dot|vdot|addmv_?",
    "attention in one kernel": r"_(scaled_dot_product|(flash|efficient|cudnn)_attention)\w*",
    "convolution": r"_?convolution\w*|\w*_convolution\w*|_?slow_conv\w*|_?conv_depthwise\w*",
    "recurrent layer": r"(_cudnn|mkldnn|miopen)_rnn\w*",
    "products inside, not seen": (
        r"_native_multi_head_attention|_transformer_encoder_layer_fwd|_addmm_activation"
        r"|addbmm_?|_cdist_(for|back)ward|_euclidean_dist|_trilinear"
    ),
    "dtype": r"_(scaled|scaled_grouped|grouped|int)_mm|_weight_int\w*",
    "layout": r"_sparse_mm\w*|_cslt_sparse_mm|_sparse_semi_structured\w*|sspaddmm",
}


@cache
def why_it_stays(operation: str) -> str | None:
    """Returns a key of REASONS for, say, ``"aten::mv"``; None if it doesn't multiply."""
    space, _, name = operation.partition("::")
    if space != "aten":
        return None
    return next((why for why, names in REASONS.items() if re.fullmatch(names, name)), None)


def flops_of(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any
) -> int | None:
    """Counts as PyTorch's counter does; None for an operator that it doesn't know."""
    from torch.utils.flop_counter import flop_registry  # takes longer to import than this package

    packet = func.overloadpacket
    name = func.name().partition(".")[0].removeprefix("aten::")
    if name in ("mv", "addmv", "addmv_"):
        return 2 * next(x.numel() for x in args if isinstance(x, Tensor) and x.dim() == 2)
    if name in ("dot", "vdot"):
        return 2 * args[0].numel()
    if "_for_cpu" in name:  # the same operands in the same order
        packet = getattr(torch.ops.aten, name.replace("_for_cpu", ""))
    count = flop_registry.get(packet)
    return None if count is None else int(count(*args, **kwargs, out_val=result))
