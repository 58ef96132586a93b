"""Loads the compiled library, which registers the operators."""

import json
from pathlib import Path

import torch

PATH = Path(__file__).parent.with_name("libtorch_sgemm.so")
INFO = PATH.with_name("build_info.json")

if not PATH.exists():
    raise ImportError(
        f"torch_sgemm: {PATH.name} is not in {PATH.parent}; build it with `pip install .`, "
        "or in a checkout with `make build`"
    )
torch.ops.load_library(str(PATH))

# Two builds with namespaces of their own can be loaded into one process.
NAMESPACE = json.loads(INFO.read_text())["namespace"] if INFO.exists() else "sgemm"
operators = getattr(torch.ops, NAMESPACE)

# Dtypes of an operand, in the order of csrc/problem/problem.h's ElementType.
OPERAND_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def qualified(name: str) -> str:
    """An operator's name with its namespace: ``"sgemm::mm"``."""
    return f"{NAMESPACE}::{name}"
