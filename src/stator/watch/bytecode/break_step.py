"""Steps: one instruction of a function, run natively, and what follows it up to where watching can begin again.

Enters: the place and layout of a state, as for `resume`. Leaves: a code object that takes the same arguments, executes
the instruction and runs on to the next *stop*, and the list of its exits. It returns `(number, *values)`: exit
`number` says where the function stands now, and the values are the arguments that `resume` takes there; or, if
`raises` is set, the arguments that `raise_at` takes, the exception last.

What holds in between:
- A stop is an instruction that has a probe, or a return. FOR_ITER is none: it is executed, and both its ways followed.
  A step that begins with a part of an f-string goes on to the text as a whole; one that is said to begin a loop, to
  the loop's first round.
- Each way through the step is followed by itself: at every instruction it is known which variables are bound and which
  slots of the stack hold NULL.
- A step raises nothing: what an instruction raises becomes an exit, at that instruction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import CodeType
from typing import NamedTuple

from ...support.by_identity import WeakNotes
from . import opcodes as o
from .continuation import ContinuationBuilder, Layout, Slot, check_place, find_site
from .flow import Flow, NotResumable, flow_of

__all__ = ["StepEnd", "begins_loop", "makes_text", "moves", "step"]

_MOST_STATES = 5_000


class StepEnd(NamedTuple):
    """Where a step may end: what `resume`, or `raise_at`, is to be asked for."""

    offset: int
    bound: tuple[str, ...]
    stack: Layout
    raises: bool


class State(NamedTuple):
    """What is known before an instruction (the first of its group)."""

    k: int
    bound: frozenset[int]  # slots
    stack: Layout


_exits: WeakNotes[CodeType, list[StepEnd]] = WeakNotes()


def step(
    code: CodeType,
    offset: int,
    bound: Iterable[str],
    stack: Layout,
    stops: frozenset[int] | Callable[[int], bool] | None = None,
    handled: bool = False,
    held: Iterable[str] = (),
    loops: bool = False,
) -> tuple[CodeType, list[StepEnd]]:
    """The step from an instruction. `stops` are offsets of the original code (of the CALL itself, for calls); by
    default the instructions that are given a probe. With `handled` the code takes one more argument, the last: the
    exception that a caller of the frame is handling (`handled_around` in suspend.py). What comes out at an exit are
    the variables that are read there, those that the step has set, and those of `held` that are bound still. `loops`:
    what the instruction gives is iterated over next, and no code of the program's has a part in that."""
    site = find_site(code, offset)
    flow, k, names = flow_of(site.code), site.k, frozenset(bound)
    check_place(flow, k, names, stack)
    if site.finish is not None or len(stack) != len(flow.stack(k)):
        raise ValueError(f"the stack at {flow.offset(k)} has {len(flow.stack(k))} slots, not {len(stack)}")
    if flow.ops[k] in o.RETURNS:
        raise NotResumable("there is nothing after a return")
    parameters = flow.parameters(names)
    kept = tuple(flow.parameters(frozenset(held)))
    key = ("step", k, tuple(parameters), stack, stops, handled, kept, loops)
    made = flow.made.get(key)
    exits = None if made is None else _exits.get(made)
    if made is None or exits is None:
        made, exits = _Step(site.code, k, parameters, stack, stops, handled, kept, loops).build()
        flow.made[key] = made
        _exits.put(made, exits)
    return made, exits


def makes_text(code: CodeType, offset: int) -> bool:
    """Is this the part of an f-string? Then a step goes past others of its kind."""
    site = find_site(code, offset)
    return flow_of(site.code).ops[site.k] in o.FORMATS


def begins_loop(code: CodeType, offset: int) -> bool:
    """Is what this call gives iterated over by a loop?"""
    site = find_site(code, offset)
    flow = flow_of(site.code)
    follower = flow.lasts[site.k] + 1
    return flow.ops[site.k] in o.CALLS and flow.ops[follower : follower + 2] == [o.GET_ITER, o.FOR_ITER]


