"""Values that an instruction or C code is going to read: noted just before it does.

Enters: a value, and how much of it is going to be looked at. Leaves: checks in the ledger, or a `BreakGraph`. Whether a
callable reads nothing but its arguments, the table of calls says, which is handed in with the segment.
"""

from __future__ import annotations

import functools
import operator
import types
from typing import Any

import torch

from ... import _native
from ...recording import Edge, Fact, Origin
from ...support.builtin_types import TYPE_MODELS, types_where
from ...support.guard_readers import VALUE_TYPES, class_dict, container_kind, is_open
from ..graph_break import BreakGraph
from ..objects.constants import is_constant
from ..objects.containers import change_key, contains, expose, expose_deep, read_index, read_key
from ..objects.fingerprints import is_tensor
from ..objects.functions_entered import note_function
from ..objects.identity import Identity
from ..objects.ledger import COMPOSED, HELD
from ..objects.repr_reads import asks_for_repr, shows_address
from ..observe import policy
from ..segment import Segment
from .side_effect_calls import break_for_type, name_of

C_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)

_WATCHED_CALLABLES = (types.FunctionType, type, operator.itemgetter)
_KeyWrapper = type(functools.cmp_to_key(lambda a, b: 0))

# Objects of C types which C code may hold and pass on without reading anything that needs a guard.
_INERT = (*types_where(lambda model: model.inert), _native.Compiled)


# What says which one it is: methods are made anew all the time and compared by these.
_PARTS = {model.type: model.told_by for model in TYPE_MODELS if model.told_by}


def _is_plain_class(cls: type) -> bool:
    """Is everything that an instance holds in its dict, its slots, or in a builtin container or value?"""
    base = next(base for base in cls.__mro__ if not is_open(base))
    return issubclass(base, _OPEN_BASES) or base is object or container_kind(base) is not None


# (Not exceptions: what they were made of is kept in C, and shown.)
_OPEN_BASES = (*VALUE_TYPES, types.ModuleType, types.SimpleNamespace, type, torch._C.TensorBase)


def is_trusted_behind_cache(cached: Any) -> bool:
    """Is this a library's function? Libraries cache what does not depend on the program, and changes nothing."""
    code = getattr(getattr(cached, "__wrapped__", None), "__code__", None)
    return type(code) is types.CodeType and policy.is_trusted(code.co_filename)


def touch(s: Segment, value: Any) -> None:
    """The type of a value matters, and special methods of its class may be looked up."""
    origin = s.ledger.find(value)
    if origin is not None:
        s.ledger.touch(origin, value)
    if is_open(type(value)):
        s.classes.note(type(value))


def consult(s: Segment, value: Any) -> None:
    """C code may read this value and, if it is a container, its children."""
    cls = type(value)
    if cls is Identity:
        raise BreakGraph("identity", "id")
    if cls is types.CellType:
        raise BreakGraph(
            "unguardable", "C code looks into a cell"
        )  # also into one made inside, which may hold anything
    origin = s.ledger.find(value)
    if origin is not None:
        expose(s.ledger, origin, value)
        if cls is types.MappingProxyType:
            _consult_proxied(s, origin, value)
            return
        for part in () if is_constant(value) else _PARTS.get(cls, ()):
            s.ledger.read(origin, Edge.ATTR, part, getattr(value, part))
            s.ledger.use_identity(getattr(value, part))
        if not is_open(cls) and container_kind(cls) is None and not _is_inert(value):
            known = "outside-iterator" if hasattr(cls, "__next__") else "unguardable"
            raise BreakGraph(break_for_type(cls, known), cls.__qualname__)
    if is_open(cls):
        s.classes.note(cls)
        if origin is not None and not _is_plain_class(cls):
            raise BreakGraph("unguardable", f"{cls.__qualname__} keeps something in C")


def _consult_proxied(s: Segment, origin: Any, proxy: Any) -> None:
    """C code reads a mapping through a proxy from outside."""
    mapping = _native.proxied.__get__(proxy)
    if container_kind(type(mapping)) is None:
        raise BreakGraph("unguardable", "a mappingproxy of something else than a dict")
    s.ledger.read(origin, Edge.SLOT, _native.proxied, mapping)
    consult_deep(s, mapping)


