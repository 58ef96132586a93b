"""``report``: writes the tables and charts of README.md and docs/ from the records.

A block lies between ``<!-- begin:NAME -->`` and ``<!-- end:NAME -->``, and its content is replaced.
NAME is a key of BLOCKS. All figures in a block come from records.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch_sgemm
from benchmarks import (
    accuracy,
    attention,
    attention_backward,
    attention_cases,
    attention_errors,
    call,
    choice,
    hard,
    invariant,
    ladder,
    logprobs,
    mechanisms,
    models,
    packed,
    peers,
    plots,
    recipes,
    record,
    seeds,
    squares,
    suite,
    tables,
    training,
    users,
    worth,
)

BLOCK = re.compile(r"(<!-- begin:([\w-]+) -->\n)(.*?)(<!-- end:\2 -->)", re.DOTALL)
MARKER = re.compile(r"<!-- (?:begin|end):[\w-]+ -->")
Write = Callable[[dict, Path], str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --check, --gpu, --results and the files."""
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is old")
    parser.add_argument("--gpu", metavar="SLUG", help="records of this GPU (default: the newest)")
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    parser.add_argument("files", type=Path, nargs="*", help="default: README.md and docs/*.md")


def _ladder_table(found: dict, _: Path) -> str:
    columns, rows = ladder.summary(found)
    head = "TFLOP/s, and the percentage of torch.mm timed by turns in the same run.\n\n"
    return head + tables.markdown(columns, rows)


def _ladder_errors(found: dict, _: Path) -> str:
    size = max(r["size"] for r in found["rows"])
    rows = [
        [r["kernel"], tables.errors(r), tables.errors(r, "torch_"), tables.digits(r["error_bound"])]
        for r in found["rows"]
        if r["size"] == size and "failed" not in r
    ]
    head = (
        f"Errors at {size}³ against float64, max / mean, in units of 2⁻²⁴·(|A||B|); accepted is "
        "what the benchmark lets pass, which no proof stands behind.\n\n"
    )
    return head + tables.markdown(["row", "error", "torch.mm's", "accepted"], rows)


CHARTS: dict[str, Callable[[dict, Path], Path]] = {  # by command, from its record
    "ladder": plots.ladder,
    "suite": plots.suite,
    "accuracy": plots.accuracy,
    "models": plots.models,
    "training": plots.training,
    "packed": plots.packed,
    "users": plots.users,
    "attention": plots.attention,
    "squares": plots.squares,
    "quick": plots.speeds,
}


def _chart(shows: str) -> Write:
    def write(found: dict, page: Path) -> str:
        chart = record.chart_path(Path(found["path"]))
        relative = Path(os.path.relpath(chart.resolve(), page.resolve().parent)).as_posix()
        return f"![{shows}]({relative})"

    return write


def _suite_table(kernel: str) -> Write:
    """Tabulates ``kernel`` by groups of shapes, and the others over all of them."""

    def write(found: dict, _: Path) -> str:
        columns, rows = suite.summary_cells(found)
        shown = [row for row in rows if row[0] == kernel or row[1] == "all"]
        table = tables.markdown(columns, shown, left=2)
        return f"Speed relative to torch.\n\n{table}\n\n{suite.LEGEND}"

    return write


def _squares_table(found: dict, _: Path) -> str:
    columns, rows = squares.cells(found)
    kernel = found["rows"][0]["kernel"]
    head = (
        f"Speed relative to torch.mm, `{kernel}`, after idle / sustained. Errors are the largest "
        "of 64 rows, in units of 2⁻²⁴·(|A||B|).\n\n"
    )
    return head + tables.markdown(columns, rows)


def _packed_table(found: dict, _: Path) -> str:
    columns, rows = packed.cells(found)
    return "Speed relative to torch.mm, unpacked / packed.\n\n" + tables.markdown(columns, rows)


