"""How values that a segment has made are made again: constructs, as the objects are at its end.

Enters: a value of the segment's end. Leaves: a value ref: an origin, a result of the graph, a constant, or a construct
that the replay follows. What it cannot make raises `BreakGraph`.
"""

from __future__ import annotations

import collections
import gc
import operator
import re
import traceback
import types
from collections.abc import Callable
from typing import Any

from ..._native import mro_lookup
from ...recording import (
    Constant,
    Construct,
    Fact,
    Fresh,
    Origin,
    Output,
    Outside,
    ValueRef,
)
from ...support.builtin_types import TYPE_MODELS
from ...support.guard_readers import (
    class_dict,
    container_kind,
    is_open,
    keys_of,
)
from ..graph_break import BreakGraph
from ..objects.attributes import fresh_namespace
from ..objects.constants import DEEPEST, constant_fact, is_constant
from ..objects.fingerprints import is_tensor
from ..objects.identity import Identity
from ..objects.ledger import COMPOSED
from ..segment import Segment

NOTHING = Constant(None)


def has_finalizer(cls: type) -> bool:
    """Does code of the program run when an object dies? A replay keeps what is passed on to the rest of a function for
    longer, does not make what nothing reads any more, and lets go of what it replaces in an order of its own."""
    return issubclass(type(mro_lookup(cls, "__del__")), types.FunctionType)


def is_made(value: Any) -> bool:
    """Is this constant a tuple that some code has made as it ran? One of numbers and texts may be the code's own."""
    if type(value) is not tuple or not is_constant(value):
        return False
    return any(is_made(part) or constant_fact(part) is Fact.IS for part in value)


