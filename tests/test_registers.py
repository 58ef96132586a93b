"""What ptxas made of the kernels for Hopper: sums stay in registers.

Where a loop over them is not unrolled, they lie in local memory, results are right, and the kernel
takes three times as long.
"""

from __future__ import annotations

import re
import subprocess

import pytest
import sass
from support.table import needs_cuda_build

MOST = 128  # bytes of local memory per thread: half of 8 x 8 sums


def resources() -> dict[str, int]:
    """Bytes of stack per thread by mangled name, of the code for Hopper."""
    try:
        command = [sass.find_cuobjdump(), "-res-usage", str(sass.LIBRARY)]
    except SystemExit as missing:
        pytest.skip(str(missing))
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, int] = {}
    for part in re.split(r"^arch = ", text, flags=re.M)[1:]:
        if part.startswith("sm_90"):
            entries = re.findall(r"Function (\S+):\n\s+REG:\d+ STACK:(\d+)", part)
            found |= {name: int(stack) for name, stack in entries}
    return found


@needs_cuda_build
def test_sums_stay_in_registers() -> None:
    found = resources()
    if not found:
        pytest.skip("built without code for Hopper")
    ladder = {name: stack for name, stack in found.items() if "cuda_backend" in name}
    assert len(ladder) > 30
    assert not {name: stack for name, stack in ladder.items() if stack > MOST}