def _invariant_table(found: dict, _: Path) -> str:
    table = tables.markdown(*invariant.cells(found), left=2)
    missing = "".join(f"\n\nNot measured: {line}." for line in found["missing"])
    notes = f"{invariant.LEGEND} {invariant.spread(found)}{missing}"
    return f"Speed relative to torch.mm.\n\n{table}\n\n{notes}"


def _choice_table(found: dict, _: Path) -> str:
    columns, rows = choice.choice_cells(found)
    return "Speed relative to torch, geometric mean.\n\n" + tables.markdown(columns, rows)


def _predictions_table(found: dict, _: Path) -> str:
    columns, rows = choice.prediction_cells(found)
    return "Predicted time by measured time.\n\n" + tables.markdown(columns, rows)


def _worth_table(cases: Callable[[dict], list[worth.Case]], of: str) -> Write:
    """Tabulates the worth of the rows in ``of``."""

    def write(found: dict, _: Path) -> str:
        columns, rows = worth.cells(found, cases(found))
        head = f"What a row is worth in {of}: the geometric mean that `auto` loses without it.\n\n"
        return head + tables.markdown(columns, rows)

    return write


def _mechanisms_table(found: dict, _: Path) -> str:
    columns, rows = mechanisms.cells(found)
    head = (
        "What a choice loses without a mechanism: the geometric mean over random problems. Then "
        "`auto` takes the plan that it predicts to be the next fastest, and the best choice takes "
        "the plan that was measured to be so. At most eight plans of a row were measured.\n\n"
    )
    return head + tables.markdown(columns, rows)


def _hard_table(found: dict, _: Path) -> str:
    columns, rows = hard.cells(found)
    return f"Speed relative to torch.\n\n{tables.markdown(columns, rows)}\n\n{hard.LEGEND}"


def _users_table(found: dict, _: Path) -> str:
    """Tabulates geometric means by users, then every product."""
    columns, rows = suite.summary_cells(found)
    groups = tables.markdown(columns[1:], [row[1:] for row in rows])
    products = tables.markdown(*users.cells(found), left=4)
    left_out = "".join(f"\n\nLeft out: {line}." for line in found["left_out"])
    return f"Speed relative to torch.\n\n{groups}\n\n{products}{left_out}\n\n{users.LEGEND}"


def _accuracy_table(found: dict, _: Path) -> str:
    columns, rows = accuracy.cells(found, (7, 128, 8192), ("split_fp16x3", "split_bf16x6"))
    m, n = found["rows"][0]["m"], found["rows"][0]["n"]
    head = f"Errors of {m} x {n} x k against float64, max / mean, in units of 2⁻²⁴·(|A||B|).\n\n"
    return head + tables.markdown(columns, rows)


def _accuracy_large_table(found: dict, _: Path) -> str:
    kernels = ("split_fp16x3", "split_bf16x6", "ieee_large")
    columns, rows = accuracy.large_cells(found, kernels)
    head = "Errors against float64, max / mean, in units of 2⁻²⁴·(|A||B|).\n\n"
    return head + tables.markdown(columns, rows, left=2)


def _attention_text(found: dict, of: ModuleType) -> str:
    table = tables.markdown(*of.cells(found))
    return f"{attention_cases.summary(found, of.SPEED)}\n\n{table}\n\n{of.LEGEND}"


def _attention_table(found: dict, _: Path) -> str:
    return _attention_text(found, attention)


ERRORS_HEAD = (
    "Errors on twelve distributions, max / mean over all elements, in units of 2⁻²⁴·(P|V|): "
    f"{attention_errors.HEADS} heads, {attention_errors.QUERIES} queries, {attention_errors.KEYS} "
    "keys. PyTorch's kernels are the memory-efficient one and its math path.\n\n"
)


def _attention_errors_table(found: dict, _: Path) -> str:
    return ERRORS_HEAD + tables.markdown(*attention_errors.cells(found["errors"]), left=2)


