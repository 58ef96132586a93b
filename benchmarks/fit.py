"""``fit``: the quantities of the cost models, csrc/models/, from records of ``plans``.

A model is fitted to the measured plans of the rows that it predicts, each for the GPU that measured
it. The fit minimises the logs of predicted by measured times, squared where they are small. It
begins at the orders of magnitude in csrc/models/models.h, not at the current values, and takes
seconds. The result is csrc/models/GPU.h, after which the library has to be rebuilt.

Source: scipy.optimize.least_squares, a trust region with a soft L1 loss.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from rich.progress import track

import torch_sgemm
from benchmarks import machine, record, tables
from benchmarks.choice import problems
from benchmarks.measure import geomean, operand_dtype
from benchmarks.plans import FAMILIES, KINDS
from benchmarks.problems import Problem
from benchmarks.session import check_kernels
from benchmarks.worth import ATEN
from torch_sgemm.choice import explain

MODELS = Path(__file__).resolve().parent.parent / "csrc" / "models"
RUNGS_AT = 4096  # m, n and k of the record that rungs() reads
RUNGS = ("ladder", "tf32")  # families
PROBES = 154  # problems that show which rows a model predicts
SOFT = 0.1  # a larger residual counts linearly, not squared
PRIOR = 0.1  # residual of a quantity e times its order of magnitude
AT_MOST = 100.0  # bounds of a quantity: its order of magnitude times and over this
STEP = 1e-4  # step of a quantity's logarithm, for derivatives
CAUTIONS = dict.fromkeys(("caution", "caution_long_k"), (0.76, 0.8, 0.84, 0.88, 0.92, 0.96, 1.0))
SLOW = 0.98  # a choice below this share of torch's speed is slow


@dataclass(frozen=True)
class Quantity:
    """A field of a model, and its order of magnitude."""

    model: str
    name: str
    start: float


def predictions(
    row: str,
    numbers: list[int],
    device: torch_sgemm.Device | None = None,
    packed: bool = False,
) -> numpy.ndarray:
    """Returns the library's predictions for all plans of a row, by its current quantities.

    ``packed``: B has planes.
    """
    about = (device or torch_sgemm.Device())._numbers()
    return numpy.array(torch.ops.sgemm._predictions(numbers, about, row, packed))


def cuts(
    row: str, numbers: list[int], device: torch_sgemm.Device, packed: bool = False
) -> list[str]:
    """Returns the same plans in words, which identify them in any order."""
    return torch.ops.sgemm._cuts(numbers, device._numbers(), row, packed).splitlines()


@dataclass
class Case:
    """A problem, and measured times of a row's plans by index, in seconds."""

    row: str
    problem: int
    numbers: list[int]
    plans: numpy.ndarray
    seconds: numpy.ndarray
    device: torch_sgemm.Device
    packed: bool = False

    def predicted(self) -> numpy.ndarray:
        """Returns the library's predictions for these plans."""
        return predictions(self.row, self.numbers, self.device, self.packed)[self.plans]

    def logs(self) -> numpy.ndarray:
        """Returns the logs of predicted by measured times."""
        return numpy.log(self.predicted() / self.seconds)


class Library:
    """The quantities of the library in this process, in the order of models.h."""

    def __init__(self) -> None:
        text = (MODELS / "models.h").read_text(encoding="utf-8")
        structs = re.findall(r"struct (\w+)Model \{.*?\n(.*?)\n\};", text, re.DOTALL)
        self.quantities = [
            Quantity(model, name, float(start))
            for model, body in structs
            for name, start in re.findall(r"double (\w+); +// ([0-9.e-]+)", body)
        ]
        self.models = [model for model, _ in structs]
        self.values = numpy.array(torch.ops.sgemm._models())
        if len(self.values) != len(self.quantities):
            raise RuntimeError("the library was built from other models; accepted: build it first")

    def where(self, models: list[str]) -> list[int]:
        """Returns the indices of the models' quantities among all."""
        return [i for i, q in enumerate(self.quantities) if q.model in models]

    def use(self) -> None:
        """Makes the library predict with these values from now on."""
        torch.ops.sgemm._set_models(self.values.tolist())


