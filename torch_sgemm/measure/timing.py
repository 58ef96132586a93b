"""Kernel times on a GPU, by replays of CUDA graphs."""

from collections.abc import Callable
from statistics import median

import torch

_REPLAY = 0.005
_MOST_CALLS = 200
_ROUNDS = 5


def seconds_by_turns(
    runs: list[Callable[[], None]],
    device: torch.device,
    *,
    replay: float = _REPLAY,
    rounds: int = _ROUNDS,
) -> list[float]:
    """Returns median seconds per call of each run, by turns, without the host's launch costs.

    A graph of about ``replay`` seconds of work is replayed ``rounds`` times. RuntimeError if a run
    can't be captured in one.
    """
    with torch.cuda.device(device), torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            pool = torch.cuda.graph_pool_handle()  # one workspace, because runs take turns
            graphs = [_captured(run, stream, pool, replay) for run in runs]
            times: list[list[float]] = [[] for _ in runs]
            for _ in range(rounds):
                for (graph, calls), found in zip(graphs, times, strict=True):
                    found.append(_elapsed(graph.replay) / calls)
        torch.cuda.current_stream().wait_stream(stream)
    return [median(found) for found in times]


def _captured(
    run: Callable[[], None], stream: torch.cuda.Stream, pool: tuple[int, int], replay: float
) -> tuple[torch.cuda.CUDAGraph, int]:
    """Captures calls that fill a replay in a graph, and replays it once."""
    run()  # the first call may set things up
    calls = max(1, min(_MOST_CALLS, round(replay / max(_elapsed(run), 1e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool, stream):
        for _ in range(calls):
            run()
    graph.replay()
    return graph, calls


def _elapsed(run: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3
