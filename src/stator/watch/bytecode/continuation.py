"""Continuations: the rest of a function from a given instruction on, as a function of its state.

Enters: a code object, the offset of an instruction, and the *layout* of the state there: which local variables are
bound, and what each slot of the value stack holds. Leaves: a code object that takes that state as positional
arguments, restores it and goes on at the instruction. `co_varnames[:co_argcount]` names the arguments, in this order:

    local variables that are bound and still read, in the order of their slots; cells as cell objects
    .s0 .s1 …       the stack's values, bottom first (nothing for NULL and for the place of an exception);
                    for a saved exception state the exception that was being handled above that slot
    .call .a0 …     with `inner`: the function to call in the instruction's place, and its arguments
    .error          with `raise_at`: the exception

What holds in between:
- The code is the original's with another beginning: same names, file, lines, constants, exception handlers. Free
  variables stay in the closure; the function is made with the original's globals and closure.
- A continuation of a continuation is made from the original again: `original_of` knows where each came from. The same
  place and layout give the same code object, for as long as somebody holds it.
"""

from __future__ import annotations

import enum
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable
from types import CodeType
from typing import NamedTuple

from stator import _native as n

from ...support.by_identity import WeakNotes
from . import opcodes as o
from .assemble import Assembler
from .flow import EXC, LASTI, Flow, NotResumable, flow_of

__all__ = ["Finish", "Layout", "NotResumable", "Slot", "default_finish", "original_of", "raise_at", "resume"]


class Slot(enum.Enum):
    """What a slot of the value stack holds. The place of an instruction that raised is its offset, a plain int."""

    VALUE = "value"
    NULL = "null"
    EXC = "exc"  # an exception state put aside


Layout = tuple[Slot | int, ...]


class Finish(enum.Enum):
    """What an instruction does with the result of the Python function that it called. `stack` is what lies under
    that call: the instruction's operands are gone, what it leaves below the result is there."""

    VALUE = "it is the result"
    DROP = "it is dropped"
    BOOL = "its truth is the result"
    NOT = "the opposite of its truth is the result"
    METHOD = "it is the result, with NULL above (3.13)"
    AGAIN = "the instruction runs with it as its operand"
    OR_POP = "its truth decides on the operand, which is still on the stack (3.11)"
    ITERATOR = "it is the result, if it is an iterator"
    NEXT = "it is the next value of the iterator on the stack; StopIteration ends the loop"


_FINISH: dict[int, Finish] = {
    **dict.fromkeys((n.CALL, n.CALL_EX, n.ATTR, n.SUBSCR, n.SLICE, n.BINARY, n.COMPARE, n.UNARY), Finish.VALUE),
    **dict.fromkeys((n.WITH, n.WITH_EXIT, n.FORMAT), Finish.VALUE),
    **dict.fromkeys((n.STORE_ATTR, n.DELETE_ATTR, n.STORE_SUBSCR, n.STORE_SLICE, n.DELETE_SUBSCR), Finish.DROP),
    n.TRUTH: Finish.AGAIN,
    n.ITER: Finish.ITERATOR,
    n.NEXT: Finish.NEXT,
}


def default_finish(code: CodeType, offset: int) -> Finish:
    """What the instruction does with the result of a function it called, as a rule."""
    flow = flow_of(code)
    k = flow.find(offset)
    return _default_finish(flow, k)


def _default_finish(flow: Flow, k: int) -> Finish:
    op, arg, rule = flow.ops[k], flow.args[k], flow.rule(k)
    if rule is None:
        raise NotResumable("the instruction calls no function")
    if rule.kind == n.CONTAINS:
        return Finish.NOT if arg else Finish.BOOL
    if op in o.OR_POP:
        return Finish.OR_POP
    if rule.kind == n.ATTR and o.is_method_form(op, arg) and o.NULL_ABOVE:
        return Finish.METHOD
    if rule.kind not in _FINISH:
        raise NotResumable("what the instruction does with the result is not known")
    return _FINISH[rule.kind]


# ---- where continuations come from ----


class CodeOrigin(NamedTuple):
    """Where a continuation's instructions come from."""

    code: CodeType  # the original
    starts: list[int]  # instruction -> code unit in the continuation
    body: int  # the instruction where the original's body begins
    call: int  # instruction that calls the inner function, or -1
    site: int  # the original's instruction in whose place it does
    finish: Finish | None
    stack: Layout  # what lies under that call


_origins: WeakNotes[CodeType, CodeOrigin] = WeakNotes()


