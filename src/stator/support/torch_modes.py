"""torch's modes of this thread, put back where an exception has come between their beginning and their end.

What a signal handler raises may come anywhere, between two instructions of torch's own `__enter__` too; then a mode
stays on whose `with` block never began.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import _C
from torch.utils import _python_dispatch

_KEYS: Any = (_C._TorchDispatchModeKey.FUNCTIONAL, _C._TorchDispatchModeKey.PROXY, _C._TorchDispatchModeKey.FAKE)

_DISPATCH_KEYS: Any = tuple(_C.DispatchKey.__members__.values())
# Whether any modes are on, as torch's own Python code remembers it.
_FLAGS = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]


def _kept_apart() -> list[Any]:
    """Modes that have places of their own in the stack of dispatch modes."""
    return [_C._get_dispatch_mode(key) for key in _KEYS]


def _dispatch_modes() -> list[Any]:
    apart = {id(mode) for mode in _kept_apart()}
    modes = [_C._get_dispatch_stack_at(place) for place in range(_C._len_torch_dispatch_stack())]
    return [mode for mode in modes if id(mode) not in apart]


def _function_modes() -> list[Any]:
    return [_C._get_function_stack_at(place) for place in range(_C._len_torch_function_stack())]


def _same(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(a is b for a, b in zip(first, second, strict=True))


class ModesKept:
    """A context manager: what leaves its block by an exception leaves torch's modes as they were at its beginning.

    For code that begins and ends modes of its own; what the program sets is not to be put back.
    """

    def __enter__(self) -> None:
        self._function, self._dispatch, self._apart = _function_modes(), _dispatch_modes(), _kept_apart()
        self._included = _C._dispatch_tls_local_include_set()
        self._excluded = _C._dispatch_tls_local_exclude_set()
        self._flags = {name: getattr(_python_dispatch, name) for name in _FLAGS}
        self._grad, self._lifts = torch.is_grad_enabled(), _C._only_lift_cpu_tensors()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is not None:
            self._put_back()

    def _put_back(self) -> None:
        grad = torch.is_grad_enabled() != self._grad
        if grad or not _same(_function_modes(), self._function):
            for _ in range(_C._len_torch_function_stack()):
                _C._pop_torch_function_stack()
            if grad:  # function modes would be asked
                _C._set_grad_enabled(self._grad)
            for mode in self._function:
                _C._push_on_torch_function_stack(mode)
        for key, now, before in zip(_KEYS, _kept_apart(), self._apart, strict=True):
            if now is not before:
                _C._unset_dispatch_mode(key)
                if before is not None:
                    _C._set_dispatch_mode(before)
        if not _same(former := _dispatch_modes(), self._dispatch):
            for _ in former:
                _C._pop_torch_dispatch_stack(None)
            for mode in self._dispatch:
                _C._push_on_torch_dispatch_stack(mode)
        _C._set_only_lift_cpu_tensors(self._lifts)
        for before, now, put in (
            (self._included, _C._dispatch_tls_local_include_set(), _C._dispatch_tls_set_dispatch_key_included),
            (self._excluded, _C._dispatch_tls_local_exclude_set(), _C._dispatch_tls_set_dispatch_key_excluded),
        ):
            for key in _DISPATCH_KEYS:
                if before.has(key) != now.has(key):
                    put(key, before.has(key))
        for name, before in self._flags.items():
            setattr(_python_dispatch, name, before)
        tell = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
        if tell is not None:
            tell(self._flags.get("_is_in_any_mode_without_ignore_compile_internals", False))
