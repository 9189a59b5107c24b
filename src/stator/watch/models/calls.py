"""The table of C callables: one row for each.

A callable without a rule ends the recording: C code that nobody vouched for may read or change anything. Python
functions need no rule, their frames are watched.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import _bisect
import _heapq
import _operator
import builtins
import collections
import functools
import itertools
import math
import operator
import os
import sys
import types
import weakref
from typing import Any

import torch

from ... import _native
from ...support.builtin_types import types_where
from ...support.guard_readers import class_dict, is_open
from ..graph_break import BreakGraph
from ..objects import locks
from ..segment import Segment
from ..tensors.operators import SCRIPTED
from . import logging_calls, module_hooks, numbers, other_compiler, schedulers, torch_settings, user_hints
from .cached_calls import compile_pattern
from .call_model import Args, CallModel, NumberUse, Rule, facts_of, rule
from .methods import change_first, method_rule, operate_in_place
from .reads import C_DESCRIPTORS, note_arguments
from .rules import (
    advance,
    answer_overrides,
    ask_for_break,
    autocast_setting,
    call_attrgetter,
    call_compiled,
    call_first,
    call_itemgetter,
    call_methodcaller,
    call_partial,
    calls_back,
    check_abstract,
    compare_identity,
    convert_text,
    count_modes,
    delete_attribute,
    exception_info,
    follow_weak_reference,
    get_attribute,
    get_item,
    group_tensors,
    hand_out_mode,
    hash_of,
    identity_of,
    leave_lock,
    namespace_of,
    no_mode,
    nothing,
    numpy_of_numbers,
    own_globals,
    pure,
    random_state,
    read_again,
    read_length,
    read_type,
    scripted,
    set_attribute,
    shallow,
    show,
    state,
    type_call,
)
from .side_effect_calls import break_for, name_of


def _all_of(module: Any) -> list[Any]:
    return [value for value in vars(module).values() if issubclass(type(value), types.BuiltinFunctionType)]


def _named(module: Any, names: str) -> list[Any]:
    return [getattr(module, name) for name in names.split() if hasattr(module, name)]


_CONTEXT_OF_TORCH = (
    _named(torch._C, "is_grad_enabled is_inference_mode_enabled get_default_dtype _get_tracing_state")
    + _named(torch._C, "_len_torch_dispatch_stack")
    + _named(torch._C, "_is_any_autocast_enabled is_any_autocast_enabled")
    + _named(torch, "is_grad_enabled is_inference_mode_enabled get_default_dtype")
    + _named(torch._C, "_is_tracing")
)
_AUTOCAST_SETTINGS = [
    f
    for owner in (torch, torch._C)
    for f in _named(owner, "is_autocast_enabled is_autocast_cpu_enabled is_autocast_cache_enabled get_autocast_dtype")
    + _named(owner, "get_autocast_gpu_dtype get_autocast_cpu_dtype")
]
_UNSEEN_FUNCTIONS = ("from_numpy", "frombuffer", "_from_functional_tensor", "_from_blob", "range", "nested_tensor")
_FUNCTIONS_OF_TORCH = [
    getattr(torch._C._VariableFunctions, name)
    for name in dir(torch._C._VariableFunctions)
    if not name.startswith("__") and name not in _UNSEEN_FUNCTIONS
]
_FUNCTIONS_OF_TORCH += [
    f
    for name in "_nn _linalg _fft _special _sparse _nested".split()
    for f in _all_of(getattr(torch._C, name))
    if f.__name__ not in _UNSEEN_FUNCTIONS
]
_PURE_OPERATORS = [
    f for f in _all_of(_operator) if f.__name__[0] != "_" and not f.__name__.startswith(("i", "set", "del"))
]
_IN_PLACE_OPERATORS = _named(
    operator,
    "iadd iand iconcat ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor",
)
_CLASSES_OF_ITERTOOLS = [cls for cls in vars(itertools).values() if isinstance(cls, type)]

# What comes first counts.
CALL_MODELS: tuple[CallModel, ...] = (
    CallModel(calls_back, _named(builtins, "all any iter"), "compare or call what they find in their arguments"),
    CallModel(calls_back, [filter, map], "call their first argument, item by item", NumberUse.KEPT, later=True),
    CallModel(calls_back, [set, frozenset], "compare and hash what they find in their arguments", NumberUse.KEPT),
    CallModel(calls_back, [sorted], "compares the items of its argument", NumberUse.ASKED),
    CallModel(calls_back, [min], "compares its arguments", NumberUse.ASKED, instead=numbers.smaller),
    CallModel(calls_back, [max], "compares its arguments", NumberUse.ASKED, instead=numbers.larger),
    CallModel(calls_back, [sum], "adds; to a float what it finds in an int", NumberUse.READ, instead=numbers.total),
    CallModel(
        calls_back, [_native.total, _native.product], "what is called in the place of `sum` and `prod`", NumberUse.KEPT
    ),
    CallModel(shallow, [list, tuple, reversed, zip, slice], "hold items without looking into them", NumberUse.KEPT),
    CallModel(shallow, [enumerate], "holds items without looking into them, and counts", NumberUse.FIRST),
    CallModel(pure, [dict], "holds what it is given", NumberUse.KEPT),
    CallModel(pure, [builtins.divmod], "computes from its arguments alone", NumberUse.ASKED),
    CallModel(pure, [int], "computes from its arguments alone", heard=True, instead=numbers.whole_itself),
    CallModel(pure, [float], "computes from its arguments alone", heard=True, instead=numbers.real_itself),
    CallModel(pure, [abs], "computes from its argument alone", heard=True),
    CallModel(pure, [round], "computes from its arguments alone", instead=numbers.rounded),
    CallModel(
        pure,
        _named(builtins, "complex pow chr ord bin hex oct range"),
        "compute from their arguments alone",
    ),
    CallModel(convert_text, [bytes, bytearray], "compute from their arguments, and by what codecs there are"),
    CallModel(show, [str, repr], "read what they show, all the way down", heard=True),
    CallModel(show, [format, ascii], "read what they show, all the way down"),
    CallModel(read_type, [isinstance, issubclass, callable], "look at classes only"),
    CallModel(read_length, [len], "a container's length is all it asks for", instead=numbers.length),
    CallModel(read_length, [bool], "a container's length is all it asks for", heard=True),
    CallModel(nothing, [super], "keeps what it gets", NumberUse.KEPT),
    CallModel(nothing, [property, staticmethod, classmethod, object, locals], "keep what they get, and read nothing"),
    CallModel(own_globals, [globals], "hands out the dict that the frame reads its globals from"),
    CallModel(type_call, [type], "with one argument, reads its class", instead=numbers.plain_type),
    CallModel(get_attribute, [getattr, hasattr], "an attribute lookup like any other"),
    CallModel(set_attribute, [setattr], "an attribute written like any other"),
    CallModel(delete_attribute, [delattr], "an attribute deleted like any other"),
    CallModel(namespace_of, [vars], "hands out an object's dict"),
    CallModel(advance, [next], "moves an iterator on"),
    CallModel(
        pure, [math.prod], "multiplies; a float by what it finds in an int", NumberUse.READ, instead=numbers.product
    ),
    CallModel(pure, [math.sqrt], "computes from numbers", instead=numbers.root),
    CallModel(pure, _named(math, "floor ceil trunc"), "compute from numbers", instead=numbers.rounded),
    CallModel(pure, _all_of(math), "computes from numbers"),
    CallModel(pure, [str.join], "joins texts", NumberUse.KEPT),
    CallModel(pure, [torch.Size.numel], "multiplies sizes", instead=numbers.product),
    CallModel(compare_identity, [operator.is_, operator.is_not], "which object it is matters, not what is in it"),
    CallModel(get_item, [operator.getitem], "an item read like any other"),
    CallModel(call_first, _named(operator, "call"), "a call like any other"),
    CallModel(
        pure,
        _named(operator, "add sub mul floordiv mod truediv neg eq ne lt le gt ge"),
        "the operators that numbers hear of",
        NumberUse.ASKED,
    ),
    CallModel(pure, _PURE_OPERATORS, "the operators that change nothing"),
    CallModel(
        operate_in_place,
        _named(operator, "iadd isub imul ifloordiv imod itruediv"),
        "change their first argument as the operator does",
        NumberUse.ASKED,
    ),
    CallModel(operate_in_place, _IN_PLACE_OPERATORS, "change their first argument as the operator does"),
    CallModel(pure, [operator.index, operator.inv, operator.invert], "left out above for how their names begin"),
    CallModel(calls_back, [functools.reduce], "calls its first argument", NumberUse.HANDED_ON),
    CallModel(calls_back, [functools.cmp_to_key], "calls its first argument"),
    CallModel(pure, [functools.partial], "made here; calls of it have a rule of their own", NumberUse.KEPT),
    CallModel(calls_back, _CLASSES_OF_ITERTOOLS, "call or compare what they find in their arguments", later=True),
    CallModel(calls_back, _named(_bisect, "bisect_left bisect_right"), "compare the items of a list with another one"),
    CallModel(change_first, _all_of(_heapq), "compare the items of a list and move them"),
    CallModel(change_first, _named(collections, "_count_elements"), "counts in the dict that it is given"),
    CallModel(hash_of, [hash], "of values, not of identities", heard=True),
    CallModel(identity_of, [id], "good as a key within one run"),
    CallModel(compile_pattern, [sys.modules["re._compiler"].compile], "computes from texts"),
    CallModel(exception_info, [sys.exc_info], "the exception being handled here is a fresh object"),
    CallModel(read_again, [sys.getrecursionlimit], "a setting, which the guards read again"),
    CallModel(
        read_again,
        _named(torch._C, "_cuda_getDeviceCount _cuda_isCurrentStreamCapturing"),
        "the state of devices, which the guards ask again",
    ),
    CallModel(nothing, [sys.intern], "gives back an equal string"),
    CallModel(pure, [os.fspath], "asks the path for its text, in Python"),
    CallModel(pure, [collections.deque], "holds what it finds in its arguments", NumberUse.FIRST),
    CallModel(pure, [collections.OrderedDict], "holds what it finds in its arguments", NumberUse.KEPT),
    CallModel(calls_back, [collections.defaultdict], "keeps a factory to call", NumberUse.KEPT),
    CallModel(pure, [types.SimpleNamespace], "holds what it gets", NumberUse.KEPT),
    CallModel(
        pure, [types.MappingProxyType, types.MethodType, types.GenericAlias, types.UnionType], "hold what they get"
    ),
    CallModel(
        pure, [operator.itemgetter, operator.attrgetter, operator.methodcaller], "made here; their calls have rules"
    ),
    CallModel(
        pure, [torch._C._dynamo.eval_frame.set_eval_frame], "turns torch's own compiler off and on, which is off here"
    ),
    CallModel(
        check_abstract, [_abc._abc_instancecheck, _abc._abc_subclasscheck], "answers change when a class is registered"
    ),
    CallModel(read_type, [_abc.get_cache_token], "counts registered classes, and `check_abstract` guards that"),
    CallModel(pure, [torch.Size], "a constant made from constants", NumberUse.KEPT),
    CallModel(pure, [torch.device, torch.finfo, torch.iinfo], "constants made from constants"),
    CallModel(nothing, [weakref.ref], "following it has a rule of its own"),
    CallModel(
        answer_overrides,
        _named(torch._C, "_has_torch_function _has_torch_function_unary _has_torch_function_variadic"),
        "would report the mode that watches",
    ),
    CallModel(no_mode, _named(torch._C, "_is_torch_function_mode_enabled"), "would report the mode that watches"),
    CallModel(hand_out_mode, _named(torch._C, "_get_function_stack_at"), "would hand out the mode that watches"),
    CallModel(count_modes, _named(torch._C, "_len_torch_function_stack"), "would report the mode that watches"),
    CallModel(
        nothing, _named(torch._C, "_log_api_usage_once _set_grad_enabled"), "the tensor mode sees what matters of them"
    ),
    CallModel(state, _CONTEXT_OF_TORCH, "every recording guards this state as a whole"),
    CallModel(autocast_setting, _AUTOCAST_SETTINGS, "guarded as a whole only while autocast is on"),
    CallModel(nothing, _FUNCTIONS_OF_TORCH, "operations: the tensor mode sees them"),
    *logging_calls.TABLE,
    CallModel(
        random_state,
        _named(torch, "manual_seed seed initial_seed get_rng_state set_rng_state"),
        "wrapped by torch's own compiler, and broken there otherwise",
    ),
    CallModel(
        other_compiler.ask_for_compiler,
        [torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling],
        "torch's own functions may take a way that comes to other results if one is at work",
    ),
    CallModel(
        group_tensors,
        _named(torch._C, "_group_tensors_by_device_and_dtype"),
        "hands out the tensors that it is given, in other lists",
    ),
    CallModel(
        read_again,
        _named(torch.autograd, "_profiler_enabled") + _named(torch._C, "_accelerator_getAccelerator"),
        "settings, which the guards read again",
    ),
    *(CallModel(read_again, torch_settings.there(names), what) for what, names in torch_settings.SETTINGS.items()),
    CallModel(schedulers.step, schedulers.STEPS, "computes a few numbers, by one way or another"),
    CallModel(module_hooks.set_on_tensors, [module_hooks.SET], "registers hooks on nodes of autograd"),
    CallModel(leave_lock, [locks.LOCK.__exit__], "the end of a `with` that has taken a lock"),
    CallModel(ask_for_break, [user_hints.graph_break], "the program asks for a break"),
)
RULES: dict[int, CallModel] = {}
_ALIVE: list[Any] = []
for _row in CALL_MODELS:
    for _callable in _row.callables:
        RULES.setdefault(id(_callable), _row)
        _ALIVE.append(_callable)
# torch wraps some of its functions so that its own compiler leaves them alone, once that compiler is loaded.
_WRAPPER_OF_TORCH: types.CodeType = torch._compile._disable_dynamo(lambda: None).__code__
# Python functions with a rule: their calls have to be reported, where otherwise the frame that follows is.
INTERCEPTED: tuple[types.CodeType, ...] = (
    *(f.__code__ for f in _ALIVE if isinstance(f, types.FunctionType)),
    _WRAPPER_OF_TORCH,
)

_SAFE_NEW = types_where(lambda model: model.constructed)


def constructor_rule(s: Segment, cls: type, args: Args, kwnames: tuple[str, ...]) -> None:
    """A class without an entry in the table is called."""
    meta = type(cls)
    if is_open(meta):
        s.classes.note(meta)
        if isinstance(_native.mro_lookup(meta, "__call__"), types.FunctionType):
            return  # its own frame is watched
    _construct(s, cls, args, kwnames)


@rule(takes=1)
def call_class(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`type.__call__`, as a metaclass uses it: the class is called, whatever the metaclass says."""
    cls = args[0]
    if not issubclass(type(cls), type):
        return  # raises TypeError by itself
    row = RULES.get(id(cls))
    if row is None:
        _construct(s, cls, args[1:], kwnames)
    elif row.rule(s, cls, args[1:], kwnames) is not None:
        raise BreakGraph("unknown-callable", f"type.__call__ of {cls.__qualname__}")


