"""The overrides of PyTorch's own products that ``enable()`` installs.

csrc/binding/override.cpp checks, counts and runs a call, because a microsecond counts on this path.
The overrides are in Python, because only there PyTorch's own exceptions keep their type.
Each covers the kernel that it finds at its dispatch key, PyTorch's or another library's, and calls
that kernel for all other products. A library that registers later covers the override.
"""

import os
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import Callable

import torch

from torch_sgemm.dropin import attention
from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import operators
from torch_sgemm.torch_ops.past_dispatcher import kernel_at
from torch_sgemm.torch_ops.private import DispatchKeySet, uncompiled

# A thread that was dispatched to an override may wait for the GIL while another thread removes the
# override. The latest 1024 overrides, those of 70 settings, are therefore kept alive.
_recent: deque[object] = deque(maxlen=1024)
_allows_tf32 = private.allows_tf32
FLOAT32 = ("ieee", "none", "bfx9")  # bfx9: float32 from nine bfloat16 products
_count_factor = operators._override_count_factor.default
changing = threading.RLock()
# Forks wait for the lock; else a child might inherit it from a thread that it lacks.
os.register_at_fork(
    before=changing.acquire, after_in_parent=changing.release, after_in_child=changing.release
)


def _is_ieee() -> bool:
    """True if PyTorch's settings ask for float32 products on GPUs."""
    try:
        return not _allows_tf32()  # takes a third of the public setting's time
    except RuntimeError:  # its older and its newer settings differ
        return torch.backends.cuda.matmul.fp32_precision in FLOAT32


def _kernel(name: str, key: str):
    """Returns the kernel that a call of ``aten::name`` reaches now."""
    return torch.library.get_kernel(f"aten::{name}", key)


def _covered(name: str, key: str) -> Callable:
    """Returns the kernel that an override of ``aten::name`` is going to cover.

    A library that is unloaded takes its kernels along. The next call then reinstalls all overrides
    over the kernels that are left.
    """
    keys, call = private.key_set(key), _kernel(name, key).call_boxed

    def covered(*args, **kwargs):
        try:
            return call(keys, *args, **kwargs)
        except RuntimeError as failure:
            if not str(failure).startswith(private.UNLOADED):
                raise
        renew()
        return private.redispatch_of(private.overload(name))(keys, *args, **kwargs)

    return covered


def _ours(name: str, key: str) -> tuple[Callable, DispatchKeySet]:
    """Returns the operator that overrides ``aten::name``, and its key."""
    return kernel_at(f"_override_{name.replace('.', '_')}", key)


def _product(name: str, original: Callable, key: str) -> Callable:
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    @uncompiled
    def product(a, b):
        result = ours(keys, a, b, cpu or _is_ieee())
        return original(a, b) if result is None else result

    return product


def _product_out(name: str, original: Callable, key: str) -> Callable:
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    @uncompiled
    def product_out(a, b, *, out):
        if ours(keys, a, b, cpu or _is_ieee(), out=out):
            return out
        return original(a, b, out=out)

    return product_out


def _is_complex(name: str, beta, alpha) -> bool:
    """True if a factor is complex; counts that call."""
    if not (isinstance(beta, complex) or isinstance(alpha, complex)):
        return False
    _count_factor(name)
    return True


def _sum(name: str, original: Callable, key: str) -> Callable:
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    @uncompiled
    def product_sum(c, a, b, *, beta=1, alpha=1):
        if not _is_complex(name, beta, alpha):
            ieee = cpu or _is_ieee()
            result = ours(keys, c, a, b, beta, alpha, ieee)
            if result is not None:
                return result
        return original(c, a, b, beta=beta, alpha=alpha)

    return product_sum


def _sum_into(name: str, original: Callable, key: str) -> Callable:
    """Overrides a sum that is written to ``out``, or without one to the addend."""
    (ours, keys), cpu = _ours(name, key), key == "CPU"

    @uncompiled
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

# Products with vectors: PyTorch's are as fast, but their order of summation depends on m. So only
# batch-invariant settings override them, and count them as the products of matrices they become.

_Holds = Callable[[], bool]


