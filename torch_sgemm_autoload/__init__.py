"""``TORCH_SGEMM=1 python script.py``: enables torch_sgemm at ``import torch``.

An entry point of the group ``torch.backends``, which torch calls at the end of its import. A
package of its own, so that a program that doesn't set the variable loads nothing.

TORCH_SGEMM: "1" for ``enable()``, or the name of a family or kernel; unset, "" or "0" for nothing.
TORCH_SGEMM_DEVICES: where, "cuda" unless set; "cuda,cpu" for both.
TORCH_SGEMM_BATCH_INVARIANT: "1": batch-invariant, beside TORCH_SGEMM=1; ``enable()`` reads it.
"""

import os
import sys

waits_for_import = False  # torch_sgemm is being imported, and will call again when it is whole


def enable_if_asked() -> None:
    """Calls ``torch_sgemm.enable`` as the environment says.

    Where ``import torch_sgemm`` comes first in a program and imports torch, that is when its import
    ends. Errors are printed, because PyTorch's import must not fail.
    """
    kernel = os.environ.get("TORCH_SGEMM", "")
    if kernel in ("", "0"):
        return
    try:
        _enable(kernel)
    except Exception as failure:  # a warning, where they are errors
        print(f"torch_sgemm: TORCH_SGEMM={kernel}: {failure}", file=sys.stderr)


def _enable(kernel: str) -> None:
    import torch_sgemm

    global waits_for_import
    waits_for_import = not hasattr(torch_sgemm, "enable")
    if waits_for_import:
        return
    devices = os.environ.get("TORCH_SGEMM_DEVICES", "cuda").split(",")
    torch_sgemm.enable("auto" if kernel == "1" else kernel, devices=tuple(devices))
