"""A line on the terminal while something takes long: stage, time so far, operations.

What enters: `StageBegan` and `StageEnded`. What leaves: nothing, unless standard error is a terminal and a stage has
been going on for more than `PATIENCE` seconds; then one line, written anew every half second and taken away at the
end. What holds: a program that is watched or compiled is never waited for: the line is written by a thread of its own.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TextIO

from stator import events
from stator.options import colours_allowed

from ..interrupts import let_through
from .style import WIDTH, is_terminal

PATIENCE = 2.0
_EVERY = 0.5


class Progress:
    """The stages under way in the process, and the thread that shows the last of them."""

    def __init__(self) -> None:
        self._stages: list[tuple[int, events.StageBegan, float]] = []  # thread, stage, when it began
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._shown = False

    def read(self, event: events.Event) -> None:
        """A stage began or ended."""
        me = threading.get_ident()
        if isinstance(event, events.StageBegan):
            if not is_terminal(sys.stderr):
                return
            with self._changed:
                self._stages.append((me, event, time.monotonic()))
                if self._thread is None or not self._thread.is_alive():  # not alive: this is the child of a fork
                    self._thread = threading.Thread(target=self._run, name="stator progress", daemon=True)
                    self._thread.start()
                self._changed.notify()
        elif self._stages:
            with self._changed:
                last = max((i for i, stage in enumerate(self._stages) if stage[0] == me), default=None)
                if last is not None:
                    del self._stages[last]
                self._take_away()
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stages:
                    self._changed.wait()
                began = self._stages[0][2]  # of the outermost: its parts may each be short
                self._changed.wait(max(began + PATIENCE - time.monotonic(), _EVERY))
                if self._stages and time.monotonic() - self._stages[0][2] >= PATIENCE:
                    self._show(sys.stderr)

    def _show(self, stream: TextIO) -> None:
        _, stage, _ = self._stages[-1]
        text = line(stage, time.monotonic() - self._stages[0][2])
        with contextlib.suppress(OSError, ValueError):
            stream.write(f"\r\033[K\033[2m{text}\033[0m" if colours_allowed() else f"\r\033[K{text}")
            stream.flush()
            self._shown = True

    def _take_away(self) -> None:
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()


def line(stage: events.StageBegan, seconds: float) -> str:
    """`stator: compiling with inductor mse, 3.5 s, 214 ops`."""
    ops = ""
    if stage.ops is not None:
        try:
            ops = f", {stage.ops()} ops"
        except Exception as error:  # the recording may be over by now
            let_through(error)
    return f"stator: {stage.stage} {stage.name}"[: WIDTH - 30] + f", {seconds:.1f} s{ops}"


_progress = Progress()
events.subscribe(_progress.read, events.StageBegan, events.StageEnded)
