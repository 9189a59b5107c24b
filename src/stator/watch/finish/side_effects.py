"""The end of a segment: what it changed outside, and how to make its result, or its frames' state, again.

Enters: a segment whose run has returned, or is about to break. Leaves: the `Recording`. Effects are differences: what
the segment wrote is set again to what it was at the end. Fresh objects are described by what they are at the end.
"""

from __future__ import annotations

import collections
import functools
import gc
import operator
import traceback
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..._native import mro_lookup
from ...recording import (
    Blueprint,
    Constant,
    Effect,
    Exit,
    Fact,
    Fresh,
    Origin,
    Output,
    Outside,
    Read,
    Recipe,
    Recording,
)
from ...support.guard_readers import (
    class_dict,
    container_kind,
    has_own_hash,
    is_open,
    keys_of,
    share_foreign_memory,
    shared_storages,
)
from ..graph_break import Drop
from ..objects.attributes import fresh_namespace
from ..objects.constants import DEEPEST, constant_fact, is_constant
from ..objects.containers import expose, require_presence
from ..objects.fingerprints import is_tensor
from ..objects.identity import Identity
from ..objects.ledger import COMPOSED, Change, Ledger
from ..segment import Segment
from .resume_points import Break

NOTHING = Constant(None)


def has_finalizer(cls: type) -> bool:
    """Does code of the program run when an object dies? A replay keeps what is passed on to the rest of a function for
    longer, does not make what nothing reads any more, and lets go of what it replaces in an order of its own."""
    return issubclass(type(mro_lookup(cls, "__del__")), types.FunctionType)


def _is_made(value: Any) -> bool:
    """Is this constant a tuple that some code has made as it ran? One of numbers and texts may be the code's own."""
    if type(value) is not tuple or not is_constant(value):
        return False
    return any(_is_made(part) or constant_fact(part) is Fact.IS for part in value)


