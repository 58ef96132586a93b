"""Gradients of attention for tests: ways to compute them, and how exact they have to be.

``reference_kernel`` lets the CPU take the way of GPUs: ``sgemm::_attention_gradients`` in float64.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import torch_sgemm
from benchmarks.attention_gradients import NAMES, Reference, gradients_in_float64
from torch_sgemm.torch_ops import attention, attention_backward
from torch_sgemm.torch_ops.library import NAMESPACE, operators

SCHEMA = (
    "_attention_gradients(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "Tensor out, Tensor logsumexp, bool is_causal, float scale, bool wants_query, "
    "bool wants_keys, bool wants_mask) -> (Tensor, Tensor, Tensor, Tensor)"
)
UNITS = 64


class Way(NamedTuple):
    """A device, and the kernel that is asked for there."""

    device: str
    kernel: str


calls: list[tuple[bool, bool, bool]] = []  # of the reference: which gradients were asked for


def _reference(
    grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale, *wanted: bool
) -> tuple[Tensor, ...]:
    tensors = (grad, query, key, value, out)
    assert all(x.dtype == torch.float32 and x.stride(3) == 1 for x in tensors)
    assert grad.shape == out.shape and logsumexp.shape[2] == -(-query.shape[2] // 32) * 32
    assert attn_mask is None or attn_mask.shape == (*query.shape[:3], key.shape[2])
    calls.append(wanted)
    found = gradients_in_float64(grad, query, key, value, attn_mask, is_causal, scale)
    wants_query, wants_keys, wants_mask = wanted
    has = wants_query, wants_keys, wants_keys, wants_mask
    return tuple(
        found[name].exact.float() if wants else grad.new_empty(0)
        for name, wants in zip(NAMES, has, strict=True)
    )


@functools.cache
def _register() -> torch.library.Library:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    if not hasattr(operators, "_attention_gradients"):
        library.define(SCHEMA)
    library.impl("_attention_gradients", _reference, "CPU")
    return library


def _forward(call: attention.Call, with_logsumexp: bool = True) -> tuple[Tensor, Tensor]:
    wide = (x if x is None or x.dtype == torch.bool else x.double() for x in call[:4])
    out, logsumexp = attention.attention_by_products(attention.Call(*wide, *call[4:]))
    return out.float(), logsumexp.float()


def reference_kernel(monkeypatch: pytest.MonkeyPatch) -> Way:
    """Lets kernel="split" run on the CPU, in float64."""
    _register()
    calls.clear()
    monkeypatch.setattr(attention, "refusal", lambda call: ("", ""))
    monkeypatch.setattr(attention, "split_attention", _forward)
    monkeypatch.setattr(attention, "is_faster", lambda call: True)
    monkeypatch.setattr(attention_backward, "gradients_are_faster", lambda call: True)
    return Way("cpu", "split")


WAYS = ["pytorch", "reference", pytest.param("kernel", marks=pytest.mark.gpu)]


def way_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Way:
    """PyTorch's products on the CPU, the reference there, or the kernels on a GPU."""
    if name == "reference":
        return reference_kernel(monkeypatch)
    return Way("cpu", "auto") if name == "pytorch" else Way("cuda", "split")


def assert_exact(found: Tensor, expected: Reference, units: float = UNITS) -> None:
    """Compares in units of 2^-24 of each element's magnitude, at least 2^-12 of the largest."""
    exact, magnitude = expected
    assert found.dtype == torch.float32 and found.shape == exact.shape
    if not exact.numel():
        return
    least = 2.0**-12 * magnitude.amax()
    error = (found.double() - exact).abs() / (2.0**-24 * (magnitude + least)).clamp(min=1e-300)
    assert bool((error <= units).all()), f"off by {float(error.max()):.3g} units"


def gradients(
    way: Way, grad: Tensor | None, *tensors: Tensor | None, wanted: str = "qkvm", **options
) -> dict[str, Tensor]:
    """Returns gradients by autograd of those tensors whose letter is in ``wanted``; by names."""
    leaves, args = {}, []
    for name, x in zip(NAMES, (*tensors, None), strict=False):
        has = x is not None and x.dtype != torch.bool and name[0] in wanted
        args.append(x.detach().requires_grad_() if has else x)
        if has:
            leaves[name] = args[-1]
    out = torch_sgemm.attention(*args, enable_gqa=True, kernel=way.kernel, **options)
    grad = torch.ones((), device=out.device).expand(out.shape) if grad is None else grad
    return dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad), strict=True))


def launches(way: Way, *tensors: Tensor, **options) -> dict[str, int]:
    """Returns how often each kernel that computes gradients was launched, by its whole name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        gradients(way, *tensors, **options)
        torch.cuda.synchronize()
    found = {event.key: event.count for event in profile.key_averages()}
    found = {name: count for name, count in found.items() if "differentiate" in name}
    assert found
    return found


def check(way: Way, grad: Tensor, *tensors: Tensor | None, units: float = UNITS, **options) -> None:
    """Compares all gradients with those in float64."""
    found = gradients(way, grad, *tensors, **options)
    expected = gradients_in_float64(grad, *tensors, **options)
    assert set(found) == set(expected)
    for name, x in found.items():
        assert_exact(x, expected[name], units)