def moves(
    code: CodeType, offset: int, bound: Iterable[str], stack: Layout, exits: list[StepEnd]
) -> tuple[int, ...] | None:
    """Of a step that only calls a method without arguments and moves values about: which of the values that it takes
    come out of its first exit, and in which order. The place of the method stands for the result. None: it does more.
    """
    site = find_site(code, offset)
    flow, k, names = flow_of(site.code), site.k, frozenset(bound)
    plain = all(slot in (Slot.VALUE, Slot.NULL) for slot in stack)
    if not plain or flow.ops[k] not in o.CALLS or flow.args[k] != 0 or stack[-2:] != (Slot.VALUE, Slot.VALUE):
        return None
    parameters = flow.parameters(names)
    numbers = iter(range(len(parameters) + len(stack)))
    variables = {slot: next(numbers) for slot in parameters}
    held = [next(numbers) if slot is Slot.VALUE else None for slot in stack][:-1]
    k, after = flow.lasts[k] + 1, exits[0]
    while flow.offset(k) != after.offset:
        if not _moved(flow.ops[k], flow.args[k], variables, held):
            return None
        k += 1
    passed = [variables[i] for i in flow.parameters(frozenset(after.bound))]
    return (*passed, *(number for number in held if number is not None))


def _moved(op: int, arg: int, variables: dict[int, int], held: list[int | None]) -> bool:
    """Follows an instruction, if it does nothing but move values."""
    if op == o.POP_TOP:
        held.pop()
    elif o.SLOTS.get(op) == "load" and arg in variables:
        held.append(variables[arg])
    elif o.SLOTS.get(op) == "store" and (value := held.pop()) is not None:
        variables[arg] = value
    elif op == o.COPY:
        held.append(held[-arg])
    elif op == o.SWAP:
        held[-1], held[-arg] = held[-arg], held[-1]
    else:
        return op == o.NOP
    return True