def original_of(code: CodeType) -> CodeType:
    """The code object that a continuation was made from; any other code object is its own."""
    origin = _origins.get(code)
    return code if origin is None else origin.code


class CallSite(NamedTuple):
    """An instruction of original code. If it stands for the inner call of a continuation's prologue: how that goes on,
    and what lies under it on the stack."""

    code: CodeType
    k: int
    finish: Finish | None
    stack: Layout


def find_site(code: CodeType, offset: int) -> CallSite:
    origin = _origins.get(code)
    if origin is None:
        return CallSite(code, flow_of(code).find(offset), None, ())
    k = bisect_right(origin.starts, offset >> 1) - 1
    if k == origin.call:
        return CallSite(origin.code, origin.site, origin.finish, origin.stack)
    if k < origin.body:
        raise NotResumable("a continuation is just beginning")
    flow = flow_of(origin.code)
    return CallSite(origin.code, flow.heads[flow.entry + k - origin.body], None, ())


# ---- building ----


class ContinuationBuilder:
    """A code object made from the original: a prologue that restores a state, and whatever follows it."""

    def __init__(self, code: CodeType, k: int, parameters: list[int], stack: Layout, more: list[str]) -> None:
        self.code = code
        self.flow = flow_of(code)
        self.stack = stack
        self.consts: list[object] = list(code.co_consts)
        self.asm = Assembler()
        self.asm.labels = [-1] * len(self.flow.ops)  # the labels of the original's instructions are their numbers
        self.asm.position = self.flow.position(self.flow.lasts[k])
        self.first = -1  # where the original's body begins
        self.lastis: list[tuple[int, int]] = []  # (constant, original instruction whose place it is)
        self.depth = code.co_stacksize + 4
        values = [f".s{i}" for i, slot in enumerate(stack) if slot in (Slot.VALUE, Slot.EXC)]
        names = [self.flow.names[i] for i in parameters]
        self.arguments = [*names, *values, *more]
        taken = {*names, *code.co_cellvars}
        self.locals = [*self.arguments, *(name for name in code.co_varnames if name not in taken)]

    def specialize_slots(self) -> None:
        """All names are known: where does each slot of the original lie?"""
        cells = [name for name in self.code.co_cellvars if name not in self.locals]
        first_free = len(self.locals) + len(cells)
        self.index = {name: i for i, name in enumerate([*self.locals, *cells])}
        self.moved = [self.index[name] for name in self.flow.names[: self.flow.free]]
        self.moved += range(first_free, first_free + len(self.code.co_freevars))

    def constant(self, value: object) -> int:
        self.consts.append(value)
        return len(self.consts) - 1

    def begin(self) -> None:
        """What a frame does first. `locals` looks for a MAKE_CELL to know that a slot holds a cell: they are there,
        and are jumped over."""
        asm = self.asm
        if self.code.co_freevars:
            asm.emit(o.COPY_FREE_VARS, len(self.code.co_freevars))
        asm.emit(o.RESUME)
        if self.code.co_cellvars:
            label = asm.label()
            asm.jump(o.JUMP_FORWARD, label)
            for name in self.code.co_cellvars:
                asm.emit(o.MAKE_CELL, self.index[name])
            asm.place(label)

    def take(self, name: str) -> None:
        """Push an argument, and forget it: the stack alone holds it."""
        self.asm.emit(o.LOAD_FAST, self.index[name])
        self.asm.emit(o.DELETE_FAST, self.index[name])

    def restore_stack(self, *, keep_handled: bool = False) -> None:
        """Push what lay on the stack. `keep_handled`: exceptions that were being handled stay in their arguments."""
        asm = self.asm
        for i, slot in enumerate(self.stack):
            if slot is Slot.NULL:
                asm.emit(o.PUSH_NULL)
            elif isinstance(slot, int):
                self.lastis.append((self.constant(0), self.flow.find(slot)))
                asm.emit(o.LOAD_CONST, self.lastis[-1][0])
            else:
                asm.emit(o.LOAD_FAST, self.index[f".s{i}"])
                if slot is Slot.VALUE or not keep_handled:
                    asm.emit(o.DELETE_FAST, self.index[f".s{i}"])
                if slot is Slot.EXC:  # it becomes the exception being handled; the one before goes to the stack
                    asm.emit(o.PUSH_EXC_INFO)
                    asm.emit(o.POP_TOP)

    def emit_original(self, k: int) -> None:
        """Instruction k of the original, with its slots where they are now. Jumps are the caller's."""
        op, arg = self.flow.ops[k], self.flow.args[k]
        self.asm.emit(op, self.moved[arg] if op in o.SLOTS else arg)

    def emit_body(self) -> None:
        """The whole original, but for its beginning."""
        asm, flow, body = self.asm, self.flow, self.flow.body
        self.first = first = len(asm)
        args = list(body.args)
        for i, index in body.slots:
            args[i] = self.moved[index]
        asm.ops += body.ops
        asm.args += args
        asm.positions += body.positions
        asm.jumps += [(first + i, target) for i, target in body.jumps]
        asm.labels[flow.entry : len(flow.ops)] = range(first, first + len(args))
        for start, end, handler in body.guards:
            asm.guard(first + start, first + end, handler.target, handler.depth, handler.lasti)

    def guard_as(self, k: int, start: int) -> None:
        """What was emitted since `start` goes where the original's instruction k goes when it raises."""
        handler = self.flow.handlers[k]
        if handler is not None:
            self.asm.guard(start, len(self.asm), handler.target, handler.depth, handler.lasti)

    def finish(self) -> CodeType:
        code, made = self.code, self.asm.assemble(self.code.co_firstlineno)
        for constant, k in self.lastis:
            label = self.asm.labels[k]
            self.consts[constant] = self.asm.starts[label] if label >= 0 else 0
        return code.replace(
            co_code=made.code,
            co_consts=tuple(self.consts),
            co_exceptiontable=made.exception_table,
            co_linetable=made.line_table,
            co_stacksize=self.depth,
            co_varnames=tuple(self.locals),
            co_nlocals=len(self.locals),
            co_argcount=len(self.arguments),
            co_posonlyargcount=0,
            co_kwonlyargcount=0,
            co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        )