def _attention_backward_table(found: dict, _: Path) -> str:
    noted = "".join(f"\n\n{line}" for line in attention_backward.notes(found))
    return _attention_text(found, attention_backward) + noted


def _gradient_errors_table(found: dict, _: Path) -> str:
    columns, rows = attention_errors.gradient_cells(found["errors"])
    head = "Errors of gradients on the same distributions, for a standard normal dO.\n\n"
    return head + tables.markdown(columns, rows, left=2)


def _seeds_tables(found: dict, _: Path) -> str:
    parts, noted = [], set()
    for title, columns, rows in seeds.document_tables(found):
        name = title.split(":")[0]
        note = "" if name in noted else found["documents"][name]["note"] + "\n\n"
        noted.add(name)
        parts.append(f"**{title}**\n\n{note}{tables.markdown(columns, rows, left=2)}")
    return "\n\n".join(parts)


def _call_table(found: dict, _: Path) -> str:
    columns, rows = call.cells(found)
    rows = [[f"`{row[0]}`", *row[1:]] for row in rows]
    head = "Microseconds per call from Python, launch included: median (range of the turns).\n\n"
    return head + tables.markdown(columns, rows)


def _models_table(found: dict, _: Path) -> str:
    columns, rows = models.cells(found)
    head = (
        "Milliseconds per step, median (10 % … 90 %), attention "
        f"`{found['options']['attention']}`. "
        "Errors against float64, max / mean, in units of 2⁻²⁴ of the root mean square of the "
        "output, or of all gradients.\n\n"
    )
    noted = "".join(f"\n\n{line}" for line in models.notes(found))
    return head + tables.markdown(columns, rows) + noted


def _models_line(found: dict, _: Path) -> str:
    """Sums up the models in a line; pages without room for the table use it."""
    rows = [r for r in found["rows"] if "failed" not in r]
    ratios = (f"{r['percent_of_torch'] / 100:.2f} for {r['label']}" for r in rows)
    return f"Whole models under `enable()`, speed relative to torch alone: {'; '.join(ratios)}."


def _training_table(found: dict, _: Path) -> str:
    columns, rows = training.cells(found)
    return tables.markdown(columns, rows, left=2) + f"\n\n{training.LEGEND}"


def _training_line(found: dict, _: Path) -> str:
    return training.summary(found)


def _logprobs_table(found: dict, _: Path) -> str:
    columns, rows = logprobs.cells(found)
    notes = f"{logprobs.LEGEND}\n\n{' '.join(logprobs.notes(found))}"
    missing = "".join(f"\n\nNot measured: {line}." for line in found["missing"])
    head = f"{logprobs.summary(found)}\n\n"
    return f"{head}{tables.markdown(columns, rows)}\n\n{notes}{missing}"


def _recipes_table(found: dict, _: Path) -> str:
    columns, rows = recipes.cells(found)
    rows = [[f"[{row[0]}](../examples/{row[0]}.py)", *row[1:]] for row in rows]
    noted = "".join(f"\n- {line}" for line in recipes.notes(found))
    head = "Speed relative to torch.\n\n"
    return f"{head}{tables.markdown(columns, rows, left=2)}\n{noted}\n\n{recipes.LEGEND}"


PRECISION_SIZE = 4096
BOUND_ROWS = ("split_fp16x3", "split_bf16x6", "ieee_small", "ieee_large")
BOUND_DEPTHS = (64, 128, 1024, 4096, 8192, 65536)


