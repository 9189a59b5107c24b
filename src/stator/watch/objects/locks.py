"""`with lock:` in a segment: the replay takes the lock where it begins, and releases it where it ends.

What the program does under a lock another thread may have done just before: so the guards are checked anew once the
replay has the lock (`pipeline.py`). One lock per segment: to hold two where the program holds one after the other could
block two threads for ever. Where the segment ends at a break inside of the `with`, the lock stays taken.
"""

from __future__ import annotations

import threading
from typing import Any

from ..graph_break import BreakGraph
from .ledger import Ledger

LOCK = type(threading.Lock())


class Locks:
    """The lock of one segment."""

    def __init__(self) -> None:
        self.origin: int | None = None  # of the lock that was taken
        self._held: Any = None

    @property
    def held(self) -> bool:
        return self._held is not None

    def enter(self, ledger: Ledger, lock: Any) -> None:
        """`with lock:`"""
        origin = ledger.find(lock)
        if origin is None or self.origin is not None:
            raise BreakGraph("threads", "with lock")
        ledger.touch(origin, lock)
        self.origin, self._held = origin.index, lock

    def leave(self, lock: Any) -> None:
        if lock is not self._held:
            raise BreakGraph("threads", "threading.lock.__exit__")
        self._held = None