def numbers(p: Problem, dtype: torch.dtype = torch.float32) -> list[int]:
    """Returns a problem of aligned operands in the format of the private operators."""
    lead = (p.batch,) if p.batch > 1 else ()
    sides = []
    for rows, cols, op in ((p.m, p.k, p.ops[0]), (p.k, p.n, p.ops[1])):
        stored = (rows, cols) if op == "N" else (cols, rows)
        x = torch.empty(*lead, *stored, device="meta", dtype=dtype)
        sides.append(x if op == "N" else x.mT)
    return explain._problem(*sides)


def cases(records: list[dict]) -> list[Case]:
    """Returns the measured plans of records, by problem and row, if they still exist."""
    known = {row.name: row for row in torch_sgemm.kernels()}
    sizes = ("m", "n", "k", "ops", "batch")
    of_records: list[tuple[Problem, torch_sgemm.Device, bool]] = []
    measured: dict[tuple[str, int], list[dict]] = {}
    for found in records:
        first = len(of_records)
        device = machine.predicted_for(found["machine"])
        for p in found["problems"]:
            packed = p.get("packed", False)
            of_records.append((Problem(*(p[name] for name in sizes)), device, packed))
        for r in found["rows"]:
            if "failed" not in r and r["kernel"] in known:
                measured.setdefault((r["kernel"], first + r["problem"]), []).append(r)
    found_cases = []
    for (row, i), plans in measured.items():
        problem, device, packed = of_records[i]
        about = numbers(problem, operand_dtype(known[row]))
        now = cuts(row, about, device, packed)
        seconds = {at: 1e-6 * r["plan_us"] for at, r in _places(plans, now)}
        if seconds:
            at, taken = numpy.array(list(seconds)), numpy.array(list(seconds.values()))
            found_cases.append(Case(row, i, about, at, taken, device, packed))
    return found_cases


def _places(plans: list[dict], now: list[str]) -> list[tuple[int, dict]]:
    """Returns the recorded plans that a row still has, each with its current index.

    A record that lacks cuts has the indices of its own time.
    """
    first = {cut: at for at, cut in reversed(list(enumerate(now)))}
    places = ((first.get(r["cut"], -1) if "cut" in r else r["plan"], r) for r in plans)
    return [(at, r) for at, r in places if 0 <= at < len(now)]


def probes() -> list[Case]:
    """Returns plans of all rows on problems that show which rows a model predicts."""
    device, found = torch_sgemm.Device(), []
    rows = [row for row in torch_sgemm.kernels() if row.family in FAMILIES]
    for i, (_, problem) in enumerate(problems(PROBES, 1, 0, KINDS)):
        for row in rows:
            if row.takes(problem.m, problem.n, problem.k):
                about = numbers(problem, operand_dtype(row))
                seconds = predictions(row.name, about, device)
                plans = numpy.arange(len(seconds))
                found.append(Case(row.name, i, about, plans, seconds, device))
    return found


def rows_changed(library: Library, of: list[Case]) -> dict[str, list[str]]:
    """Returns for each model the rows of cases whose predictions it changes."""
    kept = library.values.copy()
    library.use()
    before = [case.predicted() for case in of]
    changed: dict[str, list[str]] = {}
    for model in library.models:
        library.values[library.where([model])] *= 1.37
        library.use()
        rows = dict.fromkeys(
            case.row
            for case, old in zip(of, before, strict=True)
            if not numpy.array_equal(case.predicted(), old)
        )
        changed[model] = list(rows)
        library.values = kept.copy()
    library.use()
    return changed


def rows_of_models(library: Library, found: list[Case]) -> dict[tuple[str, ...], list[str]]:
    """Returns models by the rows that they are fitted to: those whose predictions they change.

    A row that a model of fewer rows predicts too is that model's alone. For example, predictions
    of few rows contain quantities of the split product, which are fitted to other rows.
    """
    of_table = {model: set(rows) for model, rows in rows_changed(library, probes()).items()}
    models: dict[tuple[str, ...], list[str]] = {}
    for model, rows in rows_changed(library, found).items():
        others = set().union(*(x for x in of_table.values() if x < of_table[model]))
        if own := tuple(row for row in rows if row not in others):
            models.setdefault(own, []).append(model)
    return models


