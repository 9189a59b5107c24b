"""What one watched run yields, as plain data: the only thing that `watch` hands to `replay`.

A `Recording` holds the origins of all outside values that the run read (parents before children), the checks that must
hold on them again, the graph, the effects, and how to rebuild the result. Nothing in here runs or decides anything.
"""

from __future__ import annotations

import enum
import os
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ._native import Origin as Origin  # how to reach an outside value again; in C, since a run makes thousands
from .guard_codes import Edge as Edge
from .guard_codes import Fact as Fact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    import torch
    from torch import fx

    from .errors import BreakReason


# Of a compiled module this is the function that is recorded; nobody asks then whose code it is.
_MODULE_CALL = os.path.join("torch", "nn", "modules", "module.py:")


class Instruction(Protocol):
    """One of the program that ran (a probe is one)."""

    @property
    def code(self) -> CodeType: ...
    @property
    def offset(self) -> int: ...


# What made a guard necessary: an instruction; if it is in code of Python or torch, with the one in the user's code that
# led there.
Place = Instruction | tuple[Instruction, Instruction]


class Check(NamedTuple):
    fact: Fact
    expected: Any
    place: Place | None


class TensorFacts(NamedTuple):
    """All that a graph assumes of an input tensor. A size or stride that may be any, or that a relation speaks of, is
    None."""

    type: type
    dtype: torch.dtype
    device: torch.device
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    requires_grad: bool
    is_leaf: bool
    keys: int  # raw dispatch key set: layout, conjugate and negative bits, inference, functorch wrappers


class Specialised(NamedTuple):
    """A symbolic number whose value was needed."""

    what: Any  # an expression; () if there is no word for it
    value: Any  # or why there is none
    place: Place | None


def path_of(origin: Origin) -> tuple[Any, ...]:
    """The way from the root to an origin: equal for the same place in two recordings of a function."""
    steps: list[Any] = []
    at: Origin | None = origin
    while at is not None:
        key = at.key[0] if at.edge is Edge.LOCAL else id(at.key) if at.edge is Edge.CONST else at.key
        steps.append((at.edge, path_of(at.key) if at.edge is Edge.KEYED else key))
        at = at.parent
    return tuple(reversed(steps))


def render_places(place: Any) -> tuple[str, str]:
    """The line that made a guard necessary, and the user's line that led there, if that is another; else empty."""
    if type(place) is not tuple:
        return _render_line(place), ""
    inner, outer = place
    caller = _render_line(outer)
    return _render_line(inner), "" if is_module_call(caller) else caller


def is_module_call(place: str) -> bool:
    """Is this a line of the code of torch that calls modules?"""
    return _MODULE_CALL in place


def render_place(place: Any) -> str:
    """Both in words."""
    return " from ".join(filter(None, render_places(place)))


