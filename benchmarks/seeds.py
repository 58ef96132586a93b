"""``seeds``: each source document's table at its own sizes, its author's figures beside ours."""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path

from benchmarks import tables
from benchmarks.measure import Measurement, runnable
from benchmarks.problems import Problem
from benchmarks.session import Session

SEEDS = Path(__file__).parent / "seeds.json"
CPU_FLOPS = 2 * 64.0**3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --document."""
    parser.add_argument("--document", nargs="+", choices=sorted(load()["documents"]))


def load(path: Path = SEEDS) -> dict:
    """Returns the documents and their rows."""
    return json.loads(path.read_text())


def problem_of(row: dict) -> Problem:
    """Returns the problem of a row of seeds.json: row-major, in place if it has alpha and beta."""
    return Problem(row["m"], row["n"], row["k"], alpha=row["alpha"], beta=row["beta"])


def run(args: argparse.Namespace) -> int:
    """Measures each (row, problem) once, saves the record and prints the documents' tables."""
    data = load()
    session = Session(args)
    documents = args.document or list(data["documents"])
    wanted = [r for r in data["rows"] if r["document"] in documents]
    if not session.on_gpu:
        small = [r for r in wanted if problem_of(r).flops <= CPU_FLOPS]
        tables.say(f"{len(small)} of {len(wanted)} rows are small enough for the CPU.")
        wanted = small
    here = {row.name for row in runnable(session.device)}
    missing = sorted({r["kernel"] for r in wanted} - here)
    if missing:
        raise RuntimeError(f"seeds.json names rows that do not run here: {', '.join(missing)}")
    session.record["documents"] = {name: data["documents"][name] for name in documents}
    # The same rung at the same size in two documents is measured once.
    todo: dict[Problem, dict[str, list[dict]]] = {}
    for r in wanted:
        todo.setdefault(problem_of(r), {}).setdefault(r["kernel"], []).append(r)
    measured: dict[int, dict] = {}
    with session.progress(sum(len(kernels) for kernels in todo.values())) as step:
        for problem, kernels in todo.items():
            at = Measurement(problem, session.device, session.seed, session.options)
            for kernel, rows in kernels.items():
                step(f"{problem.label} {kernel}")
                figures = at.row(kernel, session.sampler)
                for r in rows:
                    measured[id(r)] = r | figures
            del at
    session.record["rows"] = [measured[id(r)] for r in wanted]
    for title, columns, rows in document_tables(session.record):
        tables.show(title, columns, rows, left=2)
    _, status = session.finish()
    session.show_recorded(show_recorded)
    return status


def figures(row: dict, statistic: str) -> tuple[float, float]:
    """Returns (our GFLOPS, percentage of torch) by the document's statistic: best or median."""
    key = "_us_best" if statistic == "best" else "_us"
    ours, theirs = row[f"kernel{key}"], row[f"torch{key}"]
    return problem_of(row).flops / ours * 1e-3, 100 * theirs / ours


def document_tables(found: dict) -> list[tuple[str, list[str], list[list[str]]]]:
    """Returns (title, columns, rows) for each table of each document, from a record."""
    result = []
    columns = ["document's kernel", "row", "size", "author, GFLOPS", "of cuBLAS"]
    columns += ["here, GFLOPS", "of torch.mm"]
    for (name, table), group in groupby(found["rows"], lambda r: (r["document"], r["table"])):
        document = found["documents"][name]
        part = "" if table == "main" else f", {table}"
        title = f"{name}: {document['title']} ({document['gpu']}){part}"
        rows = [_cells(r, document["statistic"]) for r in group]
        result.append((title, columns, rows))
    return result


def _cells(r: dict, statistic: str) -> list[str]:
    author, cublas = r["author_gflops"], r["author_cublas_gflops"]
    size = f"{r['m']}³" if r["m"] == r["n"] == r["k"] else f"{r['m']} x {r['n']} x {r['k']}"
    share = tables.percent(100 * author / cublas) if author and cublas else tables.NONE
    cells = [r["author_kernel"], r["kernel"], size, tables.digits(author), share]
    if tables.verdict(r):
        return [*cells, tables.verdict(r), tables.NONE]
    gflops, of_torch = figures(r, statistic)
    return [*cells, tables.digits(gflops), tables.percent(of_torch)]


def show_recorded(found: dict) -> None:
    """Prints a GPU's figures."""
    tables.say("\nRecorded on a GPU:")
    for title, columns, rows in document_tables(found):
        tables.show(title, columns, rows, left=2)
