"""Rules for methods of builtin types: which of them read a container, and which change it, and how."""

from __future__ import annotations

import collections
import contextvars
import copyreg
import functools
import inspect
import itertools
import operator
import re
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...support.builtin_types import ITERATOR_TYPES
from ...support.guard_readers import container_kind, is_open
from ..graph_break import BreakGraph
from ..objects.constants import is_constant
from ..objects.containers import append, change_all, change_key, items_at, read_key
from ..segment import Segment
from .call_model import Args, Rule, TypeMethods, rule
from .reads import consult_callable, consult_deep, look_for, note_text, touch, use_as_key
from .rules import (
    advance,
    context_variable,
    convert_text,
    delete_attribute_plainly,
    format_text,
    get_attribute_of_class,
    get_attribute_plainly,
    get_item,
    makes_texts,
    nothing,
    pure,
    pure_of_class,
    read_length,
    read_type,
    set_attribute_plainly,
    shallow,
    show_plainly,
)


@rule(takes=1)
def change_first(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Changes its first argument, a list or a dict, by what it finds in it and in the others."""
    pure(s, func, args, ())
    _change(s, func, args, kwnames)


@rule(takes=1, skipped=True)
def _add_to(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = s.ledger.find(args[0])
    if origin is not None:
        append(s.ledger, origin, args[0])


@rule(takes=1, skipped=True)
def _extend(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    shallow(s, func, args[1:], ())
    _add_to(s, func, args, kwnames)


@rule(takes=1, skipped=True)
def _change(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    shallow(s, func, args[1:], ())
    origin = s.ledger.find(args[0])
    if origin is not None:
        change_all(s.ledger, origin, args[0], _gone(func.__name__, args))


@rule(takes=1, skipped=True)
def _clear_frame(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`frame.clear()`: a frame that the run has made, and that is no generator's, is gone anyway in a replay."""
    frame = args[0]
    suspendable = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if type(frame) is not types.FrameType or s.ledger.find(frame) is not None or frame.f_code.co_flags & suspendable:
        raise BreakGraph("frames", "frame.clear")


@rule(takes=2)
def operate_in_place(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`operator.iadd(a, b)` and its kin: what `a += b` does, and gives."""
    left, right = args[:2]
    consult_deep(s, right)
    if issubclass(type(left), (str, bytes)):
        raise BreakGraph("unknown-callable", f"operator.{func.__name__} of a text")
    origin = s.ledger.find(left)
    kind = container_kind(type(left))
    if origin is None or kind in (None, "tuple") or issubclass(type(left), frozenset):
        consult_deep(s, left)
    elif type(left) is list and func in (operator.iadd, operator.iconcat):
        append(s.ledger, origin, left)
    else:
        change_all(s.ledger, origin, left)
        touch(s, left)


# Methods of lists, sets and deques that let go of no item; and those that let go of what is at one place.
_KEEP_ALL = frozenset("insert reverse rotate append appendleft extend extendleft add update __ior__ __iadd__".split())
_PLACES = {"pop": -1, "popleft": 0, "__setitem__": None, "__delitem__": None}


def _gone(method: str, args: Args) -> Iterable[Any] | None:
    """The items that a method lets go of; None: any."""
    bounded = issubclass(type(args[0]), collections.deque) and collections.deque.maxlen.__get__(args[0]) is not None
    if method in _KEEP_ALL and not bounded and not issubclass(type(args[0]), dict):
        return ()
    if method in _PLACES:
        return items_at(args[0], args[1] if len(args) > 1 else _PLACES[method])
    return None


@rule(takes=2, skipped=True, arguments_only=True)
def dict_get(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    use_as_key(s, args[1])
    origin = s.ledger.find(args[0])
    if origin is not None:
        read_key(s.ledger, origin, args[0], args[1])


@rule(takes=2, skipped=True)
def _dict_contains(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    look_for(s, args[1], args[0])


@rule(takes=2, skipped=True)
def _dict_set(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    use_as_key(s, args[1])
    origin = s.ledger.find(args[0])
    if origin is not None:
        change_key(s.ledger, origin, args[0], args[1])


@rule(takes=2, skipped=True)
def _dict_take(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`pop`, `setdefault`, `__delitem__`: look, then change one key."""
    if container_kind(type(args[0])) != "dict":
        _change(s, func, args, kwnames)
        return
    dict_get(s, func, args, kwnames)
    origin = s.ledger.find(args[0])
    if origin is not None:
        change_key(s.ledger, origin, args[0], args[1], remove=func.__name__ != "setdefault")


@rule(takes=1, skipped=True)
def _dict_update(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    pure(s, func, args[1:], ())
    origin = s.ledger.find(args[0])
    if origin is None:
        return
    positional = args[1 : len(args) - len(kwnames)]
    if all(issubclass(type(arg), dict) for arg in positional):
        for key in itertools.chain(*positional, kwnames):
            change_key(s.ledger, origin, args[0], key)
    else:
        change_all(s.ledger, origin, args[0])


@rule(takes=1, skipped=True)
def _remove(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    consult_deep(s, args[0])
    _change(s, func, args, kwnames)


@rule(takes=1, skipped=True)
def _pop_of_set(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    if s.ledger.find(args[0]) is not None:
        raise BreakGraph("unguardable", "set.pop goes by where the last one stopped")


@rule(takes=1, skipped=True)
def _sort(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    for arg in args[1:]:
        consult_callable(s, arg)
    consult_deep(s, args[0])
    if makes_texts(args):
        note_text(s, args[0], "__repr__")
    _change(s, func, args, kwnames)


@rule(takes=1)
def object_method(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Special methods of `object` and of builtin exceptions."""
    name = func.__name__
    if name in ("__eq__", "__ne__", "__hash__"):
        for arg in args:
            s.ledger.use_identity(arg)
            touch(s, arg)
    elif name == "__reduce_ex__":
        _reduce(s, args)
    elif name in ("__reduce__", "__getstate__", "__sizeof__", "__dir__"):
        raise BreakGraph("unknown-callable", f"object.{name}")
    elif name in _EXCEPTION_CHANGES and args and s.ledger.find(args[0]) is not None:
        if issubclass(type(args[0]), BaseException):
            raise BreakGraph("unguardable", f"{name} of an outside exception")
    else:
        pure_of_class(s, args)


# What these change is kept by C code, or is written past the attributes of the exception.
_EXCEPTION_CHANGES = frozenset({"__init__", "__setstate__", "add_note", "with_traceback"})


def _reduce(s: Segment, args: Args) -> None:
    """`object.__reduce_ex__`, as `copy` uses it: hands out the instance dict and `copyreg.__newobj__`."""
    value = args[0]
    if is_constant(value):
        return
    if type(value) in (set, frozenset, collections.deque):
        consult_deep(s, value)  # its items, in a list
        return
    reduce = s.classes.entry(type(value), "__reduce__")
    if not is_open(type(value)) or reduce is not object.__reduce__ or args[1:] != (4,):
        raise BreakGraph("unknown-callable", f"{type(value).__qualname__}.__reduce_ex__")
    if copyreg._slotnames(type(value)):  # type: ignore[attr-defined]
        raise BreakGraph("unknown-callable", f"{type(value).__qualname__}.__reduce_ex__ with slots")
    s.classes.note(type(value))
    origin = s.ledger.find(value)
    if origin is not None:
        s.attributes.instance_dict(origin, value)
    read_key(s.ledger, s.ledger.constant(vars(copyreg)), vars(copyreg), "__newobj__")


@rule(takes=2, skipped=True)
def _pass_descriptor(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`property.__get__` and its kin."""
    s.attributes.pass_descriptor(args[0], args[1])


def unseen_by_the_mode(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """A method of tensors that the tensor mode is not told of."""
    raise BreakGraph("tensor-data-ptr", func.__name__)


def reaches_the_mode(name: str) -> bool:
    """Is the tensor mode told of calls of this method of tensors? An operation's name does not vouch for that."""
    if name in _HIDDEN_TENSOR_METHODS:
        return False
    return name in _NOT_OPERATIONS or name.startswith("__") or hasattr(torch.ops.aten, name)


_SHOWING = "__repr__ __str__ __format__"
_SHALLOW = "keys values items copy __iter__ __len__ __getitem__ __reversed__ __add__ __mul__"
# Methods of containers that keep or pass on symbolic numbers, and those of dicts that do besides.
_KEEPING = (
    "append appendleft extend add update setdefault get popitem items keys values copy clear "
    "__iter__ __len__ __contains__ __eq__ __ne__ __add__"
)
_KEEPING_OF_DICTS = f"{_KEEPING} pop __setitem__ __getitem__ __init__ __new__"


def _container(kind: str) -> Callable[[type], bool]:
    """Python's own containers of a kind, and what derives from them in `collections`."""
    return lambda cls: container_kind(cls) == kind and cls.__module__ in ("builtins", "collections", "_collections")


def _containers(kind: str, rules: dict[Rule, str], kept: str = _KEEPING) -> TypeMethods:
    return TypeMethods(_container(kind), {show_plainly: _SHOWING, **rules, shallow: _SHALLOW}, pure, kept)


# What comes first counts, of rows and of rules in them. (Methods of tensors go by their names, below.)
METHODS: tuple[TypeMethods, ...] = (
    TypeMethods(
        (object,),
        {
            get_attribute_plainly: "__getattribute__",
            set_attribute_plainly: "__setattr__",
            delete_attribute_plainly: "__delattr__",
            show_plainly: _SHOWING,
        },
        object_method,
    ),
    TypeMethods(lambda cls: issubclass(cls, BaseException), {show_plainly: _SHOWING}, object_method),
    TypeMethods(
        (type,),
        {
            get_attribute_of_class: "__getattribute__",
            read_type: "__instancecheck__ __subclasscheck__ mro __repr__ __or__",
        },
    ),
    # what never changes, and reads nothing else; an outside bytearray ends the recording when consulted
    TypeMethods((str,), {format_text: "format format_map", convert_text: "encode"}, pure, "join"),
    TypeMethods((bytes, bytearray), {convert_text: "decode"}, pure, ""),
    TypeMethods((int, float, complex, bool), {}, pure, ""),
    TypeMethods((range, slice, type(None)), {}, pure),
    TypeMethods((tuple, frozenset, torch.Size), {show_plainly: _SHOWING}, pure, _KEEPING),
    TypeMethods((re.Pattern,), {pure: "split findall search match fullmatch"}),
    TypeMethods((re.Match,), {pure: "group groups groupdict start end span expand __getitem__"}),
    TypeMethods((types.MappingProxyType, types.GenericAlias, types.UnionType), {}, pure),
    # containers
    _containers(
        "list",
        {
            _sort: "sort",
            _add_to: "append",
            _extend: "extend __iadd__",
            _remove: "remove",
            _change: "insert pop clear reverse __setitem__ __delitem__ __imul__ __init__",
        },
    ),
    _containers(
        "dict",
        {
            dict_get: "get",
            get_item: "__getitem__",
            _dict_contains: "__contains__",
            _dict_set: "__setitem__",
            _dict_take: "pop setdefault __delitem__",
            _dict_update: "update __ior__",
            _change: "clear popitem move_to_end __init__ __missing__",
            read_length: "__len__",
        },
        _KEEPING_OF_DICTS,
    ),
    _containers(
        "set",
        {
            _pop_of_set: "pop",
            _change: "add discard remove clear update difference_update intersection_update "
            "symmetric_difference_update __ior__ __iand__ __isub__ __ixor__ __init__",
        },
    ),
    _containers(
        "deque",
        {
            _change: "append appendleft extend extendleft insert pop popleft remove clear rotate reverse "
            "__setitem__ __delitem__ __iadd__ __init__",
        },
    ),
    _containers("tuple", {}),
    # containers that other modules have made in C
    TypeMethods(lambda cls: issubclass(cls, dict), {show_plainly: _SHOWING}, None, _KEEPING_OF_DICTS),
    TypeMethods(lambda cls: container_kind(cls) is not None, {show_plainly: _SHOWING}, None, _KEEPING),
    TypeMethods(ITERATOR_TYPES, {advance: "__next__ send throw close"}, pure),
    # functions and descriptors
    TypeMethods((types.FunctionType, types.MethodType), {nothing: "__get__"}),
    TypeMethods((property, staticmethod, classmethod), {_pass_descriptor: "__get__"}),
    TypeMethods((types.FrameType,), {_clear_frame: "clear"}),
    TypeMethods((contextvars.ContextVar,), {context_variable: "get"}),
)


def _has(row: TypeMethods, cls: type) -> bool:
    return cls in row.of if isinstance(row.of, tuple) else row.of(cls)


def methods_of(cls: type) -> TypeMethods | None:
    """The row of a type; None: nothing is known of its methods."""
    return next((row for row in METHODS if _has(row, cls)), None)


@functools.cache  # of descriptors of C types, which live as long as the process
def method_rule(func: Any) -> Rule | None:
    """The rule of a method of a builtin type (an unbound C descriptor)."""
    name = func.__name__
    if issubclass(func.__objclass__, torch._C.TensorBase):
        return nothing if reaches_the_mode(name) else unseen_by_the_mode
    row = methods_of(func.__objclass__)
    if row is None:
        return None
    found = next((rule for rule, names in row.rules.items() if name in names.split()), None)
    if found is None and name == "__getattribute__":
        return None  # what a type of its own looks up is its business
    return found or row.otherwise


def keeps_numbers(method: Any) -> bool | None:
    """Does a method of a builtin type keep or pass on symbolic numbers? None: its rule says."""
    row = methods_of(method.__objclass__)
    return None if row is None or row.kept is None else method.__name__ in row.kept.split()


# A test walks all methods of tensors and finds these; `torch.overrides` claims that it is told of some of them.
_HIDDEN_TENSOR_METHODS = frozenset(
    "__new__ __delitem__ __setstate__ set_ as_subclass _make_subclass _make_wrapper_subclass _dtensor__new__ "
    "_use_count _fix_weakref _view_func _view_func_unsafe _rev_view_func_unsafe".split()
)
# Those that it is told of although they are no operations: for all others, an operation of the same name is asked for.
_NOT_OPERATIONS = frozenset(
    "_is_view apply_ bfloat16 byte char mtia xpu ipu const_data_ptr data_ptr double cdouble float cfloat bool half "
    "int long map_ map2_ ndimension nelement new new_tensor numpy short untyped_storage tolist type".split()
)
