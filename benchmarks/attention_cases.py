"""The cases of ``attention``, and their operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import attention_errors
from benchmarks.problems import L2_MULTIPLE, Pool
from benchmarks.session import Session

MOST_SETS = 16


@dataclass(frozen=True)
class Case:
    """A call: batches, heads, queries, depth, kind, and keys if they are not as many."""

    batch: int
    heads: int
    rows: int
    depth: int
    kind: str = "plain"
    keys: int = 0

    @property
    def label(self) -> str:
        keys = f" x {self.keys}" if self.keys else ""
        return f"{self.batch} x {self.heads} x {self.rows}{keys} x {self.depth} {self.kind}"

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.keys or self.rows

    @property
    def flops(self) -> float:
        """Counts both products; half of them if causal."""
        rows, keys = self.shape
        half = 0.5 if self.kind == "causal" else 1
        return 4.0 * self.batch * self.heads * rows * keys * self.depth * half


HEADLINES = ((32, 16, 128, 64), (8, 16, 512, 64), (16, 16, 1024, 64), (4, 16, 2048, 128),
             (2, 32, 4096, 128))  # fmt: skip
CASES = (
    *(Case(*sizes, kind) for sizes in HEADLINES for kind in ("plain", "causal", "mask")),
    *(Case(64, 12, rows, 64) for rows in (32, 64)),
    *(Case(1, 16, rows, 64, kind) for rows in (128, 512, 2048) for kind in ("plain", "causal")),
    Case(1, 8, 16384, 64, "causal"),
    Case(8, 12, 197, 64),
    *(Case(8, 8, rows, 32) for rows in (64, 256, 1024)),
    *(Case(4, 12, rows, 96) for rows in (256, 1024)),
    *(Case(4, 16, rows, 128) for rows in (64, 256, 1024)),
    Case(1, 32, 4096, 128, "causal"),
    Case(8, 8, 1024, 40, "cross", 77),
    Case(2, 8, 4096, 64, "cross", 77),
    Case(16, 16, 8, 64, "cross", 2048),
    Case(16, 32, 1, 128, "cross", 4096),
    Case(4, 32, 1024, 128, "gqa"),
    Case(1, 16, 2048, 64, "gqa"),
)


@dataclass
class Tensors:
    """The operands of a call; ``a`` is what the timing looks at."""

    a: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    grad: Tensor | None = None  # of the output


def make_pool(case: Case, device: torch.device, seed: int, backward: bool = False) -> Pool:
    """Makes standard normal operands, as many sets as displace each other from the L2 cache.

    For a backward, they include the output's gradient, and all but the mask require a gradient.
    """
    gen = torch.Generator(device).manual_seed(seed)
    rows, keys = case.shape
    groups = max(1, case.heads // 4) if case.kind == "gqa" else case.heads

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, generator=gen)

    def tensors() -> Tensors:
        mask = normal(rows, keys) if case.kind == "mask" else None
        key, value = (normal(case.batch, groups, keys, case.depth) for _ in range(2))
        query, grad = normal(case.batch, case.heads, rows, case.depth), None
        if backward:
            grad = torch.randn_like(query)
            query, key, value = (x.requires_grad_() for x in (query, key, value))
        return Tensors(query, key, value, mask, grad)

    first = tensors()
    size = 4 * ((1 + backward) * first.a.numel() + 2 * first.key.numel())
    l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    count = min(max(1, math.ceil(L2_MULTIPLE * l2 / size)), MOST_SETS)
    sets = [first, *(tensors() for _ in range(count - 1))]
    return Pool(sets, count * size >= L2_MULTIPLE * l2)


def measure_all(
    session: Session,
    cases: Sequence[Case],
    measure: Callable[[Case, Session], list[dict]],
    measure_errors: Callable[[str, int, torch.device, int, str], dict],
) -> list[dict]:
    """Records the cases, and errors on all distributions and depths, which are returned."""
    names, found = attention_errors.DISTRIBUTIONS, []
    distributions = [(depth, name) for depth in attention_errors.DEPTHS for name in names]
    session.record["errors"] = found
    with session.progress(len(cases) + len(distributions)) as step:
        for case in cases:
            step(case.label)
            session.record["rows"] += measure(case, session)
        for depth, name in distributions:
            step(f"{name} {depth}")
            found.append(measure_errors(name, depth, session.device, session.seed, "split"))
    return found


def by_case(found: dict) -> dict[str, dict[str, dict]]:
    """Returns a record's rows by label and kernel."""
    rows: dict[str, dict[str, dict]] = {}
    for row in found["rows"]:
        rows.setdefault(row["label"], {})[row["kernel"]] = row
    return rows


def summary(found: dict, what: str) -> str:
    """Returns the geometric mean and the slowest case of "auto"."""
    ratios = {label: row["auto"]["percent_of_torch"] / 100 for label, row in by_case(found).items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = min(ratios, key=ratios.__getitem__)
    return f"{what}: geometric mean of auto {mean:.2f}, worst {ratios[worst]:.2f} ({worst})."
