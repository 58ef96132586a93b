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
from torch import Tensor

from torch_sgemm import private
from torch_sgemm._library import operators
from torch_sgemm.autograd import Derivative
from torch_sgemm.derivatives import save_factors
from torch_sgemm.forks import held_across_forks
from torch_sgemm.past_dispatcher import PLAIN, is_plain, kernel_at
from torch_sgemm.private import DispatchKey, DispatchKeySet
from torch_sgemm.products import rows_of, with_shape

_originals: dict[tuple[str, str], Callable] = {}
# A thread that was dispatched to an override may still wait for the interpreter's lock when another
# thread takes the override back: the latest 1024 (64 times sixteen overrides) outlive that.
_recent: deque[object] = deque(maxlen=1024)
_allows_tf32, _any_requires_grad = private.allows_tf32, private.any_requires_grad
_is_grad_enabled = torch.is_grad_enabled
_override_matmul = operators._override_matmul.default
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


# --- products with vectors ------------------------------------------------------------------

# PyTorch's own are as fast, but add up in orders that depend on m: they are overridden only where
# results shall not (batch_invariant), and counted as the products of matrices that they become.

_Holds = Callable[[], bool]


def _dot(original: Callable, key: str, holds: _Holds) -> Callable:
    (ours, keys), cpu = _ours("mm", key), key == "CPU"

    def dot(a, b):
        if holds() and a.dim() == b.dim() == 1:
            result = ours(keys, a.unsqueeze(0), b.unsqueeze(1), cpu or _is_ieee())
            if result is not None:
                return result.view(())
        return original(a, b)

    return dot


def _sum_with_vector(name: str, original: Callable, key: str, holds: _Holds) -> Callable:
    """addmv, of which mv is made; into ``out``, or into the addend, as the name says."""
    (ours, keys), cpu = _ours(name.replace("mv", "mm"), key), key == "CPU"

    def product_sum(c, a, b, *, beta=1, alpha=1, **out):
        fits = b.dim() == 1 and c.dim() <= 1 and all(x.dim() == 1 for x in out.values())
        if holds() and fits and not _is_complex(name, beta, alpha):
            addend = c.unsqueeze(1) if c.dim() else c
            into = {key: x.unsqueeze(1) for key, x in out.items()}
            result = ours(keys, addend, a, b.unsqueeze(1), beta, alpha, cpu or _is_ieee(), **into)
            if name == "addmv" and result is not None:
                return result.squeeze(1)
            if name != "addmv" and result:
                return out.get("out", c)
        return original(c, a, b, beta=beta, alpha=alpha, **out)

    return product_sum


def install_vectors(key: str, holds: _Holds) -> torch.library.Library:
    """Overrides products with vectors at a device's dispatch key, until :func:`remove`.

    ``holds``: whether the setting that holds asks for it on this device.
    """
    functions = {("dot", key): _dot(_original("dot", key), key, holds)}
    for name in ("addmv", "addmv.out", "addmv_"):
        functions[name, key] = _sum_with_vector(name, _original(name, key), key, holds)
    return _installed(functions)


# --- matmul ---------------------------------------------------------------------------------

# It is made of other operators and has no kernel at a device's own key: with one there, tracing
# would not look inside any more. So its overrides lie above. They take what PyTorch makes other
# products of with gradients than without, or copies of operands.

_Matmul = Callable[[Tensor, Tensor], Tensor]


class _Heads(Derivative):
    """The product of heads, or None; its gradients are products of heads."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, ieee: bool) -> Tensor | None:
        save_factors(ctx, a, b, *ctx.needs_input_grad[:2])
        with private.below_autograd():
            return _override_matmul(a, b, ieee)

    @staticmethod
    def backward(ctx, grad: Tensor):
        needs_a, needs_b, _ = ctx.needs_input_grad
        a, b = ctx.saved_tensors
        grad_a = torch.matmul(grad, b.mT) if needs_a else None
        grad_b = torch.matmul(a.mT, grad) if needs_b else None
        return grad_a, grad_b, None


class _OneLeft(Derivative):
    """A batch with one A, as without gradients. A's gradient is one product, not a batch to add."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, original: _Matmul) -> Tensor:
        save_factors(ctx, a, b, *ctx.needs_input_grad[:2])
        ctx.shape = a.shape
        return original(a.detach(), b)

    @staticmethod
    def backward(ctx, grad: Tensor):
        needs_a, needs_b, _ = ctx.needs_input_grad
        a, b = ctx.saved_tensors
        if len(ctx.shape) == 1:
            grad = grad.unsqueeze(-2)
        grad_a = grad_b = None
        if needs_a:
            rows = grad.movedim(-2, 0).flatten(1)
            grad_a = torch.mm(rows, rows_of(b.mT)).view(ctx.shape)
        if needs_b:
            grad_b = torch.matmul(a.view(-1, a.shape[-1]).mT, grad)
        return grad_a, grad_b, None


