"""Watching one run, and the recording it adds up to.

Enters: a function and its argument slots. Leaves: the run's own result (or exception), and a `Recording`, or the reason
why there is none. Each handler is called just before its instruction executes and notes what it is going to read or
change; nothing here alters the course of the program.
"""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from traceback import FrameSummary
from typing import Any

from .. import _native
from ..errors import BreakReason, break_reason
from ..recording import Recording
from . import effects, leaves, policy, steering
from .attributes import Attributes
from .breaks import Drop
from .calls import INTERCEPTED
from .classes import Classes
from .handlers import HANDLERS, Handlers
from .ledger import Ledger
from .module_calls import GETATTR, ModuleCalls
from .tensors import TensorMode, Tracer


class Recorder(Handlers):
    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped: Drop | None = None
        self.break_reason: BreakReason | None = None
        self.failure: BaseException | None = None
        self.watcher = _native.Watcher(
            {kind: getattr(self, handler) for kind, handler in HANDLERS.items()},
            enter=self.enter,
            classify=policy.classify,
            leaf=self.leaf,
            blind=self.blind,
            foreign=self.foreign,
            failed=self.failed,
            transparent=self.transparent,
        )
        for code in INTERCEPTED:
            self.watcher.intercept(code)
        self.ledger = Ledger(self.watcher)
        self.classes = Classes(self.ledger)
        self.attributes = Attributes(self.ledger, self.classes)
        self.tracer = Tracer(self)
        self.leaves = leaves.Leaves(self)
        self.module_calls = ModuleCalls(self)
        self.handled_outside = sys.exc_info()[0] is not None

    # -- the run

    def prepare(self, function: types.FunctionType, names: tuple[str, ...], slots: tuple[Any, ...]) -> None:
        """Note what the run is given: the arguments, and the function itself."""
        for index, (name, value) in enumerate(zip(names, slots, strict=True)):
            self.ledger.local(index, name, value)
        self.root = function
        root = self.ledger.local(len(slots), function.__name__, function)
        self.attributes.note_function(root, function, bound=True)

    def run(self, slots: tuple[Any, ...]) -> Any:
        """Call the function watched. Exceptions are the program's own."""
        with TensorMode(self.tracer):
            self.tracer.begin()
            try:
                return self.watcher.run(self.root, slots)
            finally:
                self.tracer.active = False

    def finish(self, result: Any) -> Recording:
        """The recording of a run that returned."""
        if self.dropped is None:
            try:
                return effects.conclude(self, result)
            except Drop as drop:
                self.drop(drop)
            except RecursionError:
                self.drop(Drop("rebuild", "a result nested too deep"))
        return self.plain_recording()

    def plain_recording(self) -> Recording:
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
            break_reason=self.break_reason,
        )

    def release(self) -> None:
        """Let go of everything at once: the parts of a recorder know each other, and would wait for the collector."""
        for origin in self.ledger.origins:
            origin.children = None
        del (
            self.watcher,
            self.ledger,
            self.classes,
            self.attributes,
            self.tracer,
            self.leaves,
            self.module_calls,
        )

    def drop(self, drop: Drop) -> None:
        """The recording is over; the run goes on."""
        if self.dropped is not None:
            return
        self.dropped = drop
        self.tracer.active = False
        probe = self.watcher.last_probe
        self.watcher.stop()
        stack = _user_stack()
        self.break_reason = break_reason(
            drop.reason,
            probe.code if probe is not None else None,
            probe.offset if probe is not None else None,
            what=drop.detail,
            user_stack=stack[:-1],
        )
        if stack and policy.is_trusted(self.break_reason.filename):  # inside a library: show who called it
            caller = stack[-1]
            self.break_reason = replace(
                self.break_reason,
                filename=caller.filename,
                lineno=caller.lineno or 0,
                line=caller.line or "",
                function=caller.name,
                user_stack=stack,
                columns=None,
            )

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
            if origin is None:
                raise Drop("unknown-function", function.__qualname__)
        self.attributes.note_function(origin, function)

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
        if asked_for is not None:
            raise asked_for
        known = {"finalizer": "finalizer", "recursion": "recursion", "resumed": "outside-generator"}
        reason_id = known.get(reason or "", "unwatchable-code")
        raise Drop(reason_id, code.co_qualname, transient=reason_id in ("finalizer", "recursion"))

    def foreign(self, code: types.CodeType) -> None:
        raise Drop("foreign-frame", code.co_qualname)

    def failed(self, error: BaseException) -> None:
        """A handler raised: on purpose (Drop), or because something in stator is wrong."""
        if isinstance(error, Drop):
            self.drop(error)
        else:
            self.failure = self.failure or error
            self.drop(Drop("internal-error", f"{type(error).__name__}: {error}", transient=True))


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
