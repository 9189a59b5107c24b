"""The text of an exception is made of what it was made of: that is read when the text is, by C code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import World, check, rand


class Mine(Exception):
    pass


def caught(x, w):
    try:
        raise KeyError(w.items)
    except KeyError as error:
        return x * len(str(error))


def chained(x, w):
    try:
        try:
            raise ValueError(w.items)
        except ValueError as error:
            raise RuntimeError(error) from None
    except RuntimeError as error:
        return x * len(f"{error!r}")


def returned(x, w):
    def steps():
        yield x
        return w.items

    made = steps()
    next(made)
    try:
        next(made)
    except StopIteration as end:
        return x * len(repr(end))


MADE_INSIDE: dict[str, Callable[[Any, World], Any]] = {
    "str": lambda x, w: x * len(str(ValueError(w.items))),
    "repr": lambda x, w: x * len(repr(ValueError(w.items))),
    "f-string": lambda x, w: x * len(f"{ValueError(w.items)}"),
    "%": lambda x, w: x * len("%s" % ValueError(w.items)),
    "format": lambda x, w: x * len("{}".format(ValueError(w.items))),  # noqa: UP032
    "in a list": lambda x, w: x * len(repr([ValueError(w.items)])),
    "by map": lambda x, w: x * len(" ".join(map(str, [ValueError(w.items)]))),
    "of its own class": lambda x, w: x * len(str(Mine(w.items))),
    "in another one": lambda x, w: x * len(str(ValueError(ValueError(w.items)))),
    "of the system": lambda x, w: x * len(str(OSError(2, "no", str(w.items)))),
    "a group": lambda x, w: x * len(repr(ExceptionGroup("several", [ValueError(w.items)]))),
    "caught": caught,
    "chained": chained,
    "returned": returned,
}


@pytest.mark.parametrize("how", MADE_INSIDE)
def test_rule_5_made_inside_of_an_object_that_changes(how):
    def world() -> World:
        w = World(items=[1, 2])
        w.fn = lambda x: MADE_INSIDE[how](x, w)
        return w

    def call(items: list[int]) -> Callable[[World], Any]:
        def run(w: World) -> Any:
            w.items[:] = items
            return w.fn(rand(1))

        return run

    seen = check(world, [call([1, 2]), call([1, 2]), call([111, 2]), call([1, 2]), call([1, 2, 3])], expect=None)
    assert seen.outcomes[1] == "hit" and seen.outcomes[2] == "miss"


OUTSIDE: dict[str, Callable[[Any, World], Any]] = {
    "str": lambda x, w: x * len(str(w.error)),
    "f-string": lambda x, w: x * len(f"{w.error}"),
    "%": lambda x, w: x * len("%s" % w.error),
    "in a list": lambda x, w: x * len(repr([w.error])),
}


@pytest.mark.parametrize("cls", [Mine, ValueError, OSError])
@pytest.mark.parametrize("how", OUTSIDE)
def test_rule_5_from_outside_with_other_arguments(how, cls):
    """They are kept by C code, where no guard looks: the graph breaks."""

    def world() -> World:
        w = World(error=cls("ab"))
        w.fn = lambda x: OUTSIDE[how](x, w) + 1
        return w

    def call(text: str) -> Callable[[World], Any]:
        def run(w: World) -> Any:
            w.error.args = (text,)
            return w.fn(rand(1))

        return run

    check(world, [call("ab"), call("ab"), call("abcdef"), call("ab")], expect=None, unreplayed="unguardable")


def test_rule_5_one_that_nobody_shows_is_not_read():
    """Only the text depends on what is in it."""

    def world() -> World:
        w = World(items=[1, 2])

        def fn(x):
            try:
                raise ValueError(w.items)
            except ValueError:
                return x * 2

        w.fn = fn
        return w

    def call(items: list[int]) -> Callable[[World], Any]:
        def run(w: World) -> Any:
            w.items[:] = items
            return w.fn(rand(1))

        return run

    check(world, [call([1]), call([1, 2]), call([111, 2])], expect="miss hit hit")
