"""Processes that each have a part of a DeviceMesh, and call the same functions."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

SECONDS = 60  # the longest wait for the processes


class Processes:
    """As many processes as the mesh has devices, all calling the same functions."""

    def __init__(self, device: str, mesh: tuple[int, ...], folder: Path) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._processes, self._pipes = [], []
        count = torch.Size(mesh).numel()
        for rank in range(count):
            here, there = context.Pipe()
            arguments = (there, device, mesh, rank, count, str(folder / "store"))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(here)

    def __call__(self, function: Callable, *arguments) -> None:
        """``function(mesh, *arguments)`` in every process.

        Raises:
            AssertionError: with the traceback of the first process that failed or didn't answer.
        """
        assert self._pipes, "the processes were ended by an earlier failure"
        for pipe in self._pipes:
            pipe.send((function, arguments))
        deadline = time.monotonic() + SECONDS
        for rank, pipe in enumerate(self._pipes):
            error = "no answer"
            if pipe.poll(max(0, deadline - time.monotonic())):
                try:
                    error = pipe.recv()
                except EOFError:
                    error = "the process has ended"
            if error:
                self.end()
                pytest.fail(f"process {rank}: {error}", pytrace=False)

    def end(self) -> None:
        """Ends the processes: after a failure some may wait for others for ever."""
        self._pipes.clear()
        for process in self._processes:
            process.terminate()
            process.join()


def _serve(pipe, device: str, shape: tuple[int, ...], rank: int, count: int, store: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
        torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=SECONDS),
    )
    mesh = dist.device_mesh.init_device_mesh(device, shape)
    while True:
        function, arguments = pipe.recv()
        try:
            function(mesh, *arguments)
        except BaseException:
            pipe.send(traceback.format_exc())
        else:
            pipe.send("")
