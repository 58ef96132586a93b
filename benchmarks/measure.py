"""One row of the table beside torch on one problem: error first, then time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

import torch_sgemm
from benchmarks.errors import Errors, Reference, limit
from benchmarks.machine import Sampler
from benchmarks.problems import Problem, cold_pool
from benchmarks.sides import Side, sgemm_side, torch_side
from benchmarks.timing import Options, Timing, call_time, compare

CALL_TIME_BELOW = 2e-3  # kernel time, seconds; a longer kernel hides the call


class Measurement:
    """A problem with its operands and reference, against which rows are measured one by one."""

    def __init__(
        self,
        problem: Problem,
        device: torch.device,
        seed: int,
        options: Options,
        values: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Uses ``values`` of A and B in all sets of operands, or else uniform(-1, 1) numbers."""
        self.problem, self.device, self.options = problem, device, options
        self.pool = cold_pool(problem, device, seed)
        for operands in self.pool.sets if values else ():
            operands.a.copy_(values[0])
            operands.b.copy_(values[1])
        self._reference = Reference(problem, self.pool.sets[0], seed)
        self._torch = torch_side(problem)
        self._torch_errors = self._reference.errors(self._torch)
        self._torch_call: float | None = None

    def row(self, kernel: str, sampler: Sampler, call: bool = False) -> dict:
        """Returns figures of ``kernel`` ("auto", a family or a row) and of torch in the same turns.

        A kernel that raises has "failed" and no figures. One whose error exceeds the bound has
        figures and ``correct`` False. Times are in microseconds, errors in units.
        """
        first = self.pool.sets[0]
        try:
            chosen = torch_sgemm.explain(first.a, first.b, kernel=kernel).chosen
        except RuntimeError as failure:
            return self._failed(kernel, failure)
        return self.side(sgemm_side(self.problem, kernel), chosen, sampler, call)

    def side(self, side: Side, chosen: str, sampler: Sampler, call: bool = False) -> dict:
        """Returns the same for another side, whose errors may be those of the row ``chosen``."""
        result = self.problem.as_dict() | {"kernel": side.name, "chosen": chosen}
        try:
            errors = self._reference.errors(side)
            mark = sampler.mark()
            theirs, ours = compare([self._torch, side], self.pool, self.options)
        except RuntimeError as failure:
            return self._failed(side.name, failure)
        result |= self._times("kernel", ours) | self._times("torch", theirs)
        result["percent_of_torch"] = 100 * theirs.typical / ours.typical
        result |= self._errors(errors, result["chosen"])
        if call and self.device.type == "cuda" and ours.typical < CALL_TIME_BELOW:
            if self._torch_call is None:
                self._torch_call = call_time(self._torch, self.pool)
            result["call_us"] = 1e6 * call_time(side, self.pool)
            result["torch_call_us"] = 1e6 * self._torch_call
        return result | sampler.since(mark)

    def alone(self, side: Side) -> dict:
        """Returns time and errors, without a bound, of a side that is no float32 product."""
        try:
            errors = self._reference.errors(side)
            (timing,) = compare([side], self.pool, self.options)
        except RuntimeError as failure:
            return {f"{side.name}_failed": str(failure).splitlines()[0]}
        found = self._times(side.name, timing)
        return found | {f"{side.name}_error_{name}": x for name, x in errors._asdict().items()}

    def _failed(self, kernel: str, failure: RuntimeError) -> dict:
        why = {"failed": str(failure).splitlines()[0], "correct": False}
        return self.problem.as_dict() | {"kernel": kernel} | why

    def _times(self, side: str, timing: Timing) -> dict:
        return {
            f"{side}_us": 1e6 * timing.typical,
            f"{side}_us_p10": 1e6 * timing.quantile(0.1),
            f"{side}_us_p90": 1e6 * timing.quantile(0.9),
            f"{side}_us_best": 1e6 * timing.best,
            f"{side}_replays": len(timing.seconds),
            f"{side}_calls": timing.calls,
            f"{side}_tflops": self.problem.flops / timing.typical * 1e-12,
        }

    def _errors(self, ours: Errors, row: str) -> dict:
        theirs = self._torch_errors
        most = limit(row, self.problem.k, theirs.max)
        return {
            "error_max": ours.max,
            "error_mean": ours.mean,
            "torch_error_max": theirs.max,
            "torch_error_mean": theirs.mean,
            "error_bound": most,
            "correct": ours.max <= most,  # False for NaN
        }


def runnable(device: torch.device, of_16_bits: bool = False) -> list[torch_sgemm.Kernel]:
    """Returns the rows of the table that this build runs on ``device``, with float32 operands.

    ``of_16_bits`` adds rows that only take operands of 16 bits.
    """
    rows = [row for row in torch_sgemm.kernels() if device.type in row.devices]
    rows = [row for row in rows if row.takes_float32 or of_16_bits]
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        rows = [row for row in rows if row.runs_on(10 * major + minor)]
    return rows


def operand_dtype(row: torch_sgemm.Kernel) -> torch.dtype:
    """Returns the dtype of operands that the row is measured with."""
    return torch.float32 if row.takes_float32 else torch.bfloat16


def families(device: torch.device) -> list[str]:
    """Returns families for any float32 product on ``device``, without the reference."""
    names = (row.family for row in runnable(device) if row.max_size is None and row.bits == 24)
    return [name for name in dict.fromkeys(names) if name not in ("", "reference")]


def geomean(values: Iterable[float]) -> float:
    """Returns the geometric mean of positive numbers; NaN for none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
