"""Calls of `nn.Module`s, noted as one fact each.

`Module.__call__` reads a dozen attributes before it comes to `forward`. Where there are no hooks and nothing is
shadowed, all of that is one check on the module; the two frames in between run as they are and only `forward` is
watched.
"""

from __future__ import annotations

import types
from typing import Any

import torch.nn.modules.module as torch_module

from ... import _native
from ...recording import Fact
from ...support.guard_readers import GLOBAL_HOOKS, is_unhooked
from ..objects.containers import measure, read_key
from ..segment import Segment

_Module = torch_module.Module
GETATTR: types.CodeType = _Module.__getattr__.__code__
FRAMES: tuple[types.CodeType, ...] = (_Module.__call__.__code__, _Module._call_impl.__code__)


def note(s: Segment, module: Any) -> bool:
    """A module is called. False: the call has to be watched in full."""
    if id(module) in s.noted_modules:
        return True
    cls = type(module)
    plain = s.ledger.callable_modules.get(cls)
    if plain is None:
        plain = s.ledger.callable_modules[cls] = _note_class(s, cls)
    if not plain or not is_unhooked(module):
        return False
    ledger = s.ledger
    origin = ledger.find(module)
    if origin is None:
        return True
    if ledger.changes and any(map(ledger.changed, (module.__dict__, *module.__dict__.values()))):
        return False
    s.noted_modules.add(id(module))
    ledger.touch(origin, module)
    ledger.check(origin, Fact.UNHOOKED, None)
    return True


def _note_class(s: Segment, cls: type) -> bool:
    """Does this class leave calling to `nn.Module`? What it says of that is guarded from here on."""
    classes = s.classes
    forward = classes.entry(cls, "forward")
    plain = (
        classes.entry(cls, "__getattribute__") is object.__getattribute__
        and classes.entry(cls, "_compiled_call_impl") is None
        and classes.entry(cls, "_call_impl") is _Module._call_impl
        and isinstance(forward, types.FunctionType)
        and all(_native.mro_lookup(cls, name) is _native.MISSING for name in _HOOKS)
    )
    if not plain:
        return False
    classes.value(cls, "_call_impl", _Module._call_impl)
    classes.value(cls, "forward", forward)
    return _no_global_hooks(s)


def _no_global_hooks(s: Segment) -> bool:
    ledger = s.ledger
    namespace = vars(torch_module)
    place = ledger.constant(namespace)
    for name in GLOBAL_HOOKS:
        origin = read_key(ledger, place, namespace, name)
        if origin is None or namespace[name]:
            return False
        measure(ledger, origin, namespace[name])
    return True


_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
