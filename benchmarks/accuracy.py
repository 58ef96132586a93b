"""``accuracy``: errors over distributions that are hard for float32, beside torch.mm's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch

import torch_sgemm
from benchmarks import plots, record, tables
from benchmarks.data import FEATURE_UNITS, KINDS
from benchmarks.distributions import DISTRIBUTIONS, generator, operands
from benchmarks.errors import GOOD_UNITS, Errors, good_up_to, in_units, limit
from benchmarks.measure import runnable
from benchmarks.problems import Operands, Problem, positive
from benchmarks.session import Session
from benchmarks.sides import Side, sgemm_side, torch_side

GPU_DEPTHS = (1, 7, 32, 64, 128, 512, 2048, 8192, 65536)
CPU_DEPTHS = (1, 7, 64, 512)
GPU_EXTENT, CPU_EXTENT = (300, 260), (37, 41)
FAMILIES = ("split", "ieee")  # the ladder has a record of its own
LONG = 512  # from this k on, the mean error shows how a kernel sums, not only how it multiplies
# Large products, whose sums stay longer in the tensor cores; sizes are multiples of this.
GPU_LARGE, CPU_LARGE = 2048, 20
Make = Callable[[int, torch.Generator], tuple[torch.Tensor, torch.Tensor]]
METHOD = "errors of every element against float64, each output full of NaN before its call"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --k, --extent and --kernel."""
    parser.add_argument("--k", type=positive, nargs="+", help="(default: 1 ... 65536)")
    parser.add_argument(
        "--extent", type=positive, nargs=2, metavar=("M", "N"), help="(default: 300 260)"
    )
    parser.add_argument(
        "--kernel", nargs="+", metavar="NAME", help="rows or families (default: split and ieee)"
    )


def default_kernels(device: torch.device) -> list[str]:
    """Returns the rows of FAMILIES for any product on ``device``, or else the ladder's choice."""
    rows = [row for row in runnable(device) if row.family in FAMILIES and row.max_size is None]
    return [row.name for row in rows] or ["ladder"]


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the tables."""
    session = Session(args, METHOD)
    depths = args.k or (GPU_DEPTHS if session.on_gpu else CPU_DEPTHS)
    m, n = args.extent or (GPU_EXTENT if session.on_gpu else CPU_EXTENT)
    kernels = args.kernel or default_kernels(session.device)
    for kernel in kernels:  # an unknown name is an error before anything runs
        a, b = (torch.empty(s, device=session.device) for s in ((m, depths[0]), (depths[0], n)))
        torch_sgemm.explain(a, b, kernel=kernel)
    results = session.record["rows"]
    large = session.record["large"] = []
    with session.progress(len(DISTRIBUTIONS) * len(depths) + len(LARGE)) as step:
        for name in DISTRIBUTIONS:
            for k in depths:
                step(f"{name} {k}")
                a, b = operands(name, m, n, k, session.device, session.seed)
                about = {"distribution": name} | Problem(m, n, k).as_dict()
                results += [about | figures for figures in measure(a, b, kernels)]
        for name in LARGE:
            step(name)
            large += measure_large(name, session.device, session.seed, kernels)
    session.record["summary"] = summarise(results)
    for k in depths:
        columns, rows = cells(session.record, [k], kernels)
        tables.show(f"{m} x {n} x {k}: error max / mean", columns, rows)
    tables.show("Large products: error max / mean", *large_cells(session.record, kernels))
    show_summary(session.record)
    path, status = session.finish()
    status |= tables.report_failures(large)
    tables.say(f"Chart: {plots.accuracy(session.record, record.chart_path(path))}")
    session.show_recorded(show_recorded)
    return status


def _gram(size: int, gen: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns G G^T, whose diagonal is a sum of squares."""
    g = torch.randn(2 * size, 2 * size, generator=gen, device=gen.device)
    return g, g.t()


