"""The folder `options.debug_dir`: every stage of every compilation as a file of Python that runs by itself.

What enters: events, and the folder of the compilation that they belong to (`StageBegan.folder`). What leaves: files
`0001_mse_captured_graph.py`, numbered in the order in which they were made, across processes too: a file that is there
is never written over. What holds: nothing is rendered while no folder is set, and a folder that cannot be written to
costs one warning, not a call.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import warnings
from collections.abc import Callable

from stator import events, own_files
from stator.events import Event


class _Open(threading.local):
    """The compilations under way on this thread: where their files go, and what they are of."""

    def __init__(self) -> None:
        self.stages: list[tuple[str | None, str]] = []

    @property
    def folder(self) -> tuple[str, str] | None:
        return next(((folder, name) for folder, name in reversed(self.stages) if folder is not None), None)


_open = _Open()
_numbers: dict[str, int] = {}  # the last one given out, by folder
_refused: set[str] = set()
_lock = threading.RLock()


def _write(stage: str, text: Callable[[], str]) -> None:
    """One file of the compilation that is under way, if it is to be kept."""
    where = _open.folder
    if where is None:
        return
    folder, name = where
    try:
        content = text()
        if content.strip():
            _create(folder, f"{_as_file_name(name)}_{_as_file_name(stage)}.py", content)
    except OSError as error:
        if folder not in _refused:
            _refused.add(folder)
            warnings.warn(f"options.debug_dir: {error}; stages are not kept there", stacklevel=2)


def _create(folder: str, name: str, content: str) -> None:
    with _lock:
        opened, _ = own_files.open_folder(folder)
        try:
            number = _numbers.get(folder) or _last_number(folder)
            while True:
                number += 1
                with contextlib.suppress(FileExistsError):
                    own_files.create(opened, f"{number:04}_{name}", content)
                    _numbers[folder] = number
                    return
        finally:
            os.close(opened)


def _last_number(folder: str) -> int:
    found = [re.match(r"(\d{4,})_", name) for name in os.listdir(folder)]
    return max((int(match[1]) for match in found if match), default=0)


def _as_file_name(text: str) -> str:
    return own_files.as_file_name(text.rpartition("<locals>.")[2])


# ----------------------------------------------------------------------------------------- which event, which file


def _began(event: events.StageBegan) -> None:
    _open.stages.append((event.folder, event.name))


def _ended(event: events.StageEnded) -> None:
    if _open.stages:
        _open.stages.pop()


def _captured(event: events.GraphCaptured) -> None:
    _write(f"graph_{event.number}_captured_graph", event.script)


def _derived(event: events.BackwardDerived) -> None:
    number = re.search(r", graph (\d+)$", event.label)
    of = f"graph_{number[1]}_" if number else ""
    for stage, text in zip(("joint_graph", "forward_graph", "backward_graph"), event.scripts, strict=False):
        _write(of + stage, text)


def _generated(event: events.CodeGenerated) -> None:
    _write(f"{event.backend}_{event.part}_code", event.script or event.code)


def _recorded(event: events.Recorded) -> None:
    of = f"graph_{event.number}_" if event.number else ""
    _write(f"{of}guards", event.guards_script)
    _write(f"{of}replay", event.replay_script)


FILES: dict[type[Event], Callable[..., None]] = {
    events.StageBegan: _began,
    events.StageEnded: _ended,
    events.GraphCaptured: _captured,
    events.BackwardDerived: _derived,
    events.CodeGenerated: _generated,
    events.Recorded: _recorded,
}


def _read(event: Event) -> None:
    FILES[type(event)](event)


events.subscribe(_read, *FILES, awake=lambda kind: _open.folder is not None)
