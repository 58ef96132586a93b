"""Which files a command or a function can write its result to, asked before it takes its time."""

import os
from pathlib import Path


def can_be_written(path: Path) -> bool:
    """Whether it is a file that may be written, or may be made where it is."""
    return not path.is_dir() and os.access(
        path if path.exists() else path.absolute().parent, os.W_OK
    )
