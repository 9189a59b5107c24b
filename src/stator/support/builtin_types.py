"""What is known of builtin types: one row per type. The tables that watching and rebuilding go by are made of these.

A type without a row, or a row without an answer, is nothing that stator relies on: its objects are no constants, nobody
looks into them, C code that would read them breaks the graph, and so does a result that is made of one.
"""

from __future__ import annotations

import enum
import functools
import gc
import itertools
import operator
import re
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

import torch

from ..recording import Fact


class Comparison(enum.Enum):
    """How a guard compares an object of a type, whatever else it is."""

    BY_CONTENT = "a constant if all that is in it are constants"
    NEVER = "an object: guarded by what is read of it"


class TypeModel(NamedTuple):
    """One builtin type."""

    type: type
    kind: str | None = None  # which container's layout it has; its subclasses have it too
    compared: Fact | Comparison | None = None  # None: like an object of any class
    held: Callable[[Any], Iterable[Any]] | None = None  # equal, with one hash, if these are the same
    attributes: frozenset[str] = frozenset()  # C attributes that are parts of it: reading them runs nothing
    told_by: tuple[str, ...] = ()  # made anew all the time, and compared by these attributes
    inert: bool = False  # C code may hold it and pass it on without reading anything that needs a guard
    transparent: bool = False  # holding what the collector is told of is all that it does
    entered: bool = False  # C code that compares, hashes or shows it reads what it holds; so of its subclasses
    made_of: Callable[[Any], Iterable[Any]] | None = (
        None  # a constant if these are, even where it is compared as a whole
    )
    changes: bool = False  # its methods change it in place
    constructed: bool = False  # `__new__` reads its arguments and nothing else
    walks: bool = False  # an iterator or a view: it keeps a place in something else, which nobody can read
    hides: bool = False  # symbolic numbers may be in it, where no instruction sees them taken out
    rebuilt: str | None = None  # how a replay makes another one: a method of `watch.finish.rebuild.Rebuilder`
    iterated: Callable[[Any], Any] | None = None  # of an iterator over a dict or set: begins another one
    at_end: Callable[[], Any] | None = None  # of an iterator that lets go of what it goes over: one at its end


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWED: dict[Any, Any] = {}
KEYS, VALUES, ITEMS = type(_VIEWED.keys()), type(_VIEWED.values()), type(_VIEWED.items())


def _at_end(begin: Callable[[Any], Any], of: Any) -> Any:
    """An iterator from which nothing comes any more."""
    iterator = begin(of)
    deque(iterator, 0)
    return iterator


_REDUCED: tuple[Any, ...] = (iter(range(0)), iter(range(1 << 70)), enumerate([]), zip(), map(abs, ()), filter(None, ()))
# Of types that let go at their end of what they go over: how one begins, and of what.
_LETTING_GO: tuple[tuple[Callable[[Any], Any], Any], ...] = (
    *((iter, []), (iter, ()), (iter, ""), (iter, "\u20ac"), (iter, b""), (reversed, [])),
    (functools.partial(iter, int), 0),
)
_WALKING: tuple[tuple[Callable[[Any], Any], Any], ...] = (
    (dict.__iter__, {}),
    (lambda walked: iter(dict.values(walked)), {}),
    (lambda walked: iter(dict.items(walked)), {}),
    (dict.__reversed__, {}),
    (iter, set()),
)
_ORDERED: Any = OrderedDict()
# Iterators and views that nobody can make again.
_OTHER_WALKERS: tuple[Any, ...] = (
    *(cls for cls in vars(itertools).values() if isinstance(cls, type) and cls.__module__ == "itertools"),
    *(type(iter(deque())), reversed, types.GeneratorType),
    *(type(_ORDERED.keys()), type(_ORDERED.items()), type(_ORDERED.values()), type(iter(_ORDERED))),
)
_CONTENT, _NEVER = Comparison.BY_CONTENT, Comparison.NEVER

