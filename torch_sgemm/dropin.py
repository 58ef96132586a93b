"""PyTorch's own float32 products through this package: ``enable()``, and nothing else changed.

While on, ``aten::mm``, ``bmm``, ``addmm``, ``baddbmm`` and their in-place and out variants are
overridden at the device's dispatch key, below autograd, autocast and functionalisation. So matmul,
linear, einsum, attention by hand and every backward arrive here too. ``aten::matmul`` itself is
overridden for operands of four dimensions without gradients: it would copy the heads of attention,
whose batch has two strides, to make it a batch with one. What is not a float32 product
goes to PyTorch's own kernel: other dtypes and layouts, wrong arguments (PyTorch words the error),
outputs that share memory with an operand, a ``torch.backends.cuda.matmul.fp32_precision`` other
than ieee. ``stats()`` counts both.

The setting is the process's, not the thread's: a backward runs in threads of its own.
"""

import json
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch.autograd import forward_ad

from torch_sgemm import _library  # noqa: F401  registers the operators
from torch_sgemm.table import Redone, kernels, redone

_KEYS = {"cuda": "CUDA", "cpu": "CPU"}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
    redone: dict[str, Redone]
    """What the split family's guard had computed again, by device in use, since the library was
    loaded: not by these operators alone, and not reset."""


_lock = threading.RLock()
_base: _Setting | None = None
_scopes: list[_Setting] = []
_current: _Setting | None = None
_libraries: dict[str, torch.library.Library] = {}
_originals: dict[tuple[str, str], Callable] = {}
# A thread that was dispatched to an override may still wait for the interpreter's lock when another
# thread takes the override back: the latest 768 (64 times twelve overrides) outlive that.
_recent: deque[object] = deque(maxlen=768)
_complex: Counter[tuple[str, str]] = Counter()


def enable(kernel: str = "auto", *, devices: tuple[str, ...] = ("cuda",)) -> None:
    """Sends PyTorch's float32 products on ``devices`` here, until :func:`disable`.

    Args:
        kernel: ``"auto"``, a family, or a row of :func:`torch_sgemm.kernels`.
        devices: of ``"cuda"``, ``"cpu"``.

    Where none of ``devices`` can be used (no GPU, a PyTorch or a build of this package without
    CUDA) it warns and changes nothing.

    Raises:
        RuntimeError: an unknown kernel or device.
    """
    global _base
    setting = _setting(kernel, devices)
    _warn_if_useless(setting, 2)
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
    _warn_if_useless(setting, 3)  # behind contextlib
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
    counts = json.loads(torch.ops.sgemm._override_counts())
    hits = {name: reasons.pop("") for name, reasons in counts.items() if "" in reasons}
    fallbacks = {
        (name, reason): count
        for name, reasons in counts.items()
        for reason, count in reasons.items()
    }
    with _lock:
        return Stats(hits, {**fallbacks, **_complex}, _redone())


def _redone() -> dict[str, Redone]:
    if not torch.cuda.is_initialized():
        return {}
    split = [row for row in kernels() if row.family == "split"]
    found = {}
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        # A device without memory of ours has no context yet; asking it would make one.
        if torch.cuda.memory_reserved(index) and any(x.runs_on(10 * major + minor) for x in split):
            found[f"cuda:{index}"] = redone(index)
    return found


def reset_stats() -> None:
    """Sets the counters to zero."""
    torch.ops.sgemm._override_reset()
    with _lock:
        _complex.clear()


def _setting(kernel: str, devices: tuple[str, ...]) -> _Setting:
    rows = kernels()
    accepted = {"auto", *(row.family for row in rows if row.family), *(row.name for row in rows)}
    if kernel not in accepted:
        raise RuntimeError(
            f"torch_sgemm.enable: kernel {kernel!r} is unknown; accepted: 'auto', a family, or a "
            "name of torch_sgemm.kernels()"
        )
    unknown = [device for device in devices if device not in _KEYS]
    if unknown or not devices:
        raise RuntimeError(f"torch_sgemm.enable: devices {devices!r}; accepted: 'cuda', 'cpu'")
    return _Setting(kernel, tuple(devices))


