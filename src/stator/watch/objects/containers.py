"""Reading and changing outside containers.

Expose before use: before C code iterates, compares, copies or changes an outside container, its structure is guarded
and all its children are noted in the ledger. So whatever C code then gives back is known or fresh.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ... import _native
from ...recording import Edge, Fact, Origin
from ...support.builtin_types import BASES
from ...support.guard_readers import container_kind, has_own_hash, keys_of
from ..graph_break import BreakGraph
from .constants import is_constant
from .ledger import COMPOSED, Change, Ledger

_MOST_ORIGINS = 100_000  # of a recording: to guard so many values takes a millisecond or two in every call


def _initial(ledger: Ledger, container: Any) -> Any:
    """The contents as they were when the segment began."""
    change = ledger.changed(container)
    return container if change is None else change.initial


# -- reading


def expose(ledger: Ledger, origin: Origin, container: Any) -> None:
    """Guard the structure and note every child. Anything but a container is only touched."""
    ledger.touch(origin, container)
    kind = container_kind(type(container))
    if kind is None:
        return
    change = ledger.changed(container)
    if change is not None:
        if change.structure_noted:
            return
        change.structure_noted = True
    initial = container if change is None else change.initial
    size = _size(initial)
    if len(ledger.origins) + size > _MOST_ORIGINS:
        raise BreakGraph("too-many-guards", f"a {type(container).__qualname__} of {size:,} items")
    _EXPOSE[kind](ledger, origin, initial)


def _expose_sequence(ledger: Ledger, origin: Origin, initial: Any) -> None:
    items = list(_plain_items(initial, container_kind(type(initial)) or "list"))
    ledger.require(origin, Fact.LEN, len(items))
    for index, item in enumerate(items):
        ledger.read(origin, Edge.ITEM, index, item)


def _expose_dict(ledger: Ledger, origin: Origin, initial: dict[Any, Any]) -> None:
    try:
        keys = tuple(keys_of(initial))
    except KeyError:  # the hash of a key is another one than it was
        raise BreakGraph("object-keys", "a dict from outside does not find its own keys") from None
    if not all(map(is_constant, keys)):
        raise BreakGraph("object-keys", "a dict from outside has objects as keys")
    ledger.require(origin, Fact.KEYS, keys)
    for key in keys:
        ledger.read(origin, Edge.ITEM, key, dict.__getitem__(initial, key))


def _expose_set(ledger: Ledger, origin: Origin, initial: Any) -> None:
    items = tuple(_plain_items(initial, "set"))
    if not all(map(is_constant, items)):
        raise BreakGraph("object-keys", "a set from outside holds objects")
    ledger.require(origin, Fact.KEYS, items)


_EXPOSE: dict[str, Callable[[Ledger, Origin, Any], None]] = {
    "list": _expose_sequence,
    "tuple": _expose_sequence,
    "deque": _expose_sequence,
    "dict": _expose_dict,
    "set": _expose_set,
}


def expose_deep(ledger: Ledger, value: Any, leaf: Callable[[Any], None] | None = None) -> None:
    """Expose a value and all containers in it, fresh ones in between included; which objects they hold matters too."""
    seen: set[int] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        kind = container_kind(type(value))
        if id(value) in seen:
            continue
        if kind is None or is_constant(value):
            if is_constant(value):
                if type(value) in COMPOSED:
                    ledger.use_identity(value)
            elif kind is None:
                _note_leaf(ledger, value)
                if leaf is not None:
                    leaf(value)
                if issubclass(type(value), BaseException):
                    seen.add(id(value))
                    pending.extend(_ARGUMENTS(value))
            continue
        seen.add(id(value))
        origin = ledger.find(value)
        if origin is not None:
            expose(ledger, origin, value)
        pending.extend(dict.values(value) if kind == "dict" else _plain_items(value, kind))


_ARGUMENTS: Callable[[Any], tuple[Any, ...]] = vars(BaseException)["args"].__get__


def _note_leaf(ledger: Ledger, value: Any) -> None:
    """An object in a container that is compared or formatted: its type, its value and which one it is."""
    origin = ledger.find(value)
    if origin is not None:
        ledger.touch(origin, value)
        if type(value) is types.MethodType:
            ledger.read(origin, Edge.ATTR, "__self__", value.__self__)
            ledger.use_identity(value.__self__)
    ledger.use_identity(value)


def _plain_items(value: Any, kind: str) -> Iterable[Any]:
    """The items of a container, whatever a subclass says of itself."""
    base: Any = frozenset if issubclass(type(value), frozenset) else BASES[kind]
    items: Iterable[Any] = base.__iter__(value)
    return items


def measure(ledger: Ledger, origin: Origin, container: Any) -> None:
    """Only the length matters."""
    ledger.touch(origin, container)
    if container_kind(type(container)) is not None:
        ledger.require(origin, Fact.LEN, _size(_initial(ledger, container)))


def _size(value: Any) -> int:
    """The length of a container, whatever a subclass says of itself."""
    base: Any = next(base for base in (*BASES.values(), frozenset) if issubclass(type(value), base))
    size: int = base.__len__(value)
    return size


def read_key(ledger: Ledger, origin: Origin, mapping: dict[Any, Any], key: Any) -> Origin | None:
    """One key of a dict is looked up: its value, or its absence, is noted."""
    ledger.touch(origin, mapping)
    change = ledger.changed(mapping)
    constant = type(key) is str or is_constant(key)
    if constant and not _can_be_key(key):
        return None  # whatever is in there: the lookup raises
    if change is not None and (change.structure_noted or ((constant or has_own_hash(key)) and key in change.written)):
        return None
    if not constant:
        return _read_keyed(ledger, origin, mapping, key)
    initial = mapping if change is None else change.initial
    if dict.__contains__(initial, key):
        return ledger.read(origin, Edge.ITEM, key, dict.__getitem__(initial, key))
    ledger.require(origin, Fact.LACKS, key)
    return None


def _can_be_key(constant: Any) -> bool:
    """Not a slice, nor a tuple with one in it, before CPython 3.12."""
    try:
        hash(constant)
    except TypeError:
        return False
    return True


def _read_keyed(ledger: Ledger, origin: Origin, mapping: dict[Any, Any], key: Any) -> Origin | None:
    """`read_key` for an object as the key. One made inside cannot be in there, unless the segment has put it there."""
    if not has_own_hash(key):
        expose(ledger, origin, mapping)
        return None
    known = ledger.find(key)
    if known is None:
        return None
    ledger.use_identity(key)
    initial = _initial(ledger, mapping)
    if dict.__contains__(initial, key):
        return ledger.read(origin, Edge.KEYED, known, dict.__getitem__(initial, key))
    _require_keyed(ledger, origin, known, present=False)
    return None


def read_index(ledger: Ledger, origin: Origin, sequence: Any, index: Any) -> None:
    """One position of a list or tuple is read."""
    ledger.touch(origin, sequence)
    change = ledger.changed(sequence)
    if change is not None and change.structure_noted:
        return
    initial = sequence if change is None else change.initial
    base: Any = tuple if issubclass(type(initial), tuple) else list
    if type(index) is int and 0 <= index < base.__len__(initial):
        ledger.read(origin, Edge.ITEM, index, base.__getitem__(initial, index))
    else:
        expose(ledger, origin, sequence)


def contains(ledger: Ledger, origin: Origin, container: Any, item: Any) -> None:
    """`item in container`."""
    if issubclass(type(container), dict) and is_constant(item):
        ledger.touch(origin, container)
        change = ledger.changed(container)
        if change is not None and (item in change.written or change.structure_noted):
            return
        initial = container if change is None else change.initial
        ledger.require(origin, Fact.HAS if dict.__contains__(initial, item) else Fact.LACKS, item)
    elif issubclass(type(container), dict) and has_own_hash(item):
        _contains_keyed(ledger, origin, container, item)
    else:
        expose_deep(ledger, container)
        ledger.use_identity(item)


def _require_keyed(ledger: Ledger, mapping: Origin, key: Origin, *, present: bool) -> None:
    later = max(mapping, key, key=lambda origin: origin.index)
    ledger.require(later, Fact.HAS_KEYED if present else Fact.LACKS_KEYED, (mapping, key))


def require_presence(ledger: Ledger, origin: Origin, initial: dict[Any, Any], key: Any) -> None:
    """Whether a key was in a dict when the segment began must be so again."""
    present = dict.__contains__(initial, key)
    if is_constant(key):
        ledger.require(origin, Fact.HAS if present else Fact.LACKS, key)
    elif (known := ledger.find(key)) is not None:
        ledger.use_identity(key)
        _require_keyed(ledger, origin, known, present=present)


def _contains_keyed(ledger: Ledger, origin: Origin, mapping: dict[Any, Any], key: Any) -> None:
    ledger.touch(origin, mapping)
    change = ledger.changed(mapping)
    known = ledger.find(key)
    if known is None or (change is not None and (key in change.written or change.structure_noted)):
        return
    ledger.use_identity(key)
    present = dict.__contains__(_initial(ledger, mapping), key)
    _require_keyed(ledger, origin, known, present=present)


# -- changing


def let_go(value: Any) -> None:
    """A place is about to hold something else. Recordings keep what they know alive; if somebody would notice the end
    of this object, it must come when the program brings it about. (Of tensors torch itself keeps weak references.)"""
    if is_constant(value) or issubclass(type(value), torch.Tensor):
        return
    if weakref.getweakrefcount(value) or _native.mro_lookup(type(value), "__del__") is not _native.MISSING:
        raise BreakGraph("let-go", type(value).__qualname__)


def _copy(container: Any, kind: str) -> Any:
    if kind == "dict":
        plain = dict.copy(container)
        return {key: plain[key] for key in keys_of(container)} if issubclass(type(container), OrderedDict) else plain
    if kind == "set":
        return set(_plain_items(container, kind))
    return list(_plain_items(container, kind))


def change_key(ledger: Ledger, origin: Origin, mapping: dict[Any, Any], key: Any, *, remove: bool = False) -> None:
    """One key of a dict is about to be set or deleted."""
    if not is_constant(key) and not has_own_hash(key):
        change_all(ledger, origin, mapping)
        return
    ledger.touch(origin, mapping)
    let_go(dict.get(mapping, key))
    change = _begin(ledger, origin, mapping, "dict")
    change.written[key] = None
    if remove:
        change.removed.add(key)


def append(ledger: Ledger, origin: Origin, items: Any) -> None:
    """Something is about to be put at the end of a list: its present contents do not matter."""
    ledger.touch(origin, items)
    _begin(ledger, origin, items, "list")


def change_all(ledger: Ledger, origin: Origin, container: Any, gone: Iterable[Any] | None = None) -> None:
    """Anything about a container may be about to change. `gone`: the items that it lets go of; None: any of them."""
    kind = container_kind(type(container))
    if kind is None or kind == "tuple":
        raise BreakGraph("unknown-callable", f"changes an outside {type(container).__name__}")
    expose(ledger, origin, container)
    if gone is None:
        gone = dict.values(container) if kind == "dict" else _plain_items(container, kind)
    for item in gone:
        let_go(item)
    change = _begin(ledger, origin, container, kind)
    change.whole = True
    change.structure_noted = True


def items_at(container: Any, key: Any) -> Iterable[Any] | None:
    """What an index or a slice of a list or deque stands for, or None if that is not certain. Who changes one place
    after the other is not to pay for the whole container each time."""
    base: Any = next((base for base in (list, deque) if issubclass(type(container), base)), None)
    if base is not None and type(key) is int:
        count = base.__len__(container)
        return [base.__getitem__(container, key)] if -count <= key < count else ()
    if base is list and type(key) is slice and {type(key.start), type(key.stop), type(key.step)} <= {int, type(None)}:
        return [] if key.step == 0 else list.__getitem__(container, key)  # else it is going to raise
    return None


def _begin(ledger: Ledger, origin: Origin, container: Any, kind: str) -> Change:
    change = ledger.changed(container)
    if change is None:
        change = ledger.change(kind, origin, container)
        change.initial = _copy(container, kind)
    return change
