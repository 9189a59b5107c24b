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
from collections.abc import Iterable
from typing import Any

import torch

from ...support.guard_readers import container_kind, is_open
from ..graph_break import BreakGraph
from ..objects.constants import is_constant
from ..objects.containers import append, change_all, change_key, items_at, read_key
from ..objects.iterator_types import ITERATOR_TYPES
from ..segment import Segment
from .reads import consult_callable, consult_deep, look_for, note_text, touch, use_as_key
from .rules import (
    Args,
    Rule,
    advance,
    context_variable,
    convert_text,
    delete_attribute_plainly,
    format_text,
    get_attribute,
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
    takes,
)


@takes(1)
def change_first(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Changes its first argument, a list or a dict, by what it finds in it and in the others."""
    pure(s, func, args, ())
    _change(s, func, args, kwnames)


@takes(1)
def _add_to(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = s.ledger.find(args[0])
    if origin is not None:
        append(s.ledger, origin, args[0])


@takes(1)
def _extend(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    shallow(s, func, args[1:], ())
    _add_to(s, func, args, kwnames)


@takes(1)
def _change(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    shallow(s, func, args[1:], ())
    origin = s.ledger.find(args[0])
    if origin is not None:
        change_all(s.ledger, origin, args[0], _gone(func.__name__, args))


@takes(1)
def _clear_frame(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`frame.clear()`: a frame that the run has made, and that is no generator's, is gone anyway in a replay."""
    frame = args[0]
    suspendable = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if type(frame) is not types.FrameType or s.ledger.find(frame) is not None or frame.f_code.co_flags & suspendable:
        raise BreakGraph("frames", "frame.clear")


@takes(2)
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


@takes(2)
def dict_get(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    use_as_key(s, args[1])
    origin = s.ledger.find(args[0])
    if origin is not None:
        read_key(s.ledger, origin, args[0], args[1])


@takes(2)
def _dict_contains(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    look_for(s, args[1], args[0])


@takes(2)
def _dict_set(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    use_as_key(s, args[1])
    origin = s.ledger.find(args[0])
    if origin is not None:
        change_key(s.ledger, origin, args[0], args[1])


@takes(2)
def _dict_take(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`pop`, `setdefault`, `__delitem__`: look, then change one key."""
    if container_kind(type(args[0])) != "dict":
        _change(s, func, args, kwnames)
        return
    dict_get(s, func, args, kwnames)
    origin = s.ledger.find(args[0])
    if origin is not None:
        change_key(s.ledger, origin, args[0], args[1], remove=func.__name__ != "setdefault")


@takes(1)
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


@takes(1)
def _remove(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    consult_deep(s, args[0])
    _change(s, func, args, kwnames)


@takes(1)
def _pop_of_set(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    if s.ledger.find(args[0]) is not None:
        raise BreakGraph("unguardable", "set.pop goes by where the last one stopped")


@takes(1)
def _sort(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    for arg in args[1:]:
        consult_callable(s, arg)
    consult_deep(s, args[0])
    if makes_texts(args):
        note_text(s, args[0], "__repr__")
    _change(s, func, args, kwnames)


_METHODS: dict[str, dict[Rule, str]] = {
    "list": {
        _sort: "sort",
        _add_to: "append",
        _extend: "extend __iadd__",
        _remove: "remove",
        _change: "insert pop clear reverse __setitem__ __delitem__ __imul__ __init__",
    },
    "dict": {
        dict_get: "get",
        get_item: "__getitem__",
        _dict_contains: "__contains__",
        _dict_set: "__setitem__",
        _dict_take: "pop setdefault __delitem__",
        _dict_update: "update __ior__",
        _change: "clear popitem move_to_end __init__ __missing__",
        read_length: "__len__",
    },
    "set": {
        _pop_of_set: "pop",
        _change: "add discard remove clear update difference_update intersection_update "
        "symmetric_difference_update __ior__ __iand__ __isub__ __ixor__ __init__",
    },
    "deque": {
        _change: "append appendleft extend extendleft insert pop popleft remove clear rotate reverse "
        "__setitem__ __delitem__ __iadd__ __init__",
    },
    "tuple": {},
}
_BY_METHOD: dict[tuple[str, str], Rule] = {
    (kind, name): rule for kind, rules in _METHODS.items() for rule, names in rules.items() for name in names.split()
}
_IMMUTABLE_TYPES = (str, bytes, int, float, complex, bool, tuple, frozenset, range, slice, type(None), torch.Size)


@takes(1)
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


@takes(2)
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


@functools.cache  # of descriptors of C types, which live as long as the process
def method_rule(func: Any) -> Rule | None:
    """The rule of a method of a builtin type (an unbound C descriptor)."""
    cls, name = func.__objclass__, func.__name__
    if issubclass(cls, torch._C.TensorBase):
        return nothing if reaches_the_mode(name) else unseen_by_the_mode
    if name == "__getattribute__":
        return get_attribute if cls is type else get_attribute_plainly if cls is object else None
    if cls is object and name in ("__setattr__", "__delattr__"):
        return set_attribute_plainly if name == "__setattr__" else delete_attribute_plainly
    if cls is str and name in ("format", "format_map"):
        return format_text
    if cls in (str, bytes, bytearray) and name in ("encode", "decode"):
        return convert_text
    shows = name in ("__repr__", "__str__", "__format__")
    if shows and (cls is object or issubclass(cls, BaseException) or container_kind(cls) is not None):
        return show_plainly
    if cls in _IMMUTABLE_TYPES or cls is bytearray:  # an outside bytearray ends the recording when consulted
        return pure
    if cls is re.Pattern and name in ("split", "findall"):  # others give a match, which nobody can make again
        return pure
    kind = container_kind(cls)
    if kind is not None and cls.__module__ in ("builtins", "collections", "_collections"):
        default: Rule = shallow if name in _SHALLOW_METHODS else pure
        return _BY_METHOD.get((kind, name), default)
    if cls is object or issubclass(cls, BaseException):
        return object_method
    if cls is type and name in ("__instancecheck__", "__subclasscheck__", "mro", "__repr__", "__or__"):
        return read_type
    if cls in ITERATOR_TYPES:
        return advance if name in ("__next__", "send", "throw", "close") else pure
    if cls is types.FrameType and name == "clear":
        return _clear_frame
    if cls is contextvars.ContextVar and name == "get":
        return context_variable
    if cls in (types.FunctionType, types.MethodType) and name == "__get__":
        return nothing
    if cls in (property, staticmethod, classmethod) and name == "__get__":
        return _pass_descriptor
    if cls in (types.MappingProxyType, types.GenericAlias, types.UnionType):
        return pure
    return None


_SHALLOW_METHODS = frozenset("keys values items copy __iter__ __len__ __getitem__ __reversed__ __add__ __mul__".split())
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
