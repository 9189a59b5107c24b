"""A segment: what is known of the stretch of a run that is being watched.

Plain data. It is handed to the handlers of the probes and to the rules of C callables, which note in it what the run
reads and changes, and at its end to `finish/`, which makes a recording of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _native
from ..recording import ResumePoint
from .graph_break import BreakGraph
from .objects.attribute_writes import AttributeWrites
from .objects.attributes import Attributes
from .objects.classes import Classes
from .objects.ledger import Ledger
from .objects.locks import Locks
from .objects.own_objects import OwnObjects
from .objects.run_context import RunContext
from .symbols.symbolic_numbers import Changing, Symbols
from .tensors.nodes import Nodes
from .tensors.tensor_mode import TensorTracer


class CallTable(NamedTuple):
    """What rules ask of the table that they stand in."""

    rule_for: Callable[[Any], Any]
    reads_arguments_only: Callable[[Any], bool]
    call: Callable[[Segment, Any, Any, tuple[Any, ...], tuple[str, ...]], Any]  # note a call; what to call in its place


class Course(NamedTuple):
    """How a segment acts on the run that it is a part of."""

    watcher: Callable[[Segment], _native.Watcher]  # makes the segment's
    stop: Callable[[BreakGraph], None]  # the recording is over; the run goes on
    fail: Callable[[BaseException], None]  # the recording cannot go on while an instruction is at work
    enter: Callable[[Any], None]  # a function's frame starts


class SegmentSettings(NamedTuple):
    """What the user has asked for, and what is known from earlier calls."""

    captures_scalars: bool
    reorders_prints: bool
    may_expect: bool  # that comparisons of numbers in the graph come out as they do now
    most_kept: int  # bytes of what is written to, in every call
    changing: Changing | None  # sizes and numbers that may be symbols; None: no symbols from outside
    whole: bool  # the program is to be one graph


class Segment:
    root: Any  # the function under watch
    root_code: Any  # of the frame that its run began with

    def __init__(
        self,
        name: str,
        point: ResumePoint | None,
        state: tuple[Any, ...],
        own: OwnObjects,
        course: Course,
        settings: SegmentSettings,
        table: CallTable,
    ) -> None:
        """`point`: what it goes on from, if not from the start of a function. `state`: torch's, as it begins."""
        self.name = name
        self.point = point
        self.own = own
        self.table = table
        self.stop, self.fail, self.enter = course.stop, course.fail, course.enter
        self.watcher = course.watcher(self)
        self.ledger = Ledger(self.watcher)
        self.context = RunContext(
            self.watcher,
            self.ledger,
            own,
            course.fail,
            settings.captures_scalars,
            settings.may_expect,
            settings.most_kept,
        )
        nodes = Nodes()
        symbols = Symbols(self.context, settings.changing, nodes) if settings.changing is not None else None
        self.classes = Classes(self.ledger)
        self.attributes = Attributes(self.ledger, self.classes)
        self.attribute_writes = AttributeWrites(self.ledger, self.classes, self.attributes)
        self.tracer = self.graph = TensorTracer(self.context, state, nodes, symbols)
        self.locks = Locks()
        self.noted_modules: set[int] = set()  # whose calls were noted as one fact each
        self.reorders_prints = settings.reorders_prints
        self.must_not_break = settings.whole
        self.prints: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.handled_outside = sys.exc_info()[0] is not None  # was an exception being handled when it began?

    @property
    def symbols(self) -> Symbols | None:
        return self.graph.symbols

    @property
    def approves(self) -> bool:
        """May the C side skip calls that were looked at once?"""
        return self.graph.symbols is None

    def fix_sizes(self, why: str) -> None:
        """What comes cannot be followed for other sizes than those at hand."""
        if self.symbols is not None:
            self.symbols.abandon(why)

    def look_anew(self) -> None:
        """The handlers are told of what they were told of before, too."""
        self.watcher.look_anew()
        self.noted_modules.clear()

    def release(self) -> None:
        """Let go of everything at once: the parts know each other, and would wait for the collector."""
        if self.symbols is not None:
            self.symbols.close()
            del self.watcher.on_symbol
        self.ledger.close()
        self.tracer.release()
        self.context.release()
        vars(self).clear()
