"""Sizes at which kernels break: tails, tile edges, and primes around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from support.table import Kernel

SIZES = (0, 1, 2, 3, 5, 7, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
Shape = tuple[int, int, int]


def latin(sizes: Sequence[int], rows: Sequence[int] | None = None) -> Iterator[Shape]:
    """(m, n, k) from a Latin square: every pair of sizes for (m, n), and for the other two
    pairs too where the number of sizes is prime.

    ``rows`` keeps some rows of the square only; m and n still take every size.
    """
    count = len(sizes)
    for shift in range(count) if rows is None else rows:
        for i in range(count):
            yield sizes[i], sizes[(i + shift) % count], sizes[(2 * i + 3 * shift + 1) % count]


def is_prime(value: int) -> bool:
    """Returns True if ``value`` is a prime."""
    return value > 1 and all(value % d for d in range(2, int(value**0.5) + 1))


def around(edge: int) -> tuple[int, ...]:
    """The nearest primes below and above ``edge``, its neighbours and itself, without 0."""
    below = next((p for p in range(edge - 1, 1, -1) if is_prime(p)), 1)
    above = next(p for p in range(edge + 1, 4 * edge + 4) if is_prime(p))
    return tuple(sorted({below, edge - 1, edge, edge + 1, above} - {0}))


def tile_edges(row: Kernel) -> list[Shape]:
    """Shapes around the edges of a row's block tile: each of m, n and k below, at and above."""
    m, n, k = (around(max(edge, 1)) for edge in (row.bm, row.bn, row.bk))
    count = max(len(m), len(n), len(k))
    shapes = [(m[i % len(m)], n[(i + 1) % len(n)], k[(i + 2) % len(k)]) for i in range(count)]
    # Two tiles and a tail in each direction, and a k that no pipeline stage divides.
    return [*shapes, (2 * m[-1] + 1, n[0], 3 * k[-1] + 2), (m[0], 2 * n[-1] + 1, 2 * k[0] + 1)]
