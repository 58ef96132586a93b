"""tests/cpp/tensor_core.cpp: the tensor cores of models of whole kernels, built and called."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy import ndarray as Array

from support.process import ROOT

SOURCE = ROOT / "tests/cpp/tensor_core.cpp"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")


@cache
def _library() -> ctypes.CDLL:
    """Builds the file once a change; processes that build it at the same time do no harm."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "there is no C++ compiler, though the library is built with one"
    digest = hashlib.sha256(SOURCE.read_bytes() + repr((FLAGS, compiler)).encode()).hexdigest()
    built = ROOT / "build" / f"tensor_core-{digest[:12]}.so"
    if not built.exists():
        built.parent.mkdir(exist_ok=True)
        own = built.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *FLAGS, SOURCE, "-o", own], check=True)
        own.replace(built)
    return ctypes.CDLL(built)


def multiplied(total: Array, x: Array, y: Array, steps: Sequence[int]) -> Array:
    """Returns total + x yᵀ for x [m, k] and y [n, k], whose numbers are float16's."""
    result = np.array(total, np.float64, order="C")
    x, y = (np.ascontiguousarray(part, np.float64) for part in (x, y))
    order = np.array(steps, np.int64)
    (m, k), (n, _) = x.shape, y.shape
    assert result.shape == (m, n) and y.shape == (n, k)
    sizes = map(ctypes.c_int64, (m, n, k))
    pointers = (part.ctypes.data_as(ctypes.c_void_p) for part in (result, x, y))
    last = order.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(order))
    _library().multiply(*pointers, *sizes, *last)
    return result
