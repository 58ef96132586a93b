"""PyTorch's own float32 products through this package: ``enable()``, and nothing else changed.

While on, ``aten::mm``, ``bmm``, ``addmm``, ``baddbmm`` and their in-place and out variants are
overridden at the device's dispatch key, below autograd, autocast and functionalisation. So matmul,
linear, einsum, handwritten attention and every backward arrive here too. On GPUs the
same holds for ``aten::_scaled_dot_product_efficient_attention`` and its backward.

PyTorch's own kernel takes other dtypes and layouts, wrong arguments (PyTorch raises the error), and
outputs that share memory with an operand. It takes all calls while
``torch.backends.cuda.matmul.fp32_precision`` is not ieee, none or bfx9. ``stats()`` counts both.

The setting belongs to the process, because a backward runs in threads of its own.
"""

import json
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from torch_sgemm.choice.accuracy import Redone, redone
from torch_sgemm.choice.explain import Device, explain
from torch_sgemm.choice.table import BATCH_INVARIANT, asked_by_environment, kernels, request
from torch_sgemm.dropin import attention as of_attention
from torch_sgemm.dropin import overrides
from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import operators

_KEYS = {"cuda": "CUDA", "cpu": "CPU"}


@dataclass(frozen=True)
class _Setting:
    kernel: str
    devices: tuple[str, ...]
    attention: bool = True

    def covers(self, kind: str) -> bool:
        """True if operators of this kind are overridden; see overrides.install()."""
        if kind == "attention":
            return self.attention and self.kernel in ("auto", "split", BATCH_INVARIANT)
        return kind == "matrices" or self.kernel == BATCH_INVARIANT


@dataclass(frozen=True)
class Stats:
    """Counts of the overridden operators since the start or ``reset_stats()``."""

    hits: dict[str, int]
    """Calls that a kernel of this package's table took, by aten operator."""
    fallbacks: dict[tuple[str, str], int]
    """Calls that went to PyTorch's own kernel, by aten operator and reason."""
    redone: dict[str, Redone]
    """Results that the split family's guard recomputed since the library was loaded, by device in
    use. They include those of all other operators, and are never reset."""


_base: _Setting | None = None
_scopes: list[_Setting] = []
_current: _Setting | None = None


@private.uncompiled
def enable(
    kernel: str = "auto",
    *,
    batch_invariant: bool | None = None,
    devices: str | tuple[str, ...] = ("cuda",),
    attention: bool = True,
) -> None:
    """Sends PyTorch's float32 products on ``devices`` here, until :func:`disable`.

    Args:
        kernel: ``"auto"``, a family, a row of :func:`torch_sgemm.kernels`, or ``"row:tile"``.
        batch_invariant: True gives every product, also with vectors, the bits of
            ``kernel="batch_invariant"``, which are the same in any batch (docs/reproducibility.md).
            None: True if TORCH_SGEMM_BATCH_INVARIANT is 1.
        devices: ``"cuda"``, ``"cpu"``, or both.
        attention: True also sends attention here that ``scaled_dot_product_attention`` leaves to
            PyTorch's memory-efficient kernels, and its backward, if ``kernel`` is ``"auto"`` or
            ``"split"`` or for ``batch_invariant`` (:func:`torch_sgemm.attention`).

    If none of ``devices`` can be used (no GPU, a PyTorch or a build of this package without CUDA),
    the function warns and changes nothing.

    Raises:
        RuntimeError: an unknown kernel or device; a kernel given with ``batch_invariant``.
    """
    global _base
    setting = _setting(kernel, batch_invariant, devices, attention)
    _warn_if_useless(setting, 2)
    with overrides.changing:
        before, _base = _base, setting
        try:
            _apply()
        except BaseException:
            _base = before
            _apply()
            raise


@private.uncompiled
def disable() -> None:
    """Undoes :func:`enable`; open scopes of :func:`enabled` stay in effect."""
    global _base
    with overrides.changing:
        _base = None
        _apply()


@contextmanager
def enabled(
    kernel: str = "auto",
    *,
    batch_invariant: bool | None = None,
    devices: str | tuple[str, ...] = ("cuda",),
    attention: bool = True,
) -> Iterator[None]:
    """:func:`enable` for a ``with`` block. Blocks nest, and the last one opened holds."""
    scope = _open(_setting(kernel, batch_invariant, devices, attention))
    try:
        yield
    finally:
        _close(scope)


@private.uncompiled
def _open(scope: _Setting) -> _Setting:
    _warn_if_useless(scope, 4)  # frames of enabled() and contextlib in between
    with overrides.changing:
        _scopes.append(scope)
        try:
            _apply()
        except BaseException:
            _close(scope)
            raise
    return scope


