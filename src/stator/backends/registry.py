"""The registry of backends.

Enters: a name or a callable. Leaves: a callable `(gm, example_inputs) -> callable`, as torch's backends are written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import fx

from ..errors import UnknownBackend

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
B = TypeVar("B", bound=Callable[..., Any])

_BACKENDS: dict[str, Backend] = {}
_IN_MODE: dict[str, Callable[[str], Backend]] = {}  # those that have something to choose, by the name of the mode
# Ours, loaded when first asked for: what they build on (scipy, TorchInductor) takes longer to import than stator does.
_MODULES = {"aot_eager": ".aot_eager", "eager": ".eager", "inductor": ".inductor", "native": ".native"}
DEFAULT = "native"


def list_backends() -> list[str]:
    """The names that `compile(backend=…)` takes."""
    return sorted({*_MODULES, *_BACKENDS})


def register_backend(backend: B | None = None, *, name: str | None = None) -> Any:
    """Register a backend under a name (its own, if none is given); also a decorator, with and without arguments."""
    if backend is None:
        return lambda function: register_backend(function, name=name)
    if not callable(backend):
        raise TypeError(f"a backend is a callable (gm, example_inputs) -> callable, not {backend!r}")
    label = name or getattr(backend, "__name__", None)
    if not isinstance(label, str):
        raise TypeError("this backend has no name of its own: register_backend(backend, name=...)")
    _BACKENDS[label] = backend
    _IN_MODE.pop(label, None)
    return backend


def look_up(backend: Any, mode: str | None = None) -> tuple[str, Backend]:
    """(name, callable) of a backend given by name or as a callable. To one that has nothing to choose all modes are the
    same."""
    if isinstance(backend, str):
        if backend not in _BACKENDS:
            if backend not in _MODULES:
                raise UnknownBackend(backend, list_backends())
            module = importlib.import_module(_MODULES[backend], __package__)
            _BACKENDS[backend] = module.compile_graph
            if hasattr(module, "in_mode"):
                _IN_MODE[backend] = module.in_mode
        if mode in (None, "default") or backend not in _IN_MODE:
            return backend, _BACKENDS[backend]
        return backend, _IN_MODE[backend](str(mode))
    if callable(backend):
        return getattr(backend, "__name__", type(backend).__name__), backend
    raise UnknownBackend(backend, list_backends())


def is_ours(backend: Backend) -> bool:
    """Ours find out themselves what each node gives."""
    return str(getattr(backend, "__module__", "")).startswith("stator.")