def consult_getter(s: Segment, getter: Any) -> None:
    """An `itemgetter` and the like: what it gets is in it for good, so which one it is says all."""
    origin = s.ledger.find(getter)
    if origin is None:
        return
    if not all(map(is_constant, getter.__reduce__()[1])):
        raise BreakGraph("unguardable", f"{type(getter).__name__} of an object")
    s.ledger.check(origin, Fact.IS, getter)


def consult_callable(s: Segment, value: Any) -> None:
    """C code is going to call this value with arguments that nobody sees: it must not read more than them."""
    while issubclass(type(value), types.MethodType):
        value = value.__func__
    if type(value) is _native.Compiled:
        s.table.call(s, None, value, (), ())
        return
    if issubclass(type(value), operator.itemgetter):
        consult_getter(s, value)
        return
    if issubclass(type(value), type):
        s.classes.note_construction(value)
    if issubclass(type(value), (types.FunctionType, type)) or value is None or not callable(value):
        return
    if type(value) is _KeyWrapper and s.ledger.find(value) is None:
        return
    parts = bound_parts(value)
    if parts is not None:
        _consult_bound(s, *parts)
        return
    if issubclass(type(_native.mro_lookup(type(value), "__call__")), (types.FunctionType, _native.Compiled)):
        touch(s, value)
    elif not s.table.reads_arguments_only(value):
        raise BreakGraph("unknown-callable", f"{name_of(value)}, called by C code")


def _consult_bound(s: Segment, method: Any, owner: Any) -> None:
    """C code is going to call a C method: it may read its owner all the way, and change it if it is fresh."""
    if (s.ledger.find(owner) is not None and not s.table.reads_arguments_only(method)) or s.table.rule_for(
        method
    ) is None:
        raise BreakGraph("unknown-callable", f"{name_of(method)}, called by C code")
    consult_deep(s, owner)


def consult_deep(s: Segment, value: Any) -> None:
    """C code may read this value and everything in it, and compare the objects that it finds."""
    consult(s, value)
    expose_deep(s.ledger, value, functools.partial(consult, s))


def note_text(s: Segment, value: Any, method: str) -> None:
    """C code makes a text of this value, by one of its methods."""
    consult_deep(s, value)
    if shows_address(value, method):
        raise BreakGraph("identity", "repr")


def note_texts_in(s: Segment, template: Any, values: Any) -> None:
    """`template % values`"""
    method = "__repr__" if asks_for_repr(template) else "__str__"
    shown = values if issubclass(type(values), tuple) else [values]
    for value in shown:
        note_text(s, value, method)
        for part in dict.values(value) if issubclass(type(value), dict) else ():
            note_text(s, part, method)


def _is_inert(value: Any) -> bool:
    if is_constant(value) or is_tensor(value):
        return True
    told = type(value) not in HELD or type(value) in _PARTS  # what is compared by its parts has to say which
    return told and issubclass(type(value), _INERT)


def use_as_key(s: Segment, key: Any) -> None:
    """A value is used as a key: by equality, hence perhaps by identity."""
    if not is_constant(key) or type(key) in COMPOSED:
        s.ledger.use_identity(key)
    if not is_constant(key):
        touch(s, key)
        if container_kind(type(key)) is not None:
            consult_deep(s, key)


def look_for(s: Segment, item: Any, container: Any) -> None:
    origin = s.ledger.find(container)
    if origin is not None and container_kind(type(container)) is not None:
        contains(s.ledger, origin, container, item)
    elif type(container) is not dict:
        consult_deep(s, container)
    touch(s, container)
    use_as_key(s, item)


def move_on(s: Segment, iterator: Any) -> None:
    """An iterator moves on; an outside one would have to be moved by the replay too."""
    mover = _native.mro_lookup(type(iterator), "__next__")
    if s.ledger.find(iterator) is not None and not issubclass(type(mover), types.FunctionType):
        generator = issubclass(type(iterator), (types.GeneratorType, types.CoroutineType))
        raise BreakGraph("outside-generator" if generator else "outside-iterator", type(iterator).__name__)
    touch(s, iterator)


