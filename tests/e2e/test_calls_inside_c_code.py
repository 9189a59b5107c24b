"""C code that calls something on a program's behalf: `operator.call`, `type.__call__`, descriptors written in C."""

from __future__ import annotations

import functools
import operator
from abc import abstractproperty

import pytest
import torch
from harness import RECORDED, World, check, rand

CALLS = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), lambda w: w.fn(rand(4))]


def after(change):
    """Two calls, a change of the world, two calls more."""

    def third(w):
        change(w)
        return w.fn(rand(3))

    return [*CALLS[:2], third, CALLS[3]]


# ---- operator.call


def test_a_line_is_printed_by_operator_call():
    def fn(x):
        operator.call(print, "hello")
        return x + 1

    check(lambda: World(fn=fn), CALLS, expect="miss hit hit hit", breaks=["call-print"])


def test_an_item_is_popped_by_operator_call():
    def world():
        items = [1, 2, 3, 4, 5, 6]
        return World(fn=lambda x: x + operator.call(items.pop), items=items)

    check(world, CALLS, expect="miss miss miss miss", unreplayed=RECORDED)


def test_an_item_is_popped_by_operator_call_that_c_code_calls():
    def world():
        items = [1, 2, 3, 4, 5, 6]

        def fn(x):
            list(map(operator.call, [items.pop]))
            return x + 1

        return World(fn=fn, items=items)

    check(world, CALLS, expect="miss hit hit hit", graphs=1)


@pytest.mark.parametrize("of", [max, functools.reduce])
def test_c_code_that_calls_operator_call_breaks(of):
    def fn(x):
        return max([x.sum], key=operator.call)() if of is max else functools.reduce(operator.call, [x.add, 1])

    done = check(lambda: World(fn=fn), CALLS, expect="miss hit hit hit", graphs=of is max)
    assert [why.id for why in done.world.fn.stator.break_reasons] == ["unknown-callable"]


def test_operator_call_of_usual_callables_breaks_nothing():
    def world():
        w = World(scale=2)

        def scaled(x):
            return x * w.scale

        w.fn = lambda x: operator.call(scaled, operator.call(operator.call, torch.add, x, alpha=2, other=1))
        return w

    check(world, after(lambda w: setattr(w, "scale", 3)), expect="miss hit miss hit", breaks=[])


@torch.jit.script
def doubled(x):
    return x * 2


def test_what_is_called_in_the_place_of_a_callable_is_so_through_partial_and_operator_call():
    """A scripted function has to be shown to the tensor mode."""
    world = lambda: World(fn=lambda x: functools.partial(doubled, x)() + operator.call(doubled, x))  # noqa: E731
    check(world, CALLS, expect=None)


# ---- type.__call__


class Calling(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class CallingByName(type):
    def __call__(cls, *args):
        return type.__call__(cls, *args)


@pytest.mark.parametrize("meta", [Calling, CallingByName, type])
def test_a_metaclass_makes_a_list_of_an_outside_one(meta):
    def world():
        source = [1, 2]
        made = meta("Made", (list,), {})
        return World(fn=lambda x: x + sum(made(source)), source=source)

    check(world, after(lambda w: w.source.append(5)), expect="miss hit miss hit")


@pytest.mark.parametrize("meta", [Calling, CallingByName])
def test_a_metaclass_makes_an_object(meta):
    def world():
        class Thing(metaclass=meta):
            scale = 2

            def __init__(self, value):
                self.value = value * self.scale

        return World(fn=lambda x: x + Thing(3).value, Thing=Thing)

    check(world, after(lambda w: setattr(w.Thing, "scale", 5)), expect="miss hit miss hit", breaks=[])


def test_type_call_of_builtin_classes():
    def world():
        source = [1, 2]

        def fn(x):
            list(type.__call__(map, print, source))
            return x + sum(type.__call__(list, source)) + type.__call__(int, "3")

        return World(fn=fn, source=source)

    check(world, after(lambda w: w.source.append(5)), expect=None)


# ---- descriptors


class Odd(property):
    pass


class OddMethod(classmethod):
    pass


class Read:
    by_attribute = property(operator.attrgetter("value"))
    by_subclass = Odd(operator.attrgetter("value"))
    in_python = Odd(lambda self: self.value)
    of_class = classmethod(property(operator.attrgetter("number")))
    of_subclass = OddMethod(property(operator.attrgetter("number")))
    in_python_of_class = classmethod(property(lambda cls: cls.number))
    abstract = abstractproperty(operator.attrgetter("value"))
    number = 2

    def __init__(self):
        self.value = 2

    def __len__(self):
        return self.value


class Behind(Read):
    number = 2

    def behind(self):
        return super().by_attribute

    def python_behind(self):
        return super().in_python


READS = {
    "attribute": lambda o: o.by_attribute,
    "subclass": lambda o: o.by_subclass,
    "python": lambda o: o.in_python,
    "class": lambda o: type(o).of_class + o.of_class,
    "subclass of class": lambda o: o.of_subclass,
    "python of class": lambda o: o.in_python_of_class,
    "get": lambda o: Read.by_attribute.__get__(o),
    "get of class": lambda o: property.__get__(Read.by_attribute, o, Read),
    "fresh": lambda o: property(operator.attrgetter("value")).__get__(o),
    "fresh by len": lambda o: property(len).__get__(o),
    "fresh class method": lambda o: classmethod(property(operator.attrgetter("number"))).__get__(None, type(o)),
    "fget": lambda o: Read.by_attribute.fget(o),
    "abstract": lambda o: o.abstract,
    "behind": lambda o: o.behind(),
    "python behind": lambda o: o.python_behind(),
}


RUN_PLAIN = {"fresh", "fresh by len", "fresh class method", "behind"}  # no replay can go on there


@pytest.mark.parametrize("read", READS)
def test_what_a_descriptor_reads_is_read_again(read):
    def world():
        o = type("Made", (Behind,), {"number": 2})()
        return World(fn=lambda x: x + READS[read](o), o=o)

    def change(w):
        w.o.value = type(w.o).number = 7

    done = check(world, after(change), expect=None, unreplayed="unknown-callable")
    assert len(done.graphs) >= 1 or read in RUN_PLAIN


def test_an_item_is_popped_by_a_getter():
    class Items(list):
        last = property(list.pop)

    def world():
        items = Items([1, 2, 3, 4, 5, 6])
        return World(fn=lambda x: x + items.last + Items.last.__get__(items), items=items)

    check(world, CALLS[:3], expect=None)


def test_a_slot_is_read_behind_super():
    class Slotted:
        __slots__ = ("value",)

    class Reading(Slotted):
        __slots__ = ()

        def read(self):
            return super().value

    def world():
        o = Reading()
        o.value = 2
        return World(fn=lambda x: x + o.read(), o=o)

    check(world, after(lambda w: setattr(w.o, "value", 7)), expect="miss hit miss hit", breaks=[])


def test_what_is_not_behind_super_is_noticed_when_it_appears():
    def world():
        class Base:
            pass

        class Asking(Base):
            def asks(self):
                return hasattr(super(), "extra")

        o = Asking()
        return World(fn=lambda x: x + o.asks(), o=o, Base=Base)

    check(world, after(lambda w: setattr(w.Base, "extra", 1)), expect="miss hit miss hit", breaks=[])
