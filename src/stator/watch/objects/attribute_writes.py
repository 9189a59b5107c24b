"""Writing attributes: which of the program's objects change, noted before CPython writes.

Enters: an object of the program and a name. Leaves: a change in the ledger. Where the write ends in Python code
(property, `__setattr__`, descriptor) nothing more is noted: that code's own frame is watched.
"""

from __future__ import annotations

import types
from typing import Any

from ... import _native
from ...recording import Edge, Origin
from ..graph_break import BreakGraph
from .attributes import GENERIC_MODULES, MISSING, Attributes, TensorBase, has_method
from .classes import Classes
from .containers import change_key, let_go, read_key
from .ledger import Ledger

_SET_UNSEEN = frozenset({"real", "imag", "__class__", "__dict__"})  # of tensors, past the tensor mode


def _writes_plainly(setter: Any) -> bool:
    """Is this C code `object.__setattr__`, or one that does the same?"""
    owner = getattr(setter, "__objclass__", None)
    return owner is not None and owner.__module__ in GENERIC_MODULES


class AttributeWrites:
    def __init__(self, ledger: Ledger, classes: Classes, attributes: Attributes) -> None:
        self._ledger = ledger
        self._classes = classes
        self._attributes = attributes

    def write(self, owner: Any, name: str, *, delete: bool = False) -> None:
        """`owner.name = …` or `del owner.name` is about to be executed."""
        cls = type(owner)
        slot = "__delattr__" if delete else "__setattr__"
        setter = self._classes.entry(cls, slot)
        if issubclass(type(setter), types.FunctionType):
            self._classes.note(cls)
            return
        if not _writes_plainly(setter) and self._ledger.find(owner) is not None:
            raise BreakGraph("unguardable", f"attributes of {cls.__name__} are set by C code")
        if issubclass(type(owner), type):
            self._write_class(owner, name)
            return
        self._write_instance(owner, name, delete)

    def write_plain(self, owner: Any, name: str, *, delete: bool = False) -> None:
        """As `object.__setattr__` does it."""
        if issubclass(type(owner), type):
            return  # raises TypeError by itself
        self._write_instance(owner, name, delete)

    def _write_instance(self, owner: Any, name: str, delete: bool) -> None:
        origin = self._ledger.find(owner)
        cls = type(owner)
        if origin is not None:
            self._ledger.touch(origin, owner)
        found = self._classes.entry(cls, name)
        if found is not MISSING and self._classes.is_data(found):
            self._write_through(found, cls, name, owner, origin, delete)
        elif origin is not None:
            space = self._attributes.instance_dict(origin, owner)
            if space is None:
                return  # raises AttributeError by itself
            if delete:
                read_key(self._ledger, *space, name)
            change_key(self._ledger, *space, name, remove=delete)

    def _write_through(self, found: Any, cls: type, name: str, owner: Any, origin: Origin | None, delete: bool) -> None:
        if issubclass(type(found), property):
            place = self._classes.value(cls, name, found)
            part = "fdel" if delete else "fset"
            function = getattr(found, part)
            if place is not None and function is not None:
                self._ledger.read(place, Edge.ATTR, part, function)
            if function is not None and not issubclass(type(function), types.FunctionType):
                raise BreakGraph("unknown-callable", f"the setter of {cls.__qualname__}.{name}")
        elif type(found) is types.MemberDescriptorType and self._classes.is_open(found.__objclass__):
            if origin is not None:
                if delete:
                    raise BreakGraph("unguardable", f"slot {name} is deleted")
                let_go(getattr(owner, name, None))
                change = self._ledger.change("slot", origin, owner)
                change.written[found] = None
        elif self._classes.is_open(type(found)):
            self._classes.note(type(found))
            self._classes.value(cls, name, found)
        elif issubclass(cls, TensorBase):
            if name in _SET_UNSEEN:
                raise BreakGraph("attribute-set-on-tensor", name)
            return  # the tensor mode sees it
        elif origin is not None or name in ("__class__", "__dict__"):
            raise BreakGraph("unguardable", f"{cls.__name__}.{name} is set through C code")

    def _write_class(self, owner: type, name: str) -> None:
        if not self._classes.is_open(owner):
            return  # raises TypeError by itself
        if name.startswith("__") and name.endswith("__"):
            raise BreakGraph("unguardable", f"special method {owner.__name__}.{name} is changed")
        origin = self._ledger.constant(owner)
        found = _native.mro_lookup(owner, name)
        if callable(found) or has_method(type(found), "__get__"):
            raise BreakGraph("unguardable", f"{owner.__name__}.{name} is changed")
        change = self._ledger.change("class", origin, owner)
        change.written[name] = None
        self._attributes.look_again(owner, name)
