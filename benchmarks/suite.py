"""``suite``: the problems of shapes.json, ratios to torch.mm and torch.bmm, geometric means."""

from __future__ import annotations

import argparse

import torch_sgemm
from benchmarks import plots, record, tables, worth
from benchmarks.measure import Measurement, families, geomean
from benchmarks.problems import load_cases
from benchmarks.session import Session, check_names

LEGEND = (
    "A case is m x n x k; a batch has the number of its products in front. The letters say how "
    "A and B are stored: N row-major, T transposed. 2.00 is twice as fast as torch; worst is a "
    "group's slowest case.\n\n"
    "`square` has square products. `seed` has the sizes of the documents "
    "that the ladder follows, `transformer` layers of GPT-2, Llama and an MLP in training. "
    "`skinny` has decoding and routers, `deepbench` sizes from DeepBench. `large-k` has "
    "gradients of weights and Gram matrices, `tall` layers that are applied to points. "
    "`conv-gemm` has convolutions from rocBLAS's list, `batched` attention and small batches. "
    "`odd` has odd sizes and unaligned rows. In `tiny`, latency counts."
)
CPU_FLOPS = 4e6  # a larger case would take the emulator seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --kernel and --group."""
    parser.add_argument(
        "--kernel", nargs="+", metavar="NAME", help="rows or families (default: auto, all families)"
    )
    parser.add_argument("--group", nargs="+", help="these groups of shapes.json only")


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the tables."""
    cases = load_cases()
    groups = list(dict.fromkeys(group for group, _, _ in cases))
    check_names("--group", args.group, groups, "group")
    session = Session(args)
    if args.group:
        cases = [case for case in cases if case[0] in args.group]
    if not session.on_gpu:
        small = [case for case in cases if case[2].flops <= CPU_FLOPS]
        tables.say(f"{len(small)} of {len(cases)} cases are small enough for the CPU.")
        cases = small
    kernels = args.kernel or ["auto", *families(session.device)]
    results = session.record["rows"]
    with session.progress(len(cases) * len(kernels)) as step:
        for group, source, problem in cases:
            at = Measurement(problem, session.device, session.seed, session.options)
            for kernel in kernels:
                step(f"{problem.label} {kernel}")
                about = {"group": group, "source": source, "label": f"{group} {problem.label}"}
                row = at.row(kernel, session.sampler)
                if kernel == "auto" and session.on_gpu:
                    row |= runner_up(at, session)
                results.append(about | row)
            del at
    session.record["summary"] = summarise(results)
    show(session.record)
    path, status = session.finish()
    if results:
        tables.say(f"Chart: {plots.suite(session.record, record.chart_path(path))}")
    session.show_recorded(show_recorded)
    return status


def runner_up(at: Measurement, session: Session) -> dict:
    """Returns the row that ``auto`` would take without its first choice, and its speed."""
    first = at.pool.sets[0]
    ranked = worth.ranked(torch_sgemm.explain(first.a, first.b))
    if len(ranked) < 2:  # only PyTorch's kernel runs here
        return {}
    following = ranked[1]
    if following == worth.ATEN:
        return {"next": following, "next_percent_of_torch": 100.0}
    row = at.row(following, session.sampler)
    speed = {} if "failed" in row else {"next_percent_of_torch": row["percent_of_torch"]}
    return {"next": following} | speed


def worth_cases(found: dict) -> list[worth.Case]:
    """Returns the cases whose second choice is recorded."""
    return [
        worth.Case(r["chosen"], r["percent_of_torch"] / 100, r["next_percent_of_torch"] / 100)
        for r in found["rows"]
        if "next_percent_of_torch" in r and "failed" not in r
    ]


def summarise(rows: list[dict]) -> list[dict]:
    """Returns each kernel's geometric mean and worst case, over all cases and for each group.

    A case that failed or is wrong is in neither; ``bad`` counts them.
    """
    summary = []
    for kernel in dict.fromkeys(r["kernel"] for r in rows):
        of_kernel = [r for r in rows if r["kernel"] == kernel]
        for group in ("all", *dict.fromkeys(r["group"] for r in of_kernel)):
            chosen = [r for r in of_kernel if group in ("all", r["group"])]
            good = [r for r in chosen if r["correct"]]
            worst = min(good, key=lambda r: r["percent_of_torch"], default=None)
            summary.append(
                {
                    "kernel": kernel,
                    "group": group,
                    "cases": len(good),
                    "bad": len(chosen) - len(good),
                    "geomean": geomean(r["percent_of_torch"] / 100 for r in good),
                    "worst": worst["percent_of_torch"] / 100 if worst else None,
                    "worst_case": worst["label"] if worst else None,
                }
            )
    return summary


def show(found: dict) -> None:
    """Prints both tables."""
    rows = []
    for r in found["rows"]:
        if "failed" in r:
            rows.append([r["label"], r["kernel"], "failed", *[tables.NONE] * 5])
            continue
        cells = [r["label"], r["kernel"], r["chosen"], tables.time(r["kernel_us"])]
        cells += [tables.time(r["torch_us"]), f"{r['percent_of_torch'] / 100:.2f}"]
        cells += [f"{tables.errors(r)} {tables.verdict(r)}".strip(), tables.errors(r, "torch_")]
        rows.append(cells)
    columns = ["case", "kernel", "row", "time", "torch", "ratio", "error max / mean", "torch's"]
    tables.show("Suite: speed relative to torch", columns, rows, left=3)
    show_summary(found)


def show_summary(found: dict) -> None:
    """Prints geometric means."""
    columns, rows = summary_cells(found)
    tables.show("Speed relative to torch", columns, rows, left=2)
    if cases := worth_cases(found):
        tables.show("What a row is worth", *worth.cells(found, cases))


def summary_cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes columns and rows of the summary, to print or for Markdown."""
    rows = []
    for s in found["summary"]:
        worst = tables.NONE if s["worst"] is None else f"{s['worst']:.2f} ({s['worst_case']})"
        mean = f"{s['geomean']:.2f}" if s["cases"] else tables.NONE
        rows.append([s["kernel"], s["group"], str(s["cases"]), str(s["bad"]), mean, worst])
    return ["kernel", "group", "cases", "failed or wrong", "geometric mean", "worst"], rows


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    tables.say("\nRecorded on a GPU:")
    show_summary(found)
