"""The state of a watched run's frames, in the form that continuations take it.

Enters: a watcher, in whose run a handler is being called. Leaves: one `Suspended` per frame, the root first: where the
frame stands in its original code, and the values that its continuation takes. `rest` puts them together: one call
that does what the frames would still do.

What holds in between:
- The innermost frame stands before the instruction whose probe fired last, or in it; all others stand in an instruction
  that has called the next frame's function. How, is found out from the instruction's operands and that function: what
  was not called by the instruction itself (but by `sorted`, say) is refused.
- What an instruction in progress has used up is not read: its slot may hold an object that is gone.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from stator import _native as n

from ...support.by_identity import WeakNotes
from . import opcodes as o
from .continuation import CallSite, Finish, Layout, NotResumable, Slot, default_finish, find_site, original_of, resume
from .flow import EXC, LASTI, VALUE, Flow, flow_of
from .instrument import SUBSTITUTES, places

__all__ = ["Suspended", "handled_around", "made_function", "rest", "suspended"]


class Suspended(NamedTuple):
    """A frame that stands still. `values` are the arguments of `resume(code, offset, bound, stack, …, finish)`, up to
    the inner function; `finish` is None for the innermost frame."""

    function: Any  # a FunctionType: has the globals and the closure
    code: CodeType
    offset: int
    bound: tuple[str, ...]
    stack: Layout
    finish: Finish | None
    values: tuple[Any, ...]
    places: tuple[int, ...]  # of the values among the frame's slots; -1 if that is not certain
    labels: tuple[str, ...]  # what the values are called; a value on the stack may have the name of a variable


class _Frame:
    """A frame as it was read."""

    def __init__(self, entry: tuple[Any, ...]) -> None:
        kind, self.code, original, unit, self.function, slots, self.intact, self.held, self.held_at, self.probe = entry
        if not isinstance(original, CodeType) or not isinstance(self.function, FunctionType):
            raise NotResumable("a frame's function is gone")
        original = SUBSTITUTES.get(original) or original
        self.places: list[tuple[int, bool]] | None = None
        if kind == n.INSTRUMENTED:
            self.places = _places(self.code, original)
            offset, self.running = self.places[unit]
        elif kind == n.TRANSPARENT:
            offset, self.running = 2 * unit, True
        else:
            raise NotResumable(f"{original.co_qualname} runs unwatched")
        self.made_from = original  # the original, or a continuation of it
        self.site: CallSite = find_site(original, offset)
        self.flow: Flow = flow_of(self.site.code)
        if self.flow.refusal is not None:
            raise NotResumable(f"{original.co_qualname}: {self.flow.refusal}")
        self.names = [*self.code.co_varnames, *(v for v in self.code.co_cellvars if v not in self.code.co_varnames)]
        self.size = len(self.names) + len(self.code.co_freevars)
        self.variables = dict(zip(self.names, slots, strict=False))

    def place_of(self, lasti: int) -> int:
        """The offset in the original of an instruction that raised."""
        offset = 2 * lasti if self.places is None else self.places[lasti][0]
        site = find_site(self.made_from, offset)
        return flow_of(site.code).offset(site.k)


_known_places: WeakNotes[CodeType, list[tuple[int, bool]]] = WeakNotes()


def _places(copy: CodeType, original: CodeType) -> list[tuple[int, bool]]:
    known = _known_places.get(copy)
    if known is None:
        known = places(copy, original)
        _known_places.put(copy, known)
    return known


Holds = Callable[[Any, int], bool]  # a variable's value, and how often it is found in the frames
# Number, offset, stack and bound variables of a frame: those which it is to go on with, or None.
Choose = Callable[[int, int, Layout, frozenset[str]], tuple[str, ...] | None]


def suspended(
    watcher: n.Watcher, holds: Holds = lambda value, times: False, choose: Choose = lambda *frame: None
) -> list[Suspended]:
    """The frames of the run, the root first. To be called by a handler, outside of its own except clauses.

    A frame goes on with the variables that `choose` says; otherwise with those that are read later, and with those
    whose values `holds` does not want to die before the frame does.
    """
    entries, handled = watcher.frames()
    frames: list[_Frame] = []
    stacks: list[list[Any]] = []
    finishes: list[Finish | None] = []
    try:
        for i, entry in enumerate(entries):
            frame = _Frame(entry)
            if frames:
                stack, finish = _caller(watcher, len(entries) - i, frames[-1], frame)
                stacks.append(stack)
                finishes.append(finish)
            frames.append(frame)
        stacks.append(_innermost(watcher, frames[-1]))
        finishes.append(None)
    except NotResumable as error:
        _say_where_instead(error, frames, len(entries))
        raise
    _set_handled(frames, stacks, handled)
    times = Counter(id(value) for frame in frames for value in frame.variables.values())
    times.update(id(value) for stack in stacks for value in stack)
    return [
        _state(i, *parts, lambda value: holds(value, times[id(value)]), choose)
        for i, parts in enumerate(zip(frames, stacks, finishes, strict=True))
    ]


def _say_where_instead(error: NotResumable, frames: list[_Frame], count: int) -> None:
    """These frames can be continued: the next one cannot. An instruction that calls it by way of C code is a good place
    for a break."""
    for i in range(len(frames) - 1, -1, -1):
        frame = frames[i]
        if frame.places is not None and frame.site.finish is None:
            error.place = (frame.site.code, frame.flow.offset(frame.site.k))
            error.calls = count - 1 - i
            error.probe = frame.probe
            return


def _innermost(watcher: n.Watcher, frame: _Frame) -> list[Any]:
    if frame.running and (not frame.intact or frame.flow.rule(frame.site.k) is None):
        raise NotResumable("the instruction has replaced its operands")
    if frame.site.finish is not None:
        raise NotResumable("a continuation is just beginning")
    depth = len(frame.flow.stack(frame.site.k))
    stack = watcher.stack(0, depth)
    if frame.running and frame.held_at >= 0:
        stack[depth - frame.probe.span + frame.held_at] = frame.held
    return stack


def _kinds(frame: _Frame, depth: int) -> bytes:
    """What the slots of a stack are; an instruction in progress may have left values above those it had below."""
    kinds = frame.flow.stack(frame.site.k)[:depth]
    return kinds + VALUE * (depth - len(kinds))


def _set_handled(frames: list[_Frame], stacks: list[list[Any]], handled: Any) -> None:
    """A slot with a saved exception state holds the exception that was being handled before. What its restoring has to
    set is the one after: that which the next such slot holds, or the one being handled now."""
    following = handled
    for frame, stack in zip(reversed(frames), reversed(stacks), strict=True):
        kinds = _kinds(frame, len(stack))
        for i in range(len(stack) - 1, -1, -1):
            if kinds[i : i + 1] == EXC:
                stack[i], following = following, stack[i]


def _state(
    number: int,
    frame: _Frame,
    stack: list[Any],
    finish: Finish | None,
    holds: Callable[[Any], bool],
    choose: Choose,
) -> Suspended:
    flow, k = frame.flow, frame.site.k
    kinds = _kinds(frame, len(stack))
    layout: list[Slot | int] = []
    on_stack: list[Any] = []
    places: list[int] = []
    for i, value in enumerate(stack):
        if kinds[i : i + 1] == LASTI:
            layout.append(frame.place_of(value))
        elif value is n.MISSING:
            layout.append(Slot.NULL)
        else:
            layout.append(Slot.EXC if kinds[i : i + 1] == EXC else Slot.VALUE)
            on_stack.append(value)
            places.append(frame.size + i if finish is None else -1)
    if finish is None:
        live = flow.live[k]
    else:
        live = flow.live_after(flow.lasts[k]) | (flow.live[k] if finish is Finish.AGAIN else 0)
    bound = frozenset(name for name, value in frame.variables.items() if value is not n.MISSING)
    names = choose(number, flow.offset(k), tuple(layout), bound)
    if names is None:
        names = tuple(
            flow.names[i] for i in flow.parameters(bound) if flow.read(live, i) or holds(frame.variables[flow.names[i]])
        )
    values = (*(frame.variables[name] for name in names), *on_stack)
    where = (*map(frame.names.index, names), *places)
    named = {id(value): name for name, value in frame.variables.items()}
    labels = (*names, *(named.get(id(value), "value") for value in on_stack))
    place = (frame.site.code, flow.offset(k), names, tuple(layout))
    return Suspended(frame.function, *place, finish, values, where, labels)


def rest(frames: Sequence[Suspended], innermost: CodeType | None = None) -> tuple[FunctionType, tuple[Any, ...]]:
    """A function and its arguments: calling it does what the frames would still do. `innermost` is the continuation
    of the last one, if it is not to go on where it stands; its values are the caller's to match."""
    inner: tuple[Any, ...] = ()
    function: FunctionType | None = None
    for frame in reversed(frames):
        if function is None:
            code = innermost or resume(frame.code, frame.offset, frame.bound, frame.stack)
        else:
            code = resume(frame.code, frame.offset, frame.bound, frame.stack, len(inner), frame.finish)
            inner = (function, *inner)
        function = made_function(code, frame.function)
        inner = (*frame.values, *inner)
    if function is None:
        raise ValueError("there is no frame")
    return function, inner


