"""Modes that see what is called under them."""

from __future__ import annotations

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Seen:
    """Logs the functions that a mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def see(self, function, types, args=(), kwargs=None):
        self.calls.append(str(function))
        return function(*args, **(kwargs or {}))


class SeenFunctions(Seen, TorchFunctionMode):
    __torch_function__ = Seen.see


class SeenOperators(Seen, TorchDispatchMode):
    __torch_dispatch__ = Seen.see
