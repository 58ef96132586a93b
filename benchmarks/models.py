"""``models``: whole models, torch alone beside torch under enable(): time, products, errors."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

import torch_sgemm
from benchmarks import plots, record, steps, tables
from benchmarks.errors import Errors, in_units_of_rms
from benchmarks.session import Session
from benchmarks.workloads import ATTENTIONS, DEFAULT, WORKLOADS, Task, float32_convolutions

Scope = Callable[[], AbstractContextManager]

DEFAULTS = {"rounds": 20, "budget": 4.0}  # steps are long: 1 s would hold only a few


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model, --attention, --kernel and --small."""
    parser.add_argument(
        "--model",
        nargs="+",
        choices=tuple(WORKLOADS),
        default=DEFAULT,
        help=f"default: {' '.join(DEFAULT)}",
    )
    parser.add_argument(
        "--attention",
        choices=ATTENTIONS,
        default="eager",
        help="products of its own (eager), or torch's fused kernel (sdpa)",
    )
    parser.add_argument("--kernel", default="auto", help="a family or row (default: auto)")
    parser.add_argument(
        "--small", action="store_true", help="tiny models; what is measured without a GPU"
    )


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the table."""
    session = Session(args, steps.describe)
    torch_sgemm.disable()  # the environment may have enabled it
    small = args.small or not session.on_gpu
    about = {"attention": args.attention, "kernel": args.kernel, "small": small}
    session.record["options"] |= about
    ours = partial(torch_sgemm.enabled, args.kernel, devices=(session.device.type,))
    with ours():  # an unknown kernel is an error before anything runs
        pass
    results = session.record["rows"]
    with session.progress(len(args.model)) as step, float32_convolutions():
        for name in args.model:
            step(name)
            what = WORKLOADS[name].what if not small else f"{name}, tiny"
            torch.manual_seed(session.seed)
            task = WORKLOADS[name].make(session.device, small, args.attention)
            about = {"model": name, "label": what, "kernel": args.kernel}
            results.append(about | measure(task, ours, session))
            del task
            release(session.device)
    columns, rows = cells(session.record)
    tables.show("A step of whole models", columns, rows)
    path, status = session.finish()
    tables.say(f"Chart: {plots.models(session.record, record.chart_path(path))}")
    session.show_recorded(show_recorded)
    return status


def measure(task: Task, ours: Scope, session: Session) -> dict:
    """Returns both sides' figures, or "failed" if a side raises. Times are in microseconds."""
    try:
        figures = checked(task, ours)
        step = task.step()
        figures |= counted(step, ours)
        mark = session.sampler.mark()
        ways = [steps.Way(step), steps.Way(step, ours)]
        theirs, mine = steps.compare(ways, session.device, session.options)
    except RuntimeError as failure:
        return {"failed": str(failure).splitlines()[0], "correct": False}
    for side, timing in (("step", mine), ("torch_step", theirs)):
        figures |= {
            f"{side}_us": 1e6 * timing.typical,
            f"{side}_us_p10": 1e6 * timing.quantile(0.1),
            f"{side}_us_p90": 1e6 * timing.quantile(0.9),
            f"{side}_us_best": 1e6 * timing.best,
            f"{side}s": len(timing.seconds),
        }
    figures["percent_of_torch"] = 100 * theirs.typical / mine.typical
    return figures | session.sampler.since(mark)


def counted(step: Callable[[], None], ours: Scope) -> dict:
    """Counts a step's products: those taken here, and those that were not, with reasons."""
    with ours():
        torch_sgemm.reset_stats()
        step()
        stats = torch_sgemm.stats()
    fallbacks = {f"{name}: {reason}": n for (name, reason), n in stats.fallbacks.items()}
    products = sum(stats.hits.values()) + sum(fallbacks.values())
    return {"products": products, "hits": stats.hits, "fallbacks": fallbacks}


