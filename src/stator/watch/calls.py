"""The table of C callables: which rule each goes by.

A callable without a rule ends the recording: C code that nobody vouched for may read or change anything. Python
functions need no rule, their frames are watched.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import _heapq
import _operator
import builtins
import collections
import functools
import itertools
import math
import operator
import sys
import types
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from .. import _native
from ..facts import is_open
from .breaks import Drop
from .methods import change_first, dict_get, method_rule, object_method
from .rules import (
    C_DESCRIPTORS,
    Args,
    Rule,
    advance,
    answer_overrides,
    cached,
    call_attrgetter,
    call_compiled,
    call_methodcaller,
    call_partial,
    calls_back,
    check_abstract,
    compare_identity,
    context_variable,
    exception_info,
    follow_weak_reference,
    get_attribute,
    get_attribute_plainly,
    get_item,
    hash_of,
    identity_of,
    namespace_of,
    no_mode,
    nothing,
    own_globals,
    pure,
    read_again,
    read_length,
    read_type,
    set_attribute,
    set_attribute_plainly,
    shallow,
    state,
    type_call,
)

if TYPE_CHECKING:
    from .handlers import Handlers


def _all_of(module: Any) -> list[Any]:
    return [value for value in vars(module).values() if issubclass(type(value), types.BuiltinFunctionType)]


def _named(module: Any, names: str) -> list[Any]:
    return [getattr(module, name) for name in names.split() if hasattr(module, name)]


_TABLE: list[tuple[Rule, Iterable[Any]]] = [
    (calls_back, _named(builtins, "all any filter frozenset iter map max min set sorted sum")),
    (shallow, _named(builtins, "list tuple enumerate reversed zip slice")),
    (pure, _named(builtins, "abs bytearray bytes complex dict float int pow round chr ord bin hex oct divmod range")),
    (pure, _named(builtins, "str repr format ascii")),
    (read_type, [isinstance, issubclass, callable]),
    (read_length, [len, bool]),
    (nothing, [super, property, staticmethod, classmethod, object, locals]),
    (own_globals, [globals]),
    (type_call, [type]),
    (get_attribute, [getattr, hasattr]),
    (set_attribute, [setattr, delattr]),
    (namespace_of, [vars]),
    (advance, [next]),
    (pure, _all_of(math)),
    (compare_identity, [operator.is_, operator.is_not]),
    (get_item, [operator.getitem]),
    (
        pure,
        [f for f in _all_of(_operator) if f.__name__[0] != "_" and not f.__name__.startswith(("i", "set", "del"))],
    ),
    (pure, [operator.index, operator.inv, operator.invert]),
    (calls_back, [functools.reduce, functools.cmp_to_key]),
    (pure, [functools.partial]),
    (calls_back, [cls for cls in vars(itertools).values() if isinstance(cls, type)]),
    (change_first, _all_of(_heapq)),
    (change_first, [collections._count_elements]),  # type: ignore[attr-defined]
    (hash_of, [hash]),
    (identity_of, [id]),
    (exception_info, [sys.exc_info]),
    (read_again, [sys.getrecursionlimit]),
    (nothing, [sys.intern]),
    (pure, _named(collections, "deque OrderedDict")),
    (calls_back, [collections.defaultdict]),
    (pure, [types.SimpleNamespace, types.MappingProxyType, types.MethodType, types.GenericAlias, types.UnionType]),
    (pure, [operator.itemgetter, operator.attrgetter, operator.methodcaller]),
    (check_abstract, [_abc._abc_instancecheck, _abc._abc_subclasscheck]),
    (read_type, [_abc.get_cache_token]),
    (pure, [torch.Size, torch.device, torch.finfo, torch.iinfo]),
    (nothing, [weakref.ref]),
    (answer_overrides, _named(torch._C, "_has_torch_function _has_torch_function_unary _has_torch_function_variadic")),
    (no_mode, _named(torch._C, "_is_torch_function_mode_enabled _is_torch_function_all_disabled")),
    (nothing, _named(torch._C, "_log_api_usage_once _set_grad_enabled")),
    (
        state,
        _named(torch._C, "is_grad_enabled is_inference_mode_enabled get_default_dtype _get_tracing_state")
        + _named(torch._C, "_len_torch_dispatch_stack")
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
    (
        nothing,
        [f for name in "_nn _linalg _fft _special _sparse _nested".split() for f in _all_of(getattr(torch._C, name))],
    ),
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
_SAFE_NEW: tuple[type, ...] = (object, list, dict, tuple, set, frozenset, str, int, float, bytes, collections.deque)
_SAFE_NEW += (collections.OrderedDict, collections.defaultdict, types.SimpleNamespace, torch.device)


def break_for(func: Any) -> str:
    """Why a callable without a rule breaks the graph."""
    module = (getattr(func, "__module__", None) or type(getattr(func, "__self__", None)).__module__ or "").split(".")[0]
    name = getattr(func, "__name__", "")
    if func in (sys._getframe, sys._current_frames):
        return "frames"
    if module in ("builtins", "io", "_io") and name in _BREAKS_BY_NAME:
        return _BREAKS_BY_NAME[name]
    return _BREAKS_BY_MODULE.get(module, "unknown-callable")


def constructor_rule(r: Handlers, cls: type, args: Args, kwnames: tuple[str, ...]) -> None:
    """A class without an entry in the table is called."""
    meta = type(cls)
    if is_open(meta):
        r.classes.note(meta)
        if isinstance(_native.mro_lookup(meta, "__call__"), types.FunctionType):
            return  # its own frame is watched
    if issubclass(cls, BaseException) and not is_open(cls):
        return
    new = r.classes.entry(cls, "__new__")
    if issubclass(type(new), types.BuiltinFunctionType):
        base = new.__self__
        if not (base in _SAFE_NEW or (isinstance(base, type) and issubclass(base, BaseException))):
            raise Drop("unknown-callable", f"{cls.__module__}.{cls.__qualname__}(…)")
        if base is not object:
            pure(r, cls, args, kwnames)
    r.classes.note(cls)
    init = r.classes.entry(cls, "__init__")
    if issubclass(type(init), types.WrapperDescriptorType) and init.__objclass__ is not object:
        pure(r, cls, args, kwnames)


def torch_state_reader(func: Any) -> bool:
    """A C function of torch that only reports a setting."""
    if not issubclass(type(func), types.BuiltinFunctionType) or not func.__name__.startswith(_STATE_PREFIXES):
        return False
    return (func.__module__ or "").split(".")[0] == "torch"


_BY_TYPE: dict[type, Rule] = {
    functools._lru_cache_wrapper: cached,
    weakref.ReferenceType: follow_weak_reference,
    functools.partial: call_partial,
    _native.Compiled: call_compiled,
    operator.itemgetter: pure,
    operator.attrgetter: call_attrgetter,
    operator.methodcaller: call_methodcaller,
}


# Rules that must be asked at every call, since what they note depends on more than which arguments are outside objects.
_ASKED_ALWAYS = frozenset(
    {
        calls_back,
        change_first,
        get_item,
        own_globals,
        get_attribute,
        get_attribute_plainly,
        set_attribute,
        set_attribute_plainly,
        namespace_of,
        read_again,
        cached,
    }
    | {
        context_variable,
        follow_weak_reference,
        call_partial,
        call_compiled,
        call_attrgetter,
        call_methodcaller,
        object_method,
    }
)


def may_be_approved(func: Any, rule: Rule) -> bool:
    """Can the C side skip calls of this callable whose arguments are all fresh?"""
    return rule not in _ASKED_ALWAYS and (id(func) in RULES or issubclass(type(func), C_DESCRIPTORS))


def reads_arguments_only(func: Any) -> bool:
    """May C code call this C function on arguments that were exposed all the way down?"""
    rule = RULES.get(id(func))
    if rule is None and issubclass(type(func), C_DESCRIPTORS):
        rule = method_rule(func)
    return rule in (pure, shallow, read_type, read_length, nothing, state, dict_get)


def rule_for(func: Any) -> Rule | None:
    """The rule of a callable that is not a Python function, a class or an instance with a Python `__call__`."""
    rule = RULES.get(id(func))
    if rule is not None:
        return rule
    if issubclass(
        type(func), (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
    ):
        return method_rule(func)
    if issubclass(type(func), types.BuiltinFunctionType) and func.__name__ == "__new__" and func.__self__ in _SAFE_NEW:
        return pure
    if torch_state_reader(func):
        return read_again
    return _BY_TYPE.get(type(func))


def bound_parts(func: Any) -> tuple[Any, Any] | None:
    """A bound C method as (unbound descriptor, self)."""
    if not issubclass(type(func), (types.BuiltinFunctionType, types.MethodWrapperType)):
        return None
    owner = func.__self__
    if owner is None or issubclass(type(owner), types.ModuleType) or type(owner).__module__ == "pybind11_builtins":
        return None
    classes = type(owner).__mro__ + (owner.__mro__ if issubclass(type(owner), type) else ())
    for cls in classes:  # the first C descriptor of that name: what stands before it in the MRO was passed by `super`
        found = vars(cls).get(func.__name__)
        if issubclass(type(found), C_DESCRIPTORS):
            return found, owner
    return None
