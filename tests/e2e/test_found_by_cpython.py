"""What tests of CPython's own suite found (`tests/conformance/`), made small: each was once not the plain program."""

from __future__ import annotations

import collections
import doctest
import gc
import linecache
import operator
import sys
import types
import typing
import warnings

import pytest
import torch
from harness import World, check, rand

import stator

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


class MyEnumerate(enumerate):
    pass


class MyMap(map):
    pass


class MyZip(zip):
    pass


class MyReversed(reversed):
    pass


ITERATORS = {
    "enumerate": lambda: MyEnumerate("abc"),
    "map": lambda: MyMap(str.upper, "abc"),
    "zip": lambda: MyZip("abc", "def"),
    "reversed": lambda: MyReversed("abc"),
}


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_outside_iterator_of_a_class_in_python_moves_on(kind):
    """Its class is open, and yet C code keeps its place."""

    def world():
        def fn(x, it):
            first = next(it)
            return first, x + 1

        return World(fn=fn, its=[ITERATORS[kind]() for _ in range(2)])

    calls = [lambda w, n=n: (w.fn(rand(n), w.its[n % 2]), list(w.its[n % 2]) if n > 2 else 0) for n in range(4)]
    check(world, calls, expect=None)


@pytest.mark.parametrize("kind", ITERATORS)
def test_such_an_iterator_behind_a_break(kind):
    def fn(x):
        it = ITERATORS[kind]()
        next(it)
        print("here")
        return list(it), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_a_number_from_id_through_a_method():
    """`id` is answered by something else inside libraries; so is a method made of it."""
    code = "def asked(method, value):\n    return {method(): 1, value: 2}\n"
    names: dict = {}
    exec(compile(code, operator.__file__, "exec"), names)  # as if the standard library had it

    def fn(x):
        box = [1]
        method = types.MethodType(id, box)
        return len(names["asked"](method, 5)), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_a_part_of_a_function_that_cannot_be_set():
    def function():
        return 1

    def fn(x):
        told = []
        for name in ("__closure__", "__globals__", "__builtins__"):
            try:
                setattr(function, name, 2)
            except AttributeError as error:
                told.append(str(error))
        return told, x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda: World(fn=fn), FOUR, expect=None)


def test_an_empty_cell_is_read():
    def world():
        cells = [types.CellType(), types.CellType(), types.CellType(5)]

        def fn(x, cell):
            try:
                return x + cell.cell_contents
            except ValueError:
                return x - 1

        return World(fn=fn, cells=cells)

    calls = [lambda w, n=n: w.fn(rand(n), w.cells[n]) for n in (0, 1, 2, 0, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(world, calls, expect="miss hit miss hit hit")


def test_the_factory_is_part_of_the_text_of_a_defaultdict():
    def fn(x):
        def made():
            return 43

        table = collections.defaultdict(made)
        table[13]
        return repr(table) == f"defaultdict({made!r}, {{13: 43}})", x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_the_program_uses_up_the_stack():
    """Nothing of ours can run there; that is nobody's fault."""
    a = collections.UserList()
    b = collections.UserList([a])
    a.append(b)

    def down(depth):
        return down(depth - 1) if depth else operator.eq(a, b)

    def fn(x, depth):
        try:
            down(depth)
        except RecursionError:
            return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for depth in range(12):  # in one of them the stack ends in our code
            compiled = stator.compile(fn, backend="eager")
            for seed in range(3):
                assert torch.equal(compiled(rand(seed), depth), rand(seed) + 1)
            stator.reset()


def test_numbers_that_are_too_long_for_texts():
    def fn(x, n):
        return n == 1 << 50000, x + (n > 10**6000), pow(2, 50000) // n % 1009

    calls = [lambda w, n=n: w.fn(rand(n % 7), n) for n in (3, 4, 5, 1 << 50000, 10**7000, 6, 10**7000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda: World(fn=fn), calls, expect=None)


def test_a_profiler_sees_the_frames_of_the_program_alone():
    def leaf():
        return 1

    def world():
        def fn(x):
            y = x + 1
            seen = []
            sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_name)))
            leaf()
            sys.setprofile(None)
            return seen, y * 2

        return World(fn=fn)

    check(world, FOUR, expect=None)


class Kept:
    __slots__ = ("number", "other")


def test_numbers_that_were_symbols_are_the_programs_own_again():
    """Small ints are one object each, so `is` tells what stands for one from the one."""

    def world():
        kept = Kept()
        table: dict = {}
        items = [1]

        def fn(x):
            table["n"] += 1
            items[0] += 1
            kept.number += 1
            return x * table["n"] + items[0] * kept.number

        def call(w, n):
            table["n"], items[0], kept.number = n, n + 1, n + 2
            result = w.fn(rand(n))
            own = [table["n"] is n + 1, items[0] is n + 2, kept.number is n + 3]
            return result, own

        return World(fn=fn, call=call)

    check(world, [lambda w, n=n: w.call(w, n) for n in range(3, 10)], expect=None)


def test_numbers_that_are_only_read_stay_the_programs_own():
    def world():
        table: dict = {}
        kept = Kept()

        def fn(x):
            return x * table["n"] + kept.number + table["both"][1]

        def call(w, n):
            table["n"] = kept.number = n
            table["both"] = (0, n)
            return w.fn(rand(n)), table["n"] is n, kept.number is n, table["both"][1] is n

        return World(fn=fn, call=call)

    check(world, [lambda w, n=n: w.call(w, n) for n in range(3, 10)], expect=None)


def test_attributes_of_an_ordered_dict_made_inside():
    def fn(x):
        made = collections.OrderedDict(a=1)
        made.x = [2]
        print("here")
        return made.x, list(made), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_classes_that_let_nothing_be_set():
    def world():
        class Mine:
            n = 1

        def fn(x):
            texts = []
            for write in (
                lambda: object.__setattr__(str, "foo", 42),
                lambda: object.__setattr__(Mine, "n", 42),
                lambda: object.__delattr__(Mine, "n"),
                lambda: setattr(str, "foo", 42),
                lambda: setattr(Mine, "m", 2),
            ):
                try:
                    write()
                except TypeError as error:
                    texts.append(str(error))
            return x * Mine.n, texts

        return World(fn=fn, Mine=Mine)

    check(world, FOUR, expect=None, raises=())


def test_the_module_of_a_caller():
    """From 3.12 on `sys` tells the name of a caller's module, and named tuples ask for it."""

    def fn(x):
        made = typing.NamedTuple("Made", [("a", int)])  # noqa: UP014  # this is what asks
        return x + 1, made.__module__, getattr(sys, "_getframemodulename", lambda depth: __name__)(0)

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_variables_of_types_made_inside():
    def fn(x):
        t, p = typing.TypeVar("t"), typing.ParamSpec("p")
        nested = list[typing.Callable[p, t]]
        return x + 1, nested.__parameters__[0] is p, nested.__parameters__[1] is t

    check(lambda: World(fn=fn), FOUR, expect=None)


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


def test_the_collector_finds_what_the_program_left():
    """Nothing of a recorder, or of a segment that is over, is in a cycle that waits for it."""

    def world():
        def fn(x):
            gc.collect()
            ring: list = []
            ring.append(ring)
            del ring
            first = gc.collect()
            return first, gc.collect(), x + 1

        def call(w, seed):
            while gc.collect():  # what other tests left, and what comes of that
                pass
            return w.fn(rand(seed))

        return World(fn=fn, call=call)

    check(world, [lambda w, seed=seed: w.call(w, seed) for seed in range(4)], expect=None)