def _construct(s: Segment, cls: type, args: Args, kwnames: tuple[str, ...]) -> None:
    """`__new__` and `__init__` of a class are called."""
    if issubclass(cls, BaseException) and not is_open(cls):
        if cls.__basicsize__ != BaseException.__basicsize__:  # it keeps more than its arguments
            pure(s, cls, args, kwnames)
        return
    new = s.classes.entry(cls, "__new__")
    if issubclass(type(new), types.BuiltinFunctionType):
        base = new.__self__
        if not (base in _SAFE_NEW or (isinstance(base, type) and issubclass(base, BaseException))):
            raise BreakGraph(break_for(cls), name_of(cls))
        if base is not object:
            pure(s, cls, args, kwnames)
    s.classes.note(cls)
    if s.classes.entry(cls, "__del__") is not _native.MISSING:  # when it runs depends on who else holds the object
        raise BreakGraph("finalizer", f"{cls.__qualname__}.__del__")
    for name in ("__new__", "__init__"):
        function = s.classes.entry(cls, name)
        function = function.__func__ if issubclass(type(function), staticmethod) else function
        if issubclass(type(function), types.FunctionType):
            note_arguments(s, function, len(args) - len(kwnames) + 1, kwnames)
    init = s.classes.entry(cls, "__init__")
    if issubclass(type(init), types.WrapperDescriptorType) and init.__objclass__ is not object:
        pure(s, cls, args, kwnames)


