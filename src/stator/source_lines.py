"""Lines of source, for messages. A program can look into `linecache.cache`, so nothing is left there.

Enters: a file's name, or what code says it was made from (`<doctest …>`, a cell of a notebook). Leaves: its lines; none
if they cannot be found.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
from collections.abc import Callable
from types import CodeType
from typing import Any

from .interrupts import let_through


def lines(filename: str) -> list[str]:
    """All lines, each with its end."""
    known = linecache.cache.get(filename)
    if known is not None and len(known) > 1:
        return known[2]
    try:
        found = os.stat(filename)
    except OSError:
        return _asked_for(filename)
    except ValueError:  # a name that no file can have: `linecache` would raise
        return []
    return _read(filename, found.st_mtime_ns, found.st_size)


def line(filename: str, number: int | None) -> str:
    """One of them, counted from one; empty if there is none."""
    found = lines(filename)
    return found[number - 1] if number is not None and 1 <= number <= len(found) else ""


def of_function(function: Callable[..., Any]) -> str:
    """Its text. `inspect.getsource` would look at all modules that the program has loaded, whatever they answer."""
    code: CodeType = function.__code__
    return "".join(inspect.getblock(lines(code.co_filename)[code.co_firstlineno - 1 :]))


@functools.lru_cache(maxsize=64)
def _read(filename: str, *stamp: int) -> list[str]:
    return _asked_for(filename)


def _asked_for(filename: str) -> list[str]:
    """As `linecache` gives them, which others (`doctest`) may have taught to know more files than there are."""
    cache: dict[str, Any] = linecache.cache
    known = cache.get(filename)
    try:
        return list(linecache.getlines(filename))
    except Exception as error:  # a loader of the program's may raise what it likes
        let_through(error)
        return []
    finally:
        if known is None:
            cache.pop(filename, None)
        else:  # who is to be asked for the text
            cache[filename] = known
