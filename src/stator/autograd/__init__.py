"""Ahead-of-time autograd: forward and backward graphs before the first result."""

from .api import SavedValues, aot_function, aot_module, aot_module_simplified, saved_values
from .compile import make_boxed_compiler
from .partition import default_partition, min_cut_partition

__all__ = [
    "SavedValues",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "default_partition",
    "make_boxed_compiler",
    "min_cut_partition",
    "saved_values",
]
