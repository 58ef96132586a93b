"""Results whose bits depend on no other row of the batch: ``batch_invariant=True``.

``kernel="batch_invariant"`` requests it wherever a kernel is named, so an operator passes it to its
derivatives, transforms and fakes like any name. The dispatch then takes one row of the table for
all problems of a device (``Kernel.batch_invariant``), whose split of k depends on k alone.
docs/reproducibility.md defines "the same bits".
"""

import os

BATCH_INVARIANT = "batch_invariant"
_VARIABLE = "TORCH_SGEMM_BATCH_INVARIANT"


def request(where: str, kernel: str, batch_invariant: bool) -> str:
    """Returns the ``kernel=`` that asks for both; RuntimeError, naming ``where``, on conflict."""
    if not batch_invariant:
        return kernel
    if kernel not in ("auto", BATCH_INVARIANT):
        raise RuntimeError(
            f"{where}: argument 'kernel' is {kernel!r} beside batch_invariant=True, which takes "
            "one row of the table for all problems of a device; accepted: 'auto'"
        )
    return BATCH_INVARIANT


def asked_by_environment() -> bool:
    """True if TORCH_SGEMM_BATCH_INVARIANT is 1; RuntimeError unless it is 0, 1 or unset."""
    text = os.environ.get(_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise RuntimeError(f"{_VARIABLE} is {text!r}; accepted: 0, 1")
    return text == "1"