def _render_line(place: Any) -> str:
    if place is None:
        return ""
    code = place.code
    if code is None:
        return ""
    line = next((line for start, end, line in code.co_lines() if start <= place.offset < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def describe_key(origin: Origin) -> str:
    """The last step of an origin, by name."""
    key = origin.key
    if origin.edge is Edge.LOCAL or origin.edge is Edge.SUPER:
        return str(key[1])
    if origin.edge is Edge.CONST:
        return str(key.get("__name__", "globals")) if isinstance(key, dict) else str(getattr(key, "__name__", "object"))
    return str(getattr(key, "__name__", key))


def _text_of(value: Any) -> str:
    """A value's own text, unless Python code of the program would have to make it."""
    return f"<{type(value).__qualname__}>" if isinstance(type(value).__repr__, types.FunctionType) else repr(value)


def describe(origin: Origin) -> str:
    """The origin as the user would write it."""
    key = origin.key
    if origin.edge is Edge.LOCAL:
        return str(key[1])
    if origin.edge is Edge.CONST:
        if isinstance(key, dict):
            return str(key.get("__name__", "globals"))
        return getattr(key, "__qualname__", None) or getattr(key, "__name__", None) or type(key).__name__
    assert origin.parent is not None
    base = describe(origin.parent)
    if origin.edge is Edge.ITEM:
        parent = origin.parent
        named = parent.edge is Edge.CONST or (parent.edge is Edge.ATTR and parent.key == "__dict__")
        if named and isinstance(key, str):
            return f"{base.removesuffix('.__dict__')}.{key}"
        return f"{base}[{_text_of(key)}]"
    if origin.edge is Edge.SUPER:
        return f"super({key[0].__name__}, {base}).{key[1]}"
    if origin.edge is Edge.SLOT:
        return f"{base}.{key.__name__}"
    if origin.edge is Edge.CALL:
        return f"{base}({', '.join(map(_text_of, key))})"
    if origin.edge is Edge.KEYED:
        return f"{base}[{describe(key)}]"
    if origin.edge is Edge.COMPUTED:
        return str(key.text)
    return f"{base}.{key}"


# How to make a value again. A `ValueRef` is one of the following.


@dataclass(frozen=True, slots=True)
class Constant:
    value: Any


@dataclass(frozen=True, slots=True)
class Outside:
    """The value of an origin."""

    index: int


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """An object made anew; all mentions of one index are one object."""

    index: int


ValueRef = Constant | Outside | Output | Fresh


@dataclass(slots=True)
class Construct:
    """One fresh object: `kind` names a row of the table in `replay.emit`, `parts` its contents."""

    kind: str
    cls: Any
    parts: list[Any]
    attributes: list[tuple[str, ValueRef]] = field(default_factory=list)  # instance dict
    slots: list[tuple[Any, ValueRef]] = field(default_factory=list)  # member descriptor, value
    late: bool = False  # it is made behind the effects


class Effect(NamedTuple):
    """A change to an outside object: `kind` names a row of the table in `replay.emit`."""

    kind: str
    target: int
    key: Any
    value: Any  # a `ValueRef`, or a list of them


class Assumptions(Protocol):
    """Beside a recording with symbolic numbers: what a backend assumes of them while it compiles the graph."""

    def describe_nodes(self) -> None:
        """Tell on every node of the graph what it gives."""

    def relations(self) -> list[Any]:
        """All of them, once the backend has seen the graph."""

    def violated(self) -> str | None:
        """Which dimension that was to be symbolic is none, in words."""


# How a segment ends at a break.


class Continuation(NamedTuple):
    """The rest of one frame: code which takes the frame's state as its arguments, and the globals it runs in."""

    code: CodeType
    namespace: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Of its arguments: the frame's variables, its stack, and what it needs besides."""
        return self.code.co_varnames[: self.code.co_argcount]


@dataclass(frozen=True, eq=False, slots=True)
class ResumePoint:
    """One place where a program goes on after a break: the rest of every frame, outermost first.

    The outermost continuation takes its own state, the function that is the next one's, that one's state, and so on.
    """

    frames: tuple[Continuation, ...]
    raises: bool = False  # the innermost frame raises there: its continuation takes the exception as well

    @property
    def key(self) -> tuple[int, ...]:
        """Equal for equal points; they keep what it names alive."""
        return tuple(id(frame.code) for frame in self.frames)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that the outermost continuation takes."""
        names: tuple[str, ...] = ()
        for frame in reversed(self.frames):
            own = frame.names
            names = (*own[: len(own) - len(names)], *names)
        return names


class Read(NamedTuple):
    """A step that only calls a method which reads a value and runs no Python code: the last two parts of the state are
    the method and an object of this very class. It leads to the first point, which takes the parts `moves` of the
    state; the place of the method stands for the value."""

    method: Any
    owner: type
    moves: tuple[int, ...]


class OnFailure(enum.Enum):
    """A graph relies on something about its data. What does the program do if that comes out otherwise?"""

    RAISES = "raises: Python runs the call from its start"
    GOES_ON = "another way, which is looked up or recorded"


class Checks(NamedTuple):
    """Runtime asserts of a graph: computed by a graph of their own from some of the inputs, by position."""

    graph: fx.GraphModule
    inputs: tuple[int, ...]
    outcomes: tuple[bool, ...]
    on_failure: tuple[OnFailure, ...]


@dataclass(slots=True)
class Exit:
    """A break: the state of all frames as it is there, what runs natively, and where that can lead."""

    functions: list[ValueRef]  # of each frame, outermost first: their closures go on being used
    states: list[dict[str, ValueRef]]  # of each frame, by the names under which its continuations take it
    step: Continuation  # of the last frame; gives back (number of a point, what that frame's continuation takes, …)
    resume_points: list[ResumePoint]
    read: Read | None  # what the step comes to, if it does nothing else


@dataclass(slots=True)
class Recording:
    """One segment: what it read, computed, changed and returned."""

    name: str
    origins: list[Origin]
    state: tuple[Any, ...]
    graph: fx.GraphModule | None
    inputs: list[int]  # origin index of each graph input
    example_inputs: list[Any]
    outputs: int
    constructs: list[Construct]
    effects: list[Effect]
    result: ValueRef
    distinct: list[tuple[int, ...]]  # groups of origins whose values must be different objects
    storages: tuple[tuple[int, ...], ...] | None  # groups of graph inputs which share memory; None: irrelevant
    mutates: bool  # the graph writes into its inputs
    acts: bool  # a node runs Python code of the program's
    restores: list[int]  # origins of inputs that the graph writes to before an operation that may fail
    unkept: list[int] = field(default_factory=list)  # those that it writes to only behind that operation
    keeps_all: bool = False  # are these to be kept, too, where nobody knows when the compiled graph writes?
    early: list[int] = field(default_factory=list)  # origins of inputs that are written before a number may fail
    lock: int | None = None  # origin of a lock that the segment takes
    keeps_lock: bool = False  # it is taken when the segment ends, at a break
    checks: Checks | None = None  # what must be true of the inputs' data
    relations: list[Any] = field(default_factory=list)  # `relations.Relation`s between sizes and numbers
    specialised: list[Specialised] = field(default_factory=list)
    symbolic: list[Any] = field(default_factory=list)  # the sizes and numbers that may be others: terms
    operations: int = 0
    probes: int = 0  # fired in the run
    prints: list[tuple[list[ValueRef], dict[str, Any]]] = field(default_factory=list)  # arguments, keywords
    shows_nodes: bool = False  # the program looks at autograd's node of what the graph gives: it has to be eager's
    grad_mode: bool | None = None  # what the segment leaves it at, if that differs from how it began
    exit: Exit | None = None  # set: the segment ends at a break and the program goes on behind it
    break_reason: BreakReason | None = None  # why the segment ends where it ends, if not with the function

    @property
    def plain(self) -> bool:
        """There is no replay: from the segment's start on the function runs as plain Python."""
        return self.break_reason is not None and self.exit is None

    def validate(self) -> None:
        """Does it all fit together? ValueError if not: each index has what it names, each origin comes behind those
        that it is reached from, the graph takes and gives what the recording says."""
        for wrong in _mistakes(self):
            raise ValueError(f"recording of {self.name}: {wrong}")


def _mistakes(recording: Recording) -> Iterator[str]:
    for place, origin in enumerate(recording.origins):
        yield from _mistakes_of_origin(recording.origins, place, origin)
    count, inputs = len(recording.origins), len(recording.inputs)
    named = [
        *recording.inputs,
        *recording.restores,
        *recording.unkept,
        *recording.early,
        *(effect.target for effect in recording.effects),
    ]
    named += [index for group in recording.distinct for index in group]
    named += [term[1] for relation in recording.relations for term in _terms_in(relation.expression)]
    named += [] if recording.lock is None else [recording.lock]
    if not all(0 <= index < count for index in named):
        yield f"one of the origins {sorted(set(named))} is not there"
    if not {*recording.restores, *recording.unkept, *recording.early} <= {*recording.inputs}:
        yield "what is put back is no input"
    if not all(0 <= place < inputs for group in recording.storages or () for place in group):
        yield "storages of what is no input"
    yield from _mistakes_of_graph(recording)
    for ref in _refs_in(_values_of(recording)):
        room = {Outside: count, Output: recording.outputs, Fresh: len(recording.constructs)}.get(type(ref))
        if room is not None and not 0 <= ref.index < room:
            yield f"{ref} is not there"


def _mistakes_of_origin(origins: list[Origin], place: int, origin: Origin) -> Iterator[str]:
    rooted = origin.edge is Edge.LOCAL or origin.edge is Edge.CONST
    parents = [] if origin.parent is None else [origin.parent]
    if origin.index != place or rooted is bool(parents):
        yield f"origin {place} has the number {origin.index}, and the parents {parents}"
    if origin.edge is Edge.KEYED:
        parents.append(origin.key)
    for check in origin.checks:
        if check.fact is Fact.HAS_KEYED or check.fact is Fact.LACKS_KEYED:
            parents += [other for other in check.expected if other is not origin]
        elif (check.fact is Fact.SAME or check.fact is Fact.OTHER) and not 0 <= check.expected < place:
            yield f"origin {place} is compared with {check.expected}, which is not known by then"
    if not all(parent.index < place and origins[parent.index] is parent for parent in parents):
        yield f"origin {place} comes before what it is reached from"


def _mistakes_of_graph(recording: Recording) -> Iterator[str]:
    graph, checks = recording.graph, recording.checks
    if graph is None:
        if recording.outputs:
            yield "outputs of no graph"
        return
    if _arity(graph) != (len(recording.inputs), recording.outputs):
        yield f"a graph with {_arity(graph)} inputs and outputs, for {len(recording.inputs)} and {recording.outputs}"
    if checks is not None:
        if _arity(checks.graph) != (len(checks.inputs), len(checks.outcomes)):
            yield "checks that are not those of their graph"
        if len(checks.on_failure) != len(checks.outcomes) or not {*checks.inputs} <= {*range(len(recording.inputs))}:
            yield "checks of what is not there"


def _arity(module: fx.GraphModule) -> tuple[int, int]:
    nodes = list(module.graph.nodes)
    return sum(node.op == "placeholder" for node in nodes), len(nodes[-1].args[0])


def _values_of(recording: Recording) -> list[Any]:
    """All that is made of value refs, in lists within lists."""
    found: list[Any] = [recording.result, [effect.value for effect in recording.effects]]
    for construct in recording.constructs:
        found += [construct.parts, [ref for _, ref in (*construct.attributes, *construct.slots)]]
    found += [arguments for arguments, _ in recording.prints]
    if recording.exit is not None:
        found += [recording.exit.functions, [list(state.values()) for state in recording.exit.states]]
    return found


def _refs_in(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _refs_in(part)
    else:
        yield value


# Of an expression over sizes and numbers: what a call brings along, by the index of an origin.
TERMS = ("size", "stride", "number", "real")


def _terms_in(expression: Any) -> Iterator[tuple[Any, ...]]:
    if type(expression) is tuple and expression:
        if expression[0] in TERMS:
            yield expression
        else:
            for part in expression[1:]:
                yield from _terms_in(part)
