"""Watching one run, and the recording it adds up to.

Enters: a function and its argument slots. Leaves: the run's own result (or exception), and a `Recording`, or the reason
why there is none. Each handler is called just before its instruction executes and notes what it is going to read or
change; nothing here alters the course of the program.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from traceback import FrameSummary
from typing import Any, NamedTuple

import torch

from .. import _native
from ..errors import REASONS, BreakReason, break_reason
from ..facts import torch_state
from ..recording import Recording, Way
from . import effects, leaves, policy, steering
from .attributes import Attributes
from .breaks import Drop
from .classes import Classes
from .exits import Break, NotResumable, arrive, break_here
from .handlers import HANDLERS, Handlers
from .ledger import Ledger
from .module_calls import GETATTR, ModuleCalls
from .tensors import TensorMode, Tracer


_LOOK_AT_CALLERS = frozenset({"frames", "call-warn"})


class Segment(NamedTuple):
    """A stretch of the run, recorded: from the function's start, or from `way` on."""

    way: Way | None
    recording: Recording
    transient: bool = False  # it was given up, for a reason that may be gone in the next call


IsRecorded = Callable[[list[Segment], Way, tuple[Any, ...], tuple[Any, ...]], bool]


class Recorder(Handlers):
    def __init__(self, name: str, is_recorded: IsRecorded) -> None:
        """`is_recorded(segments, way, inputs, state)`: is there a recording already, perhaps a segment of this run,
        that fits the program as it arrives at a way?"""
        self.name = name
        self.failure: BaseException | None = None
        self.segments: list[Segment] = []
        self._is_recorded = is_recorded
        self._break: Break | None = None  # set between a break and the next segment
        self._over = False
        self.watcher = self._new_watcher()
        self._begin(torch_state())

    def _new_watcher(self) -> _native.Watcher:
        return _native.Watcher(
            {kind: getattr(self, handler) for kind, handler in HANDLERS.items()},
            enter=self.enter,
            classify=policy.classify,
            leaf=self.leaf,
            blind=self.blind,
            foreign=self.foreign,
            failed=self.failed,
            transparent=self.transparent,
            on_resume=self.resume,
            on_lost=self.lost,
        )

    def _begin(self, state: tuple[Any, ...]) -> None:
        """A segment starts: nothing is known, nothing recorded."""
        self.ledger = Ledger(self.watcher)
        self.classes = Classes(self.ledger)
        self.attributes = Attributes(self.ledger, self.classes)
        self.tracer = Tracer(self, state)
        self.leaves = leaves.Leaves(self)
        self.module_calls = ModuleCalls(self)
        self.handled_outside = sys.exc_info()[0] is not None
        self._known_already = False

    # -- the run

    def prepare(
        self, function: types.FunctionType, names: tuple[str, ...], slots: tuple[Any, ...], way: Way | None
    ) -> None:
        """Note what the run is given: the arguments, and the function itself."""
        self.root_code = function.__code__
        self._way = way
        self._note_slots(function, names, slots)

    def _note_slots(self, function: types.FunctionType, names: tuple[str, ...], slots: tuple[Any, ...]) -> None:
        self.root = function
        for index, (name, value) in enumerate(zip(names, slots, strict=True)):
            self.ledger.local(index, name, value)
        root = self.ledger.local(len(slots), function.__name__, function)
        self.attributes.note_function(root, function, bound=True)

    def run(self, slots: tuple[Any, ...]) -> Any:
        """Call the function watched. Exceptions are the program's own."""
        with TensorMode(self):
            self.tracer.begin()
            try:
                return self.watcher.run(self.root, slots)
            finally:
                self.tracer.active = False

    def finish(self, result: Any) -> list[Segment]:
        """The recordings of a run that returned."""
        if not self._over and self._break is None and not self._known_already:
            try:
                self.segments.append(Segment(self._way, effects.conclude(self, result)))
            except (Drop, RecursionError) as error:
                drop = error if isinstance(error, Drop) else Drop("rebuild", "a result nested too deep")
                self._give_up(drop, self._reason(drop))
        return self.segments

    def plain_recording(self, reason: BreakReason | None = None) -> Recording:
        """What is known of a run that cannot be replayed: under these guards it would break again."""
        return Recording(
            name=self.name,
            origins=self.ledger.origins,
            state=self.tracer.state,
            graph=None,
            inputs=[],
            example_inputs=[],
            outputs=0,
            blueprints=[],
            effects=[],
            result=effects.NOTHING,
            distinct=[],
            storages=None,
            mutates=False,
            restores=[],
            break_reason=reason,
        )

    def release(self) -> None:
        """Let go of everything at once: the parts of a recorder know each other, and would wait for the collector."""
        self._let_go()
        del self.watcher, self._is_recorded

    def _let_go(self) -> None:
        for origin in self.ledger.origins:
            origin.children = None
        del self.ledger, self.classes, self.attributes, self.tracer, self.leaves, self.module_calls

    # -- breaks

    def drop(self, drop: Drop) -> None:
        """The recording cannot go on here; the run does."""
        if self._over or self._break is not None:
            return
        reason = self._reason(drop)
        self.tracer.active = False
        if drop.untrusted:
            self._give_up(drop, reason)
            return
        try:
            self._suspend(reason, inside=drop.inside)
        except (Drop, NotResumable, RecursionError) as why:
            self._give_up(drop, replace(reason, rest=_words(why)))

    def _give_up(self, drop: Drop, reason: BreakReason) -> None:
        """Nothing is recorded from here on; the segment runs as plain Python under the guards noted so far."""
        self._over = True
        self.watcher.stop()
        if not self._known_already:
            self.segments.append(Segment(self._way, self.plain_recording(reason), drop.transient))

    def _suspend(self, reason: BreakReason, *, inside: bool) -> None:
        """End the segment before the instruction at which it breaks; the next one is to start behind it."""
        if self.tracer.last_effect == self.watcher.events:
            raise NotResumable("the instruction has changed something already")
        with torch._C.DisableTorchFunction():
            here = break_here(self.watcher, inside=inside)
            if reason.id in _LOOK_AT_CALLERS and len(here.frames) > 1:
                raise NotResumable("the frames of its callers would not be there")
            if not self._known_already:
                recording = effects.conclude_at(self, here)
                recording.break_reason = reason
                self.segments.append(Segment(self._way, recording))
        self._break = here
        self.watcher.pend()

    def resume(self, probe: Any) -> bool:
        """The instruction has run natively and the program goes on: a new segment. True: not yet."""
        if probe.kind == _native.NEXT:
            return True
        assert self._break is not None
        with torch._C.DisableTorchFunction():
            there = arrive(self.watcher, self._break)
            self._break = None
            if there is None:
                self.lost(False)
                return False
            state = self.tracer.state_outside_mode()
            known = self._is_recorded(self.segments, there.way, (*there.slots, there.functions[0]), state)
            self._let_go()
            former, self.watcher = self.watcher, self._new_watcher()
            former.hand_over(self.watcher)
            self._begin(state)
            self._way, self._known_already = there.way, known
            self._note_slots(there.functions[0], there.way.names, there.slots)
            for inner in there.functions[1:]:
                origin = self.ledger.find(inner)
                assert origin is not None
                self.attributes.note_function(origin, inner, bound=True)
        self.tracer.begin()
        return False

    def lost(self, raised: bool) -> None:
        """The program left the frame of the break by another way: by an exception, as a rule."""
        self._over = True
        self.watcher.stop()

    def _reason(self, drop: Drop) -> BreakReason:
        probe = self.watcher.last_probe
        stack = _user_stack()
        reason = break_reason(
            drop.reason,
            probe.code if probe is not None else None,
            probe.offset if probe is not None else None,
            what=drop.detail,
            user_stack=stack[:-1],
        )
        if stack and policy.is_trusted(reason.filename):  # inside a library: show who called it
            caller = stack[-1]
            reason = replace(
                reason,
                filename=caller.filename,
                lineno=caller.lineno or 0,
                line=caller.line or "",
                function=caller.name,
                user_stack=stack,
                columns=None,
            )
        return reason

    # -- called by the hook

    def enter(self, function: types.FunctionType) -> None:
        """A function's frame starts for the first time in this recording."""
        if function is self.root:
            return
        origin = self.ledger.find(function)
        if origin is None:
            if self.watcher.fresh(function):
                return
            origin = self.classes.place_of_special(function)
        if origin is not None:
            self.attributes.note_function(origin, function)
        else:
            self.failed_inside(Drop("unknown-function", function.__qualname__))

    def transparent(self, function: types.FunctionType, slots: tuple[Any, ...]) -> bool:
        """A frame of `nn.Module` whose reads are noted as one; False: it has to be watched in full."""
        if function.__code__ is GETATTR:
            self.attributes.read_registered(slots[0], slots[1])
            return True
        return self.module_calls.note(slots[0])

    def leaf(self, payload: str, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        return self.leaves.call(payload, function, slots)

    def blind(self, code: types.CodeType, reason: str | None) -> None:
        asked_for = steering.break_of(code)
        known = {"finalizer": "finalizer", "recursion": "recursion", "resumed": "outside-generator"}
        reason_id = known.get(reason or "", "unwatchable-code")
        drop = Drop(reason_id, code.co_qualname, transient=reason_id in ("finalizer", "recursion"))
        self.failed_inside(asked_for or drop)

    def foreign(self, code: types.CodeType) -> None:
        self.failed_inside(Drop("foreign-frame", code.co_qualname))

    def failed_inside(self, error: BaseException) -> None:
        """The recording cannot go on while an instruction is at work."""
        if isinstance(error, Drop):
            error.inside = True
        self.failed(error)

    def failed(self, error: BaseException) -> None:
        """A handler raised: on purpose (Drop), or because something in stator is wrong."""
        if isinstance(error, Drop):
            self.drop(error)
        else:
            self.failure = self.failure or error
            self.drop(Drop("internal-error", f"{type(error).__name__}: {error}", transient=True))


def _words(why: Exception) -> str:
    if isinstance(why, Drop):
        return REASONS[why.reason].reason.replace("{what}", why.detail)
    return str(why) or "the values at hand are nested too deep"


def _user_stack() -> tuple[FrameSummary, ...]:
    """The program's own frames, outermost first."""
    frames: list[FrameSummary] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < 50:
        code = frame.f_code
        if not policy.is_trusted(code.co_filename):
            frames.append(FrameSummary(code.co_filename, frame.f_lineno, code.co_qualname, lookup_line=False))
        frame = frame.f_back
    return tuple(reversed(frames))
