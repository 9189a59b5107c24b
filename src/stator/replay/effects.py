"""Effects of a replay: how each kind is made, what is kept of before, and how that is put back.

Enters: effects of a recording, and a writer of expressions. Leaves: lines of Python for the replay, and the functions
that they call. What holds: an effect is made once or not at all. Whatever is raised while effects are made, by an
effect or by a signal between two of them, they are all taken back, and the function can run again from where it was;
if even that fails, the exception is marked, and nobody makes them a second time.
"""

from __future__ import annotations

import collections
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..errors import mark_half_done
from ..interrupts import is_from_outside
from ..recording import Effect, Fact, Recording, ValueRef
from ..support.guard_readers import class_dict

MISSING = object()  # there was nothing before
_MOST_COPIED = 1000


class ValueWriter(Protocol):
    """What writes the values of effects."""

    recording: Recording

    def constant(self, value: Any) -> str: ...
    def expression(self, ref: ValueRef) -> str: ...
    def items(self, refs: list[Any]) -> str: ...
    def pairs(self, pairs: list[Any]) -> str: ...


# ------------------------------------------------------------------------------------- functions that replays call


def dict_of(mapping: dict[Any, Any]) -> type:
    """The class whose methods write to a mapping as it is: an OrderedDict keeps an order of its own."""
    return collections.OrderedDict if isinstance(mapping, collections.OrderedDict) else dict


def delete(mapping: dict[Any, Any], key: Any) -> None:
    """The key is not there afterwards; the segment may have written to it without looking whether it was before."""
    if dict.__contains__(mapping, key):
        base: Any = dict_of(mapping)
        base.__delitem__(mapping, key)


def delete_entry(cls: type, name: str) -> None:
    """Likewise for the entry of a class."""
    if name in class_dict(cls):
        type.__delattr__(cls, name)


def refill(mapping: dict[Any, Any], contents: dict[Any, Any]) -> None:
    base: Any = dict_of(mapping)
    base.clear(mapping)
    for key, value in contents.items():
        base.__setitem__(mapping, key, value)


def contents(mapping: dict[Any, Any]) -> dict[Any, Any]:
    base: Any = dict_of(mapping)
    return dict(base.items(mapping))


def contents_or(mapping: dict[Any, Any], key: Any) -> Any:
    """All contents, in their order; of a large dict, which nobody copies in every call, the one value that goes."""
    return contents(mapping) if len(mapping) <= _MOST_COPIED else (dict.get(mapping, key, MISSING),)


def cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def slot_value(slot: types.MemberDescriptorType, owner: Any) -> Any:
    try:
        return slot.__get__(owner)
    except AttributeError:
        return MISSING


def gradient(tensor: Any) -> Any:
    if tensor.is_leaf:
        return tensor.grad
    with warnings.catch_warnings():  # torch warns of those that have none
        warnings.simplefilter("ignore")
        return tensor.grad


def entry(cls: type, name: str) -> Any:
    return class_dict(cls).get(name, MISSING)


# ----------------------------------------------------------------------------------------------- and in failing


def put_back_item(mapping: dict[Any, Any], key: Any, former: Any) -> None:
    if former is MISSING:
        delete(mapping, key)
    elif dict.get(mapping, key, MISSING) is not former:
        base: Any = dict_of(mapping)
        base.__setitem__(mapping, key, former)


def put_back_key(mapping: dict[Any, Any], key: Any, former: Any) -> None:
    """A key of a large dict comes back at its end."""
    if type(former) is tuple:
        put_back_item(mapping, key, former[0])
    else:
        refill(mapping, former)


def put_back_end(items: list[Any], length: int) -> None:
    list.__delitem__(items, slice(length, None))


def put_back_list(items: list[Any], former: list[Any]) -> None:
    list.__setitem__(items, slice(None), former)


def put_back_set(items: set[Any], former: list[Any]) -> None:
    set.clear(items)
    set.update(items, former)


def put_back_deque(items: collections.deque[Any], former: list[Any]) -> None:
    collections.deque.clear(items)
    collections.deque.extend(items, former)


def put_back_cell(cell: types.CellType, former: Any) -> None:
    if former is not MISSING:
        cell.cell_contents = former
    elif cell_contents(cell) is not MISSING:
        del cell.cell_contents


def put_back_slot(slot: types.MemberDescriptorType, owner: Any, former: Any) -> None:
    if former is not MISSING:
        slot.__set__(owner, former)
    elif slot_value(slot, owner) is not MISSING:
        slot.__delete__(owner)


def put_back_gradient(tensor: Any, former: Any) -> None:
    tensor.grad = former


def put_back_entry(cls: type, name: str, former: Any) -> None:
    if former is MISSING:
        delete_entry(cls, name)
    else:
        type.__setattr__(cls, name, former)


def put_back(error: BaseException, *kept: tuple[Any, ...]) -> None:
    """The effects that were made, and those that were not yet, are taken back: the last one first. What comes from
    outside meanwhile goes on when that is done."""
    late: BaseException | None = None
    for function, *arguments in reversed(kept):
        try:
            try:
                function(*arguments)
            except BaseException as other:
                if isinstance(other, Exception) and not is_from_outside(other):
                    raise
                late = other
                function(*arguments)
        except BaseException:
            mark_half_done(error)
    if late is not None:
        raise late


# --------------------------------------------------------------------------------------------------- as text


class EffectRule(NamedTuple):
    """One kind of effect: its line, an expression that keeps what it changes, the function that puts that back and what
    it takes besides. `t` is the text of the target."""

    make: Callable[[ValueWriter, str, Effect], str]
    keep: Callable[[ValueWriter, str, Effect], str]
    back: Callable[..., None]
    where: Callable[[ValueWriter, str, Effect], str]


