"""Reading classes: guards on single class entries, and on all special methods of a class at once.

A class is open when its dict can change (made by a class statement). Reads of other classes need no guard.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from ... import _native
from ...recording import Edge, Fact, Origin
from ...support.guard_readers import class_dict, is_open, special_methods
from ..graph_break import BreakGraph
from .constants import constant_fact
from .ledger import Ledger

MISSING = _native.MISSING
_C_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


_FROM_C = frozenset(  # special methods that a class statement may take from `object` or torch as they are
    "__new__ __init__ __hash__ __eq__ __ne__ __repr__ __str__ __format__ __setattr__ __delattr__ __getattribute__ "
    "__reduce__ __reduce_ex__ __init_subclass__ __subclasshook__ __class_getitem__ __torch_function__ "
    "__torch_dispatch__".split()
)


def _can_be_watched(name: str, value: Any) -> bool:
    """Does C code that looks up this special method run Python code, or C code of `object`'s own?"""
    if issubclass(type(value), (staticmethod, classmethod)):
        value = value.__func__
    if issubclass(type(value), (types.FunctionType, property, type, _native.Compiled)) or not callable(value):
        return True
    if issubclass(type(value), _C_DESCRIPTORS) and value.__objclass__ is torch._C.TensorBase:
        return True  # the tensor mode sees it
    return name in _FROM_C or name == "__getattr__"  # which `watch.attributes` looks at


class Classes:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._noted: set[int] = set()
        self._entries: dict[tuple[int, str], Any] = {}
        self._specials: dict[int, tuple[type, str]] = {}
        self._symbols: dict[tuple[int, str], Any] = {}  # in place of numbers: where each was read first

    is_open = staticmethod(is_open)

    def let_go(self) -> None:
        """The segment is over: nothing that was found is needed any more."""
        for found in (self._entries, self._specials, self._symbols):
            found.clear()

    def has(self, found: Any, name: str) -> bool:
        """Is a class entry a descriptor with this method? That of an open class may get one, or lose it."""
        return self.entry(type(found), name) is not MISSING

    def is_data(self, found: Any) -> bool:
        """Is it a data descriptor, which comes before the instance dict?"""
        return self.has(found, "__set__") or self.has(found, "__delete__")

    def entry(self, cls: type, name: str) -> Any:
        """The MRO entry `name` of a class (or MISSING), guarded to stay the one it is."""
        memo = (id(cls), name)
        try:
            return self._entries[memo]
        except KeyError:
            pass
        found = self._entries[memo] = _native.mro_lookup(cls, name)
        start = self._start_of(cls, name)
        if start is not None and is_open(start) and not self._fixed(start, name, found):
            place = self._ledger.constant(start)
            if found is MISSING:
                self._ledger.require(place, Fact.NO_ENTRY, name)
            elif constant_fact(found) is not None or _native.mro_lookup(type(found), "__get__") is not MISSING:
                origin = self._ledger.read(place, Edge.MRO, name, found)
                replaced = type(found) in (int, float) and _native.mro_lookup(cls, name) is not found  # by a symbol
                if replaced:
                    self._symbols[id(start), name] = _native.mro_lookup(cls, name)
                elif not any(check.fact in (Fact.IS, Fact.EQUAL) for check in origin.checks):
                    self._ledger.check(origin, Fact.IS, found)
            else:
                origin = self._ledger.read(place, Edge.MRO, name, found)
                if self._symbols.get((id(start), name)) is not found:
                    self._ledger.touch(origin, found)
        return found

    @staticmethod
    def _fixed(cls: type, name: str, found: Any) -> bool:
        """Is the entry found before any open class is asked?"""
        if found is MISSING:
            return False
        for base in cls.__mro__:
            if is_open(base):
                return False
            if name in class_dict(base):
                return True
        return False

    def value(self, cls: type, name: str, found: Any) -> Origin | None:
        """The class entry itself is the value read; its place, if the class is open."""
        start = self._start_of(cls, name) if is_open(cls) else None
        if start is None or not is_open(start):
            return None
        return self._ledger.read(self._ledger.constant(start), Edge.MRO, name, found)

    def _writes(self, cls: type, name: str) -> bool:
        """Has the program itself set, or deleted, this entry of the very class?"""
        change = self._ledger.changed(cls)
        return change is not None and name in change.written

    def _start_of(self, cls: type, name: str) -> type | None:
        """The class from which on a guard looks for an entry as it was before the call; None: the program has set it.

        Where the program has set it in some class of the MRO, the others are guarded to have it, or not to have it, so
        that the lookup ends where it does now."""
        if not self._ledger.changes or not any(self._writes(base, name) for base in cls.__mro__):
            return cls
        self._ledger.read(self._ledger.constant(cls), Edge.ATTR, "__mro__", cls.__mro__)
        for base in cls.__mro__:
            has = name in class_dict(base)
            if self._writes(base, name):
                if has:
                    return None
                continue
            if is_open(base):
                self._ledger.require(self._ledger.constant(base), Fact.OWN_ENTRY, (name, has))
            if has:
                return base
        return None

    def forget(self, cls: type, name: str) -> None:
        """The entry is about to be written by the program: later reads find what it wrote."""
        self._entries = {memo: found for memo, found in self._entries.items() if memo[1] != name}

    def entry_behind(self, cls: type, start: type, name: str) -> Any:
        """What `super(start, …)` finds in the MRO of `cls`."""
        mro = cls.__mro__
        if self._ledger.changes and any(self._writes(base, name) for base in mro):
            raise BreakGraph("unguardable", f"super().{name}, which was changed before")
        for base in mro[mro.index(start) + 1 :] if start in mro else ():
            namespace = class_dict(base)
            if name in namespace:
                found = namespace[name]
                self.place_behind(cls, start, name, found)
                return found
        place = self._ledger.constant(cls)
        self._ledger.read(place, Edge.ATTR, "__mro__", mro)
        for base in mro[mro.index(start) + 1 :] if start in mro else ():
            if is_open(base):
                self._ledger.require(self._ledger.constant(base), Fact.NO_ENTRY, name)
        return MISSING  # an AttributeError follows

    def place_behind(self, cls: type, start: type, name: str, found: Any) -> Origin:
        origin = self._ledger.read(self._ledger.constant(cls), Edge.SUPER, (start, name), found)
        if not origin.checks or origin.checks[0].fact is not Fact.IS:
            self._ledger.require(origin, Fact.IS, found)
        return origin

    def note(self, cls: type) -> None:
        """C code is about to look for special methods of this class."""
        if id(cls) in self._noted or not is_open(cls):
            return
        self._noted.add(id(cls))
        specials = special_methods(cls)
        place = self._ledger.constant(cls)
        self._ledger.require(place, Fact.SPECIALS, (_native.type_version(cls), specials))
        for name, value in (*specials.items(), ("__init__", _native.mro_lookup(cls, "__init__"))):
            if not _can_be_watched(name, value):
                raise BreakGraph("unguardable", f"{cls.__qualname__}.{name} is C code")
            function = value.__func__ if issubclass(type(value), (staticmethod, classmethod)) else value
            function = function.fallback if type(function) is _native.Compiled else function
            if issubclass(type(function), types.FunctionType):
                self._specials[id(function)] = (cls, name)

    def note_construction(self, cls: type) -> None:
        """C code is about to call this class, or may do so."""
        if is_open(cls):
            self.note(cls)
            self.entry(cls, "__init__")

    def place_of_special(self, function: Any) -> Origin | None:
        """The origin of a function that C code reached as a special method of a noted class."""
        known = self._specials.get(id(function))
        if known is None:
            return None
        cls, name = known
        found = _native.mro_lookup(cls, name)
        place = self._ledger.read(self._ledger.constant(cls), Edge.MRO, name, found)
        if found is not function and issubclass(type(found), (staticmethod, classmethod)):
            place = self._ledger.read(place, Edge.ATTR, "__func__", found.__func__)
        elif type(found) is _native.Compiled:
            place = self._ledger.read(place, Edge.ATTR, "fallback", found.fallback)
        return place