def handled_around(frames: Sequence[Suspended]) -> BaseException | None:
    """The exception that a caller of the innermost frame is handling: a step of that frame needs it."""
    handled: BaseException | None = None
    for frame in frames[:-1]:
        passed = [slot for slot in frame.stack if slot in (Slot.VALUE, Slot.EXC)]
        for slot, value in zip(passed, frame.values[len(frame.bound) :], strict=True):
            handled = value if slot is Slot.EXC else handled
    return handled


def made_function(code: CodeType, function: FunctionType) -> FunctionType:
    """A function with this code that sees what `function` sees."""
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


# ---- callers: how an instruction came to call a function ----


def _caller(watcher: n.Watcher, calls: int, frame: _Frame, callee: _Frame) -> tuple[list[Any], Finish]:
    """What lies on the stack under the call of the next frame, and what becomes of its result."""
    site, flow = frame.site, frame.flow
    if site.finish is not None:  # the inner call of a continuation's prologue
        return watcher.stack(calls, len(site.stack)), site.finish
    rule = flow.rule(site.k)
    check = None if rule is None else _CHECKS.get(rule.kind)
    if not frame.running or rule is None or check is None:
        raise NotResumable(f"{callee.site.code.co_qualname} was called in the middle of an instruction")
    shape = rule.shape(flow.args[flow.lasts[site.k]]) if callable(rule.shape) else rule.shape
    assert shape is not None
    below = len(flow.stack(site.k)) - shape[1]
    readable = min(shape[1], _READABLE.get(rule.kind, shape[1]))
    stack = watcher.stack(calls, below + readable)
    last = flow.lasts[site.k]
    what = None if rule.arg is None else rule.arg(site.code, flow.args[last])
    call = _Call(stack[below:], frame, callee, what, default_finish(site.code, flow.offset(site.k)))
    if o.is_method_form(flow.ops[last], flow.args[last]) and not o.NULL_ABOVE:
        call.leaves = [n.MISSING]
    if not check(call):
        raise NotResumable(f"{callee.site.code.co_qualname} was called by C code")
    if rule.kind in _KEEPS_OPERANDS or call.finish is Finish.OR_POP:
        return stack, call.finish
    return stack[:below] + call.leaves, call.finish


