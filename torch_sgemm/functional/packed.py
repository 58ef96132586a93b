"""Right operands that are split once and multiplied many times, such as a layer's weights.

``sgemm::packed_mm(c, a, b, kernel, pack, *, beta=1, alpha=1, activation=None)`` is activation(beta
c + alpha a @ b) for every ``pack``. The planes are a cache of the PackedMatrix with that number,
which the operator's kernel looks up when it runs. So compiled programs, captured graphs and
derivatives can't be stale either.
"""

import itertools
import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from torch_sgemm.choice.table import request
from torch_sgemm.functional.products import check_in_memory, is_traced, rows_of, with_shape
from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.activations import ACTIVATIONS, check_activation, followed
from torch_sgemm.torch_ops.autograd import below, implement
from torch_sgemm.torch_ops.derivatives import SgemmSum, scaled
from torch_sgemm.torch_ops.inductor import register_lowerings
from torch_sgemm.torch_ops.library import NAMESPACE, operators, out_of_memory, qualified
from torch_sgemm.torch_ops.ops import check_addend, product_shape
from torch_sgemm.torch_ops.past_dispatcher import is_plain, kernels_of, reaches_kernel
from torch_sgemm.torch_ops.vmap import addend, batched

_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define(
    "packed_mm(Tensor? c, Tensor a, Tensor b, str kernel, SymInt pack, *, float beta=1, "
    "float alpha=1, str? activation=None) -> Tensor"
)
_packed_mm = operators.packed_mm.default
_with_inner = operators._packed_mm_with_inner.default
_keep_with_graph = operators._keep_with_graph.default
_KERNELS = kernels_of("_packed_mm")
_CHECKS = os.environ.get("TORCH_SGEMM_CHECK_PACKED", "") not in ("", "0")
_numbers = itertools.count()
_packs: "weakref.WeakValueDictionary[int, PackedMatrix]" = weakref.WeakValueDictionary()


class _Planes(NamedTuple):
    """Planes and what they depend on, replaced as a whole because other threads read them."""

    of: tuple  # the state of b
    planes: Tensor
    stream: int | None  # of the split, until the event; None if another may reuse its handle
    event: torch.cuda.Event


