"""The handlers of the probes: what each instruction is going to read or change, noted just before it executes.

Nothing here alters the course of the program; `Drop` says that the recording cannot go on.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ... import _native
from ...recording import Edge, Fact, Origin
from ...support.guard_readers import VALUE_TYPES, container_kind, is_open
from ..graph_break import Drop
from ..models.calls import bound_parts, constructor_rule, may_be_approved, reads_arguments_only, rule_for
from ..models.rules import C_DESCRIPTORS
from ..models.side_effect_calls import break_for, break_for_type, name_of
from ..objects.attributes import Attributes
from ..objects.classes import Classes
from ..objects.constants import is_constant
from ..objects.containers import (
    append,
    change_all,
    change_key,
    contains,
    expose,
    expose_deep,
    items_at,
    let_go,
    measure,
    read_index,
    read_key,
)
from ..objects.fingerprints import is_tensor
from ..objects.identity import Identity
from ..objects.iterator_types import ITERATOR_TYPES
from ..objects.ledger import COMPOSED, Ledger
from ..objects.locks import LOCK, Locks
from ..objects.repr_reads import asks_for_repr, shows_address
from ..tensors.tensor_mode import Tracer
from . import policy

_WATCHED_CALLABLES = (types.FunctionType, type, operator.itemgetter)
_KeyWrapper = type(functools.cmp_to_key(lambda a, b: 0))

# Objects of C types which C code may hold and pass on without reading anything that needs a guard.
_INERT = (
    types.FunctionType,
    _native.Compiled,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    type,
    property,
    staticmethod,
    classmethod,
    super,
    torch.Generator,
)


# What says which one it is: methods are made anew all the time and compared by these.
_PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    types.BuiltinFunctionType: ("__name__", "__self__"),
    types.MethodWrapperType: ("__name__", "__self__"),
}


def _is_plain_class(cls: type) -> bool:
    """Is everything that an instance holds in its dict, its slots, or in a builtin container or value?"""
    base = next(base for base in cls.__mro__ if not is_open(base))
    return issubclass(base, _OPEN_BASES) or base is object or container_kind(base) is not None


_OPEN_BASES = (*VALUE_TYPES, BaseException, types.ModuleType, types.SimpleNamespace, type, torch._C.TensorBase)


def spread(func: Any) -> types.FunctionType:
    """What to call with an iterator's items in place of `func`: it is watched, and calls `func` with a tuple."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    call.__code__ = SPREAD
    return call  # type: ignore[return-value]


SPREAD: types.CodeType = next(c for c in spread.__code__.co_consts if isinstance(c, types.CodeType)).replace(
    co_filename="<stator call>"  # frames of this package's files are not watched
)