# How many operands, the lowest, an instruction that is running has not used up.
_READABLE = {n.CALL: 2, n.CALL_EX: 2, n.SLICE: 1, n.STORE_SLICE: 2, n.FORMAT: 1, n.WITH: int(o.EXIT_ON_STACK)}
_KEEPS_OPERANDS = frozenset((n.NEXT, n.WITH_EXIT))


class _Call:
    """An instruction that called a function. The checks say whether it did so by itself, and complete what is known."""

    def __init__(self, operands: list[Any], caller: _Frame, callee: _Frame, what: object, finish: Finish) -> None:
        self.operands = operands
        self.caller, self.callee = caller, callee
        self.function = callee.function
        self.what = what
        self.finish = finish
        self.leaves: list[Any] = []  # on the stack, under the result

    def special(self, owner: object, *names: str) -> bool:
        """Is the function what the owner's class has under one of these names?"""
        return any(n.mro_lookup(type(owner), name) is self.function for name in names)

    def first_argument(self) -> Any:
        """What the function was given first; it must not have been assigned to."""
        code = original_of(self.callee.made_from)
        flow = flow_of(code)
        for op, arg in zip(flow.ops, flow.args, strict=True):
            if arg == 0 and (op in o.WRITES_CELL or o.SLOTS.get(op) in ("store", "delete", "clear")):
                raise NotResumable("a first argument may have been changed")
        if code.co_argcount == 0:
            raise NotResumable("a function has no first argument")
        value = self.callee.variables[code.co_varnames[0]]
        return value.cell_contents if 0 in flow.cells else value


def _check_call(call: _Call) -> bool:
    first, second = call.operands[0], call.operands[1]
    target = first if o.NULL_ABOVE or first is not n.MISSING else second
    while issubclass(type(target), (MethodType, functools.partial)):
        target = target.__func__ if issubclass(type(target), MethodType) else target.func
    if target is call.function or call.special(target, "__exit__"):
        return True  # the end of a with statement: the call of a bound method puts its self in the method's slot
    if not issubclass(type(target), type):
        return call.special(target, "__call__")
    if n.mro_lookup(type(target), "__call__") is not n.mro_lookup(type, "__call__"):
        return call.special(target, "__call__")
    if n.mro_lookup(target, "__init__") is not call.function:
        return False
    call.finish = Finish.DROP
    call.leaves = [call.first_argument()]
    return True