_CALL = class_dict(type)["__call__"]
RULES[id(_CALL)] = CallModel(call_class, [_CALL], "`type.__call__`, as a metaclass uses it")


_BY_TYPE: dict[type, Rule] = {
    functools._lru_cache_wrapper: logging_calls.call_cached,
    weakref.ReferenceType: follow_weak_reference,
    functools.partial: call_partial,
    _native.Compiled: call_compiled,
    operator.itemgetter: call_itemgetter,
    operator.attrgetter: call_attrgetter,
    operator.methodcaller: call_methodcaller,
    **dict.fromkeys(SCRIPTED, scripted),
    **({sys.modules["numpy"].ufunc: numpy_of_numbers} if "numpy" in sys.modules else {}),
}


_WITHOUT_RULE = frozenset({types.MethodType, types.MethodWrapperType})


def may_be_approved(func: Any, rule: Rule) -> bool:
    """Can the C side skip calls of this callable whose arguments are all fresh?"""
    return facts_of(rule).skipped and (id(func) in RULES or issubclass(type(func), C_DESCRIPTORS))


def reads_arguments_only(func: Any) -> bool:
    """May C code call this C function on arguments that were exposed all the way down?"""
    row = RULES.get(id(func))
    rule = row.rule if row is not None else method_rule(func) if issubclass(type(func), C_DESCRIPTORS) else None
    return rule is not None and facts_of(rule).arguments_only


def rule_for(func: Any) -> Rule | None:
    """The rule of a callable; None for a Python function that is to be watched, and for what nothing is known of."""
    row = RULES.get(id(func))
    if row is None and issubclass(type(func), types.FunctionType) and func.__code__ is _WRAPPER_OF_TORCH:
        row = RULES.get(id(func.__wrapped__))
    if row is not None:
        return row.rule
    if issubclass(type(func), C_DESCRIPTORS):
        return method_rule(func)
    if issubclass(type(func), types.FunctionType) or type(func) in _WITHOUT_RULE:
        return None
    if issubclass(type(func), types.BuiltinFunctionType) and func.__name__ == "__new__" and func.__self__ in _SAFE_NEW:
        return pure
    if issubclass(type(func), types.BuiltinFunctionType) and (func.__module__ or "").startswith("torch._ops."):
        return nothing  # an operator by its name in `torch.ops`: the tensor mode sees it
    return _BY_TYPE.get(type(func))
