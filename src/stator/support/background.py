"""Work that a thread of its own does, in the order in which it came (`options.background_compile`).

What enters: `submit(work)`, from any thread. What leaves: `work.run()` has been called on the one thread for that, or
`work.abandon()`, where there is no such thread any more. What holds: whoever submits never waits; `wait` does. The
thread is there only while there is work. A child of a fork has none, and does not wait for its parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

_PATIENCE_AT_EXIT = 5.0  # seconds; code that hangs must not keep a program from ending


class Work(Protocol):
    def run(self) -> None:
        """Do it. Raises nothing of its own."""

    def abandon(self) -> None:
        """It will never be done, or not to its end."""


class _Exiting(BaseException):
    """Raised on the thread when the program ends."""


class _Worker:
    """The queue and its thread."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queue: deque[Work] = deque()
        self.current: Work | None = None
        self.thread: threading.Thread | None = None
        self.closed = False

    def submit(self, work: Work) -> bool:
        with self.changed:
            if self.closed:
                return False
            self.queue.append(work)
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="stator background", daemon=True)
                try:
                    self.thread.start()
                except RuntimeError:  # no more threads can be started, or the program is ending
                    self.thread = None
                    self.queue.remove(work)
                    return False
        return True

    def _run(self) -> None:
        with contextlib.suppress(_Exiting):
            while True:
                with self.changed:
                    if self.closed or not self.queue:
                        self.thread = None
                        return
                    self.current = self.queue.popleft()
                try:
                    self.current.run()
                finally:
                    with self.changed:
                        self.current = None
                        self.changed.notify_all()

    def wait(self, is_done: Callable[[], bool], timeout: float | None) -> bool:
        if threading.current_thread() is self.thread:  # it would wait for itself
            return is_done()
        with self.changed:
            return self.changed.wait_for(lambda: is_done() or self.closed, timeout) and is_done()

    def unfinished(self) -> list[Work]:
        return [*self.queue, *([self.current] if self.current is not None else [])]

    def close(self) -> None:
        """The program ends: what waits is not begun, what has begun is told to stop, and given time for it."""
        with self.changed:
            self.closed = True
            self.queue.clear()
            thread = self.thread
            self.changed.notify_all()
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Exiting))
            thread.join(_PATIENCE_AT_EXIT)


_worker = _Worker()


def submit(work: Work) -> bool:
    """Have it done. False: there is nobody to do it."""
    return _worker.submit(work)


def wait(is_done: Callable[[], bool], timeout: float | None = None) -> bool:
    """Wait until this is true, which is asked whenever some work has come to its end. Is it?"""
    return _worker.wait(is_done, timeout)


def is_here() -> bool:
    """Is this the thread that does such work?"""
    return threading.current_thread() is _worker.thread


def _at_exit() -> None:
    _worker.close()


def _in_child() -> None:
    """The thread stayed with the parent, and may have held the lock."""
    global _worker
    left = _worker.unfinished()
    _worker = _Worker()
    for work in left:
        work.abandon()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
