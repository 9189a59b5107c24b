"""Metaclasses that say which classes are equal: nothing is looked up by what they say, and nobody asks them."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import rand

import stator
from stator.watch.models.user_hints import is_left_alone
from stator.watch.objects import object_age

ASKED: list[str] = []
TAKEN_FOR = (int, float, str, type(None), tuple, list, dict, slice, range, torch.device, torch.Tensor, torch.Size,
             types.FunctionType, types.ModuleType, type, re.Pattern, object)  # fmt: skip


def holder(taken_for: type) -> Any:
    """An object of a class that says it is that other class, and any class."""

    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            ASKED.append("eq")
            return True

        def __hash__(cls) -> int:
            ASKED.append("hash")
            return type.__hash__(taken_for)

    class Holder(metaclass=Meta):
        k = 1.0

    return Holder()


def reads(x: torch.Tensor, held: Any) -> Any:
    y = x.sin() * 2
    return y * held.k


def writes(x: torch.Tensor, held: Any) -> Any:
    y = x.sin() * 2
    held.last = y
    return y + len(vars(held))


def gives_back(x: torch.Tensor, held: Any) -> Any:
    return x.sin() * 2, held


def makes_another(x: torch.Tensor, held: Any) -> Any:
    y = x.sin() * 2
    other = type(held)()
    other.k = 3.0
    return y * other.k


def by_its_class(x: torch.Tensor, held: Any) -> Any:
    y = x.sin() * 2
    return y * (2 if isinstance(held, type(held)) else 3)


@pytest.mark.parametrize("taken_for", TAKEN_FOR)
@pytest.mark.parametrize("function", [reads, writes, gives_back, makes_another, by_its_class])
def test_rule_5_tables_of_classes_are_not_asked(
    function: Callable[..., Any], taken_for: type, recwarn: pytest.WarningsRecorder
) -> None:
    one = holder(taken_for)

    def fn(x: torch.Tensor) -> Any:
        return function(x * 1, one)

    def with_a_break(x: torch.Tensor) -> Any:
        y = (x * 3).cos()
        print(end="")
        return function(y, one)

    for program in (fn, with_a_break):
        fast = stator.compile(program, backend="eager")
        for seed in range(4):
            one.k = float(seed)
            ASKED.clear()
            expected = program(rand(seed))
            plain = list(ASKED)
            ASKED.clear()
            found = fast(rand(seed))
            assert plain == ASKED
            if isinstance(expected, tuple):
                assert found[1] is expected[1] is one
                expected, found = expected[0], found[0]
            assert torch.equal(expected, found), (program, seed)
        assert program is fn or fast.stator.recordings >= 1
        assert program is fn or len(fast.stator.graphs) >= 1
    assert not [str(each.message) for each in recwarn if "stator failed" in str(each.message)]


def test_rule_2_classes_of_one_name_that_are_equal_by_it() -> None:
    """As classes are that were made anew, by a reload."""

    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            return getattr(other, "__name__", None) == cls.__name__

        def __hash__(cls) -> int:
            return hash(cls.__name__)

    def made(has: bool) -> Any:
        body = {"scale": property(lambda self: 2.0)} if has else {"__init__": lambda self: setattr(self, "scale", 3.0)}
        return Meta("Config", (), body)()

    first, second = made(True), made(False)

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = (x * 3).cos()
        print(end="")
        return y * first.scale + second.scale

    fast = stator.compile(fn, backend="eager")
    for seed in range(4):
        second.scale = float(seed)
        assert torch.equal(fast(rand(seed)), fn(rand(seed)))
    assert len(fast.stator.graphs) >= 1


def test_rule_5_the_age_of_a_class_is_not_asked_of_its_metaclass() -> None:
    """A class that a guard names, found under no name of its module: is it older than the call?"""
    first, second = type(holder(int)), type(holder(int))
    ASKED.clear()
    marker: list[int] = []
    guards = [types.SimpleNamespace(checks=[types.SimpleNamespace(expected=first)], edge=None)]
    for _ in range(2):
        assert object_age.newborn(guards, marker) is None  # type: ignore[arg-type]
    assert id(second) not in map(id, object_age._old) and first in object_age._old
    third = type(holder(int))
    guards[0].checks[0].expected = third
    assert object_age.newborn(guards, marker) is third  # type: ignore[arg-type]
    assert not ASKED


def test_rule_5_code_objects_are_not_compared() -> None:
    """Their constants may be anything, and need not have a hash."""

    class Odd:
        def __eq__(self, other: object) -> bool:
            ASKED.append("eq")
            return True

        __hash__ = None  # type: ignore[assignment]

    def helper(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    helper.__code__ = helper.__code__.replace(co_consts=(*helper.__code__.co_consts, Odd(), [1]))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return helper(x) + 1

    fn.__code__ = fn.__code__.replace(co_consts=(*fn.__code__.co_consts, Odd()))
    ASKED.clear()
    for function in (fn, helper):
        fast = stator.compile(function, backend="eager")
        for seed in range(3):
            assert torch.equal(fast(rand(seed)), function(rand(seed)))
        assert (fast.stator.recordings, fast.stator.hits) == (1, 2)
    assert not ASKED


def test_rule_5_functions_of_equal_code_are_not_one_another() -> None:
    """As two files have them that begin with the same lines: one is disabled, the other is not."""
    text = "def helper(x):\n    return x * 2\n"
    spaces: list[dict[str, Any]] = [{}, {}]
    for number, space in enumerate(spaces):
        exec(compile(text, f"file{number}.py", "exec"), space)
    first, second = (space["helper"] for space in spaces)
    assert first.__code__ == second.__code__ and first.__code__ is not second.__code__
    left = stator.disable(first, recursive=False)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return second(x) + 1

    fast = stator.compile(fn, backend="eager")
    for seed in range(3):
        assert torch.equal(fast(rand(seed)), fn(rand(seed))) and torch.equal(left(rand(seed)), rand(seed) * 2)
    assert not is_left_alone(second.__code__) and is_left_alone(first.__code__)
    assert not fast.stator.break_reasons and fast.stator.hits == 2
