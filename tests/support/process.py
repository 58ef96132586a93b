"""Fresh Python processes, for tests of things that a process can only do once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, timeout: float = 300, **env: str) -> subprocess.CompletedProcess:
    """Runs this interpreter in tests/ with ``env`` added to the environment."""
    # The package may be found by PYTHONPATH alone; relative entries would lose their meaning.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": path, **env},
        check=False,
    )


def tool(name: str) -> str | None:
    """A program of the environment that the tests run in, activated or not, or one on PATH."""
    here = str(Path(sys.executable).parent)
    return shutil.which(name, path=os.pathsep.join([here, os.environ.get("PATH", "")]))