class Handlers:
    """What a recorder knows of the run so far, and a method per kind of probe."""

    watcher: _native.Watcher
    ledger: Ledger
    classes: Classes
    attributes: Attributes
    tracer: Tracer
    locks: Locks
    root: Any  # the function under watch
    root_code: types.CodeType  # of the frame that its run began with
    handled_outside: bool  # was an exception being handled when the run began?

    graph: Tracer  # of the segment itself; `tracer` may be that of a leaf's inside

    @property
    def approves(self) -> bool:
        """May the C side skip calls that were looked at once?"""
        return self.graph.symbols is None

    def drop(self, drop: Drop) -> None:
        """The recording is over; the run goes on."""
        raise NotImplementedError

    def failed_inside(self, error: BaseException) -> None:
        """The recording cannot go on while an instruction is at work."""
        raise NotImplementedError

    def instead(self, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
        """What to call in place of a C callable which would make a plain number of a symbolic one; or None."""
        raise NotImplementedError

    def may_be_given_up(self, value: Any) -> bool:
        """Is it perhaps nobody but the recording that holds this value?"""
        raise NotImplementedError

    # -- what several handlers need

    def print_later(self, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> bool:
        """Can this line be printed where the segment ends? Then it is noted."""
        raise NotImplementedError

    def depend_on(self, tensor: Any) -> None:
        """The program's course depends on the facts of this tensor."""
        raise NotImplementedError

    def has_written(self) -> bool:
        """Has the segment changed anything outside so far?"""
        raise NotImplementedError

    def is_trusted_behind_cache(self, cached: Any) -> bool:
        """Is this a library's function? Libraries cache what does not depend on the program, and changes nothing."""
        code = getattr(getattr(cached, "__wrapped__", None), "__code__", None)
        return type(code) is types.CodeType and policy.is_trusted(code.co_filename)

    def paused(self, func: Callable[..., Any], *args: Any) -> Any:
        return self.watcher.paused(func, *args)

    def touch(self, value: Any) -> None:
        """The type of a value matters, and special methods of its class may be looked up."""
        origin = self.ledger.find(value)
        if origin is not None:
            self.ledger.touch(origin, value)
        if is_open(type(value)):
            self.classes.note(type(value))

    def consult(self, value: Any) -> None:
        """C code may read this value and, if it is a container, its children."""
        cls = type(value)
        if cls is Identity:
            raise Drop("identity", "id")
        if cls is types.CellType:
            raise Drop("unguardable", "C code looks into a cell")  # also into one made inside, which may hold anything
        origin = self.ledger.find(value)
        if origin is not None:
            expose(self.ledger, origin, value)
            if cls is types.MappingProxyType:
                self._consult_proxied(origin, value)
                return
            for part in () if is_constant(value) else _PARTS.get(cls, ()):
                self.ledger.read(origin, Edge.ATTR, part, getattr(value, part))
                self.ledger.use_identity(getattr(value, part))
            if not is_open(cls) and container_kind(cls) is None and not self._inert(value):
                known = "outside-iterator" if hasattr(cls, "__next__") else "unguardable"
                raise Drop(break_for_type(cls, known), cls.__qualname__)
        if is_open(cls):
            self.classes.note(cls)
            if origin is not None and not _is_plain_class(cls):
                raise Drop("unguardable", f"{cls.__qualname__} keeps something in C")

    def _consult_proxied(self, origin: Any, proxy: Any) -> None:
        """C code reads a mapping through a proxy from outside."""
        mapping = _native.proxied.__get__(proxy)
        if container_kind(type(mapping)) is None:
            raise Drop("unguardable", "a mappingproxy of something else than a dict")
        self.ledger.read(origin, Edge.SLOT, _native.proxied, mapping)
        self.consult_deep(mapping)

    def consult_callable(self, value: Any) -> None:
        """C code is going to call this value with arguments that nobody sees: it must not read more than them."""
        while issubclass(type(value), types.MethodType):
            value = value.__func__
        if type(value) is _native.Compiled:
            self.call(None, value, (), ())
            return
        if issubclass(type(value), type):
            self.classes.note_construction(value)
        if (
            issubclass(type(value), (types.FunctionType, type, operator.itemgetter))
            or value is None
            or not callable(value)
        ):
            return
        if type(value) is _KeyWrapper and self.ledger.find(value) is None:
            return
        parts = bound_parts(value)
        if parts is not None:
            self._consult_bound(*parts)
            return
        if issubclass(type(_native.mro_lookup(type(value), "__call__")), (types.FunctionType, _native.Compiled)):
            self.touch(value)
        elif not reads_arguments_only(value):
            raise Drop("unknown-callable", f"{self.name_of(value)}, called by C code")

    def _consult_bound(self, method: Any, owner: Any) -> None:
        """C code is going to call a C method: it may read its owner all the way, and change it if it is fresh."""
        if (self.ledger.find(owner) is not None and not reads_arguments_only(method)) or rule_for(method) is None:
            raise Drop("unknown-callable", f"{self.name_of(method)}, called by C code")
        self.consult_deep(owner)

    def consult_deep(self, value: Any) -> None:
        """C code may read this value and everything in it, and compare the objects that it finds."""
        self.consult(value)
        expose_deep(self.ledger, value, self.consult)

    def show(self, value: Any, method: str) -> None:
        """C code makes a text of this value, by one of its methods."""
        self.consult_deep(value)
        if shows_address(value, method):
            raise Drop("identity", "repr")

    def show_in(self, template: Any, values: Any) -> None:
        """`template % values`"""
        method = "__repr__" if asks_for_repr(template) else "__str__"
        shown = values if issubclass(type(values), tuple) else [values]
        for value in shown:
            self.show(value, method)
            for part in dict.values(value) if issubclass(type(value), dict) else ():
                self.show(part, method)

    @staticmethod
    def _inert(value: Any) -> bool:
        return issubclass(type(value), _INERT) or is_constant(value) or is_tensor(value)

    def hashed(self, key: Any) -> None:
        """A value is used as a key: by equality, hence perhaps by identity."""
        if not is_constant(key) or type(key) in COMPOSED:
            self.ledger.use_identity(key)
        if not is_constant(key):
            self.touch(key)
            if container_kind(type(key)) is not None:
                self.consult_deep(key)

    def contains(self, item: Any, container: Any) -> None:
        origin = self.ledger.find(container)
        if origin is not None and container_kind(type(container)) is not None:
            contains(self.ledger, origin, container, item)
        elif type(container) is not dict:
            self.consult_deep(container)
        self.touch(container)
        self.hashed(item)

    def advance(self, iterator: Any) -> None:
        """An iterator moves on; an outside one would have to be moved by the replay too."""
        mover = _native.mro_lookup(type(iterator), "__next__")
        if self.ledger.find(iterator) is not None and not issubclass(type(mover), types.FunctionType):
            generator = issubclass(type(iterator), (types.GeneratorType, types.CoroutineType))
            raise Drop("outside-generator" if generator else "outside-iterator", type(iterator).__name__)
        self.touch(iterator)

    def name_of(self, func: Any) -> str:
        return name_of(func)

    def in_library(self) -> bool:
        """Does the instruction about to run stand in torch or in the standard library?"""
        place = self.ledger.place
        return place is not None and policy.is_trusted(place.code.co_filename)

    def in_operation_wrapper(self) -> bool:
        """Does the instruction about to run stand in torch's own wrapper of an operation?"""
        place = self.ledger.place
        return place is not None and place.code.co_filename in policy.OPERATION_FILES

    # -- probes: reading

    def on_attribute(self, probe: Any, owner: Any) -> None:
        self.ledger.place = probe
        self.attributes.read(owner, probe.arg)

    def on_super_attribute(self, probe: Any, super_type: Any, cls: type, self_: Any) -> None:
        self.ledger.place = probe
        if super_type is super:
            try:
                bound = super(cls, self_)
            except TypeError:  # the instruction is about to raise it
                raise Drop("operation-raised", "super: TypeError") from None
            self.attributes.read(bound, probe.arg)

    def on_global(self, probe: Any, namespace: dict[str, Any], builtin: dict[str, Any]) -> None:
        self.ledger.place = probe
        name = probe.arg
        read_key(self.ledger, self.ledger.constant(namespace), namespace, name)
        if name not in namespace:
            read_key(self.ledger, self.ledger.constant(builtin), builtin, name)

    def on_cell(self, probe: Any, cell: types.CellType) -> None:
        self.ledger.place = probe
        origin = self.ledger.find(cell)
        if origin is None or self.ledger.changed(cell) is not None:
            return
        try:
            value = cell.cell_contents
        except ValueError:
            self.ledger.require(origin, Fact.UNSET, None)
            return
        self.ledger.read(origin, Edge.ATTR, "cell_contents", value)

    def on_item(self, probe: Any, container: Any, key: Any) -> None:
        self.ledger.place = probe
        self.item(container, key)

    def item(self, container: Any, key: Any) -> None:
        """`container[key]` is about to be read."""
        origin = self.ledger.find(container)
        kind = container_kind(type(container))
        if not is_constant(key):
            self.touch(key)
        if origin is None:
            self.touch(container)
            if kind == "dict":
                self.hashed(key)
        elif kind == "dict":
            self._look_up(origin, container, key)
        elif kind in ("list", "tuple"):
            read_index(self.ledger, origin, container, key)
            self.touch(container)
        elif issubclass(type(container), type):
            self.touch(container)
        elif not is_tensor(container):
            self.consult(container)

    def _look_up(self, origin: Origin, mapping: Any, key: Any) -> None:
        self.touch(mapping)
        self.hashed(key)
        if hasattr(type(mapping), "__missing__") and not is_open(type(mapping)) and key not in mapping:
            factory = mapping.default_factory
            self.ledger.read(origin, Edge.ATTR, "default_factory", factory)
            if not issubclass(type(factory), (type, types.FunctionType, type(None))):
                raise Drop("unknown-callable", f"{self.name_of(factory)}, called by C code")
            self.consult_callable(factory)
            read_key(self.ledger, origin, mapping, key)
            change_key(self.ledger, origin, mapping, key)  # defaultdict makes an entry
        else:
            read_key(self.ledger, origin, mapping, key)

    def on_slice(self, probe: Any, container: Any, *bounds: Any) -> None:
        self.ledger.place = probe
        if not is_tensor(container):
            self.consult(container)

    def on_operands(self, probe: Any, *operands: Any) -> None:
        self.ledger.place = probe
        for value in operands:
            self.consult(value)

    def on_binary(self, probe: Any, left: Any, right: Any) -> None:
        self.ledger.place = probe
        self.consult_deep(right)
        if probe.arg == "%" and issubclass(type(left), (str, bytes)):
            self.show_in(left, right)
        origin = self.ledger.find(left)
        if origin is None or not probe.arg.endswith("="):
            self.consult_deep(left)
        elif type(left) is list and probe.arg == "+=":
            append(self.ledger, origin, left)
        elif container_kind(type(left)) in ("list", "dict", "set", "deque") and type(left) is not frozenset:
            change_all(self.ledger, origin, left)
            self.touch(left)
        else:
            self.consult_deep(left)

    def on_compare(self, probe: Any, left: Any, right: Any) -> None:
        self.ledger.place = probe
        for value in (left, right):
            self.consult_deep(value)
            self.ledger.use_identity(value)

    def on_contains(self, probe: Any, item: Any, container: Any) -> None:
        self.ledger.place = probe
        self.contains(item, container)

    def on_is(self, probe: Any, left: Any, right: Any) -> None:
        self.ledger.place = probe
        for value in (left, right):
            self.touch_type(value)
        mine, other = self.ledger.find(left), self.ledger.find(right)
        if mine is not None and other is not None and left is not right:
            first, second = sorted((mine, other), key=lambda origin: origin.index)
            self.ledger.require(second, Fact.OTHER, first.index)

    def touch_type(self, value: Any) -> None:
        origin = self.ledger.find(value)
        if origin is not None:
            self.ledger.touch(origin, value)

    def on_truth(self, probe: Any, value: Any) -> None:
        self.ledger.place = probe
        origin = self.ledger.find(value)
        if origin is not None and container_kind(type(value)) is not None:
            measure(self.ledger, origin, value)
            self.touch(value)
        else:
            self.consult(value)

    def on_next(self, probe: Any, iterator: Any, *rest: Any) -> None:
        self.ledger.place = probe
        self.advance(iterator)

    def on_hash(self, probe: Any, *keys: Any) -> None:
        self.ledger.place = probe
        for key in keys:
            self.hashed(key)

    def on_insert(self, probe: Any, container: Any, item: Any) -> None:
        """A display or a comprehension gets an item. It is an outside container if a break lies in between."""
        self.ledger.place = probe
        if type(container) is not list:
            self.hashed(item)
        self._grow(container)

    def on_extend(self, probe: Any, container: Any, items: Any) -> None:
        self.ledger.place = probe
        self.consult(items)
        self._grow(container)

    def _grow(self, container: Any) -> None:
        origin = self.ledger.find(container)
        if origin is not None and type(container) is list:
            append(self.ledger, origin, container)
        elif origin is not None:
            change_all(self.ledger, origin, container, () if type(container) is set else None)

    def on_with(self, probe: Any, manager: Any) -> None:
        self.ledger.place = probe
        if type(manager) is LOCK:
            self.locks.enter(self, manager)
            return
        if not is_open(type(manager)):
            raise Drop(break_for_type(type(manager), "unknown-callable"), f"with {type(manager).__qualname__}")
        self.touch(manager)
        enter = _native.mro_lookup(type(manager), "__enter__")
        if issubclass(type(enter), C_DESCRIPTORS):  # of the C class that it inherits from
            self.call(None, enter, (manager,), ())

    def on_with_exit(self, probe: Any, exit: Any) -> None:
        """An exception leaves the body of a `with`; `exit` is called with it."""
        self.ledger.place = probe
        self.call(None, exit, (), ())

    def on_format(self, probe: Any, *operands: Any) -> None:
        self.ledger.place = probe
        for value in operands:
            self.show(value, "__repr__" if probe.arg in ("r", "a") else "__format__")

    def on_match_class(self, probe: Any, subject: Any, cls: Any, names: tuple[str, ...]) -> None:
        self.ledger.place = probe
        self.touch(subject)
        if issubclass(type(cls), type):
            self.attributes.read(cls, "__match_args__")
            matched = getattr(cls, "__match_args__", ())
            if issubclass(type(subject), cls):
                for name in (*(matched if issubclass(type(matched), tuple) else ()), *names):
                    if issubclass(type(name), str):  # else the instruction raises TypeError
                        self.attributes.read(subject, name)
        self.touch(cls)

    def on_raise(self, probe: Any, *operands: Any) -> None:
        self.ledger.place = probe
        for value in operands:
            if issubclass(type(value), BaseException) and self.ledger.find(value) is not None:
                raise Drop("unguardable", "an outside exception is raised again")
            if issubclass(type(value), type):
                self.classes.note_construction(value)

    def on_escape(self, probe: Any, value: Any) -> None:
        """A frame gives a value away, perhaps to C code which compares, sorts or adds it up."""
        self.ledger.place = probe
        if probe.code is not self.root_code:
            self.consult_deep(value)

    def on_settle(self, probe: Any, value: Any) -> None:
        """A loose value is about to matter."""
        raise NotImplementedError

    def on_await(self, probe: Any, *operands: Any) -> None:
        raise Drop("coroutine-root", "await")

    def on_class(self, probe: Any, *operands: Any) -> None:
        self.ledger.place = probe
        raise Drop("build-class")

    def on_import(self, probe: Any, namespace: dict[str, Any], level: Any, fromlist: Any) -> None:
        self.ledger.place = probe
        if namespace.get("__builtins__") not in (builtins, vars(builtins)):
            raise Drop("import", probe.arg)
        name = probe.arg
        if level:
            parts = (namespace.get("__package__") or "").split(".")
            name = ".".join([*parts[: len(parts) - level + 1], probe.arg]).rstrip(".")
        module = sys.modules.get(name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            raise Drop("import", name)
        origin = self.ledger.constant(sys.modules)
        read_key(self.ledger, origin, sys.modules, name)
        if not fromlist:
            read_key(self.ledger, origin, sys.modules, name.partition(".")[0])
        elif hasattr(module, "__path__"):
            for part in fromlist:
                if not hasattr(module, part):  # a module inside of it, to be loaded
                    raise Drop("import", f"{name}.{part}")

    # -- probes: writing

    def on_store_attribute(self, probe: Any, value: Any, owner: Any) -> None:
        self.ledger.place = probe
        self.attributes.write(owner, probe.arg)

    def on_delete_attribute(self, probe: Any, owner: Any) -> None:
        self.ledger.place = probe
        self.attributes.write(owner, probe.arg, delete=True)

    def on_store_item(self, probe: Any, value: Any, container: Any, key: Any) -> None:
        self.ledger.place = probe
        if type(key) is slice and not is_tensor(container):
            self.consult(value)  # its items are going to be copied
        self._change_item(container, key)

    def on_delete_item(self, probe: Any, container: Any, key: Any) -> None:
        self.ledger.place = probe
        origin = self.ledger.find(container)
        if origin is not None and issubclass(type(container), dict):
            self._look_up(origin, container, key)
        self._change_item(container, key, remove=True)

    def on_store_slice(self, probe: Any, value: Any, container: Any, *bounds: Any) -> None:
        self.ledger.place = probe
        self.consult(value)
        self._change_item(container, slice(*bounds))

    def _change_item(self, container: Any, key: Any, *, remove: bool = False) -> None:
        self.touch(container)
        origin = self.ledger.find(container)
        if is_tensor(container):
            return
        kind = container_kind(type(container))
        if kind == "dict":
            self.hashed(key)
        if origin is None or (is_open(type(container)) and self._has_python_method(container, "__setitem__")):
            return
        if kind == "dict":
            change_key(self.ledger, origin, container, key, remove=remove)
        elif kind is not None:
            change_all(self.ledger, origin, container, items_at(container, key))
        else:
            raise Drop("unguardable", f"an item of {type(container).__qualname__} is set")

    @staticmethod
    def _has_python_method(value: Any, name: str) -> bool:
        return issubclass(type(_native.mro_lookup(type(value), name)), types.FunctionType)

    def on_store_global(self, probe: Any, namespace: dict[str, Any], *value: Any) -> None:
        self.ledger.place = probe
        origin = self.ledger.constant(namespace)
        if not value:
            read_key(self.ledger, origin, namespace, probe.arg)
        change_key(self.ledger, origin, namespace, probe.arg, remove=not value)

    def on_store_cell(self, probe: Any, cell: types.CellType, *value: Any) -> None:
        self.ledger.place = probe
        origin = self.ledger.find(cell)
        if origin is not None:
            if cell != types.CellType():
                let_go(cell.cell_contents)
            self.ledger.change("cell", origin, cell)

    # -- probes: calling

    def on_call(self, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
        self.ledger.place = probe
        return self.call(probe, func, args, kwnames)

    def on_call_ex(self, probe: Any, func: Any, args: Any, kwargs: Any) -> Any:
        self.ledger.place = probe
        self.consult(args)
        if kwargs is not None:
            self.consult(kwargs)
        if type(args) not in (tuple, list, torch.Size) or type(kwargs) not in (dict, type(None)):
            if issubclass(type(func), types.FunctionType):
                return None
            if self.ledger.find(args) is None and type(args) in ITERATOR_TYPES and type(kwargs) in (dict, type(None)):
                return spread(func)
            raise Drop("unguardable", f"call with *{type(args).__name__}")
        names = tuple(kwargs) if kwargs else ()
        return self.call(probe, func, (*args, *(kwargs.values() if kwargs else ())), names)

    def call(self, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
        """A callable is about to be called. May give back another one to be called in its place. (No probe: C code that
        is called calls it.)"""
        replacement = self._note_call(probe, func, args, kwnames)
        instead = self.instead(probe, func, args, kwnames)
        return replacement if instead is None else instead

    def _note_call(self, probe: Any, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
        rule = rule_for(func)
        if func is print and self.print_later(args, kwnames):
            return None
        if rule is not None:
            replacement = rule(self, func, args, kwnames)
            if replacement is None and probe is not None and self.approves and may_be_approved(func, rule):
                self.watcher.approve(func)
            return replacement
        if issubclass(type(func), types.FunctionType):
            self.note_arguments(func, len(args) - len(kwnames), kwnames)
            return None
        if issubclass(type(func), types.MethodType):
            owner = self.ledger.find(func)
            if owner is not None:
                self.ledger.touch(owner, func)
                for part in ("__func__", "__self__"):
                    self.ledger.read(owner, Edge.ATTR, part, getattr(func, part))
            replacement = self.call(None, func.__func__, (func.__self__, *args), kwnames)
            return None if replacement is None else functools.partial(replacement, func.__self__)
        if issubclass(type(func), type):
            constructor_rule(self, func, args, kwnames)
            if probe is not None and self.approves:
                self.watcher.approve(func)
            return None
        parts = bound_parts(func)
        if parts is not None:
            owner = self.ledger.find(func)
            if owner is not None:
                self.ledger.touch(owner, func)
                self.ledger.read(owner, Edge.ATTR, "__self__", parts[1])
            rule = rule_for(parts[0])
            if rule is not None:
                return rule(self, parts[0], (parts[1], *args), kwnames)
        elif issubclass(type(_native.mro_lookup(type(func), "__call__")), (types.FunctionType, _native.Compiled)):
            self.touch(func)
            return None
        raise Drop(break_for(func), self.name_of(func))

    def note_arguments(self, function: types.FunctionType, given: int, names: tuple[str, ...]) -> None:
        """A function is about to be called. If it does not take these arguments no frame follows that would note it."""
        origin = self.ledger.find(function)
        if origin is not None and not _native.surely_binds(function, given, names):
            self.attributes.note_function(origin, function)
            for part in ("__defaults__", "__kwdefaults__"):
                self.ledger.read(origin, Edge.ATTR, part, getattr(function, part))


# The method of `Handlers` for each kind of probe.
HANDLERS = {
    _native.ATTR: "on_attribute",
    _native.SUPER_ATTR: "on_super_attribute",
    _native.GLOBAL: "on_global",
    _native.DEREF: "on_cell",
    _native.SUBSCR: "on_item",
    _native.SLICE: "on_slice",
    _native.CALL: "on_call",
    _native.CALL_EX: "on_call_ex",
    _native.BINARY: "on_binary",
    _native.COMPARE: "on_compare",
    _native.CONTAINS: "on_contains",
    _native.IS: "on_is",
    _native.UNARY: "on_operands",
    _native.TRUTH: "on_truth",
    _native.ITER: "on_operands",
    _native.NEXT: "on_next",
    _native.UNPACK: "on_operands",
    _native.EXTEND: "on_extend",
    _native.INSERT: "on_insert",
    _native.HASH: "on_hash",
    _native.WITH: "on_with",
    _native.WITH_EXIT: "on_with_exit",
    _native.FORMAT: "on_format",
    _native.AWAIT: "on_await",
    _native.STORE_ATTR: "on_store_attribute",
    _native.DELETE_ATTR: "on_delete_attribute",
    _native.STORE_SUBSCR: "on_store_item",
    _native.STORE_SLICE: "on_store_slice",
    _native.DELETE_SUBSCR: "on_delete_item",
    _native.STORE_GLOBAL: "on_store_global",
    _native.DELETE_GLOBAL: "on_store_global",
    _native.STORE_DEREF: "on_store_cell",
    _native.DELETE_DEREF: "on_store_cell",
    _native.IMPORT_NAME: "on_import",
    _native.IMPORT_FROM: "on_attribute",
    _native.MATCH_CLASS: "on_match_class",
    _native.MATCH_KEYS: "on_operands",
    _native.MATCH: "on_operands",
    _native.RAISE: "on_raise",
    _native.EXC_MATCH: "on_operands",
    _native.INTRINSIC: "on_operands",
    _native.BUILD_CLASS: "on_class",
    _native.ESCAPE: "on_escape",
    _native.PACK: "on_settle",
}
