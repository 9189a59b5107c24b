"""What the pipeline tells of its work: events with their texts, warnings, saved reports.

Nothing here decides anything. Texts are written when a reader asks for them.
"""

from __future__ import annotations

import contextlib
import dis
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from . import _native, events, own_files
from .errors import InternalError
from .options import View
from .recording import Recording
from .replay.cache import Entry
from .replay.emit import wanted_origins
from .replay.script import guards_script, replay_script
from .support.python_source import WIDTH, graph_code, graph_script
from .watch.observe.policy import classify, is_trusted
from .watch.observe.recorder import Recorder

_OWN = (os.path.dirname(os.path.abspath(__file__)), "<stator")


def warn(text: str) -> None:
    """A warning at the line of the program that called us."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def save(text: str, kind: str, folder: str | None) -> str | None:
    """The path of a new file with this text; None if there cannot be one."""
    try:
        return own_files.save(folder, kind, ".txt", text)
    except own_files.Refused as refused:
        warn(f"nothing is saved: {refused}")
        return None
    except OSError:
        return None


def failure(name: str, where: str, error: BaseException, settings: View, *, quiet: bool = False) -> None:
    """Tell of a fault in one step of stator (`where`); `quiet`: without a warning, there was one already. With
    `suppress_errors` off it is raised instead.
    """
    text = "".join(traceback.format_exception(error))
    path = save(f"stator failed in {where} of {name}\n\n{text}", "report", settings.debug_dir)
    events.emit(events.InternalFailure(where, error, path))
    if not settings.suppress_errors:
        raise InternalError(where, error, path) from error
    if not quiet:
        warn(f"{InternalError(where, error, path)}; {name} runs as plain Python")


@contextlib.contextmanager
def watching(name: str, recorder: Recorder) -> Iterator[None]:
    """Around a watched run. Which frames were watched is told at its end: a reader must not act inside of it."""
    try:
        with events.stage("watching", name, recorder.operations):
            yield
    finally:
        if events.listening(events.FrameWatched):
            for code in recorder.frames:
                if classify(code)[0] == _native.COPY:
                    events.emit(events.FrameWatched(code))


def label(name: str, number: int) -> str:
    """How a graph is called in all reports."""
    return f"{name}, graph {number}"


def captured(name: str, number: int, recording: Recording) -> events.GraphCaptured:
    graph = recording.graph
    assert graph is not None
    title = f"{label(name, number)}: as captured, {recording.operations} operations."
    inputs, grad = recording.example_inputs, bool(recording.state[0])
    return events.GraphCaptured(
        name, number, recording.operations, lambda: graph_script(title, graph, inputs, grad=grad)
    )


def compiled(
    name: str, backend: str, seconds: float, number: int, graph: fx.GraphModule, made: Callable[..., Any]
) -> events.BackendCompiled:
    def code() -> str:
        source = getattr(made, "__self__", made)
        if source is graph:
            return "# the graph runs as it was captured"
        return graph_code(source) if isinstance(source, fx.GraphModule) else ""

    return events.BackendCompiled(name, backend, seconds, code, number)


def recorded(
    name: str, entry: Entry, recording: Recording, frames: Sequence[types.CodeType], names: Sequence[str]
) -> events.Recorded:
    """`frames`: the code objects that were watched, if the segment starts with the function; `names`: of its slots."""
    graph = entry.graph
    of = label(name, entry.number) if entry.number else name
    wanted = wanted_origins(recording)
    return events.Recorded(
        name=name,
        graph=(lambda: graph_code(graph)) if graph is not None else (lambda: ""),
        guards=lambda: "\n".join(entry.guards.lines()),
        seconds=entry.seconds,
        probes=recording.probes,
        bytecode=lambda: _bytecode(entry.replay_source, frames),
        ops=recording.operations,
        number=entry.number,
        symbolic=entry.symbolic,
        specialised=entry.specialised,
        entry=entry,
        guards_script=lambda: guards_script(f"{of}: what was assumed.", recording, names),
        replay_script=lambda: "" if entry.replay is None else replay_script(f"{of}: the replay.", recording, wanted),
    )


def _bytecode(replay: str, frames: Sequence[types.CodeType]) -> str:
    """The function that was watched, the replay that repeats it, and the bytecode of both."""
    parts = []
    own = next((code for code in frames if not is_trusted(code.co_filename)), None)
    if own is not None:
        parts.append(f"# {own.co_qualname}, as CPython compiled it\n{_disassembled(own)}")
    if replay:
        made = compile(replay, "<replay>", "exec")
        code = next(value for value in made.co_consts if isinstance(value, types.CodeType))
        parts.append(f"# the replay: v are the values that were guarded\n{replay}")
        parts.append(f"# its bytecode\n{_disassembled(code)}")
    return "\n".join(part.rstrip() for part in parts)


def _disassembled(code: types.CodeType) -> str:
    lines = dis.Bytecode(code).dis().rstrip().splitlines()
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines)