def fit(library: Library, models: list[str], found: list[Case]) -> None:
    """Fits the quantities of models to the plans of the rows that they predict."""
    from scipy.optimize import least_squares  # other commands do without it

    where = library.where(models)
    start = numpy.log([library.quantities[i].start for i in where])

    def errors(logs: numpy.ndarray) -> numpy.ndarray:
        library.values[where] = numpy.exp(logs)
        library.use()
        of_plans = [case.logs() / math.sqrt(len(case.plans)) for case in found]
        # A quantity that the plans don't determine stays near its order of magnitude.
        return numpy.concatenate([*of_plans, PRIOR * (logs - start)])

    reach = math.log(AT_MOST)
    best = least_squares(
        errors, start, bounds=(start - reach, start + reach), loss="soft_l1", f_scale=SOFT,
        diff_step=STEP,
    )  # fmt: skip
    errors(best.x)


def spread(found: list[Case]) -> float:
    """Returns the root mean square of the logs of predicted by measured times."""
    logs = numpy.concatenate([case.logs() for case in found])
    return float(numpy.sqrt(numpy.mean(logs**2)))


def counted(case: Case) -> dict[str, float]:
    """Returns for each row the seconds by which its best plan enters the choice for a problem."""
    about = case.device._numbers(), case.device.name, "auto"
    answer = json.loads(torch.ops.sgemm._explain(case.numbers, 1.0, 0.0, *about))
    return {row["name"]: row["seconds"] for row in answer["verdicts"]}


def chosen_speeds(found: list[Case], predicted: list[numpy.ndarray]) -> list[float]:
    """Returns for each float32 problem PyTorch's time over that of the chosen, measured plan."""
    short = {row.name for row in torch_sgemm.kernels() if not row.takes_float32}
    best: dict[int, tuple[float, float]] = {}
    torchs: dict[int, float] = {}
    rows: dict[int, dict[str, float]] = {}
    for case, seconds in zip(found, predicted, strict=True):
        if case.row in short or case.packed:  # PyTorch's kernel reads B itself
            continue
        if case.problem not in rows:
            rows[case.problem] = counted(case)
        at = int(seconds.argmin())
        least = predictions(case.row, case.numbers, case.device).min()
        counts = float(seconds[at] * rows[case.problem][case.row] / least)
        if case.row == ATEN:
            torchs[case.problem] = float(case.seconds[0])
        if case.problem not in best or counts < best[case.problem][0]:
            best[case.problem] = (counts, float(case.seconds[at]))
    return [seconds / best[problem][1] for problem, seconds in torchs.items()]


def chosen_now(found: list[Case]) -> list[float]:
    """Returns the same by the library's current predictions."""
    return chosen_speeds(found, [case.predicted() for case in found])


def cautions(library: Library, found: list[Case]) -> list[list[str]]:
    """Tries more and less caution, one value after the other; makes a line per value."""
    lines = []
    predicted = [case.predicted() for case in found]  # caution is not part of these
    for name, values in CAUTIONS.items():
        (at,) = (
            i for i, q in enumerate(library.quantities) if (q.model, q.name) == ("Choice", name)
        )
        kept = library.values[at]
        for value in values:
            library.values[at] = value
            library.use()
            speeds = chosen_speeds(found, predicted)
            slow = sum(speed < SLOW for speed in speeds)
            lines.append(
                [name, f"{value:.2f}", f"{geomean(speeds):.3f}", str(slow), f"{min(speeds):.2f}"]
            )
        library.values[at] = kept
        library.use()
    return lines


def rungs(found: dict) -> dict[str, float]:
    """Returns the share of the FFMA peak that each rung reached in a record of ``ladder``.

    These shares predict the rows that have no model of their own.
    """
    names = {row.name for row in torch_sgemm.kernels() if row.family in RUNGS}
    device = torch_sgemm.Device()
    peak = device.sms * 128 * 2 * device.clock_ghz * 1e-3  # TFLOP/s
    large = [r for r in found["rows"] if r["m"] == RUNGS_AT and r["kernel"] in names]
    return {r["kernel"]: r["kernel_tflops"] / peak for r in large}


