"""``attention --backward``: forward and backward beside PyTorch's, with errors of all gradients.

PyTorch's side is ``scaled_dot_product_attention`` as a program calls it: its memory-efficient
kernels, and products for groups of heads. Errors are those of one head of keys against float64, in
the units of attention_gradients.py.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import attention_errors, tables
from benchmarks.attention_cases import (
    HEADLINES,
    Case,
    Tensors,
    by_case,
    make_pool,
    measure_all,
)
from benchmarks.attention_errors import GRADIENTS
from benchmarks.attention_gradients import gradients_in_float64
from benchmarks.session import Session
from benchmarks.sides import Side
from benchmarks.timing import compare

COMMAND = "attention-backward"  # of the record
KERNELS = ("split", "auto")
FLOPS = 3.5  # five products in the backward, two in the forward
CASES = (
    *(Case(*sizes, kind) for sizes in HEADLINES for kind in ("plain", "causal", "mask")),
    Case(64, 12, 32, 64),
    *(Case(1, 16, rows, 64, "causal") for rows in (512, 2048)),
    Case(8, 12, 197, 64),
    Case(8, 8, 256, 32),
    Case(4, 12, 1024, 96),
    Case(8, 8, 1024, 40, "cross", 77),
    Case(4, 32, 1024, 128, "gqa"),
    Case(1, 16, 2048, 64, "gqa"),
)
SPEED = "Speed relative to PyTorch, forward and backward"
LEGEND = (
    "Forward and backward together, with the gradients of queries, keys and values; TFLOP/s count "
    "seven products. Errors are max / mean, in units of 2⁻²⁴ of what magnitudes would give: "
    "Pᵀ|dO| for dV, |dS||K| for dQ and |dS|ᵀ|Q| for dK, with |dS| = P∘(|dO||V|ᵀ + Σ|dO||O|). "
    "`gqa` is PyTorch's call with `enable_gqa=True`, which it computes by products."
)


def require_kernels(session: Session) -> None:
    """Raises RuntimeError unless the kernels run on the session's device."""
    if not session.on_gpu or torch.cuda.get_device_capability() != (9, 0):
        raise RuntimeError("a GPU of compute capability 9.0 is needed: no other has the kernels")


def _gradients(out: Tensor, x: Tensors) -> tuple[Tensor, ...]:
    return torch.autograd.grad(out, (x.a, x.key, x.value), x.grad)


def our_side(case: Case, kernel: str) -> Side:
    """Returns the side of ``sgemm::attention`` and its gradients."""
    causal, op = case.kind == "causal", torch.ops.sgemm.attention.default

    def run(x: Tensors) -> tuple[Tensor, ...]:
        return _gradients(op(x.a, x.key, x.value, x.mask, causal, None, True, kernel)[0], x)

    return Side(kernel, run)


def torch_side(case: Case) -> Side:
    """Returns the side of PyTorch's function."""
    options = {"is_causal": case.kind == "causal", "enable_gqa": case.kind == "gqa"}

    def run(x: Tensors) -> tuple[Tensor, ...]:
        return _gradients(scaled_dot_product_attention(x.a, x.key, x.value, x.mask, **options), x)

    return Side("torch", run)


def peak_bytes(run: Callable[[], object]) -> int:
    """Returns the most bytes that ``run`` asks for at once on the current GPU.

    That is ``max_memory_allocated`` without what the allocator rounds up, up to 1 MiB a tensor.
    """
    gc.collect()  # what an earlier call has left would be freed meanwhile
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    run()
    return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before


