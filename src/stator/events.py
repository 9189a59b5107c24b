"""Typed facts about what happened. Stages emit them, `report/` reads them; neither knows the other.

What enters: `emit(event)` from any stage, on any thread. What leaves: calls of the readers, in the order in
which they subscribed, on the emitting thread. What holds: an emission nobody listens to costs a dictionary
lookup; a payload that is expensive to print is a callable, called by the reader that prints it; a reader that
fails is logged and does not disturb the program.

On a hot path ask first: ``if listening(CacheHit): emit(CacheHit(name))``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from stator.errors import BreakReason
from stator.interrupts import let_through

Text = Callable[[], str]


def _nothing() -> str:
    return ""


@dataclass(frozen=True)
class Event:
    """A fact. One subclass per kind of fact."""


class Kept(NamedTuple):
    """A value that lives from a forward graph to its backward graph."""

    name: str
    what: str  # dtype and sizes
    bytes: int
    extra: bool  # False: it is alive anyway (a parameter), keeping it costs nothing
    why: str
    made: int  # behind so many operations of the forward; 0: it is an input
    freed: int  # behind so many operations of the backward


def _none_kept() -> tuple[Kept, ...]:
    return ()


@dataclass(frozen=True)
class StageBegan(Event):
    """Work that may take long begins; what is emitted on this thread up to its end belongs to it."""

    stage: str  # in words: `compiling with inductor`
    name: str  # the function it is done for
    ops: Callable[[], int] | None = None  # operations seen so far, if that can be told
    folder: str | None = None  # where its intermediate forms are to be kept, if they are


@dataclass(frozen=True)
class StageEnded(Event):
    """The work that began last on this thread is done, or has failed."""

    stage: str
    name: str
    seconds: float


@dataclass(frozen=True)
class FrameWatched(Event):
    """A frame of this code was met by a recording and is run with probes."""

    code: CodeType


@dataclass(frozen=True)
class GraphCaptured(Event):
    """A segment's graph is complete and goes to the backend."""

    name: str
    number: int  # of the graph, among those of the function
    ops: int
    script: Text  # Python that runs it by itself, on example inputs


@dataclass(frozen=True)
class Recorded(Event):
    """A watched run yielded a recording."""

    name: str  # the function recorded
    graph: Text  # the graph as runnable Python
    guards: Text  # one guard a line
    seconds: float  # from the call to the recording, the run itself included
    probes: int = 0  # probes fired
    bytecode: Text = _nothing  # the function's bytecode, and the replay, source and bytecode
    number: int = 0  # of the graph, among those of the function; 0: there is none
    guards_script: Text = _nothing  # Python that checks what can be checked by itself
    replay_script: Text = _nothing  # Python that runs the replay by itself, on example inputs
    ops: int = 0  # operations in the graph
    symbolic: tuple[str, ...] = ()  # sizes and numbers that may be others in later calls
    specialised: tuple[str, ...] = ()  # those which were meant to be, and the line that prevents it
    entry: Any = None  # the recording itself, as `compiled.stator.entries` has it


@dataclass(frozen=True)
class CacheHit(Event):
    """A call, or the part of one up to a break, was served by a replay."""

    name: str
    number: int = 0  # of the graph that ran; 0: none
    seconds: float = 0.0  # that the replay took
    entry: Any = None  # the recording, as `compiled.stator.entries` has it


@dataclass(frozen=True)
class BackwardRan(Event):
    """The backward of a compiled graph ran."""

    label: str  # which graph: `mse, graph 1`
    seconds: float
    source: Any = None  # the captured graph, or the function, that was differentiated


@dataclass(frozen=True)
class CacheMiss(Event):
    """No recording fitted a call."""

    name: str
    why: object = None  # str() gives the guard that failed, expected and found; None: there was no recording yet
    records: bool = True  # False: the call runs as plain Python
    call: int = 0  # of the function's calls so far, the number of this one


@dataclass(frozen=True)
class GraphBreak(Event):
    """A recording ended before its function did, or a function could not be recorded at all."""

    reason: BreakReason


@dataclass(frozen=True)
class BackendCompiled(Event):
    """A backend turned a graph into a callable."""

    name: str
    backend: str
    seconds: float
    output_code: Text = _nothing
    number: int = 0  # of the graph


@dataclass(frozen=True)
class CodeGenerated(Event):
    """A backend wrote code for a graph, or a part of it."""

    backend: str
    part: str  # `forward`, `backward`
    seconds: float
    code: Text  # to be read
    script: Text | None = None  # the same, to be run by itself; None: the code does
    llvm: Text = _nothing


