"""The registry of backends.

Enters: a name or a callable. Leaves: a callable `(gm, example_inputs) -> callable`, as torch's backends are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import fx

from ..errors import UnknownBackend
from . import aot_eager, eager, inductor

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
B = TypeVar("B", bound=Callable[..., Any])

_BACKENDS: dict[str, Backend] = {
    "aot_eager": aot_eager.compile_graph,
    "eager": eager.compile_graph,
    "inductor": inductor.compile_graph,
}
DEFAULT = "inductor"  # until there is a native one


def list_backends() -> list[str]:
    """The names that `compile(backend=…)` takes."""
    return sorted(_BACKENDS)


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
    return backend


def look_up(backend: Any) -> tuple[str, Backend]:
    """(name, callable) of a backend given by name or as a callable."""
    if isinstance(backend, str):
        if backend not in _BACKENDS:
            raise UnknownBackend(backend, list_backends())
        return backend, _BACKENDS[backend]
    if callable(backend):
        return getattr(backend, "__name__", type(backend).__name__), backend
    raise UnknownBackend(backend, list_backends())
