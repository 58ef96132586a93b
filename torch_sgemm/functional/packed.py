"""Right operands that are split once and multiplied many times, such as a layer's weights."""

import itertools
import os
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from torch_sgemm.choice.table import request
from torch_sgemm.functional.route import STRAIGHT, TRACED, Route, route
from torch_sgemm.torch_ops import private
from torch_sgemm.torch_ops.library import OPERAND_DTYPES, operators, out_of_memory
from torch_sgemm.torch_ops.ops import about
from torch_sgemm.torch_ops.packed_mm import packed_mm, packs, straight, straight_layer
from torch_sgemm.torch_ops.product import rows_of, with_shape

_keep_with_graph = operators._keep_with_graph.default
_CHECKS = os.environ.get("TORCH_SGEMM_CHECK_PACKED", "") not in ("", "0")
_numbers = itertools.count()


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
        _check_in_memory(b)
        self._owner = b if b._base is None else b._base  # owns the memory
        self._owner_at = self._owner.data_ptr()
        self._transposed = _is_transpose(b, self._owner)
        self._source = self._owner if self._transposed else b
        self.frozen = frozen
        self._number = next(_numbers)
        packs[self._number] = self
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
                all rows, or all rows of the family; ``"split_fp16x3"`` and ``"split_fp16x3_few"``
                always use them. Other rows and families of :func:`torch_sgemm.kernels` read b
                itself.
            batch_invariant: as for :func:`torch_sgemm.matmul`, by the planes.

        The method has the derivatives and transforms of ``torch.ops.sgemm.addmm``.

        Raises:
            RuntimeError: an argument has another shape, dtype or device; ``kernel`` is unknown,
                can't take the product or is given with ``batch_invariant``.
        """
        kernel = request("torch_sgemm.PackedMatrix.mm", kernel, batch_invariant)
        b = self.b
        way = route(lambda *_: True, a, b, c, self)  # the kernel checks shapes
        if way is TRACED:
            more = {"beta": beta, "alpha": alpha, "kernel": kernel}
            return handle_torch_function(PackedMatrix.mm, (a, c), self, a, c, **more)
        factors = {"beta": float(beta), "alpha": float(alpha)}
        if way is STRAIGHT:
            return straight(a, b, self._planes_of_own(b), c, kernel, None, **factors)
        return packed_mm(c, a, b, kernel, self._number, **factors)

    def linear(
        self,
        way: Route,
        x: Tensor,
        b: Tensor,
        bias: Tensor | None,
        kernel: str,
        activation: str | None = None,
    ) -> Tensor:
        """Returns activation(x @ b + bias) for x of shape (..., k); b is the matrix."""
        if way is STRAIGHT:
            return straight_layer(x, b, self._planes_of_own(b), bias, kernel, activation)
        rows = rows_of(x)
        result = packed_mm(bias, rows, b, kernel, self._number, activation=activation)
        shape = (*x.shape[:-1], b.shape[1])
        if activation == "relu" and result.requires_grad:  # the backward reads the result
            return result.view(shape)
        return with_shape(result, shape)

    def planes_of(self, b: Tensor) -> Tensor | None:
        """Returns b's planes, or None; b may be another tensor than the matrix."""
        if self._planes is None:
            return None
        own = self.b
        if _place_of(b) != _place_of(own):  # a compiled program made this b
            return None
        return self._planes_of_own(own)

    def _planes_of_own(self, own: Tensor) -> Tensor | None:
        """Returns the planes of ``own``, which is ``self.b``, or None."""
        found = self._planes
        if found is None or self._owner.requires_grad:
            return None
        if _state_of(own) != found.of:  # not reliable: few writers change the state
            self.update()
            if (found := self._planes) is None:
                return None
        if _is_captured(own):  # the graph may outlive this object
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
        b: float32, bfloat16 or float16 of shape (k, n), any strides, such as ``weight.t()``
            of a ``torch.nn.Linear``.
        frozen: a promise to call :meth:`PackedMatrix.update` after each write to b, before the
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


def _check_in_memory(b: Tensor) -> None:
    """Raises RuntimeError unless a kernel can read the elements of ``b``."""
    if not isinstance(b, Tensor):
        found = f"is {b!r}"
    elif (
        b.layout is torch.strided
        and type(b).__torch_dispatch__ is Tensor.__torch_dispatch__  # fake and DTensors have theirs
        and b.device.type in ("cpu", "cuda")
        and b.dim() == 2
        and b.dtype in OPERAND_DTYPES
    ):
        return
    else:
        found = f"is a {type(b).__name__} of {about(b)}, {b.layout}"
    raise RuntimeError(
        f"torch_sgemm.pack: argument 'b' {found}; accepted: a strided matrix of float32, bfloat16 "
        "or float16 on a CPU or CUDA device"
    )


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
