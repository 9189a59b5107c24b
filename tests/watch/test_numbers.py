"""Numbers that are objects of their own: their identity tells where they came from."""

from __future__ import annotations

import sys

import pytest

from stator import _native


@pytest.mark.parametrize("number", [0, 1, -1, 255, -5, 1 << 29, 1 << 30, -(1 << 62), 1 << 500, 0.0, -0.0, 1.5, 1e300])
def test_a_copy_is_the_same_number_and_another_object(number: float) -> None:
    copies = [_native.distinct(number) for _ in range(100)]
    assert {id(copy) for copy in copies}.isdisjoint({id(number)})
    assert len({id(copy) for copy in copies}) == len(copies)
    for copy in copies:
        assert type(copy) is type(number)
        assert repr(copy) == repr(number)
        assert copy == number
        assert hash(copy) == hash(number)
        assert sys.getsizeof(copy) == sys.getsizeof(number)
        assert copy + 1 == number + 1
        assert {number: "found"}[copy] == "found"


@pytest.mark.parametrize("text", ["a", "é", "ab", "é" * 3, "\u4e2d" * 5, "\U0001f600 ok", "name"])
def test_a_copy_of_a_text(text: str) -> None:
    copy = _native.distinct(text)
    assert copy is not text
    assert (type(copy), copy, hash(copy), {text: 1}[copy]) == (str, text, hash(text), 1)


def test_other_things_are_refused() -> None:
    for value in (True, "", None, [1]):
        with pytest.raises(TypeError, match="an int, a float or a text"):
            _native.distinct(value)
