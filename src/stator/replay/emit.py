"""The replay: a function that repeats a segment, written as Python and compiled by CPython itself.

Enters: a recording and its compiled graph. Leaves: `replay(values)`, where values are what `Guards.check` gave back. It
checks nothing: it calls the graph, makes the fresh objects, applies the effects and returns the result. All fresh
objects are complete before the first effect, so that a failure changes nothing outside. Where there is nothing to make
and nothing to apply, no code is compiled: a `Relay` does it in C.

A segment that ends at a break gives back the state of its frames instead. A `BreakStep` then takes the step which
Python has to make, and says where the program goes on.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import _native
from ..recording import Constant, Construct, Continuation, Exit, Output, Outside, Recording, ResumePoint, ValueRef
from ..support.literals import literal, one_line
from . import effects
from .graph import Unsettled

Replay = Callable[[tuple[Any, ...]], Any]
_LITERALS = (bool, type(None))


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    names: tuple[str, str, str | None],
    defaults: Any,
    kwdefaults: Any,
    closure: Any,
    annotations: Any,
) -> types.FunctionType:
    function = types.FunctionType(code, namespace, names[0], defaults, closure)
    function.__qualname__, function.__doc__ = names[1], names[2]
    function.__kwdefaults__ = kwdefaults
    function.__annotations__ = annotations
    return function


def namespace(value: Any) -> Any:
    """The instance dict, taken past a `__getattribute__` of the class."""
    return object.__getattribute__(value, "__dict__")


def walk(begin: Callable[[Any], Any], walked: Any, passed: int) -> Any:
    """An iterator of a dict or a set that has passed so many entries."""
    iterator = begin(walked)
    for _ in range(passed):
        next(iterator)
    return iterator


@functools.cache
def _raiser(filename: str, function: str, line: int) -> types.CodeType:
    """Code that raises, and looks as if it did so there."""
    code = compile("raise KeyError", "<stator replay>", "exec")
    name = function.rpartition(".")[2]
    return code.replace(co_filename=filename, co_name=name, co_qualname=function, co_firstlineno=line)


def traceback_of(lines: tuple[tuple[str, str, int], ...]) -> types.TracebackType | None:
    """A traceback through these lines (file, function, line), outermost first. Its frames never ran: a replay makes
    exceptions without raising them.
    """
    made: types.TracebackType | None = None
    for place in reversed(lines):
        try:
            exec(_raiser(*place), {})
        except KeyError as error:
            inner = error.__traceback__.tb_next  # type: ignore[union-attr]
            assert inner is not None
            made = types.TracebackType(made, inner.tb_frame, inner.tb_lasti, place[2])
    return made


def wanted_origins(recording: Recording) -> list[int]:
    """The origins whose values the replay uses: graph inputs first, in order."""
    wanted = dict.fromkeys(recording.inputs)
    if recording.lock is not None:
        wanted[recording.lock] = None
    pending: list[Any] = [recording.result]
    pending += [arguments for arguments, _ in recording.prints]
    if recording.exit is not None:
        pending += _state(recording.exit)
    for construct in recording.constructs:
        pending += [construct.parts, [r for _, r in construct.attributes], [r for _, r in construct.slots]]
    for effect in recording.effects:
        wanted[effect.target] = None
        pending.append(effect.value)
    while pending:
        ref = pending.pop()
        if isinstance(ref, Outside):
            wanted[ref.index] = None
        elif isinstance(ref, (list, tuple)):
            pending.extend(ref)
    return list(wanted)


class _Emitter:
    def __init__(self, recording: Recording, wanted: list[int]) -> None:
        self.recording = recording
        self._position = {origin: position for position, origin in enumerate(wanted)}
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "deque": collections.deque,
            "ordered": collections.OrderedDict,
            "default": collections.defaultdict,
            "partial": functools.partial,
            "method": types.MethodType,
            "cell": types.CellType,
            "make_function": make_function,
            "namespace": namespace,
            "traceback_of": traceback_of,
            "walk": walk,
            **effects.NAMES,
        }
        self.create: list[str] = []
        self.fill: list[str] = []
        self.late: list[str] = []
        self._made: set[int] = set()
        self._constants: dict[int, str] = {}  # names by identity

    def constant(self, value: Any) -> str:
        if type(value) in _LITERALS or (type(value) is int and -5 <= value <= 256):  # else `is` could tell it
            return literal(value)
        name = self._constants.get(id(value))
        if name is None:
            name = self._constants[id(value)] = f"c{len(self._constants)}"
            self.names[name] = value
        return name

    def name(self, name: Any) -> str:
        """What an attribute or an argument is called. A text of another class than `str` is no literal."""
        return literal(name) if type(name) is str else self.constant(name)

    def expression(self, ref: ValueRef) -> str:
        if isinstance(ref, Constant):
            return self.constant(ref.value)
        if isinstance(ref, Outside):
            return self.position(ref.index)
        if isinstance(ref, Output):
            return f"out[{ref.index}]"
        construct = self.recording.constructs[ref.index]
        if construct.kind == "instance dict":  # made with its object, which may still be on the way to be filled
            return f"namespace({self.expression(construct.parts[0])})"
        self.make(ref.index)
        return f"f{ref.index}"

    def position(self, origin: int) -> str:
        """The value of an origin."""
        return f"v[{self._position[origin]}]"

    def items(self, refs: list[Any]) -> str:
        return "".join(f"{self.expression(ref)}, " for ref in refs)

    def pairs(self, pairs: list[Any]) -> str:
        return ", ".join(f"{self.expression(key)}: {self.expression(value)}" for key, value in pairs)

    def make(self, index: int) -> None:
        """The lines that make fresh object `index`; those that fill it come after all are made."""
        if index in self._made:
            return
        self._made.add(index)
        construct = self.recording.constructs[index]
        _MAKE[construct.kind](self, f"f{index}", construct)
        if construct.attributes:
            entries = ", ".join(f"{self.name(n)}: {self.expression(ref)}" for n, ref in construct.attributes)
            self.fill.append(f"namespace(f{index}).update({{{entries}}})")
        for slot, ref in construct.slots:
            self.fill.append(f"{self.constant(slot)}.__set__(f{index}, {self.expression(ref)})")

    # kinds of fresh objects: mutable ones are created empty, so that cycles are no matter

    def _list(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = " + ("[]" if b.cls is list else f"list.__new__({self.constant(b.cls)})"))
        if b.parts:
            self.fill.append(f"list.extend({name}, ({self.items(b.parts)}))")

    def _dict(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = " + ("{}" if b.cls is dict else f"dict.__new__({self.constant(b.cls)})"))
        if b.parts[0]:
            self.fill.append(f"dict.update({name}, {{{self.pairs(b.parts[0])}}})")

    def _ordered(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = ordered.__new__({self.constant(b.cls)})")
        for key, value in b.parts[0]:
            self.fill.append(f"ordered.__setitem__({name}, {self.expression(key)}, {self.expression(value)})")

    def _default(self, name: str, b: Construct) -> None:
        factory = self.expression(b.parts[0])
        self.create.append(f"{name} = default.__new__({self.constant(b.cls)})")
        self.create.append(f"default.__init__({name}, {factory})")
        if b.parts[1]:
            self.fill.append(f"dict.update({name}, {{{self.pairs(b.parts[1])}}})")

    def _set(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = " + ("set()" if b.cls is set else f"set.__new__({self.constant(b.cls)})"))
        if b.parts:
            self.fill.append(f"set.update({name}, ({self.items(b.parts)}))")

    def _deque(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = deque.__new__({self.constant(b.cls)})")
        self.create.append(f"deque.__init__({name}, (), {self.expression(b.parts[0])})")
        if b.parts[1:]:
            self.fill.append(f"deque.extend({name}, ({self.items(b.parts[1:])}))")

    def _object(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = new({self.constant(b.cls)})")

    def _namespace(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = {self.constant(b.cls)}()")

    def _cell(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = cell()")
        if b.parts:
            self.fill.append(f"{name}.cell_contents = {self.expression(b.parts[0])}")

    def _tuple(self, name: str, b: Construct) -> None:
        items = f"({self.items(b.parts)})"
        if b.cls is torch.Size:  # it has a constructor of its own
            items = f"{self.constant(b.cls)}({items})"
        elif b.cls is not tuple:
            items = f"tuple.__new__({self.constant(b.cls)}, {items})"
        self.create.append(f"{name} = {items}")

    def _frozenset(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = frozenset.__new__({self.constant(b.cls)}, ({self.items(b.parts)}))")

    def _structseq(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = {self.constant(b.cls)}(({self.items(b.parts)}))")

    def _slice(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = slice({self.items(b.parts)})")

    def _bytearray(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = bytearray({self.items(b.parts)})")

    def _method(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = method({self.items(b.parts)})")

    def _partial(self, name: str, b: Construct) -> None:
        func, args, keywords = b.parts
        named = "".join(f"{self.name(key)}: {self.expression(value)}, " for key, value in keywords)
        self.create.append(f"{name} = partial({self.expression(func)}, {self.items(args)}**{{{named}}})")

    def _function(self, name: str, b: Construct) -> None:
        self.create.append(f"{name} = make_function({self.items(b.parts)})")

    def _reduced(self, name: str, b: Construct) -> None:
        make, args, state = b.parts
        create, fill = (self.late, self.late) if b.late else (self.create, self.fill)
        create.append(f"{name} = {self.expression(make)}({self.items(args)})")
        if state:  # a position, say, which what it points into must have first
            fill.append(f"{name}.__setstate__({self.items(state)})")

    def _walker(self, name: str, b: Construct) -> None:
        self.late.append(f"{name} = walk({self.items(b.parts)})")

    def _exception(self, name: str, b: Construct) -> None:
        args, lines, members = b.parts
        self.create.append(f"{name} = BaseException.__new__({self.constant(b.cls)}, {self.items(args)})")
        if lines.value:
            self.fill.append(f"{name}.__traceback__ = traceback_of({self.expression(lines)})")
        for member, ref in members:
            if ref not in (Constant(None), Constant(False)):
                self.fill.append(f"{name}.{member} = {self.expression(ref)}")


_MAKE: dict[str, Callable[[_Emitter, str, Construct], None]] = {
    "list": _Emitter._list,
    "dict": _Emitter._dict,
    "ordered": _Emitter._ordered,
    "default": _Emitter._default,
    "set": _Emitter._set,
    "deque": _Emitter._deque,
    "object": _Emitter._object,
    "namespace": _Emitter._namespace,
    "cell": _Emitter._cell,
    "tuple": _Emitter._tuple,
    "frozenset": _Emitter._frozenset,
    "structseq": _Emitter._structseq,
    "slice": _Emitter._slice,
    "bytearray": _Emitter._bytearray,
    "method": _Emitter._method,
    "partial": _Emitter._partial,
    "function": _Emitter._function,
    "exception": _Emitter._exception,
    "reduced": _Emitter._reduced,
    "walker": _Emitter._walker,
}


def _first_values(count: int, of: int) -> str:
    """The graph's inputs: the values that come first."""
    if count < 4:
        return ", ".join(f"v[{position}]" for position in range(count))
    return "*v" if count == of else f"*v[:{count}]"


