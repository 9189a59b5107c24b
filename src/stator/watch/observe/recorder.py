"""Watching one run, and the recording it adds up to.

Enters: a function and its argument slots. Leaves: the run's own result (or exception), and a `Recording`, or the reason
why there is none. Each handler is called just before its instruction executes and notes what it is going to read or
change; nothing here alters the course of the program.
"""

from __future__ import annotations

import contextlib
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ... import _native
from ...errors import BreakReason
from ...options import View
from ...recording import Edge, Recording, Way
from ...support.guard_readers import MODE_COUNT, torch_state
from ..finish import side_effects
from ..finish.resume_points import Arrival, Break, NotResumable, arrive, break_here
from ..graph_break import Drop
from ..models import other_compiler, user_hints
from ..models.calls import INTERCEPTED
from ..objects.attributes import Attributes
from ..objects.classes import Classes
from ..objects.fingerprints import is_tensor
from ..objects.ledger import Ledger, give_back_contents
from ..objects.locks import Locks
from ..objects.object_age import newborn
from ..objects.own_objects import LOOSE_TYPES, OwnObjects, is_loose
from ..objects.run_context import RunContext
from ..symbols import symbolic_uses
from ..symbols.symbolic_numbers import Changing, Symbols
from ..tensors import leaf_interiors, leaves
from ..tensors.nodes import Nodes
from ..tensors.tensor_mode import TensorMode, Tracer
from . import marked_functions, policy
from .break_reasons import reason_of, words
from .handlers import HANDLERS, SPREAD, Handlers
from .module_calls import GETATTR, ModuleCalls

_MOST_REPEATS = 100
_SET_TRACERS = frozenset({"sys.settrace", "sys.setprofile"})
_LOOK_AT_CALLERS = frozenset({"frames", "call-warn"})


class Segment(NamedTuple):
    """A stretch of the run, recorded: from the function's start, or from `way` on."""

    way: Way | None
    recording: Recording
    transient: bool = False  # it was given up, for a reason that may be gone in the next call
    again: bool = False  # or that will be gone


class Experience(NamedTuple):
    """What is known of the program from a way on."""

    recorded: bool  # is there a recording that fits what it arrives with?
    changing: frozenset[int]  # slots whose numbers and texts have been seen to change
    symbols: Changing | None = None  # sizes and numbers that have been seen to change, if they may be symbols
    expects: bool = True  # may it go by how comparisons of numbers in the graph come out?
    full: bool = False  # there are as many recordings as there may be, and none of them fits


Ask = Callable[[list[Segment], Way, tuple[Any, ...], tuple[Any, ...]], Experience]


