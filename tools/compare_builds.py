"""Compares two builds: the same problems, the same rows, the same bits?

    python tools/compare_builds.py OTHER [--problems 3000] [--seed 0] [--device cuda] [--rows '*']

OTHER is another checkout with its library built. Both run the same random problems, each in a
process of its own: sizes, layouts, batches, alpha, beta, data with range, with Inf and NaN. For
each problem the tool compares "auto"'s choice, and the bits of every ieee and split row's result by
some plans, whether the cost models prefer them or not. On the CPU it compares the ladder's.
--rows limits the rows to those whose names match a pattern, such as 'split_*'. Prints differing
results, then differing choices; exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = {"cuda": 1 << 30, "cpu": 40_000}  # m * n * k of a problem
PLANS = 3  # drawn plans per row
DATA = ("normal", "integers", "wide", "zeros", "inf", "nan")


def random_problem(rng: random.Random, device: str) -> dict:
    """Draws log-uniform sizes, one in four a multiple of 32; most problems plain otherwise."""

    def size(most: int) -> int:
        x = round(2 ** rng.uniform(0, most))
        return max(32, x // 32 * 32) if rng.random() < 0.25 and device == "cuda" else x

    powers = (12, 12, 15) if device == "cuda" else (5, 5, 6)
    while True:
        m, n, k = (size(power) for power in powers)
        batch = rng.choice((1, 1, 1, 2, 5, 16))
        if m * n * k * batch <= LARGEST[device]:
            break
    plain = rng.random() < 0.6
    return {
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "a": rng.choice("NTO"),  # row-major, transposed, or 4-byte aligned only
        "b": rng.choice("NTO"),
        "alpha": 1.0 if plain else rng.choice((1.0, -0.5, 2.0**-130, 3e30)),
        "beta": 0.0 if plain else rng.choice((0.0, 1.0, 0.75)),
        "data": rng.choice(("normal", "normal", *DATA)),
        "seed": rng.randrange(1 << 30),
    }


def operand(shape: tuple[int, ...], layout: str, data: str, gen):
    """Draws an operand where ``gen`` is: the same for both builds."""
    import torch

    random = {"generator": gen, "device": gen.device}
    x = torch.randn(shape, **random)
    if data == "integers":
        x = (4 * x).round()
    elif data == "wide":
        x = x.sign() * torch.exp(3 * torch.randn(shape, **random))
    elif data == "zeros":
        x = x * (torch.rand(shape, **random) < 0.2)
    elif data in ("inf", "nan"):
        x.view(-1)[torch.randint(x.numel(), (1,), **random)] = float(data)
    if layout == "T":
        return x.mT.contiguous().mT
    if layout == "O":
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(shape)
    return x


def selected(names: list[str], pattern: str) -> list[str]:
    """Returns the names that match ``pattern``.

    >>> selected(["ieee_large", "split_fp16x3", "split_bf16x6"], "split_*")
    ['split_fp16x3', 'split_bf16x6']
    """
    return [name for name in names if fnmatchcase(name, pattern)]


def results(problem: dict, device: str, pattern: str = "*") -> dict[str, str]:
    """Returns a digest of each row's result, and the name of the row that "auto" takes."""
    import torch

    import torch_sgemm

    gen = torch.Generator(device).manual_seed(problem["seed"])
    m, n, k, batch = (problem[name] for name in ("m", "n", "k", "batch"))
    lead = (batch,) if batch > 1 else ()
    a = operand((*lead, m, k), problem["a"], problem["data"], gen)
    b = operand((*lead, k, n), problem["b"], problem["data"], gen)
    c = torch.randn((*lead, m, n), generator=gen, device=device)
    found = {"auto": torch_sgemm.explain(a, b, device=torch_sgemm.Device()).chosen}
    families = ("ieee", "split") if device == "cuda" else ("ladder", "ieee")
    factors = {"alpha": problem["alpha"], "beta": problem["beta"]}
    rng = random.Random(problem["seed"])
    names = [row.name for row in torch_sgemm.kernels() if row.family in families]
    for row in selected(names, pattern):
        try:
            plans = len(torch.ops.sgemm._plans(c, a, b, row, **factors))
        except RuntimeError as refusal:
            found[row] = f"refused: {str(refusal)[:80]}"
            continue
        for plan in sorted(rng.sample(range(plans), min(PLANS, plans))):
            d = c.clone()
            torch.ops.sgemm._run_plan(d, a, b, row, plan, **factors)
            found[f"{row} plan {plan}"] = digest(d)
    return found


def digest(x) -> str:
    """Returns a digest of all bits, computed where ``x`` is."""
    import torch

    bits = x.contiguous().view(torch.int32).flatten().long()
    weights = torch.arange(bits.numel(), device=x.device) * 0x9E3779B97F4A7C1 + 0x2545F4914F6CDD1D
    return f"{int((bits * weights).sum()) & (1 << 64) - 1:016x}"


def work(options: argparse.Namespace) -> None:
    """Prints one line of JSON per problem."""
    rng = random.Random(options.seed)
    for _ in range(options.problems):
        problem = random_problem(rng, options.device)
        found = results(problem, options.device, options.rows)
        print(json.dumps({"problem": problem, "found": found}), flush=True)


def lines_of(checkout: Path, options: argparse.Namespace) -> list[dict]:
    """Returns the results of the build in ``checkout``."""
    command = [sys.executable, str(Path(__file__).resolve()), str(checkout), "--worker"]
    command += ["--problems", str(options.problems), "--seed", str(options.seed)]
    command += ["--device", options.device, "--rows", options.rows]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as worker:
        lines = [json.loads(line) for line in progress(worker.stdout, checkout, options.problems)]
    if worker.returncode:
        raise SystemExit(f"the worker failed for the build in {checkout}")
    return lines


def progress(lines, checkout: Path, total: int):
    """Yields the same lines; shows a bar on stderr, if it is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(lines, str(checkout), total, console=console, disable=not console.is_terminal)


def differences(before: list[dict], after: list[dict]) -> list[str]:
    """One line for each row of a problem whose choice or bits differ; rows of one build alone don't
    count.

    >>> differences([{"problem": 1, "found": {"auto": "x", "x": "a"}}],
    ...             [{"problem": 1, "found": {"auto": "x", "x": "b"}}])
    ['x: a, b: 1']
    """
    texts = []
    for x, y in zip(before, after, strict=True):
        if x["problem"] != y["problem"]:
            raise SystemExit("the builds were given different problems")
        for row in x["found"].keys() & y["found"].keys():
            if x["found"][row] != y["found"][row]:
                texts.append(f"{row}: {x['found'][row]}, {y['found'][row]}: {x['problem']}")
    return sorted(texts, key=lambda text: text.startswith("auto: "))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path, help="a checkout with its library built")
    parser.add_argument("--problems", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", default="*", metavar="PATTERN", help="such as 'split_*'")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    before, after = lines_of(options.other.resolve(), options), lines_of(ROOT, options)
    texts = differences(before, after)
    pairs = zip(before, after, strict=True)
    compared = sum(len(x["found"].keys() & y["found"].keys()) for x, y in pairs)
    for text in texts[:50]:
        print(text)
    print(f"{len(before)} problems, {compared} choices and results: {len(texts)} differ")
    return 1 if texts else 0


if __name__ == "__main__":
    sys.exit(main())