def _trying(lines: list[str], otherwise: str) -> list[str]:
    """These lines, and what is done before what one of them raises goes on its way."""
    return [
        "try:",
        *(f"    {line}" for line in lines),
        "except BaseException as error:",
        f"    {otherwise}",
        "    raise",
    ]


def write_replay(recording: Recording, wanted: list[int]) -> tuple[str, dict[str, Any]]:
    """The replay as Python text, and the constants that it mentions; `graph` is not among them yet."""
    emitter = _Emitter(recording, wanted)
    result = emitter.expression(recording.result)
    if recording.exit is not None:
        result = f"({emitter.items(_state(recording.exit))})"
    written = effects.write(emitter, [(emitter.position(effect.target), effect) for effect in recording.effects])
    lines = []
    if recording.graph is not None:
        inputs = _first_values(len(recording.inputs), len(wanted))
        lines.append(f"out = graph({inputs})" if recording.outputs else f"graph({inputs})")
    lines += [*emitter.create, *emitter.fill]
    made = [*written.make, *emitter.late]
    if recording.effects:
        made = _trying(made, written.back)
    lines += [*written.keep, *made]
    prints = [
        f"print({emitter.items(arguments)}**{emitter.constant(keywords)})" for arguments, keywords in recording.prints
    ]
    lines += _trying(prints, "mark_half_done(error)") if prints else []
    if recording.grad_mode is not None:
        emitter.names["set_grad_mode"] = torch._C._set_grad_enabled
        lines.append(f"set_grad_mode({recording.grad_mode})")
    lines.append(f"return {result}")
    body = "\n    ".join(lines)
    text = f"def replay(v):\n    {body}\n"
    if recording.exit is not None and len(recording.exit.states) > 1:
        text += _StepEmitter(recording.exit, emitter).text()
    return text, emitter.names