class Checked:
    """The last head of keys in the last batch, and its queries, in float64."""

    def __init__(self, case: Case, x: Tensors) -> None:
        self._x, self._shared = x, x.a.shape[1] // x.key.shape[1]
        parts = self._last(x.a, x.key, x.value)
        grad = x.grad[-1:, -self._shared :]
        causal = case.kind == "causal"
        self._exact = gradients_in_float64(grad, *parts, x.mask, causal)

    def _last(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        parts = query[-1:, -self._shared :], key[-1:, -1:], value[-1:, -1:]
        return [part.detach() for part in parts]

    def errors(self, side: Side) -> dict[str, float]:
        return attention_errors.gradient_errors(self._last(*side.run(self._x)), self._exact)


def measure(case: Case, session: Session) -> list[dict]:
    """Returns a row for each of our kernels, with PyTorch's figures of the same turns."""
    pool = make_pool(case, session.device, session.seed, backward=True)
    theirs, ours = torch_side(case), [our_side(case, kernel) for kernel in KERNELS]
    flops = FLOPS * case.flops
    about = asdict(case) | {"label": case.label, "flops": flops}
    checked = Checked(case, pool.sets[0])
    of_theirs = {f"torch_{key}": value for key, value in checked.errors(theirs).items()}
    of_theirs["torch_peak_bytes"] = peak_bytes(partial(theirs.run, pool.sets[0]))
    mark = session.sampler.mark()
    timings = compare([theirs, *ours], pool, session.options)
    found = []
    for side, timing in zip(ours, timings[1:], strict=True):
        row = about | {
            "kernel": side.name,
            "kernel_us": 1e6 * timing.typical,
            "kernel_us_p10": 1e6 * timing.quantile(0.1),
            "kernel_us_p90": 1e6 * timing.quantile(0.9),
            "kernel_tflops": flops / timing.typical * 1e-12,
            "torch_us": 1e6 * timings[0].typical,
            "torch_tflops": flops / timings[0].typical * 1e-12,
            "percent_of_torch": 100 * timings[0].typical / timing.typical,
        }
        row |= checked.errors(side) | of_theirs
        row["kernel_peak_bytes"] = peak_bytes(partial(side.run, pool.sets[0]))
        found.append(row | attention_errors.judged(row) | session.sampler.since(mark))
    return found


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and prints the tables."""
    session = Session(argparse.Namespace(**vars(args) | {"command": COMMAND}))
    require_kernels(session)
    cases = [case for case in CASES if not args.small or FLOPS * case.flops < 1e10]
    found = measure_all(session, cases, measure, attention_errors.measure_gradients)
    tables.show(SPEED, *cells(session.record))
    for line in notes(session.record):
        tables.say(line)
    tables.show("Errors of gradients: max / mean", *attention_errors.gradient_cells(found))
    _, status = session.finish()
    return status | tables.report_failures(found)


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes one line per case."""
    columns = ["B x H x L x D", "PyTorch", "split", "TFLOP/s", "split is", "auto is"]
    columns += [f"{name}{side}" for name in GRADIENTS.values() for side in ("", ", PyTorch's")]
    ratios_of_memory = memory(found)
    if ratios_of_memory:
        columns.append("memory")
    lines = []
    for label, row in by_case(found).items():
        split, auto = row["split"], row["auto"]
        times = tables.time(split["torch_us"]), tables.time(split["kernel_us"])
        ratios = (f"{r['percent_of_torch'] / 100:.2f}" for r in (split, auto))
        of_gradients = (
            tables.errors(split, f"{side}{name}_") for name in GRADIENTS for side in ("", "torch_")
        )
        line = [label, *times, tables.digits(split["kernel_tflops"]), *ratios, *of_gradients]
        if ratios_of_memory:
            line.append(f"{ratios_of_memory[label]:.2f}")
        lines.append(line)
    return columns, lines


def memory(found: dict) -> dict[str, float]:
    """Returns split's peak memory relative to PyTorch's, by case; nothing for older records."""
    return {
        label: row["split"]["kernel_peak_bytes"] / row["split"]["torch_peak_bytes"]
        for label, row in by_case(found).items()
        if "kernel_peak_bytes" in row["split"]
    }


def notes(found: dict) -> list[str]:
    """Returns a line on memory, if the record has it."""
    ratios = memory(found)
    if not ratios:
        return []
    largest = max(ratios, key=ratios.__getitem__)
    return [
        "Memory is split's peak relative to PyTorch's: output, gradients and workspaces of "
        f"forward and backward, without the operands; at most {ratios[largest]:.2f} ({largest})."
    ]
