"""The digest of csrc/ that names records and builds."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def csrc_digest(root: Path = ROOT) -> str:
    """Returns what ``find csrc -type f | sort | xargs sha256sum | sha256sum`` prints in ``root``.

    The sort uses the C locale's order, so that every machine agrees. Records and ``info`` show the
    first 12 digits.
    """
    files = sorted(
        p.relative_to(root).as_posix() for p in (root / "csrc").rglob("*") if p.is_file()
    )
    lines = [f"{hashlib.sha256((root / f).read_bytes()).hexdigest()}  {f}\n" for f in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