class Recorder(Handlers):
    def __init__(self, name: str, program: object, settings: View, ask: Ask, known: Experience) -> None:
        """`program`: who records; it learns from each recording where the next ones had better break.
        `ask(segments, way, inputs, state)`: what is known of the program from a way on, the segments of this run
        included, when it arrives there with these inputs?
        """
        self.name = name
        self._beginning: list[None] | None = []  # what is younger was made by the run; None: what is young at all
        self.failure: BaseException | None = None
        self.exhausted = False  # the program has used up the stack, and left nothing for us
        self.raised: BaseException | None = None  # by the program
        self.returned: tuple[()] | tuple[Any] = ()  # by the program: its result, if it has come to an end
        self.segments: list[Segment] = []
        self.frames: list[types.CodeType] = []  # that were run with probes, each function's once
        self.on_stop: Callable[[], None] = lambda: None
        self._program = program
        self._settings = settings
        self._ask = ask
        self._changing: set[int] = set()  # loose values, by identity, that are not worth a guard
        self._hopeless: set[int] = set()  # those of them which have been seen to change
        self.own = OwnObjects()
        self._break: Break | None = None  # the last one, if the program was suspended there
        self._waiting = False  # between a break and the next segment
        self._over = False
        self._marked: list[types.FunctionType] = []  # leaves by the program's own word
        self._stopping = False  # nothing is recorded any more, only the mode is still to be taken off
        self._continued: dict[int, tuple[types.FunctionType, types.FunctionType]] = {}
        self._repeated = 0  # segments in a row that were known already
        self.watcher = self._new_watcher()
        self._mode = TensorMode(self)
        self._expects = known.expects
        self._begin(torch_state(), known.symbols)

    def _new_watcher(self) -> _native.Watcher:
        watcher = _native.Watcher(self.handlers(), **self.callbacks())
        for code in INTERCEPTED:
            watcher.intercept(code)
        return watcher

    def handlers(self) -> dict[int, Callable[..., Any]]:
        """What probes call."""
        return {kind: getattr(self, handler) for kind, handler in HANDLERS.items()}

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

    def _begin(self, state: tuple[Any, ...], changing: Changing | None) -> None:
        """A segment starts: nothing is known, nothing recorded."""
        self.ledger = Ledger(self.watcher)
        symbolic = changing is not None and (changing or user_hints.has_marks() or self.captures_scalars())
        self.context = RunContext(
            self.watcher, self.ledger, self.own, self.failed_inside, self.captures_scalars(), self._expects
        )
        nodes = Nodes()
        symbols = Symbols(self.context, changing, nodes) if changing is not None and symbolic else None
        self.classes = Classes(self.ledger)
        self.attributes = Attributes(self.ledger, self.classes)
        self.tracer = self.graph = Tracer(self.context, state, nodes, symbols)
        self.leaves = leaves.Leaves(self)
        self.locks = Locks()
        self.module_calls = ModuleCalls(self)
        self.handled_outside = sys.exc_info()[0] is not None
        self.prints: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._known_already = False

    # -- the run

    def prepare(
        self,
        function: types.FunctionType,
        names: tuple[str, ...],
        slots: Sequence[Any],
        way: Way | None,
        changing: frozenset[int],
    ) -> None:
        """Note what the run is given: the arguments, and the function itself. A list of them is emptied when the run
        begins.
        """
        self.root_code = function.__code__
        self._way = way
        self._given = slots if isinstance(slots, list) else []
        if way is not None:
            self._beginning = None  # the call began before this
        self.slots = tuple(slots if way is None else map(self.own.make, slots))
        self._changing = self._hopeless = {id(self.slots[index]) for index in changing}
        self._callers = {id(value) for value in slots} if way is None else set()
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
        self.root = function
        self.context.slot_values = [*slots, function]
        for index, (name, value) in enumerate(zip(names, slots, strict=True)):
            own = index not in fixed
            symbol = self.symbols.slot(index, name, value) if self.symbols is not None and own else None
            if symbol is not None:
                self.context.slot_values[index] = symbol
            elif self._way is not None and own and is_loose(value):
                self.ledger.loose(index, name, value)
            else:
                self.ledger.local(index, name, value)
        root = self.ledger.local(len(slots), function.__name__, function)
        self.attributes.note_function(root, function, bound=True)
        return tuple(self.context.slot_values[:-1])

    @property
    def symbols(self) -> Symbols | None:
        return self.graph.symbols

    def run(self) -> Any:
        """Call the function watched. An exception is the program's own if it is `raised`."""
        if self._way is None:
            self._beginning = []  # now that the collector rests
        try:
            self._mode.put_on()
            self.tracer.begin()
            return self._run_watched()
        finally:
            self._mode.take_off()
            with contextlib.suppress(AttributeError):  # a segment that could not be begun has none
                self.tracer.active = False

    def _run_watched(self) -> Any:
        try:
            self.returned = (self.watcher.run(self.root, [*self.slots], self._given),)
            return self.returned[0]
        except BaseException as error:
            assert error.__traceback__ is not None
            if error.__traceback__.tb_next is not None:  # it comes from the function, not from the call of it
                self.raised = error
            raise

    def finish(self, result: Any) -> list[Segment]:
        """The recordings of a run that returned."""
        if self.watcher.error is not None:
            self.collapse(self.watcher.error)
            return []
        if not self._over and not self._waiting and not self._known_already:
            try:
                self.segments.append(Segment(self._way, self._lasting(side_effects.conclude(self, result))))
                give_back_contents(self.ledger, self.own.originals)
            except (Drop, RecursionError) as error:
                drop = error if isinstance(error, Drop) else Drop("rebuild", "a result nested too deep")
                self._give_up(drop, reason_of(drop, self.watcher.last_probe))
                del drop  # its traceback has this frame: together they would keep what the program lets go
        return self.segments

    def _lasting(self, recording: Recording) -> Recording:
        """The recording, if its guards can hold in another call."""
        made = newborn(recording.origins, self._beginning)
        if made is not None:
            raise Drop("unguardable", f"{made.__qualname__}, which the call itself has made", transient=True)
        return recording

    def plain_recording(self, reason: BreakReason | None = None, *, bare: bool = False) -> Recording:
        """What is known of a run that cannot be replayed: under these guards it would break again. `bare`: without any
        guards, which would keep what they name."""
        return Recording(
            name=self.name,
            origins=[] if bare else self.ledger.origins,
            state=self.tracer.state,
            graph=None,
            inputs=[],
            example_inputs=[],
            outputs=0,
            blueprints=[],
            effects=[],
            result=side_effects.NOTHING,
            distinct=[],
            storages=None,
            mutates=False,
            acts=False,
            restores=[],
            break_reason=reason,
            **({} if bare else side_effects.symbolic_part(self)),
        )

    def operations(self) -> int:
        """How many operations the segment that is being recorded has so far."""
        return self.tracer.operations

    def release(self) -> None:
        """Let go of everything at once: the parts of a recorder know each other, and would wait for the collector."""
        self._let_go()
        self.slots, self._break = (), None
        self._continued.clear()
        del self.watcher, self._mode, self._ask, self.prints

    def _let_go(self) -> None:
        if self.symbols is not None:
            self.symbols.close()
            del self.watcher.on_symbol
        self.ledger.close()
        self.tracer.release()
        self.context.release()
        del self.context, self.graph, self.tracer, self.ledger, self.classes, self.attributes
        del self.leaves, self.module_calls

    # -- breaks

    def drop(self, drop: Drop) -> None:
        """The recording cannot go on here; the run does."""
        try:
            self._end_here(drop)
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
        for step in (self._stop_tracing, self._make_plain, lambda: self._give_back(loose=True, inside=True)):
            with contextlib.suppress(Exception):  # parts of it may be gone
                step()
        if self._mode.take_off() or not self._wait_for_mode():
            self.watcher.stop()

    def _stop_tracing(self) -> None:
        self.tracer.active = False

    def _end_here(self, drop: Drop) -> None:
        if self._over or self._waiting:
            return
        reason = reason_of(drop, self.watcher.last_probe)
        self.tracer = self.tracer.abandon()
        self.tracer.active = False
        if drop.untrusted:
            self._give_up(drop, reason)
            self._give_back(loose=True, inside=drop.inside)
            self._stop()
            return
        try:
            if drop.detail in _SET_TRACERS or (drop.reason == "other-compiler" and drop.detail.endswith("__enter__")):
                raise NotResumable("a tracer, or another compiler, would see frames that are not the program's")
            self._suspend(reason, inside=drop.inside)
        except NotResumable as why:
            drop.again = self._break_earlier(drop, why.probe)
            self._give_up(drop, replace(reason, rest=str(why)))
            self._give_back(loose=True, inside=drop.inside)
            if drop.again:
                self._wait(None, why.calls)
            else:
                self._stop()
        except (Drop, RecursionError) as why:
            self._give_up(drop, replace(reason, rest=words(why)))
            self._give_back(loose=True, inside=drop.inside)
            self._stop()

    def _break_earlier(self, drop: Drop, probe: _native.Probe | None) -> bool:
        """A break inside of what C code has called: the next recording is to break before that call."""
        if probe is None:
            return False
        if probe.mark is None:
            probe.mark = Drop(drop.reason, drop.detail)
            probe.mark.learned_by = weakref.WeakKeyDictionary()
        if self._program in probe.mark.learned_by:
            return False
        probe.mark.learned_by[self._program] = (drop.reason, drop.detail)
        return True

    def at_mark(self, drop: Drop) -> None:
        """An instruction at which somebody has learned to break."""
        assert drop.learned_by is not None
        learned = drop.learned_by.get(self._program)
        if learned is not None:
            self.drop(Drop(*learned))

    def _give_up(self, drop: Drop, reason: BreakReason) -> None:
        """The segment runs as plain Python under the guards noted so far."""
        self._over = True
        if not self._known_already:
            made = newborn(self.ledger.origins, self._beginning) is not None
            recording = self.plain_recording(reason, bare=made)
            self.segments.append(Segment(self._way, recording, drop.transient or made, drop.again))
        self._make_plain()

    def _wait(self, broken: Break | None, calls: int = 0) -> None:
        """The next segment is to start in the frame so many calls away, behind the instruction where it stands."""
        self._break = broken and broken.emptied(lambda value: is_loose(self.own.original(value)))
        self._waiting, self._over = True, False
        self.tracer.active = False
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
        self.slots, self.context.slot_values = (), []
        self.attributes.let_go()
        with contextlib.suppress(RuntimeError):  # in use: then it is closed with the next segment
            self.ledger.close()

    def _suspend(self, reason: BreakReason | None, *, inside: bool) -> None:
        """End the segment before the instruction at which it breaks; the next one is to start behind it."""
        if self.tracer.last_effect == self.watcher.events:
            raise NotResumable("the instruction has changed something already")
        with torch._C.DisableTorchFunction():
            here = break_here(self.watcher, inside=inside)
            if reason is not None and reason.id in _LOOK_AT_CALLERS and len(here.frames) > 1:
                raise NotResumable("the frames of its callers would not be there")
            if not self._known_already:
                recording = self._lasting(side_effects.conclude_at(self, here))
                if reason is not None and not self._goes_on_in_a_loop(reason):
                    recording.break_reason = reason
                self.segments.append(Segment(self._way, recording))
            self._give_back(loose=True, inside=inside)
        self._make_plain()
        self._wait(here)
        if reason is not None and reason.id == "let-go":
            self.ledger.close()

    def _make_plain(self) -> None:
        """What runs from here on finds the numbers that the program has put there."""
        if self.symbols is not None:
            self.symbols.close()

    def _goes_on_in_a_loop(self, reason: BreakReason) -> bool:
        """Is this the next round of a loop with a break in it? Its iterator is outside now; that is no new break."""
        probe = self.watcher.last_probe
        assert probe is not None
        return self._way is not None and reason.id == "outside-iterator" and probe.kind == _native.NEXT

    def resume(self, probe: Any) -> bool:
        """The instruction has run natively and the program goes on: a new segment. True: not yet."""
        if self._stopping:
            self.lost(False)
            return False
        if probe.kind == _native.NEXT or torch._C._is_torch_function_all_disabled():
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

    def _start_segment(self, there: Arrival, state: tuple[Any, ...]) -> None:
        known, changing, symbols, self._expects, full = self._ask(
            self.segments, there.way, (*there.slots, there.functions[0]), state
        )
        if full:
            self.lost(False)
            return
        slots = self._make_distinct(there)
        self._hopeless = {id(slots[index]) for index in changing}
        before = self._break.states[-1].values() if self._break is not None else ()
        carried = {id(self.own.original(value)) for value in before}
        made = {id(new) for old, new in zip(there.slots, slots, strict=True) if id(old) not in carried}
        self._changing = self._hopeless | made
        self._let_go()
        former, self.watcher = self.watcher, self._new_watcher()
        former.hand_over(self.watcher)
        self._begin(state, None if known else symbols)
        self._way, self._known_already, self._waiting = there.way, known, False
        self._repeated = self._repeated + 1 if known else 0
        self._continued = {id(a): (b, a) for a, b in zip(there.originals, there.functions, strict=True)}
        fixed = frozenset(index for index, (_, place) in enumerate(there.places) if place < 0)
        noted = self._note_slots(there.functions[0], there.names, slots, fixed)
        for index, (calls, place) in enumerate(there.places):
            if noted[index] is not slots[index]:
                self.watcher.put(calls, place, noted[index])
        self._break = None
        for inner in there.functions[1:]:
            origin = self.ledger.find(inner)
            assert origin is not None
            self.attributes.note_function(origin, inner, bound=True)
        self._mode.put_on()
        self.tracer.begin()

    def _make_distinct(self, there: Arrival) -> tuple[Any, ...]:
        """Numbers and texts in the frames become objects of their own."""
        slots = list(there.slots)
        for index, (calls, place) in enumerate(there.places):
            if place >= 0 and is_loose(slots[index]):
                slots[index] = self.own.make(slots[index])
                self.watcher.put(calls, place, slots[index])
        return tuple(slots)

    def on_settle(self, probe: Any, value: Any) -> None:
        """A loose value is about to matter: its value is guarded; or, where that would not hold for long (it has just
        come from Python, or was seen to change), Python makes one more step.
        """
        self.ledger.place = probe
        if self.symbols is not None and (type(value) not in LOOSE_TYPES or self.symbols.was_symbol(value)):
            self._use_symbol(probe, value)
            return
        if probe.arg == "returned" and probe.kind == _native.PACK and self._in_root(probe):
            return  # it is part of the result
        if self.tracer.is_scalar(value):
            self._use_scalar(probe, value)
            return
        noted = self.ledger.changed_at == self.watcher.events  # then the change counts as made: it is too late to break
        waits = id(value) in self._hopeless or not self._works_on_tensors(probe)
        if id(value) in self._changing and waits and not noted:
            try:
                self._suspend(None, inside=False)
            except NotResumable:
                pass
            else:
                return
        self.ledger.settle(value)
        self._give_back()

    def _use_symbol(self, probe: Any, value: Any) -> None:
        """A symbolic number, or a container of some, is an operand."""
        assert self.symbols is not None
        operands = self.watcher.stack(0, probe.depth)[probe.depth - probe.span :]
        if probe.kind == _native.IS and all(issubclass(type(operand), (int, float)) for operand in operands):
            self._compare_identities(operands)
        elif symbolic_uses.left_looks_at_right(probe, operands):
            place = len(self.watcher.frames()[0][-1][5]) + probe.depth - probe.span
            self.watcher.put(0, place, self.symbols.stand_in(operands[0]))
            self.symbols.keep(value)
        elif symbolic_uses.reads(self.watcher, probe, operands, value):
            self.symbols.specialise_in(value)
        else:
            self.symbols.keep(value)

    def _compare_identities(self, operands: list[Any]) -> None:
        """`is` tells one small int from another by its value: the program must find the objects that it would have."""
        assert self.symbols is not None
        for operand in operands:
            if self.symbols.find(operand) is not None:
                self.symbols.specialise_in(operand)
                self.own.stands_for(operand, operand + 0)
            elif self.ledger.find_loose(operand) is not None:
                self.ledger.settle(operand)
        self._give_back()

    def instead(self, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
        if self.symbols is None:
            return None
        symbolic_uses.refuse_unheard_calls(func, args)
        found = symbolic_uses.replacement(func, args) if probe is not None and not kwnames else None
        if found in ("root", "smaller", "larger") and not self.symbols.computes(found, args):
            found = None
        if found is None and not symbolic_uses.passes(func, args):
            self.symbols.specialise_in(
                [number for value in (func, *args) for number in symbolic_uses.hidden_numbers(value)]
            )
            self.symbols.specialise_in(args if probe is None else ())
        if found == "length":
            return self._length
        return getattr(self.symbols, found) if isinstance(found, str) else found

    def _length(self, tensor: torch.Tensor) -> Any:
        """`len(tensor)`."""
        with torch._C.DisableTorchFunction():
            try:
                return self.tracer.size_of(tensor, 0)
            except Exception as error:  # the program has called us: it must not see that
                self.failed_inside(error)
            return len(tensor)

    def may_be_given_up(self, value: Any) -> bool:
        """Is it one that the segment was given by the frames, and that no variable of theirs has any more?"""
        origin = self.ledger.find(value) if self._way is not None else None
        if origin is None or origin.edge is not Edge.LOCAL:
            return False
        return not any(value is kept for entry in self.watcher.frames()[0] for kept in entry[5])

    def held(self) -> Iterator[Any]:
        """What the frames' variables hold and nobody else may: made inside, or by Python at an earlier break."""
        for entry in self.watcher.frames()[0]:
            for value in entry[5]:
                if id(value) not in self._callers and (self._way is not None or self.ledger.find(value) is None):
                    yield value

    def _in_root(self, probe: Any) -> bool:
        return probe.code is self.root_code and len(self.watcher.frames()[0]) == 1

    def _give_back(self, *, loose: bool = False, inside: bool = False) -> None:
        """The frames get back the numbers and texts that were theirs; with `loose`, those too that nothing depends on
        yet. (`inside`: what lies on the stack is in use.)
        """
        if not self.own.originals:
            return
        if loose:
            give_back_contents(self.ledger, self.own.originals)
        entries, _ = self.watcher.frames()
        for calls, entry in enumerate(reversed(entries)):
            values, probe = list(entry[5]), entry[-1]
            if calls == 0 and not inside and probe is not None:
                values += self.watcher.stack(0, probe.depth)
            for place, value in enumerate(values):
                settled = type(value) in LOOSE_TYPES and self.ledger.find_loose(value) is None
                if id(value) in self.own.originals and (loose or settled):
                    self.watcher.put(calls, place, self.own.original(value))

    def _use_scalar(self, probe: Any, value: Any) -> None:
        """A number that a node of the graph computes: tensor operations take it as such, Python has to wait for it."""
        if self._is_tensor_operation(probe):
            self.watcher.loosen(value)
        else:
            self.drop(Drop("tensor-item", "tensor.item()"))

    def _works_on_tensors(self, probe: Any) -> bool:
        """A tensor operation makes a graph, if the value is guarded."""
        return any(map(is_tensor, self.watcher.stack(0, probe.depth)[probe.depth - probe.span :]))

    def _is_tensor_operation(self, probe: Any) -> bool:
        """Does the instruction do nothing but what the tensor mode sees?"""
        operands = self.watcher.stack(0, probe.depth)[probe.depth - probe.span :]
        if probe.kind in (_native.BINARY, _native.COMPARE):
            return any(map(is_tensor, operands))
        if probe.kind in (_native.SUBSCR, _native.STORE_SUBSCR):
            return is_tensor(operands[probe.kind == _native.STORE_SUBSCR])
        if probe.kind != _native.CALL or not any(map(is_tensor, operands)):
            return False
        func = operands[0] if operands[0] is not _native.MISSING else operands[1]
        if issubclass(type(func), types.MethodDescriptorType):
            return issubclass(torch.Tensor, func.__objclass__) and func.__objclass__ is not object
        if not issubclass(type(func), types.BuiltinFunctionType):
            return False
        return is_tensor(func.__self__) or func.__self__ is torch._C._nn or getattr(torch, func.__name__, None) is func

    def look_anew(self) -> None:
        """The handlers are told of what they were told of before, too."""
        self.watcher.look_anew()
        self.module_calls = ModuleCalls(self)

    def depend_on(self, tensor: Any) -> None:
        if is_tensor(tensor):
            with torch._C.DisableTorchFunction():
                self.tracer.lookup(tensor)

    def fix_sizes(self, why: str) -> None:
        """What comes cannot be followed for other sizes than those at hand."""
        if self.symbols is not None:
            self.symbols.abandon(why)

    def captures_scalars(self) -> bool:
        return self._settings.capture_scalar_outputs

    def has_written(self) -> bool:
        return bool(self.ledger.changes) or self.tracer.mutates

    def print_later(self, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> bool:
        """With `reorder_print`, texts and numbers are printed where the segment ends; the order of lines stays."""
        count = len(args) - len(kwnames)
        keywords = dict(zip(kwnames, args[count:], strict=True))
        plain = {*map(type, args)} <= {str, int, float, bool, type(None)} and keywords.keys() <= {"sep", "end"}
        loose = any(self.ledger.find_loose(arg) is not None or self.tracer.is_scalar(arg) for arg in args)
        if plain and not loose and self._settings.reorder_print:
            self.prints.append((args[:count], keywords))
            return True
        return False

    def known_function(self, function: types.FunctionType) -> types.FunctionType:
        """A function with the same closure that the segment knows. To it the frames that it started with are those of
        their continuations.
        """
        return self._continued.get(id(function), (function, function))[0]

    def lost(self, raised: bool) -> None:
        """The program left the frame of the break by another way: by an exception, as a rule."""
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
        if function is self.root:
            return
        if marked_functions.is_marked(function):
            self._marked.append(function)
            self.watcher.take_whole(function)
        origin = self.ledger.find(function)
        if origin is None:
            if self.watcher.fresh(function) or function.__code__ is SPREAD:
                self.attributes.note_made_function(function)
                if self.symbols is not None:  # the frame has its arguments already
                    self.symbols.specialise_in((function.__defaults__, function.__kwdefaults__))
                return
            origin = self.classes.place_of_special(function)
        if origin is not None:
            self.attributes.note_function(origin, function)
        else:
            self.failed_inside(Drop("unknown-function", function.__qualname__))

    def transparent(self, function: types.FunctionType, slots: tuple[Any, ...]) -> bool:
        """A frame of `nn.Module` whose reads are noted as one, or a mark for torch's own compiler that is one for us;
        False: it has to be watched in full."""
        if other_compiler.is_mark(function.__code__):
            marked = other_compiler.break_at(function, self.watcher.frames()[0][-1][2])
            if marked is not None:
                self.failed_inside(marked)
            return marked is not None
        if function.__code__ is GETATTR:
            self.attributes.read_registered(slots[0], slots[1])
            return True
        return self.module_calls.note(slots[0])

    def leaf(self, payload: str | None, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        if payload is None:
            return marked_functions.call(self, function, slots)
        if payload in ("transform", "apply"):
            return leaf_interiors.Interiors(self).call(payload, function, slots)
        return self.leaves.call(payload, function, slots)

    def blind(self, code: types.CodeType, reason: str | None) -> None:
        asked_for = user_hints.break_of(code)
        known = {"finalizer": "finalizer", "recursion": "recursion", "resumed": "outside-generator"}
        reason_id = known.get(reason or "", "unwatchable-code")
        drop = Drop(reason_id, code.co_qualname, transient=reason_id in ("finalizer", "recursion"))
        self.failed_inside(asked_for or drop)

    def foreign(self, code: types.CodeType) -> None:
        """A frame of the program's starts inside of an operation: nobody sees what it reads. The body of an operator
        of its own is run by every replay, and may read what it likes."""
        if self.tracer.in_operator:
            return
        self.failed_inside(Drop("foreign-frame", code.co_qualname))

    def failed_inside(self, error: BaseException) -> None:
        """The recording cannot go on while an instruction is at work."""
        self.failed(error, inside=True)

    def failed(self, error: BaseException, *, inside: bool = False) -> None:
        """A handler raised: on purpose (Drop), or because something in stator is wrong. `inside`: what lies on the
        stack is in use."""
        if isinstance(error, RecursionError):  # the program's, of which we had our share
            error = Drop("recursion", "a handler", transient=True)
        if isinstance(error, Drop):
            error.inside = error.inside or inside
            self.drop(error)
        else:
            self.collapse(error)
