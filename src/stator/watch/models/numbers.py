"""What is called in the place of a C callable that would lose what a symbolic number stands for.

A function here gets the arguments, and gives the callable, or the name of one that the segment's symbols have
(`observe/unguarded_values.py`); None: the callable itself is right.
"""

from __future__ import annotations

from typing import Any

from ... import _native
from ..objects.fingerprints import is_tensor

Args = tuple[Any, ...]
SYMBOLS = (_native.Int, _native.Float)
TEXTS = (str, bytes, bytearray)


def total(args: Args) -> Any:
    return _native.total if len(args) <= 2 and not any(issubclass(type(arg), TEXTS) for arg in args[1:]) else None


def product(args: Args) -> Any:
    return _native.product if len(args) == 1 else None


def _two_with_a_real(args: Args) -> bool:
    return len(args) == 2 and any(type(arg) is _native.Float for arg in args)


def smaller(args: Args) -> Any:
    return "smaller" if _two_with_a_real(args) else None


def larger(args: Args) -> Any:
    return "larger" if _two_with_a_real(args) else None


def root(args: Args) -> Any:
    return "root" if len(args) == 1 and type(args[0]) is _native.Float else None


def length(args: Args) -> Any:
    return "length" if len(args) == 1 and is_tensor(args[0]) and args[0].dim() else None


def plain_type(args: Args) -> Any:
    return "plain_type" if len(args) == 1 and type(args[0]) in SYMBOLS else None


def rounded(args: Args) -> Any:
    """A whole number is that number."""
    return "itself" if len(args) == 1 and type(args[0]) is _native.Int else None


whole_itself = rounded


def real_itself(args: Args) -> Any:
    return "itself" if len(args) == 1 and type(args[0]) is _native.Float else None
