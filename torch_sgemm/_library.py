"""Loads the compiled library, which registers the operators."""

from pathlib import Path

import torch

PATH = Path(__file__).with_name("libtorch_sgemm.so")

if not PATH.exists():
    raise ImportError(
        f"torch_sgemm: {PATH.name} is not in {PATH.parent}; build it with `pip install .`, "
        "or in a checkout with `make build`"
    )
torch.ops.load_library(str(PATH))