def _not_built(device: str) -> str:
    """Why there is nothing to override on ``device``, or nothing to override it with; else ""."""
    if device == "cuda" and torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    if not any(row.family and device in row.devices for row in kernels()):
        return "this build of torch_sgemm has no CUDA kernels, see python -m torch_sgemm.info"
    return ""


def _warn_if_useless(setting: _Setting, stacklevel: int) -> None:
    """A program for GPUs shall run without one as well, but not seem to use this package."""
    obstacles = [
        _not_built(device)
        or ("PyTorch sees no GPU" if device == "cuda" and not torch.cuda.is_available() else "")
        for device in setting.devices
    ]
    if all(obstacles):
        warnings.warn(
            f"torch_sgemm.enable: devices={setting.devices!r} changes nothing: {obstacles[0]}; "
            "products stay PyTorch's. devices=('cpu',) takes those on the CPU",
            stacklevel=stacklevel + 1,
        )


def _apply() -> None:
    """Makes the overrides those of the setting that holds now."""
    global _current
    _current = _scopes[-1] if _scopes else _base
    devices = _current.devices if _current else ()
    torch.ops.sgemm._override_set(
        _current.kernel if _current else "", "cpu" in devices, "cuda" in devices
    )
    wanted = {device for scope in (_base, *_scopes) if scope for device in scope.devices}
    for device in wanted - _libraries.keys():
        if _not_built(device):
            continue
        _libraries[device] = _override(_KEYS[device])
    for device in _libraries.keys() - wanted:
        _libraries.pop(device)._destroy()


def _override(key: str) -> torch.library.Library:
    functions = {}
    for name, make in _OVERRIDES.items():
        place = f"Autograd{key}" if name == "matmul" else key
        if (name, place) not in _originals:
            _originals[name, place] = _kernel(f"aten::{name}", place)
        functions[name, place] = make(name, _originals[name, place], key)
    functions["matmul", "BackendSelect"] = _matmul_without_autograd
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch 2.10 warns of an overridden kernel, although that was allowed.
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for (name, place), function in functions.items():
            with_keys = function is _matmul_without_autograd
            library.impl(name, function, place, with_keyset=with_keys, allow_override=True)
            _recent.append(torch.library.get_kernel(f"aten::{name}", place))
    return library


# --- the overrides --------------------------------------------------------------------------

# csrc/binding/override.cpp checks, counts and runs a call at once: on this path a microsecond
# counts. The overrides themselves are in Python because what PyTorch's own kernel raises keeps its
# type only here.

_precision = getattr(
    torch._C,
    "_get_fp32_precision_getter",
    lambda *_: torch.backends.cuda.matmul.fp32_precision,  # the same, ten times slower
)
_IEEE = ("ieee", "none")


