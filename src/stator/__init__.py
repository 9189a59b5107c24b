"""stator: compile PyTorch programs with one line. See `stator.compile`."""

import importlib
from typing import Any

from . import errors
from .api import (
    allow_in_graph,
    assume_constant_result,
    compile,
    compile_,
    disable,
    explain,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    optimize,
    reset,
    set_logs,
    set_stance,
)
from .backends import list_backends, register_backend
from .options import options

config = options
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`stator.autograd` is loaded when first asked for: what it builds on takes longer to import than stator does."""
    if name == "autograd":
        return importlib.import_module(".autograd", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_",
    "config",
    "disable",
    "errors",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "options",
    "register_backend",
    "reset",
    "set_logs",
    "set_stance",
]
