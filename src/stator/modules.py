"""Compiled modules: the same module, called another way.

A compiled module shares the original's attribute dict and is an instance of a subclass of its class; so parameters,
buffers, hooks, `train()`, `state_dict()`, `isinstance` and attribute writes are the original's. Copies and pickles are
copies and pickles of the original.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from .dispatch import Handle
from .pipeline import Program
from .watch.policy import recording

_PLAIN_CALL = torch.nn.Module.__call__


def _root_of(cls: type) -> types.FunctionType:
    """The Python function that a call of a module comes down to."""
    call = cls.__call__
    return cls._call_impl if call is _PLAIN_CALL else call  # type: ignore[attr-defined, no-any-return]


def compiled_module(module: torch.nn.Module, program_of: Callable[[types.FunctionType, str], Program]) -> torch.nn.Module:
    original = type(module)
    program = program_of(_root_of(original), original.__qualname__)
    handle = Handle(program)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recording():
            return original.__call__(module, *args, **kwargs)
        return program((module, args, kwargs))

    def reduce(self: Any, protocol: Any) -> Any:
        return module.__reduce_ex__(protocol)

    def deep_copy(self: Any, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(module, memo)

    namespace = {
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
    subclass = type(original)(original.__name__, (original,), namespace)
    compiled = object.__new__(subclass)
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled  # type: ignore[no-any-return]