class _Step:
    def __init__(
        self,
        code: CodeType,
        k: int,
        parameters: list[int],
        stack: Layout,
        stops: frozenset[int] | Callable[[int], bool] | None,
        handled: bool,
        held: tuple[int, ...],
        loops: bool,
    ) -> None:
        self.flow = flow_of(code)
        self.loop = self.flow.lasts[k] + 1 if loops else -1  # where its iterator is made
        self.held = {*held}  # slots of variables that are to live for as long as they are bound
        self.first = State(k, frozenset(parameters), stack)
        self.stops = stops
        self.exits: list[StepEnd] = []
        self.base = int(handled)  # slots below the function's own
        self.builder = ContinuationBuilder(code, k, parameters, stack, [".handled"] if handled else [])
        self.asm = self.builder.asm
        self.handled = [f".s{i}" for i, slot in enumerate(stack) if slot is Slot.EXC]
        self.raising: list[tuple[int, State]] = []  # (label, state at the instruction that raised)

    def build(self) -> tuple[CodeType, list[StepEnd]]:
        builder = self.builder
        reachable = self._reachable()
        deepest = max(len(state.stack) for state in reachable)
        self._hold_what_is_set(reachable)
        builder.locals += [*(f".t{i}" for i in range(deepest)), ".error"]
        builder.specialize_slots()
        builder.begin()
        if self.base:
            builder.take(".handled")
            self.asm.emit(o.PUSH_EXC_INFO)
            self.asm.emit(o.POP_TOP)
        builder.restore_stack(keep_handled=True)
        self._emit_states()
        for label, state in self.raising:
            self._emit_raised(label, state)
        return builder.finish(), self.exits

    def _reachable(self) -> set[State]:
        seen: set[State] = set()
        work = [self.first]
        while work:
            state = work.pop()
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > _MOST_STATES:
                raise NotResumable("too many ways lead on from here")
            if state == self.first or not self._stops_at(state):
                work += [after for after in advance(self.flow, state) if after is not None]
        return seen

    def _hold_what_is_set(self, reachable: set[State]) -> None:
        """What Python puts into variables here may be anything."""
        flow = self.flow
        for state in reachable:
            if state == self.first or not self._stops_at(state):
                group = range(state.k, flow.lasts[state.k] + 1)
                self.held.update(flow.args[k] for k in group if o.SLOTS.get(flow.ops[k]) == "store")

    def _stops_at(self, state: State) -> bool:
        flow, k = self.flow, state.k
        if flow.ops[k] == o.FOR_ITER:
            return False
        if flow.ops[k] in o.RETURNS:
            return True
        if self.stops is None:
            if k == self.loop:
                return False
            if flow.ops[self.first.k] in o.FORMATS and flow.ops[k] in o.MAKES_TEXT:
                return False
            return flow.rule(k) is not None
        offset = flow.offset(k)
        return self.stops(offset) if callable(self.stops) else offset in self.stops

    # -- emitting

    def _emit_states(self) -> None:
        """Straight ahead as far as it goes; where a conditional jump leads is emitted later, so all of them go
        forward. What has been emitted already lies behind."""
        asm = self.asm
        emitted: dict[State, int] = {}
        work: deque[tuple[int, State]] = deque()
        state: State | None = self.first
        while state is not None or work:
            if state is None:
                label, state = work.popleft()
                asm.place(label)
            asm.position = self.flow.position(self.flow.lasts[state.k])
            if state in emitted and self.flow.ops[state.k] != o.END_FOR:  # FOR_ITER counts on what lies at its target
                asm.jump(o.JUMP_BACKWARD, emitted[state])
                state = None
                continue
            emitted[state] = asm.label()
            asm.place(emitted[state])
            if state != self.first and self._stops_at(state):
                self._emit_exit(state, raised=False)
                state = None
                continue
            state = self._emit_instruction(state, work)

    def _emit_instruction(self, state: State, work: deque[tuple[int, State]]) -> State | None:
        flow, asm, k = self.flow, self.asm, state.k
        fall, jump = advance(flow, state)
        if flow.ops[k] in o.PLAIN_JUMPS:
            return jump
        start = len(asm)
        if jump is not None and flow.targets[k] >= 0:
            label = asm.label()
            work.append((label, jump))
            asm.jump(o.FORWARD[flow.ops[k]], label)
        else:
            for member in range(k, flow.lasts[k] + 1):
                self.builder.emit_original(member)
            if flow.ops[k] == o.CHECK_EG_MATCH:
                self._note_match(state)
        if self._may_raise(state):
            depth = self._depth_if_raised(state)
            label = asm.label()
            asm.guard(start, len(asm), label, self.base + depth, False)
            self.raising.append((label, state._replace(stack=state.stack[:depth])))
        if jump is not None and flow.targets[k] < 0:
            work.append((self._tell_methods(fall), jump))
        return fall

    def _note_match(self, state: State) -> None:
        """`except*` makes the part that it matched, if any, the exception being handled."""
        asm, label = self.asm, self.asm.label()
        handled = self.handled[sum(slot is Slot.EXC for slot in state.stack) - 1]
        asm.emit(o.COPY, 1)
        asm.jump(o.JUMP_IF_NONE, label)
        asm.emit(o.COPY, 1)
        asm.emit(o.STORE_FAST, self.builder.index[handled])
        asm.place(label)

    def _tell_methods(self, state: State | None) -> int:
        """An attribute was loaded for a call: with its self, or with NULL in its place. Which of them can be told only
        by storing it and asking for it. Returns the label where the stack is with NULL."""
        assert state is not None
        asm, slot = self.asm, self.builder.index[".t0"]
        other, after = asm.label(), asm.label()
        if not o.NULL_ABOVE:
            asm.emit(o.SWAP, 2)
        asm.emit(o.STORE_FAST, slot)
        start = asm.emit(o.LOAD_CHECKED, slot)
        asm.guard(start, len(asm), other, self.base + len(state.stack) - 1, False)
        asm.emit(o.DELETE_FAST, slot)
        if not o.NULL_ABOVE:
            asm.emit(o.SWAP, 2)
        label = asm.label()
        asm.jump(o.JUMP_FORWARD, after)
        asm.place(other)
        asm.emit(o.POP_TOP)  # the exception
        asm.emit(o.PUSH_NULL)
        if not o.NULL_ABOVE:
            asm.emit(o.SWAP, 2)
        asm.jump(o.JUMP_FORWARD, label)
        asm.place(after)
        return label

    def _may_raise(self, state: State) -> bool:
        op, arg = self.flow.ops[state.k], self.flow.args[state.k]
        if o.SLOTS.get(op) in ("load", "delete"):
            return arg not in state.bound
        return op not in o.SILENT

    def _depth_if_raised(self, state: State) -> int:
        """How much of the stack a handler needs. Where the function has none, only what is to be undone."""
        handler = self.flow.handlers[self.flow.lasts[state.k]]
        if handler is not None:
            return handler.depth
        return max((i + 1 for i, slot in enumerate(state.stack) if slot is Slot.EXC), default=0)

    def _emit_raised(self, label: int, state: State) -> None:
        self.asm.place(label)
        self.asm.position = self.flow.position(self.flow.lasts[state.k])
        self.asm.emit(o.STORE_FAST, self.builder.index[".error"])
        self._emit_exit(state, raised=True)

    def _emit_exit(self, state: State, raised: bool) -> None:
        """Empty the stack into variables (a NULL unbinds one), put the exception state back, return it all."""
        flow, asm, index = self.flow, self.asm, self.builder.index
        live = flow.live_if_raised(flow.lasts[state.k]) if raised else flow.live[state.k]
        parameters = [i for i in sorted(state.bound) if i in self.held or flow.read(live, i)]
        for i in reversed(range(len(state.stack))):
            slot = state.stack[i]
            if slot is Slot.EXC:
                asm.emit(o.POP_EXCEPT)
            elif isinstance(slot, int):
                asm.emit(o.POP_TOP)
            else:
                asm.emit(o.STORE_FAST, index[f".t{i}"])
        if self.base:
            asm.emit(o.POP_EXCEPT)
        asm.emit(o.LOAD_CONST, self.builder.constant(len(self.exits)))
        handled = iter(self.handled)
        variables = [self.builder.moved[i] for i in parameters]
        values: list[int] = []
        for i, slot in enumerate(state.stack):
            if slot is Slot.VALUE:
                values.append(index[f".t{i}"])
            elif slot is Slot.EXC:
                values.append(index[next(handled)])
        values += [index[".error"]] if raised else []
        for value in (*variables, *values):
            asm.emit(o.LOAD_FAST, value)
        for value in values if raised else ():  # the traceback has this frame: what is left here lives as long as that
            asm.emit(o.DELETE_FAST, value)
        asm.emit(o.BUILD_TUPLE, 1 + len(variables) + len(values))
        asm.emit(o.RETURN_VALUE)
        self.builder.depth = max(self.builder.depth, 2 + len(variables) + len(values))
        names = tuple(flow.names[i] for i in parameters)
        self.exits.append(StepEnd(flow.offset(state.k), names, state.stack, raised))


