"""``logprobs``: tokens per second of a language model's log-probabilities, batch-invariant or not.

One model computes the log-probability of each token, given those before it, for one sequence and
for a batch. All ways to multiply are timed by turns. Each sequence of a sample is also computed
alone. A way is batch-invariant if its bits are then those of the batch.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor

import torch_sgemm
from benchmarks import peers, steps, tables
from benchmarks.errors import good_up_to, in_units_of_rms
from benchmarks.invariant import AUTO, KERNEL, PACKED, TRITON
from benchmarks.invariant import WAYS as PRODUCTS
from benchmarks.models import Scope, release
from benchmarks.peer_builds import UnavailableError
from benchmarks.session import Session
from benchmarks.workloads import Task, pythia

BATCHES, LENGTH = (1, 64), 128  # sequences; tokens of a sequence
SMALL_BATCHES, SMALL_LENGTH = (1, 4), 8
SAMPLE = 16  # sequences that are also computed alone, at most
TORCH = "torch"
TITLES = {TORCH: "torch"} | {name: PRODUCTS[name][0] for name in (AUTO, KERNEL, PACKED, TRITON)}
OURS, INVARIANT = (AUTO, KERNEL, PACKED), (KERNEL, PACKED)
GRADIENTS, COMPILED, COMPILED_ALONE = "gradients", "compiled", "compiled_alone"
BITS = {
    GRADIENTS: "with and without gradients",
    COMPILED: "compiled and eager",
    COMPILED_ALONE: "compiled, a sequence alone and in the batch",
}
LEGEND = (
    "Speed relative to torch is in parentheses. A step is an eager call of the model without "
    "gradients, whose wall-clock time includes the host's work. Attention is PyTorch's "
    "`scaled_dot_product_attention`: this package's kernel may take it in this package's ways, and "
    "PyTorch's takes it with Triton. torch and `auto` are not batch-invariant.\n\n"
    "Errors are those of the largest batch against float64, max / mean, in units of 2⁻²⁴ of the "
    "root mean square of the log-probabilities."
)
DEFAULTS = {"rounds": 20, "budget": 12.0}  # a round has five steps

Multiply = Callable[[Tensor, Tensor, Tensor], None]  # writes a @ b to its third argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --no-compile and --small."""
    parser.add_argument(
        "--no-compile", action="store_true", help="without torch.compile, which takes minutes"
    )
    parser.add_argument(
        "--small", action="store_true", help="a tiny model; what is measured without a GPU"
    )


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record, prints the table."""
    session = Session(args, steps.describe)
    torch_sgemm.disable()  # the environment may have enabled it
    small = args.small or not session.on_gpu
    model = "Pythia-410M, tiny" if small else "Pythia-410M"
    batches, length = (SMALL_BATCHES, SMALL_LENGTH) if small else (BATCHES, LENGTH)
    session.record["options"] |= {"small": small, "length": length}
    missing: list[str] = []
    with session.progress(len(batches) + 2) as step:
        step("float64")
        torch.manual_seed(session.seed)
        task = pythia(session.device, small, "sdpa", (max(batches), length))
        exact = task.double().evaluate()[0]
        release(session.device)
        ways = ways_of(task, session.device, missing)
        for batch in batches:
            step(f"batches of {batch}")
            about = {"model": model, "batch": batch, "length": length}
            rows = measure(ways, exact[:batch], session)
            session.record["rows"] += [about | {"label": f"batch {batch}"} | row for row in rows]
        step("gradients, torch.compile")
        bits = same_bits(*ways[KERNEL], missing, not args.no_compile)
        session.record |= {"same_bits": bits, "missing": missing}
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def ways_of(task: Task, device: torch.device, missing: list[str]) -> dict[str, tuple[Task, Scope]]:
    """Returns each way's task and the context around it; appends the ways that aren't here."""
    enabled = partial(torch_sgemm.enabled, devices=(device.type,))
    invariant = partial(enabled, batch_invariant=True)
    model = copy.deepcopy(task.model).requires_grad_(False)
    torch_sgemm.convert(model, pack=True, batch_invariant=True)
    ways: dict[str, tuple[Task, Scope]] = {
        TORCH: (task, nullcontext),
        AUTO: (task, partial(enabled, batch_invariant=False)),
        KERNEL: (task, invariant),
        PACKED: (Task(model, task.inputs, task.output), invariant),
    }
    try:
        multiply = peers.imported("benchmarks.peer_triton").invariant_mm
    except UnavailableError as reason:
        missing.append(f"{TITLES[TRITON]}: {reason}")
    else:
        ways[TRITON] = task, partial(products_by, multiply, "CUDA")
    return ways


@contextmanager
def products_by(multiply: Multiply, key: str) -> Iterator[None]:
    """Overrides mm and addmm, which nn.Linear calls, at a dispatch key by ``multiply``."""

    def mm(a: Tensor, b: Tensor) -> Tensor:
        out = a.new_empty(a.shape[0], b.shape[1])
        multiply(a, b, out)
        return out

    def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        product = mm(a, b)
        return (product if alpha == 1 else product.mul_(alpha)).add_(c, alpha=beta)

    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():  # PyTorch warns of the first kernel that is overridden
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
            library.impl("mm", mm, key)
            library.impl("addmm", addmm, key)
        yield


def measure(ways: dict[str, tuple[Task, Scope]], exact: Tensor, session: Session) -> list[dict]:
    """Returns a row per way for a batch as large as that of ``exact``. Times are microseconds."""
    batch = len(exact)
    parts = {name: (task.part(batch), scope) for name, (task, scope) in ways.items()}
    rows = {name: checked(*part, exact) for name, part in parts.items()}
    mark = session.sampler.mark()
    taken = [steps.Way(task.step(), scope) for task, scope in parts.values()]
    timings = steps.compare(taken, session.device, session.options)
    clocks = session.sampler.since(mark)
    tokens, torch_s = ways[TORCH][0].inputs[:batch].numel(), timings[0].typical
    for (name, row), timing in zip(rows.items(), timings, strict=True):
        row |= {"kernel": name, "way": TITLES[name], "steps": len(timing.seconds)}
        row |= {"step_us": 1e6 * timing.typical, "tokens_per_s": tokens / timing.typical}
        for percent in (10, 90):
            row[f"step_us_p{percent}"] = 1e6 * timing.quantile(percent / 100)
            row[f"tokens_per_s_p{percent}"] = tokens / timing.quantile(1 - percent / 100)
        row |= {"percent_of_torch": 100 * torch_s / timing.typical} | clocks
        if name in OURS:
            judge(row, rows[TORCH]["error_max"])
    return list(rows.values())


def checked(task: Task, scope: Scope, exact: Tensor) -> dict:
    """Returns a way's errors, and how many sequences have other bits alone."""
    with scope():
        batch = task.evaluate()[0]
        sample = sample_of(len(batch))
        differing = others_alone(task, batch, sample)
    error = in_units_of_rms([batch], [exact])
    figures = {"error_max": error.max, "error_mean": error.mean}
    return figures | {"sample": len(sample), "differing": differing}