@dataclass(frozen=True)
class BackwardDerived(Event):
    """A graph was differentiated ahead of time and cut into forward and backward."""

    seconds: float  # trace, passes, cut and wrap, without the compilers
    joint: Text  # runnable Python
    forward: Text
    backward: Text  # empty: no gradients are wanted
    steps: tuple[str, ...] = ()  # what each step did, and how long it took
    label: str = ""  # which graph: `mse, graph 1`
    saved: Text = _nothing  # what the forward keeps for the backward, and why; one value a line
    scripts: tuple[Text, ...] = ()  # joint, forward and, if there is one, backward: each runs by itself
    kept: Callable[[], tuple[Kept, ...]] = _none_kept  # what lives from forward to backward
    operations: tuple[int, int] = (0, 0)  # of the forward, of the backward
    source: Any = None  # the graph, or the function, that was differentiated


@dataclass(frozen=True)
class EqualGraph(Event):
    """A graph equals one that was compiled: nothing is derived, and no code generated."""

    label: str


@dataclass(frozen=True)
class NotDerived(Event):
    """A graph could not be differentiated ahead of time; it runs as it was captured."""

    why: object


@dataclass(frozen=True)
class NotGenerated(Event):
    """There is no machine code for a graph; it runs operator by operator."""

    part: str  # "forward" or "backward"
    why: str


@dataclass(frozen=True)
class NotCaptured(Event):
    """A graph was to be launched as a CUDA graph, but its kernels are launched one by one."""

    part: str  # "forward" or "backward"
    why: str


@dataclass(frozen=True)
class RanPlain(Event):
    """A call ran as plain Python."""

    name: str
    why: object = None  # str() says why


@dataclass(frozen=True)
class InternalFailure(Event):
    """Something inside stator failed; the program went on with eager's result."""

    where: str  # the step that failed
    exception: BaseException
    report_path: str | None = None  # the saved report


Reader = Callable[[Event], None]

_lock = threading.RLock()
_AWAKE: dict[Reader, Callable[[type[Event]], bool]] = {}  # of readers that always are there
READERS: dict[type[Event], tuple[Reader, ...]] = {}  # replaced, never changed: emitting takes no lock


def subscribe(
    reader: Reader, *kinds: type[Event], awake: Callable[[type[Event]], bool] | None = None
) -> Callable[[], None]:
    """Call `reader` with every event of these kinds (none given: of all). Returns a function that ends it.

    `awake`: does the reader do anything with an event of this kind now? Not given: it does.
    """
    wanted = kinds or KINDS
    if awake is not None:
        _AWAKE[reader] = awake
    with _lock:
        for kind in wanted:
            READERS[kind] = (*READERS.get(kind, ()), reader)

    def unsubscribe() -> None:
        with _lock:
            for kind in wanted:
                left = tuple(other for other in READERS.get(kind, ()) if other is not reader)
                if left:
                    READERS[kind] = left
                else:
                    READERS.pop(kind, None)

    return unsubscribe


def listening(kind: type[Event] | None = None) -> bool:
    """Does anybody read events of this kind (none given: of any kind)?"""
    return kind in READERS if kind is not None else bool(READERS)


def wanted(kind: type[Event]) -> bool:
    """Would anybody tell, or note, an event of this kind?"""
    return any(reader not in _AWAKE or _AWAKE[reader](kind) for reader in READERS.get(kind, ()))


def emit(event: Event) -> None:
    """Hand `event` to its readers. Never raises what a reader raised; what a signal handler raised then goes on."""
    for reader in READERS.get(type(event), ()):
        try:
            reader(event)
        except Exception as error:
            let_through(error)
            logging.getLogger("stator").exception("a reader of %s failed", type(event).__name__)


class stage:
    """`with stage(...):` says that this work begins, and that it has ended."""

    __slots__ = ("_began", "_start")

    def __init__(self, stage: str, name: str, ops: Callable[[], int] | None = None, folder: str | None = None) -> None:
        self._began = StageBegan(stage, name, ops, folder)

    def __enter__(self) -> None:
        self._start = time.perf_counter()
        emit(self._began)

    def __exit__(self, *exception: object) -> None:
        emit(StageEnded(self._began.stage, self._began.name, time.perf_counter() - self._start))


KINDS: tuple[type[Event], ...] = tuple(Event.__subclasses__())
