"""Regular expressions, and texts that are very long."""

from __future__ import annotations

import re
import tracemalloc
import warnings

import pytest
import torch
from harness import World, check, rand

import stator

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


def test_a_long_text_is_not_copied():
    """Behind a break texts become objects of their own; not one of ten million characters, at every break."""
    text = "x" * 10**7

    def fn(x, text):
        y = x + 1
        for _ in range(3):
            print("here")
            y = y + len(text[:5])
        print("there")
        return y * 2

    compiled = stator.compile(fn, backend="eager")
    tracemalloc.start()
    try:
        for seed in range(3):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            assert torch.equal(compiled(rand(seed), text), fn(rand(seed), text))
            assert tracemalloc.get_traced_memory()[1] - before < len(text) / 2, f"call {seed + 1}"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [5, 200_000])
def test_texts_that_change_behind_a_break(length):
    def fn(x, text):
        y = x + 1
        print("here")
        return y * 2, text, text[0] == "a", len(text)

    texts = [letter * length for letter in "aabbca"]
    calls = [lambda w, n=n, text=text: w.fn(rand(n), text) for n, text in enumerate(texts)]
    check(lambda: World(fn=fn), calls, expect=None)


def test_a_pattern_is_compiled_inside():
    """Each call finds the cache of `re` empty, or filled by an earlier one."""

    def fn(x, text, purge):
        if purge:
            re.purge()
        pattern = re.compile(r"(\d+)-(?P<name>[a-z]*)", re.IGNORECASE)
        return pattern.findall(text), pattern.groups, pattern.groupindex["name"], x + 1

    texts = ["12-ab 3-", "12-ab 3-", "none", "7-Q", "12-ab 3-", "7-Q"]
    calls = [lambda w, n=n, text=text: w.fn(rand(n), text, n % 2 == 0) for n, text in enumerate(texts)]
    check(lambda: World(fn=fn), calls, expect=None)


def test_patterns_behind_a_break():
    def fn(x, pattern, flags):
        print("here")
        re.purge()
        found = re.compile(pattern, flags)
        return found.split("aXbxc"), found.pattern, found.flags, x + 1

    given = [("x", 0), ("x", 0), ("x", False), ("X", 0), ("x", re.I), ("x", re.IGNORECASE), ("b", 0), ("x", 0)]
    calls = [lambda w, n=n, one=one: w.fn(rand(n), *one) for n, one in enumerate(given)]
    check(lambda: World(fn=fn), calls, expect=None)


def test_a_pattern_of_the_programs_own_class_of_texts():
    class Text(str):
        pass

    def world():
        texts = [Text("a"), Text("b"), Text("a")]

        def fn(x, text):
            re.purge()
            return re.split(text, "1a2b3"), x + 1

        return World(fn=fn, texts=texts)

    check(world, [lambda w, n=n: w.fn(rand(n), w.texts[n % 3]) for n in range(6)], expect=None)


@pytest.mark.parametrize("pattern", ["(", "[a", "*"])
def test_a_pattern_that_is_none(pattern):
    def fn(x):
        try:
            re.compile(pattern)
        except re.error as error:
            return str(error), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


_OF_GROUPS = ("(a)?(?(+1)b|c)", b"(a)?(?(+1)b|c)", b"(?P<\xb5>a)")
_WARNED = ("[a[b]", "[]a[b]", r"[\]a[b]", r"[\]a||b]", "[+--]", "[^a||b]", "[a&&b]", "x[a~~b]")


@pytest.mark.parametrize("pattern", [*_WARNED, *map(str.encode, _WARNED), *_OF_GROUPS])
def test_a_pattern_that_is_warned_of(pattern):
    def world():
        def fn(x):
            re.purge()
            return re.findall(pattern, "a b [" if type(pattern) is str else b"a b ["), x + 1

        def call(w, seed):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                result = w.fn(rand(seed))
            return result, [(str(one.message), one.category, one.filename) for one in told]

        return World(fn=fn, call=call)

    errors = re.error if pattern in _OF_GROUPS else ()  # from 3.12 on these are errors
    check(
        world,
        [lambda w, seed=seed: w.call(w, seed) for seed in range(4)],
        expect=None,
        raises=errors,
        unreplayed=["call-warn", "unknown-callable"],
    )


def test_a_pattern_that_is_printed(capsys):
    def fn(x):
        re.compile("ab", re.DEBUG)
        return x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_a_pattern_of_the_locale():
    def fn(x):
        re.purge()
        found = re.compile(rb"(?L)\w", 0)
        return found.findall(b"ab"), re.findall(b"a", b"aba", re.LOCALE), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


@pytest.mark.parametrize("name", ["search", "match", "fullmatch", "finditer", "sub", "subn"])
def test_what_else_a_pattern_can_do(name):
    def fn(x, text):
        pattern = re.compile("[ab]+")
        if name.startswith("sub"):
            found = getattr(pattern, name)("<\\g<0>>", text)
        elif name == "finditer":
            found = [match.span() for match in pattern.finditer(text)]
        else:
            match = getattr(pattern, name)(text)
            found = None if match is None else (match.group(), match.span())
        return found, x + 1

    calls = [lambda w, n=n, text=text: w.fn(rand(n), text) for n, text in enumerate(["ab", "ab", "xabx", "c", "ab"])]
    check(lambda: World(fn=fn), calls, expect=None, unreplayed="unknown-callable")


def test_pattern_in_one_graph():
    def fn(x, text):
        return x + len(re.split("[,;] *", text))

    calls = [lambda w, n=n, text=text: w.fn(rand(n), text) for n, text in enumerate(["a,b", "a,b", "a;b, c", "a,b"])]
    re.compile("[,;] *")
    check(lambda: World(fn=fn), calls, expect="miss hit miss hit")
