"""Times both sides by turns: CUDA-graph replays on a GPU, wall clock on a CPU."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from functools import cache

import torch
from torch.utils.benchmark import Timer

from benchmarks.problems import L2_MULTIPLE, Pool
from benchmarks.sides import Side

MAX_CALLS = 512  # calls in one graph, at most
SUSTAINED_SECONDS = 0.5
SUSTAINED_REPLAYS = 5
# GPU cycles to wait before a timed graph, so that the host has queued the whole graph.
DELAY_CYCLES, DELAY_CYCLES_A_CALL = 400_000, 2000
WARM_BELOW = 0.1  # seconds; a longer replay is not run once untimed first
CPU_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """The duration of timing, and the state of the device before it.

    rounds: replays of each side, at most; 2 or more.
    budget: seconds per pair, about.
    idle: pause before each replay, seconds.
    replay: work in a replay, seconds, about.
    sustained: True times each side after 0.5 s of itself instead, so that the power cap shows.
    """

    rounds: int = 8
    budget: float = 1.0
    idle: float = 0.02
    replay: float = 0.01
    sustained: bool = False

    def describe(self, device: torch.device) -> str:
        """Describes the options in words, to be recorded."""
        if device.type != "cuda":
            return "wall clock by torch.utils.benchmark, both sides by turns, best block, cached"
        state = self.state_before("replay")
        return f"CUDA-graph replays by CUDA events, both sides by turns, {state}, L2 cold"

    def state_before(self, run: str) -> str:
        """Describes in words the state before each ``run``."""
        if self.sustained:
            return f"each side after {SUSTAINED_SECONDS} s of itself"
        return f"each {run} after {self.idle * 1e3:.0f} ms idle"


def quantile(values: list[float], q: float) -> float:
    """Interpolates linearly between the ordered values."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


@dataclass
class Timing:
    """Seconds per call, one figure per replay (or per block of calls on a CPU).

    ``typical`` is the median; on a CPU (``shared``), whose cores other processes use too, the best.
    """

    seconds: list[float] = field(default_factory=list)
    calls: int = 1
    shared: bool = False

    @property
    def typical(self) -> float:
        return self.best if self.shared else self.median

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def quantile(self, q: float) -> float:
        return quantile(self.seconds, q)


def compare(sides: list[Side], pool: Pool, options: Options) -> list[Timing]:
    """Times the sides by turns on the operands of ``pool``, on their device."""
    if pool.sets[0].a.is_cuda:
        return _compare_cuda(sides, pool, options)
    return _compare_cpu(sides, pool, options)


def call_time(side: Side, pool: Pool) -> float:
    """Returns seconds per call from Python: the longest of host work, launch and kernel."""
    operands = pool.sets[0]
    timer = Timer("run(operands)", globals={"run": side.run, "operands": operands})
    return timer.blocked_autorange(min_run_time=0.05).median


# --- CUDA -----------------------------------------------------------------------------------


@dataclass
class _Replay:
    graph: torch.cuda.CUDAGraph
    calls: int
    seconds: float  # estimated

    def events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay()
        end.record()
        return start, end


def _compare_cuda(sides: list[Side], pool: Pool, options: Options) -> list[Timing]:
    stream = _stream(pool.sets[0].a.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        replays = [_capture(side, pool, options, stream) for side in sides]
        timings = [Timing(calls=replay.calls) for replay in replays]
        turn = _sustained if options.sustained else _after_idle
        longest = sum(replay.seconds for replay in replays)
        rounds = max(2, min(options.rounds, int(options.budget / max(longest, 1e-9))))
        if options.sustained:
            rounds = 2
        flush = None if pool.cold else _flush_buffer()
        for i in range(rounds):
            # The order alternates, so that neither side always follows the other.
            order = range(len(sides)) if i % 2 == 0 else reversed(range(len(sides)))
            for side in order:
                timings[side].seconds += turn(replays[side], flush, options)
        torch.cuda.synchronize()
    torch.cuda.current_stream().wait_stream(stream)
    return timings


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns one stream for all captures: cuBLAS keeps a workspace for each stream it meets."""
    return torch.cuda.Stream(device)


def _after_idle(replay: _Replay, flush: torch.Tensor | None, options: Options) -> list[float]:
    torch.cuda.synchronize()
    time.sleep(options.idle)
    return [_one(replay, flush)]


def _sustained(replay: _Replay, flush: torch.Tensor | None, options: Options) -> list[float]:
    begin = time.perf_counter()
    while time.perf_counter() - begin < SUSTAINED_SECONDS:
        replay.graph.replay()
        torch.cuda.current_stream().synchronize()
    count = max(1, min(SUSTAINED_REPLAYS, int(options.budget / replay.seconds)))
    return [_one(replay, flush) for _ in range(count)]


def _one(replay: _Replay, flush: torch.Tensor | None) -> float:
    if flush is not None:
        flush.sum()  # a read: written lines would cost the timed calls their write-back
    torch.cuda._sleep(DELAY_CYCLES + DELAY_CYCLES_A_CALL * replay.calls)
    start, end = replay.events()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / replay.calls


def _flush_buffer() -> torch.Tensor:
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return torch.zeros(L2_MULTIPLE * l2 // 4, device="cuda")


def _capture(side: Side, pool: Pool, options: Options, stream: torch.cuda.Stream) -> _Replay:
    estimate = _estimate(side, pool)
    sets = pool.sets
    calls = max(1, round(options.replay / estimate))
    if pool.cold:  # whole rounds through the sets, so that no operand is in the L2 cache
        turns = max(1, min(calls, MAX_CALLS) // len(sets))
        calls = turns * len(sets)
    else:  # uses no set twice between two flushes
        calls = min(calls, len(sets))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for i in range(calls):
            side.run(sets[i % len(sets)])
    replay = _Replay(graph, calls, calls * estimate)
    if replay.seconds < WARM_BELOW:
        graph.replay()
    return replay


def _estimate(side: Side, pool: Pool) -> float:
    side.run(pool.sets[-1])  # the first call on this stream may set things up
    torch.cuda._sleep(DELAY_CYCLES)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    side.run(pool.sets[0])
    end.record()
    end.synchronize()
    return max(start.elapsed_time(end) * 1e-3, 1e-6)


def spin_up(device: torch.device, seconds: float = 0.5) -> None:
    """Works until a GPU has left its idle clocks."""
    if device.type != "cuda":
        return
    x = torch.rand(2048, 2048, device=device)
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        torch.mm(x, x)
        torch.cuda.synchronize()


# --- CPU ------------------------------------------------------------------------------------


def _compare_cpu(sides: list[Side], pool: Pool, options: Options) -> list[Timing]:
    threads = torch.get_num_threads()
    timers, timings = [], []
    for side in sides:
        variables = {"run": side.run, "operands": pool.sets[0]}
        timer = Timer("run(operands)", globals=variables, num_threads=threads)
        once = timer.timeit(1).median
        timers.append(timer)
        calls = max(1, min(1000, int(options.replay / max(once, 1e-7))))
        timings.append(Timing(calls=calls, shared=True))
    for _ in range(min(CPU_ROUNDS, options.rounds)):
        for timer, timing in zip(timers, timings, strict=True):
            timing.seconds.append(timer.timeit(timing.calls).median)
    return timings