def checked(task: Task, ours: Scope) -> dict:
    """Returns both sides' errors against float64, on as much of the batch as memory allows."""
    full = batch = len(task.inputs)
    while batch:
        try:
            return errors(task.part(batch), ours) | {"error_batch": batch, "batch": full}
        except torch.OutOfMemoryError:
            pass
        release(task.inputs.device)
        batch //= 2
    raise RuntimeError("the float64 run does not fit into memory")


def errors(task: Task, ours: Scope) -> dict:
    """Returns errors in units of 2^-24 of the root mean square of the float64 output, or gradients.

    A result is correct if the output's largest error is at most twice torch's, or 8 units, and the
    gradients' mean error at most twice torch's, or a unit. The gradients' largest error is often
    that of one bias, in which either side may be exact by luck.
    """
    theirs = task.evaluate()
    with ours():
        mine = task.evaluate()
    exact = task.double().evaluate()
    figures: dict = {"correct": True}

    def compared(prefix: str, *tensors: list[Tensor]) -> list[Errors]:
        found = [in_units_of_rms(side, tensors[-1]) for side in tensors[:-1]]
        for side, (largest, mean) in zip((prefix, f"torch_{prefix}"), found, strict=True):
            figures.update({f"{side}error_max": largest, f"{side}error_mean": mean})
        return found

    def held(what: str, error: float, bound: float) -> None:
        if not error <= bound:  # NaN too
            figures["correct"] = False
            figures["wrong"] = f"{what}: {error:.3g} units, {bound:.3g} allowed"

    output, torchs = compared("", [mine[0]], [theirs[0]], [exact[0]])
    held("largest error of the output", output.max, max(8.0, 2 * torchs.max))
    if task.training:
        gradients = (list(side[1].values()) for side in (mine, theirs, exact))
        gradient, torchs = compared("gradient_", *gradients)
        held("mean error of the gradients", gradient.mean, max(1.0, 2 * torchs.mean))
    return figures


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per model, to print or for Markdown."""
    columns = ["model", "torch", "torch_sgemm", "ratio", "products", "here"]
    columns += ["errors of the output", "torch's", "of the gradients", "torch's"]
    rows = []
    for r in found["rows"]:
        if "failed" in r:
            rows.append([r["label"], "failed", *[tables.NONE] * (len(columns) - 2)])
            continue
        products = ", ".join(f"{n} {name}" for name, n in r["hits"].items())
        rows.append(
            [
                r["label"],
                _time(r, "torch_step"),
                _time(r, "step"),
                f"{r['percent_of_torch'] / 100:.2f}",
                str(r["products"]),
                products,
                f"{tables.errors(r)} {tables.verdict(r)}".strip(),
                tables.errors(r, "torch_"),
                tables.errors(r, "gradient_"),
                tables.errors(r, "torch_gradient_"),
            ]
        )
    return columns, rows


def notes(found: dict) -> list[str]:
    """Returns notes below the table: products that PyTorch took, smaller batches for the errors."""
    lines = []
    for r in found["rows"]:
        if r.get("fallbacks"):
            why = ", ".join(f"{n} {reason}" for reason, n in r["fallbacks"].items())
            lines.append(f"{r['label']}: to PyTorch's own kernel went {why}.")
        if r.get("error_batch") != r.get("batch"):
            part = f"the first {r['error_batch']} of {r['batch']}"
            lines.append(f"{r['label']}: errors on {part}, for lack of memory.")
    return lines


def _time(row: dict, side: str) -> str:
    spread = (tables.digits(row[f"{side}_us_{p}"] / 1e3) for p in ("p10", "p90"))
    return f"{tables.digits(row[f'{side}_us'] / 1e3)} ms ({' … '.join(spread)})"


def release(device: torch.device) -> None:
    """Frees what nothing refers to."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    columns, rows = cells(found)
    tables.show("\nRecorded on a GPU: a step of whole models", columns, rows)
