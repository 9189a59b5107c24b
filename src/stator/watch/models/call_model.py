"""What is said of C callables: a row for each, or for all methods of a type, and facts about each rule.

A rule is a function that notes what a call is going to read and change (`rules.py`). What else is known of calls that
go by it stands at the rule; what is known of one callable alone stands in its row (`calls.py`, `methods.py`). What is
not said is taken for the worst.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..segment import Segment

Args = tuple[Any, ...]
Rule = Callable[[Segment, Any, Args, tuple[str, ...]], Any]


class NumberUse(enum.Enum):
    """What becomes of symbolic numbers among the arguments."""

    READ = "their values may be read: they are constants from then on"
    HELD = "they are kept as they are, and nothing is called"
    BEHIND_FIRST = "the same, but for a number that is the first argument itself: that is read"
    KEPT = "they are kept or passed on as they are: what is callable may be called with them"
    ASKED = "operators ask them, unless they look at a float or a bool first"
    HANDED_ON = "the first argument is called with them, and otherwise operators ask them"
    FIRST = "those in the first argument are kept, and others read"


class RuleFacts(NamedTuple):
    """Of all calls that go by a rule."""

    skipped: bool = False  # C code skips further calls whose arguments are all fresh: nothing would be noted
    arguments_only: bool = False  # nothing but the arguments is read: C code may call it on what was exposed
    numbers: NumberUse = NumberUse.READ


def rule(
    *, takes: int = 0, skipped: bool = False, arguments_only: bool = False, numbers: NumberUse = NumberUse.READ
) -> Callable[[Rule], Rule]:
    """Facts about a rule. It looks at so many arguments: a call with fewer raises before it reads anything."""

    def decorate(function: Rule) -> Rule:
        checked = function
        if takes:

            @functools.wraps(function)
            def checked(s: Segment, func: Any, args: Args, kwnames: tuple[str, ...]) -> Any:
                return function(s, func, args, kwnames) if len(args) >= takes else None

        checked.facts = RuleFacts(skipped, arguments_only, numbers)  # type: ignore[attr-defined]
        return checked

    return decorate


_UNKNOWN = RuleFacts()


def facts_of(function: Rule) -> RuleFacts:
    return getattr(function, "facts", _UNKNOWN)


class CallModel(NamedTuple):
    """C callables of one kind."""

    rule: Rule
    callables: Iterable[Any]
    why: str  # that rule is right for them
    numbers: NumberUse | None = None  # None: what the rule says
    heard: bool = False  # it asks a number by a method of the number's: C code may call it with one
    later: bool = False  # what it is given is called when its result is used
    instead: Callable[[Args], Any] | None = None  # what to call in its place for symbolic numbers; None: itself


class TypeMethods(NamedTuple):
    """The methods of builtin types of one kind."""

    of: tuple[type, ...] | Callable[[type], bool]
    rules: dict[Rule, str]  # and the names of the methods that go by each
    otherwise: Rule | None = None  # of all other methods; None: nothing is known of them
    kept: str | None = None  # those that keep or pass on symbolic numbers; None: what their rules say
