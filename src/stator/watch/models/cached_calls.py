"""Functions behind caches: `functools.lru_cache`, and the patterns that `re` compiles once.

On a hit no frame runs. The guards ask the cache again, and what it would have to compute ends the recording.
"""

from __future__ import annotations

import gc
import re
from typing import Any

from ... import _native
from ...recording import Edge
from ..graph_break import BreakGraph
from ..objects.constants import is_constant
from ..segment import Segment
from .call_model import Args, rule
from .reads import has_written, is_trusted_behind_cache
from .rules import pure
from .side_effect_calls import name_of


def cached(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """A function behind `functools.lru_cache`: on a hit no frame runs, so the guards ask the cache again. They ask for
    what it holds, and do not make it call the program's function: that might be too early, or once too often."""
    if kwnames or not all(map(is_constant, args)):
        raise BreakGraph("cached-function", name_of(func))
    trusted = is_trusted_behind_cache(func)
    if not trusted and has_written(s) and not is_cached(func, args):
        raise BreakGraph("cached-function", name_of(func))
    was, s.tracer.active = s.tracer.active, False  # what is computed now is computed once, and no part of the graph
    try:
        value = s.watcher.paused(func, *args)
    except Exception as error:  # which no cache holds: called again, the function would do again what it did
        s.fail(BreakGraph("cached-function", name_of(func)))
        assert error.__traceback__ is not None
        return _native.raising(error.with_traceback(error.__traceback__.tb_next))
    finally:
        s.tracer.active = was
    if trusted:
        s.ledger.read(s.ledger.find(func) or s.ledger.constant(func), Edge.CALL, args, value)
    elif is_cached(func, args):
        s.ledger.read(s.ledger.constant(cached_result), Edge.CALL, (func, *args), value)
    else:
        s.fail(BreakGraph("cached-function", name_of(func)))
        return lambda *given: value
    return None


# A pattern of which `re` may warn: inside of a set there is what could come to mean a set of sets, or a group is asked
# for by something that is no plain number.
_SETS = r"\[\^?\]?(?:\\.|[^\]\\])*?(?:\[|--|&&|~~|\|\|)"
_GROUPS = r"\(\?\((?!(?:[0-9]+|[A-Za-z]\w*)\))"
_MAY_WARN = re.compile(f"{_SETS}|{_GROUPS}", re.DOTALL)


@rule(takes=1)
def compile_pattern(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> None:
    """What `re` calls where it does not know a pattern yet. It runs unwatched: the same text gives the same pattern,
    and watched it would break the graph dozens of times. Not so if it warns, prints or depends on the locale."""
    pure(s, func, args, kwnames)
    text, flags = args[0], args[1] if len(args) > 1 else 0
    plain = type(text) is str or (type(text) is bytes and b"L" not in text)
    if kwnames or not plain or type(flags) not in (int, re.RegexFlag) or flags & (re.DEBUG | re.LOCALE):
        raise BreakGraph("unknown-callable", "re.compile")
    letters = text if type(text) is str else text.decode("ascii", "replace")
    if _MAY_WARN.search(letters) is not None or (type(text) is bytes and not text.isascii()):
        raise BreakGraph("call-warn", "re.compile")


_NOT_CACHED = object()


def cached_result(func: Any, *args: Any) -> Any:
    """What a cached function gives without calling anything; some object of ours if it would have to."""
    return func(*args) if is_cached(func, args) else _NOT_CACHED


def is_cached(func: Any, args: tuple[Any, ...]) -> bool:
    """Does the cache of a function, which nothing but the garbage collector is told of, hold a result for these?"""
    tables = [table for table in gc.get_referents(func) if type(table) is dict and table is not vars(func)]
    if func.cache_parameters()["typed"]:  # the keys are made as functools makes them
        key: Any = (*args, *map(type, args))
    else:
        key = args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    return len(tables) == 1 and key in tables[0]
