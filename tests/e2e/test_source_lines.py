"""Source lines in messages: from files, from `linecache`, from doctests; and nothing is left there."""

from __future__ import annotations

import doctest
import linecache
import types

import pytest
from harness import World, check, rand

import stator

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


def test_the_lines_that_messages_show_are_not_left_behind():
    def deeper(x):
        print("here")
        return x + 1

    def fn(x):
        linecache.clearcache()
        y = deeper(x)
        return sorted(linecache.cache), y * 2

    seen = check(lambda: World(fn=fn), FOUR, expect=None)
    texts = [str(why) for why in seen.world.fn.stator.break_reasons]
    assert any('print("here")' in text for text in texts)
    assert stator.explain(fn)(rand(1)).break_reasons  # and all that is told of it
    fn(rand(1))
    assert __file__ not in linecache.cache


def test_lines_that_only_linecache_knows():
    code = "def fn(x):\n    y = x + 1\n    print('here')\n    return y * 2\n"
    names: dict = {}
    exec(compile(code, "<cell 7>", "exec"), names)
    linecache.cache["<cell 7>"] = (len(code), None, code.splitlines(True), "<cell 7>")
    try:
        seen = check(lambda: World(fn=names["fn"]), FOUR, expect=None)
        assert [why.line for why in seen.world.fn.stator.break_reasons] == ["print('here')"]
        assert linecache.cache["<cell 7>"][0] == len(code)
    finally:
        del linecache.cache["<cell 7>"]


@pytest.mark.parametrize("filename", ["\ud800", "\x00", "a\nb", "", "/", "x" * 9000])
def test_names_that_no_file_can_have(filename, recwarn):
    def fn(x):
        y = x + 1
        print("here")
        return y * 2

    fn.__code__ = fn.__code__.replace(co_filename=filename)
    seen = check(lambda: World(fn=fn), FOUR, expect=None)
    assert (seen.world.fn.stator.hits, [why.line for why in seen.world.fn.stator.break_reasons]) == (3, [""])
    assert len(stator.explain(fn)(rand(1)).graphs) == 2
    assert not [each for each in recwarn if "stator failed" in str(each.message)]


def test_lines_that_are_asked_for_when_they_are_needed():
    code = "def fn(x):\n    y = x + 1\n    print('here')\n    return y * 2\n"
    loader = types.SimpleNamespace(get_source=lambda name: code)
    names: dict = {"__name__": "made_up", "__loader__": loader}
    exec(compile(code, "/nowhere/made_up.py", "exec"), names)
    assert linecache.lazycache("/nowhere/made_up.py", names)
    lazy = linecache.cache["/nowhere/made_up.py"]
    try:
        seen = check(lambda: World(fn=names["fn"]), FOUR, expect=None)
        assert [why.line for why in seen.world.fn.stator.break_reasons] == ["print('here')"]
        assert linecache.cache["/nowhere/made_up.py"] is lazy
    finally:
        del linecache.cache["/nowhere/made_up.py"]


@pytest.mark.parametrize("error", [RuntimeError, TypeError, KeyError, SyntaxError, RecursionError, StopIteration])
def test_a_loader_that_raises_has_no_lines(error, recwarn):
    def get_source(name):
        raise error("not here")

    code = "def fn(x):\n    y = x + 1\n    print('here')\n    return y * 2\n"
    names: dict = {"__name__": "made_up", "__loader__": types.SimpleNamespace(get_source=get_source)}
    exec(compile(code, "/nowhere/raises.py", "exec"), names)
    assert linecache.lazycache("/nowhere/raises.py", names)
    lazy = linecache.cache["/nowhere/raises.py"]
    try:
        seen = check(lambda: World(fn=names["fn"]), FOUR, expect=None)
        assert (seen.world.fn.stator.hits, [why.line for why in seen.world.fn.stator.break_reasons]) == (3, [""])
        assert linecache.cache["/nowhere/raises.py"] is lazy
    finally:
        del linecache.cache["/nowhere/raises.py"]
    assert not [each for each in recwarn if "stator failed" in str(each.message)]


def test_lines_of_a_doctest():
    text = """
    >>> import stator, torch
    >>> def fn(x):
    ...     print("here")
    ...     return x + 1
    >>> compiled = stator.compile(fn, backend="eager")
    >>> compiled(torch.zeros(1))
    here
    tensor([1.])
    >>> [why.line for why in compiled.stator.break_reasons]
    ['print("here")']
    """
    test = doctest.DocTestParser().get_doctest(text, {}, "lines", None, 0)
    assert doctest.DocTestRunner().run(test) == (0, 5)
