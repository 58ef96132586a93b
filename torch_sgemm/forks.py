"""Locks that a forked process finds free."""

import os
from typing import TypeVar

Lock = TypeVar("Lock")


def held_across_forks(lock: Lock) -> Lock:
    """Who forks waits for ``lock``: else the child might find it held by a thread that it lacks.

    Locks are taken in the reverse order of these calls, and by all others in that order as well.
    """
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock
