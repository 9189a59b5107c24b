"""Classes and C functions that the call itself has made.

A guard that names one can hold in no other call, and would keep it alive: a recording with such a guard is not kept.
What is older than a run, or is found in its module, is not looked at twice.

How the age is told: objects that the collector has not come across yet are linked in the order in which they were
made, and it rests while a run is recorded. Behind a collection that the program asks for nothing is known of the
order: then nothing counts as new.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType
from typing import Any

from ...recording import Edge, Origin
from ...support.by_identity import Alive
from ...support.guard_readers import is_open
from ...support.python_source import home

_old: Alive[Any] = Alive()


def newborn(origins: Iterable[Origin], marker: Any) -> Any:
    """A class or function in guards that is younger than `marker`, an object that the collector knows; or None. Without
    a marker: one that the collector has not come across yet."""
    named = {id(value): value for origin in origins for value in _named_by(origin) if _may_be_new(value)}
    young = _younger_than(marker) if named else set()
    found = next((value for key, value in named.items() if key in young), None)
    if found is None:
        for value in named.values():
            _old.add(value)
    return found


def _named_by(origin: Origin) -> list[Any]:
    values = [check.expected for check in origin.checks]
    return [*values, origin.key] if origin.edge is Edge.CONST else values


def _may_be_new(value: Any) -> bool:
    if issubclass(type(value), type):
        if not is_open(value):
            return False
    elif type(value) is not BuiltinFunctionType:
        return False
    return value not in _old and not _is_found(value)


def _is_found(value: Any) -> bool:
    """Is it under its own name in its module? No metaclass is asked."""
    module, path = home(value)
    if type(module) is not str or type(path) is not str:
        return False
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        is_class = issubclass(type(found), type)
        namespace = _NAMESPACE_OF_TYPE.__get__(found) if is_class else getattr(found, "__dict__", {})
        found = namespace.get(name)
    return found is value


_NAMESPACE_OF_TYPE: Any = type.__dict__["__dict__"]


def _younger_than(marker: Any) -> set[int]:
    """Identities of what was made after the marker. Nothing, if the collector does not know that any more."""
    if marker is None:
        return set(map(id, gc.get_objects(0)))
    objects = gc.get_objects(0)
    place = next((index for index, value in enumerate(objects) if value is marker), len(objects))
    return set(map(id, objects[place + 1 :]))