def _dot(original: Callable, key: str, holds: _Holds) -> Callable:
    (ours, keys), cpu = _ours("mm", key), key == "CPU"

    @uncompiled
    def dot(a, b):
        if holds() and a.dim() == b.dim() == 1:
            result = ours(keys, a.unsqueeze(0), b.unsqueeze(1), cpu or _is_ieee())
            if result is not None:
                return result.view(())
        return original(a, b)

    return dot


def _sum_with_vector(name: str, original: Callable, key: str, holds: _Holds) -> Callable:
    """Overrides addmv, which mv calls, and by ``name`` its in-place and out variants."""
    (ours, keys), cpu = _ours(name.replace("mv", "mm"), key), key == "CPU"

    @uncompiled
    def product_sum(c, a, b, *, beta=1, alpha=1, **out):
        fits = b.dim() == 1 and c.dim() <= 1 and all(x.dim() == 1 for x in out.values())
        if holds() and fits and not _is_complex(name.replace("mv", "mm"), beta, alpha):
            addend = c.unsqueeze(1) if c.dim() else c
            into = {key: x.unsqueeze(1) for key, x in out.items()}
            result = ours(keys, addend, a, b.unsqueeze(1), beta, alpha, cpu or _is_ieee(), **into)
            if name == "addmv" and result is not None:
                return result.squeeze(1)
            if name != "addmv" and result:
                return out.get("out", c)
        return original(c, a, b, beta=beta, alpha=alpha, **out)

    return product_sum


_Place = tuple[str, str]  # a device's dispatch key, and "matrices", "vectors" or "attention"
_installed: dict[_Place, tuple[torch.library.Library, _Holds]] = {}
_left: dict[_Place, list[torch.library.Library]] = defaultdict(list)
_NAMES = {
    "matrices": tuple(OVERRIDES),
    "vectors": ("dot", "addmv", "addmv.out", "addmv_"),
    "attention": tuple(attention.OVERRIDES),
}


def _override(name: str, key: str, holds: _Holds) -> Callable:
    covered = _covered(name, key)
    if name == "dot":
        return _dot(covered, key, holds)
    if name in attention.OVERRIDES:
        return attention.OVERRIDES[name](covered, holds, _is_ieee)
    if name in OVERRIDES:
        return OVERRIDES[name](name, covered, key)
    return _sum_with_vector(name, covered, key, holds)


def installed() -> set[_Place]:
    """Returns the places that :func:`install` has overridden."""
    return set(_installed)


def install(key: str, kind: str, holds: _Holds) -> None:
    """Overrides operators at the dispatch key ``"CPU"`` or ``"CUDA"``, until :func:`remove`.

    ``kind`` is ``"matrices"``, ``"vectors"`` or ``"attention"``. ``holds`` returns True if the
    current setting covers this kind on this device; for matrices it is not asked.
    """
    _uncover(key, kind)
    if kind == "matrices":
        plain = all(private.is_pytorch_s(_kernel(name, key)) for name in OVERRIDES)
        operators._override_covers_pytorch(key == "CUDA", plain)
    functions = {name: _override(name, key, holds) for name in _NAMES[kind]}
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # PyTorch warns of the first kernel that is covered
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, function in functions.items():
            private.register(library, name, key, function)
            _recent.append(_kernel(name, key))
    _installed[key, kind] = library, holds


def remove(key: str, kind: str) -> None:
    """Undoes :func:`install`."""
    library, _ = _installed.pop((key, kind))
    _left[key, kind].append(library)
    _uncover(key, kind)


def _uncover(key: str, kind: str) -> None:
    """Unloads overrides that were removed, the latest first.

    The function stops at one that another library covers, because that library may call it.
    """
    left, folder = _left[key, kind], os.path.dirname(__file__)
    while left and all(folder in repr(_kernel(name, key)) for name in _NAMES[kind]):
        private.take_back(left.pop())


def renew() -> None:
    """Reinstalls all overrides, and unloads removed ones that nothing covers any more."""
    with changing:
        for place, (_, holds) in list(_installed.items()):
            remove(*place)
            install(*place, holds)
        for place in _left:
            _uncover(*place)