class Rebuilder:
    """Refs to values as they are at the segment's end; every fresh object gets one construct."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.ledger = segment.ledger
        self._symbols = segment.symbols
        self.constructs: list[Construct] = []
        self._made: dict[int, Fresh] = {}
        self._owners: dict[int, Fresh] = {}  # of instance dicts
        self._alive: list[Any] = []
        self._depth = 0
        self._tuples: dict[int, Origin] | None = None  # by identity, where they lie; made when first asked for

    def ref(self, value: Any) -> ValueRef:
        symbol = self._symbols.find(value) if self._symbols is not None else None
        if symbol is not None:
            assert self._symbols is not None
            given = symbol.origin
            if given is not None:
                return Outside(given.index)
            return Output(self._segment.graph.number_output(self._symbols.node_of(symbol)))
        if is_constant(value) and not (type(value) in COMPOSED and self._is_made_anew(value)):
            output = self._segment.graph.scalar_output(value)
            if output is not None:
                return Output(output)
            place = self.ledger.find_unguarded(value) or self._place_of_tuple(value)
            if place is not None:
                return Outside(place.index)
            if not is_made(value):
                return Constant(self._segment.own.original(value))
        origin = self._segment.ledger.find(value)
        if is_tensor(value):
            if origin is None:
                return Output(self._segment.graph.output(value))
            return Outside(origin.index)
        if origin is None and type(value) is types.FunctionType and not self._segment.watcher.fresh(value):
            origin = self._segment.classes.place_of_special(value)
        if origin is not None:
            return Outside(origin.index)
        made = self._made.get(id(value))
        if made is None:
            made = self._made[id(value)] = Fresh(len(self.constructs))
            self._alive.append(value)
            construct = Construct("", type(value), [])
            self.constructs.append(construct)
            if id(value) in self._owners:
                construct.kind, construct.parts = "instance dict", [self._owners[id(value)]]
            else:
                self._nested(value, construct)
        return made

    def _nested(self, value: Any, construct: Construct) -> None:
        """Objects are described, and made again, one inside the other."""
        if self._depth == DEEPEST:
            raise BreakGraph("rebuild", f"objects that hold each other more than {DEEPEST} deep")
        self._depth += 1
        self._describe(value, construct)
        self._depth -= 1

    def _is_made_anew(self, value: Any) -> bool:
        """Is this tuple, or the like, made of objects, or of numbers and texts that may be others in the next call?"""
        return self.ledger.is_made_of_objects(value) or (type(value) in (tuple, slice) and self._is_unguarded(value))

    def _is_unguarded(self, value: Any) -> bool:
        if type(value) is tuple:
            return any(map(self._is_unguarded, value))
        if type(value) is slice:
            return any(map(self._is_unguarded, (value.start, value.stop, value.step)))
        return self.ledger.find_unguarded(value) is not None or self._segment.graph.is_scalar(value)

    def _place_of_tuple(self, value: Any) -> Origin | None:
        """Where a tuple lies that comes from outside and is no constant of code; it is checked by what is in it."""
        if not is_made(value):
            return None
        if self._tuples is None:
            self._tuples = {}
            for origin in self.ledger.origins:
                for check in origin.checks:
                    if check.fact is Fact.EQUAL and type(check.expected) is tuple:
                        self._tuples.setdefault(id(check.expected), origin)
        return self._tuples.get(id(value))

    def refs(self, values: Any) -> list[ValueRef]:
        return [self.ref(value) for value in values]

    def _describe(self, value: Any, construct: Construct) -> None:
        cls = type(value)
        if cls is Identity:
            raise BreakGraph("identity", "id")
        describe = _DESCRIBE.get(cls) or _DESCRIBE_BASES.get(container_kind(cls) or "")
        if describe is None:
            describe = Rebuilder._exception if issubclass(cls, BaseException) else Rebuilder._object
        if has_finalizer(cls):
            raise BreakGraph("rebuild", f"{cls.__qualname__} has a finalizer")
        describe(self, value, construct)
        if is_open(cls) or (cls.__dictoffset__ and describe not in (Rebuilder._function, Rebuilder._partial)):
            self._attributes(value, construct)

    def _attributes(self, value: Any, construct: Construct) -> None:
        namespace = fresh_namespace(value)
        self._own(value, namespace)
        construct.attributes = [(name, self.ref(item)) for name, item in namespace.items()]
        for base in type(value).__mro__:
            if is_open(base):
                for entry in class_dict(base).values():
                    if type(entry) is types.MemberDescriptorType:
                        try:
                            item = entry.__get__(value)
                        except AttributeError:
                            continue
                        construct.slots.append((entry, self.ref(item)))

    def _own(self, value: Any, namespace: dict[str, Any]) -> None:
        """An instance dict is made with its object, whichever of the two is met first."""
        if type(namespace) is not dict or self.ledger.find(namespace) is not None or id(namespace) in self._owners:
            raise BreakGraph("rebuild", f"{type(value).__qualname__} with the dict of another object")
        owner = self._owners[id(namespace)] = self._made[id(value)]
        self._alive.append(namespace)
        former = self._made.get(id(namespace))
        if former is not None:
            construct = self.constructs[former.index]
            construct.kind, construct.parts = "instance dict", [owner]

    # one describer per kind of object

    def _list(self, value: Any, construct: Construct) -> None:
        construct.kind, construct.parts = "list", self.refs(list.__iter__(value))

    def _tuple(self, value: Any, construct: Construct) -> None:
        construct.kind = "structseq" if hasattr(type(value), "n_sequence_fields") else "tuple"
        construct.parts = self.refs(tuple.__iter__(value))

    def _dict(self, value: Any, construct: Construct) -> None:
        construct.kind = "dict"
        if issubclass(type(value), collections.OrderedDict):
            construct.kind = "ordered"
        elif issubclass(type(value), collections.defaultdict):
            construct.kind = "default"
        elif issubclass(type(value), collections.Counter):
            construct.kind = "dict"
        pairs = [(self.ref(key), self.ref(dict.__getitem__(value, key))) for key in keys_of(value)]
        if id(value) in self._owners:  # an entry led to the object whose instance dict this is
            return
        construct.parts = [self.ref(value.default_factory), pairs] if construct.kind == "default" else [pairs]

    def _set(self, value: Any, construct: Construct) -> None:
        construct.kind = "frozenset" if issubclass(type(value), frozenset) else "set"
        construct.parts = [Constant(part) if is_made(part) else self.ref(part) for part in value]
        if any(isinstance(part, Fresh) for part in construct.parts):
            raise BreakGraph(
                "rebuild", "a set of objects made inside"
            )  # their hashes may need what they are filled with

    def _deque(self, value: Any, construct: Construct) -> None:
        construct.kind = "deque"
        construct.parts = [Constant(value.maxlen), *self.refs(collections.deque.__iter__(value))]

    def _bytearray(self, value: Any, construct: Construct) -> None:
        construct.kind, construct.parts = "bytearray", [Constant(bytes(value))]

    def _slice(self, value: Any, construct: Construct) -> None:
        construct.kind, construct.parts = "slice", self.refs((value.start, value.stop, value.step))

    def _method(self, value: Any, construct: Construct) -> None:
        construct.kind, construct.parts = "method", self.refs((value.__func__, value.__self__))

    def _partial(self, value: Any, construct: Construct) -> None:
        if value.__dict__:
            raise BreakGraph("rebuild", "functools.partial with attributes")
        pairs = [(name, self.ref(item)) for name, item in value.keywords.items()]
        construct.kind, construct.parts = (
            "partial",
            [self.ref(value.func), self.refs(value.args), pairs],
        )

    def _cell(self, value: Any, construct: Construct) -> None:
        try:
            construct.parts = [self.ref(value.cell_contents)]
        except ValueError:
            construct.parts = []
        construct.kind = "cell"

    def _function(self, value: types.FunctionType, construct: Construct) -> None:
        if not self._segment.watcher.fresh(value):
            raise BreakGraph("rebuild", f"function {value.__qualname__}")
        construct.kind = "function"
        construct.parts = [
            Constant(value.__code__),
            Outside(self.ledger.constant(value.__globals__).index),
            Constant((value.__name__, value.__qualname__, value.__doc__)),
            self.ref(value.__defaults__),
            self.ref(value.__kwdefaults__),
            self.ref(value.__closure__),
            self.ref(value.__annotations__),
        ]
        self._own(value, value.__dict__)
        construct.attributes = [(name, self.ref(item)) for name, item in value.__dict__.items()]

    def _exception(self, value: BaseException, construct: Construct) -> None:
        builtin = next(base for base in type(value).__mro__ if not is_open(base))
        members = _EXCEPTION_MEMBERS.get(builtin, ())
        if builtin.__basicsize__ != BaseException.__basicsize__ and not members:
            raise BreakGraph("rebuild", f"{builtin.__name__} keeps more than its arguments")
        lines = [
            (frame.f_code.co_filename, frame.f_code.co_qualname, line)
            for frame, line in traceback.walk_tb(value.__traceback__)
        ]
        construct.kind = "exception"
        construct.parts = [
            self.refs(value.args),
            Constant(tuple(lines)),
            [(name, self.ref(getattr(value, name))) for name in (*_EXCEPTION_LINKS, *members)],
        ]

    def _namespace(self, value: Any, construct: Construct) -> None:
        construct.kind = "namespace"

    def _reduced(self, value: Any, construct: Construct) -> None:
        """What says itself how to make it again: iterators of the builtin types, bound C methods."""
        make, args, *state = value.__reduce__()
        at_end = _AT_END.get(type(value))
        if at_end is not None and not state and _is_reduced_to(args, at_end().__reduce__()[1]):
            construct.kind, construct.parts = "reduced", [Constant(at_end), [], []]
            return
        construct.kind = "reduced"
        construct.parts = [Constant(make), self.refs(args), self.refs(s for s in state if s is not None)]
        construct.late = any(isinstance(r, Fresh) and self.constructs[r.index].late for r in construct.parts[1])

    def _match(self, value: re.Match[Any], construct: Construct) -> None:
        """By the search that gives an equal one. (That of `finditer` is none.)"""
        if type(value.string) not in (str, bytes):
            raise BreakGraph("rebuild", "a match in what may change")
        place = (value.re, value.string, value.pos, value.endpos)
        for search in (re.Pattern.search, re.Pattern.match, re.Pattern.fullmatch):
            again = search(*place)
            if again is not None and (again.regs, again.lastindex) == (value.regs, value.lastindex):
                construct.kind, construct.parts = "reduced", [Constant(search), self.refs(place), []]
                return
        raise BreakGraph("rebuild", "a match that no search gives")

    def _alias(self, value: Any, construct: Construct) -> None:
        if value.__unpacked__:
            raise BreakGraph("rebuild", "an unpacked generic alias")
        self._reduced(value, construct)

    def _walker(self, value: Any, construct: Construct) -> None:
        """An iterator of a dict or a set: made anew when that is as it was, and moved on as far."""
        walked = next((o for o in gc.get_referents(value) if issubclass(type(o), (dict, set, frozenset))), None)
        if walked is None:  # it is at its end
            construct.kind, construct.parts = "reduced", [Constant(_AT_END[type(value)]), [], []]
            return
        begin = _WALKERS[type(value)]
        try:
            rest = list(value.__reduce__()[1][0])
            again = list(begin(walked))
        except RuntimeError:
            raise BreakGraph("rebuild", "an iterator of what has changed since") from None
        if issubclass(type(walked), (set, frozenset)):
            again = list(type(walked)(again)) if type(walked) in (set, frozenset) else []
        passed = len(again) - len(rest)
        if passed < 0 or not all(map(_is_entry, again[passed:], rest)) or value.__length_hint__() != len(rest):
            raise BreakGraph("rebuild", "an iterator of what has changed since")
        construct.kind, construct.parts = "walker", [Constant(begin), self.ref(walked), Constant(passed)]
        construct.late = True

    def _object(self, value: Any, construct: Construct) -> None:
        cls = type(value)
        try:
            object.__new__(cls)
        except TypeError:
            raise BreakGraph("rebuild", f"{cls.__module__}.{cls.__qualname__}") from None
        if not is_open(cls) and cls is not object:
            raise BreakGraph("rebuild", f"{cls.__module__}.{cls.__qualname__}")
        construct.kind = "object"


def _is_entry(one: Any, other: Any) -> bool:
    """The same object, or the same key and value (items are made when asked for)."""
    return one is other or (type(one) is type(other) is tuple and len(one) == 2 and all(map(operator.is_, one, other)))


def _is_reduced_to(args: tuple[Any, ...], nothing: tuple[Any, ...]) -> bool:
    """One empty list, tuple or text."""
    return len(args) == len(nothing) == 1 and type(args[0]) is type(nothing[0]) and not len(args[0])


_AT_END = {model.type: model.at_end for model in TYPE_MODELS if model.at_end is not None}
_WALKERS = {model.type: model.iterated for model in TYPE_MODELS if model.iterated is not None}
_EXCEPTION_LINKS = ("__context__", "__cause__", "__suppress_context__")
_EXCEPTION_MEMBERS: dict[type, tuple[str, ...]] = {
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    UnboundLocalError: ("name",),
    ImportError: ("msg", "name", "path"),
    ModuleNotFoundError: ("msg", "name", "path"),
    StopIteration: ("value",),
}
_DESCRIBE: dict[type, Callable[[Rebuilder, Any, Construct], None]] = {
    model.type: getattr(Rebuilder, f"_{model.rebuilt}") for model in TYPE_MODELS if model.rebuilt is not None
}
_DESCRIBE_BASES: dict[str, Callable[[Rebuilder, Any, Construct], None]] = {
    model.kind: getattr(Rebuilder, f"_{model.kind}") for model in TYPE_MODELS if model.kind is not None
}
