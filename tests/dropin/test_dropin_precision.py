"""PyTorch's settings of float32's precision, as the drop-in sees them."""

from __future__ import annotations

import json
from functools import cache

import pytest
from support.process import python

SETTINGS = {
    "torch.backends.cuda.matmul.fp32_precision = 'ieee'": True,
    "torch.backends.cuda.matmul.fp32_precision = 'none'": True,
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": False,
    "torch.backends.cuda.matmul.allow_tf32 = True": False,
    "torch.backends.cuda.matmul.fp32_precision = 'bfx9'": True,
    # Here the older setting and the newer one differ.
    "torch.backends.cuda.matmul.allow_tf32 = True; "
    "torch.backends.cuda.matmul.fp32_precision = 'bfx9'": True,
    "torch.set_float32_matmul_precision('high')": False,
    "torch.set_float32_matmul_precision('highest')": True,
}
PROGRAM = """
import json, os, sys
import torch
from torch_sgemm.dropin.overrides import _is_ieee

def in_child(setting):
    read, write = os.pipe()
    if os.fork() == 0:  # settings can't be taken back
        try:
            exec(setting)
            found = _is_ieee()
        except RuntimeError as failure:
            found = str(failure)
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 10000))

print(json.dumps({setting: in_child(setting) for setting in json.loads(sys.argv[1])}))
"""


@cache
def found() -> dict[str, bool | str]:
    """What the drop-in sees for each setting, or PyTorch's error."""
    done = python("-c", PROGRAM, json.dumps(list(SETTINGS)))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.xdist_group("precision")
@pytest.mark.parametrize("setting", SETTINGS)
def test_all_settings_of_precision_are_seen(setting: str) -> None:
    if "Unknown precision" in str(found()[setting]):
        pytest.skip("this PyTorch has no bfx9")
    assert found()[setting] is SETTINGS[setting]
