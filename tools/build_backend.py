"""PEP 517 backend: setuptools', except that it asks for torch only where there is none.

Under build isolation pip would install its own torch into the build environment. The extension
should be built for the torch that it will run with, whose CUDA version decides the toolkit. So the
torch of the target environment is used if one is found, hidden or not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  hooks without a change

sys.path.insert(0, str(Path(__file__).resolve().parent))

import build_config  # noqa: E402
import build_env  # noqa: E402


def _torch() -> list[str]:
    if build_env.find_torch():
        return []
    return ["torch>=" + ".".join(map(str, build_config.TORCH_FLOOR))]


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + _torch()


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings) + _torch()
