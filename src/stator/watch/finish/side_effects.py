"""What a segment changed outside, as effects: differences between what was there and what is there at its end.

Enters: the changes that the ledger noted. Leaves: effects that set again what was written, with refs to the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ...recording import (
    Effect,
)
from ...support.guard_readers import (
    class_dict,
    has_own_hash,
    keys_of,
)
from ..objects.constants import is_constant
from ..objects.containers import expose, require_presence
from ..objects.ledger import Change, Ledger
from .rebuild import NOTHING, Rebuilder, is_made


def _dict_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    now, initial, target = change.target, change.initial, change.origin.index
    written = dict(change.written)
    if change.whole:
        for key in (*initial, *keys_of(now)):
            if key not in initial or key not in now or initial[key] is not dict.__getitem__(now, key):
                written[key] = None
    # C code alone goes through all keys: there may be a million.
    kept = list(filter(dict.__contains__.__get__(now), initial))
    order = list(keys_of(now))
    if change.removed:
        kept = [key for key in kept if key not in change.removed]
    named = all(is_constant(key) or has_own_hash(key) for key in written)
    as_before = all(map(operator.is_, order, kept)) or all(map(_is_key, order, kept))
    if len(order) < len(kept) or not as_before or not named:
        expose(rebuild.ledger, change.origin, now)  # all of it is going to be written: it must be what it was
        pairs = [(rebuild.ref(key), rebuild.ref(dict.__getitem__(now, key))) for key in order]
        return [Effect("refill dict", target, None, pairs)]
    # What was deleted and set again has moved to the end: it is deleted here too, before it is set. What was written
    # without a look at it may be there or not: then it is deleted, or set, in either case.
    gone = [key for key in written if key not in now or key in change.removed]
    effects = [
        Effect("delete item", target, key, None)
        if is_constant(key)
        else Effect("delete keyed", target, None, rebuild.ref(key))
        for key in gone
        if key in initial or key in change.removed
    ]
    for key in _in_order(change, order, written, rebuild.ledger):
        value = rebuild.ref(dict.__getitem__(now, key))
        if is_constant(key) and not is_made(key):
            effects.append(Effect("set item", target, key, value))
        else:
            effects.append(Effect("set keyed", target, None, [rebuild.ref(key), value]))
    return effects


def _is_key(one: Any, other: Any) -> bool:
    """Are they one key of a dict?"""
    return one is other or (is_constant(one) and is_constant(other) and bool(one == other))


def _in_order(change: Change, order: list[Any], written: dict[Any, None], ledger: Ledger) -> list[Any]:
    """The keys to set, so that new ones come to lie in the order that the program gave them."""
    moved = [key for key in order if key in written and key in change.removed] if change.removed else []
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
        added = rebuild.refs(now[size:])
        return [Effect("extend", change.origin.index, None, added)] if added else []
    return [Effect("refill list", change.origin.index, None, rebuild.refs(now))]


def _set_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    if len(change.target) == len(change.initial) and all(map(operator.is_, change.target, change.initial)):
        return []
    return [Effect("refill set", change.origin.index, None, rebuild.refs(change.target))]


def _deque_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    return [Effect("refill deque", change.origin.index, None, rebuild.refs(change.target))]


def _cell_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    try:
        value = change.target.cell_contents
    except ValueError:
        return [Effect("clear cell", change.origin.index, None, NOTHING)]
    return [Effect("set cell", change.origin.index, None, rebuild.ref(value))]


def _grad_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    with torch._C.DisableTorchFunction():
        return [Effect("set grad", change.origin.index, None, rebuild.ref(change.target.grad))]


def _slot_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    target = change.origin.index
    return [Effect("set slot", target, slot, rebuild.ref(slot.__get__(change.target))) for slot in change.written]


def _class_effects(change: Change, rebuild: Rebuilder) -> list[Effect]:
    namespace = class_dict(change.target)
    target = change.origin.index
    return [
        Effect("set attribute", target, name, rebuild.ref(namespace[name]))
        if name in namespace
        else Effect("delete attribute", target, name, None)
        for name in change.written
    ]


EFFECTS: dict[str, Callable[[Change, Rebuilder], list[Effect]]] = {
    "dict": _dict_effects,
    "list": _list_effects,
    "set": _set_effects,
    "deque": _deque_effects,
    "cell": _cell_effects,
    "slot": _slot_effects,
    "grad": _grad_effects,
    "class": _class_effects,
}
