"""Calls of the `logging` module: a break only where a handler would emit.

Whether one would is a question that the guards can ask again. So a message below the level costs one guard, as does
`isEnabledFor`, and the locks and caches behind them are nobody's business.
"""

from __future__ import annotations

import logging
import types
from typing import Any

from ...recording import Edge, Fact
from ..graph_break import BreakGraph
from ..objects.constants import is_constant
from ..segment import Segment
from .cached_calls import cached, cached_result, is_cached
from .call_model import Args, CallModel

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}


_PARTS = (
    *("isEnabledFor", "getEffectiveLevel", "_log", "findCaller", "makeRecord", "handle", "filter", "callHandlers"),
    *("log", *_LEVELS),
)
# What a message that no handler emits comes through besides.
_OTHERS: tuple[tuple[type, str], ...] = ((logging.LogRecord, "__init__"), (logging.NullHandler, "handle"))


def _is_own(function: Any) -> bool:
    """Was it written in `logging`? Others (error trackers, test runners) put theirs in the place of its functions."""
    if type(function) is not types.FunctionType or hasattr(function, "__wrapped__"):
        return False
    return function.__globals__ is vars(logging) and function.__code__.co_filename == _FILE


_FILE = logging.Logger.__init__.__code__.co_filename


def _is_plain(logger: Any) -> bool:
    """Does `logging` itself decide what becomes of this logger's messages?"""
    cls = type(logger)
    if not issubclass(cls, logging.Logger) or not all(_is_own(getattr(owner, name, None)) for owner, name in _OTHERS):
        return False
    return all(_is_own(getattr(cls, name, None)) and name not in vars(logger) for name in _PARTS if hasattr(cls, name))


def emits(logger: logging.Logger, level: int) -> bool:
    """Would a message of this level be seen by anybody?"""
    if not _is_plain(logger):
        return True
    if not logger.isEnabledFor(level):
        return False
    if logger.filters or logging.getLogRecordFactory() is not logging.LogRecord:
        return True  # Python of the program's
    current: logging.Logger | None = logger
    handlers: list[logging.Handler] = []
    while current is not None:
        handlers += current.handlers
        current = current.parent if current.propagate else None
    if handlers:
        return any(level >= handler.level and type(handler) is not logging.NullHandler for handler in handlers)
    return logging.lastResort is None or level >= logging.lastResort.level


def enabled(logger: logging.Logger, level: int) -> bool:
    """`Logger.isEnabledFor`, as the guards ask it."""
    return logging.Logger.isEnabledFor(logger, level)


def _ask(s: Segment, question: types.FunctionType, logger: Any, level: Any) -> bool:
    """The answer of a question about a logger from outside, which the guards ask again."""
    origin = s.ledger.find(logger)
    if origin is None or not _is_plain(logger) or type(level) is not int:
        raise BreakGraph("call-logging", "logging")
    s.ledger.require(origin, Fact.IS, logger)
    answer = bool(s.watcher.paused(question, logger, level))
    s.ledger.read(s.ledger.constant(question), Edge.CALL, (logger, level), answer)
    return answer


def _message(s: Segment, func: Any, kwnames: tuple[str, ...], level: Any, logger: Any) -> Any:
    if _ask(s, emits, logger, level):  # type: ignore[arg-type]
        looks_around = {"stacklevel", "stack_info"} & set(kwnames)
        raise BreakGraph("frames" if looks_around else "call-logging", f"logging.{func.__qualname__}")
    return no_message


def no_message(*args: Any, **kwargs: Any) -> None:
    """In the place of a call that nobody would hear."""


def log_at_own_level(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`logger.debug(…)` and its kin."""
    return _message(s, func, kwnames, _LEVELS[func.__name__], args[0]) if len(args) - len(kwnames) > 1 else None


def log_at_level(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`logger.log(level, …)`."""
    return _message(s, func, kwnames, args[1], args[0]) if len(args) - len(kwnames) > 2 else None


def log_to_root(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`logging.debug(…)` and its kin, which set up the root logger if it has no handler."""
    raise BreakGraph("call-logging", f"logging.{func.__qualname__}")


def is_enabled(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`logger.isEnabledFor(level)`."""
    if len(args) != 2 or kwnames:
        return None
    return _yes if _ask(s, enabled, *args) else _no  # type: ignore[arg-type]


def _yes(*args: Any) -> bool:
    return True


def _no(*args: Any) -> bool:
    return False


def get_logger(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """`logging.getLogger(name)`: one that is there already is always the same."""
    name = args[0] if args else None
    known = logging.Logger.manager.loggerDict.get(name) if type(name) is str else None
    if kwnames or len(args) > 1 or not isinstance(known, logging.Logger):
        raise BreakGraph("call-logging", "logging.getLogger")
    s.ledger.read(s.ledger.constant(existing_logger), Edge.CALL, (name,), known)
    return existing_logger


def existing_logger(name: str) -> Any:
    """The logger of this name, if it has been made."""
    return logging.Logger.manager.loggerDict.get(name)


# Methods of loggers behind `functools.lru_cache`, which log a message once: by module and name.
_ONCE = {
    ("transformers.utils.logging", "warning_once"): logging.WARNING,
    ("transformers.utils.logging", "info_once"): logging.INFO,
}


def call_cached(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
    """A function behind `functools.lru_cache`. A message that was logged already, or that no handler emits, is
    remembered in the cache, and that is all: the guards see to it that it is there."""
    return None if _logs_once(s, func, args, kwnames) else cached(s, func, args, kwnames)


def _logs_once(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> bool:
    wrapped = getattr(func, "__wrapped__", None)
    level = _ONCE.get((getattr(wrapped, "__module__", ""), getattr(wrapped, "__qualname__", "")))
    if level is None or kwnames or len(args) < 2 or not all(map(is_constant, args[1:])):
        return False
    logger = args[0]
    origin = s.ledger.find(logger)
    if origin is None or not _is_plain(logger):
        return False
    if not is_cached(func, args) and s.watcher.paused(emits, logger, level):
        return False
    s.ledger.require(origin, Fact.IS, logger)
    s.ledger.read(s.ledger.constant(cached_result), Edge.CALL, (func, *args), s.watcher.paused(func, *args))
    return True


def _own(owner: Any, *names: str) -> list[Any]:
    """Those of the functions that nobody has replaced: what stands there instead is watched like any other."""
    return [getattr(owner, name) for name in names if _is_own(getattr(owner, name, None))]


TABLE: tuple[CallModel, ...] = (
    CallModel(log_at_own_level, _own(logging.Logger, *_LEVELS), "a message that no handler emits changes nothing"),
    CallModel(log_at_level, _own(logging.Logger, "log"), "a message that no handler emits changes nothing"),
    CallModel(log_to_root, _own(logging, *_LEVELS, "log"), "may set up the root logger first"),
    CallModel(
        is_enabled, _own(logging.Logger, "isEnabledFor"), "reads levels of loggers, which the guards ask for again"
    ),
    CallModel(get_logger, _own(logging, "getLogger"), "finds a logger by name, or makes one"),
)
