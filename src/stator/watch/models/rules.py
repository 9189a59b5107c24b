"""What a C callable may read and change: one function per kind of callable, called just before it runs.

A rule gets the segment, the callable and its arguments, and notes what the call is going to read or change. It may
give back another callable to be called in its place. `watch.calls` says which callable has which rule.
"""

from __future__ import annotations

import _string  # type: ignore[import-not-found]  # what `str.format` itself parses its fields with
import codecs
import functools
import itertools
import operator
import sys
import types
from abc import get_cache_token
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.overrides

from ... import _native
from ...recording import Edge, Fact
from ...support.guard_readers import autocast_part, container_kind
from ..graph_break import BreakGraph
from ..objects.constants import is_constant
from ..objects.containers import expose, measure
from ..objects.identity import Identity
from ..objects.repr_reads import asks_for_repr
from ..segment import Segment
from .call_model import Args, NumberUse, rule
from .reads import (
    C_DESCRIPTORS,
    consult,
    consult_callable,
    consult_deep,
    consult_getter,
    depend_on,
    in_library,
    in_operation_wrapper,
    may_be_given_up,
    move_on,
    note_text,
    read_item,
    touch,
    touch_type,
    use_as_key,
)
from .side_effect_calls import name_of

_C: Any = torch._C


@rule(skipped=True, arguments_only=True, numbers=NumberUse.HELD)
def shallow(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Takes its arguments apart, one level, and looks no further."""
    for arg in args:
        consult(s, arg)


@rule(skipped=True, arguments_only=True)
def pure(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Reads its arguments, all the way down if it likes (formatting, comparing, hashing), and nothing else."""
    for arg in args:
        consult_deep(s, arg)


@rule(skipped=True)
def compare_identity(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`operator.is_`, `operator.is_not`."""
    for arg in args:
        touch_type(s, arg)
        s.ledger.use_identity(arg)
    for arg in args:
        if s.symbols is not None:
            s.symbols.specialise_in(arg)
        if s.ledger.find_unguarded(arg) is not None:
            s.ledger.specialize(arg)
    return functools.partial(_of_originals, s.own.original, func) if s.own.originals else None


def _of_originals(original: Any, func: Any, *args: Any) -> Any:
    """Numbers are compared as the objects that the program knows."""
    return func(*map(original, args))


@rule(takes=2)
def get_item(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`operator.getitem`, `dict.__getitem__`."""
    read_item(s, args[0], args[1])


def own_globals(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`globals()`: the dict of the frame that calls it."""
    s.ledger.constant(s.watcher.frames()[0][-1][4].__globals__)


@rule(skipped=True)
def check_abstract(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`isinstance` with an abstract class: its answer changes when somebody registers a class."""
    read_type(s, func, args, kwnames)
    s.ledger.read(s.ledger.constant(get_cache_token), Edge.CALL, (), get_cache_token())


@rule(numbers=NumberUse.KEPT)
def calls_back(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Calls some of its arguments with what it finds in the others."""
    for arg in args:
        consult_callable(s, arg)
        consult_deep(s, arg)
        if makes_texts(args):
            note_text(s, arg, "__repr__")


def convert_text(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`str.encode`, `bytes.decode`, `bytes(text, …)`: what is done about errors is looked up by name, among handlers
    that others may replace; so are codecs that are not built in."""
    pure(s, func, args, kwnames)
    split = len(args) - len(kwnames)
    given = dict(zip(("text", "encoding", "errors"), args[:split], strict=False))
    given.update(zip(kwnames, args[split:], strict=True))
    for name, look_up in (("encoding", codecs.lookup), ("errors", codecs.lookup_error)):
        key = given.get(name)
        if key is None or (type(key) is str and key.lower() in _BUILT_IN):
            continue
        if type(key) is not str:
            raise BreakGraph("unguardable", f"{name} of a text that is no text")
        try:
            found = s.watcher.paused(look_up, key)
        except LookupError:
            raise BreakGraph("unknown-callable", f"{name}={key!r}") from None
        origin = s.ledger.read(s.ledger.constant(look_up), Edge.CALL, (key,), found)
        s.ledger.require(origin, Fact.IS, found)


# CPython knows these before it looks anywhere.
_BUILT_IN = frozenset(
    "strict utf-8 utf8 utf_8 ascii us-ascii latin-1 latin1 iso-8859-1 iso8859-1 utf-16 utf-32".split()
)

_TEXTS = {str: "__str__", repr: "__repr__", ascii: "__repr__", format: "__format__"}


def makes_texts(args: Args) -> bool:
    """Is one of these called by C code, with what it finds in the others?"""
    return any(arg is text for arg in args for text in _TEXTS)


@rule(arguments_only=True)
def show(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`str`, `repr`, `ascii`, `format`."""
    if func is str and len(args) > 1:
        convert_text(s, func, args, kwnames)
    for arg in args:
        note_text(s, arg, _TEXTS[func])


@rule(takes=1)
def show_plainly(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`object.__repr__` and its kin, of containers and exceptions too: what the class says is passed by."""
    value = args[0]
    if func is object.__repr__ and not is_constant(value):
        raise BreakGraph("identity", "object.__repr__")
    parts = value.args if issubclass(type(value), BaseException) else () if func.__objclass__ is object else value
    for part in (*parts, *(dict.values(value) if issubclass(type(value), dict) else ())):
        note_text(s, part, "__repr__")
    if func.__objclass__ is object:
        note_text(s, value, "__repr__" if func.__name__ == "__str__" else "__str__")
    pure(s, func, args, kwnames)


@rule(takes=1, skipped=True)
def format_text(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`str.format`: a field may reach into its argument."""
    pure(s, func, args, kwnames)
    method = "__repr__" if asks_for_repr(args[0]) else "__format__"
    if not issubclass(type(args[0]), str) or func.__name__ == "format_map":
        if any(c in str(args[0]) for c in ".["):
            raise BreakGraph("unknown-callable", "str.format_map with attributes or items")
        for value in dict.values(args[1]) if len(args) > 1 and issubclass(type(args[1]), dict) else ():
            note_text(s, value, method)
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
            note_text(s, _walk_field(s, found, path), method)
        elif field is not None:
            index = next(automatic)
            note_text(s, positional[index] if index < len(positional) else None, method)


def _walk_field(s: Segment, value: Any, path: Iterable[tuple[bool, Any]]) -> Any:
    """What `{0.name[key]}` reads, and comes to."""
    for is_attribute, key in path:
        if not is_attribute:
            if container_kind(type(value)) is None:
                raise BreakGraph("unknown-callable", "str.format with items of an object")
            value = value[key]  # exposed already
            continue
        s.attributes.read(value, key)
        if _native.mro_lookup(type(value), key) is not _native.MISSING or not hasattr(value, "__dict__"):
            raise BreakGraph("unknown-callable", "str.format with attributes of a class")
        value = value.__dict__.get(key)
        consult_deep(s, value)
    return value


@rule(skipped=True, arguments_only=True, numbers=NumberUse.HELD)
def nothing(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Keeps its arguments without looking into them, or looks at nothing that matters."""


@rule(skipped=True, arguments_only=True, numbers=NumberUse.HELD)
def read_type(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Looks at the types of its arguments only."""
    for arg in args:
        touch(s, arg)
        if issubclass(type(arg), tuple):
            consult_deep(s, arg)


@rule(skipped=True, arguments_only=True, numbers=NumberUse.HELD)
def read_length(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = s.ledger.find(args[0]) if args else None
    if origin is not None and container_kind(type(args[0])) is not None:
        measure(s.ledger, origin, args[0])
        pure_of_class(s, args)
    else:
        shallow(s, func, args, kwnames)


def pure_of_class(s: Segment, args: Iterable[Any]) -> None:
    for arg in args:
        touch(s, arg)


@rule(skipped=True)
def type_call(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    if len(args) != 1:
        raise BreakGraph("build-class")
    touch(s, args[0])


def _plain_name(name: Any) -> Any:
    """The name of an attribute. One that is looked up by code of its own may act, or be found as it likes."""
    if type(name) is not str and issubclass(type(name), str):
        kept = [_native.mro_lookup(type(name), special) for special in ("__hash__", "__eq__")]
        if any(issubclass(type(method), types.FunctionType) for method in kept):
            raise BreakGraph("unguardable", "an attribute whose name is compared by code of its own")
    return name


@rule(numbers=NumberUse.BEHIND_FIRST)
def get_attribute(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`getattr`, `hasattr`."""
    if len(args) > 1 and issubclass(type(args[1]), str):
        s.attributes.read(args[0], _plain_name(args[1]))


@rule(numbers=NumberUse.HELD)
def get_attribute_of_class(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`type.__getattribute__`."""
    if len(args) > 1 and issubclass(type(args[0]), type) and issubclass(type(args[1]), str):
        s.attributes.read_of_class_plainly(args[0], _plain_name(args[1]))


@rule(numbers=NumberUse.BEHIND_FIRST)
def get_attribute_plainly(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`object.__getattribute__`."""
    if len(args) > 1 and issubclass(type(args[1]), str):
        s.attributes.read_plain(args[0], _plain_name(args[1]))


@rule(takes=3, numbers=NumberUse.HELD)
def set_attribute(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    s.attribute_writes.write(args[0], _plain_name(args[1]))


@rule(takes=2, numbers=NumberUse.HELD)
def delete_attribute(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    s.attribute_writes.write(args[0], _plain_name(args[1]), delete=True)


@rule(takes=3, numbers=NumberUse.HELD)
def set_attribute_plainly(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`object.__setattr__`."""
    s.attribute_writes.write_plain(args[0], _plain_name(args[1]))


@rule(takes=2, numbers=NumberUse.HELD)
def delete_attribute_plainly(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`object.__delattr__`."""
    s.attribute_writes.write_plain(args[0], _plain_name(args[1]), delete=True)


def namespace_of(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`vars(o)`."""
    if args:
        s.attributes.read(args[0], "__dict__")


@rule(takes=1, skipped=True, numbers=NumberUse.HELD)
def advance(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`next`: the iterator moves on."""
    move_on(s, args[0])


@rule(skipped=True, arguments_only=True, numbers=NumberUse.HELD)
def state(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """Reads a part of torch's global state that every recording guards as a whole."""


def read_again(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """A reader of state that the guards call again: same arguments, same answer."""
    if kwnames or not all(map(is_constant, args)):
        raise BreakGraph("unguardable", f"{name_of(func)} with arguments that are not constants")
    value = s.watcher.paused(func, *args)
    if not is_constant(value):  # made anew in each call: the program's would be another one than the guards'
        raise BreakGraph("unguardable", f"what {name_of(func)} gives back")
    s.ledger.read(s.ledger.find(func) or s.ledger.constant(func), Edge.CALL, args, value)


@rule(takes=1)
def context_variable(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    try:
        value = s.watcher.paused(func, *args)
    except LookupError:  # which the program is about to get
        origin = s.ledger.read(s.ledger.constant(func), Edge.CALL, (args[0], _NOT_SET), _NOT_SET)
        s.ledger.require(origin, Fact.IS, _NOT_SET)
    else:
        s.ledger.read(s.ledger.constant(func), Edge.CALL, args, value)


_NOT_SET = object()


def follow_weak_reference(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    origin = s.ledger.find(func)
    target = s.watcher.paused(func)
    if target is not None and may_be_given_up(s, target):
        raise BreakGraph("let-go", type(target).__qualname__)
    if origin is not None:
        s.ledger.touch(origin, func)
        s.ledger.read(origin, Edge.CALL, (), target)


@rule(takes=1)
def call_first(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`operator.call`: calls its first argument with the others."""
    instead = s.table.call(s, None, args[0], args[1:], kwnames)
    return None if instead is None else _passing_by_the_first(instead)


def _passing_by_the_first(instead: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, *args, **kwargs: instead(*args, **kwargs)


def call_partial(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    origin = s.ledger.find(func)
    if origin is not None:
        s.ledger.touch(origin, func)
        for part in ("func", "args", "keywords"):
            place = s.ledger.read(origin, Edge.ATTR, part, getattr(func, part))
            if part != "func" and not is_constant(getattr(func, part)):
                expose(s.ledger, place, getattr(func, part))
    names = tuple(func.keywords) + kwnames
    split = len(args) - len(kwnames)
    given = func.args + args[:split] + tuple(func.keywords.values()) + args[split:]
    instead = s.table.call(s, None, func.func, given, names)
    return None if instead is None else functools.partial(instead, *func.args, **func.keywords)


def call_compiled(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """A compiled callable: inside a recording it is its Python fallback."""
    origin = s.ledger.find(func)
    if origin is not None:
        s.ledger.touch(origin, func)
        s.ledger.read(origin, Edge.ATTR, "fallback", func.fallback)


@rule(takes=1)
def call_methodcaller(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    kind, parts = func.__reduce__()
    if kind is not operator.methodcaller:
        raise BreakGraph("unknown-callable", "operator.methodcaller with keywords")
    consult_getter(s, func)
    s.attributes.read(args[0], parts[0])
    method = _native.mro_lookup(type(args[0]), parts[0])
    if issubclass(type(method), C_DESCRIPTORS):
        s.table.call(s, None, method, (args[0], *parts[1:]), ())


def call_itemgetter(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    consult_getter(s, func)
    pure(s, func, args, kwnames)


@rule(takes=1)
def call_attrgetter(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    consult_getter(s, func)
    for path in func.__reduce__()[1]:
        if "." in path:
            raise BreakGraph("unknown-callable", "operator.attrgetter with a dotted name")
        s.attributes.read(args[0], path)


@rule(numbers=NumberUse.HELD)
def answer_overrides(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`has_torch_function*` say True under any mode; only the wrappers of torch's own operations should hear that."""
    if in_operation_wrapper(s) or _C._len_torch_function_stack() > 1:  # the program has modes of its own
        return None
    read_again(s, _C._is_torch_function_enabled, (), ())
    return _plain_has_torch_function if _C._is_torch_function_enabled() else _no_mode


def _plain_has_torch_function(*args: Any) -> bool:
    relevant = args[0] if len(args) == 1 and issubclass(type(args[0]), (tuple, list)) else args
    return any(_overrides(type(arg)) for arg in relevant)


def _overrides(cls: type) -> bool:
    found = _native.mro_lookup(cls, "__torch_function__")
    plain = (_native.MISSING, torch.Tensor.__dict__["__torch_function__"], torch._C._disabled_torch_function_impl)
    return not any(found is known for known in plain)


@rule(numbers=NumberUse.HELD)
def no_mode(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """The program must not see the mode that watches it. (How many others there are is part of torch's state.)"""
    return None if in_operation_wrapper(s) or _C._len_torch_function_stack() > 1 else _no_mode


def _no_mode(*args: Any) -> bool:
    return False


def count_modes(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`_len_torch_function_stack`."""
    return _count_other_modes


def _count_other_modes() -> int:
    count: int = _C._len_torch_function_stack()
    return count - 1


def hand_out_mode(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`_get_function_stack_at`: the modes are objects that no origin leads to."""
    raise BreakGraph("unguardable", "a mode of torch")


def autocast_setting(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """A setting of autocast, which guards of torch's state include only while autocast is on. What the segment itself
    has set follows from its nodes."""
    before = autocast_part(s.tracer.autocast, func.__name__, args) if not kwnames else None
    if before is None or before is s.watcher.paused(func, *args):
        read_again(s, func, args, kwnames)


def identity_of(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`id`: answered with a number that ends the recording if it is used for more than a key."""
    if len(args) != 1 or kwnames:
        return None
    if not in_library(s):  # a program may show it, or hand it out
        raise BreakGraph("identity", "id")
    use_as_key(s, args[0])
    return functools.partial(Identity, stop=s.stop)


@rule(takes=1, skipped=True)
def hash_of(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    if _native.mro_lookup(type(args[0]), "__hash__") in (object.__hash__, torch.Tensor.__hash__):
        raise BreakGraph("identity", "hash")
    pure(s, func, args, kwnames)


@rule(skipped=True)
def exception_info(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`sys.exc_info()`: an exception handled inside is fresh; that none was being handled outside is guarded."""
    if s.handled_outside:
        raise BreakGraph("unguardable", "the exception that the caller handles")
    s.ledger.read(s.ledger.constant(func), Edge.CALL, (), (None, None, None))


def numpy_of_numbers(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`np.sqrt(8)`: a function of numpy's that is given numbers computes a number. Arrays are no business of ours."""
    numpy = sys.modules["numpy"]
    if kwnames or not all(issubclass(type(arg), (int, float, numpy.generic)) for arg in args):
        raise BreakGraph("numpy", f"numpy.{func.__name__}")

    def compute(*args: Any) -> Any:
        try:
            with numpy.errstate(all="raise"):
                return func(*args)
        except FloatingPointError:  # a warning, or whatever the program has asked numpy to do
            s.fail(BreakGraph("numpy", f"numpy.{func.__name__}"))
            return func(*args)

    pure(s, func, args, kwnames)
    return compute


def scripted(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """A function compiled by TorchScript: the tensor mode does not see it, unless it is shown to it."""
    origin = s.ledger.find(func)
    if origin is not None:
        s.ledger.check(origin, Fact.IS, func)
    return functools.partial(_shown_to_the_mode, func)


def _shown_to_the_mode(func: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.overrides.handle_torch_function(func, (), *args, **kwargs)


def ask_for_break(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`stator.graph_break(reason)`."""
    raise BreakGraph("user-graph-break", str(args[0]) if args else "")


def random_state(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`torch.manual_seed` and its kin: the generator's state is no tensor's."""
    raise BreakGraph("rng-state", f"torch.{func.__name__}")


def leave_lock(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`lock.__exit__`: the end of a `with` that has taken a lock."""
    s.locks.leave(args[0] if args else None)


def group_tensors(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """`_group_tensors_by_device_and_dtype`: lists of tensors are parted by what the guards on tensors fix."""
    consult_deep(s, args[0])
    for group in args[0]:
        for tensor in group:
            depend_on(s, tensor)
