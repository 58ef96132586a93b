"""``recipes``: the scripts of examples/, by torch alone and by torch_sgemm: time and errors."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import warnings

import torch

import torch_sgemm
from benchmarks import record, steps, tables
from benchmarks.errors import good_up_to
from benchmarks.session import Session

EXAMPLES = record.ROOT / "examples"
sys.path.append(str(EXAMPLES))  # where the recipes find what they share

from beside import Recipe  # noqa: E402

RECIPES = (
    "router",
    "output_layer",
    "batch_invariant",
    "gaussian_process",
    "neighbours",
    "soap",
    "cholesky",
    "pinn",
    "encoder",
)
DEFAULTS = {"rounds": 10, "budget": 2.0}
LEGEND = (
    "Each side's time is the median of whole calls. Errors are the largest against float64, in "
    "units of 2⁻²⁴ of the root mean square of the float64 result. Those of a gradient and of a "
    "residual are norms, in units of 2⁻²⁴ of the norm of the gradient, of the right-hand side, or "
    "of the factored matrix."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --recipe and --small."""
    parser.add_argument("--recipe", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--small", action="store_true", help="tiny sizes, as without a GPU")


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record, prints the table."""
    session = Session(args, steps.describe)
    torch_sgemm.disable()  # the environment may have enabled it
    small = args.small or not session.on_gpu
    session.record["options"] |= {"small": small}
    with session.progress(len(args.recipe)) as step, warnings.catch_warnings():
        if not session.on_gpu:  # enabled() has nothing to take
            warnings.filterwarnings("ignore", message="torch_sgemm.enable")
        for name in args.recipe:
            step(name)
            session.record["rows"].append(measure(name, small, session))
            gc.collect()
            if session.on_gpu:
                torch.cuda.empty_cache()
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def measure(name: str, small: bool, session: Session) -> dict:
    """Returns a recipe's figures, or "failed" if it raises. Times are in microseconds."""
    row: dict = {"recipe": name, "label": name, "kernel": "auto"}
    torch.manual_seed(session.seed)
    try:
        recipe: Recipe = importlib.import_module(name).recipe(session.device, small)
        row |= {"size": recipe.size, "of": recipe.of} | errors(recipe)
        mark = session.sampler.mark()
        ways = [steps.Way(side) for side in (recipe.theirs, recipe.ours)]
        theirs, ours = steps.compare(ways, session.device, session.options)
    except (RuntimeError, ModuleNotFoundError) as failure:
        return row | {"failed": str(failure).splitlines()[0], "correct": False}
    for side, timing in (("step", ours), ("torch_step", theirs)):
        row |= {
            f"{side}_us": 1e6 * timing.typical,
            f"{side}_us_p10": 1e6 * timing.quantile(0.1),
            f"{side}_us_p90": 1e6 * timing.quantile(0.9),
            f"{side}s": len(timing.seconds),
        }
    row["percent_of_torch"] = 100 * theirs.typical / ours.typical
    return row | session.sampler.since(mark)


def errors(recipe: Recipe) -> dict:
    """Returns both sides' errors and further figures; correct: at most twice torch's, or 8."""
    theirs, ours = (recipe.error(side()) for side in (recipe.theirs, recipe.ours))
    most = good_up_to(theirs)
    found = {"error_max": ours, "torch_error_max": theirs, "error_bound": most}
    found["correct"] = ours <= most  # False for NaN
    if recipe.also:
        what, figure = recipe.also
        found |= {"also": what, "figure": figure(recipe.ours)}
        found["torch_figure"] = figure(recipe.theirs)
    return found


def show(found: dict) -> None:
    """Prints the table."""
    tables.show("Recipes: speed relative to torch", *cells(found), left=2)
    for line in notes(found):
        tables.say(line)


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per recipe, to print or for Markdown."""
    columns = ["recipe", "computation", "torch", "torch_sgemm", "speed", "error of", "error"]
    columns += ["torch's"]
    rows = []
    for r in found["rows"]:
        if "failed" in r:
            failed = [r["recipe"], r.get("size", tables.NONE), "failed"]
            rows.append(failed + [tables.NONE] * (len(columns) - 3))
            continue
        speed = tables.verdict(r) or f"{r['percent_of_torch'] / 100:.2f}"
        times = (tables.time(r[f"{side}_us"]) for side in ("torch_step", "step"))
        both = (tables.digits(r[f"{side}error_max"]) for side in ("", "torch_"))
        rows.append([r["recipe"], r["size"], *times, speed, r["of"], *both])
    return columns, rows


def notes(found: dict) -> list[str]:
    """Returns a line for each further figure."""
    return [
        f"{r['recipe']}: {r['also']}: {r['figure']:.3g}, by torch {r['torch_figure']:.3g}."
        for r in found["rows"]
        if "figure" in r
    ]
