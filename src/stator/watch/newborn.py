"""Classes and C functions that the call itself has made.

A guard that names one can hold in no other call, and would keep it alive: a recording with such a guard is not kept.
What is older than a run, or is found in its module, is not looked at twice.

How the age is told: objects that the collector knows are linked in the order in which they were made, until it runs.
It rests while a run is recorded; if the program makes it run, nobody can tell.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from types import BuiltinFunctionType
from typing import Any

from ..facts import is_open
from ..recording import Edge, Origin

_old: weakref.WeakSet[Any] = weakref.WeakSet()


class Beginning:
    """Of a run: what is younger was made by it."""

    def __init__(self) -> None:
        self._collections = _collections()

    def younger(self) -> set[int]:
        """Identities of what was made since. Nothing, if the collector has run."""
        objects = gc.get_objects(0)
        place = next((index for index, value in enumerate(objects) if value is self), None)
        if place is None or self._collections != _collections():
            return set()
        return set(map(id, objects[place + 1 :]))


def _collections() -> list[int]:
    return [generation["collections"] for generation in gc.get_stats()]


def newborn(origins: Iterable[Origin], beginning: Beginning | None) -> Any:
    """A class or function in guards that was made since; None if there is none, or nobody can tell."""
    if beginning is None:
        return None
    named = {id(value): value for origin in origins for value in _named_by(origin) if _may_be_new(value)}
    young = beginning.younger() if named else set()
    found = next((value for key, value in named.items() if key in young), None)
    if found is None:
        _old.update(named.values())
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
    """Is it under its own name in its module?"""
    found: Any = sys.modules.get(value.__module__ or "")
    for name in value.__qualname__.split("."):
        namespace = getattr(found, "__dict__", {})
        found = namespace.get(name)
    return found is value