TYPE_MODELS: tuple[TypeModel, ...] = (
    # numbers, texts, and what else is nothing but a value
    TypeModel(int, compared=Fact.EQUAL, transparent=True, constructed=True),
    TypeModel(float, compared=Fact.EQUAL, transparent=True, constructed=True),
    TypeModel(complex, compared=Fact.EQUAL, transparent=True),
    TypeModel(bool, compared=Fact.EQUAL),
    TypeModel(str, compared=Fact.EQUAL, transparent=True, constructed=True),
    TypeModel(bytes, compared=Fact.EQUAL, transparent=True, constructed=True),
    TypeModel(type(None), compared=Fact.EQUAL),
    TypeModel(type(...), compared=Fact.EQUAL),
    TypeModel(type(NotImplemented), compared=Fact.EQUAL),
    TypeModel(range, compared=Fact.EQUAL),
    TypeModel(re.Pattern, compared=Fact.EQUAL),
    TypeModel(re.Match, attributes=_names("re string pos endpos lastindex lastgroup regs"), rebuilt="match"),
    # torch's
    TypeModel(torch.device, compared=Fact.EQUAL, constructed=True),
    TypeModel(torch.dtype, compared=Fact.IS),
    TypeModel(torch.layout, compared=Fact.IS),
    TypeModel(torch.memory_format, compared=Fact.IS),
    TypeModel(torch.qscheme, compared=Fact.IS),
    TypeModel(torch._ops.OpOverload, compared=Fact.IS),
    TypeModel(torch._ops.OpOverloadPacket, compared=Fact.IS),
    TypeModel(torch.Size, compared=_CONTENT),
    TypeModel(torch.Generator, inert=True),
    # what is nothing but its identity
    TypeModel(types.CodeType, compared=Fact.IS),
    TypeModel(  # nothing says what is in it, but it never changes
        types.GenericAlias,
        compared=Fact.IS,
        made_of=lambda alias: (alias.__origin__, *alias.__args__),
        entered=True,
        rebuilt="alias",
    ),
    TypeModel(types.UnionType, compared=Fact.IS, made_of=lambda union: union.__args__),
    TypeModel(types.MethodDescriptorType, compared=Fact.IS),
    TypeModel(types.WrapperDescriptorType, compared=Fact.IS),
    TypeModel(types.GetSetDescriptorType, compared=Fact.IS),
    TypeModel(types.MemberDescriptorType, compared=Fact.IS),
    TypeModel(types.ClassMethodDescriptorType, compared=Fact.IS),
    TypeModel(type, inert=True),
    # containers
    TypeModel(list, kind="list", compared=_NEVER, transparent=True, changes=True, constructed=True),
    TypeModel(dict, kind="dict", compared=_NEVER, transparent=True, changes=True, constructed=True),
    TypeModel(
        tuple,
        kind="tuple",
        compared=_CONTENT,
        held=lambda items: items,
        transparent=True,
        made_of=lambda items: items,
        constructed=True,
    ),
    TypeModel(set, kind="set", compared=_NEVER, changes=True, constructed=True),
    TypeModel(frozenset, kind="set", constructed=True),
    TypeModel(deque, kind="deque", hides=True, changes=True, constructed=True),
    TypeModel(bytearray, transparent=True, rebuilt="bytearray", changes=True),
    TypeModel(
        slice,
        compared=_CONTENT,
        held=lambda bounds: (bounds.start, bounds.stop, bounds.step),
        entered=True,
        made_of=lambda bounds: (bounds.start, bounds.stop, bounds.step),
        attributes=_names("start stop step"),
        transparent=True,
        rebuilt="slice",
    ),
    TypeModel(types.MappingProxyType, transparent=True, hides=True),
    TypeModel(types.SimpleNamespace, transparent=True, rebuilt="namespace", constructed=True),
    TypeModel(KEYS, held=lambda view: gc.get_referents(view)[0], hides=True, entered=True, walks=True),
    TypeModel(VALUES, held=lambda view: dict.values(gc.get_referents(view)[0]), hides=True, entered=True, walks=True),
    TypeModel(
        ITEMS,
        held=lambda view: chain.from_iterable(dict.items(gc.get_referents(view)[0])),
        hides=True,
        entered=True,
        walks=True,
    ),
    # functions, methods, descriptors
    TypeModel(
        types.FunctionType,
        compared=_NEVER,
        attributes=_names("__code__ __defaults__ __kwdefaults__ __closure__ __globals__ __name__ __qualname__")
        | _names("__module__ __doc__ __annotations__"),
        inert=True,
        transparent=True,
        rebuilt="function",
    ),
    TypeModel(
        types.MethodType,
        compared=_NEVER,
        held=lambda method: (method.__self__, method.__func__),
        entered=True,
        attributes=_names("__func__ __self__"),
        told_by=("__func__", "__self__"),
        inert=True,
        transparent=True,
        rebuilt="method",
    ),
    TypeModel(
        types.BuiltinFunctionType,
        compared=_CONTENT,
        held=lambda method: (method.__self__,),
        entered=True,
        attributes=_names("__self__ __name__ __qualname__ __doc__ __module__"),
        told_by=("__name__", "__self__"),
        inert=True,
        rebuilt="reduced",
    ),
    TypeModel(
        types.MethodWrapperType,
        held=lambda method: (method.__self__,),
        entered=True,
        told_by=("__name__", "__self__"),
        inert=True,
        transparent=True,
        hides=True,
    ),
    TypeModel(
        types.CellType,
        compared=_NEVER,
        attributes=_names("cell_contents"),
        transparent=True,
        rebuilt="cell",
        entered=True,
    ),
    TypeModel(property, attributes=_names("fget fset fdel __doc__"), inert=True, transparent=True),
    TypeModel(staticmethod, attributes=_names("__func__ __wrapped__"), inert=True, transparent=True),
    TypeModel(classmethod, attributes=_names("__func__ __wrapped__"), inert=True, transparent=True),
    TypeModel(super, inert=True, transparent=True),
    TypeModel(
        functools.partial, attributes=_names("func args keywords"), transparent=True, hides=True, rebuilt="partial"
    ),
    TypeModel(functools._lru_cache_wrapper, transparent=True),
    TypeModel(operator.itemgetter, transparent=True),
    TypeModel(operator.attrgetter, transparent=True),
    TypeModel(operator.methodcaller, transparent=True),
    TypeModel(object, transparent=True, constructed=True),
    TypeModel(weakref.ReferenceType, held=lambda ref: (ref(),), entered=True),
    # iterators: those that say by themselves how they are made again, and those that are begun anew and moved on
    *(TypeModel(cls, rebuilt="reduced", walks=True) for cls in map(type, _REDUCED)),
    *(
        TypeModel(type(begin(of)), rebuilt="reduced", walks=True, at_end=functools.partial(_at_end, begin, of))
        for begin, of in _LETTING_GO
    ),
    *(
        TypeModel(
            type(begin(of)), rebuilt="walker", walks=True, iterated=begin, at_end=functools.partial(_at_end, begin, of)
        )
        for begin, of in _WALKING
    ),
    *(TypeModel(cls, walks=True) for cls in _OTHER_WALKERS),
    # what derives from these in C, too
    TypeModel(BaseException, entered=True),
    TypeModel(OrderedDict, constructed=True),
    TypeModel(defaultdict, constructed=True),
    TypeModel(weakref.ProxyType, entered=True),
    TypeModel(weakref.CallableProxyType, entered=True),
)


def types_where(holds: Callable[[TypeModel], Any]) -> tuple[type, ...]:
    """The types whose rows have an answer."""
    return tuple(model.type for model in TYPE_MODELS if holds(model))


# The container whose layout a kind stands for.
BASES: dict[str, Any] = {model.kind: model.type for model in reversed(TYPE_MODELS) if model.kind is not None}
ITERATOR_TYPES = types_where(lambda model: model.walks)