class Rebuilder:
    """Recipes for values as they are at the segment's end; every fresh object gets one blueprint."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.ledger = segment.ledger
        self._symbols = segment.symbols
        self.blueprints: list[Blueprint] = []
        self._made: dict[int, Fresh] = {}
        self._owners: dict[int, Fresh] = {}  # of instance dicts
        self._alive: list[Any] = []
        self._depth = 0
        self._tuples: dict[int, Origin] | None = None  # by identity, where they lie; made when first asked for

    def recipe(self, value: Any) -> Recipe:
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
            place = self.ledger.find_loose(value) or self._place_of_tuple(value)
            if place is not None:
                return Outside(place.index)
            if not _is_made(value):
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
            made = self._made[id(value)] = Fresh(len(self.blueprints))
            self._alive.append(value)
            blueprint = Blueprint("", type(value), [])
            self.blueprints.append(blueprint)
            if id(value) in self._owners:
                blueprint.kind, blueprint.parts = "instance dict", [self._owners[id(value)]]
            else:
                self._nested(value, blueprint)
        return made

    def _nested(self, value: Any, blueprint: Blueprint) -> None:
        """Objects are described, and made again, one inside the other."""
        if self._depth == DEEPEST:
            raise Drop("rebuild", f"objects that hold each other more than {DEEPEST} deep")
        self._depth += 1
        self._describe(value, blueprint)
        self._depth -= 1

    def _is_made_anew(self, value: Any) -> bool:
        """Is this tuple, or the like, made of objects, or of numbers and texts that may be others in the next call?"""
        return self.ledger.is_made_of_objects(value) or (type(value) in (tuple, slice) and self._is_loose(value))

    def _is_loose(self, value: Any) -> bool:
        if type(value) is tuple:
            return any(map(self._is_loose, value))
        if type(value) is slice:
            return any(map(self._is_loose, (value.start, value.stop, value.step)))
        return self.ledger.find_loose(value) is not None or self._segment.graph.is_scalar(value)

    def _place_of_tuple(self, value: Any) -> Origin | None:
        """Where a tuple lies that comes from outside and is no constant of code; it is checked by what is in it."""
        if not _is_made(value):
            return None
        if self._tuples is None:
            self._tuples = {}
            for origin in self.ledger.origins:
                for check in origin.checks:
                    if check.fact is Fact.EQUAL and type(check.expected) is tuple:
                        self._tuples.setdefault(id(check.expected), origin)
        return self._tuples.get(id(value))

    def recipes(self, values: Any) -> list[Recipe]:
        return [self.recipe(value) for value in values]

    def _describe(self, value: Any, blueprint: Blueprint) -> None:
        cls = type(value)
        if cls is Identity:
            raise Drop("identity", "id")
        describe = _DESCRIBE.get(cls) or _DESCRIBE_BASES.get(container_kind(cls) or "")
        if describe is None:
            describe = Rebuilder._exception if issubclass(cls, BaseException) else Rebuilder._object
        if has_finalizer(cls):
            raise Drop("rebuild", f"{cls.__qualname__} has a finalizer")
        describe(self, value, blueprint)
        if is_open(cls) or cls in _WITH_ATTRIBUTES or issubclass(cls, BaseException):
            self._attributes(value, blueprint)

    def _attributes(self, value: Any, blueprint: Blueprint) -> None:
        namespace = fresh_namespace(value)
        self._own(value, namespace)
        blueprint.attributes = [(name, self.recipe(item)) for name, item in namespace.items()]
        for base in type(value).__mro__:
            if is_open(base):
                for entry in class_dict(base).values():
                    if type(entry) is types.MemberDescriptorType:
                        try:
                            item = entry.__get__(value)
                        except AttributeError:
                            continue
                        blueprint.slots.append((entry, self.recipe(item)))

    def _own(self, value: Any, namespace: dict[str, Any]) -> None:
        """An instance dict is made with its object, whichever of the two is met first."""
        if type(namespace) is not dict or self.ledger.find(namespace) is not None or id(namespace) in self._owners:
            raise Drop("rebuild", f"{type(value).__qualname__} with the dict of another object")
        owner = self._owners[id(namespace)] = self._made[id(value)]
        self._alive.append(namespace)
        former = self._made.get(id(namespace))
        if former is not None:
            blueprint = self.blueprints[former.index]
            blueprint.kind, blueprint.parts = "instance dict", [owner]

    # one describer per kind of object

    def _list(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind, blueprint.parts = "list", self.recipes(list.__iter__(value))

    def _tuple(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind = "structseq" if hasattr(type(value), "n_sequence_fields") else "tuple"
        blueprint.parts = self.recipes(tuple.__iter__(value))

    def _dict(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind = "dict"
        if issubclass(type(value), collections.OrderedDict):
            blueprint.kind = "ordered"
        elif issubclass(type(value), collections.defaultdict):
            blueprint.kind = "default"
        elif issubclass(type(value), collections.Counter):
            blueprint.kind = "dict"
        pairs = [(self.recipe(key), self.recipe(dict.__getitem__(value, key))) for key in keys_of(value)]
        blueprint.parts = [self.recipe(value.default_factory), pairs] if blueprint.kind == "default" else [pairs]

    def _set(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind = "frozenset" if issubclass(type(value), frozenset) else "set"
        blueprint.parts = [Constant(part) if _is_made(part) else self.recipe(part) for part in value]
        if any(isinstance(part, Fresh) for part in blueprint.parts):
            raise Drop("rebuild", "a set of objects made inside")  # their hashes may need what they are filled with

    def _deque(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind = "deque"
        blueprint.parts = [Constant(value.maxlen), *self.recipes(collections.deque.__iter__(value))]

    def _bytearray(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind, blueprint.parts = "bytearray", [Constant(bytes(value))]

    def _slice(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind, blueprint.parts = "slice", self.recipes((value.start, value.stop, value.step))

    def _method(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind, blueprint.parts = "method", self.recipes((value.__func__, value.__self__))

    def _partial(self, value: Any, blueprint: Blueprint) -> None:
        if value.__dict__:
            raise Drop("rebuild", "functools.partial with attributes")
        pairs = [(name, self.recipe(item)) for name, item in value.keywords.items()]
        blueprint.kind, blueprint.parts = (
            "partial",
            [self.recipe(value.func), self.recipes(value.args), pairs],
        )

    def _cell(self, value: Any, blueprint: Blueprint) -> None:
        try:
            blueprint.parts = [self.recipe(value.cell_contents)]
        except ValueError:
            blueprint.parts = []
        blueprint.kind = "cell"

    def _function(self, value: types.FunctionType, blueprint: Blueprint) -> None:
        if not self._segment.watcher.fresh(value):
            raise Drop("rebuild", f"function {value.__qualname__}")
        blueprint.kind = "function"
        blueprint.parts = [
            Constant(value.__code__),
            Outside(self.ledger.constant(value.__globals__).index),
            Constant((value.__name__, value.__qualname__, value.__doc__)),
            self.recipe(value.__defaults__),
            self.recipe(value.__kwdefaults__),
            self.recipe(value.__closure__),
            self.recipe(value.__annotations__),
        ]
        self._own(value, value.__dict__)
        blueprint.attributes = [(name, self.recipe(item)) for name, item in value.__dict__.items()]

    def _exception(self, value: BaseException, blueprint: Blueprint) -> None:
        builtin = next(base for base in type(value).__mro__ if not is_open(base))
        members = _EXCEPTION_MEMBERS.get(builtin, ())
        if builtin.__basicsize__ != BaseException.__basicsize__ and not members:
            raise Drop("rebuild", f"{builtin.__name__} keeps more than its arguments")
        lines = [
            (frame.f_code.co_filename, frame.f_code.co_qualname, line)
            for frame, line in traceback.walk_tb(value.__traceback__)
        ]
        blueprint.kind = "exception"
        blueprint.parts = [
            self.recipes(value.args),
            Constant(tuple(lines)),
            [(name, self.recipe(getattr(value, name))) for name in (*_EXCEPTION_LINKS, *members)],
        ]

    def _namespace(self, value: Any, blueprint: Blueprint) -> None:
        blueprint.kind = "namespace"

    def _reduced(self, value: Any, blueprint: Blueprint) -> None:
        """What says itself how to make it again: iterators of the builtin types, bound C methods."""
        make, args, *state = value.__reduce__()
        blueprint.kind = "reduced"
        blueprint.parts = [Constant(make), self.recipes(args), self.recipes(s for s in state if s is not None)]
        blueprint.late = any(isinstance(r, Fresh) and self.blueprints[r.index].late for r in blueprint.parts[1])

    def _alias(self, value: Any, blueprint: Blueprint) -> None:
        if value.__unpacked__:
            raise Drop("rebuild", "an unpacked generic alias")
        self._reduced(value, blueprint)

    def _walker(self, value: Any, blueprint: Blueprint) -> None:
        """An iterator of a dict or a set: made anew when that is as it was, and moved on as far."""
        walked = next((o for o in gc.get_referents(value) if issubclass(type(o), (dict, set, frozenset))), None)
        if walked is None:  # it is at its end
            blueprint.kind, blueprint.parts = "reduced", [Constant(iter), self.recipes(((),)), []]
            return
        begin = _WALKERS[type(value)]
        try:
            rest = list(value.__reduce__()[1][0])
            again = list(begin(walked))
        except RuntimeError:
            raise Drop("rebuild", "an iterator of what has changed since") from None
        if issubclass(type(walked), (set, frozenset)):
            again = list(type(walked)(again)) if type(walked) in (set, frozenset) else []
        passed = len(again) - len(rest)
        if passed < 0 or not all(map(_is_entry, again[passed:], rest)) or value.__length_hint__() != len(rest):
            raise Drop("rebuild", "an iterator of what has changed since")
        blueprint.kind, blueprint.parts = "walker", [Constant(begin), self.recipe(walked), Constant(passed)]
        blueprint.late = True

    def _object(self, value: Any, blueprint: Blueprint) -> None:
        cls = type(value)
        try:
            object.__new__(cls)
        except TypeError:
            raise Drop("rebuild", f"{cls.__module__}.{cls.__qualname__}") from None
        if not is_open(cls) and cls is not object:
            raise Drop("rebuild", f"{cls.__module__}.{cls.__qualname__}")
        blueprint.kind = "object"


def _is_entry(one: Any, other: Any) -> bool:
    """The same object, or the same key and value (items are made when asked for)."""
    return one is other or (type(one) is type(other) is tuple and len(one) == 2 and all(map(operator.is_, one, other)))


_WALKERS: dict[type, Callable[[Any], Any]] = {
    type(iter({})): dict.__iter__,
    type(iter({}.values())): lambda walked: iter(dict.values(walked)),
    type(iter({}.items())): lambda walked: iter(dict.items(walked)),
    type(reversed({})): dict.__reversed__,
    type(iter(set())): iter,
}
_EXCEPTION_LINKS = ("__context__", "__cause__", "__suppress_context__")
_EXCEPTION_MEMBERS: dict[type, tuple[str, ...]] = {
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    UnboundLocalError: ("name",),
    ImportError: ("msg", "name", "path"),
    ModuleNotFoundError: ("msg", "name", "path"),
    StopIteration: ("value",),
}
_REDUCED = (
    *map(type, (iter([]), iter(()), iter(""), iter(b""), iter(range(0)), iter(range(1 << 70)), reversed([]))),
    *map(type, (iter(int, 1), enumerate([]))),
    *map(type, (zip(), map(abs, ()), filter(None, ()), [].append)),
)
_WITH_ATTRIBUTES = (types.SimpleNamespace, collections.OrderedDict)  # builtin types whose instances have a dict
_DESCRIBE: dict[type, Callable[[Rebuilder, Any, Blueprint], None]] = {
    **dict.fromkeys(_REDUCED, Rebuilder._reduced),
    **dict.fromkeys(_WALKERS, Rebuilder._walker),
    slice: Rebuilder._slice,
    bytearray: Rebuilder._bytearray,
    types.MethodType: Rebuilder._method,
    functools.partial: Rebuilder._partial,
    types.GenericAlias: Rebuilder._alias,
    types.CellType: Rebuilder._cell,
    types.FunctionType: Rebuilder._function,
    types.SimpleNamespace: Rebuilder._namespace,
}
_DESCRIBE_BASES: dict[str, Callable[[Rebuilder, Any, Blueprint], None]] = {
    "list": Rebuilder._list,
    "tuple": Rebuilder._tuple,
    "dict": Rebuilder._dict,
    "set": Rebuilder._set,
    "deque": Rebuilder._deque,
}


# -- changes into effects


def _dict_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    now, initial, target = change.target, change.initial, change.origin.index
    written = dict(change.written)
    if change.whole:
        for key in (*initial, *keys_of(now)):
            if key not in initial or key not in now or initial[key] is not dict.__getitem__(now, key):
                written[key] = None
    kept = [key for key in initial if dict.__contains__(now, key)]
    order = list(keys_of(now))
    kept = [key for key in kept if key not in change.removed]
    named = all(is_constant(key) or has_own_hash(key) for key in written)
    if len(order) < len(kept) or not all(map(_is_key, order, kept)) or not named:
        expose(rebuild.ledger, change.origin, now)  # all of it is going to be written: it must be what it was
        pairs = [(rebuild.recipe(key), rebuild.recipe(dict.__getitem__(now, key))) for key in order]
        return [Effect("refill dict", target, None, pairs)]
    # What was deleted and set again has moved to the end: it is deleted here too, before it is set. What was written
    # without a look at it may be there or not: then it is deleted, or set, in either case.
    gone = [key for key in written if key not in now or key in change.removed]
    effects = [
        Effect("delete item", target, key, None)
        if is_constant(key)
        else Effect("delete keyed", target, None, rebuild.recipe(key))
        for key in gone
        if key in initial or key in change.removed
    ]
    for key in _in_order(change, order, written, rebuild.ledger):
        value = rebuild.recipe(dict.__getitem__(now, key))
        if is_constant(key) and not _is_made(key):
            effects.append(Effect("set item", target, key, value))
        else:
            effects.append(Effect("set keyed", target, None, [rebuild.recipe(key), value]))
    return effects


def _is_key(one: Any, other: Any) -> bool:
    """Are they one key of a dict?"""
    return one is other or (is_constant(one) and is_constant(other) and bool(one == other))


def _in_order(change: Change, order: list[Any], written: dict[Any, None], ledger: Ledger) -> list[Any]:
    """The keys to set, so that new ones come to lie in the order that the program gave them."""
    moved = [key for key in order if key in written and key in change.removed]
    stayed = [key for key in change.written if key in change.target and key not in change.removed]
    if change.whole or (moved and stayed):
        for key in () if change.whole else stayed:
            require_presence(ledger, change.origin, change.initial, key)
        return [key for key in order if key in written]
    return moved or stayed


def _list_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    now = list(list.__iter__(change.target))
    initial = change.initial
    size = len(initial)
    # Even if things were put at its end and nothing else was done, its items may be other ones: symbols of numbers.
    if not change.whole or (len(now) >= size and all(a is b for a, b in zip(initial, now, strict=False))):
        added = rebuild.recipes(now[size:])
        return [Effect("extend", change.origin.index, None, added)] if added else []
    return [Effect("refill list", change.origin.index, None, rebuild.recipes(now))]


def _set_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    if len(change.target) == len(change.initial) and all(map(operator.is_, change.target, change.initial)):
        return []
    return [Effect("refill set", change.origin.index, None, rebuild.recipes(change.target))]


def _deque_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    return [Effect("refill deque", change.origin.index, None, rebuild.recipes(change.target))]


def _cell_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    try:
        value = change.target.cell_contents
    except ValueError:
        return [Effect("clear cell", change.origin.index, None, NOTHING)]
    return [Effect("set cell", change.origin.index, None, rebuild.recipe(value))]


def _grad_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    with torch._C.DisableTorchFunction():
        return [Effect("set grad", change.origin.index, None, rebuild.recipe(change.target.grad))]


def _slot_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    target = change.origin.index
    return [Effect("set slot", target, slot, rebuild.recipe(slot.__get__(change.target))) for slot in change.written]


def _class_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    namespace = class_dict(change.target)
    target = change.origin.index
    return [
        Effect("set attribute", target, name, rebuild.recipe(namespace[name]))
        if name in namespace
        else Effect("delete attribute", target, name, None)
        for name in change.written
    ]


_EFFECTS: dict[str, Callable[[Change, Rebuilder], list[Effect]]] = {
    "dict": _dict_effects,
    "list": _list_effects,
    "set": _set_effects,
    "deque": _deque_effects,
    "cell": _cell_effects,
    "slot": _slot_effects,
    "grad": _grad_effects,
    "class": _class_effects,
}


def conclude(segment: Segment, result: Any) -> Recording:
    """The recording of a run that returned `result`."""
    rebuild = Rebuilder(segment)
    segment.graph.close()
    return _recording(segment, rebuild, rebuild.recipe(result))


def conclude_at(
    segment: Segment,
    here: Break,
    held: Iterable[Any],
    known: Callable[[types.FunctionType], types.FunctionType],
) -> Recording:
    """The recording of a run that is about to break. `held`: what its frames' variables hold and nobody else may.
    `known`: the function of the segment that stands for one of the program's."""
    rebuild = Rebuilder(segment)
    segment.graph.close()
    passed_on = {id(value) for state in here.states for value in state.values()}
    for value in held:
        if has_finalizer(type(value)):
            raise Drop("rebuild", f"{type(value).__qualname__} has a finalizer")
        if id(value) not in passed_on and _is_looked_for(value):
            raise Drop("rebuild", f"{type(value).__qualname__} has weak references, and nothing else reads it")
    owners = [known(frame.function) for frame in here.frames]
    functions = [rebuild.recipe(function) if function.__closure__ else NOTHING for function in owners]
    states = [{name: rebuild.recipe(value) for name, value in state.items()} for state in here.states]
    grad_mode = segment.graph.balance()
    recording = _recording(segment, rebuild, NOTHING)
    recording.exit = Exit(functions, states, here.step, here.ways, _read(here))
    recording.grad_mode = grad_mode
    return recording