class PackedMatrix:
    """A matrix, and its float16 planes if it is frozen, as :func:`pack` makes it.

    The planes take 4 bytes per element of any dtype. The matrix itself is kept: the split family's
    guard recomputes elements from it, and products that planes don't make faster read it. A copy,
    also a pickled one, is packed anew.
    """

    def __init__(self, b: Tensor, frozen: bool = False) -> None:
        check_in_memory("torch_sgemm.pack", b)
        self._owner = b if b._base is None else b._base  # owns the memory
        self._owner_at = self._owner.data_ptr()
        self._transposed = _is_transpose(b, self._owner)
        self._source = self._owner if self._transposed else b
        self.frozen = frozen
        self._number = next(_numbers)
        _packs[self._number] = self
        self._planes: _Planes | None = None
        self.update()

    def __reduce__(self):
        """Keeps a copied layer's matrix a view of the layer's own weight."""
        return _pack, (self._source, self._transposed, self.frozen)

    def __fx_create_arg__(self, tracer):
        """Makes the matrix an attribute of the traced module."""
        name = f"_packed_matrix_{self._number}"
        setattr(tracer.root, name, self)
        return tracer.create_node("get_attr", name, (), {})

    def __repr__(self) -> str:
        frozen = ", frozen=True" if self.frozen else ""
        return f"PackedMatrix(shape={tuple(self.shape)}, device={self.b.device}{frozen})"

    @property
    def shape(self) -> torch.Size:
        """(k, n)"""
        return self.b.shape

    def update(self) -> None:
        """Splits a frozen matrix again, on the current stream.

        The planes, which captured graphs read, are overwritten: order the call after products on
        other streams, like any write. A matrix that requires grad or isn't frozen has no planes.

        Raises:
            RuntimeError: the current stream is being captured.
        """
        own = self.b.detach()
        if not self.frozen or self._owner.requires_grad:
            self._planes = None
            return
        if _is_captured(own):
            raise RuntimeError(
                "torch_sgemm: the current stream is being captured, and would not split a packed "
                "matrix before the graph runs; accepted: pack() and update() before the capture"
            )
        self._planes = _split(own, None if self._planes is None else self._planes.planes)

    def mm(
        self,
        a: Tensor,
        c: Tensor | None = None,
        *,
        beta: float = 1,
        alpha: float = 1,
        kernel: str = "auto",
        batch_invariant: bool = False,
    ) -> Tensor:
        """Returns ``alpha a @ b``, with ``beta c`` added if there is a c.

        Args:
            a: float32, bfloat16 or float16 of shape (m, k), any strides, on b's device.
            c: float32, broadcasts to (m, n).
            beta, alpha: factors.
            kernel: ``"auto"`` and ``"split"`` use the planes if that is predicted to be faster than
                all rows, or all rows of the family; ``"split_fp16x3"`` always uses them. Other rows
                and families of :func:`torch_sgemm.kernels` read b itself.
            batch_invariant: as for :func:`torch_sgemm.matmul`, by the planes.

        The method has the derivatives and transforms of ``torch.ops.sgemm.addmm``.

        Raises:
            RuntimeError: an argument has another shape, dtype or device; ``kernel`` is unknown,
                can't take the product or is given with ``batch_invariant``.
        """
        kernel = request("torch_sgemm.PackedMatrix.mm", kernel, batch_invariant)
        if is_traced(a, c):
            more = {"beta": beta, "alpha": alpha, "kernel": kernel}
            return handle_torch_function(PackedMatrix.mm, (a, c), self, a, c, **more)
        return self._product(a, self.b, c, kernel, float(beta), float(alpha))

    def linear(
        self, x: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, kernel: str
    ) -> Tensor:
        """Returns activation(x @ b + bias) for x of shape (..., k); b is the matrix."""
        result = self._product(rows_of(x), b, bias, kernel, activation=activation)
        return with_shape(result, (*x.shape[:-1], b.shape[1]))

    def _product(
        self,
        a: Tensor,
        b: Tensor,
        c: Tensor | None,
        kernel: str,
        beta: float = 1.0,
        alpha: float = 1.0,
        activation: str | None = None,
    ) -> Tensor:
        """Returns activation(beta c + alpha a @ b), past the dispatcher if possible."""
        if reaches_kernel(a, b) if c is None else reaches_kernel(a, b, c):
            function, keys = _KERNELS[a.is_cuda]
            try:
                planes = self.planes_of(b)
                return function(keys, a, b, planes, c, kernel, activation, beta=beta, alpha=alpha)
            except RuntimeError as failure:
                raise out_of_memory(failure, a.is_cuda) from None
        return _packed_mm(
            c, a, b, kernel, self._number, beta=beta, alpha=alpha, activation=activation
        )

    def planes_of(self, b: Tensor) -> Tensor | None:
        """Returns b's planes, or None; b may be another tensor than the matrix."""
        found = self._planes
        if found is None or self._owner.requires_grad:
            return None
        own = self.b
        if _place_of(b) != _place_of(own):  # a compiled program made this b
            return None
        if _state_of(own) != found.of:  # not reliable: few writers change the state
            self.update()
            if (found := self._planes) is None:
                return None
        if _is_captured(b):  # the graph may outlive this object
            _keep_with_graph(found.planes)
        else:
            _wait(found)
            if _CHECKS:
                _check(own, found)
        return found.planes

    @property
    def b(self) -> Tensor:
        """The matrix as it is now, of shape (k, n)."""
        if self._transposed:
            return self._source.t()
        is_view = self._owner is not self._source and not torch.compiler.is_compiling()
        if is_view and self._owner.data_ptr() != self._owner_at:
            raise RuntimeError(
                "torch_sgemm: a packed matrix is a view of a tensor that has other memory now, by "
                "'.data = ' or '.to()'; accepted: a new pack() of a new view"
            )
        return self._source


def pack(b: Tensor, *, frozen: bool = False) -> PackedMatrix:
    """Makes a right operand for :func:`torch_sgemm.matmul`, :func:`torch_sgemm.linear` and
    :meth:`PackedMatrix.mm`, which is split once if it is frozen.

    With planes the row ``split_fp16x3`` (docs/split.md) saves its pass over ``b``; where another
    row is faster, ``kernel="auto"`` takes that row. On the CPU and on GPUs without rows of the
    family split, products are ordinary ones.

    Args:
        b: float32, bfloat16 or float16 of shape (k, n), any strides; for a ``torch.nn.Linear``,
            ``weight.t()``.
        frozen: a promise to call :meth:`PackedMatrix.update` whenever b was written, before the
            next product. Fused optimizers, collectives and CUDA graph replays write without telling
            PyTorch. Captured products read the planes as well. Their graph keeps the planes when
            this object is gone; after the graph, the next pack() frees them.

    Products read b itself without the promise, and while b requires grad. A trained layer's
    inference needs a pack of ``weight.detach().t()``. A packed matrix belongs to this tensor, or to
    the weight of a ``weight.t()``. Pack again after ``functional_call`` or
    ``load_state_dict(assign=True)`` has replaced the tensor.

    ``TORCH_SGEMM_CHECK_PACKED=1`` in the environment compares the planes with b at every product
    that isn't captured, and raises RuntimeError where a program has broken the promise.

    Raises:
        RuntimeError: b has another dtype or dimension; b is frozen while the current stream is
            being captured.
    """
    return PackedMatrix(b, frozen)


def _is_transpose(b: Tensor, x: Tensor) -> bool:
    return x.dim() == 2 and (x.shape[::-1], x.stride()[::-1]) == (b.shape, b.stride())


def _pack(source: Tensor, transposed: bool, frozen: bool) -> PackedMatrix:
    return PackedMatrix(source.t() if transposed else source, frozen)


def _place_of(b: Tensor) -> tuple:
    return b.data_ptr(), b.shape, b.stride(), b.device


def _state_of(b: Tensor) -> tuple:
    return 0 if b.is_inference() else b._version, *_place_of(b)


