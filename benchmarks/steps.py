"""Whole steps of a program, two ways by turns: wall clock, the device idle before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from benchmarks.timing import SUSTAINED_REPLAYS, SUSTAINED_SECONDS, Options, Timing

WARM_STEPS = 2  # the first allocates, loads code and chooses kernels
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Way:
    """A step, and a context around it that is not timed."""

    step: Callable[[], None]
    scope: Callable[[], AbstractContextManager] = nullcontext


def describe(options: Options, _: torch.device) -> str:
    """Describes the timing in words, like ``Options.describe``."""
    return (
        "wall clock of whole steps, synchronised before and after, both sides by turns, "
        + options.state_before("step")
    )


def compare(ways: list[Way], device: torch.device, options: Options) -> list[Timing]:
    """Times the ways by turns on ``device``, one call per step."""
    timings = [Timing(shared=device.type != "cuda") for _ in ways]
    together = sum(_warm(way, device) for way in ways)
    rounds = max(LEAST_ROUNDS, min(options.rounds, int(options.budget / together)))
    if options.sustained:
        rounds = 2
    for i in range(rounds):
        # The order alternates, so that neither side always follows the other.
        order = range(len(ways)) if i % 2 == 0 else reversed(range(len(ways)))
        for at in order:
            with ways[at].scope():
                turn = _sustained if options.sustained else _after_idle
                timings[at].seconds += turn(ways[at].step, device, options)
    return timings


def _warm(way: Way, device: torch.device) -> float:
    """Returns the seconds of the last of a few steps."""
    with way.scope():
        return [_one(way.step, device) for _ in range(WARM_STEPS)][-1]


def _after_idle(step: Callable[[], None], device: torch.device, options: Options) -> list[float]:
    time.sleep(options.idle)
    return [_one(step, device)]


def _sustained(step: Callable[[], None], device: torch.device, options: Options) -> list[float]:
    begin = time.perf_counter()
    while time.perf_counter() - begin < SUSTAINED_SECONDS:
        _one(step, device)
    return [_one(step, device) for _ in range(SUSTAINED_REPLAYS)]


def _one(step: Callable[[], None], device: torch.device) -> float:
    _wait(device)
    begin = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
