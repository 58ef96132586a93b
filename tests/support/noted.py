"""The problems for which a call asks the library, as ``tune`` receives them."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from torch_sgemm.choice.tuned import Problem

SGEMM = torch.ops.sgemm


def noted(run: Callable[[], object]) -> list[Problem]:
    """Returns each problem once, on CPUs as well."""
    SGEMM._note_problems(True)
    try:
        run()
        return [Problem.of(x["problem"]) for x in json.loads(SGEMM._noted_problems())]
    finally:
        SGEMM._note_problems(False)