def _product_of_heads(a: Tensor, b: Tensor, original: _Matmul) -> Tensor | None:
    ieee = a.is_cpu or _is_ieee()
    if _is_grad_enabled() and _any_requires_grad(a, b):
        return _Heads.apply(a, b, ieee)
    return _override_matmul(a, b, ieee)


def _with_one_right(a: Tensor, b: Tensor, original: _Matmul) -> Tensor | None:
    """All rows of A as one matrix, which PyTorch makes them only where B requires grad."""
    b = b.squeeze(0) if b.dim() == 3 else b
    if a.shape[-1] != b.shape[0]:
        return None
    return with_shape(original(rows_of(a), b), (*a.shape[:-1], *b.shape[1:]))


def _with_one_left(a: Tensor, b: Tensor, original: _Matmul) -> Tensor:
    """A batch, of which PyTorch makes one matrix, by copies, where A requires grad."""
    if _is_grad_enabled():
        return _OneLeft.apply(a, b, original)
    return original(a.detach(), b)


def _way(a: Tensor, b: Tensor) -> Callable[[Tensor, Tensor, _Matmul], Tensor | None] | None:
    """What takes the place of PyTorch's matmul, by the cheapest questions; None for most.

    Those arrive as products of matrices or of simple batches, and are counted as such. Of what is
    traced no size is asked: it would become a number.
    """
    dims_a, dims_b = a.dim(), b.dim()
    if dims_a == dims_b:
        if dims_a == 4:
            return _product_of_heads
        if dims_a != 3 or type(a) not in PLAIN or type(b) not in PLAIN or a.size(0) == b.size(0):
            return None
        one_left, one_right = a.size(0) == 1, b.size(0) == 1 and not b.requires_grad
    else:
        one_left = dims_b > 2 >= dims_a > 0
        one_right = dims_a > 2 >= dims_b > 0 and not b.requires_grad and _lies_apart(a)
    if one_left:
        return _with_one_left if a.requires_grad else None
    return _with_one_right if one_right else None


def _lies_apart(x: Tensor) -> bool:
    return type(x) in PLAIN and x.layout is torch.strided and not x.is_contiguous()


def _taken(
    a: Tensor, b: Tensor, original: _Matmul, devices: Callable[[], tuple[str, ...]]
) -> Tensor | None:
    """matmul, or None where it stays PyTorch's."""
    way = _way(a, b)
    if way is None:
        return None
    if (
        a.device.type not in devices()
        or not a.dtype == b.dtype == torch.float32
        or not is_plain(a, b)
        or (way is _product_of_heads and a.shape[:2] != b.shape[:2])
    ):
        return None
    return way(a, b, original)


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
        result = _taken(a, b, original, devices)
        if result is not None:
            return result
        return (_traced_matmul(DispatchKey.CompositeImplicitAutograd) or original)(a, b)

    return matmul


def _matmul_without_autograd(devices: Callable[[], tuple[str, ...]]) -> Callable:
    """In inference mode, for all devices."""
    redispatch = private.redispatch_of(torch.ops.aten.matmul.default)

    def matmul(keys, a, b):
        below = keys.remove(DispatchKey.BackendSelect)
        result = _taken(a, b, partial(redispatch, below), devices)
        if result is not None:
            return result
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
    library = _installed(functions)
    _forget_resolutions()
    return library


def _installed(functions: dict[tuple[str, str], Callable]) -> torch.library.Library:
    """Functions by the names of aten's operators and their dispatch keys."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch 2.10 warns of an overridden kernel, although that was allowed.
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for (name, place), function in functions.items():
            keys = place == "BackendSelect"
            library.impl(name, function, place, with_keyset=keys, allow_override=True)
            _recent.append(torch.library.get_kernel(f"aten::{name}", place))
    return library