@private.uncompiled
def _close(setting: _Setting) -> None:
    with overrides.changing:
        _scopes[:] = [scope for scope in _scopes if scope is not setting]
        _apply()


def stats() -> Stats:
    """Returns a copy of the counters."""
    counts = json.loads(operators._override_counts()) | of_attention.counts()
    hits = {name: reasons.pop("") for name, reasons in counts.items() if "" in reasons}
    fallbacks = {
        (name, reason): count
        for name, reasons in counts.items()
        for reason, count in reasons.items()
    }
    return Stats(hits, fallbacks, _redone())


def _redone() -> dict[str, Redone]:
    if not torch.cuda.is_initialized():
        return {}
    split = [row for row in kernels() if row.family == "split"]
    found = {}
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        # redone() would create a missing CUDA context.
        if private.has_context(index) and any(x.runs_on(10 * major + minor) for x in split):
            found[f"cuda:{index}"] = redone(index)
    return found


def reset_stats() -> None:
    """Sets the counters to zero."""
    operators._override_reset()
    of_attention.reset_counts()


@private.uncompiled
def _setting(
    kernel: str, batch_invariant: bool | None, devices: str | tuple[str, ...], attention: bool
) -> _Setting:
    invariant = asked_by_environment() if batch_invariant is None else batch_invariant
    kernel = request("torch_sgemm.enable", kernel, invariant)
    rows = kernels()
    accepted = {"auto", BATCH_INVARIANT, *(row.family for row in rows if row.family)}
    accepted |= {name for row in rows for name in (row.name, *row.tile_names)}
    if not isinstance(kernel, str) or kernel not in accepted:
        raise RuntimeError(f"torch_sgemm.enable: argument 'kernel' is {kernel!r}: {_why(kernel)}")
    if isinstance(devices, str):
        devices = (devices,)
    known = isinstance(devices, Collection) and all(
        isinstance(x, str) and x in _KEYS for x in devices
    )
    if not known or not devices:
        raise RuntimeError(
            f"torch_sgemm.enable: argument 'devices' is {devices!r}; accepted: 'cuda', 'cpu', or "
            "a tuple of them"
        )
    return _Setting(kernel, tuple(devices), bool(attention))


def _why(kernel: str) -> str:
    """Returns what the dispatch says of an unknown name."""
    one = torch.empty(1, 1, device="meta")
    try:
        explain(one, one, kernel=str(kernel), device=Device())
    except RuntimeError as refusal:
        return str(refusal).split("'kernel': ", 1)[1]
    raise AssertionError(f"{kernel!r} is a name that the dispatch knows")


def _not_built(device: str) -> str:
    """Returns why this build can override nothing on ``device``, or ``""``."""
    if device == "cuda" and torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    if not any(row.family and device in row.devices for row in kernels()):
        return "this build of torch_sgemm has no CUDA kernels, see python -m torch_sgemm.info"
    return ""


def _warn_if_useless(setting: _Setting, stacklevel: int) -> None:
    """Warns if no device can be used: the program then runs without this package."""
    obstacles = [
        _not_built(device)
        or ("PyTorch sees no GPU" if device == "cuda" and not torch.cuda.device_count() else "")
        for device in setting.devices
    ]
    if all(obstacles):
        warnings.warn(
            f"torch_sgemm.enable: devices={setting.devices!r} changes nothing: {obstacles[0]}; "
            "products stay PyTorch's. devices=('cpu',) takes those on the CPU",
            stacklevel=stacklevel + 1,
        )


def _holds(key: str, kind: str) -> bool:
    setting = _current
    return (
        setting is not None
        and setting.covers(kind)
        and key in (_KEYS[device] for device in setting.devices)
    )


def _apply() -> None:
    """Installs and removes overrides to match the current setting."""
    global _current
    _current = _scopes[-1] if _scopes else _base
    devices = _current.devices if _current else ()
    operators._override_set(
        _current.kernel if _current else "", "cpu" in devices, "cuda" in devices
    )
    wanted = {
        (_KEYS[device], kind)
        for scope in (_base, *_scopes)
        if scope
        for device in scope.devices
        if not _not_built(device)
        for kind in ("matrices", "vectors", *(["attention"] if device == "cuda" else []))
        if scope.covers(kind)
    }
    installed = overrides.installed()
    for key, kind in wanted - installed:
        overrides.install(key, kind, partial(_holds, key, kind))
    for key, kind in installed - wanted:
        overrides.remove(key, kind)
    of_attention.chooses(_current is None or _current.kernel == "auto")
    operators._override_names(bool(wanted) and hasattr(torch.Tensor, "has_names"))