def sample_of(batch: int) -> range:
    """Returns the positions of sequences that lie evenly in a batch, at most SAMPLE."""
    return range(0, batch, -(-batch // SAMPLE))


def others_alone(task: Task, batch: Tensor, sample: range) -> int:
    """Returns how many sequences of the sample have other bits alone than in the batch."""
    differing = 0
    for at in sample:
        alone = Task(task.model, task.inputs[at : at + 1], task.output).evaluate()[0]
        differing += not torch.equal(alone, batch[at : at + 1])  # a NaN differs
    return differing


def judge(row: dict, torch_error_max: float) -> None:
    """Sets "correct", and "wrong" if a row isn't: errors, and the bits of batch-invariant ways."""
    most = good_up_to(torch_error_max)
    row["correct"] = True
    if not row["error_max"] <= most:  # NaN too
        row |= {"correct": False, "wrong": f"error {row['error_max']:.3g}, {most:.3g} allowed"}
    elif row["kernel"] in INVARIANT and row["differing"]:
        why = f"{row['differing']} of {row['sample']} sequences have other bits alone"
        row |= {"correct": False, "wrong": why}


def same_bits(task: Task, scope: Scope, missing: list[str], compiles: bool) -> dict[str, bool]:
    """Returns whether the bits of a few sequences stay the same, by the keys of BITS.

    Appends the reason to ``missing`` if the model isn't compiled.
    """
    from torch._dynamo.exc import TorchDynamoException

    few = task.part(SAMPLE)
    with scope():
        eager = few.evaluate()[0]
        recorded = few.output(few.model, few.inputs)
        found = {GRADIENTS: recorded.requires_grad and torch.equal(recorded.detach(), eager)}
        del recorded
        if not compiles:
            missing.append("torch.compile: --no-compile")
            return found
        few.model = torch.compile(few.model)
        try:
            compiled = few.evaluate()[0]
            found[COMPILED] = torch.equal(compiled, eager)
            found[COMPILED_ALONE] = others_alone(few, compiled, sample_of(len(compiled))) == 0
        except TorchDynamoException as failure:
            reason = str(failure).strip().splitlines()[0]
            missing.append(f"torch.compile: {type(failure).__name__}: {reason}")
    return found


def show(found: dict) -> None:
    """Prints the table, the notes and what is missing."""
    tables.show(f"Log-probabilities: {summary(found)}", *cells(found))
    for line in notes(found):
        tables.say(line)
    for line in found["missing"]:
        tables.console.print(f"Not measured: {line}", markup=False)


def summary(found: dict) -> str:
    """Returns the model and the unit of the table."""
    model = found["rows"][0]["model"]
    return f"{model}, sequences of {found['options']['length']} tokens: tokens per second."


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per way, to print or for Markdown."""
    batches = list(dict.fromkeys(r["batch"] for r in found["rows"]))
    titles = [f"{n} sequences" if n > 1 else "1 sequence" for n in batches]
    lines = []
    for way in dict.fromkeys(r["way"] for r in found["rows"]):
        rows = {r["batch"]: r for r in found["rows"] if r["way"] == way}
        last = rows[batches[-1]]
        wrong = "" if all(r.get("correct", True) for r in rows.values()) else " WRONG"
        differing = f"{last['differing']} of {last['sample']}{wrong}"
        speeds = [_speed(rows[batch]) for batch in batches]
        lines.append([way, *speeds, tables.errors(last), differing])
    return ["by", *titles, "errors", "sequences with other bits alone"], lines


def _speed(row: dict) -> str:
    return f"{row['tokens_per_s']:.0f} ({row['percent_of_torch'] / 100:.2f})"


def notes(found: dict) -> list[str]:
    """Returns sentences on the spread of times, and on gradients and torch.compile."""
    spread = max((r["step_us_p90"] - r["step_us_p10"]) / r["step_us"] for r in found["rows"])
    bits = (f"{BITS[key]}: {'yes' if same else 'no'}" for key, same in found["same_bits"].items())
    return [
        "A step's time is the median. From the fastest tenth of a way's steps to the slowest is "
        f"{tables.percent(100 * spread)} of the median at most.",
        f"Same bits of the batch-invariant model, unpacked: {'; '.join(bits)}.",
    ]