def _planes(b: Tensor) -> Tensor | None:
    try:
        return operators._pack(b)
    except RuntimeError as failure:
        raise out_of_memory(failure, b.is_cuda) from None


def _split(b: Tensor, into: Tensor | None) -> _Planes | None:
    """Splits b, into the memory of the previous planes if they fit."""
    planes = _planes(b)
    if planes is None:
        return None
    if into is not None and (into.shape, into.device) == (planes.shape, planes.device):
        planes = into.copy_(planes)
    stream, event = torch.cuda.current_stream(planes.device), torch.cuda.Event()
    event.record(stream)
    return _Planes(_state_of(b), planes, _lasting_handle(stream), event)


def _check(b: Tensor, found: _Planes) -> None:
    if not torch.equal(_planes(b.detach()).view(torch.int32), found.planes.view(torch.int32)):
        raise RuntimeError(
            f"torch_sgemm: a matrix of shape {tuple(b.shape)} that was packed with frozen=True has "
            "been written; accepted: PackedMatrix.update() after that, or pack() without frozen, "
            "whose products read it as it is"
        )


def _lasting_handle(stream: torch.cuda.Stream) -> int | None:
    """Returns the handle; None if external (handle == id), as only PyTorch's streams last."""
    handle = stream.cuda_stream
    return None if handle and handle == stream.stream_id else handle


def _wait(found: _Planes) -> None:
    """Makes products on another stream wait for the split."""
    if _stream_of(found.planes) != found.stream:
        stream = torch.cuda.current_stream(found.planes.device)
        stream.wait_event(found.event)
        found.planes.record_stream(stream)


def _is_captured(b: Tensor) -> bool:
    if not b.is_cuda:
        return False
    if b.device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(b.device):
        return torch.cuda.is_current_stream_capturing()


def _stream_of(planes: Tensor) -> int:
    return private.current_stream(planes.device.index)


def _planes_for(pack: int, b: Tensor) -> Tensor | None:
    packed = _packs.get(pack)
    return None if packed is None else packed.planes_of(b)


@private.uncompiled
def _run(
    c,
    a,
    b,
    kernel: str,
    pack: int,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    activation: str | None = None,
) -> Tensor:
    function, keys = _KERNELS[a.is_cuda]
    try:
        planes = _planes_for(pack, b)
        return function(keys, a, b, planes, c, kernel, activation, beta=beta, alpha=alpha)
    except RuntimeError as failure:  # inference mode skips the autograd kernel's translation
        raise out_of_memory(failure, a.is_cuda) from None


for _backend in ("CPU", "CUDA"):
    _library.impl("packed_mm", _run, _backend)


def _differentiated(
    keyset, c, a, b, kernel, pack, *, beta=1.0, alpha=1.0, activation=None
) -> Tensor:
    check_activation(qualified("packed_mm"), activation)

    def product(run: Callable[..., Tensor]) -> Tensor:
        return SgemmSum.at_level(run, c, a, b, beta, alpha, kernel, pack)

    if activation is None or not (is_plain(a, b) and (c is None or is_plain(a, c))):
        return ACTIVATIONS[activation](product(partial(below, _packed_mm, keyset)))

    def run(c, a, b, kernel: str, pack: int, **factors: float) -> tuple[Tensor, Tensor]:
        planes = _planes_for(pack, b)
        return below(_with_inner, keyset, a, b, planes, c, kernel, activation, **factors)

    return followed(product, run, activation)


implement("packed_mm", _differentiated)


@torch.library.register_fake(qualified("packed_mm"))
def _(c, a, b, kernel, pack, *, beta=1.0, alpha=1.0, activation=None):
    check_activation(qualified("packed_mm"), activation)
    register_lowerings(["packed_mm"])
    shape = product_shape("packed_mm", a, b, 2)
    if c is not None:
        check_addend("packed_mm", c, a, shape)
    return a.new_empty(shape, dtype=torch.float32)


@torch.library.register_vmap(qualified("packed_mm"))
def _(info, in_dims, c, a, b, kernel, pack, *, beta=1.0, alpha=1.0, activation=None):
    """Joins the rows of all a in one matrix, unless b is batched as well."""
    check_activation(qualified("packed_mm"), activation)
    of_c, of_a, of_b, *_ = in_dims
    size = info.batch_size
    a = batched(a, of_a, size)
    b = b if of_b is None else b.movedim(of_b, 0)
    shape = (*a.shape[:2], b.shape[-1])
    c = None if c is None else addend(c, of_c, 2).expand(shape)
    if of_b is None:
        c = None if c is None else c.flatten(0, 1)
        a = a.flatten(0, 1)
        rows = _packed_mm(c, a, b, kernel, pack, beta=beta, alpha=alpha, activation=activation)
        return rows.unflatten(0, shape[:2]), 0
    if c is None:
        result = scaled(operators.bmm(a, b, kernel), alpha)
    else:
        result = operators.baddbmm(c, a, b, kernel, beta=beta, alpha=alpha)
    return ACTIVATIONS[activation](result), 0
