"""Reading attributes: what CPython's generic lookup is going to find, noted before it looks.

The lookup is repeated by hand on the class dicts and the instance dict, running no code. Where it ends in Python code
(property, `__getattr__`, descriptor) nothing more is noted: that code's own frame is watched.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from ... import _native
from ...recording import Edge, Fact, Origin
from ...support.builtin_types import TYPE_MODELS
from ..graph_break import BreakGraph
from .classes import Classes
from .constants import is_constant
from .containers import read_index, read_key
from .ledger import Ledger

MISSING = _native.MISSING
TensorBase = torch._C.TensorBase
_MODULE_GETATTR = torch.nn.Module.__dict__["__getattr__"]
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_FRAMES_AND_OWNERS = (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
GENERIC_MODULES = frozenset("builtins collections functools operator itertools types re _contextvars".split())
_start_of_super: Callable[[Any], type] = super.__dict__["__thisclass__"].__get__  # past `super`'s own lookup
_class_of_super: Callable[[Any], type | None] = super.__dict__["__self_class__"].__get__
_instance_of_super: Callable[[Any], Any] = super.__dict__["__self__"].__get__
_getter_of: Callable[[property], Any] = property.__dict__["fget"].__get__
# What a class method binds without asking Python code.
_BOUND_PLAINLY = frozenset({types.FunctionType, types.MethodType, types.BuiltinFunctionType, _native.Compiled})
_OWN_LOOKUP = (type, super)  # builtin types whose attribute lookup is not the generic one

# C attributes that are parts of the object, fixed or guarded as children: reading them runs nothing.
_PARTS = {model.type: model.attributes for model in TYPE_MODELS if model.attributes}


def _is_generic(getter: Any) -> bool:
    """Is this `__getattribute__` the generic lookup, as all builtin types but a few have it?"""
    if not issubclass(type(getter), types.WrapperDescriptorType):
        return False
    owner = getter.__objclass__
    return owner.__module__ in GENERIC_MODULES and owner not in _OWN_LOOKUP


def namespace_of(owner: Any) -> dict[str, Any] | None:
    """The instance dict; None if there is none. No code of the program runs."""
    found = _native.mro_lookup(type(owner), "__dict__")
    if found is _native.MISSING:
        return None
    if not issubclass(type(found), (types.GetSetDescriptorType, types.MemberDescriptorType)):
        raise BreakGraph("unguardable", f"{type(owner).__qualname__}.__dict__ is not the instance dict")
    try:
        namespace: dict[str, Any] = found.__get__(owner)
    except AttributeError:
        return None
    return namespace


def fresh_namespace(owner: Any) -> dict[str, Any]:
    namespace = namespace_of(owner)
    return {} if namespace is None else namespace


def has_method(cls: type, name: str) -> bool:
    return _native.mro_lookup(cls, name) is not MISSING


class _Plan(enum.IntEnum):
    """What a class with the generic lookup says of a name; the instance dict is asked first in all these cases.

    `_native/shortcuts.c` reads by these plans.
    """

    ABSENT = 0
    IN_CLASS = 1
    REGISTERED = 2  # absent, and then `nn.Module.__getattr__` looks among the module's parts (see `read_registered`)


# What is read of their instances follows from which one it is, and that is guarded.
_NEVER_CHANGE = (types.CodeType, torch.dtype, torch.layout, torch.memory_format)


class Attributes:
    def __init__(self, ledger: Ledger, classes: Classes) -> None:
        self._ledger = ledger
        self._classes = classes
        self._plans: dict[type, dict[str, int]] = ledger.plans
        self._plain: set[tuple[int, str]] = set()  # (origin, name) that `read_plain` has noted
        self._supers: set[tuple[type, type, str]] = set()  # (class, class before, name) read through `super`
        self._tables: dict[int, list[tuple[Origin | None, dict[str, Any]]]] = {}
        self._spaces: dict[int, tuple[Origin, dict[str, Any]]] = {}  # by index of the owner's origin

    def let_go(self) -> None:
        """The segment is over: nothing that was found is needed any more."""
        for found in (self._plans, self._plain, self._supers, self._tables, self._spaces):
            found.clear()
        self._classes.let_go()

    def look_again(self, cls: type, name: str) -> None:
        """A class has another entry than before."""
        self._classes.forget(cls, name)
        self._plans.clear()
        self._plain.clear()
        self._supers.clear()

    # -- reading

    def read(self, owner: Any, name: str) -> None:
        """`owner.name` is about to be evaluated."""
        if type(owner) is super:
            self._read_of_super(owner, name)
        elif self._ledger.read_attribute(owner, name):
            return
        elif issubclass(type(owner), type):
            self._read_of_class(owner, name)
        elif type(owner) is types.ModuleType:
            self._read_of_module(owner, name)
        else:
            self._read_of_instance(owner, name)

    def read_plain(self, owner: Any, name: str) -> None:
        """As `object.__getattribute__` does it, whatever the class says."""
        origin = self._ledger.find(owner)
        if origin is None:
            self._read_generic(owner, name)
        elif (origin.index, name) not in self._plain or self._is_changed(origin, owner):
            self._read_generic(owner, name)
            self._plain.add((origin.index, name))

    def _is_changed(self, origin: Origin, owner: Any) -> bool:
        """Has the program written to this object?"""
        space = self._spaces.get(origin.index)
        return (space is not None and self._ledger.changed(space[1]) is not None) or (
            self._ledger.changed(owner, slots=True) is not None
        )

    def instance_dict(self, origin: Origin, owner: Any) -> tuple[Origin, dict[str, Any]] | None:
        """The instance dict of a known object, itself known."""
        space = self._spaces.get(origin.index)
        if space is not None:
            return space
        namespace = namespace_of(owner)
        if namespace is None:
            return None
        if type(namespace) is not dict:
            raise BreakGraph("unguardable", f"{type(owner).__name__}.__dict__ is not a dict")
        space = self._ledger.read(origin, Edge.ATTR, "__dict__", namespace), namespace
        self._ledger.touch(*space)
        self._spaces[origin.index] = space
        return space

    def _read_of_instance(self, owner: Any, name: str) -> None:
        cls = type(owner)
        getter = self._classes.entry(cls, "__getattribute__")
        if not _is_generic(getter):
            if issubclass(type(getter), types.FunctionType):
                self._classes.note(cls)
                return
            if self._ledger.find(owner) is not None:
                raise BreakGraph("unguardable", f"attributes of {cls.__name__} are looked up by C code")
        self._read_generic(owner, name)
        found = self._classes.entry(cls, name)
        if found is MISSING:
            registered = self._classes.entry(cls, "__getattr__") is _MODULE_GETATTR
            self._plan(cls, name, _Plan.REGISTERED if registered else _Plan.ABSENT)
        elif issubclass(type(found), types.FunctionType) or is_constant(found):
            self._plan(cls, name, _Plan.IN_CLASS)

    def _plan(self, cls: type, name: str, plan: _Plan) -> None:
        self._plans.setdefault(cls, {})[name] = plan

    def _read_generic(self, owner: Any, name: str) -> None:
        cls = type(owner)
        origin = self._ledger.find(owner)
        if cls is types.FunctionType and name == "__globals__":
            self._ledger.constant(owner.__globals__)
        if cls in _FRAMES_AND_OWNERS and name.startswith(("f_", "gi_", "cr_", "ag_")):
            raise BreakGraph("unguardable", f"{cls.__name__}.{name}")
        if origin is not None:
            self._ledger.touch(origin, owner)
            if name in _PARTS.get(cls, ()):
                self._read_part(origin, owner, name)
                return
        found = self._classes.entry(cls, name)
        if found is not MISSING and self._classes.has(found, "__get__") and self._classes.is_data(found):
            self._read_through(found, cls, name, owner, origin)
            return
        if origin is not None:
            space = self.instance_dict(origin, owner)
            if space is not None:
                read_key(self._ledger, *space, name)
                if name in space[1]:
                    return
        elif name in fresh_namespace(owner):
            return
        if found is not MISSING:
            self._read_through(found, cls, name, owner, origin)
        else:
            self._fall_back(owner, cls, name, origin)

    def _read_part(self, origin: Origin, owner: Any, name: str) -> None:
        try:
            value = getattr(owner, name)
        except ValueError:  # an empty cell
            self._ledger.require(origin, Fact.UNSET, None)
        else:
            self._ledger.read(origin, Edge.ATTR, name, value)

    def _read_through(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        """The class entry decides: a descriptor, or a plain value of the class."""
        kind = type(found)
        reader = _DESCRIPTORS.get(kind)
        if reader is None and self._classes.is_open(kind):
            getter = self._classes.entry(kind, "__get__")
            if getter is not MISSING:
                self._classes.note(kind)
            if not issubclass(type(getter), types.FunctionType):  # else its frame is watched
                reader = next((row for base, row in _DESCRIPTORS.items() if issubclass(kind, base)), None)
        if reader is not None:
            reader(self, found, cls, name, owner, origin)
        else:
            self._classes.value(cls, name, found)

    def _read_property(self, found: property, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        self._pass_property(found, self._classes.value(cls, name, found), f"{cls.__qualname__}.{name}")

    def _pass_property(self, found: property, place: Origin | None, name: str) -> None:
        """A property calls its getter. (A subclass may have something else under that name.)"""
        getter = _getter_of(found)
        if place is not None and getter is not None:
            self._ledger.read(place, Edge.ATTR, "fget", getter)
        if getter is not None and not issubclass(type(getter), types.FunctionType):
            raise BreakGraph("unknown-callable", f"the getter of {name}")

    def _read_wrapper(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        self._pass_wrapper(found, self._classes.value(cls, name, found), f"{cls.__qualname__}.{name}")

    def _pass_wrapper(self, found: Any, place: Origin | None, name: str) -> None:
        """A static method hands out its function; a class method binds it, by the function's own `__get__`."""
        function = found.__func__
        if place is not None:
            place = self._ledger.read(place, Edge.ATTR, "__func__", function)
        if issubclass(type(found), staticmethod) or type(function) in _BOUND_PLAINLY:
            return
        if issubclass(type(function), property):
            self._pass_property(function, place, name)
        elif self._classes.is_open(type(function)):
            self._classes.note(type(function))
        elif has_method(type(function), "__get__"):
            raise BreakGraph("unknown-callable", f"the class method {name}")

    def pass_descriptor(self, found: Any, owner: Any) -> None:
        """`found.__get__(owner, …)` is about to be called, of a property, a static method or a class method."""
        origin, name = self._ledger.find(found), type(found).__qualname__
        if origin is not None:
            self._ledger.touch(origin, found)
        if not issubclass(type(found), property):
            self._pass_wrapper(found, origin, name)
        elif owner is not None:
            self._pass_property(found, origin, name)

    def _read_member(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        if origin is None:
            return
        change = self._ledger.changed(owner, slots=True)
        if change is not None and found in change.written:
            return
        try:
            value = found.__get__(owner)
        except AttributeError:
            self._ledger.require(origin, Fact.NO_SLOT, found)
            return
        self._ledger.read(origin, Edge.SLOT, found, value)

    def _read_field(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        """A field of a named tuple."""
        if origin is not None:
            read_index(self._ledger, origin, owner, found.__reduce__()[1][0])

    def _read_getset(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        if origin is None or name == "__class__":
            return
        if name == "__dict__":
            self.instance_dict(origin, owner)
        elif issubclass(cls, TensorBase):
            return  # the tensor mode sees it
        elif cls in _NEVER_CHANGE:
            return  # a constant, and so is all that it keeps
        elif issubclass(cls, BaseException) and name in ("__traceback__", "__context__", "__cause__", "args"):
            raise BreakGraph("unguardable", f"{name} of an outside exception")
        elif name in ("__name__", "__qualname__", "__doc__", "__module__"):
            self._ledger.read(origin, Edge.SLOT, found, found.__get__(owner))
        else:
            raise BreakGraph("unguardable", f"{cls.__name__}.{name} is kept by C code")

    def _read_method(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None) -> None:
        self._classes.value(cls, name, found)

    def _fall_back(self, owner: Any, cls: type, name: str, origin: Origin | None) -> None:
        fallback = self._classes.entry(cls, "__getattr__")
        if fallback is MISSING:
            return
        self._classes.note(cls)
        if not issubclass(type(fallback), types.FunctionType) and origin is not None:
            raise BreakGraph("unguardable", f"{cls.__qualname__}.__getattr__ is C code")

    def read_registered(self, owner: Any, name: str) -> None:
        """`nn.Module.__getattr__` is entered: it finds a parameter, buffer or submodule. (Its frame is not watched.)"""
        ledger = self._ledger
        if ledger.read_registered(owner, name):
            return
        origin = ledger.find(owner)
        for place, entries in self._tables_of(owner, origin):
            found = name in entries
            if place is not None:
                if ledger.changed(entries) is not None:
                    read_key(ledger, place, entries, name)
                elif found:
                    ledger.read(place, Edge.ITEM, name, entries[name])
                else:
                    ledger.lacks(place, name)
            if found:
                return

    def _tables_of(self, owner: Any, origin: Origin | None) -> list[tuple[Origin | None, dict[str, Any]]]:
        """The dicts in which a module registers its parts, known ones with their origin."""
        if origin is not None and origin.index in self._tables:
            return self._tables[origin.index]
        ledger, namespace = self._ledger, owner.__dict__
        tables: list[tuple[Origin | None, dict[str, Any]]] = []
        space = self.instance_dict(origin, owner) if origin is not None else None
        for table in _MODULE_TABLES:
            if space is not None:
                read_key(ledger, *space, table)
            entries = namespace.get(table)
            if entries is not None:
                place = ledger.find(entries)
                if place is not None:
                    ledger.touch(place, entries)
                tables.append((place, entries))
        if origin is not None and ledger.changed(namespace) is None:
            self._tables[origin.index] = tables
        return tables

    # -- classes, modules, super

    def _read_of_class(self, owner: type, name: str) -> None:
        meta = type(owner)
        if issubclass(type(self._classes.entry(meta, "__getattribute__")), types.FunctionType):
            self._classes.note(meta)
        else:
            self.read_of_class_plainly(owner, name)

    def read_of_class_plainly(self, owner: type, name: str) -> None:
        """As `type.__getattribute__` does it, whatever the metaclass says."""
        meta = type(owner)
        found_in_meta = self._classes.entry(meta, name)
        if found_in_meta is not MISSING and self._classes.is_data(found_in_meta):
            if issubclass(type(found_in_meta), (types.GetSetDescriptorType, types.MemberDescriptorType)):
                self._read_part_of_class(owner, name)
                return
            self._read_through(found_in_meta, meta, name, owner, None)
            return
        found = self._classes.entry(owner, name)
        if found is not MISSING:
            self._read_through(found, owner, name, owner, None)
        elif found_in_meta is not MISSING:
            self._read_through(found_in_meta, meta, name, owner, None)
        elif self._classes.is_open(meta):
            self._classes.note(meta)

    def _read_part_of_class(self, owner: type, name: str) -> None:
        """What `type` itself keeps: names, bases, annotations. The whole dict of a class is too much to guard."""
        if not self._classes.is_open(owner) or name == "__class__":
            return
        if name == "__dict__":
            raise BreakGraph("unguardable", f"{owner.__qualname__}.__dict__")
        try:
            value = getattr(owner, name)
        except AttributeError:
            raise BreakGraph("unguardable", f"{owner.__qualname__}.{name} is not there") from None
        self._ledger.read(self._ledger.constant(owner), Edge.ATTR, name, value)

    def _read_of_module(self, owner: types.ModuleType, name: str) -> None:
        namespace = owner.__dict__
        origin = self._ledger.constant(namespace)
        self._ledger.require(self._ledger.constant(owner), Fact.TYPE, types.ModuleType)  # another may be assigned
        if name == "__dict__":
            return
        read_key(self._ledger, origin, namespace, name)
        if name not in namespace:
            read_key(self._ledger, origin, namespace, "__getattr__")
            if not issubclass(type(namespace.get("__getattr__")), (types.FunctionType, type(None))):
                raise BreakGraph("unguardable", f"{owner.__name__}.__getattr__ is C code")

    def _read_of_super(self, owner: Any, name: str) -> None:
        start, cls = _start_of_super(owner), _class_of_super(owner)
        if cls is None or (cls, start, name) in self._supers:
            return
        found = self._classes.entry_behind(cls, start, name)
        if found is MISSING:
            return
        place, label = self._classes.place_behind(cls, start, name, found), f"{start.__qualname__}.{name}"
        if issubclass(type(found), (types.MemberDescriptorType, types.GetSetDescriptorType)):
            instance = _instance_of_super(owner)
            _DESCRIPTORS[type(found)](self, found, cls, name, instance, self._ledger.find(instance))
            return
        self._supers.add((cls, start, name))
        if issubclass(type(found), property):
            self._pass_property(found, place, label)
        elif issubclass(type(found), (staticmethod, classmethod)):
            self._pass_wrapper(found, place, label)
        if self._classes.is_open(type(found)):
            self._classes.note(type(found))


_DESCRIPTORS: dict[type, Callable[[Attributes, Any, type, str, Any, Origin | None], None]] = {
    property: Attributes._read_property,
    staticmethod: Attributes._read_wrapper,
    classmethod: Attributes._read_wrapper,
    types.MemberDescriptorType: Attributes._read_member,
    types.GetSetDescriptorType: Attributes._read_getset,
    types.FunctionType: Attributes._read_method,
    types.MethodDescriptorType: Attributes._read_method,
    types.WrapperDescriptorType: Attributes._read_method,
    types.ClassMethodDescriptorType: Attributes._read_method,
    type(inspect.Attribute.__dict__["name"]): Attributes._read_field,
}
