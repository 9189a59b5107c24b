"""stator: compile PyTorch programs with one line. See `stator.compile`."""

from . import errors
from .api import (
    compile,
    compile_,
    disable,
    explain,
    graph_break,
    is_compiling,
    optimize,
    reset,
    set_logs,
    set_stance,
)
from .backends import list_backends, register_backend
from .options import options

config = options
__version__ = "0.1.0"

__all__ = [
    "compile",
    "compile_",
    "config",
    "disable",
    "errors",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "optimize",
    "options",
    "register_backend",
    "reset",
    "set_logs",
    "set_stance",
]
