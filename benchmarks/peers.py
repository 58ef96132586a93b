"""``peers``: other ways to multiply float32 matrices, beside torch.mm: speed and errors.

Ten row-major products by every way that is here, and a router: bfloat16 activations by a float32
weight. Triton and FlagGems are imported; the others are built with nvcc from checkouts of their
sources, which --sources names. A way that can't be imported or built is listed with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import record, tables
from benchmarks.measure import Measurement, geomean
from benchmarks.peer_builds import UnavailableError, library, product
from benchmarks.problems import Operands, Pool, Problem
from benchmarks.session import Session
from benchmarks.sides import BF16, OWN_MIXED, TF32, Side, bf16_sides, tf32_side

SIZE = 4096  # of the product with a column of its own
PRODUCTS = (
    *(Problem.square(size) for size in (512, 1024, 2048, 3072, SIZE)),
    Problem(4096, 3072, 768),
    Problem(2048, 11008, 4096),
    Problem(16384, 256, 7168),
    Problem(65536, 256, 256),
    Problem(1024, 1024, 65536),
)
ROUTERS = tuple(Problem(tokens, 256, 7168, "NT") for tokens in (16, 512, 16384))
CPU_PRODUCTS = (Problem.square(32), Problem.square(64))
CPU_ROUTERS = (Problem(16, 64, 128, "NT"),)
OWN, HPC_SCALE = "auto", 1 / 256
PRODUCT, ROUTER = "product", "router"  # a row's group
LEGEND = (
    "The products are row-major: " + ", ".join(p.label.removesuffix(" NN") for p in PRODUCTS) + ". "
    "Errors are the largest of 64 rows against float64 over these products, in units of "
    "2⁻²⁴·(|A||B|). CUTLASS's and Triton's tiles are the fastest of a list, for each product."
)
ROUTER_LEGEND = (
    "x is tokens by 7168 values of bfloat16, the weight 256 by 7168 in float32. torch.mm has x "
    "converted before, as have the others that take float32; HPC-Ops has the weight split before."
)

Make = Callable[[Problem, Pool, Path | None], Side]


def _tf32(problem: Problem, _: Pool, __: Path | None) -> Side:
    _on_a_gpu()
    return tf32_side(problem)


def _bf16(_: Problem, pool: Pool, __: Path | None) -> Side:
    return bf16_sides(pool)[0]


def _own_mixed(_: Problem, pool: Pool, __: Path | None) -> Side:
    """Returns this package's product of A in bfloat16, which its values fit, by a float32 B."""
    activations = {s.a.data_ptr(): s.a.bfloat16() for s in pool.sets}

    def run(s: Operands) -> None:
        torch.ops.sgemm.mm_out(activations[s.a.data_ptr()], s.b, out=s.c)

    return Side(OWN_MIXED, run)


def _triton(precision: str) -> Make:
    def make(_: Problem, __: Pool, ___: Path | None) -> Side:
        mm = imported("benchmarks.peer_triton").mm
        return Side(precision, lambda s: mm(s.a, s.b, s.c, precision))

    return make


def _flag_gems(_: Problem, __: Pool, ___: Path | None) -> Side:
    mm_out = imported("flag_gems").mm_out
    return Side("flag_gems", lambda s: mm_out(s.a, s.b, out=s.c))


def imported(module: str) -> object:
    """Imports a module that needs a GPU; raises UnavailableError if that isn't possible."""
    _on_a_gpu()
    try:
        return importlib.import_module(module)
    except Exception as failure:  # whatever its dependencies raise
        raise UnavailableError(f"{type(failure).__name__}: {failure}") from None


def _built(name: str) -> Make:
    def make(_: Problem, __: Pool, folder: Path | None) -> Side:
        _on_a_gpu()
        mm = product(name, folder)
        return Side(name, lambda s: mm(s.a, s.b, s.c))

    return make