def _covariance(size: int, gen: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns A A of A = X X^T / size: one or two products dominate each sum."""
    x = torch.randn(size, size, generator=gen, device=gen.device)
    a = x @ x.t() / size
    return a, a


def _cube(name: str) -> Make:
    return lambda size, gen: tuple(x.float() for x in KINDS[name].make(size, size, size, gen))


LARGE: dict[str, tuple[Make, float]] = {  # how to make A and B, and the largest good error, units
    "normal": (_cube("normal"), GOOD_UNITS),
    "uniform_1_1": (_cube("uniform_1_1"), GOOD_UNITS),
    "one_sided": (_cube("one_sided"), GOOD_UNITS),
    "one_feature": (_cube("one_feature"), FEATURE_UNITS),
    "gram": (_gram, GOOD_UNITS),
    "covariance_squared": (_covariance, GOOD_UNITS),
}


def measure_large(name: str, device: torch.device, seed: int, kernels: Sequence[str]) -> list[dict]:
    """Measures errors of each kernel on one of LARGE."""
    make, good = LARGE[name]
    size = GPU_LARGE if device.type == "cuda" else CPU_LARGE
    a, b = make(size, generator(seed, device))
    about = {"distribution": name} | Problem(a.size(0), b.size(1), a.size(1)).as_dict()
    return [about | figures for figures in measure(a, b, kernels, good)]


def measure(
    a: torch.Tensor, b: torch.Tensor, kernels: Sequence[str], good: float = GOOD_UNITS
) -> list[dict]:
    """Measures errors of each kernel and of torch.mm on a @ b; ``good`` units are good in any case.

    A kernel that raises has "failed" and no errors. Rows of float32 multiply-adds are correct
    within their bound, even if they are not good; all others have to be good.
    """
    problem = Problem(a.size(0), b.size(1), a.size(1))
    exact, magnitude = a.double() @ b.double(), a.abs().double() @ b.abs().double()
    c = torch.empty(problem.m, problem.n, device=a.device)

    def errors(side: Side) -> Errors:
        c.fill_(float("nan"))
        side.run(Operands(a, b, c))
        return in_units(c, exact, magnitude)

    theirs = errors(torch_side(problem))
    rows = []
    for kernel in kernels:
        row = {"kernel": kernel, "good": False, "correct": False}
        row |= {"torch_error_max": theirs.max, "torch_error_mean": theirs.mean}
        try:
            ours = errors(sgemm_side(problem, kernel))
        except RuntimeError as failure:
            rows.append(row | {"failed": str(failure).splitlines()[0]})
            continue
        row |= {"error_max": ours.max, "error_mean": ours.mean}
        row["good"] = ours.max <= good_up_to(theirs.max, good)
        most = limit(kernel, problem.k, theirs.max, good)
        rows.append(row | {"error_bound": most, "correct": ours.max <= most})  # False for NaN
    return rows


def summarise(rows: Sequence[dict]) -> list[dict]:
    """Returns each kernel's bad cases, and on how many distributions it beats torch.mm's long sums.

    ``below`` of ``distributions`` have a smaller mean error, averaged over k >= LONG. A case that
    failed or is NaN is not smaller than anything.
    """
    summary = []
    for kernel in dict.fromkeys(r["kernel"] for r in rows):
        of_kernel = [r for r in rows if r["kernel"] == kernel]
        means: dict[str, list[tuple[float, float]]] = {}
        for r in of_kernel:
            if r["k"] >= LONG:
                pair = r.get("error_mean", float("nan")), r["torch_error_mean"]
                means.setdefault(r["distribution"], []).append(pair)
        # Both sides have the same k, so sums compare like averages.
        sums = [tuple(map(sum, zip(*pairs, strict=True))) for pairs in means.values()]
        summary.append(
            {
                "kernel": kernel,
                "cases": len(of_kernel),
                "bad": sum(not r["good"] for r in of_kernel),
                "below": sum(ours < theirs for ours, theirs in sums),
                "distributions": len(sums),
            }
        )
    return summary


def cells(
    found: dict, depths: Sequence[int], kernels: Sequence[str]
) -> tuple[list[str], list[list[str]]]:
    """Makes a line per distribution, with torch.mm's and the kernels' errors, max / mean, by k."""
    by: dict[str, dict[tuple[int, str], str]] = {}
    for r in found["rows"]:
        line = by.setdefault(r["distribution"], {})
        verdict = "" if r["good"] else tables.verdict(r) or "BAD"
        text = "failed" if "failed" in r else f"{tables.errors(r)} {verdict}".strip()
        line[r["k"], r["kernel"]] = text
        line[r["k"], "torch.mm"] = tables.errors(r, "torch_")
    places = [(k, name) for k in depths for name in ("torch.mm", *kernels)]
    rows = [[name, *(line.get(at, tables.NONE) for at in places)] for name, line in by.items()]
    heads = [name if len(depths) == 1 else f"{name}, k = {k}" for k, name in places]
    return ["distribution", *heads], rows


def large_cells(found: dict, kernels: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Makes a line per large product: torch.mm's and the kernels' errors, max / mean."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for r in found.get("large", ()):
        line = lines.setdefault((r["distribution"], f"{r['m']} x {r['n']} x {r['k']}"), {})
        verdict = "" if r["good"] else tables.verdict(r) or "BAD"
        line[r["kernel"]] = "failed" if "failed" in r else f"{tables.errors(r)} {verdict}".strip()
        line["torch.mm"] = tables.errors(r, "torch_")
    names = ("torch.mm", *kernels)
    rows = [[*at, *(line.get(name, tables.NONE) for name in names)] for at, line in lines.items()]
    return ["product", "m x n x k", *names], rows


def show_summary(found: dict) -> None:
    """Prints bad cases and comparisons of the means."""
    rows = [
        [s["kernel"], str(s["cases"]), str(s["bad"]), f"{s['below']} of {s['distributions']}"]
        for s in found["summary"]
    ]
    columns = ["kernel", "cases", "bad", f"distributions with a smaller mean, k ≥ {LONG}"]
    tables.show("Errors beside torch.mm's", columns, rows)


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    tables.say("\nRecorded on a GPU:")
    show_summary(found)
