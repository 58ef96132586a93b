"""PyTorch's own float32 products through this package: ``enable()``, and nothing else changed.

While on, ``aten::mm``, ``bmm``, ``addmm``, ``baddbmm`` and their in-place and out variants are
overridden at the device's dispatch key, below autograd, autocast and functionalisation. So matmul,
linear, einsum, attention by hand and every backward arrive here too. What is not a float32 product
goes to PyTorch's own kernel: other dtypes and layouts, wrong arguments (PyTorch words the error),
outputs that share memory with an operand, a ``torch.backends.cuda.matmul.fp32_precision`` other
than ieee. ``stats()`` counts both.

The setting is the process's, not the thread's: a backward runs in threads of its own.
"""

import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_sgemm.table import kernels

_KEYS = {"cuda": "CUDA", "cpu": "CPU"}


@dataclass(frozen=True)
class _Setting:
    kernel: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Stats:
    """What the overridden operators did since the start or ``reset_stats()``."""

    hits: dict[str, int]
    """Calls that a kernel of this package's table took, by aten operator."""
    fallbacks: dict[tuple[str, str], int]
    """Calls that went to PyTorch's own kernel, by aten operator and reason."""


_lock = threading.RLock()
_base: _Setting | None = None
_scopes: list[_Setting] = []
_current: _Setting | None = None
_libraries: dict[str, torch.library.Library] = {}
_originals: dict[tuple[str, str], object] = {}
# A thread that was dispatched to an override may still wait for the interpreter's lock when another
# thread takes the override back: the latest 640 (64 times ten operators) outlive that.
_recent: deque[object] = deque(maxlen=640)
_hits: Counter[str] = Counter()
_fallbacks: Counter[tuple[str, str]] = Counter()


def enable(kernel: str = "auto", *, devices: tuple[str, ...] = ("cuda",)) -> None:
    """Sends PyTorch's float32 products on ``devices`` here, until :func:`disable`.

    Args:
        kernel: ``"auto"``, a family, or a row of :func:`torch_sgemm.kernels`.
        devices: of ``"cuda"``, ``"cpu"``.

    Raises:
        RuntimeError: an unknown kernel or device.
    """
    global _base
    setting = _setting(kernel, devices)
    with _lock:
        before, _base = _base, setting
        try:
            _apply()
        except BaseException:
            _base = before
            _apply()
            raise


def disable() -> None:
    """Takes back :func:`enable`; scopes of :func:`enabled` that are open stay as they are."""
    global _base
    with _lock:
        _base = None
        _apply()


@contextmanager
def enabled(kernel: str = "auto", *, devices: tuple[str, ...] = ("cuda",)) -> Iterator[None]:
    """:func:`enable` for a ``with`` block. Blocks nest; the one that was opened last holds."""
    setting = _setting(kernel, devices)
    try:
        with _lock:
            _scopes.append(setting)
            _apply()
        yield
    finally:
        with _lock:
            _scopes[:] = [scope for scope in _scopes if scope is not setting]
            _apply()


def stats() -> Stats:
    """The counters, copied."""
    with _lock:
        return Stats(dict(_hits), dict(_fallbacks))


def reset_stats() -> None:
    """Sets the counters to zero."""
    with _lock:
        _hits.clear()
        _fallbacks.clear()


def _setting(kernel: str, devices: tuple[str, ...]) -> _Setting:
    rows = kernels()
    accepted = {"auto", *(row.family for row in rows if row.family), *(row.name for row in rows)}
    if kernel not in accepted:
        raise RuntimeError(
            f"torch_sgemm.enable: kernel {kernel!r} is unknown; accepted: 'auto', a family, or a "
            "name of torch_sgemm.kernels()"
        )
    if "cuda" in devices and torch.cuda.is_available() and not _has_kernels("cuda"):
        raise RuntimeError(
            "torch_sgemm.enable: this build has no CUDA kernels; see python -m torch_sgemm.info"
        )
    unknown = [device for device in devices if device not in _KEYS]
    if unknown or not devices:
        raise RuntimeError(f"torch_sgemm.enable: devices {devices!r}; accepted: 'cuda', 'cpu'")
    return _Setting(kernel, tuple(devices))


def _has_kernels(device: str) -> bool:
    return any(row.family and device in row.devices for row in kernels())


def _apply() -> None:
    """Makes the overrides those of the setting that holds now."""
    global _current
    _current = _scopes[-1] if _scopes else _base
    wanted = {device for scope in (_base, *_scopes) if scope for device in scope.devices}
    for device in filter(_has_kernels, wanted - _libraries.keys()):
        _libraries[device] = _override(_KEYS[device])
    for device in _libraries.keys() - wanted:
        _libraries.pop(device)._destroy()


def _override(key: str) -> torch.library.Library:
    for name in _OVERRIDES:
        if (name, key) not in _originals:
            _originals[name, key] = torch.library.get_kernel(f"aten::{name}", key)
    library = torch.library.Library("aten", "IMPL", key)
    with warnings.catch_warnings():
        # torch 2.10 warns of an overridden kernel, although that was allowed.
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, make in _OVERRIDES.items():
            function = make(name, _originals[name, key], key)
            library.impl(name, function, with_keyset=True, allow_override=True)
            _recent.append(torch.library.get_kernel(f"aten::{name}", key))
    return library


# --- the overrides --------------------------------------------------------------------------


def _precision_is_ieee(key: str) -> bool:
    return key != "CUDA" or torch.backends.cuda.matmul.fp32_precision in ("ieee", "none")


