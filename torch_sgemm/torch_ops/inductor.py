"""Lets Inductor, torch.compile's default backend, call the operators.

Inductor's fallback takes the operator as an argument named ``kernel``, so an operator's own
``kernel`` can't be passed by keyword. The lowerings registered here pass it by position.
"""

import sys

from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import operators


def register_lowerings(names: list[str]) -> None:
    """Registers the lowerings if Inductor is loaded, else does nothing.

    The operators' fakes call this, and Inductor runs a fake before it lowers a call. So importing
    torch_sgemm does not import Inductor.
    """
    lowering = sys.modules.get(private.inductor)
    if lowering is None or not hasattr(lowering, "register_lowering"):
        return
    for name in names:
        op = getattr(operators, name).default
        if op not in lowering.lowerings:
            lowering.register_lowering(op, type_promotion_kind=None)(_by_position(lowering, op))


def _by_position(lowering, op: private.OpOverload):
    handler = lowering.fallback_handler(op)
    positional = [argument for argument in private.arguments_of(op) if not argument.kwarg_only]

    def lower(*args, **kwargs):
        rest = positional[len(args) :]
        args += tuple(kwargs.pop(argument.name, argument.default_value) for argument in rest)
        return handler(*args, **kwargs)

    return lower