def touch_type(s: Segment, value: Any) -> None:
    origin = s.ledger.find(value)
    if origin is not None:
        s.ledger.touch(origin, value)


def read_item(s: Segment, container: Any, key: Any) -> None:
    """`container[key]` is about to be read."""
    origin = s.ledger.find(container)
    kind = container_kind(type(container))
    if not is_constant(key):
        touch(s, key)
    if origin is None:
        touch(s, container)
        if kind == "dict":
            use_as_key(s, key)
    elif kind == "dict":
        look_up(s, origin, container, key)
    elif kind in ("list", "tuple"):
        read_index(s.ledger, origin, container, key)
        touch(s, container)
    elif issubclass(type(container), type):
        touch(s, container)
    elif not is_tensor(container):
        consult(s, container)


def look_up(s: Segment, origin: Origin, mapping: Any, key: Any) -> None:
    touch(s, mapping)
    use_as_key(s, key)
    if hasattr(type(mapping), "__missing__") and not is_open(type(mapping)) and key not in mapping:
        factory = mapping.default_factory
        s.ledger.read(origin, Edge.ATTR, "default_factory", factory)
        if not issubclass(type(factory), (type, types.FunctionType, type(None))):
            raise BreakGraph("unknown-callable", f"{name_of(factory)}, called by C code")
        consult_callable(s, factory)
        read_key(s.ledger, origin, mapping, key)
        change_key(s.ledger, origin, mapping, key)  # defaultdict makes an entry
    else:
        read_key(s.ledger, origin, mapping, key)


def in_library(s: Segment) -> bool:
    """Does the instruction about to run stand in torch or in the standard library?"""
    place = s.ledger.place
    return place is not None and policy.is_trusted(place.code.co_filename)


def in_operation_wrapper(s: Segment) -> bool:
    """Does the instruction about to run stand in torch's own wrapper of an operation?"""
    place = s.ledger.place
    return place is not None and policy.hands_over(place.code)


def note_arguments(s: Segment, function: types.FunctionType, given: int, names: tuple[str, ...]) -> None:
    """A function is about to be called. If it does not take these arguments no frame follows that would note it."""
    origin = s.ledger.find(function)
    if origin is not None and not _native.surely_binds(function, given, names):
        note_function(s.ledger, origin, function)
        for part in ("__defaults__", "__kwdefaults__"):
            s.ledger.read(origin, Edge.ATTR, part, getattr(function, part))


def may_be_given_up(s: Segment, value: Any) -> bool:
    """Is it one that the segment was given by the frames, and that no variable of theirs has any more?"""
    origin = s.ledger.find(value) if s.point is not None else None
    if origin is None or origin.edge is not Edge.LOCAL:
        return False
    return not any(value is kept for entry in s.watcher.frames()[0] for kept in entry[5])


def has_written(s: Segment) -> bool:
    """Has the segment changed anything outside so far?"""
    return bool(s.ledger.changes) or s.tracer.mutates


def depend_on(s: Segment, tensor: Any) -> None:
    """The program's course depends on the facts of this tensor."""
    if is_tensor(tensor):
        with torch._C.DisableTorchFunction():
            s.tracer.lookup(tensor)


def bound_parts(func: Any) -> tuple[Any, Any] | None:
    """A bound C method as (unbound descriptor, self)."""
    if not issubclass(type(func), (types.BuiltinFunctionType, types.MethodWrapperType)):
        return None
    owner = func.__self__
    if owner is None or issubclass(type(owner), types.ModuleType) or type(owner).__module__ == "pybind11_builtins":
        return None
    if type(func) is types.MethodWrapperType:
        return class_dict(func.__objclass__)[func.__name__], owner
    classes = type(owner).__mro__ + (owner.__mro__ if issubclass(type(owner), type) else ())
    for cls in classes:  # the first C descriptor of that name: what stands before it in the MRO was passed by `super`
        found = class_dict(cls).get(func.__name__)
        if issubclass(type(found), C_DESCRIPTORS):
            return found, owner
    return None
