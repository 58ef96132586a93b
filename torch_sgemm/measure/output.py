"""Tables for the terminal and result files, of commands and functions."""

import os
import threading
from collections.abc import Container, Sequence
from pathlib import Path


def aligned(lines: Sequence[Sequence[str]], words: Container[int]) -> list[str]:
    """Aligns texts in columns: those numbered in ``words`` to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def can_be_written(path: Path) -> bool:
    """True if ``path`` is a writable file or can become one."""
    return not path.is_dir() and os.access(
        path if path.exists() else path.absolute().parent, os.W_OK
    )


def write(path: Path, content: str | bytes) -> None:
    """Replaces a file's content in one step, so that readers never see half of it.

    A file keeps its mode and a symbolic link its target. If the folder takes no new file, the
    content is written in place.
    """
    data = content.encode() if isinstance(content, str) else content
    is_new, target = not path.exists(), path.resolve()
    if not (is_new or path.is_file()) or not os.access(target.parent, os.W_OK):
        path.write_bytes(data)
        return
    part = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with part.open("xb") as file:
            file.write(data)
        if not is_new:
            part.chmod(target.stat().st_mode & 0o7777)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
