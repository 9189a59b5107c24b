"""Compiled modules: the same module, called another way.

A compiled module shares the original's attribute dict and is an instance of a subclass of its class; so parameters,
buffers, hooks, `train()`, `state_dict()`, `isinstance` and attribute writes are the original's. A deep copy is
compiled, with no recordings yet; a pickle is one of the original, which needs no stator to be loaded.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from .dispatch import Handle, in_front
from .pipeline import run
from .program import Program
from .watch.observe.policy import recording


def _same(module: torch.nn.Module) -> torch.nn.Module:
    """What a pickle of a compiled module is made with: the original."""
    return module


def _slots_of(cls: type) -> dict[str, Any]:
    slots = {name: entry for name, entry in vars(cls).items() if type(entry) is types.MemberDescriptorType}
    return {} if cls is torch.nn.Module else slots


def _shared(slot: Any, module: torch.nn.Module) -> property:
    """A slot of the original as an attribute of the compiled module."""
    return property(
        lambda self: slot.__get__(module),
        lambda self, value: slot.__set__(module, value),
        lambda self: slot.__delete__(module),
    )


def compile_in_place(module: torch.nn.Module, program_of: Callable[[types.FunctionType, str], Program]) -> None:
    """Calls of the module itself are compiled from now on, through the door that `nn.Module` has for that."""
    function: Any = type(module)._call_impl
    program = program_of(function, type(module).__qualname__)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recording() or torch.is_anomaly_enabled():
            return self._call_impl(*args, **kwargs)
        return run(program, (self, args, kwargs))

    call.__code__ = call.__code__.replace(co_filename="<stator call>")
    compiled = in_front(call, function, program)
    compiled.stator = Handle(program)
    module._compiled_call_impl = types.MethodType(compiled, module)
    object.__setattr__(module, "stator", compiled.stator)


def _plain(module: torch.nn.Module) -> torch.nn.Module:
    """The module itself, of which a compiled one is made. (`type(compiled)(…)` makes a module of its own.)"""
    wrapped = vars(type(module)).get("__wrapped__")
    compiled = isinstance(vars(type(module)).get("stator"), Handle) and vars(wrapped) is vars(module)
    return wrapped if compiled else module  # type: ignore[return-value]


def _call_of(cls: type[torch.nn.Module]) -> types.FunctionType:
    """`cls.__call__` as a function that can be watched: a decorator may have put any callable there."""
    method: Any = cls.__call__
    if isinstance(method, types.FunctionType):
        return method

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_filename="<stator call>")
    return call  # type: ignore[return-value]


def compiled_module(
    module: torch.nn.Module, program_of: Callable[[types.FunctionType, str], Program]
) -> torch.nn.Module:
    """Another module object over the same attributes whose calls are compiled."""
    module = _plain(module)
    original = type(module)
    program = program_of(_call_of(original), original.__qualname__)
    handle = Handle(program)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not compiled or type(self) is not subclass:  # made from this class, or given another one
            return original.__call__(self, *args, **kwargs)
        if recording() or torch.is_anomaly_enabled():
            return original.__call__(module, *args, **kwargs)
        return run(program, (module, args, kwargs))

    def reduce(self: Any, protocol: Any) -> Any:
        return _same, (module,)

    def deep_copy(self: Any, memo: dict[int, Any]) -> Any:
        return compiled_module(copy.deepcopy(module, memo), program_of)

    namespace: dict[str, Any] = {
        "__call__": call,
        "__reduce_ex__": reduce,
        "__deepcopy__": deep_copy,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__wrapped__": module,
        "stator": handle,
    }
    call.__code__ = call.__code__.replace(co_filename="<stator call>")
    if isinstance(original.__call__, types.FunctionType):
        namespace["__call__"] = in_front(call, original.__call__, program)
    # Made beside the original and then put under it, so that no `__init_subclass__` hears of it.
    metaclass: Any = type(original)
    if any(map(_slots_of, original.__mro__)):
        namespace |= {name: _shared(slot, module) for cls in original.__mro__ for name, slot in _slots_of(cls).items()}
        subclass = metaclass(original.__name__, (original,), namespace)
    else:
        subclass = metaclass(original.__name__, (torch.nn.Module,), namespace)
        subclass.__bases__ = (original,)
    compiled = object.__new__(subclass)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    if namespace["__call__"] is not call:
        namespace["__call__"].stand_in(compiled, module)
    return compiled  # type: ignore[no-any-return]