def check_place(flow: Flow, k: int, bound: frozenset[str], stack: Layout) -> None:
    if flow.refusal is not None:
        raise NotResumable(flow.refusal)
    if k < flow.entry:
        raise NotResumable("the frame is still being set up")
    kinds = flow.stack(k)
    for slot, kind in zip(stack, kinds, strict=False):
        if (kind in EXC) != (slot is Slot.EXC) or (kind in LASTI) != isinstance(slot, int):
            raise ValueError(f"the stack at {flow.offset(k)} is not {stack}")
    if flow.keep & 1 and flow.names[0] not in bound:
        raise NotResumable("super() or locals() are named and the first argument is deleted")


# ---- the two continuations ----


def resume(
    code: CodeType,
    offset: int,
    bound: Iterable[str],
    stack: Layout,
    inner: int | None = None,
    finish: Finish | None = None,
) -> CodeType:
    """Code that goes on at the instruction, from the state before it.

    With `inner` the instruction is one that has called a Python function, which has a continuation of its own with
    that many arguments: that one is called in its place, and `finish` says what happens to the result.
    """
    site = find_site(code, offset)
    flow, k, names = flow_of(site.code), site.k, frozenset(bound)
    check_place(flow, k, names, stack)
    if inner is None:
        if len(stack) != len(flow.stack(k)):
            raise ValueError(f"the stack at {flow.offset(k)} has {len(flow.stack(k))} slots, not {len(stack)}")
    else:
        finish = finish or site.finish or _default_finish(flow, k)
        _check_depth(flow, k, stack, finish)
    parameters = flow.parameters(names)
    key = ("resume", k, tuple(parameters), stack, inner, finish)
    made = flow.made.get(key)
    if made is None:
        made = flow.made[key] = _resume(site.code, k, parameters, stack, inner, finish)
    return made


def _resume(
    code: CodeType, k: int, parameters: list[int], stack: Layout, inner: int | None, finish: Finish | None
) -> CodeType:
    more = [] if inner is None else [".call", *(f".a{i}" for i in range(inner))]
    builder = ContinuationBuilder(code, k, parameters, stack, more)
    builder.specialize_slots()
    builder.begin()
    builder.restore_stack()
    call = -1
    if inner is None or finish is None:
        builder.asm.jump(o.JUMP_FORWARD, k)
    else:
        builder.depth += inner + 2
        call = _call_inner(builder, k, inner, finish)
    builder.emit_body()
    made = builder.finish()
    _origins.put(made, CodeOrigin(code, builder.asm.starts, builder.first, call, k, finish, stack))
    return made


