"""Functions whose frames start: their code, defaults and cells are read.

Enters: a function, and where it is from, if it is from outside. Leaves: what the ledger requires of it.
"""

from __future__ import annotations

import types

from ...recording import Edge, Fact, Origin
from .containers import read_key
from .ledger import Ledger


def note_function(ledger: Ledger, origin: Origin, function: types.FunctionType, *, bound: bool = False) -> None:
    """A known function is entered: its code, defaults (unless all arguments are given) and closure matter."""
    ledger.require(origin, Fact.CODE, (function.__code__, function.__globals__))
    if function.__defaults__ and not bound:
        _note_defaults(ledger, ledger.read(origin, Edge.ATTR, "__defaults__", function.__defaults__), function)
    if function.__kwdefaults__ and not bound:
        _note_named_defaults(
            ledger, ledger.read(origin, Edge.ATTR, "__kwdefaults__", function.__kwdefaults__), function
        )
    if function.__closure__:
        place = ledger.read(origin, Edge.ATTR, "__closure__", function.__closure__)
        for index, cell in enumerate(function.__closure__):
            ledger.read(place, Edge.ITEM, index, cell)


def note_made_function(ledger: Ledger, function: types.FunctionType) -> None:
    """A function that the segment has made is entered. Its defaults are outside where a break lies between."""
    place = ledger.find(function.__defaults__) if function.__defaults__ else None
    if place is not None:
        _note_defaults(ledger, place, function)
    place = ledger.find(function.__kwdefaults__) if function.__kwdefaults__ else None
    if place is not None:
        _note_named_defaults(ledger, place, function)


def _note_defaults(ledger: Ledger, place: Origin, function: types.FunctionType) -> None:
    if not place.checks or place.checks[0].fact is not Fact.EQUAL:
        ledger.require(place, Fact.LEN, len(function.__defaults__ or ()))
        for index, value in enumerate(function.__defaults__ or ()):
            ledger.read(place, Edge.ITEM, index, value)


def _note_named_defaults(ledger: Ledger, place: Origin, function: types.FunctionType) -> None:
    defaults = function.__kwdefaults__ or {}
    for name in defaults:
        read_key(ledger, place, defaults, name)