def _state(exit: Exit) -> list[ValueRef]:
    """What a replay gives back at a break. The function of the outermost frame is known to whoever called it."""
    return [*exit.functions[1:], *(ref for state in exit.states for ref in state.values())]


class _StepEmitter:
    """The function `leave`, which takes the step behind a segment of several frames: of the last one, in which it is
    that frame's business alone, and the others' states go on as they are. Gives back
    (number of a resume point, what it takes).
    """

    def __init__(self, exit: Exit, emitter: _Emitter) -> None:
        self._exit = exit
        self._emitter = emitter
        self._functions = [f"f{i}" for i in range(1, len(exit.functions))]  # of all frames but the outermost
        self._states = [{name: f"s{i}_{k}" for k, name in enumerate(state)} for i, state in enumerate(exit.states)]

    def text(self) -> str:
        self._emitter.names["function_of"] = types.FunctionType
        exit, parameters = self._exit, [*self._functions, *(name for s in self._states for name in s.values())]
        step = self._function(exit.step, self._functions[-1])
        lines = [
            f"def leave({', '.join(parameters)}):",
            f"point = {step}({', '.join(self._state(-1, exit.step))})",
        ]
        for number, point in enumerate(exit.resume_points):
            lines.append(f"if point[0] == {number}:")
            if point.raises:  # the traceback has the frame below, and that one this: nothing is to be left here
                lines.append(f"    try: return ({number}, {self._slots(point)})")
                lines.append(f"    finally: del {', '.join([*parameters, 'point'])}")
            else:
                lines.append(f"    return ({number}, {self._slots(point)})")
        return "\n    ".join(lines) + "\n"

    def _state(self, frame: int, continuation: Continuation) -> list[str]:
        return [self._states[frame][name] for name in continuation.names if name in self._states[frame]]

    def _slots(self, point: ResumePoint) -> str:
        """All states, with the continuations of the inner frames in between. The last state is what the step gave."""
        parts: list[str] = []
        for i, inner in enumerate(point.frames[1:]):
            parts += [*self._state(i, point.frames[i]), self._function(inner, self._functions[i])]
        return ", ".join([*parts, "*point[1:]"])

    def _function(self, continuation: Continuation, original: str) -> str:
        code, namespace = continuation
        if not code.co_freevars:
            return self._emitter.constant(types.FunctionType(code, namespace))
        parts = (self._emitter.constant(code), self._emitter.constant(namespace), literal(code.co_name))
        return f"function_of({', '.join(parts)}, None, {original}.__closure__)"  # C code: nothing of ours fails here


