"""The overrides of PyTorch's own products that ``enable()`` installs.

csrc/binding/override.cpp checks, counts and runs a call at once: on this path a microsecond counts.
The overrides themselves are in Python because what PyTorch's own kernel raises keeps its type only
here.
"""

import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import torch

from torch_sgemm import private
from torch_sgemm._library import operators
from torch_sgemm.forks import held_across_forks
from torch_sgemm.past_dispatcher import is_plain, kernel_at
from torch_sgemm.private import DispatchKey, DispatchKeySet

_originals: dict[tuple[str, str], Callable] = {}
# A thread that was dispatched to an override may still wait for the interpreter's lock when another
# thread takes the override back: the latest 768 (64 times twelve overrides) outlive that.
_recent: deque[object] = deque(maxlen=768)
_allows_tf32 = private.allows_tf32
FLOAT32 = ("ieee", "none", "bfx9")  # the last: float32 from nine products of bfloat16
_factors: Counter[tuple[str, str]] = Counter()
_lock = held_across_forks(threading.Lock())


def _is_ieee() -> bool:
    """Whether PyTorch's settings ask for float32 products on GPUs."""
    try:
        return not _allows_tf32()  # a third of the time that the setting itself takes
    except RuntimeError:  # its older and its newer settings differ
        return torch.backends.cuda.matmul.fp32_precision in FLOAT32


def factors() -> Counter[tuple[str, str]]:
    """Calls with a factor that is no real number, by operator and reason."""
    with _lock:
        return Counter(_factors)


def reset_factors() -> None:
    """Counts them anew."""
    with _lock:
        _factors.clear()


def _original(name: str, key: str) -> Callable:
    """PyTorch's own, as it was before the first override."""
    if (name, key) not in _originals:
        keys = private.key_set(key)
        found = torch.library.get_kernel(f"aten::{name}", key)
        _originals[name, key] = partial(found.call_boxed, keys)
    return _originals[name, key]


def _ours(name: str, key: str) -> tuple[Callable, DispatchKeySet]:
    """What takes the place of ``aten::name``."""
    return kernel_at(f"_override_{name.replace('.', '_')}", key)


def _product(name: str, original: Callable, key: str) -> Callable:
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    def product(a, b):
        result = ours(keys, a, b, cpu or _is_ieee())
        return original(a, b) if result is None else result

    return product


def _product_out(name: str, original: Callable, key: str) -> Callable:
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    def product_out(a, b, *, out):
        if ours(keys, a, b, cpu or _is_ieee(), out=out):
            return out
        return original(a, b, out=out)

    return product_out


def _is_complex(name: str, beta, alpha) -> bool:
    """Counts a call with a factor that is no real number."""
    if not (isinstance(beta, complex) or isinstance(alpha, complex)):
        return False
    with _lock:
        _factors[name, "factor"] += 1
    return True


def _sum(name: str, original: Callable, key: str) -> Callable:
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    def product_sum(c, a, b, *, beta=1, alpha=1):
        if not _is_complex(name, beta, alpha):
            ieee = cpu or _is_ieee()
            result = ours(keys, c, a, b, beta, alpha, ieee)
            if result is not None:
                return result
        return original(c, a, b, beta=beta, alpha=alpha)

    return product_sum


def _sum_into(name: str, original: Callable, key: str) -> Callable:
    """Into ``out``, or into the addend where there is none."""
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    def product_sum_into(c, a, b, *, beta=1, alpha=1, **out):
        if not _is_complex(name, beta, alpha):
            ieee = cpu or _is_ieee()
            if ours(keys, c, a, b, beta, alpha, ieee, **out):
                return out.get("out", c)
        return original(c, a, b, beta=beta, alpha=alpha, **out)

    return product_sum_into


OVERRIDES: dict[str, Callable] = {
    "mm": _product,
    "bmm": _product,
    "mm.out": _product_out,
    "bmm.out": _product_out,
    "addmm": _sum,
    "baddbmm": _sum,
    "addmm.out": _sum_into,
    "baddbmm.out": _sum_into,
    "addmm_": _sum_into,
    "baddbmm_": _sum_into,
}


# --- matmul ---------------------------------------------------------------------------------

# It is made of other operators and has no kernel at a device's own key: with one there, tracing
# would not look inside any more. So its overrides lie above.


def _product_of_heads(
    a: torch.Tensor, b: torch.Tensor, devices: Callable[[], tuple[str, ...]]
) -> torch.Tensor | None:
    """matmul of batches of two dimensions; None for all others.

    Those arrive as products of matrices or of simple batches, and are counted as such.
    """
    taken = (
        a.dim() == b.dim() == 4
        and a.device.type in devices()
        and a.dtype == b.dtype == torch.float32
        and is_plain(a, b)
        and a.shape[:2] == b.shape[:2]
    )
    if not taken:
        return None
    ieee = a.is_cpu or _is_ieee()
    return operators._override_matmul.default(a, b, ieee)


def _traced_matmul(key: DispatchKey) -> Callable | None:
    """matmul as Python resolves it below ``key`` while it traces symbolic sizes; else None.

    PyTorch's compiled matmul would ask for the sizes' values.
    """
    if not private.is_included(DispatchKey.PythonDispatcher):
        return None
    found = private.python_kernel(torch.ops.aten.matmul.default, key)
    return None if isinstance(found, DispatchKey) else found


def _matmul(original: Callable, devices: Callable[[], tuple[str, ...]]) -> Callable:
    def matmul(a, b):
        result = _product_of_heads(a, b, devices)
        if result is not None:
            return result
        return (_traced_matmul(DispatchKey.CompositeImplicitAutograd) or original)(a, b)

    return matmul


def _matmul_without_autograd(devices: Callable[[], tuple[str, ...]]) -> Callable:
    """In inference mode, for all devices."""
    redispatch = private.redispatch_of(torch.ops.aten.matmul.default)

    def matmul(keys, a, b):
        result = _product_of_heads(a, b, devices)
        if result is not None:
            return result
        below = keys.remove(DispatchKey.BackendSelect)
        traced = _traced_matmul(below.highestPriorityTypeId())
        return traced(a, b) if traced else redispatch(below, a, b)

    return matmul


# --- all of them ----------------------------------------------------------------------------


def _forget_resolutions() -> None:
    """Tracing remembers where calls of matmul go, and would not learn of a change.

    A key that it was resolved to while there was an override would lose its derivative.
    """
    private.forget_resolutions(torch.ops.aten.matmul.default)


def remove(library: torch.library.Library) -> None:
    """Takes back what :func:`install` returned."""
    private.take_back(library)
    _forget_resolutions()


def install(key: str, devices: Callable[[], tuple[str, ...]]) -> torch.library.Library:
    """Overrides all of them at a device's dispatch key, until :func:`remove`.

    ``devices``: for which the setting that holds is, asked where an override sees all devices.
    """
    functions = {}
    for name, make in OVERRIDES.items():
        functions[name, key] = make(name, _original(name, key), key)
    place = f"Autograd{key}"
    functions["matmul", place] = _matmul(_original("matmul", place), devices)
    functions["matmul", "BackendSelect"] = _matmul_without_autograd(devices)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch 2.10 warns of an overridden kernel, although that was allowed.
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for (name, place), function in functions.items():
            keys = place == "BackendSelect"
            library.impl(name, function, place, with_keyset=keys, allow_override=True)
            _recent.append(torch.library.get_kernel(f"aten::{name}", place))
    _forget_resolutions()
    return library
