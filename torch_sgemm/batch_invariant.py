"""Results whose bits depend on no other row of the batch: ``batch_invariant=True``.

``kernel="batch_invariant"`` asks for it wherever a kernel is named, so that an operator carries it
to its derivatives, transforms and fakes as it carries any name. The dispatch then takes one row of
the table for all problems of a device (``Kernel.batch_invariant``), which cuts k up as k alone
tells. docs/reproducibility.md says what the same bits are.
"""

import os

BATCH_INVARIANT = "batch_invariant"
_VARIABLE = "TORCH_SGEMM_BATCH_INVARIANT"


def request(where: str, kernel: str, batch_invariant: bool) -> str:
    """What asks for both; ``where`` is named in the error.

    Raises:
        RuntimeError: a kernel beside ``batch_invariant``, which chooses one itself.
    """
    if not batch_invariant:
        return kernel
    if kernel not in ("auto", BATCH_INVARIANT):
        raise RuntimeError(
            f"{where}: argument 'kernel' is {kernel!r} beside batch_invariant=True, which takes "
            "one row of the table for all problems of a device; accepted: 'auto'"
        )
    return BATCH_INVARIANT


def asked_by_environment() -> bool:
    """Whether the environment asks ``enable()`` for it.

    Raises:
        RuntimeError: the variable is neither 0 nor 1.
    """
    text = os.environ.get(_VARIABLE, "")
    if text not in ("", "0", "1"):
        raise RuntimeError(f"{_VARIABLE} is {text!r}; accepted: 0, 1")
    return text == "1"
