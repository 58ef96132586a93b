"""Run as a program: turns the drop-in on and off in every way, and says what is left behind.

``python -W error::UserWarning -m support.quiet``: a warning ends it.
"""

from __future__ import annotations

import gc
import resource
import threading

import torch

import torch_sgemm


def cycle(kernel: str, x: torch.Tensor) -> None:
    """The setting and scopes on it, used, and taken back."""
    torch_sgemm.enable(kernel, devices=("cpu",))
    with torch_sgemm.enabled("ladder", devices=("cpu",)):
        torch.addmm(x, x, x)
    torch_sgemm.disable()
    with torch_sgemm.enabled(kernel, devices=("cpu",)):
        torch.mm(x, x)


def peak() -> int:
    """The most memory that the process has held, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    x = torch.randn(4, 4)
    for _ in range(100):
        cycle("auto", x)
    gc.collect()
    before = (len(torch.library._impls), threading.active_count()), len(gc.get_objects()), peak()
    for _ in range(1000):
        cycle("auto", x)
    gc.collect()
    after = (len(torch.library._impls), threading.active_count()), len(gc.get_objects()), peak()
    assert after[0] == before[0], "libraries or threads were left"
    assert after[1] - before[1] < 500, f"{after[1] - before[1]} Python objects were left"
    assert after[2] - before[2] < 8192, f"{after[2] - before[2]} KiB were left"
    print("quiet")


if __name__ == "__main__":
    main()