def raise_at(code: CodeType, offset: int, bound: Iterable[str], stack: Layout) -> CodeType:
    """Code that raises its last argument at the instruction, as if the instruction had raised it. The exception
    keeps its traceback, to which nothing is added here, and its context. Of the stack, what lies under the
    instruction's operands is enough."""
    site = find_site(code, offset)
    flow, k, names = flow_of(site.code), site.k, frozenset(bound)
    check_place(flow, k, names, stack)
    handler = flow.handlers[flow.lasts[k]]
    if handler is not None and len(stack) < handler.depth:
        raise ValueError(f"the stack at {flow.offset(k)} has at least {handler.depth} slots, not {len(stack)}")
    parameters = flow.parameters(names)
    key = ("raise", k, tuple(parameters), stack)
    made = flow.made.get(key)
    if made is None:
        builder = ContinuationBuilder(site.code, k, parameters, stack, [".error"])
        builder.specialize_slots()
        builder.begin()
        builder.restore_stack()
        builder.take(".error")
        start = builder.asm.emit(o.RERAISE)
        builder.guard_as(flow.lasts[k], start)
        builder.emit_body()
        made = flow.made[key] = builder.finish()
        _origins.put(made, CodeOrigin(site.code, builder.asm.starts, builder.first, -1, k, None, ()))
    return made


# ---- in the middle of an instruction ----

# How many slots more than `stack` there are after the instruction.
_LEAVES = {Finish.DROP: 0, Finish.METHOD: 2}


def _check_depth(flow: Flow, k: int, stack: Layout, finish: Finish) -> None:
    if finish is Finish.AGAIN:
        right = len(stack) + 1 == len(flow.stack(k))
    elif finish in (Finish.OR_POP, Finish.NEXT):
        right = len(stack) == len(flow.stack(k))
    else:
        right = len(stack) + _LEAVES.get(finish, 1) == len(flow.stack(flow.lasts[k] + 1))
    if not right:
        raise ValueError(f"the stack inside the instruction at {flow.offset(k)} has not {len(stack)} slots")


def _call_inner(builder: ContinuationBuilder, k: int, inner: int, finish: Finish) -> int:
    """Call the inner function where instruction k would have, and do with its result what k does. Returns the
    number of the instruction that calls."""
    asm, flow = builder.asm, builder.flow
    last = flow.lasts[k]
    start = len(asm)
    if finish is Finish.ITERATOR:
        _push_callable(asm, lambda: asm.emit(o.LOAD_CONST, builder.constant(n.as_iterator)))
    _push_callable(asm, lambda: builder.take(".call"))
    for i in range(inner):
        builder.take(f".a{i}")
    for op, arg in o.call(inner):
        call = asm.emit(op, arg)
    if finish is Finish.NEXT:
        _next_value(builder, k, start)
        return call
    if finish is Finish.ITERATOR:
        for op, arg in o.call(1):
            asm.emit(op, arg)
    elif finish is Finish.DROP:
        asm.emit(o.POP_TOP)
    elif finish in (Finish.BOOL, Finish.NOT):
        for op in o.truth(finish is Finish.NOT):
            asm.emit(op)
    elif finish is Finish.METHOD:
        asm.emit(o.PUSH_NULL)
    elif finish is Finish.OR_POP:
        asm.jump(o.OR_POP[flow.ops[k]], flow.targets[k])
        asm.emit(o.POP_TOP)
    builder.guard_as(last, start)
    asm.jump(o.JUMP_FORWARD, k if finish is Finish.AGAIN else last + 1)
    return call


def _push_callable(asm: Assembler, push: Callable[[], object]) -> None:
    if o.NULL_ABOVE:
        push()
    asm.emit(o.PUSH_NULL)
    if not o.NULL_ABOVE:
        push()


def _next_value(builder: ContinuationBuilder, k: int, start: int) -> None:
    """Go on in the loop with the value, or after it if the call raised StopIteration."""
    asm, flow = builder.asm, builder.flow
    stopped, other = asm.label(), asm.label()
    asm.guard(start, len(asm), stopped, len(builder.stack), False)
    asm.jump(o.JUMP_FORWARD, k + 1)
    asm.place(stopped)
    asm.emit(o.PUSH_EXC_INFO)
    asm.emit(o.LOAD_CONST, builder.constant(StopIteration))
    asm.emit(o.CHECK_EXC_MATCH)
    asm.jump(o.JUMP_IF_FALSE, other)
    asm.emit(o.POP_TOP)
    asm.emit(o.POP_EXCEPT)
    asm.emit(o.POP_TOP)  # the iterator
    asm.jump(o.JUMP_FORWARD, flow.targets[k] + o.SKIPPED_AT_LOOP_END)
    asm.place(other)
    asm.emit(o.SWAP, 2)
    asm.emit(o.POP_EXCEPT)
    builder.guard_as(k, asm.emit(o.RERAISE))
