"""``attention``: scaled_dot_product_attention of float32 beside PyTorch's memory-efficient kernel.

Each case runs by our kernels ("split"), as "auto" chooses, and by PyTorch's kernel, all by turns.
Errors are those of one head against float64, in units of 2^-24 of P |V|. --backward measures
forward and backward together instead.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

import torch
from torch import Tensor

from benchmarks import attention_backward, attention_errors, tables
from benchmarks.attention_cases import CASES, Case, Tensors, by_case, make_pool, measure_all
from benchmarks.attention_errors import Inputs
from benchmarks.errors import Errors, good_up_to, in_units
from benchmarks.problems import Pool
from benchmarks.session import Session
from benchmarks.sides import Side
from benchmarks.timing import compare

KERNELS = ("split", "auto")
SPEED = "Speed relative to PyTorch's kernel"
LEGEND = (
    "`mask` has an additive mask of L x S, which batch and heads share; `cross` has keys of "
    "another length, B x H x L x S x D; `gqa` has heads in groups of four. PyTorch's is its "
    "memory-efficient kernel. For `gqa` keys and values are repeated before it is timed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --small and --backward."""
    parser.add_argument("--small", action="store_true", help="only calls below 10 GFLOP")
    parser.add_argument("--backward", action="store_true", help="forward and backward together")


def our_side(case: Case, kernel: str) -> Side:
    """Returns the side of ``sgemm::attention``."""
    causal, op = case.kind == "causal", torch.ops.sgemm.attention.default
    return Side(kernel, lambda x: op(x.a, x.key, x.value, x.mask, causal, None, True, kernel)[0])


def torch_side(case: Case, pool: Pool) -> Side:
    """Returns the side of PyTorch's memory-efficient kernel, which reads whole heads of keys."""
    op = torch.ops.aten._scaled_dot_product_efficient_attention.default
    causal, repeated = case.kind == "causal", {}
    for x in pool.sets:
        by = x.a.shape[1] // x.key.shape[1]
        mask = None if x.mask is None else x.mask.expand(*x.a.shape[:3], x.key.shape[2])
        keys, values = (part.repeat_interleave(by, 1) for part in (x.key, x.value))
        repeated[id(x)] = keys, values, mask

    def run(x: Tensors) -> Tensor:
        return op(x.a, *repeated[id(x)], False, 0.0, causal)[0]

    return Side("torch", run)


def errors(case: Case, side: Side, x: Tensors) -> Errors:
    """Returns the errors of the last head of the last batch."""
    last = (part[-1, -1] for part in (x.a, x.key, x.value))
    exact = attention_errors.in_float64(Inputs(*last, x.mask, case.kind == "causal"))
    return in_units(side.run(x)[-1, -1], *exact)


def measure(case: Case, session: Session) -> list[dict]:
    """Returns a row for each of our kernels, with PyTorch's figures of the same turns."""
    pool = make_pool(case, session.device, session.seed)
    theirs, ours = torch_side(case, pool), [our_side(case, kernel) for kernel in KERNELS]
    about = asdict(case) | {"label": case.label, "flops": case.flops}
    their_errors = errors(case, theirs, pool.sets[0])
    mark = session.sampler.mark()
    timings = compare([theirs, *ours], pool, session.options)
    found = []
    for side, timing in zip(ours, timings[1:], strict=True):
        of_ours = errors(case, side, pool.sets[0])
        found.append(about | {
            "kernel": side.name,
            "kernel_us": 1e6 * timing.typical,
            "kernel_us_p10": 1e6 * timing.quantile(0.1),
            "kernel_us_p90": 1e6 * timing.quantile(0.9),
            "kernel_tflops": case.flops / timing.typical * 1e-12,
            "torch_us": 1e6 * timings[0].typical,
            "torch_tflops": case.flops / timings[0].typical * 1e-12,
            "percent_of_torch": 100 * timings[0].typical / timing.typical,
            "error_max": of_ours.max,
            "error_mean": of_ours.mean,
            "torch_error_max": their_errors.max,
            "torch_error_mean": their_errors.mean,
            "error_bound": (most := good_up_to(their_errors.max)),
            "correct": of_ours.max <= most,  # False for NaN
        } | session.sampler.since(mark))  # fmt: skip
    return found


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and prints the table."""
    if args.backward:
        return attention_backward.run(args)
    session = Session(args)
    attention_backward.require_kernels(session)
    cases = [case for case in CASES if not args.small or case.flops < 1e10]
    found = measure_all(session, cases, measure, attention_errors.measure)
    show(session.record)
    _, status = session.finish()
    return status | tables.report_failures(found)


def show(found: dict) -> None:
    """Prints the tables."""
    tables.show(SPEED, *cells(found))
    tables.show("Errors: max / mean", *attention_errors.cells(found["errors"]))


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes one line per case."""
    columns = ["B x H x L x D", "PyTorch", "split", "TFLOP/s", "split is", "auto is",
               "error, max / mean", "PyTorch's"]  # fmt: skip
    lines = []
    for label, row in by_case(found).items():
        split, auto = row["split"], row["auto"]
        lines.append([
            label, tables.time(split["torch_us"]), tables.time(split["kernel_us"]),
            tables.digits(split["kernel_tflops"]), f"{split['percent_of_torch'] / 100:.2f}",
            f"{auto['percent_of_torch'] / 100:.2f}", tables.errors(split),
            tables.errors(split, "torch_"),
        ])  # fmt: skip
    return columns, lines
