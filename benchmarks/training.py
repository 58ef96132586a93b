"""``training``: loss curves of whole models, torch alone beside torch under enable().

All runs of a model start from the same weights and take the same batches. One run of torch alone is
in float64: the others' departure from its curve is their roundings. Those of torch's two float32
runs, of which one reverses the order of each batch, are the yardstick for torch_sgemm's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import torch_sgemm
from benchmarks import plots, record, tables
from benchmarks.models import Scope, release
from benchmarks.session import Session
from benchmarks.workloads import Task, float32_convolutions, gpt2, vit

Batch = tuple[Tensor, Tensor]  # inputs, targets
Batches = Callable[[Task, int, int], Iterator[Batch]]  # of a task, a seed and a number of steps

LEARNING_RATE = 1e-4
STATES, SUCCESSORS = 256, 4  # of the Markov chain that makes texts
IMAGES, CLASSES = 8, 10  # of a batch; of the images
PATTERN, RANDOM_LABELS = 0.3, 0.1  # a class's pattern beside noise of 1; share of random labels
MOST, FLOOR = 2.0, 2.0**-20  # times the yardstick; of the largest loss
GIB = 2.0**30
FLOAT64, OURS = "float64", "torch_sgemm"
YARDSTICKS = {"torch": "torch", "order": "torch, batches reversed"}
LABELS = {FLOAT64: "torch in float64", **YARDSTICKS, OURS: "torch under `enable()`"}
LEGEND = (
    "Differences are those of the loss from the float64 run in the same step. Reversing each batch "
    f"changes only roundings. A mean difference of up to {MOST:.0f} times the larger one of torch "
    "alone is accepted. Memory is the peak of all allocations."
)


def markov_texts(task: Task, seed: int, steps: int) -> Iterator[Batch]:
    """Yields texts of a fixed Markov chain: each token has four successors, equally likely."""
    gen = torch.Generator().manual_seed(seed)
    count, length = task.inputs.shape
    states = min(STATES, task.model.config.vocab_size)
    successors = torch.randint(states, (states, SUCCESSORS), generator=gen)
    choices = torch.randint(SUCCESSORS, (length, steps * count), generator=gen)
    tokens = [torch.randint(states, (steps * count,), generator=gen)]
    for choice in choices:
        tokens.append(successors[tokens[-1], choice])
    texts = torch.stack(tokens, 1).unflatten(0, (steps, count)).to(task.inputs.device)
    for text in texts:
        yield text[:, :-1], text[:, 1:]


def patterned_images(task: Task, seed: int, steps: int) -> Iterator[Batch]:
    """Yields noise with its class's pattern, and labels of which a tenth is random."""
    device, size = task.inputs.device, task.inputs.shape[1:]
    gen = torch.Generator(device).manual_seed(seed)
    options = {"device": device, "generator": gen}
    count = min(IMAGES, len(task.inputs))
    patterns = torch.randn(CLASSES, *size, **options)
    for _ in range(steps):
        classes, others = torch.randint(CLASSES, (2, count), **options)
        images = torch.randn(count, *size, **options) + PATTERN * patterns[classes]
        keeps = torch.rand(count, **options) >= RANDOM_LABELS
        yield images, torch.where(keeps, classes, others)


@dataclass(frozen=True)
class Training:
    """A model by name, and its batches. ``what``: model and batch, of the full size."""

    what: str
    make: Callable[[torch.device, bool], Task]
    batches: Batches


