"""Runs a recipe by torch alone and by torch_sgemm, by turns, and prints speed and errors.

All recipes share this module. A recipe is a script with a function ``recipe(device, small)`` that
returns a :class:`Recipe`.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

UNIT = 2.0**-24
TURNS = 10


@dataclass(frozen=True)
class Recipe:
    """A computation by torch alone and by torch_sgemm.

    size: the computation and its sizes, in words.
    theirs, ours: compute the result.
    of: the quantity that has the error, in words.
    error: a result's error against float64, in units of 2^-24.
    also: another figure of a side, by its name, such as the number of other neighbours.
    """

    size: str
    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    of: str
    error: Callable[[Any], float]
    also: tuple[str, Callable[[Callable[[], Any]], float]] | None = None


def against(exact: Tensor) -> Callable[[Tensor], float]:
    """Returns a function: the largest error in units of 2^-24 of the root mean square of exact."""
    unit = UNIT * exact.square().mean().sqrt()
    return lambda result: float((result.double() - exact).abs().max() / unit)


def main(make: Callable[[torch.device, bool], Recipe], about: str) -> None:
    """Runs a recipe's script: speed and errors of both sides."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small sizes, as without a GPU")
    small = parser.parse_args().small
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":  # enabled() has nothing to take
        warnings.filterwarnings("ignore", message="torch_sgemm.enable")
    torch.manual_seed(0)
    recipe = make(device, small or device.type == "cpu")
    print(recipe.size)
    sides = {"torch": recipe.theirs, "torch_sgemm": recipe.ours}
    errors = {name: recipe.error(run()) for name, run in sides.items()}
    seconds = by_turns(list(sides.values()), device)
    for (name, error), time_of_one in zip(errors.items(), seconds, strict=True):
        speed = seconds[0] / time_of_one
        print(f"{name:12} {time_of_one * 1e3:9.3f} ms  speed {speed:5.2f}  error {error:8.3g}")
    print(f"Errors of the {recipe.of} against float64, in units of 2^-24.")
    if recipe.also:
        name, figure = recipe.also
        values = (f"{figure(run):.4g} by {side}" for side, run in sides.items())
        print(f"{name}: {', '.join(values)}")
    if device.type == "cpu":
        print("On the CPU, most products are PyTorch's own on both sides: this shows no speed.")


def by_turns(sides: list[Callable[[], Any]], device: torch.device) -> list[float]:
    """Returns the median seconds of each side, wall clock, after a call that warms up."""
    found: list[list[float]] = [[] for _ in sides]
    for turn in range(TURNS + 1):
        for run, times in zip(sides, found, strict=True):
            wait(device)
            begin = time.perf_counter()
            run()
            wait(device)
            if turn:
                times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in found]


def wait(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