def _refusal(key: str, a: Tensor, b: Tensor, dims: int, others: tuple[Tensor, ...]) -> str:
    """Why a call is not ours; "" if it is."""
    for x in (a, b, *others):
        if x.dtype != torch.float32:
            return "dtype"
        if x.layout != torch.strided:
            return "layout"
        if x.device != a.device:
            return "device"
    if a.dim() != dims or b.dim() != dims or a.shape[-1] != b.shape[-2]:
        return "shape"
    if dims == 3 and a.shape[0] != b.shape[0]:
        return "shape"
    if not _precision_is_ieee(key):
        return "precision"
    setting = _current
    if setting is None or a.device.type not in setting.devices:
        return "disabled"
    return ""


def _refusal_of_output(out: Tensor, a: Tensor, b: Tensor) -> str:
    """PyTorch resizes an output, and words the error of one that overlaps."""
    if out.shape != (*a.shape[:-1], b.shape[-1]):
        return "output shape"
    storage = out.untyped_storage().data_ptr()
    if storage in (a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()):
        return "output shares storage"
    if out.numel() > 1 and 0 in out.stride():
        return "output overlaps itself"
    return ""


def _broadcasts(c: Tensor, a: Tensor, b: Tensor) -> bool:
    shape = (*a.shape[:-1], b.shape[-1])
    return c.dim() <= len(shape) and all(
        size in (1, full) for size, full in zip(reversed(c.shape), reversed(shape), strict=False)
    )


def _counted(name: str, reason: str) -> None:
    with _lock:
        if reason:
            _fallbacks[name, reason] += 1
        else:
            _hits[name] += 1


def _kernel() -> str:
    setting = _current
    return setting.kernel if setting else "auto"


def _dims(name: str) -> int:
    return 3 if "bmm" in name else 2


def _ours(name: str) -> Callable:
    """The operator ``sgemm::name`` of the same name as aten's, such as ``mm`` or ``addmm_out``."""
    return getattr(torch.ops.sgemm, name).default


def _product(name: str, original, key: str) -> Callable:
    dims, ours = _dims(name), _ours(name)

    def product(keyset, a, b):
        reason = _refusal(key, a, b, dims, ())
        _counted(name, reason)
        return original.call_boxed(keyset, a, b) if reason else ours(a, b, _kernel())

    return product


def _product_out(name: str, original, key: str) -> Callable:
    dims, ours = _dims(name), _ours(name.replace(".", "_"))

    def product_out(keyset, a, b, *, out):
        reason = _refusal(key, a, b, dims, (out,)) or _refusal_of_output(out, a, b)
        _counted(name, reason)
        if reason:
            return original.call_boxed(keyset, a, b, out=out)
        ours(a, b, _kernel(), out=out)
        return out

    return product_out


def _refusal_of_sum(key: str, c: Tensor, a: Tensor, b: Tensor, dims: int, factors: tuple) -> str:
    reason = _refusal(key, a, b, dims, (c,))
    if reason:
        return reason
    if not _broadcasts(c, a, b):
        return "shape"
    return "" if all(isinstance(f, (int, float)) for f in factors) else "factor"


def _sum(name: str, original, key: str) -> Callable:
    dims, ours = _dims(name), _ours(name)

    def product_sum(keyset, c, a, b, *, beta=1, alpha=1):
        reason = _refusal_of_sum(key, c, a, b, dims, (beta, alpha))
        _counted(name, reason)
        if reason:
            return original.call_boxed(keyset, c, a, b, beta=beta, alpha=alpha)
        return ours(c, a, b, _kernel(), beta=float(beta), alpha=float(alpha))

    return product_sum


def _sum_out(name: str, original, key: str) -> Callable:
    dims, ours = _dims(name), _ours(name.replace(".", "_"))

    def product_sum_out(keyset, c, a, b, *, beta=1, alpha=1, out):
        reason = (
            _refusal_of_sum(key, c, a, b, dims, (beta, alpha))
            or _refusal(key, a, b, dims, (out,))
            or _refusal_of_output(out, a, b)
        )
        if not reason and out.untyped_storage().data_ptr() == c.untyped_storage().data_ptr():
            same = out.data_ptr() == c.data_ptr() and out.stride() == c.stride()
            reason = "" if same and out.shape == c.shape else "output shares storage"
        _counted(name, reason)
        if reason:
            return original.call_boxed(keyset, c, a, b, beta=beta, alpha=alpha, out=out)
        ours(c, a, b, _kernel(), beta=float(beta), alpha=float(alpha), out=out)
        return out

    return product_sum_out


def _sum_in_place(name: str, original, key: str) -> Callable:
    dims, ours = _dims(name), _ours("gemm_")

    def product_sum_in_place(keyset, c, a, b, *, beta=1, alpha=1):
        reason = _refusal_of_sum(key, c, a, b, dims, (beta, alpha)) or _refusal_of_output(c, a, b)
        _counted(name, reason)
        if reason:
            return original.call_boxed(keyset, c, a, b, beta=beta, alpha=alpha)
        ours(c, a, b, _kernel(), alpha=float(alpha), beta=float(beta))
        return c

    return product_sum_in_place


_OVERRIDES: dict[str, Callable] = {
    "mm": _product,
    "bmm": _product,
    "mm.out": _product_out,
    "bmm.out": _product_out,
    "addmm": _sum,
    "baddbmm": _sum,
    "addmm.out": _sum_out,
    "baddbmm.out": _sum_out,
    "addmm_": _sum_in_place,
    "baddbmm_": _sum_in_place,
}