TRAININGS = {
    "gpt2-medium": Training(
        "GPT-2 medium, 4 x 512 tokens",
        partial(gpt2, attention="sdpa", shape=(4, 512)),
        markov_texts,
    ),
    "vit-l16": Training(
        f"ViT-L/16, {IMAGES} images of 224 x 224",
        partial(vit, attention="sdpa", training=True),
        patterned_images,
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --model, --steps, --kernel and --small."""
    names = tuple(TRAININGS)
    parser.add_argument("--model", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--steps", type=int, default=200, help="of each run (default: 200)")
    parser.add_argument("--kernel", default="auto", help="a family or row (default: auto)")
    parser.add_argument(
        "--small", action="store_true", help="tiny models; what is measured without a GPU"
    )


def run(args: argparse.Namespace) -> int:
    """Trains, saves the record and the chart, prints the table."""
    if args.steps < 1:
        raise RuntimeError(f"--steps {args.steps}: accepted: 1 and more")
    about = f"{args.steps} steps a run, runs one by one; AdamW, learning rate {LEARNING_RATE:g}"
    session = Session(args, about)
    torch_sgemm.disable()  # the environment may have enabled it
    small = args.small or not session.on_gpu
    session.record["options"] |= {"steps": args.steps, "kernel": args.kernel, "small": small}
    ours = partial(torch_sgemm.enabled, args.kernel, devices=(session.device.type,))
    with ours():  # an unknown kernel is an error before anything runs
        pass
    with session.progress(len(args.model) * len(LABELS)) as step, float32_convolutions():
        for name in args.model:
            curves = {}
            for which in LABELS:
                step(f"{name}: {which}")
                curves[which] = measure(name, which, ours, session, args.steps, small)
            what = f"{name}, tiny" if small else TRAININGS[name].what
            rows = compared(curves)
            session.record["rows"] += [{"model": name, "label": what} | row for row in rows]
    columns, rows = cells(session.record)
    tables.show("Loss curves of whole models", columns, rows, left=2)
    path, status = session.finish()
    tables.say(f"Chart: {plots.training(session.record, record.chart_path(path))}")
    session.show_recorded(show_recorded)
    return status


def measure(name: str, which: str, ours: Scope, session: Session, steps: int, small: bool) -> dict:
    """Returns one run's losses, peak memory and calls that came here."""
    training, device = TRAININGS[name], session.device
    release(device)
    torch.manual_seed(session.seed)
    task = training.make(device, small)
    batches = training.batches(task, session.seed, steps)
    if which == FLOAT64:
        task.model.double()
        batches = map(in_float64, batches)
    if which == "order":
        batches = ((inputs.flip(0), targets.flip(0)) for inputs, targets in batches)
    mark = session.sampler.mark()
    torch_sgemm.reset_stats()
    if session.on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    with ours() if which == OURS else nullcontext():
        found = losses(task, batches)
    stats = torch_sgemm.stats()
    row = {"kernel": which, "losses": found, "hits": stats.hits}
    row["fallbacks"] = {f"{op}: {reason}": n for (op, reason), n in stats.fallbacks.items()}
    if session.on_gpu:
        row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return row | session.sampler.since(mark)


def losses(task: Task, batches: Iterator[Batch]) -> list[float]:
    """Trains on the batches; returns the loss of each step."""
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=LEARNING_RATE)
    found = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = task.loss(task.output(task.model, inputs), targets)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found).tolist()  # waits for the device once


def in_float64(batch: Batch) -> Batch:
    """Converts images; texts are integers."""
    inputs, targets = batch
    return (inputs.double() if inputs.is_floating_point() else inputs), targets


def compared(curves: dict[str, dict]) -> list[dict]:
    """Returns the rows of a model's runs, with differences from float64's losses, and a verdict."""
    reference = curves[FLOAT64]["losses"]
    rows = []
    for which, row in curves.items():
        row = row | {"correct": True}
        if which != FLOAT64:
            apart = [abs(a - b) for a, b in zip(row["losses"], reference, strict=True)]
            mean = sum(apart) / len(apart)
            row |= {"differences": apart, "difference_max": max(apart), "difference_mean": mean}
        rows.append(row)
    yardsticks = [row["difference_mean"] for row in rows if row["kernel"] in YARDSTICKS]
    most = max(MOST * max(yardsticks), FLOOR * max(reference))
    for row in rows:
        if row["kernel"] == OURS and not row["difference_mean"] <= most:  # NaN too
            mean = row["difference_mean"]
            row |= {"correct": False, "wrong": f"mean difference {mean:.3g}, {most:.3g} allowed"}
    return rows


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per run, to print or for Markdown."""
    columns = ["model", "run", "first loss", "last loss", "largest difference", "mean difference"]
    columns += ["memory", "calls here a step"]
    lines = []
    for r in found["rows"]:
        figures = (tables.digits(r.get(f"difference_{x}")) for x in ("max", "mean"))
        memory = f"{r['peak_bytes'] / GIB:.2f} GiB" if "peak_bytes" in r else tables.NONE
        name = f"{LABELS[r['kernel']]} {tables.verdict(r)}".strip()
        ends = (f"{r['losses'][at]:.4f}" for at in (0, -1))
        calls = [f"{n / len(r['losses']):g} {op}" for op, n in r["hits"].items()]
        here = ", ".join(calls) or tables.NONE
        lines.append([r["label"], name, *ends, *figures, memory, here])
    return columns, lines


def summary(found: dict) -> str:
    """Returns a sentence per model."""
    sentences = []
    for model in dict.fromkeys(r["model"] for r in found["rows"]):
        rows = {r["kernel"]: r for r in found["rows"] if r["model"] == model}
        ours, torch_s, reversed_s = (
            [tables.digits(rows[x][f"difference_{y}"]) for y in ("mean", "max")]
            for x in (OURS, *YARDSTICKS)
        )
        sentences.append(
            f"{rows[OURS]['label']}: in {len(rows[OURS]['losses'])} steps of training the loss "
            f"under `enable()` differs from float64's by {ours[0]} on average and {ours[1]} at "
            f"most, torch's by {torch_s[0]} and {torch_s[1]} (with its batches reversed by "
            f"{reversed_s[0]} and {reversed_s[1]})."
        )
    return "\n\n".join(sentences)


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    columns, rows = cells(found)
    tables.show("\nRecorded on a GPU: loss curves of whole models", columns, rows, left=2)