def _precision_table(found: dict, _: Path) -> str:
    """Tabulates a square product by torch and the families: speed and measured errors."""
    cube = {"m": PRECISION_SIZE, "n": PRECISION_SIZE, "k": PRECISION_SIZE, "ops": "NN"}
    cube["group"] = "square"
    lines = []
    for r in found["rows"]:
        if cube.items() <= r.items() and r["kernel"] in ("ieee", "split", "auto"):
            if not lines:
                theirs = tables.errors(r, "torch_")
                lines.append(["torch.mm", "1.00", tables.digits(r["torch_tflops"]), theirs])
            speed = f"{r['percent_of_torch'] / 100:.2f}"
            name = f"`{r['kernel']}`, which takes `{r['chosen']}`"
            lines.append([name, speed, tables.digits(r["kernel_tflops"]), tables.errors(r)])
    columns = ["by", "speed", "TFLOP/s", "error, max / mean"]
    head = (
        f"{PRECISION_SIZE}³, elements between -1 and 1. Speed relative to torch.mm; errors against "
        "float64, in units of 2⁻²⁴·(|A||B|).\n\n"
    )
    return head + tables.markdown(columns, lines)


def _bounds_table(_: dict, __: Path) -> str:
    """Tabulates ``torch_sgemm.error_bound`` of some rows and depths."""
    lines = [
        [f"`{row}`", *(str(math.ceil(torch_sgemm.error_bound(k, row))) for k in BOUND_DEPTHS)]
        for row in BOUND_ROWS
    ]
    head = "`torch_sgemm.error_bound(k, row)`, rounded up, in units of 2⁻²⁴·(|A||B|).\n\n"
    return head + tables.markdown(["row", *(f"k = {k}" for k in BOUND_DEPTHS)], lines)


def _peers_table(found: dict, _: Path) -> str:
    columns, rows = peers.cells(found, peers.PRODUCT)
    missing = "".join(f"\n\nNot measured: {line}." for line in found["missing"])
    table = tables.markdown(columns, rows)
    return f"Speed relative to torch.mm.\n\n{table}\n\n{peers.LEGEND}{missing}"


def _peers_router(found: dict, _: Path) -> str:
    columns, rows = peers.cells(found, peers.ROUTER)
    return (
        f"Speed relative to torch.mm.\n\n{tables.markdown(columns, rows)}\n\n{peers.ROUTER_LEGEND}"
    )


# marker -> command whose record it shows (None: needs no record), writer
BLOCKS: dict[str, tuple[str | None, Write]] = {
    "ladder": ("ladder", _ladder_table),
    "ladder-errors": ("ladder", _ladder_errors),
    "ladder-chart": ("ladder", _chart("TFLOP/s of every row beside torch.mm")),
    "suite": ("suite", _suite_table("auto")),
    "suite-split": ("suite", _suite_table("split")),
    "suite-ieee": ("suite", _suite_table("ieee")),
    "suite-chart": ("suite", _chart("speed relative to torch, case by case")),
    "squares": ("squares", _squares_table),
    "squares-chart": (
        "squares",
        _chart("TFLOP/s over size: torch.mm in float32 and TF32, and torch_sgemm, with errors"),
    ),
    "packed": ("packed", _packed_table),
    "packed-chart": ("packed", _chart("speed of layers with and without a packed weight")),
    "invariant": ("invariant", _invariant_table),
    "choice": ("choice", _choice_table),
    "predictions": ("choice", _predictions_table),
    "worth": ("choice", _worth_table(choice.worth_cases, "random problems")),
    "worth-suite": ("suite", _worth_table(suite.worth_cases, "the suite")),
    "worth-mechanisms": ("plans", _mechanisms_table),
    "hard": ("hard", _hard_table),
    "users": ("users", _users_table),
    "users-chart": ("users", _chart("speed relative to torch of users' products")),
    "accuracy": ("accuracy", _accuracy_table),
    "accuracy-large": ("accuracy", _accuracy_large_table),
    "accuracy-chart": (
        "accuracy",
        _chart("largest errors beside torch.mm's, by distribution"),
    ),
    "attention": ("attention", _attention_table),
    "attention-chart": ("attention", _chart("speed relative to PyTorch, case by case")),
    "attention-errors": ("attention", _attention_errors_table),
    "attention-backward": (attention_backward.COMMAND, _attention_backward_table),
    "attention-gradient-errors": (attention_backward.COMMAND, _gradient_errors_table),
    "seeds": ("seeds", _seeds_tables),
    "call": ("call", _call_table),
    "precision": ("suite", _precision_table),
    "bounds": (None, _bounds_table),
    "peers": ("peers", _peers_table),
    "peers-router": ("peers", _peers_router),
    "models": ("models", _models_table),
    "models-line": ("models", _models_line),
    "logprobs": ("logprobs", _logprobs_table),
    "recipes": ("recipes", _recipes_table),
    "models-chart": ("models", _chart("a step of whole models, both sides")),
    "training": ("training", _training_table),
    "training-line": ("training", _training_line),
    "training-chart": ("training", _chart("losses of whole models, and their differences")),
}


