"""PyTorch's settings of float32's precision, as the drop-in sees them."""

from __future__ import annotations

import pytest
from support.process import python


@pytest.mark.parametrize(
    ("setting", "ieee"),
    [
        ("torch.backends.cuda.matmul.fp32_precision = 'ieee'", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'none'", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", False),
        ("torch.backends.cuda.matmul.allow_tf32 = True", False),
        ("torch.backends.cuda.matmul.fp32_precision = 'bfx9'", True),
        # Here the older setting and the newer one differ.
        (
            "torch.backends.cuda.matmul.allow_tf32 = True; "
            "torch.backends.cuda.matmul.fp32_precision = 'bfx9'",
            True,
        ),
        ("torch.set_float32_matmul_precision('high')", False),
        ("torch.set_float32_matmul_precision('highest')", True),
    ],
)
def test_all_settings_of_precision_are_seen(setting: str, ieee: bool) -> None:
    program = f"import torch; from torch_sgemm.dropin.overrides import _is_ieee; {setting}; "
    done = python("-c", program + f"assert _is_ieee() is {ieee}")
    if "Unknown precision" in done.stderr:
        pytest.skip("this PyTorch has no bfx9")
    assert done.returncode == 0, done.stderr
