"""The handlers of the probes: what each instruction is going to read or change, noted just before it executes.

Nothing here alters the course of the program; `BreakGraph` says that the recording cannot go on.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

from ... import _native
from ...recording import Edge, Fact
from ...support.guard_readers import container_kind, is_open
from ..graph_break import BreakGraph
from ..models.reads import (
    C_DESCRIPTORS,
    consult,
    consult_deep,
    look_for,
    look_up,
    move_on,
    note_text,
    note_texts_in,
    read_item,
    touch,
    touch_type,
    use_as_key,
)
from ..models.side_effect_calls import break_for_type
from ..objects.containers import (
    append,
    change_all,
    change_key,
    items_at,
    let_go,
    measure,
    read_key,
)
from ..objects.fingerprints import is_tensor
from ..objects.locks import LOCK
from ..segment import Segment
from .call_handlers import on_call, on_call_ex


def on_attribute(s: Segment, probe: Any, owner: Any) -> None:
    s.ledger.place = probe
    s.attributes.read(owner, probe.arg)


def on_super_attribute(s: Segment, probe: Any, super_type: Any, cls: type, self_: Any) -> None:
    s.ledger.place = probe
    if super_type is super:
        try:
            bound = super(cls, self_)
        except TypeError:  # the instruction is about to raise it
            raise BreakGraph("operation-raised", "super: TypeError") from None
        s.attributes.read(bound, probe.arg)


def on_global(s: Segment, probe: Any, namespace: dict[str, Any], builtin: dict[str, Any]) -> None:
    s.ledger.place = probe
    name = probe.arg
    read_key(s.ledger, s.ledger.constant(namespace), namespace, name)
    if name not in namespace:
        read_key(s.ledger, s.ledger.constant(builtin), builtin, name)


def on_cell(s: Segment, probe: Any, cell: types.CellType) -> None:
    s.ledger.place = probe
    origin = s.ledger.find(cell)
    if origin is None or s.ledger.changed(cell) is not None:
        return
    try:
        value = cell.cell_contents
    except ValueError:
        s.ledger.require(origin, Fact.UNSET, None)
        return
    if origin.edge is Edge.LOCAL:  # a variable of a frame, handed over at a break: C code wants to know what it is
        s.ledger.require(origin, Fact.TYPE, types.CellType)
    s.ledger.read(origin, Edge.ATTR, "cell_contents", value)


def on_item(s: Segment, probe: Any, container: Any, key: Any) -> None:
    s.ledger.place = probe
    read_item(s, container, key)


def on_slice(s: Segment, probe: Any, container: Any, *bounds: Any) -> None:
    s.ledger.place = probe
    if not is_tensor(container):
        consult(s, container)


def on_operands(s: Segment, probe: Any, *operands: Any) -> None:
    s.ledger.place = probe
    for value in operands:
        consult(s, value)


def on_binary(s: Segment, probe: Any, left: Any, right: Any) -> None:
    s.ledger.place = probe
    consult_deep(s, right)
    if probe.arg == "%" and issubclass(type(left), (str, bytes)):
        note_texts_in(s, left, right)
    origin = s.ledger.find(left)
    if origin is None or not probe.arg.endswith("="):
        consult_deep(s, left)
    elif type(left) is list and probe.arg == "+=":
        append(s.ledger, origin, left)
    elif container_kind(type(left)) in ("list", "dict", "set", "deque") and type(left) is not frozenset:
        change_all(s.ledger, origin, left)
        touch(s, left)
    else:
        consult_deep(s, left)


def on_compare(s: Segment, probe: Any, left: Any, right: Any) -> None:
    s.ledger.place = probe
    for value in (left, right):
        consult_deep(s, value)
        s.ledger.use_identity(value)


def on_contains(s: Segment, probe: Any, item: Any, container: Any) -> None:
    s.ledger.place = probe
    look_for(s, item, container)


def on_is(s: Segment, probe: Any, left: Any, right: Any) -> None:
    s.ledger.place = probe
    for value in (left, right):
        touch_type(s, value)
    mine, other = s.ledger.find(left), s.ledger.find(right)
    if mine is not None and other is not None and left is not right:
        first, second = sorted((mine, other), key=lambda origin: origin.index)
        s.ledger.require(second, Fact.OTHER, first.index)
    elif left is not right:
        s.tracer.tell_apart(left, right)


def on_truth(s: Segment, probe: Any, value: Any) -> None:
    s.ledger.place = probe
    origin = s.ledger.find(value)
    if origin is not None and container_kind(type(value)) is not None:
        measure(s.ledger, origin, value)
        touch(s, value)
    else:
        consult(s, value)


def on_next(s: Segment, probe: Any, iterator: Any, *rest: Any) -> None:
    s.ledger.place = probe
    move_on(s, iterator)


def on_hash(s: Segment, probe: Any, *keys: Any) -> None:
    s.ledger.place = probe
    for key in keys:
        use_as_key(s, key)


def on_insert(s: Segment, probe: Any, container: Any, item: Any) -> None:
    """A display or a comprehension gets an item. It is an outside container if a break lies in between."""
    s.ledger.place = probe
    if type(container) is not list:
        use_as_key(s, item)
    _grow(s, container)


def on_extend(s: Segment, probe: Any, container: Any, items: Any) -> None:
    s.ledger.place = probe
    consult(s, items)
    _grow(s, container)


def _grow(s: Segment, container: Any) -> None:
    origin = s.ledger.find(container)
    if origin is not None and type(container) is list:
        append(s.ledger, origin, container)
    elif origin is not None:
        change_all(s.ledger, origin, container, () if type(container) is set else None)


def on_with(s: Segment, probe: Any, manager: Any) -> None:
    s.ledger.place = probe
    if type(manager) is LOCK:
        s.locks.enter(s.ledger, manager)
        return
    if not is_open(type(manager)):
        raise BreakGraph(break_for_type(type(manager), "unknown-callable"), f"with {type(manager).__qualname__}")
    touch(s, manager)
    enter = _native.mro_lookup(type(manager), "__enter__")
    if issubclass(type(enter), C_DESCRIPTORS):  # of the C class that it inherits from
        s.table.call(s, None, enter, (manager,), ())


def on_with_exit(s: Segment, probe: Any, exit: Any) -> None:
    """An exception leaves the body of a `with`; `exit` is called with it."""
    s.ledger.place = probe
    s.table.call(s, None, exit, (), ())


def on_format(s: Segment, probe: Any, *operands: Any) -> None:
    s.ledger.place = probe
    for value in operands:
        note_text(s, value, "__repr__" if probe.arg in ("r", "a") else "__format__")


def on_match_class(s: Segment, probe: Any, subject: Any, cls: Any, names: tuple[str, ...]) -> None:
    s.ledger.place = probe
    touch(s, subject)
    if issubclass(type(cls), type):
        s.attributes.read(cls, "__match_args__")
        matched = getattr(cls, "__match_args__", ())
        if issubclass(type(subject), cls):
            for name in (*(matched if issubclass(type(matched), tuple) else ()), *names):
                if issubclass(type(name), str):  # else the instruction raises TypeError
                    s.attributes.read(subject, name)
    touch(s, cls)


def on_raise(s: Segment, probe: Any, *operands: Any) -> None:
    s.ledger.place = probe
    for value in operands:
        if issubclass(type(value), BaseException) and s.ledger.find(value) is not None:
            raise BreakGraph("unguardable", "an outside exception is raised again")
        if issubclass(type(value), type):
            s.classes.note_construction(value)


def on_escape(s: Segment, probe: Any, value: Any) -> None:
    """A frame gives a value away, perhaps to C code which compares, sorts or adds it up."""
    s.ledger.place = probe
    if probe.code is not s.root_code:
        consult_deep(s, value)


def on_await(s: Segment, probe: Any, *operands: Any) -> None:
    raise BreakGraph("coroutine-root", "await")


def on_class(s: Segment, probe: Any, *operands: Any) -> None:
    s.ledger.place = probe
    raise BreakGraph("build-class")


def on_import(s: Segment, probe: Any, namespace: dict[str, Any], level: Any, fromlist: Any) -> None:
    s.ledger.place = probe
    if namespace.get("__builtins__") not in (builtins, vars(builtins)):
        raise BreakGraph("import", probe.arg)
    name = probe.arg
    if level:
        parts = (namespace.get("__package__") or "").split(".")
        name = ".".join([*parts[: len(parts) - level + 1], probe.arg]).rstrip(".")
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        raise BreakGraph("import", name)
    origin = s.ledger.constant(sys.modules)
    read_key(s.ledger, origin, sys.modules, name)
    if not fromlist:
        read_key(s.ledger, origin, sys.modules, name.partition(".")[0])
    elif hasattr(module, "__path__"):
        for part in fromlist:
            if not hasattr(module, part):  # a module inside of it, to be loaded
                raise BreakGraph("import", f"{name}.{part}")


def on_store_attribute(s: Segment, probe: Any, value: Any, owner: Any) -> None:
    s.ledger.place = probe
    s.attribute_writes.write(owner, probe.arg)


def on_delete_attribute(s: Segment, probe: Any, owner: Any) -> None:
    s.ledger.place = probe
    s.attribute_writes.write(owner, probe.arg, delete=True)


def on_store_item(s: Segment, probe: Any, value: Any, container: Any, key: Any) -> None:
    s.ledger.place = probe
    if type(key) is slice and not is_tensor(container):
        consult(s, value)  # its items are going to be copied
    _change_item(s, container, key)


def on_delete_item(s: Segment, probe: Any, container: Any, key: Any) -> None:
    s.ledger.place = probe
    origin = s.ledger.find(container)
    if origin is not None and issubclass(type(container), dict):
        look_up(s, origin, container, key)
    _change_item(s, container, key, remove=True)


def on_store_slice(s: Segment, probe: Any, value: Any, container: Any, *bounds: Any) -> None:
    s.ledger.place = probe
    consult(s, value)
    _change_item(s, container, slice(*bounds))


def _change_item(s: Segment, container: Any, key: Any, *, remove: bool = False) -> None:
    touch(s, container)
    origin = s.ledger.find(container)
    if is_tensor(container):
        return
    kind = container_kind(type(container))
    if kind == "dict":
        use_as_key(s, key)
    if origin is None or (is_open(type(container)) and _has_python_method(container, "__setitem__")):
        return
    if kind == "dict":
        change_key(s.ledger, origin, container, key, remove=remove)
    elif kind is not None:
        change_all(s.ledger, origin, container, items_at(container, key))
    else:
        raise BreakGraph("unguardable", f"an item of {type(container).__qualname__} is set")


def _has_python_method(value: Any, name: str) -> bool:
    return issubclass(type(_native.mro_lookup(type(value), name)), types.FunctionType)


def on_store_global(s: Segment, probe: Any, namespace: dict[str, Any], *value: Any) -> None:
    s.ledger.place = probe
    origin = s.ledger.constant(namespace)
    if not value:
        read_key(s.ledger, origin, namespace, probe.arg)
    change_key(s.ledger, origin, namespace, probe.arg, remove=not value)


def on_store_cell(s: Segment, probe: Any, cell: types.CellType, *value: Any) -> None:
    s.ledger.place = probe
    origin = s.ledger.find(cell)
    if origin is not None:
        if cell != types.CellType():
            let_go(cell.cell_contents)
        s.ledger.change("cell", origin, cell)


# By kind of probe. What concerns unguarded values is the recorder's: it may end the segment there.
HANDLERS: dict[int, Callable[..., Any]] = {
    _native.ATTR: on_attribute,
    _native.SUPER_ATTR: on_super_attribute,
    _native.GLOBAL: on_global,
    _native.DEREF: on_cell,
    _native.SUBSCR: on_item,
    _native.SLICE: on_slice,
    _native.CALL: on_call,
    _native.CALL_EX: on_call_ex,
    _native.BINARY: on_binary,
    _native.COMPARE: on_compare,
    _native.CONTAINS: on_contains,
    _native.IS: on_is,
    _native.UNARY: on_operands,
    _native.TRUTH: on_truth,
    _native.ITER: on_operands,
    _native.NEXT: on_next,
    _native.UNPACK: on_operands,
    _native.EXTEND: on_extend,
    _native.INSERT: on_insert,
    _native.HASH: on_hash,
    _native.WITH: on_with,
    _native.WITH_EXIT: on_with_exit,
    _native.FORMAT: on_format,
    _native.AWAIT: on_await,
    _native.STORE_ATTR: on_store_attribute,
    _native.DELETE_ATTR: on_delete_attribute,
    _native.STORE_SUBSCR: on_store_item,
    _native.STORE_SLICE: on_store_slice,
    _native.DELETE_SUBSCR: on_delete_item,
    _native.STORE_GLOBAL: on_store_global,
    _native.DELETE_GLOBAL: on_store_global,
    _native.STORE_DEREF: on_store_cell,
    _native.DELETE_DEREF: on_store_cell,
    _native.IMPORT_NAME: on_import,
    _native.IMPORT_FROM: on_attribute,
    _native.MATCH_CLASS: on_match_class,
    _native.MATCH_KEYS: on_operands,
    _native.MATCH: on_operands,
    _native.RAISE: on_raise,
    _native.EXC_MATCH: on_operands,
    _native.INTRINSIC: on_operands,
    _native.BUILD_CLASS: on_class,
    _native.ESCAPE: on_escape,
}