def _has_errors(found: dict) -> bool:
    return bool(found.get("errors"))


SUITS = {  # only such records make the block
    "worth-mechanisms": mechanisms.can_be_weighed,
    "attention-errors": _has_errors,
    "attention-gradient-errors": _has_errors,
}
OPTIONS = {attention_backward.COMMAND: "attention --backward"}  # commands of other names


def block(name: str, page: Path, results: Path, gpu: str | None) -> str:
    """Returns the text of one block, its provenance last."""
    command, write = BLOCKS[name]
    if command is None:
        return f"\n{write({}, page)}\n\n"
    found = record.latest_gpu(command, results, gpu, SUITS.get(name))
    if found is None:
        asked = OPTIONS.get(command, command)
        return f"No record yet: `python -m benchmarks {asked}` on a GPU writes one.\n"
    source = f"{record.provenance(found)}; {found['timing']}."
    return f"\n{write(found, page)}\n\n<sub>{source}</sub>\n\n"


def replace_blocks(text: str, make: Callable[[str], str]) -> str:
    """Returns ``text`` with every block's content replaced by ``make(name)``.

    Raises RuntimeError for an unknown name or a marker without its partner.
    """

    def renew(match: re.Match[str]) -> str:
        if match[2] not in BLOCKS:
            raise RuntimeError(f"unknown block {match[2]}; there are {', '.join(BLOCKS)}")
        return match[1] + make(match[2]) + match[4]

    lone = MARKER.search(BLOCK.sub("", text))
    if lone:
        raise RuntimeError(f"{lone[0]} has no partner")
    return BLOCK.sub(renew, text)


def draw_charts(results: Path, gpu: str | None) -> None:
    """Redraws charts from the records, which may have come without them."""
    for command, draw in CHARTS.items():
        found = record.latest_gpu(command, results, gpu)
        if found is not None:
            draw(found, record.chart_path(Path(found["path"])))


def check_records(results: Path, gpu: str | None) -> None:
    """Raises RuntimeError, listing what exists, if there is no record at all.

    A single block may lack its record.
    """
    found = record.gpus({command for command, _ in BLOCKS.values() if command}, results)
    if not found:
        raise RuntimeError(f"--results {results}: there is no GPU's record in this folder")
    if gpu is not None and gpu not in found:
        raise RuntimeError(f"--gpu {gpu}: no such records; there are those of {', '.join(found)}")


def run(args: argparse.Namespace) -> int:
    """Renews charts and blocks, all or none; with --check, returns 1 if a page would change."""
    check_records(args.results, args.gpu)
    files = args.files or [record.ROOT / "README.md", *sorted((record.ROOT / "docs").glob("*.md"))]
    changed: dict[Path, str] = {}
    for page in files:
        if not page.exists():
            raise RuntimeError(f"{page}: no such file")
        old = page.read_text()
        new = replace_blocks(old, lambda name, p=page: block(name, p, args.results, args.gpu))
        if new != old:
            changed[page] = new
    if args.check:
        for page in changed:
            tables.say(f"[red]{page} is not what the records say[/]")
        return 1 if changed else 0
    draw_charts(args.results, args.gpu)
    for page, new in changed.items():
        page.write_text(new)
        tables.say(f"{page} renewed")
    return 0