def _hpc_ops(problem: Problem, pool: Pool, folder: Path | None) -> Side:
    """Returns HPC-Ops' side: the weight as two bfloat16, made before. It returns new tensors."""
    _on_a_gpu()
    try:
        torch.ops.load_library(str(library("hpc_ops", folder)))
    except OSError as failure:
        raise UnavailableError(str(failure)) from None
    operands = {}
    for s in pool.sets:
        weight = s.b.mT.contiguous()
        high = weight.bfloat16()
        low = ((weight - high.float()) / HPC_SCALE).bfloat16()
        operands[s.a.data_ptr()] = s.a.bfloat16(), high, low
    tiles = problem.m // 16 + 1, problem.n // 64 + 1
    flags = torch.zeros(tiles, dtype=torch.int32, device=pool.sets[0].a.device)

    def run(s: Operands) -> None:
        split = operands[s.a.data_ptr()]
        result = torch.ops.hpc.gemm_bf16xfp32(*split, HPC_SCALE, True, True, flags)
        if not torch.cuda.is_current_stream_capturing():
            s.c.copy_(result)  # outside of timing, so that callers can read C

    return Side("hpc_ops", run)


def _on_a_gpu() -> None:
    if not torch.cuda.is_available():
        raise UnavailableError("needs a GPU")


