"""Tests that kernels with mbarriers give the same bits when their threads wait for random times.

    python tools/delays.py [--library PATH] [--rounds N] [--kernel ROW]

racecheck does not follow asynchronous copies and tensor-core products. So a test build makes
threads wait for a random time wherever they wait for each other or signal (SGEMM_DELAYS in
csrc/gpu/ptx/mbarrier.cuh). The order of events then differs from that at full speed.
Every product and attention is compared bit by bit with the ordinary library's. Needs a GPU;
exits with 1 if anything differs. ``--library`` takes a test build made before (``--build-only``
makes one).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "delays"
FAMILIES = ("split", "ieee")  # as well as the rungs for Hopper alone
LAYOUTS = ("NN", "NT", "TN", "TT")

# One block, several k parts of a cluster, several tiles a block, tails everywhere, slices of k,
# tiles left over that blocks share.
SHAPES = (
    (128, 128, 32), (128, 128, 64), (256, 256, 512), (300, 280, 700), (1000, 1000, 260),
    (129, 2500, 33), (2600, 2600, 96), (70, 60, 20000), (16, 700, 2000), (17200, 100, 600),
)  # fmt: skip

# Batches, heads, groups of keys, queries, keys, depth: thread blocks convert keys for themselves,
# or for all; fewer and more tiles than SMs; tails.
ATTENTIONS = (
    (2, 3, 3, 128, 700, 32), (40, 8, 8, 70, 130, 64), (2, 20, 20, 30, 900, 128),
    (3, 8, 2, 1000, 1000, 64), (8, 16, 16, 500, 500, 64), (2, 9, 3, 260, 1300, 128),
    (1, 40, 40, 600, 600, 96), (2, 70, 70, 300, 300, 32),
)  # fmt: skip


def operand(rows: int, cols: int, layout: str, seed: int, device: str = "cuda"):
    """Returns normal numbers with a row that grows late, so that scales are chosen again."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, cols, generator=generator)
    values[rows // 2, cols // 2 :] *= 2.0**12
    values[rows // 3, cols // 3] *= 2.0**50
    return (values.t().contiguous().t() if layout == "T" else values).to(device)


def attentions(rounds: int) -> dict:
    """Returns attention of all kinds and its gradients; later rounds must repeat the first."""
    import torch

    results = {}

    def attend(q, k, v, mask, causal: bool) -> torch.Tensor:
        scale = q.shape[3] ** -0.5
        out, logsumexp = torch.ops.sgemm._attention(q, k, v, mask, causal, scale, True)
        wanted = True, True, mask is not None
        gradients = torch.ops.sgemm._attention_gradients(
            q.flip(2), q, k, v, mask, out, logsumexp, causal, scale, *wanted
        )
        return torch.cat([x.flatten() for x in (out, logsumexp, *gradients)])

    for batch, heads, groups, queries, keys, depth in ATTENTIONS:
        generator = torch.Generator().manual_seed(3)
        shapes = (heads, queries), (groups, keys), (groups, keys)
        q, k, v = (torch.randn(batch, *x, depth, generator=generator).cuda() for x in shapes)
        k[:, :, keys // 2 :] *= 4
        mask = torch.randn(queries, keys, generator=generator).cuda().expand(batch, heads, -1, -1)
        for kind in ("plain", "causal", "mask"):
            added, causal = mask if kind == "mask" else None, kind == "causal"
            name = f"attention {batch} x {heads} / {groups} x {queries} x {keys} x {depth} {kind}"
            found = [attend(q, k, v, added, causal) for _ in range(rounds)]
            if not all(torch.equal(x, found[0]) for x in found):
                raise SystemExit(f"{name}: rounds differ")
            results[name] = found[0].cpu()
    return results


def products(library: str, rounds: int, output: str, kernels: list[str]) -> None:
    """Saves every product by every row, or by these; later rounds must repeat the first."""
    import torch

    sys.path.insert(0, str(ROOT))
    from benchmarks.problems import in_16_bits

    torch.ops.load_library(library)
    rows = json.loads(torch.ops.sgemm._kernels())
    waiting = [row for row in rows if row["family"] in FAMILIES or row["min_arch"] >= 90]
    unknown = set(kernels) - {row["name"] for row in waiting} - {"attention"}
    if unknown:
        known = ", ".join(["attention", *(row["name"] for row in waiting)])
        raise SystemExit(f"delays: --kernel {', '.join(sorted(unknown))}; accepted: {known}")
    waiting = [row for row in waiting if not kernels or row["name"] in kernels]
    names = [(name, row["reads"]) for row in waiting for name in row["tile_names"]]
    results = attentions(rounds) if not kernels or "attention" in kernels else {}
    for m, n, k in SHAPES if names else ():
        for layouts in LAYOUTS:
            a, b = operand(m, k, layouts[0], 1), operand(k, n, layouts[1], 2)
            short = in_16_bits(a), in_16_bits(b)
            for name, reads in names:
                x, y = short if reads == "16_bits" else (a, b)
                try:
                    first = torch.ops.sgemm.mm(x, y, name)
                except RuntimeError as refusal:
                    if "can't take this problem" in str(refusal):
                        continue
                    raise
                for _ in range(rounds - 1):
                    if not torch.equal(torch.ops.sgemm.mm(x, y, name), first):
                        raise SystemExit(f"{name} {m} x {n} x {k} {layouts}: rounds differ")
                results[f"{name} {m} x {n} x {k} {layouts}"] = first.cpu()
    torch.save(results, output)


def run(library: Path, rounds: int, output: Path, kernels: list[str]) -> None:
    command = [sys.executable, __file__, "--products", str(output)]
    command += [f"--kernel={name}" for name in kernels]
    subprocess.run([*command, "--library", str(library), "--rounds", str(rounds)], check=True)


def build() -> Path:
    import build_library

    build_library.build([BUILT], "delays", {"SGEMM_DELAYS": "ON"})
    return BUILT / build_library.LIBRARY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, help="a test build (default: build one)")
    parser.add_argument("--rounds", type=int, default=3, help="of each product, dawdling")
    parser.add_argument(
        "--kernel", action="append", default=[], help="a row, or attention; default: all"
    )
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--products", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.products:
        products(str(args.library), args.rounds, args.products, args.kernel)
        return 0
    if args.build_only:
        print(build())
        return 0

    import torch

    if not torch.cuda.is_available():
        print("delays: torch sees no GPU, and the CPU's kernels have nothing to wait for")
        return 2
    library = args.library or build()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "ordinary.pt", Path(folder) / "dawdling.pt"
        run(ROOT / "torch_sgemm" / "libtorch_sgemm.so", 1, files[0], args.kernel)
        run(library, args.rounds, files[1], args.kernel)
        ordinary, dawdling = (torch.load(file) for file in files)
    missing = ordinary.keys() ^ dawdling.keys()
    shared = ordinary.keys() & dawdling.keys()
    differ = [name for name in shared if not torch.equal(ordinary[name], dawdling[name])]
    for name in sorted(differ):
        print(f"{name}: not the same bits")
    print(f"{len(shared)} results, {len(differ)} differ, {len(missing)} missing")
    return 1 if differ or missing or not shared else 0


if __name__ == "__main__":
    sys.exit(main())