def _break_step(exit: Exit, function: types.FunctionType | None) -> _native.BreakStep:
    """A segment of one frame is left by the step itself, others by the function `leave`."""
    targets = tuple(_native.ResumeTarget(point, *point.frames[0]) for point in exit.resume_points)
    step = exit.step if function is None else Continuation(function.__code__, function.__globals__)
    return _native.BreakStep(*step, targets, *((exit.read or ()) if function is None else ()))


def emit(
    recording: Recording, wanted: list[int], graph: Callable[..., Any] | None
) -> tuple[Replay, _native.BreakStep | None, str]:
    """The replay, what follows it at a break, and their text."""
    text, names = write_replay(recording, wanted)
    relay = _relay(recording, wanted, graph)
    if relay is None:
        names["graph"] = graph
    if relay is None or (recording.exit is not None and len(recording.exit.states) > 1):
        exec(compile(text, f"<stator replay of {one_line(recording.name)}>", "exec"), names)
    leave = None if recording.exit is None else _break_step(recording.exit, names.get("leave"))
    return names["replay"] if relay is None else relay, leave, text


def _relay(recording: Recording, wanted: list[int], graph: Callable[..., Any] | None) -> _native.Relay | None:
    """The replay as C code makes it, if all it has to do is to call the graph."""
    if recording.effects or recording.prints or recording.grad_mode is not None:
        return None
    parts: list[tuple[int, Any]] = []
    for ref in [recording.result] if recording.exit is None else _state(recording.exit):
        if isinstance(ref, Constant):
            parts.append((_native.FROM_CONSTANT, ref.value))
        elif isinstance(ref, Outside):
            parts.append((_native.FROM_VALUE, wanted.index(ref.index)))
        elif isinstance(ref, Output):
            parts.append((_native.FROM_OUTPUT, ref.index))
        else:
            return None
    inputs = len(recording.inputs) if recording.graph is not None else 0
    called = graph if recording.graph is not None else None
    return _native.Relay(called, inputs, tuple(parts), recording.exit is not None)


def settle(replay: Replay) -> None:
    """The replay is going to be called often: it calls its graph without a detour."""
    if isinstance(replay, _native.Relay):
        if type(replay.graph) is Unsettled:
            replay.settle(replay.graph.settled())
        return
    names: dict[str, Any] = replay.__globals__
    if type(names["graph"]) is Unsettled:
        names["graph"] = names["graph"].settled()
