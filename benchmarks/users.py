"""``users``: the products of programs that multiply in float32 on purpose, with the data they have.

Kernel times are beside torch in float32 by turns, as in ``suite``. For information, torch in TF32
and with bfloat16 operands, and this package with bfloat16 operands, show what float32 costs. Their
errors show what float32 is for.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import torch

from benchmarks import plots, record, suite, tables
from benchmarks.data import matrices
from benchmarks.measure import Measurement
from benchmarks.problems import Problem
from benchmarks.session import Session, check_names
from benchmarks.sides import INFORMATION, bf16_sides, tf32_side
from benchmarks.timing import Options

LEGEND = (
    "A product is m x n x k; a batch has the number of its products in front. The letters say how "
    "A and B are stored: N row-major, T transposed. 2.00 is twice as fast as torch in float32. "
    "Errors are the largest of 64 rows against float64, in units of 2⁻²⁴·(|A||B|).\n\n"
    "TF32 and bf16 are torch's with such operands, timed by themselves: speed relative to torch in "
    "float32, and the largest error in brackets. Operands that are bf16 values already lose "
    "nothing there. Own bf16 is this package where operands are bfloat16 in memory, own mixed "
    "where B alone is.\n\n"
    "`square` is for comparison. `lm_head` is an output layer in reinforcement learning, "
    "`decoding` a few tokens times a weight. `router` is from mixtures of experts. `gram` is G Gᵀ "
    "and XᵀX of second-order optimizers and quantization. `graph` has one-hot rows and an "
    "adjacency matrix, `attention` causal weights times values. "
    "`neighbours` are distances between images. "
    "`gaussian-process` is a kernel matrix times vectors. `potential` is a layer of an interatomic "
    "potential, and its weight's gradient."
)
WORKING_SETS = 5  # memory over the problem's: operands, their values, float64 references
CPU_SIZES = (24, 24, 28)  # largest m, n and k for the emulator


@dataclass(frozen=True)
class Product:
    """A problem with the data that it is multiplied with; ``group``: by whom."""

    group: str
    data: str
    problem: Problem

    @property
    def label(self) -> str:
        """``router 16 x 256 x 7168 NT bf16_activations``."""
        return f"{self.group} {self.problem.label} {self.data}"

    def tiny(self) -> Product:
        """Returns the same with sizes for the emulator."""
        p = self.problem
        m, n, k = (min(pair) for pair in zip((p.m, p.n, p.k), CPU_SIZES, strict=True))
        return replace(self, problem=replace(p, m=m, n=n, k=k, batch=min(p.batch, 2)))


ROUTERS = ((128, 2048), (256, 7168), (384, 6144))  # experts and hidden size
TOKENS = (1, 16, 256, 4096, 16384)
PRODUCTS = (
    *(Product("square", "bf16_values", Problem.square(size)) for size in (2048, 4096, 8192)),
    Product("square", "bf16_activations", Problem.square(8192)),
    *(Product("square", "normal", Problem.square(size)) for size in (4096, 8192)),
    Product("lm_head", "bf16_values", Problem(8192, 151936, 4096, "NT")),
    *(
        Product("decoding", "bf16_values", Problem(tokens, size, 4096, "NT"))
        for size in (4096, 14336)
        for tokens in (1, 4, 16)
    ),
    *(
        Product("router", "bf16_activations", Problem(tokens, experts, hidden, "NT"))
        for experts, hidden in ROUTERS
        for tokens in TOKENS
    ),
    *(Product("gram", "normal", Problem(s, s, s, "NT", gram=True)) for s in (2048, 4096)),
    Product("gram", "bf16_values", Problem(14336, 14336, 8192, "TN", gram=True)),
    Product("graph", "one_hot", Problem(65536, 1024, 512)),
    Product("graph", "adjacency", Problem(16384, 256, 16384)),
    Product("attention", "causal_softmax", Problem(512, 64, 512, batch=96)),
    Product("attention", "causal_softmax", Problem(1024, 64, 1024, batch=48)),
    Product("neighbours", "uint8_values", Problem(4096, 100000, 784, "NT")),
    Product("gaussian-process", "gaussian_kernel_3", Problem(16384, 64, 16384)),
    Product("potential", "tanh_outputs", Problem(262144, 128, 128)),
    Product("potential", "tanh_outputs", Problem(64, 64, 1000000, "TN")),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --group, --data and --kernel."""
    parser.add_argument("--group", nargs="+", metavar="NAME", help="these users' products only")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="these kinds of data only")
    parser.add_argument("--kernel", metavar="NAME", help="a row or family (default: auto)")


