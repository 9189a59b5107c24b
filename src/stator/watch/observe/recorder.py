"""Watching one run, and the recording it adds up to.

Enters: a function and its argument slots. Leaves: the run's own result (or exception), and a `Recording`, or the reason
why there is none. Each handler is called just before its instruction executes and notes what it is going to read or
change; nothing here alters the course of the program.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ... import _native
from ...errors import BreakReason
from ...options import View
from ...recording import Recording, ResumePoint
from ...support.guard_readers import MODE_COUNT, torch_state
from ..finish import conclude
from ..finish.resume_points import Break, NotResumable, ReachedPoint, arrive, break_here
from ..graph_break import BreakGraph
from ..models import other_compiler, user_hints
from ..models.calls import INTERCEPTED
from ..objects.ledger import give_back_contents
from ..objects.object_age import newborn
from ..objects.own_objects import UNGUARDED_TYPES, OwnObjects, is_unguarded
from ..segment import Course, Segment, SegmentSettings
from ..tensors import leaf_interiors, leaves
from ..tensors.tensor_mode import TensorMode
from . import marked_functions, module_calls, policy
from .break_reasons import reason_of, words
from .call_handlers import SPREAD, TABLE
from .handlers import HANDLERS
from .module_calls import GETATTR
from .recorded import Ask, CacheHistory, RecordedSegment
from .unguarded_values import (
    give_back,
    is_call_of,
    is_ignored,
    is_left_to_python,
    use_scalar,
    use_symbol,
    works_on_tensors,
)

_MOST_REPEATS = 100
_SET_TRACERS = frozenset({"sys.settrace", "sys.setprofile"})
_LOOK_AT_CALLERS = frozenset({"frames", "call-warn"})


class Recorder:
    def __init__(
        self, name: str, program: object, settings: View, ask: Ask, known: CacheHistory, *, whole: bool = False
    ) -> None:
        """`program`: who records; it learns from each recording where the next ones had better break. `whole`: it is
        to be one graph.
        `ask(segments, point, inputs, state)`: what is known of the program from a resume point on, the segments of this
        run included, when it arrives there with these inputs?
        """
        self.name = name
        self._beginning: list[None] | None = []  # what is younger was made by the run; None: what is young at all
        self.failure: BaseException | None = None
        self.exhausted = False  # the program has used up the stack, and left nothing for us
        self.raised: BaseException | None = None  # by the program
        self.returned: tuple[()] | tuple[Any] = ()  # by the program: its result, if it has come to an end
        self.segments: list[RecordedSegment] = []
        self.frames: list[types.CodeType] = []  # that were run with probes, each function's once
        self.on_stop: Callable[[], None] = lambda: None
        self._program = program
        self._settings = settings
        self._whole = whole
        self._ask = ask
        self._changing: set[int] = set()  # unguarded values, by identity, that are not worth a guard
        self._hopeless: set[int] = set()  # those of them which have been seen to change
        self.own = OwnObjects()
        self._break: Break | None = None  # the last one, if the program was suspended there
        self._waiting = False  # between a break and the next segment
        self._over = False
        self._marked: list[types.FunctionType] = []  # leaves by the program's own word
        self._stopping = False  # nothing is recorded any more, only the mode is still to be taken off
        self._continued: dict[int, tuple[types.FunctionType, types.FunctionType]] = {}
        self._repeated = 0  # segments in a row that were known already
        self.watcher: Any = None
        self._mode = TensorMode(self)
        self._begin(None, torch_state(), known)

    def _begin(self, point: ResumePoint | None, state: tuple[Any, ...], known: CacheHistory) -> None:
        """A segment starts: nothing is known, nothing recorded."""
        changing = None if known.recorded else known.symbols
        self._steps_over = known.several and not self._whole
        captures = self._settings.capture_scalar_outputs
        symbolic = changing is not None and (changing or user_hints.has_marks() or captures)
        course = Course(self._take_over, self.stop, self.failed_inside, self.enter)
        settings = SegmentSettings(
            captures, self._settings.reorder_print, known.expects, changing if symbolic else None, self._whole
        )
        self.segment = Segment(self.name, point, state, self.own, course, settings, TABLE)
        self._mode.follow(self.segment)
        self._leaves = leaves.Leaves(self.segment)
        self._known_already = False

    def _take_over(self, segment: Segment) -> _native.Watcher:
        """The watcher of a segment: of the whole run, or of the rest of it."""
        former, watcher = self.watcher, self._new_watcher(segment)
        self.watcher = watcher
        if former is not None:
            former.hand_over(watcher)
        return watcher

    def _new_watcher(self, segment: Segment) -> _native.Watcher:
        watcher = _native.Watcher(self.handlers(segment), **self.callbacks())
        for code in INTERCEPTED:
            watcher.intercept(code)
        return watcher

    def handlers(self, segment: Segment) -> dict[int, Callable[..., Any]]:
        """What probes call."""
        bound = {kind: types.MethodType(handler, segment) for kind, handler in HANDLERS.items()}
        return {**bound, _native.PACK: self.on_specialize}

    def callbacks(self) -> dict[str, Callable[..., Any]]:
        """What the frame hook calls."""
        return {
            "enter": self.enter,
            "classify": policy.classify,
            "leaf": self.leaf,
            "blind": self.blind,
            "foreign": self.foreign,
            "failed": self.failed,
            "transparent": self.transparent,
            "on_resume": self.resume,
            "on_lost": self.lost,
            "on_mark": self.at_mark,
        }

    # -- the run

    def prepare(
        self,
        function: types.FunctionType,
        names: tuple[str, ...],
        slots: Sequence[Any],
        point: ResumePoint | None,
        changing: frozenset[int],
    ) -> None:
        """Note what the run is given: the arguments, and the function itself. A list of them is emptied when the run
        begins.
        """
        self.segment.root_code = function.__code__
        self.segment.point = point
        self._given = slots if isinstance(slots, list) else []
        if point is not None:
            self._beginning = None  # the call began before this
        self.slots = tuple(slots if point is None else map(self.own.make, slots))
        self._changing = self._hopeless = {id(self.slots[index]) for index in changing}
        self._callers = {id(value) for value in slots} if point is None else set()
        self.slots = self._note_slots(function, names, self.slots)

    def _note_slots(
        self,
        function: types.FunctionType,
        names: Iterable[str],
        slots: tuple[Any, ...],
        fixed: frozenset[int] = frozenset(),
    ) -> tuple[Any, ...]:
        """What a segment starts with. Behind a break numbers may be mere counters, texts mere messages: they are
        guarded when something depends on them. Gives the slots with symbols in them. What is `fixed` cannot be another
        object in its place, such as a number that is found elsewhere too: it is guarded as it is.
        """
        self.segment.root = function
        self.segment.context.slot_values = [*slots, function]
        for index, (name, value) in enumerate(zip(names, slots, strict=True)):
            own = index not in fixed
            symbol = self.segment.symbols.slot(index, name, value) if self.segment.symbols is not None and own else None
            if symbol is not None:
                self.segment.context.slot_values[index] = symbol
            elif self.segment.point is not None and own and is_unguarded(value):
                self.segment.ledger.unguarded(index, name, value)
            else:
                self.segment.ledger.local(index, name, value)
        root = self.segment.ledger.local(len(slots), function.__name__, function)
        self.segment.attributes.note_function(root, function, bound=True)
        return tuple(self.segment.context.slot_values[:-1])

    def run(self) -> Any:
        """Call the function watched. An exception is the program's own if it is `raised`."""
        if self.segment.point is None:
            self._beginning = []  # now that the collector rests
        try:
            self._mode.put_on()
            self.segment.tracer.begin()
            return self._run_watched()
        finally:
            self._mode.take_off()
            with contextlib.suppress(AttributeError):  # a segment that could not be begun has none
                self.segment.tracer.active = False

    def _run_watched(self) -> Any:
        try:
            self.returned = (self.watcher.run(self.segment.root, [*self.slots], self._given),)
            return self.returned[0]
        except BaseException as error:
            assert error.__traceback__ is not None
            if error.__traceback__.tb_next is not None:  # it comes from the function, not from the call of it
                self.raised = error
            raise

    def finish(self, result: Any) -> list[RecordedSegment]:
        """The recordings of a run that returned."""
        if self.watcher.error is not None:
            self.collapse(self.watcher.error)
            return []
        if not self._over and not self._waiting and not self._known_already:
            try:
                self._add(self._lasting(conclude.at_return(self.segment, result)))
                give_back_contents(self.segment.ledger, self.own.originals)
            except (BreakGraph, RecursionError) as error:
                stop = error if isinstance(error, BreakGraph) else BreakGraph("rebuild", "a result nested too deep")
                self._give_up(stop, reason_of(stop, self.watcher.last_probe))
                del stop  # its traceback has this frame: together they would keep what the program lets go
        return self.segments

    def _add(self, recording: Recording, transient: bool = False, *, again: bool = False, bare: bool = False) -> None:
        assumed = None if bare else conclude.assumptions(self.segment)
        self.segments.append(RecordedSegment(self.segment.point, recording, assumed, transient, again))

    def _lasting(self, recording: Recording) -> Recording:
        """The recording, if its guards can hold in another call."""
        made = newborn(recording.origins, self._beginning)
        if made is not None:
            raise BreakGraph("unguardable", f"{made.__qualname__}, which the call itself has made", transient=True)
        return recording

    def plain_recording(self, reason: BreakReason | None = None, *, bare: bool = False) -> Recording:
        """What is known of a run that cannot be replayed. `bare`: without guards, which would keep what they name."""
        return conclude.plain(self.segment, reason, bare=bare)

    def operations(self) -> int:
        """How many operations the segment that is being recorded has so far."""
        return self.segment.tracer.operations

    def release(self) -> None:
        """Let go of everything at once: the parts of a recorder know each other, and would wait for the collector."""
        self.segment.release()
        self.slots, self._break = (), None
        self._continued.clear()
        del self.segment, self.watcher, self._mode, self._ask, self._leaves

    # -- breaks

    def stop(self, stop: BreakGraph) -> None:
        """The recording cannot go on here; the run does."""
        try:
            self._end_here(stop)
        except Exception as fault:
            self.collapse(fault)

    def collapse(self, fault: BaseException) -> None:
        """The recorder itself has failed: nothing of this run is kept, and the program gets back what is its own."""
        if isinstance(fault, RecursionError):  # the program's, of which we had our share
            self.exhausted = True
        else:
            self.failure = self.failure or fault
        self._over, self._waiting = True, False
        self.segments = []
        for step in (self._stop_tracing, self._make_plain, self._give_all_back):
            with contextlib.suppress(Exception):  # parts of it may be gone
                step()
        if self._mode.take_off() or not self._wait_for_mode():
            self.watcher.stop()

    def _stop_tracing(self) -> None:
        self.segment.tracer.active = False

    def _give_all_back(self) -> None:
        give_back(self.segment, unguarded=True, inside=True)

    def _end_here(self, stop: BreakGraph) -> None:
        if self._over or self._waiting:
            return
        reason = reason_of(stop, self.watcher.last_probe)
        self.segment.tracer = self.segment.tracer.abandon()
        self.segment.tracer.active = False
        if stop.untrusted:
            self._give_up(stop, reason)
            give_back(self.segment, unguarded=True, inside=stop.inside)
            self._stop()
            return
        try:
            if stop.detail in _SET_TRACERS or (stop.reason == "other-compiler" and stop.detail.endswith("__enter__")):
                raise NotResumable("a tracer, or another compiler, would see frames that are not the program's")
            self._suspend(reason, inside=stop.inside)
        except NotResumable as why:
            stop.again = self._break_earlier(stop, why.probe)
            self._give_up(stop, replace(reason, rest=str(why)))
            give_back(self.segment, unguarded=True, inside=stop.inside)
            if stop.again:
                self._wait(None, why.calls)
            else:
                self._stop()
        except (BreakGraph, RecursionError) as why:
            self._give_up(stop, replace(reason, rest=words(why)))
            give_back(self.segment, unguarded=True, inside=stop.inside)
            self._stop()

    def _break_earlier(self, stop: BreakGraph, probe: _native.Probe | None) -> bool:
        """A break inside of what C code has called: the next recording is to break before that call."""
        if probe is None:
            return False
        if probe.mark is None:
            probe.mark = BreakGraph(stop.reason, stop.detail)
            probe.mark.learned_by = weakref.WeakKeyDictionary()
        if self._program in probe.mark.learned_by:
            return False
        probe.mark.learned_by[self._program] = (stop.reason, stop.detail)
        return True

    def at_mark(self, stop: BreakGraph) -> None:
        """An instruction at which somebody has learned to break."""
        assert stop.learned_by is not None
        learned = stop.learned_by.get(self._program)
        if learned is not None:
            self.stop(BreakGraph(*learned))

    def _give_up(self, stop: BreakGraph, reason: BreakReason) -> None:
        """The segment runs as plain Python under the guards noted so far."""
        self._over = True
        if not self._known_already:
            made = newborn(self.segment.ledger.origins, self._beginning) is not None
            recording = self.plain_recording(reason, bare=made)
            self._add(recording, stop.transient or made, again=stop.again, bare=made)
        self._make_plain()

    def _wait(self, broken: Break | None, calls: int = 0) -> None:
        """The next segment is to start in the frame so many calls away, behind the instruction where it stands."""
        self._break = broken and broken.emptied(lambda value: is_unguarded(self.own.original(value)))
        self._waiting, self._over = True, False
        self.segment.tracer.active = False
        self._mode.take_off()
        self.watcher.pend(calls)
        self._let_die()

    def _stop(self) -> None:
        """Nothing more is recorded of this run."""
        if not self._mode.take_off() and self._wait_for_mode():
            return
        self.watcher.stop()
        self.on_stop()
        self._let_die()

    def _wait_for_mode(self) -> bool:
        """Torch is at work with the mode: it can be taken off at the next probe. False: there is none to wait for."""
        if self._stopping or self._waiting:
            return False
        try:
            self.watcher.pend()
        except RuntimeError:
            return False
        self._stopping = True
        return True

    def _let_die(self) -> None:
        """The program may look whether what it has given up is gone."""
        self.slots, self.segment.context.slot_values = (), []
        self.segment.attributes.let_go()
        with contextlib.suppress(RuntimeError):  # in use: then it is closed with the next segment
            self.segment.ledger.close()

    def _suspend(self, reason: BreakReason | None, *, inside: bool) -> None:
        """End the segment before the instruction at which it breaks; the next one is to start behind it."""
        if self.segment.tracer.last_effect == self.watcher.events:
            raise NotResumable("the instruction has changed something already")
        with torch._C.DisableTorchFunction():
            here = break_here(self.watcher, inside=inside)
            if reason is not None and reason.id in _LOOK_AT_CALLERS and len(here.frames) > 1:
                raise NotResumable("the frames of its callers would not be there")
            if not self._known_already:
                recording = self._lasting(conclude.at_break(self.segment, here, self.held(), self.known_function))
                if reason is not None and not self._goes_on_in_a_loop(reason):
                    recording.break_reason = reason
                self._add(recording)
            give_back(self.segment, unguarded=True, inside=inside)
        self._make_plain()
        self._wait(here)
        if reason is not None and reason.id == "let-go":
            self.segment.ledger.close()

    def _make_plain(self) -> None:
        """What runs from here on finds the numbers that the program has put there."""
        if self.segment.symbols is not None:
            self.segment.symbols.close()

    def _goes_on_in_a_loop(self, reason: BreakReason) -> bool:
        """Is this the next round of a loop with a break in it? Its iterator is outside now; that is no new break."""
        probe = self.watcher.last_probe
        assert probe is not None
        return self.segment.point is not None and reason.id == "outside-iterator" and probe.kind == _native.NEXT

    def resume(self, probe: Any) -> bool:
        """The instruction has run natively and the program goes on: a new segment. True: not yet."""
        if self._stopping:
            self.lost(False)
            return False
        goes_on = probe.kind == _native.NEXT or (self._break is not None and self._break.goes_past(probe))
        if goes_on or torch._C._is_torch_function_all_disabled():
            return True
        with torch._C.DisableTorchFunction():
            try:
                there = arrive(self.watcher, self._break)
            except NotResumable:
                there = None
            state = self._mode.state_without()
            if there is None or self._repeated > _MOST_REPEATS or state[MODE_COUNT]:
                self.lost(False)
            else:
                self._start_segment(there, state)
        return False

    def _start_segment(self, there: ReachedPoint, state: tuple[Any, ...]) -> None:
        known = self._ask(self.segments, there.point, (*there.slots, there.functions[0]), state)
        if known.full:
            self.lost(False)
            return
        slots = self._make_distinct(there)
        self._hopeless = {id(slots[index]) for index in known.changing}
        before = self._break.states[-1].values() if self._break is not None else ()
        carried = {id(self.own.original(value)) for value in before}
        made = {id(new) for old, new in zip(there.slots, slots, strict=True) if id(old) not in carried}
        self._changing = self._hopeless | made
        root_code = self.segment.root_code
        self.segment.release()
        self._begin(there.point, state, known)
        self.segment.root_code = root_code
        self._known_already, self._waiting = known.recorded, False
        self._repeated = self._repeated + 1 if known.recorded else 0
        self._continued = {id(a): (b, a) for a, b in zip(there.originals, there.functions, strict=True)}
        fixed = frozenset(index for index, (_, place) in enumerate(there.places) if place < 0)
        noted = self._note_slots(there.functions[0], there.names, slots, fixed)
        for index, (calls, place) in enumerate(there.places):
            if noted[index] is not slots[index]:
                self.watcher.put(calls, place, noted[index])
        self._break = None
        for inner in there.functions[1:]:
            origin = self.segment.ledger.find(inner)
            assert origin is not None
            self.segment.attributes.note_function(origin, inner, bound=True)
        self._mode.put_on()
        self.segment.tracer.begin()

    def _make_distinct(self, there: ReachedPoint) -> tuple[Any, ...]:
        """Numbers and texts in the frames become objects of their own."""
        slots = list(there.slots)
        for index, (calls, place) in enumerate(there.places):
            if place >= 0 and is_unguarded(slots[index]):
                slots[index] = self.own.make(slots[index])
                self.watcher.put(calls, place, slots[index])
        return tuple(slots)

    def on_specialize(self, probe: Any, value: Any) -> None:
        """An unguarded value is about to matter: its value is guarded; or, where that would not hold for long (it has
        just come from Python, or was seen to change), Python makes one more step.
        """
        self.segment.ledger.place = probe
        if self.segment.symbols is not None and (
            type(value) not in UNGUARDED_TYPES or self.segment.symbols.was_symbol(value)
        ):
            if not self._leaves_to_python(probe, value):
                use_symbol(self.segment, probe, value)
            return
        if probe.arg == "returned" and probe.kind == _native.PACK and self._in_root(probe):
            return  # it is part of the result
        if is_ignored(self.segment, probe):
            self.watcher.leave_unguarded(value)
            return
        if self.segment.tracer.is_scalar(value):
            return use_scalar(self.segment, probe, value)
        waits = id(value) in self._hopeless or not works_on_tensors(self.segment, probe)
        if (id(value) in self._changing and waits and self._step_over()) or self._leaves_to_python(probe, value):
            return
        self.segment.ledger.specialize(value)
        give_back(self.segment)

    def _leaves_to_python(self, probe: Any, value: Any) -> bool:
        return self._steps_over and is_left_to_python(self.segment, probe, value) and self._step_over()

    def _step_over(self) -> bool:
        """Let Python make the next step, if that can be: one segment ends here, the next begins behind it."""
        noted = self.segment.ledger.changed_at == self.watcher.events
        if noted and not is_call_of(self.segment, self.watcher.last_probe, list.append):
            return False  # the change counts as made: it is too late to break
        try:
            self._suspend(None, inside=False)
        except NotResumable:
            return False
        return True

    def held(self) -> Iterator[Any]:
        """What the frames' variables hold and nobody else may: made inside, or by Python at an earlier break."""
        for entry in self.watcher.frames()[0]:
            for value in entry[5]:
                if id(value) not in self._callers and (
                    self.segment.point is not None or self.segment.ledger.find(value) is None
                ):
                    yield value

    def _in_root(self, probe: Any) -> bool:
        return probe.code is self.segment.root_code and len(self.watcher.frames()[0]) == 1

    def known_function(self, function: types.FunctionType) -> types.FunctionType:
        """A function with the same closure that the segment knows. To it the frames that it started with are those of
        their continuations.
        """
        return self._continued.get(id(function), (function, function))[0]

    def lost(self, raised: bool) -> None:
        """The program left the frame of the break otherwise: by an exception, as a rule."""
        self._over = True
        if self._stopping:
            self._mode.take_off()
            self.watcher.stop()
            self.on_stop()
        else:
            self._stop()

    # -- called by the hook

    def enter(self, function: types.FunctionType) -> None:
        """A function's frame starts for the first time in this recording."""
        self.frames.append(function.__code__)
        if function is self.segment.root:
            return
        if marked_functions.is_marked(function):
            self._marked.append(function)
            self.watcher.take_whole(function)
        origin = self.segment.ledger.find(function)
        if origin is None:
            if self.watcher.fresh(function) or function.__code__ is SPREAD:
                self.segment.attributes.note_made_function(function)
                if self.segment.symbols is not None:  # the frame has its arguments already
                    self.segment.symbols.specialise_in((function.__defaults__, function.__kwdefaults__))
                return
            origin = self.segment.classes.place_of_special(function)
        if origin is not None:
            self.segment.attributes.note_function(origin, function)
        else:
            self.failed_inside(BreakGraph("unknown-function", function.__qualname__))

    def transparent(self, function: types.FunctionType, slots: tuple[Any, ...]) -> bool:
        """A frame of `nn.Module` whose reads are noted as one, or a mark for torch's own compiler that is one for us;
        False: it has to be watched in full."""
        if other_compiler.is_mark(function.__code__):
            marked = other_compiler.break_at(function, self.watcher.frames()[0][-1][2])
            if marked is not None:
                self.failed_inside(marked)
            return marked is not None
        if function.__code__ is GETATTR:
            self.segment.attributes.read_registered(slots[0], slots[1])
            return True
        return module_calls.note(self.segment, slots[0])

    def leaf(self, payload: str | None, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        if payload is None:
            return marked_functions.call(self.segment, function, slots)
        if payload in ("transform", "apply"):
            return leaf_interiors.Interiors(self.segment).call(payload, function, slots)
        return self._leaves.call(payload, function, slots)

    def blind(self, code: types.CodeType, reason: str | None) -> None:
        asked_for = user_hints.break_of(code)
        known = {"finalizer": "finalizer", "recursion": "recursion", "resumed": "outside-generator"}
        reason_id = known.get(reason or "", "unwatchable-code")
        stop = BreakGraph(reason_id, code.co_qualname, transient=reason_id in ("finalizer", "recursion"))
        self.failed_inside(asked_for or stop)

    def foreign(self, code: types.CodeType) -> None:
        """A frame of the program's starts inside of an operation: nobody sees what it reads. The body of an operator
        of its own is run by every replay, and may read what it likes."""
        if self.segment.tracer.in_operator:
            return
        self.failed_inside(BreakGraph("foreign-frame", code.co_qualname))

    def failed_inside(self, error: BaseException) -> None:
        """The recording cannot go on while an instruction is at work."""
        self.failed(error, inside=True)

    def failed(self, error: BaseException, *, inside: bool = False) -> None:
        """A handler raised: on purpose (BreakGraph), or because something in stator is wrong. `inside`: what lies on
        the stack is in use."""
        if isinstance(error, RecursionError):  # the program's, of which we had our share
            error = BreakGraph("recursion", "a handler", transient=True)
        if isinstance(error, BreakGraph):
            error.inside = error.inside or inside
            self.stop(error)
        else:
            self.collapse(error)
