"""Tables of objects by identity, and weak ones.

Of keys that are the program's no `__hash__` or `__eq__`, not even a metaclass's, is asked; equal code objects of
different functions are different ones, and large ones are not compared. Weak tables let C code alone run when an object
dies: what arrives in a callback of Python code (an exception that another thread puts in) would reach nobody.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class ByIdentity(Generic[K, T]):
    """Notes on objects that are kept."""

    def __init__(self, pairs: Iterable[tuple[K, T]] = ()) -> None:
        self._notes: dict[int, tuple[K, T]] = {id(key): (key, note) for key, note in pairs}

    def __contains__(self, key: object) -> bool:
        return id(key) in self._notes

    def __len__(self) -> int:
        return len(self._notes)

    def __getitem__(self, key: K) -> T:
        return self._notes[id(key)][1]

    def __setitem__(self, key: K, note: T) -> None:
        self._notes[id(key)] = (key, note)

    def get(self, key: K, default: T | None = None) -> T | None:
        known = self._notes.get(id(key))
        return default if known is None else known[1]


class WeakNotes(Generic[K, T]):
    """Notes on objects, kept for as long as these live."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[weakref.ref[K], T]] = {}

    def __contains__(self, key: object) -> bool:
        return id(key) in self._notes

    def get(self, key: K) -> T | None:
        known = self._notes.get(id(key))
        return None if known is None else known[1]

    def put(self, key: K, note: T) -> None:
        number, notes = id(key), self._notes
        notes[number] = (weakref.ref(key, functools.partial(notes.pop, number)), note)


class Alive(Generic[K]):
    """Objects, for as long as they live."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[K]] = {}

    def __contains__(self, key: object) -> bool:
        return id(key) in self._references

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[K]:
        found = [reference() for reference in [*self._references.values()]]
        return iter([key for key in found if key is not None])

    def add(self, key: K) -> None:
        number, references = id(key), self._references
        references[number] = weakref.ref(key, functools.partial(references.pop, number))


class WeakValues(Generic[K, T]):
    """Objects by keys of our own, for as long as they live. (Hashing a key may take Python code: not in a callback.)"""

    def __init__(self) -> None:
        self._references: dict[K, weakref.ref[T]] = {}
        self._keys: dict[int, K] = {}  # by reference
        self._dead: list[weakref.ref[T]] = []

    def __len__(self) -> int:
        self._forget()
        return len(self._references)

    def __setitem__(self, key: K, value: T) -> None:
        self._forget()
        reference = weakref.ref(value, self._dead.append)
        self._keys[id(reference)] = key
        self._references[key] = reference

    def get(self, key: K) -> T | None:
        reference = self._references.get(key)
        return None if reference is None else reference()

    def _forget(self) -> None:
        while self._dead:
            reference = self._dead.pop()
            key = self._keys.pop(id(reference))
            if self._references.get(key) is reference:
                del self._references[key]