WAYS: dict[str, tuple[str, Make | None]] = {  # title, and side; None: a row of this package
    OWN: ("torch_sgemm, `auto`", None),
    "cutlass": ("CUTLASS, 3xTF32", _built("cutlass")),
    "gemmul8": ("GEMMul8, int8, 8 moduli, fast mode", _built("gemmul8")),
    "cumpsgemm": ("cuMpSGEMM, FP16TCEC", _built("cumpsgemm")),
    "tf32x3": ("Triton, tf32x3", _triton("tf32x3")),
    "bf16x6": ("Triton, bf16x6", _triton("bf16x6")),
    "flag_gems": ("FlagGems, mm", _flag_gems),
    TF32: ("torch.mm, TF32", _tf32),
    BF16: ("torch.mm, operands of bfloat16", _bf16),
}
ROUTER_WAYS: dict[str, tuple[str, Make | None]] = {
    OWN: ("torch_sgemm, `auto`, both float32", None),
    OWN_MIXED: ("torch_sgemm, `auto`, bfloat16 by float32", _own_mixed),
    "hpc_ops": ("HPC-Ops, gemm_bf16xfp32", _hpc_ops),
    TF32: WAYS[TF32],
    BF16: WAYS[BF16],
}
NAMES = tuple(dict.fromkeys([*WAYS, *ROUTER_WAYS]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --sources and --way."""
    parser.add_argument(
        "--sources", type=Path, metavar="DIR", help="checkouts of other libraries, to be built"
    )
    parser.add_argument("--way", nargs="+", choices=NAMES, default=list(NAMES))


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record, prints the tables."""
    session = Session(args)
    products, routers = (PRODUCTS, ROUTERS) if session.on_gpu else (CPU_PRODUCTS, CPU_ROUTERS)
    work = [(PRODUCT, p, WAYS) for p in products] + [(ROUTER, p, ROUTER_WAYS) for p in routers]
    work = [(group, p, {k: v for k, v in ways.items() if k in args.way}) for group, p, ways in work]
    work = [item for item in work if item[2]]
    missing: dict[str, str] = {}
    with session.progress(sum(len(ways) for _, _, ways in work)) as step:
        for group, problem, ways in work:
            at = measurement(group, problem, session)
            for name, (title, make) in ways.items():
                step(f"{problem.label} {title}")
                if name not in missing:
                    try:
                        row = measure(at, name, make, session, args.sources)
                    except UnavailableError as reason:
                        missing[name] = f"{title}: {reason}"
                    else:
                        session.record["rows"].append(
                            {"group": group, "way": title, "label": problem.label} | row
                        )
            del at
    session.record["missing"] = list(missing.values())
    show(session.record)
    _, status = session.finish()
    session.show_recorded(show)
    return status


def measurement(group: str, problem: Problem, session: Session) -> Measurement:
    """Returns a problem with its operands; a router's activations are values of bfloat16."""
    values = None
    if group == ROUTER:
        generator = torch.Generator(device=session.device).manual_seed(session.seed)
        a = torch.empty(problem.m, problem.k, device=session.device)
        b = torch.empty(problem.k, problem.n, device=session.device)
        a, b = (x.uniform_(-1, 1, generator=generator) for x in (a, b))
        values = a.bfloat16().float(), b
    return Measurement(problem, session.device, session.seed, session.options, values)


def measure(
    at: Measurement, name: str, make: Make | None, session: Session, folder: Path | None
) -> dict:
    """Returns a row of a way beside torch.mm. Only this package's rows can be wrong."""
    if make is None:
        return at.row(name, session.sampler)
    side = make(at.problem, at.pool, folder)

    def run(s: Operands) -> None:
        try:
            side.run(s)
        except Exception as failure:  # whatever another library raises
            raise RuntimeError(f"{type(failure).__name__}: {failure}") from failure

    row = at.side(Side(side.name, run), name, session.sampler)
    as_exact = row.pop("correct") and "failed" not in row
    if name == OWN_MIXED:
        return row | {"correct": as_exact}
    return row if "failed" in row else row | {"as_exact": as_exact}


def show(found: dict) -> None:
    """Prints both tables, and what is missing."""
    for group, title in ((PRODUCT, "Ways to multiply float32 matrices"), (ROUTER, "A router")):
        if any(r["group"] == group for r in found["rows"]):
            tables.show(f"{title}: speed relative to torch.mm", *cells(found, group))
    for line in found["missing"]:
        tables.console.print(f"Not measured: {line}", markup=False)


def cells(found: dict, group: str) -> tuple[list[str], list[list[str]]]:
    """Makes a line per way: speeds relative to torch.mm, and largest errors."""
    rows = [r for r in found["rows"] if r["group"] == group]
    labels = list(dict.fromkeys(r["label"] for r in rows))
    theirs = {r["label"]: r["torch_error_max"] for r in rows if "torch_error_max" in r}
    lines = [["torch.mm, float32"]]
    if group == ROUTER:
        first, shown = None, labels
        columns = [f"{label.split(' ')[0]} tokens" for label in labels]
    else:
        cube = Problem.square(SIZE).label
        first = cube if cube in labels else labels[-1]
        shown, columns = [first], [f"{first.split(' ')[0]}³", "geometric mean", "worst"]
    lines[0] += ["1.00"] * len(columns) + [_largest(theirs, first)]
    for way in dict.fromkeys(r["way"] for r in rows):
        of_way = {r["label"]: r for r in rows if r["way"] == way}
        good = {label: r for label, r in of_way.items() if "failed" not in r}
        line = [way, *(_speed(of_way.get(label)) for label in shown)]
        if group == PRODUCT:
            line += _mean([r["percent_of_torch"] / 100 for r in good.values()], len(labels))
        errors = {label: r["error_max"] for label, r in good.items()}
        lines.append([*line, _largest(errors, first)])
    of = f"error at {columns[0]} / largest" if first else "largest error"
    return ["way", *columns, of], lines


def _speed(row: dict | None) -> str:
    if row is None:
        return tables.NONE
    return "failed" if "failed" in row else f"{row['percent_of_torch'] / 100:.2f}"


def _mean(ratios: list[float], count: int) -> list[str]:
    """Returns the geometric mean, of how many if not of all, and the smallest."""
    if not ratios:
        return [tables.NONE] * 2
    few = "" if len(ratios) == count else f" ({len(ratios)} of {count})"
    return [f"{geomean(ratios):.2f}{few}", f"{min(ratios):.2f}"]


def _largest(errors: dict[str, float], first: str | None) -> str:
    """Returns the largest error, behind that of the product ``first`` if there is one."""
    found = errors.values()
    text = tables.digits(math.nan if any(map(math.isnan, found)) else max(found, default=None))
    return text if first is None else f"{tables.digits(errors.get(first))} / {text}"


def beside(slug: str, results: Path | None = None) -> list[dict]:
    """Returns the record's rows of other libraries at SIZE, as exact as torch.mm, with "date"."""
    found = record.latest_gpu("peers", results, slug) or {"rows": [], "date": ""}
    at = {"group": PRODUCT, "label": Problem.square(SIZE).label, "as_exact": True}
    return [r | {"date": found["date"]} for r in found["rows"] if at.items() <= r.items()]
