"""Values that C code keeps: memory of numpy's that a scalar is a view of, and handlers of errors found by name."""

from __future__ import annotations

import codecs

import numpy as np
import pytest
from harness import World, check, rand

PAIR = np.dtype([("a", "f8"), ("b", "i4")])


def calls(*changes):
    def after(number, change):
        def call(w):
            change(w)
            return w.fn(rand(number))

        return call

    return [after(number, change) for number, change in enumerate(changes)]


def set_first(number):
    return lambda w: w.array["a"].__setitem__(0, number)


CHANGES = calls(set_first(1.0), set_first(2.0), set_first(3.0), set_first(1.0))

READS = {
    "field": lambda v: float(v["a"]),
    "item": lambda v: v.item()[0],
    "bytes": lambda v: bytes(v)[7],
    "equal": lambda v: float(v == np.array([(1.0, 0)], PAIR)[0]),
    "tuple": lambda v: float((v,)[0]["a"]),
}


@pytest.mark.parametrize("read", READS)
def test_a_view_of_an_array_is_no_constant(read):
    def world():
        array = np.zeros(2, PAIR)
        view = array[0]
        return World(fn=lambda x: x.sin() + READS[read](view), array=array)

    done = check(world, CHANGES, expect=None, observe=lambda w: w.array.tolist())
    assert done.graphs


def test_a_view_in_a_tuple_is_no_constant():
    def world():
        array = np.zeros(2, PAIR)
        views = (array[0], 1)
        return World(fn=lambda x: x.sin() + float(views[0]["a"]), array=array)

    check(world, CHANGES, expect=None)


def test_an_array_is_written_through_a_view():
    def world():
        array = np.zeros(2, PAIR)
        view = array[0]

        def fn(x):
            view["a"] += 1
            return x + float(view["a"])

        return World(fn=fn, array=array)

    check(
        world,
        calls(*[lambda w: None] * 4),
        expect=None,
        observe=lambda w: w.array.tolist(),
        unreplayed=["numpy", "unguardable"],
    )


class Number(np.float64):
    pass


def test_a_number_of_numpy_s_with_attributes():
    def world():
        number = Number(1.5)
        number.scale = 1
        return World(fn=lambda x: x * number.scale, number=number)

    changes = calls(*[lambda w, k=k: setattr(w.number, "scale", k) for k in (1, 2, 1, 2)])
    check(world, changes, expect="miss miss hit hit", observe=lambda w: w.number.scale)


def test_plain_numbers_of_numpy_s_are_constants():
    numbers = (np.float32(2), np.int64(3))
    check(lambda: World(fn=lambda x: x * numbers[0].item()), calls(*[lambda w: None] * 3), expect=None)
    check(lambda: World(fn=lambda x, n=numbers[1]: x * int(n)), calls(*[lambda w: None] * 3), expect="miss hit hit")


# ---- errors of codecs

HANDLERS = (codecs.ignore_errors, codecs.backslashreplace_errors, codecs.ignore_errors)
CONVERSIONS = {
    "encode": lambda: "ä".encode("ascii", "of.tests"),
    "encode by name": lambda: "ä".encode(encoding="ascii", errors="of.tests"),
    "decode": lambda: b"\xff".decode("ascii", "of.tests"),
    "str": lambda: str(b"\xff", "ascii", "of.tests"),
    "bytes": lambda: bytes("ä", "ascii", errors="of.tests"),
    "bytearray": lambda: bytearray("ä", "ascii", "of.tests"),
    "called by C code": lambda: next(map(str.encode, ["ä"], ["ascii"], ["of.tests"])),
    "built in": lambda: "ä".encode("ascii", "namereplace"),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_a_handler_of_errors_is_replaced(conversion):
    former = codecs.lookup_error("namereplace")

    def register(handler):
        def change(w):
            codecs.register_error("of.tests", handler)
            codecs.register_error("namereplace", handler)

        return change

    try:
        convert = CONVERSIONS[conversion]
        done = check(lambda: World(fn=lambda x: (x + 1, len(convert()))), calls(*map(register, HANDLERS)), expect=None)
        assert done.graphs
    finally:
        codecs.register_error("namereplace", former)


def test_a_handler_written_in_python():
    def world():
        state = [2]
        codecs.register_error("of.tests", lambda error: ("?" * state[0], error.end))
        return World(fn=lambda x: x + len("ä".encode("ascii", "of.tests")), state=state)

    changes = calls(*[lambda w, k=k: w.state.__setitem__(0, k) for k in (2, 3, 2)])
    check(world, changes, expect="miss miss hit")


def test_usual_conversions_need_no_break():
    def fn(x):
        return x + len("äbc".encode()) + len(b"abc".decode("latin-1")) + len("ä".encode("ascii", "ignore"))

    check(lambda: World(fn=fn), calls(*[lambda w: None] * 3), expect="miss hit hit", breaks=[])
