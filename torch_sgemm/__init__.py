"""Float32 matrix products for PyTorch: operators in ``torch.ops.sgemm``, and the table of their kernels.

``torch.ops.sgemm.mm``, ``bmm``, ``addmm``, ``baddbmm``, their ``_out`` variants and ``gemm_`` are registered by importing this
package; :mod:`torch_sgemm.ops` documents them.
"""

from torch_sgemm import _library, ops
from torch_sgemm.table import Device, Explanation, Kernel, Verdict, explain, kernels

__version__ = "0.1.0"

__all__ = [
    "Device",
    "Explanation",
    "Kernel",
    "Verdict",
    "explain",
    "kernels",
    "ops",
    "__version__",
]

_library.__name__  # loaded first: it registers the operators that ``ops`` gives fakes to
