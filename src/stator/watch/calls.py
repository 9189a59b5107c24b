"""The table of C callables: what each may read and change, hence what must be noted before it runs.

A rule is called with the recorder, the callable and its arguments just before the call. A callable without a rule ends
the recording: C code that nobody vouched for may read or change anything. Python functions need no rule, their frames
are watched.
"""

from __future__ import annotations

import _abc
import _heapq
import _operator
import _string
import builtins
import collections
import contextvars
import copyreg
import functools
import itertools
import math
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .. import _native
from ..facts import container_kind, is_open
from ..recording import Edge
from .breaks import Drop
from .constants import is_constant
from .containers import append, change_all, change_key, expose, measure, read_key
from .identity import Identity

if TYPE_CHECKING:
    from .recorder import Recorder

_C_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
Args = tuple[Any, ...]
Rule = Callable[["Recorder", Any, Args, tuple[str, ...]], Any]

# -- rules


def pure(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Reads its arguments, one level deep, and nothing else."""
    for arg in args:
        r.consult(arg)


def pure_deep(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Reads its arguments all the way down (formatting, comparing)."""
    for arg in args:
        r.consult_deep(arg)


def calls_back(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Calls some of its arguments with what it finds in the others."""
    for arg in args:
        r.consult_callable(arg)
        r.consult_deep(arg)


def format_text(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`str.format`: a field may reach into its argument."""
    pure_deep(r, func, args, kwnames)
    if not isinstance(args[0], str) or func.__name__ == "format_map":
        if any(c in str(args[0]) for c in ".["):
            raise Drop("unknown-callable", "str.format_map with attributes or items")
        return
    positional = args[1 : len(args) - len(kwnames)]
    named = dict(zip(kwnames, args[len(args) - len(kwnames) :], strict=True))
    automatic = itertools.count()
    for _, field, _, _ in _string.formatter_parser(args[0]):
        if field:
            first, path = _string.formatter_field_name_split(field)
            found = named.get(first) if isinstance(first, str) and first else None
            if found is None:
                index = first if isinstance(first, int) else next(automatic)
                found = positional[index] if index < len(positional) else None
            _walk_field(r, found, path)
        elif field is not None:
            next(automatic)


def _walk_field(r: Recorder, value: Any, path: Iterable[tuple[bool, Any]]) -> None:
    """What `{0.name[key]}` reads."""
    for is_attribute, key in path:
        if not is_attribute:
            if container_kind(type(value)) is None:
                raise Drop("unknown-callable", "str.format with items of an object")
            value = value[key]  # exposed already
            continue
        r.attributes.read(value, key)
        if _native.mro_lookup(type(value), key) is not _native.MISSING or not hasattr(value, "__dict__"):
            raise Drop("unknown-callable", "str.format with attributes of a class")
        value = value.__dict__.get(key)
        r.consult_deep(value)


def nothing(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Keeps its arguments without looking into them, or looks at nothing that matters."""


def read_type(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Looks at the types of its arguments only."""
    for arg in args:
        r.touch(arg)
        if isinstance(arg, tuple):
            r.consult_deep(arg)


def read_length(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = r.ledger.find(args[0]) if args else None
    if origin is not None and container_kind(type(args[0])) is not None:
        measure(r.ledger, origin, args[0])
    pure_of_class(r, args)


def pure_of_class(r: Recorder, args: Iterable[Any]) -> None:
    for arg in args:
        r.touch(arg)


def type_call(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    if len(args) != 1:
        raise Drop("build-class")
    r.touch(args[0])


def get_attribute(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`getattr`, `hasattr`, `type.__getattribute__`."""
    if len(args) > 1 and isinstance(args[1], str):
        r.attributes.read(args[0], args[1])


def get_attribute_plainly(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`object.__getattribute__`."""
    if len(args) > 1 and isinstance(args[1], str):
        r.attributes.read_plain(args[0], args[1])


def set_attribute(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    r.attributes.write(args[0], args[1], delete=func is delattr)


def set_attribute_plainly(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`object.__setattr__`, `object.__delattr__`."""
    r.attributes.write_plain(args[0], args[1], delete=func.__name__ == "__delattr__")


def namespace_of(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`vars(o)`."""
    if args:
        r.attributes.read(args[0], "__dict__")


def advance(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`next`: the iterator moves on."""
    r.advance(args[0])


def state(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Reads a part of torch's global state that every recording guards as a whole."""


def read_again(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """A reader of state that the guards call again: same arguments, same answer."""
    if kwnames or not all(map(is_constant, args)):
        raise Drop("unguardable", f"{r.name_of(func)} with arguments that are not constants")
    value = r.paused(func, *args)
    r.ledger.read(r.ledger.find(func) or r.ledger.constant(func), Edge.CALL, args, value)


def context_variable(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    value = r.paused(func, *args)
    r.ledger.read(r.ledger.constant(func), Edge.CALL, args, value)


def cached(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """A function behind `functools.lru_cache`: on a hit no frame runs, so the guards ask the cache again."""
    if kwnames or not all(map(is_constant, args)):
        raise Drop("cached-function", r.name_of(func))
    read_again(r, func, args, kwnames)


def follow_weak_reference(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = r.ledger.find(func)
    if origin is not None:
        r.ledger.touch(origin, func)
        r.ledger.read(origin, Edge.CALL, (), r.paused(func))


def call_partial(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = r.ledger.find(func)
    if origin is not None:
        r.ledger.touch(origin, func)
        for part in ("func", "args", "keywords"):
            place = r.ledger.read(origin, Edge.ATTR, part, getattr(func, part))
            if part != "func" and not is_constant(getattr(func, part)):
                expose(r.ledger, place, getattr(func, part))
    names = tuple(func.keywords) + kwnames
    split = len(args) - len(kwnames)
    r.call(None, func.func, func.args + args[:split] + tuple(func.keywords.values()) + args[split:], names)


def call_methodcaller(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    kind, parts = func.__reduce__()
    if kind is not operator.methodcaller:
        raise Drop("unknown-callable", "operator.methodcaller with keywords")
    r.attributes.read(args[0], parts[0])
    method = _native.mro_lookup(type(args[0]), parts[0])
    if isinstance(method, _C_DESCRIPTORS):
        r.call(None, method, (args[0], *parts[1:]), ())


def call_attrgetter(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    for path in func.__reduce__()[1]:
        if "." in path:
            raise Drop("unknown-callable", "operator.attrgetter with a dotted name")
        r.attributes.read(args[0], path)


def answer_overrides(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`has_torch_function*` say True under any mode; only the wrappers of torch's own operations should hear that."""
    if r.in_operation_wrapper():
        return None
    return _plain_has_torch_function


def _plain_has_torch_function(*args: Any) -> bool:
    relevant = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
    return any(_overrides(type(arg)) for arg in relevant)


def _overrides(cls: type) -> bool:
    found = _native.mro_lookup(cls, "__torch_function__")
    plain = (_native.MISSING, torch.Tensor.__dict__["__torch_function__"], torch._C._disabled_torch_function_impl)
    return not any(found is known for known in plain)


def no_mode(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """The program must not see the mode that watches it."""
    return None if r.in_operation_wrapper() else _no_mode


def _no_mode() -> bool:
    return False


def identity_of(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`id`: answered with a number that ends the recording if it is used for more than a key."""
    if len(args) != 1 or kwnames:
        return None
    r.hashed(args[0])
    return functools.partial(Identity, recorder=r)


def hash_of(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    if _native.mro_lookup(type(args[0]), "__hash__") in (object.__hash__, torch.Tensor.__hash__):
        raise Drop("identity", "hash")
    pure_deep(r, func, args, kwnames)


def exception_info(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`sys.exc_info()`: an exception handled inside is fresh; that none was being handled outside is guarded."""
    if r.handled_outside:
        raise Drop("unguardable", "the exception that the caller handles")
    r.ledger.read(r.ledger.constant(func), Edge.CALL, (), (None, None, None))


def change_first(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Changes its first argument, a list."""
    _change(r, func, args, kwnames)


# -- methods of builtin containers, by what they do with the container


def _add_to(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = r.ledger.find(args[0])
    if origin is not None:
        append(r.ledger, origin, args[0])


def _extend(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    pure(r, func, args[1:], ())
    _add_to(r, func, args, kwnames)


def _change(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    pure(r, func, args[1:], ())
    origin = r.ledger.find(args[0])
    if origin is not None:
        change_all(r.ledger, origin, args[0])


def _dict_get(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    r.hashed(args[1])
    origin = r.ledger.find(args[0])
    if origin is not None:
        read_key(r.ledger, origin, args[0], args[1])


def _dict_contains(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    r.contains(args[1], args[0])


def _dict_set(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    r.hashed(args[1])
    origin = r.ledger.find(args[0])
    if origin is not None:
        change_key(r.ledger, origin, args[0], args[1])


def _dict_take(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`pop`, `setdefault`, `__delitem__`: look, then change one key."""
    if container_kind(type(args[0])) != "dict":
        _change(r, func, args, kwnames)
        return
    _dict_get(r, func, args, kwnames)
    _dict_set(r, func, args, kwnames)


def _dict_update(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    pure(r, func, args[1:], ())
    origin = r.ledger.find(args[0])
    if origin is None:
        return
    positional = args[1 : len(args) - len(kwnames)]
    if all(isinstance(arg, dict) for arg in positional):
        for key in itertools.chain(*positional, kwnames):
            change_key(r.ledger, origin, args[0], key)
    else:
        change_all(r.ledger, origin, args[0])


def _sort(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    for arg in args[1:]:
        r.consult_callable(arg)
    r.consult_deep(args[0])
    _change(r, func, args, kwnames)


_METHODS: dict[str, dict[Rule, str]] = {
    "list": {
        _sort: "sort",
        _add_to: "append",
        _extend: "extend __iadd__",
        _change: "insert pop remove clear reverse __setitem__ __delitem__ __imul__ __init__",
    },
    "dict": {
        _dict_get: "get __getitem__",
        _dict_contains: "__contains__",
        _dict_set: "__setitem__",
        _dict_take: "pop setdefault __delitem__",
        _dict_update: "update __ior__",
        _change: "clear popitem move_to_end __init__ __missing__",
        read_length: "__len__",
    },
    "set": {
        _change: "add discard remove pop clear update difference_update intersection_update "
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
_ITERATOR_TYPES = tuple(
    {type(iter(c)) for c in ([], (), {}, {}.values(), {}.items(), set(), "", b"", range(0), collections.deque())}
    | {type(reversed([])), type(reversed({})), enumerate, zip, map, filter, reversed}
    | {cls for cls in vars(itertools).values() if isinstance(cls, type)}
    | {types.GeneratorType, type({}.keys()), type({}.values()), type({}.items())}
    | {type(collections.OrderedDict().keys()), type(collections.OrderedDict().items())}
    | {type(collections.OrderedDict().values()), type(iter(collections.OrderedDict()))}
)


def _object_method(r: Recorder, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Special methods of `object` and of builtin exceptions."""
    name = func.__name__
    if name in ("__eq__", "__ne__", "__hash__"):
        for arg in args:
            r.ledger.use_identity(arg)
            r.touch(arg)
    elif name == "__reduce_ex__":
        _reduce(r, args)
    elif name in ("__reduce__", "__getstate__", "__sizeof__", "__dir__"):
        raise Drop("unknown-callable", f"object.{name}")
    else:
        pure_of_class(r, args)


def _reduce(r: Recorder, args: Args) -> None:
    """`object.__reduce_ex__`, as `copy` uses it: hands out the instance dict and `copyreg.__newobj__`."""
    value = args[0]
    if is_constant(value):
        return
    reduce = r.classes.entry(type(value), "__reduce__")
    if not is_open(type(value)) or reduce is not object.__reduce__ or args[1:] != (4,):
        raise Drop("unknown-callable", f"{type(value).__qualname__}.__reduce_ex__")
    if copyreg._slotnames(type(value)):
        raise Drop("unknown-callable", f"{type(value).__qualname__}.__reduce_ex__ with slots")
    r.classes.note(type(value))
    origin = r.ledger.find(value)
    if origin is not None:
        r.attributes.instance_dict(origin, value)
    read_key(r.ledger, r.ledger.constant(vars(copyreg)), vars(copyreg), "__newobj__")


def method_rule(func: Any) -> Rule | None:
    """The rule of a method of a builtin type (an unbound C descriptor)."""
    cls, name = func.__objclass__, func.__name__
    if issubclass(cls, torch._C.TensorBase):
        return nothing if name not in _HIDDEN_TENSOR_METHODS else None
    if name == "__getattribute__":
        return get_attribute if cls is type else get_attribute_plainly if cls is object else None
    if cls is object and name in ("__setattr__", "__delattr__"):
        return set_attribute_plainly
    if cls is str and name in ("format", "format_map"):
        return format_text
    if cls in _IMMUTABLE_TYPES or cls is bytearray:  # an outside bytearray ends the recording when consulted
        return pure_deep
    kind = container_kind(cls)
    if kind is not None and cls.__module__ in ("builtins", "collections", "_collections"):
        return _BY_METHOD.get((kind, name), pure_deep if name in _DEEP_METHODS else pure)
    if cls is object or issubclass(cls, BaseException):
        return _object_method
    if cls is type and name in ("__instancecheck__", "__subclasscheck__", "mro", "__repr__", "__or__", "__call__"):
        return read_type
    if cls in _ITERATOR_TYPES:
        return advance if name in ("__next__", "send", "throw", "close") else pure
    if cls is contextvars.ContextVar and name == "get":
        return context_variable
    if cls in (types.FunctionType, types.MethodType, property, staticmethod, classmethod) and name in ("__get__", "__repr__"):
        return nothing
    if cls in (types.MappingProxyType, types.GenericAlias, types.UnionType):
        return pure
    return None


_DEEP_METHODS = frozenset("__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ __str__ __format__ index count".split())
_HIDDEN_TENSOR_METHODS = frozenset({"as_subclass", "_make_subclass", "_make_wrapper_subclass", "__setstate__"})

# -- the table proper, by identity


def _all_of(module: Any) -> list[Any]:
    return [value for value in vars(module).values() if isinstance(value, types.BuiltinFunctionType)]


def _named(module: Any, names: str) -> list[Any]:
    return [getattr(module, name) for name in names.split() if hasattr(module, name)]


_TABLE: list[tuple[Rule, Iterable[Any]]] = [
    (calls_back, _named(builtins, "all any filter frozenset iter map max min set sorted sum")),
    (pure, _named(builtins, "abs bytearray bytes complex dict enumerate float int list")),
    (pure, _named(builtins, "pow reversed round tuple zip chr ord bin hex oct divmod slice range")),
    (pure_deep, _named(builtins, "str repr format ascii")),
    (read_type, [isinstance, issubclass, callable]),
    (read_length, [len, bool]),
    (nothing, [super, property, staticmethod, classmethod, object, globals, locals]),
    (type_call, [type]),
    (get_attribute, [getattr, hasattr]),
    (set_attribute, [setattr, delattr]),
    (namespace_of, [vars]),
    (advance, [next]),
    (pure, _all_of(math)),
    (pure_deep, [f for f in _all_of(_operator) if f.__name__[0] != "_" and not f.__name__.startswith(("i", "set", "del"))]),
    (pure, [operator.index, operator.is_, operator.is_not, operator.inv, operator.invert]),
    (calls_back, [functools.reduce, functools.cmp_to_key]),
    (pure, [functools.partial]),
    (calls_back, [cls for cls in vars(itertools).values() if isinstance(cls, type)]),
    (change_first, _all_of(_heapq)),
    (change_first, [collections._count_elements]),
    (hash_of, [hash]),
    (identity_of, [id]),
    (exception_info, [sys.exc_info]),
    (read_again, [sys.getrecursionlimit]),
    (nothing, [sys.intern]),
    (pure, _named(collections, "deque OrderedDict")),
    (calls_back, [collections.defaultdict]),
    (pure, [types.SimpleNamespace, types.MappingProxyType, types.MethodType, types.GenericAlias, types.UnionType]),
    (pure, [operator.itemgetter, operator.attrgetter, operator.methodcaller]),
    (read_type, [_abc._abc_instancecheck, _abc._abc_subclasscheck]),
    (read_type, [_abc.get_cache_token]),
    (pure, [torch.Size, torch.device, torch.finfo, torch.iinfo]),
    (nothing, [weakref.ref]),
    (answer_overrides, _named(torch._C, "_has_torch_function _has_torch_function_unary _has_torch_function_variadic")),
    (no_mode, _named(torch._C, "_is_torch_function_mode_enabled _is_torch_function_all_disabled")),
    (nothing, _named(torch._C, "_log_api_usage_once _set_grad_enabled")),
    (
        state,
        _named(torch._C, "is_grad_enabled is_inference_mode_enabled get_default_dtype _get_tracing_state")
        + _named(torch._C, "_is_any_autocast_enabled is_any_autocast_enabled is_autocast_enabled")
        + _named(torch, "is_grad_enabled is_inference_mode_enabled get_default_dtype is_autocast_enabled")
        + _named(torch, "is_autocast_cpu_enabled get_autocast_dtype get_autocast_gpu_dtype get_autocast_cpu_dtype")
        + _named(torch, "is_autocast_cache_enabled _is_autocast_available")
        + _named(torch._C, "_is_autocast_available _is_tracing"),
    ),
    (
        nothing,
        [
            getattr(torch._C._VariableFunctions, name)
            for name in dir(torch._C._VariableFunctions)
            if not name.startswith("__") and name not in ("from_numpy", "frombuffer", "_from_functional_tensor")
        ],
    ),
    (nothing, [f for name in "_nn _linalg _fft _special _sparse _nested".split() for f in _all_of(getattr(torch._C, name))]),
]
RULES: dict[int, Rule] = {}
_ALIVE: list[Any] = []
for _rule, _callables in _TABLE:
    for _callable in _callables:
        RULES.setdefault(id(_callable), _rule)
        _ALIVE.append(_callable)

# What must be told apart when nothing vouches for a callable: the id in the catalogue of reasons, by module and name.
_BREAKS_BY_NAME = {
    "print": "call-print",
    "input": "call-input",
    "open": "call-open",
    "breakpoint": "call-debugger",
    "exec": "exec-eval",
    "eval": "exec-eval",
    "compile": "exec-eval",
    "id": "identity",
    "__build_class__": "build-class",
    "__import__": "import",
}
_BREAKS_BY_MODULE = {
    "time": "time",
    "random": "random",
    "_random": "random",
    "numpy": "numpy",
    "_warnings": "call-warn",
    "_thread": "thread-local",
}
_STATE_PREFIXES = ("_get_", "_is_", "is_", "get_", "_are_", "_has_", "has_")
_SAFE_NEW = (object, list, dict, tuple, set, frozenset, str, int, float, bytes, collections.deque)
_SAFE_NEW += (collections.OrderedDict, collections.defaultdict, types.SimpleNamespace, torch.device)


def break_for(func: Any) -> str:
    """Why a callable without a rule breaks the graph."""
    module = (getattr(func, "__module__", None) or type(getattr(func, "__self__", None)).__module__ or "").split(".")[0]
    name = getattr(func, "__name__", "")
    if module in ("builtins", "io", "_io") and name in _BREAKS_BY_NAME:
        return _BREAKS_BY_NAME[name]
    return _BREAKS_BY_MODULE.get(module, "unknown-callable")


def constructor_rule(r: Recorder, cls: type, args: Args, kwnames: tuple[str, ...]) -> None:
    """A class without an entry in the table is called."""
    meta = type(cls)
    if is_open(meta):
        r.classes.note(meta)
        if isinstance(_native.mro_lookup(meta, "__call__"), types.FunctionType):
            return  # its own frame is watched
    if issubclass(cls, BaseException) and not is_open(cls):
        return
    new = r.classes.entry(cls, "__new__")
    if isinstance(new, types.BuiltinFunctionType):
        base = new.__self__
        if not (base in _SAFE_NEW or isinstance(base, type) and issubclass(base, BaseException)):
            raise Drop("unknown-callable", f"{cls.__module__}.{cls.__qualname__}(…)")
        if base is not object:
            pure(r, cls, args, kwnames)
    r.classes.note(cls)
    init = r.classes.entry(cls, "__init__")
    if isinstance(init, types.WrapperDescriptorType) and init.__objclass__ is not object:
        pure(r, cls, args, kwnames)


def torch_state_reader(func: Any) -> bool:
    """A C function of torch that only reports a setting."""
    if not isinstance(func, types.BuiltinFunctionType) or not func.__name__.startswith(_STATE_PREFIXES):
        return False
    return (func.__module__ or "").split(".")[0] == "torch"


_BY_TYPE: dict[type, Rule] = {
    functools._lru_cache_wrapper: cached,
    weakref.ReferenceType: follow_weak_reference,
    functools.partial: call_partial,
    operator.itemgetter: pure,
    operator.attrgetter: call_attrgetter,
    operator.methodcaller: call_methodcaller,
}


# Rules that must be asked at every call, since what they note depends on more than which arguments are outside objects.
_ASKED_ALWAYS = frozenset(
    {get_attribute, get_attribute_plainly, set_attribute, set_attribute_plainly, namespace_of, read_again, cached}
    | {context_variable, follow_weak_reference, call_partial, call_attrgetter, call_methodcaller, _object_method}
)


def may_be_approved(func: Any, rule: Rule) -> bool:
    """Can the C side skip calls of this callable whose arguments are all fresh?"""
    return rule not in _ASKED_ALWAYS and (id(func) in RULES or isinstance(func, _C_DESCRIPTORS))


def reads_arguments_only(func: Any) -> bool:
    """May C code call this C function on arguments that were exposed all the way down?"""
    rule = RULES.get(id(func))
    if rule is None and isinstance(func, _C_DESCRIPTORS):
        rule = method_rule(func)
    return rule in (pure, pure_deep, read_type, read_length, nothing, state, _dict_get) and func is not operator.getitem


def rule_for(func: Any) -> Rule | None:
    """The rule of a callable that is not a Python function, a class or an instance with a Python `__call__`."""
    rule = RULES.get(id(func))
    if rule is not None:
        return rule
    if isinstance(func, (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)):
        return method_rule(func)
    if isinstance(func, types.BuiltinFunctionType) and func.__name__ == "__new__" and func.__self__ in _SAFE_NEW:
        return pure
    if torch_state_reader(func):
        return read_again
    return _BY_TYPE.get(type(func))


def bound_parts(func: Any) -> tuple[Any, Any] | None:
    """A bound C method as (unbound descriptor, self)."""
    if not isinstance(func, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return None
    owner = func.__self__
    if owner is None or isinstance(owner, types.ModuleType) or type(owner).__module__ == "pybind11_builtins":
        return None
    classes = type(owner).__mro__ + (owner.__mro__ if isinstance(owner, type) else ())
    for cls in classes:  # the first C descriptor of that name: what stands before it in the MRO was passed by `super`
        found = vars(cls).get(func.__name__)
        if isinstance(found, _C_DESCRIPTORS):
            return found, owner
    return None
