"""Float32 matrix products for PyTorch, by the operators in ``torch.ops.sgemm``.

Importing this package registers the operators; :mod:`torch_sgemm.ops` documents them.
"""

import sys

from torch_sgemm.choice.accuracy import Redone, error_bound, redone
from torch_sgemm.choice.attention import attention_error_bound
from torch_sgemm.choice.attention_gradients import (
    GradientBounds,
    attention_gradient_error_bounds,
)
from torch_sgemm.choice.explain import Device, Explanation, Verdict, explain
from torch_sgemm.choice.explain_attention import explain_attention
from torch_sgemm.choice.table import Kernel, kernels
from torch_sgemm.choice.tuned import TunedChoice, use_environment, use_tuned
from torch_sgemm.dropin.settings import Stats, disable, enable, enabled, reset_stats, stats
from torch_sgemm.functional.attention import attention
from torch_sgemm.functional.linear import linear
from torch_sgemm.functional.matmul import matmul
from torch_sgemm.functional.modules import convert, restore
from torch_sgemm.functional.packed import PackedMatrix, pack
from torch_sgemm.measure.record import Record
from torch_sgemm.measure.recorder import recording
from torch_sgemm.measure.tuning import Tuning, tune
from torch_sgemm.torch_ops import attention_derivatives, derivatives, ops, vmap  # noqa: F401

__version__ = "0.1.0"

__all__ = [
    "Device",
    "Explanation",
    "GradientBounds",
    "Kernel",
    "PackedMatrix",
    "Record",
    "Redone",
    "Stats",
    "TunedChoice",
    "Tuning",
    "Verdict",
    "attention",
    "attention_error_bound",
    "attention_gradient_error_bounds",
    "convert",
    "derivatives",
    "disable",
    "enable",
    "enabled",
    "error_bound",
    "explain",
    "explain_attention",
    "kernels",
    "linear",
    "matmul",
    "ops",
    "pack",
    "recording",
    "redone",
    "reset_stats",
    "restore",
    "stats",
    "tune",
    "use_tuned",
    "__version__",
]

use_environment()

_autoload = sys.modules.get("torch_sgemm_autoload")  # called by torch's import
if getattr(_autoload, "waits_for_import", False):
    _autoload.enable_if_asked()