# ---- what an instruction does to a state ----


def advance(flow: Flow, state: State) -> tuple[State | None, State | None]:
    """The states after an instruction: falling through, and jumping; or, of one that loads an attribute for a call,
    with the self of a method, and with NULL in its place."""
    last = flow.lasts[state.k]
    bound, stack = state.bound, state.stack
    for member in range(state.k, last):
        bound, stack = _effect(flow, member, bound, stack, jump=False)
    fall = jump = None
    if flow.targets[last] >= 0:
        jump = State(flow.heads[flow.targets[last]], *_effect(flow, last, bound, stack, jump=True))
    if flow.ops[last] not in o.NO_FALL_THROUGH:
        fall = State(last + 1, *_effect(flow, last, bound, stack, jump=False))
        if o.is_method_form(flow.ops[last], flow.args[last]):
            jump = fall._replace(stack=fall.stack[:-2] + _ATTRIBUTE)
    return fall, jump


_ATTRIBUTE: Layout = (Slot.VALUE, Slot.NULL) if o.NULL_ABOVE else (Slot.NULL, Slot.VALUE)


def _effect(flow: Flow, k: int, bound: frozenset[int], stack: Layout, jump: bool) -> tuple[frozenset[int], Layout]:
    op, arg = flow.ops[k], flow.args[k]
    if op in o.SLOTS:
        return _slot_effect(op, arg, bound, stack)
    if op == o.SWAP:
        items = list(stack)
        items[-1], items[-arg] = items[-arg], items[-1]
        return bound, tuple(items)
    if op == o.COPY:
        copied = stack[-arg]
        return bound, (*stack, Slot.VALUE if copied is Slot.EXC else copied)
    if op == o.PUSH_NULL:
        return bound, (*stack, Slot.NULL)
    if o.pushes_null(op, arg):
        return bound, stack + _ATTRIBUTE
    effect = o.stack_effect(op, 0 if o.JUMPS[op] else arg)[jump]
    after = stack + (Slot.VALUE,) * effect if effect >= 0 else stack[:effect]
    if op in o.TAKES_NULL:
        after = (*after[:-1], Slot.VALUE)
    return bound, after


def _slot_effect(op: int, slot: int, bound: frozenset[int], stack: Layout) -> tuple[frozenset[int], Layout]:
    """Instructions that name a variable."""
    what = o.SLOTS[op]
    if what == "load":
        return bound, (*stack, Slot.VALUE)
    if what == "clear":
        return bound - {slot}, (*stack, Slot.VALUE if slot in bound else Slot.NULL)
    if what == "delete":
        return bound - {slot}, stack
    if what == "store":
        return bound - {slot} if stack[-1] is Slot.NULL else bound | {slot}, stack[:-1]
    if op == o.MAKE_CELL:
        return bound | {slot}, stack
    effect = o.stack_effect(op, slot)[0]
    return bound, (*stack, Slot.VALUE) if effect > 0 else stack[: len(stack) + effect]
