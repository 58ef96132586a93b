"""In the compiled kernels for Hopper, sums and values that tiles share stay in registers.

If a loop over sums is not unrolled, the sums lie in local memory. Results are still right, but the
kernel takes three times as long.
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


def own_code(body: list[sass.Instruction]) -> list[sass.Instruction]:
    """A kernel's, less the functions that it calls, which lie behind it."""
    calls = (re.search(r"\bCALL\.REL\S* 0x([0-9a-f]+)", i.text) for i in body)
    end = min((int(call[1], 16) for call in calls if call), default=body[-1].address + 1)
    return [i for i in body if i.address < end]


@needs_cuda_build
def test_products_keep_nothing_in_local_memory() -> None:
    """A kernel short of registers spills values to local memory, and every tile waits for them.

    Five such values have cost a microsecond a tile.
    """
    for_hopper = [a for a in sass.architectures(sass.LIBRARY) if a.startswith("sm_90")]
    if not for_hopper:
        pytest.skip("built without code for Hopper")
    of_products = [x for x in resources() if "split_product" in x and "Fp16x3" in x]
    of_attention = [x for x in resources() if "attention6attend" in x]
    of_gradients = [x for x in resources() if "backward" in x and "differentiate" in x]
    assert len(of_products) == 8  # for two tiles and four layouts
    assert len(of_attention) == 8  # for four depths, with and without a mask
    assert len(of_gradients) == 6  # for two depths and short sequences, with and without a mask
    kernels = sass.disassemble(sass.LIBRARY, for_hopper[-1], of_products + of_attention)
    products = {name: own_code(body) for name, body in kernels.items()}
    local = {name: [i.text for i in body if i.kind[:3] in ("LDL", "STL")]
             for name, body in products.items()}  # fmt: skip
    # Gradients need all registers: at depth 128 a few values of a tile lie there, which are read
    # once for each block of 64 rows. A sum per thread would take 128 bytes.
    few = {x: resources()[x] for x in of_gradients}
    assert max(few.values()) <= 32, few
    assert not {name: texts for name, texts in local.items() if texts}


@needs_cuda_build
def test_sums_stay_in_registers() -> None:
    found = resources()
    if not found:
        pytest.skip("built without code for Hopper")
    ladder = {name: stack for name, stack in found.items() if "cuda_backend" in name}
    assert len(ladder) > 30
    assert not {name: stack for name, stack in ladder.items() if stack > MOST}