def write(library: Library, shares: dict[str, float], path: Path, sources: list[str]) -> None:
    """Writes the models' values as a C++ header."""
    lines = [
        "// clang-format off",
        "// The quantities of models.h on one GPU, by `python -m benchmarks fit`; not by hand.",
        "//",
        *(f"// {source}" for source in sources),
        "#pragma once",
        '#include "models.h"',
        "",
        "namespace sgemm {",
        "",
        "constexpr Models kFitted = {",
    ]
    for model in library.models:
        lines.append(f"    // {model}")
        lines.append("    {")
        for i in library.where([model]):
            lines.append(f"        {library.values[i]:.4g},  // {library.quantities[i].name}")
        lines.append("    },")
    lines += ["};", "", "constexpr RungShare kRungs[] = {"]
    lines += [f'    {{"{row}", {share:.3f}}},' for row, share in shares.items()]
    lines += ["};", "", "}  // namespace sgemm", ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --record, --kernel and --output."""
    parser.add_argument(
        "--record",
        type=Path,
        nargs="+",
        help="of plans (default: all in benchmarks/results/plans of the newest GPU that ladder "
        "has been run on and of others of its architecture)",
    )
    parser.add_argument(
        "--kernel", nargs="+", metavar="NAME", help="models of these rows only (default: all)"
    )
    parser.add_argument("--output", type=Path, help="(default: csrc/models/GPU.h)")


def recorded() -> tuple[str, list[dict]]:
    """Returns the slug of the GPU to fit, and its records."""
    of_all = record.all_of("plans")
    ladders = record.gpus(["ladder"])
    gpus = [r["machine"] for r in of_all]
    gpus = [gpu for gpu in gpus if gpu["slug"] in ladders] or gpus
    if not gpus:
        return "", []
    gpu = gpus[-1]
    return gpu["slug"], [r for r in of_all if r["machine"]["arch"] == gpu["arch"]]


def run(args: argparse.Namespace) -> int:
    """Fits all models that have measured rows and writes them; the others don't change."""
    if args.record:
        records = [record.load(path) for path in args.record]
        slug = records[0]["machine"]["slug"]
    else:
        slug, records = recorded()
    ladder = record.latest_gpu("ladder", slug=slug)
    if not records or ladder is None:
        missing = "ladder" if records else "plans"
        raise RuntimeError(f"there is no record; run python -m benchmarks {missing} first")
    library, all_cases = Library(), cases(records)
    groups = rows_of_models(library, all_cases)
    check_kernels(args.kernel, [name for rows in groups for name in rows])
    if args.kernel:
        groups = {rows: m for rows, m in groups.items() if set(rows) & set(args.kernel)}
    before = geomean(chosen_now(all_cases))
    lines = []
    for rows, models in track(groups.items(), "fitting", console=tables.console, transient=True):
        of_rows = [case for case in all_cases if case.row in rows]
        old = spread(of_rows)
        fit(library, models, of_rows)
        plans = sum(len(case.plans) for case in of_rows)
        names = ", ".join(models), ", ".join(rows)
        lines.append([*names, str(plans), f"{old:.3f}", f"{spread(of_rows):.3f}"])
    columns = ["models", "rows", "plans", "error before", "after"]
    tables.show("Models: root mean square of the log of predicted by measured", columns, lines)
    after = geomean(chosen_now(all_cases))
    tables.say(
        f"The measured plans that are chosen: {before:.3f} times torch before, {after:.3f} now."
    )
    columns = ["caution", "value", "times torch", f"below {SLOW}", "worst"]
    tables.show("Cautions, which are set by hand", columns, cautions(library, all_cases), left=1)
    path = args.output or MODELS / f"{slug}.h"
    write(library, rungs(ladder), path, [record.provenance(r) for r in (*records, ladder)])
    tables.say(f"Models: {path}; build the library with it, see docs/choice.md")
    return 0