def describe(options: Options, device: torch.device) -> str:
    """Describes the options in words, to be recorded."""
    return f"{options.describe(device)}; TF32 and bf16 by themselves"


def chosen_products(args: argparse.Namespace) -> list[Product]:
    """Returns products of the groups and data on the command line; all if none are named."""
    groups = list(dict.fromkeys(p.group for p in PRODUCTS))
    kinds = list(dict.fromkeys(p.data for p in PRODUCTS))
    check_names("--group", args.group, groups, "group")
    check_names("--data", args.data, kinds, "data")
    found = [
        p for p in PRODUCTS if p.group in (args.group or groups) and p.data in (args.data or kinds)
    ]
    if not found:
        raise RuntimeError(
            f"--data {' '.join(args.data)}: no product of --group {' '.join(args.group)} has them"
        )
    return found


def run(args: argparse.Namespace) -> int:
    """Measures, saves the record and the chart, prints the tables."""
    products = chosen_products(args)
    session = Session(args, describe)
    if not session.on_gpu:
        products = list(dict.fromkeys(product.tiny() for product in products))
        tables.say(f"{len(products)} tiny products with the same data.")
    # On CPU tensors auto is PyTorch's kernel; what runs there shows that the rest works.
    kernel = args.kernel or ("auto" if session.on_gpu else "ladder")
    left_out = session.record["left_out"] = []
    with session.progress(len(products)) as step:
        for product in products:
            step(product.label)
            lacking = lacking_memory(product.problem, session.device)
            if lacking:
                left_out.append(f"{product.label}: {lacking}")
                tables.say(f"[yellow]Left out: {left_out[-1]}.[/]")
            else:
                session.record["rows"].append(measure(session, product, kernel))
    session.record["summary"] = suite.summarise(session.record["rows"])
    show(session.record)
    path, status = session.finish()
    if session.record["rows"]:
        tables.say(f"Chart: {plots.users(session.record, record.chart_path(path))}")
    session.show_recorded(show)
    return status


def lacking_memory(problem: Problem, device: torch.device) -> str:
    """Describes the memory that ``problem`` lacks; empty if there is enough."""
    if device.type != "cuda":
        return ""
    torch.cuda.empty_cache()  # frees what the previous product left
    free, _ = torch.cuda.mem_get_info(device)
    need = WORKING_SETS * problem.bytes
    if need <= free:
        return ""
    return f"takes about {need / 2**30:.1f} GiB of the GPU's memory, {free / 2**30:.1f} are free"


def measure(session: Session, product: Product, kernel: str) -> dict:
    """Measures one product and, for information, the two that are not float32."""
    problem, device = product.problem, session.device
    values = matrices(product.data, problem, device, session.seed)
    at = Measurement(problem, device, session.seed, session.options, values)
    del values  # as large as the operands
    row = at.row(kernel, session.sampler)
    row |= {"group": product.group, "data": product.data, "label": product.label}
    if device.type == "cuda":  # a CPU has no TF32
        row |= at.alone(tf32_side(problem))
    if problem.batch == 1:
        for side in bf16_sides(at.pool):
            row |= at.alone(side)
    return row


def show(found: dict) -> None:
    """Prints both tables."""
    tables.show("Users' products: speed relative to torch", *cells(found), left=4)
    suite.show_summary(found)


def cells(found: dict) -> tuple[list[str], list[list[str]]]:
    """Makes a line per product, to print or for Markdown."""
    lines = []
    for r in found["rows"]:
        line = [r["group"], Problem(**{key: r[key] for key in SIZES}).label, r["data"]]
        if "failed" in r:
            lines.append([*line, "failed", *[tables.NONE] * (4 + len(INFORMATION))])
            continue
        line += [r["chosen"], tables.time(r["torch_us"]), tables.time(r["kernel_us"])]
        line += [tables.verdict(r) or f"{r['percent_of_torch'] / 100:.2f}"]
        line += [f"{tables.digits(r['error_max'])} / {tables.digits(r['torch_error_max'])}"]
        lines.append([*line, *(_information(r, side) for side in INFORMATION)])
    columns = ["group", "product", "data", "row", "torch", "time", "speed", "error / torch's"]
    return [*columns, *(head for head, _ in INFORMATION.values())], lines


SIZES = ("m", "n", "k", "ops", "batch")


def _information(row: dict, side: str) -> str:
    if f"{side}_us" not in row:
        return tables.NONE
    error = tables.digits(row[f"{side}_error_max"])
    return f"{row['torch_us'] / row[f'{side}_us']:.2f} ({error})"