def _read(here: Break) -> Read | None:
    """The step as a read of a tensor's value. Elsewhere than on the CPU torch may warn of that,
    and names the line of a frame."""
    if here.moves is None:
        return None
    method, tensor = here.frames[-1].values[-2:]
    if method is not torch.Tensor.item or type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
        return None
    return Read(method, torch.Tensor, here.moves)


def _is_looked_for(value: Any) -> bool:
    """Can the program see that it dies? (Classes are in the tables of their bases; of tensors we have references.)"""
    if is_tensor(value) or issubclass(type(value), type):
        return False
    return weakref.getweakrefcount(value) > 0


def symbolic_part(segment: Segment) -> dict[str, Any]:
    """What a recording says of symbolic numbers."""
    symbols, tracer = segment.symbols, segment.graph
    if symbols is None:
        return {}
    return {
        "relations": symbols.relations(),
        "more_relations": symbols.relations,
        "describe_nodes": tracer.describe_nodes if symbols.matter else None,
        "specialised": symbols.specialised,
        "violated": symbols.violated,
        "symbolic": symbols.names(),
    }


def _recording(segment: Segment, rebuild: Rebuilder, result: Recipe) -> Recording:
    tracer = segment.graph
    effects: list[Effect] = []
    for change in segment.ledger.changes.values():
        effects += _EFFECTS[change.kind](change, rebuild)
    _check_late(rebuild.blueprints, effects)
    outputs = len(tracer.outputs)
    early = tracer.early_inputs()
    graph = tracer.module(segment.name)
    if tracer.mutates and share_foreign_memory(tensor for _, tensor, _ in tracer.inputs):
        raise Drop("unguardable", "a write to one of two tensors that share memory without torch's knowledge")
    return Recording(
        name=segment.name,
        origins=segment.ledger.origins,
        state=tracer.state,
        graph=graph,
        inputs=[origin.index for origin in (*(origin for origin, _, _ in tracer.inputs), *tracer.numbers())],
        example_inputs=tracer.example_inputs(),
        outputs=outputs,
        blueprints=rebuild.blueprints,
        effects=effects,
        result=result,
        distinct=_distinct(segment),
        storages=shared_storages(tensor for _, tensor, _ in tracer.inputs) if tracer.mutates else None,
        mutates=tracer.mutates,
        acts=tracer.acted,
        restores=tracer.written_inputs() if tracer.risky else [],
        early=early,
        lock=segment.locks.origin,
        keeps_lock=segment.locks.held,
        checks=tracer.checking.conclude(),
        operations=tracer.operations,
        prints=[(rebuild.recipes(arguments), keywords) for arguments, keywords in segment.prints],
        probes=segment.watcher.events,
        **symbolic_part(segment),
    )


def _check_late(blueprints: list[Blueprint], effects: list[Effect]) -> None:
    """What is made when all else is done cannot be a part of something else."""
    pending: list[Any] = [effect.value for effect in effects]
    for b in blueprints:
        if not b.late:
            pending += [b.parts, [r for _, r in b.attributes], [r for _, r in b.slots]]
    while pending:
        recipe = pending.pop()
        if isinstance(recipe, Fresh) and blueprints[recipe.index].late:
            raise Drop("rebuild", "an object that keeps an iterator of a dict or a set")
        if type(recipe) in (list, tuple):
            pending.extend(recipe)


def _distinct(segment: Segment) -> list[tuple[int, ...]]:
    """Groups of objects that were different ones, where that mattered: compared by identity, or one was changed."""
    groups: list[tuple[int, ...]] = []
    ledger = segment.ledger
    if len(ledger.identity_used) > 1:
        groups.append(tuple(sorted(ledger.identity_used)))
    members: dict[type, list[int]] = {type(change.target): [] for change in ledger.changes.values()}
    for origin, value in ledger.known_objects() if members else ():
        if type(value) in members:
            members[type(value)].append(origin.index)
    groups += [tuple(group) for group in members.values() if len(group) > 1]
    return groups