def _check_attribute(call: _Call) -> bool:
    owner, name = call.operands[0], str(call.what)
    if call.special(owner, "__getattr__"):
        return True
    if n.mro_lookup(type(owner), "__getattr__") is not n.MISSING:
        return False  # it would be asked if the function raised AttributeError
    found = n.mro_lookup(type(owner), name)
    return call.special(owner, "__getattribute__") or _descriptor(call, found, "fget", "__get__")


def _descriptor(call: _Call, found: object, getter: str, method: str) -> bool:
    if issubclass(type(found), property):
        return getattr(found, getter) is call.function
    return found is not n.MISSING and call.special(found, method)


def _check_store_attribute(call: _Call) -> bool:
    owner, name = call.operands[1], str(call.what)
    found = n.mro_lookup(type(owner), name)
    return call.special(owner, "__setattr__") or _descriptor(call, found, "fset", "__set__")


def _check_delete_attribute(call: _Call) -> bool:
    owner, name = call.operands[0], str(call.what)
    found = n.mro_lookup(type(owner), name)
    return call.special(owner, "__delattr__") or _descriptor(call, found, "fdel", "__delete__")


def _special(place: int, *names: str) -> Callable[[_Call], bool]:
    return lambda call: call.special(call.operands[place], *names)


_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "@": "matmul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip
_COMPARISONS = {"<": ("lt", "gt"), "<=": ("le", "ge"), "==": ("eq", "eq"), "!=": ("ne", "ne")}
_COMPARISONS |= {">": ("gt", "lt"), ">=": ("ge", "le")}
_UNARIES = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}


def _declines(code: CodeType) -> bool:
    """May it return NotImplemented, so that the operator goes on to another method? It may if it says so, or if it
    asks another special method."""
    return any(name in ("NotImplemented", "super") or name.startswith("__") for name in code.co_names)


def _check_operator(call: _Call) -> bool:
    name = _OPERATORS[str(call.what).removesuffix("=")]
    left, right = call.operands
    called = call.special(left, f"__{name}__", f"__i{name}__") or call.special(right, f"__r{name}__")
    return called and not _declines(call.callee.site.code)


def _check_comparison(call: _Call) -> bool:
    name, reflected = _COMPARISONS[str(call.what)]
    left, right = call.operands
    called = call.special(left, f"__{name}__") or call.special(right, f"__{reflected}__")
    return called and not _declines(call.callee.site.code)


def _check_unary(call: _Call) -> bool:
    return call.special(call.operands[0], _UNARIES[str(call.what)])


def _check_with(call: _Call) -> bool:
    manager = call.caller.held
    if o.EXIT_ON_STACK:
        call.leaves = [call.operands[0]]
    else:
        leave = n.mro_lookup(type(manager), "__exit__")
        call.leaves = [leave.__get__(manager, type(manager))]
    return call.special(manager, "__enter__")


def _check_with_exit(call: _Call) -> bool:
    leave = call.operands[0]
    return issubclass(type(leave), MethodType) and leave.__func__ is call.function


def _check_format(call: _Call) -> bool:
    """With a conversion and a format, what is formatted is no longer the operand."""
    names = {None: ("__format__", "__str__", "__repr__"), "s": ("__str__", "__repr__"), "r": ("__repr__",)}
    return call.what in names and call.special(call.operands[0], *names[call.what])


_CHECKS: dict[int, Callable[[_Call], bool]] = {
    n.CALL: _check_call,
    n.CALL_EX: _check_call,
    n.ATTR: _check_attribute,
    n.STORE_ATTR: _check_store_attribute,
    n.DELETE_ATTR: _check_delete_attribute,
    n.SUBSCR: _special(0, "__getitem__"),
    n.SLICE: _special(0, "__getitem__"),
    n.STORE_SUBSCR: _special(1, "__setitem__"),
    n.STORE_SLICE: _special(1, "__setitem__"),
    n.DELETE_SUBSCR: _special(0, "__delitem__"),
    n.BINARY: _check_operator,
    n.COMPARE: _check_comparison,
    n.CONTAINS: _special(1, "__contains__"),
    n.UNARY: _check_unary,
    n.TRUTH: _special(0, "__bool__", "__len__"),
    n.ITER: _special(0, "__iter__"),
    n.NEXT: _special(0, "__next__"),
    n.WITH: _check_with,
    n.WITH_EXIT: _check_with_exit,
    n.FORMAT: _check_format,
}
