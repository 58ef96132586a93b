"""Calls that the drop-in leaves to PyTorch, each with the reason that it counts.

A call draws its operands anew, so that it can be made twice and compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from support.data import integers


@dataclass(frozen=True)
class Fallback:
    """``call(device)`` counts ``(op, reason)`` once for each of ``reasons``, and nothing else."""

    name: str
    call: Callable[[str], Tensor]
    reasons: tuple[tuple[str, str], ...] = ()


CASES: list[Fallback] = []


def _falls_back(*reasons: tuple[str, str]) -> Callable:
    def register(call: Callable[[str], Tensor]) -> Callable[[str], Tensor]:
        CASES.append(Fallback(call.__name__, call, reasons))
        return call

    return register


def _abc(device: str) -> tuple[Tensor, Tensor, Tensor]:
    return integers((3, 4), 1, device), integers((4, 5), 2, device), integers((3, 5), 3, device)


@_falls_back(("mm", "dtype"), ("addmm", "dtype"))
def float64(device: str) -> Tensor:
    a, b, c = (x.double() for x in _abc(device))
    return torch.addmm(c, a, b) + a @ b


@_falls_back(("bmm", "dtype"))
def complex64(device: str) -> Tensor:
    a, b, _ = (x.to(torch.complex64) for x in _abc(device))
    return torch.bmm(a[None], b[None])


@_falls_back(("mm", "dtype"))
def mixed_dtypes(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return a @ b.bfloat16()


@_falls_back(("mm", "dtype"))
def autocast(device: str) -> Tensor:
    a, b, _ = _abc(device)
    with torch.autocast(device, torch.bfloat16):
        result = torch.matmul(a, b)
    assert result.dtype == torch.bfloat16
    return result


@_falls_back()
def sparse(device: str) -> Tensor:
    """PyTorch's dispatcher sends sparse operands elsewhere already."""
    a, b, _ = _abc(device)
    return a.to_sparse() @ b


@_falls_back(("mm", "shape"))
def inner_sizes(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return a @ b.t()


@_falls_back(("addmm", "shape"))
def addend_that_does_not_broadcast(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return torch.addmm(torch.ones(4, device=device), a, b)


@_falls_back(("mm.out", "output shape"))
def output_to_be_resized(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return torch.mm(a, b, out=torch.empty(0, device=device))


@_falls_back(("addmm_", "output shape"))
def addend_in_place_of_another_shape(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return torch.ones(5, device=device).addmm_(a, b)


@_falls_back(("mm.out", "dtype"))
def output_of_another_dtype(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return torch.mm(a, b, out=torch.empty(3, 5, dtype=torch.float64, device=device))


@_falls_back(("mm.out", "output shares storage"))
def output_beside_an_operand(device: str) -> Tensor:
    a, b, _ = _abc(device)
    memory = torch.zeros(3, 9, device=device)
    memory[:, :4] = a
    torch.mm(memory[:, :4], b, out=memory[:, 4:])
    return memory


@_falls_back(("addmm.out", "output shares storage"))
def output_beside_the_addend(device: str) -> Tensor:
    a, b, c = _abc(device)
    memory = torch.zeros(6, 5, device=device)
    memory[:3] = c
    torch.addmm(memory[:3], a, b, out=memory[3:])
    return memory


@_falls_back(("mm.out", "output overlaps itself"))
def output_that_overlaps_itself(device: str) -> Tensor:
    a, b, _ = _abc(device)
    return torch.mm(a, b, out=torch.zeros(1, 5, device=device).expand(3, 5))


@_falls_back(("addmm", "factor"))
def complex_factor(device: str) -> Tensor:
    a, b, c = _abc(device)
    return torch.addmm(c, a, b, alpha=2j)


def outcome(call: Callable[[str], Tensor], device: str) -> Tensor | tuple[type, str]:
    """Returns the result of ``call``, or the error's type and message."""
    try:
        return call(device)
    except RuntimeError as error:
        return type(error), str(error)


def same(one: Tensor | tuple, other: Tensor | tuple) -> bool:
    """Returns True if two outcomes are the same, bit by bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return isinstance(one, tuple) and one == other
