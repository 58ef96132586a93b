"""Tables of texts for the terminal, without rich, which may not be installed."""

from collections.abc import Container, Sequence


def aligned(lines: Sequence[Sequence[str]], words: Container[int]) -> list[str]:
    """The lines in columns: those numbered in ``words`` to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
