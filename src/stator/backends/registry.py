"""The registry of backends.

Enters: a name or a callable. Leaves: a callable `(gm, example_inputs) -> callable`, as torch's backends are written.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import fx

from ..errors import UnknownBackend
from ..options import FIELDS, nearest

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
B = TypeVar("B", bound=Callable[..., Any])

_BACKENDS: dict[str, Backend] = {}
_OF_TORCH: dict[str, Backend] = {}  # names of its registry that were asked for
_IN_MODE: dict[str, Callable[..., Backend]] = {}  # those that have something to choose: of a mode, and settings
# Ours, loaded when first asked for: what they build on (scipy, TorchInductor) takes longer to import than stator does.
_MODULES = {"aot_eager": ".aot_eager", "eager": ".eager", "inductor": ".inductor", "native": ".native"}
DEFAULT = "native"


def list_backends() -> list[str]:
    """The names that `compile(backend=…)` takes, besides those of torch's own registry."""
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
        _load(backend)
        if mode in (None, "default") or backend not in _IN_MODE:
            return backend, _BACKENDS.get(backend) or _OF_TORCH[backend]
        return backend, _IN_MODE[backend](str(mode))
    if callable(backend):
        return getattr(backend, "__name__", type(backend).__name__), backend
    raise UnknownBackend(backend, list_backends())


def look_up_with(backend: Any, mode: str | None, settings: Mapping[str, Any]) -> tuple[str, Backend]:
    """The same, with settings of the backend's own. Only torch's generator has such."""
    if not settings:
        return look_up(backend, mode)
    if backend != "inductor":
        raise ValueError(f"backend {backend!r} has no options of its own, such as {', '.join(map(repr, settings))}")
    known: Mapping[str, Any] = importlib.import_module("torch._inductor.config")._config
    for name in settings:
        if name not in known:
            text = f"torch's generator has no option {name!r}{nearest(name, known)}; nor has stator"
            raise ValueError(f"{text} (known to stator: {', '.join(FIELDS)})")
    _load(backend)
    return backend, _IN_MODE[backend](str(mode or "default"), **settings)


def _load(name: str) -> None:
    """A backend of ours, or one that torch knows by this name, becomes one of those that are there."""
    if name in _BACKENDS or name in _OF_TORCH:
        return
    if name in _MODULES:
        module = importlib.import_module(_MODULES[name], __package__)
        _BACKENDS[name] = module.compile_graph
        if hasattr(module, "in_mode"):
            _IN_MODE[name] = module.in_mode
        return
    if difflib.get_close_matches(name, list_backends(), n=1, cutoff=0.8):
        raise UnknownBackend(name, list_backends())
    torchs: Any = importlib.import_module("torch._dynamo.backends.registry")  # takes seconds
    names = torchs.list_backends(exclude_tags=())
    if name not in names:
        raise UnknownBackend(name, sorted({*list_backends(), *names}))
    _OF_TORCH[name] = torchs.lookup_backend(name)


def is_ours(backend: Backend) -> bool:
    """Ours find out themselves what each node gives."""
    return str(getattr(backend, "__module__", "")).startswith("stator.")