def _kernel(operator: str, key: str) -> Callable:
    """The operator's kernel at a dispatch key, which is called past the dispatcher."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(torch.library.get_kernel(operator, key).call_boxed, keys)


def _ours(name: str, key: str) -> Callable:
    """What takes the place of ``aten::name``."""
    return _kernel(f"sgemm::_override_{name.replace('.', '_')}", key)


def _product(name: str, original, key: str) -> Callable:
    ours, cpu = _ours(name, key), key == "CPU"

    def product(a, b):
        result = ours(a, b, cpu or _precision("cuda", "matmul") in _IEEE)
        return original(a, b) if result is None else result

    return product


# matmul is made of other operators and has no kernel at a device's own key: with one there, tracing
# would not look inside any more. So its overrides lie above.


def _needs_nothing_else(a: torch.Tensor, b: torch.Tensor) -> bool:
    """No derivative, no subclass and no mode wants to see what matmul is made of."""
    return (
        type(a) in _PLAIN
        and type(b) in _PLAIN
        and a.layout == b.layout == torch.strided
        and not (a.is_nested or b.is_nested)
        and not (torch._C._any_requires_grad(a, b) and torch.is_grad_enabled())
        and forward_ad._current_level < 0
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
    )


def _product_of_heads(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """matmul of batches of two dimensions; None for all others.

    Those arrive as products of matrices or of simple batches, and are counted as such.
    """
    setting = _current
    taken = (
        a.dim() == b.dim() == 4
        and setting is not None
        and a.device.type in setting.devices
        and a.dtype == b.dtype == torch.float32
        and _needs_nothing_else(a, b)
        and a.shape[:2] == b.shape[:2]
    )
    if not taken:
        return None
    ieee = a.is_cpu or _precision("cuda", "matmul") in _IEEE
    return torch.ops.sgemm._override_matmul.default(a, b, ieee)


def _matmul(name: str, original, key: str) -> Callable:
    def matmul(a, b):
        result = _product_of_heads(a, b)
        return original(a, b) if result is None else result

    return matmul


def _matmul_without_autograd(keys, a, b):
    """In inference mode, for all devices."""
    result = _product_of_heads(a, b)
    if result is not None:
        return result
    below = keys.remove(torch._C.DispatchKey.BackendSelect)
    return torch.ops.aten.matmul.default._handle.redispatch_boxed(below, a, b)


def _product_out(name: str, original, key: str) -> Callable:
    ours, cpu = _ours(name, key), key == "CPU"

    def product_out(a, b, *, out):
        if ours(a, b, cpu or _precision("cuda", "matmul") in _IEEE, out=out):
            return out
        return original(a, b, out=out)

    return product_out


def _is_complex(name: str, beta, alpha) -> bool:
    """Counts a call with a factor that is no real number."""
    if not (isinstance(beta, complex) or isinstance(alpha, complex)):
        return False
    with _lock:
        _complex[name, "factor"] += 1
    return True


def _sum(name: str, original, key: str) -> Callable:
    ours, cpu = _ours(name, key), key == "CPU"

    def product_sum(c, a, b, *, beta=1, alpha=1):
        if not _is_complex(name, beta, alpha):
            ieee = cpu or _precision("cuda", "matmul") in _IEEE
            result = ours(c, a, b, beta, alpha, ieee)
            if result is not None:
                return result
        return original(c, a, b, beta=beta, alpha=alpha)

    return product_sum


def _sum_out(name: str, original, key: str) -> Callable:
    ours, cpu = _ours(name, key), key == "CPU"

    def product_sum_out(c, a, b, *, beta=1, alpha=1, out):
        if not _is_complex(name, beta, alpha):
            ieee = cpu or _precision("cuda", "matmul") in _IEEE
            if ours(c, a, b, beta, alpha, ieee, out=out):
                return out
        return original(c, a, b, beta=beta, alpha=alpha, out=out)

    return product_sum_out


def _sum_in_place(name: str, original, key: str) -> Callable:
    ours, cpu = _ours(name, key), key == "CPU"

    def product_sum_in_place(c, a, b, *, beta=1, alpha=1):
        if not _is_complex(name, beta, alpha):
            ieee = cpu or _precision("cuda", "matmul") in _IEEE
            if ours(c, a, b, beta, alpha, ieee):
                return c
        return original(c, a, b, beta=beta, alpha=alpha)

    return product_sum_in_place


_OVERRIDES: dict[str, Callable] = {
    "mm": _product,
    "bmm": _product,
    "matmul": _matmul,
    "mm.out": _product_out,
    "bmm.out": _product_out,
    "addmm": _sum,
    "baddbmm": _sum,
    "addmm.out": _sum_out,
    "baddbmm.out": _sum_out,
    "addmm_": _sum_in_place,
    "baddbmm_": _sum_in_place,
}
