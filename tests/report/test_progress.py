"""Long work shows a line on a terminal: stage, time, operations. Short work shows nothing, and neither does a file."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from stator import events
from stator.report import progress
from stator.report.progress import Progress, line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def began(ops: int = 214) -> events.StageBegan:
    return events.StageBegan("compiling with inductor", "mse", lambda: ops)


ENDED = events.StageEnded("compiling with inductor", "mse", 0.1)


def test_the_line_tells_stage_name_time_and_ops() -> None:
    assert line(began(), 3.46) == "stator: compiling with inductor mse, 3.5 s, 214 ops"
    assert line(events.StageBegan("watching", "f" * 200), 3.46).endswith(", 3.5 s")
    assert len(line(events.StageBegan("watching", "f" * 200), 3.46)) <= 100


def test_a_count_that_cannot_be_told_any_more_is_left_out() -> None:
    def gone() -> int:
        raise AttributeError

    assert line(events.StageBegan("watching", "f", gone), 3.0) == "stator: watching f, 3.0 s"


def test_long_work_is_shown_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    monkeypatch.setattr(progress, "_EVERY", 0.05)
    shown = Progress()
    shown.read(began())
    deadline = time.monotonic() + 20
    while "ops" not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "\r\033[K" in terminal.getvalue()
    assert "stator: compiling with inductor mse, " in terminal.getvalue()
    assert " s, 214 ops" in terminal.getvalue()
    shown.read(ENDED)
    assert terminal.getvalue().endswith("\r\033[K")


def test_short_work_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    shown = Progress()
    for _ in range(3):
        shown.read(began())
        shown.read(ENDED)
    assert terminal.getvalue() == ""


def test_what_is_no_terminal_gets_nothing_and_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    before = threading.active_count()
    shown = Progress()
    shown.read(began())
    shown.read(ENDED)
    assert (stream.getvalue(), threading.active_count()) == ("", before)
