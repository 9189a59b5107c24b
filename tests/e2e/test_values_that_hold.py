"""Variables that nobody reads any more, and that hold something all the same: behind a break they are still there. And
what the program has let go of is gone: neither recorder nor replay holds it."""

from __future__ import annotations

import array
import ctypes
import io
import pickle
import re
import weakref

import pytest
from harness import World, check, rand

import stator

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


class Shape(ctypes.Structure):
    _fields_ = (("width", ctypes.c_char),)


class Node:
    pass


HOLDERS = {
    "memoryview": memoryview,
    "in a list": lambda buffer: [memoryview(buffer)],
    "PickleBuffer": pickle.PickleBuffer,
    "ctypes": (ctypes.c_char * 4).from_buffer,
    "a structure": Shape.from_buffer,
    "matches": lambda buffer: re.finditer(b"a", buffer),
}


def _resized(buffer):
    try:
        buffer.append(1)
    except BufferError as error:
        return str(error)
    return len(buffer)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("kind", [bytearray, lambda values: array.array("b", values)], ids=["bytearray", "array"])
def test_a_buffer_that_is_held_cannot_be_resized(kind, holder):
    def fn(x):
        buffer = kind(b"abcdef")
        held = HOLDERS[holder](buffer)
        y = x + 1
        print("here")
        first = _resized(buffer)
        del held
        return first, _resized(buffer), bytes(buffer), y * 2

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_a_buffer_that_is_held_cannot_be_assigned_a_longer_slice():
    def fn(x):
        buffer = bytearray(range(10))
        view = memoryview(buffer)  # noqa: F841
        try:
            buffer[1:-1] = range(12, 22)
        except BufferError:
            return x + 1, bytes(buffer)
        return x - 1, bytes(buffer)

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_a_buffer_of_a_file_in_memory():
    def fn(x):
        file = io.BytesIO(b"abc")
        view = file.getbuffer()  # noqa: F841
        y = x + 1
        try:
            file.write(b"abcdefgh")
        except BufferError as error:
            return str(error), y * 2
        return file.getvalue(), y * 3

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_a_weak_reference_that_calls_back():
    def world():
        told = []

        def fn(x):
            node = Node()
            reference = weakref.ref(node, lambda dead: told.append("gone"))  # noqa: F841
            y = x + 1
            print("here")
            del node
            return list(told), y * 2

        return World(fn=fn, told=told)

    check(world, FOUR, expect=None, unreplayed="call-print")


def _failing():
    """A step that raises, and one that tells which of the objects that it was given are still there."""
    refs = []

    @stator.disable
    def fails(node):
        refs.append(weakref.ref(node))
        raise ValueError("no")

    @stator.disable
    def alive():
        return [ref() is not None for ref in refs]

    return fails, alive


def test_what_a_break_left_by_an_exception_was_given():
    def world():
        fails, alive = _failing()

        def fn(x):
            node = Node()
            try:
                fails(node)
            except ValueError:
                x = x + 1
            del node
            return alive(), x * 2

        return World(fn=fn)

    check(world, FOUR, expect=None)


def test_what_a_callee_was_given_before_it_raised():
    """The traceback has the frame of the step, and by that the frames that called it; the exception is in a cycle."""

    def world():
        fails, alive = _failing()

        def asked(node):
            try:
                fails(node)
            except ValueError as error:
                return str(error)

        def fn(x):
            node = Node()
            y = x + 1
            told = asked(node)
            del node
            return told, alive(), y * 2

        return World(fn=fn)

    check(world, FOUR, expect=None)