def _is_plain_dict(writer: ValueWriter, effect: Effect) -> bool:
    checks = writer.recording.origins[effect.target].checks
    return any(check.fact is Fact.TYPE and check.expected is dict for check in checks)


def _set_item(m: ValueWriter, t: str, e: Effect) -> str:
    key, value = m.constant(e.key), m.expression(e.value)
    return f"{t}[{key}] = {value}" if _is_plain_dict(m, e) else f"dict_of({t}).__setitem__({t}, {key}, {value})"


def _former_item(m: ValueWriter, t: str, e: Effect) -> str:
    return f"dict.get({_of_item(m, t, e)}, MISSING)"


def _of_item(m: ValueWriter, t: str, e: Effect) -> str:
    return f"{t}, {m.constant(e.key)}"


def _of_keyed(m: ValueWriter, t: str, e: Effect) -> str:
    return f"{t}, {m.expression(e.value[0])}"


def _of_slot(m: ValueWriter, t: str, e: Effect) -> str:
    return f"{m.constant(e.key)}, {t}"


def _whole(m: ValueWriter, t: str, e: Effect) -> str:
    return t


_ITEM = (put_back_item, _of_item)
RULES: dict[str, EffectRule] = {
    "set item": EffectRule(_set_item, _former_item, *_ITEM),
    "set keyed": EffectRule(
        lambda m, t, e: f"dict_of({t}).__setitem__({t}, {m.items(e.value)})",
        lambda m, t, e: f"dict.get({_of_keyed(m, t, e)}, MISSING)",
        put_back_item,
        _of_keyed,
    ),
    "delete item": EffectRule(
        lambda m, t, e: f"delete({_of_item(m, t, e)})",
        lambda m, t, e: f"contents_or({_of_item(m, t, e)})",
        put_back_key,
        _of_item,
    ),
    "delete keyed": EffectRule(
        lambda m, t, e: f"delete({t}, {m.expression(e.value)})",
        lambda m, t, e: f"contents_or({t}, {m.expression(e.value)})",
        put_back_key,
        lambda m, t, e: f"{t}, {m.expression(e.value)}",
    ),
    "refill dict": EffectRule(
        lambda m, t, e: f"refill({t}, {{{m.pairs(e.value)}}})", lambda m, t, e: f"contents({t})", refill, _whole
    ),
    "extend": EffectRule(
        lambda m, t, e: f"list.extend({t}, ({m.items(e.value)}))", lambda m, t, e: f"len({t})", put_back_end, _whole
    ),
    "refill list": EffectRule(
        lambda m, t, e: f"list.__setitem__({t}, slice(None), ({m.items(e.value)}))",
        lambda m, t, e: f"list.copy({t})",
        put_back_list,
        _whole,
    ),
    "refill set": EffectRule(
        lambda m, t, e: f"items = ({m.items(e.value)}); set.clear({t}); set.update({t}, items)",
        lambda m, t, e: f"[*set.__iter__({t})]",
        put_back_set,
        _whole,
    ),
    "refill deque": EffectRule(
        lambda m, t, e: f"items = ({m.items(e.value)}); deque.clear({t}); deque.extend({t}, items)",
        lambda m, t, e: f"[*deque.__iter__({t})]",
        put_back_deque,
        _whole,
    ),
    "set cell": EffectRule(
        lambda m, t, e: f"{t}.cell_contents = {m.expression(e.value)}",
        lambda m, t, e: f"cell_contents({t})",
        put_back_cell,
        _whole,
    ),
    "clear cell": EffectRule(
        lambda m, t, e: f"del {t}.cell_contents", lambda m, t, e: f"cell_contents({t})", put_back_cell, _whole
    ),
    "set grad": EffectRule(
        lambda m, t, e: f"{t}.grad = {m.expression(e.value)}",
        lambda m, t, e: f"gradient({t})",
        put_back_gradient,
        _whole,
    ),
    "set slot": EffectRule(
        lambda m, t, e: f"{m.constant(e.key)}.__set__({t}, {m.expression(e.value)})",
        lambda m, t, e: f"slot_value({_of_slot(m, t, e)})",
        put_back_slot,
        _of_slot,
    ),
    "set attribute": EffectRule(
        lambda m, t, e: f"type.__setattr__({_of_item(m, t, e)}, {m.expression(e.value)})",
        lambda m, t, e: f"entry({_of_item(m, t, e)})",
        put_back_entry,
        _of_item,
    ),
    "delete attribute": EffectRule(
        lambda m, t, e: f"delete_entry({_of_item(m, t, e)})",
        lambda m, t, e: f"entry({_of_item(m, t, e)})",
        put_back_entry,
        _of_item,
    ),
}
NAMES: dict[str, Any] = {
    "MISSING": MISSING,
    **{
        function.__name__: function
        for function in (
            *(dict_of, delete, delete_entry, refill, contents, contents_or, cell_contents, slot_value, gradient, entry),
            *(put_back, mark_half_done),
            *dict.fromkeys(rule.back for rule in RULES.values()),
        )
    },
}


class EffectLines(NamedTuple):
    """The effects of a replay as text."""

    keep: list[str]  # what is kept, before any of them
    make: list[str]
    back: str  # what puts it back


def write(writer: ValueWriter, effects: list[tuple[str, Effect]]) -> EffectLines:
    """Of these effects, each with the text of its target."""
    keep, make, back = [], [], []
    for number, (target, effect) in enumerate(effects):
        rule = RULES[effect.kind]
        make.append(rule.make(writer, target, effect))
        keep.append(f"k{number} = {rule.keep(writer, target, effect)}")
        back.append(f"({rule.back.__name__}, {rule.where(writer, target, effect)}, k{number})")
    return EffectLines(keep, make, f"put_back(error, {', '.join(back)})")
