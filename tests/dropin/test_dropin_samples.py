"""PyTorch's own operator samples under ``enabled()``: forward, backward, strides, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from support.multilinear import assert_accurate, run
from support.table import each_device
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_sgemm
from torch_sgemm.dropin import overrides

# Operators that arrive for each function, in forward and backward together. mv, addmv and dot stay
# with PyTorch, because its kernels for them are not products of matrices.
ARRIVES: dict[str, set[str]] = {
    "matmul": {"mm", "bmm"},
    "__rmatmul__": {"mm", "bmm"},
    "mm": {"mm"},
    "bmm": {"bmm"},
    "addmm": {"addmm", "mm"},
    "baddbmm": {"baddbmm", "bmm"},
    "addbmm": {"addmm_", "bmm"},
    "nn.functional.linear": {"addmm", "mm"},
    "einsum": {"bmm"},
    "addmv": set(),
    "mv": set(),
    "dot": set(),
}

each_name = pytest.mark.parametrize("name", ARRIVES)
each_kernel = pytest.mark.parametrize("kernel", ["auto", "ladder"])


@pytest.fixture(scope="module")
def op_infos() -> dict[str, list]:
    """PyTorch's descriptions of operators, variants included. Importing them takes seconds."""
    pytest.importorskip("expecttest", reason="PyTorch's operator samples need expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    variants = {name: [op for op in op_db if op.name == name] for name in ARRIVES}
    # Not an operator of its own: needs Triton, and has no derivatives.
    return {
        name: [op for op in ops if op.variant_test_name != "triton_optimized"]
        for name, ops in variants.items()
    }


class Seen(TorchDispatchMode):
    """Counts the calls of overridden operators, forward and backward, that PyTorch makes outside
    of its kernels. On CUDA a backward runs in another thread, which inherits the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::")
        if name in overrides.OVERRIDES:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def samples(op, device: str) -> Iterator[tuple[tuple, dict]]:
    """Arguments of every sample, with contiguous and with other strides."""
    for sample in op.sample_inputs(device, torch.float32):
        for variant in (sample, sample.noncontiguous()):
            yield (variant.input, *variant.args), variant.kwargs


@each_name
@each_kernel
@each_device
def test_samples(op_infos, device: str, kernel: str, name: str) -> None:
    """Values and gradients are as accurate as a float32 product is, wherever they came from."""
    assert op_infos[name], "PyTorch has no samples of this operator"
    torch_sgemm.reset_stats()
    seen = Seen()
    for op in op_infos[name]:
        for args, kwargs in samples(op, device):
            plain = run(op, args, kwargs)
            seed = torch.randn_like(plain.value)
            plain = run(op, args, kwargs, seed)
            with torch_sgemm.enabled(kernel, devices=(device,)), seen:
                result = run(op, args, kwargs, seed)
            assert result.value.stride() == plain.value.stride()
            assert_accurate(op, args, kwargs, result, seed, plain)
    stats = torch_sgemm.stats()
    assert stats.fallbacks == {}
    # All that PyTorch called arrived, and what its kernels call among themselves came on top.
    assert Counter(stats.hits) >= seen.calls
    assert bool(stats.hits) == bool(ARRIVES[name])
    if device == "cpu":  # elsewhere PyTorch may make an operator of other products
        assert stats.hits.keys() >= ARRIVES[name]


@each_name
@each_device
def test_error_inputs(op_infos, device: str, name: str) -> None:
    """The errors that PyTorch lists, and wrong inputs made from a good sample."""
    for op in op_infos[name]:
        listed = op.error_inputs(device) if op.error_inputs_func else ()
        for error in listed:
            sample = error.sample_input
            args, kwargs = (sample.input, *sample.args), sample.kwargs
            with pytest.raises(error.error_type, match=error.error_regex):
                op(*args, **kwargs)
            assert_same_error(partial(op, *args, **kwargs), device)
    for call in wrong_calls(name, device):
        assert_same_error(call, device)


def assert_same_error(call: Callable[[], Tensor], device: str) -> None:
    """Asserts that ``call`` fails with the same message with and without the drop-in."""
    messages = []
    for kernel in (None, "auto", "ladder"):
        with pytest.raises((RuntimeError, TypeError, IndexError)) as caught:
            if kernel is None:
                call()
            else:
                with torch_sgemm.enabled(kernel, devices=(device,)):
                    call()
        messages.append((caught.type, str(caught.value)))
    assert messages[0] == messages[1] == messages[2]


def wrong_calls(name: str, device: str) -> list[Callable[[], Tensor]]:
    """Calls of ``name`` with sizes, dimensions, types or an output that don't fit."""

    def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    matrices = [
        (x(3, 4), x(5, 6)),
        (x(3, 4), x(4, 6, dtype=torch.float64)),
        (x(3, 4), x(4, 6, dtype=torch.int64)),
    ]
    batches = [
        (x(2, 3, 4), x(2, 5, 6)),
        (x(2, 3, 4), x(7, 4, 6)),
        (x(2, 3, 4), x(2, 4, 6, dtype=torch.float64)),
    ]
    strict_matrices = [*matrices, (x(3), x(3, 4)), (x(2, 3, 4), x(2, 4, 5))]
    strict_batches = [*batches, (x(3, 4), x(4, 5)), (x(2, 3, 4), x(4, 5))]
    vectors = [(x(3), x(4)), (x(3), x(3, dtype=torch.float64)), (x(3, 3), x(3))]
    rows = [(x(3, 4), x(5)), (x(3, 4), x(4, dtype=torch.float64)), (x(4), x(4))]
    double_out = {"out": x(3, 6, dtype=torch.float64)}
    ops: dict[str, tuple[Callable, list[tuple]]] = {
        "matmul": (torch.matmul, [*matrices, *batches, (x(), x(2, 2))]),
        "__rmatmul__": (lambda a, b: b.__rmatmul__(a), [*matrices, *batches]),
        "mm": (torch.mm, strict_matrices),
        "bmm": (torch.bmm, strict_batches),
        "addmm": (torch.addmm, [(x(3, 6), *pair) for pair in strict_matrices]),
        "baddbmm": (torch.baddbmm, [(x(2, 3, 6), *pair) for pair in strict_batches]),
        "addbmm": (torch.addbmm, [(x(3, 6), *pair) for pair in strict_batches]),
        "nn.functional.linear": (
            lambda a, b, *bias: torch.nn.functional.linear(a, b.t(), *bias),
            [*matrices, (x(3, 4), x(4, 6), x(5))],
        ),
        "einsum": (lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), [*matrices, *batches]),
        "addmv": (torch.addmv, [(x(3), *pair) for pair in rows]),
        "mv": (torch.mv, rows),
        "dot": (torch.dot, vectors),
    }
    function, arguments = ops[name]
    calls = [partial(function, *args) for args in arguments]
    extra: dict[str, list[Callable[[], Tensor]]] = {
        "mm": [
            lambda: torch.mm(x(3, 4), x(4, 6), **double_out),
        ],
        "addmm": [
            lambda: torch.addmm(x(5), x(3, 4), x(4, 6)),
            lambda: torch.addmm(x(3, 6), x(3, 4), x(4, 6), **double_out),
            lambda: torch.addmm(x(3, 6), x(3, 4), x(4, 6), alpha=1j),
            lambda: x(6).addmm_(x(3, 4), x(4, 6)),
        ],
        "baddbmm": [
            lambda: torch.baddbmm(x(5), x(2, 3, 4), x(2, 4, 6)),
            lambda: torch.baddbmm(x(6), x(2, 3, 4), x(2, 4, 6), beta=1j),
            lambda: x(3, 6).baddbmm_(x(2, 3, 4), x(2, 4, 6)),
        ],
    }
    return [*calls, *extra.get(name, [])]
