"""Locks that a forked process finds free."""

import os
from typing import TypeVar

Lock = TypeVar("Lock")


def held_across_forks(lock: Lock) -> Lock:
    """Makes forks wait for ``lock``; else a child might inherit it from a thread that it lacks.

    A fork takes locks in the reverse order of these calls, and other code must take them in that
    order too.
    """
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock
