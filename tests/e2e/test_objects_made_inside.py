"""Objects that the function itself makes: used up inside, returned, or stored in something that lives on."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
import weakref
from collections import namedtuple

import pytest
import torch
from harness import World, check, check_stateless, rand


class Box:
    made_of = "cardboard"

    def __init__(self, content, label=None):
        self.content = content
        self.label = label

    def map(self, f):
        return Box(f(self.content), self.label)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@dataclasses.dataclass
class Output:
    values: torch.Tensor
    extra: list = dataclasses.field(default_factory=list)
    name: str = "out"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    shape: torch.Size
    total: torch.Tensor

    def doubled(self):
        return dataclasses.replace(self, total=self.total * 2)


Point = namedtuple("Point", ["x", "y"], defaults=[1])


class Typed(typing.NamedTuple):
    mean: torch.Tensor
    count: int = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self):
        return self.value * 10


class Flags(enum.IntFlag):
    A = 1
    B = 2


def test_an_object_that_is_used_up_inside():
    check_stateless(lambda x: Box(x).map(lambda t: t + 1).map(torch.relu).content)


def test_an_object_is_returned():
    def fn(x):
        return Box(x + 1, label="plus one")

    check_stateless(fn)


def test_objects_that_refer_to_each_other_are_returned():
    def fn(x):
        parent = Box([], "parent")
        parent.content += [Box(x * n, parent) for n in range(3)]
        return parent

    check_stateless(fn)


def test_an_object_with_slots_is_returned():
    def fn(x):
        slotted = Slotted(x + 1)
        slotted.b = slotted
        return slotted, Slotted(2)

    check_stateless(fn)


def test_an_object_whose_constructor_has_new_and_class_keywords():
    class Registered:
        scale = 1

        def __init_subclass__(cls, scale=1, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.scale = scale

        def __new__(cls, *args):
            self = super().__new__(cls)
            self.made_by = cls.__name__
            return self

        def __init__(self, x):
            self.value = x * self.scale

    class Double(Registered, scale=2):
        pass

    check_stateless(lambda x: [Registered(x), Double(x), Double(x).made_by])


def test_a_dataclass_is_returned():
    check_stateless(lambda x: Output(x * 2, extra=[x.sum()]))


def test_the_default_factory_makes_a_new_list_every_time():
    def fn(x):
        first, second = Output(x), Output(x + 1)
        first.extra.append(x)
        return first, second

    check_stateless(fn)


def test_a_frozen_dataclass_with_slots():
    check_stateless(lambda x: Frozen(x.shape, x.sum()).doubled())


def test_dataclass_helpers():
    def fn(x):
        out = Output(x + 1)
        names = [f.name for f in dataclasses.fields(out)]
        return names, dataclasses.is_dataclass(out), Frozen(x.shape, x) != Output(x)

    check_stateless(fn)


def test_named_tuples():
    def fn(x):
        p = Point(x + 1)
        q = p._replace(y=x * 2)
        t = Typed(x.mean(), count=x.numel())
        x2, y2 = q
        return p, q, t, x2 + y2 + t.mean, q._fields, q[0]

    check_stateless(fn)


def test_enum_members():
    def fn(x, number, name):
        color = Color(number)
        flags = Flags.A | Flags.B
        other = Color[name]
        scale = color.weight if color is not other else 1
        return x * scale * int(flags), color, flags, [c.name for c in Color]

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), 2, "RED"),
            lambda w: w.fn(rand(2), 2, "RED"),
            lambda w: w.fn(rand(3), 1, "RED"),
        ],
        expect="miss hit miss",
    )


def test_a_simple_namespace_and_a_plain_object():
    def fn(x):
        space = types.SimpleNamespace(a=x + 1, b=[x])
        space.c = space.a * 2
        return space

    check_stateless(fn)


def test_a_container_subclass():
    class Bag(dict):
        def __missing__(self, key):
            return key * 2

        def __getattr__(self, name):
            return self[name]

    class Row(list):
        title = None

    def fn(x):
        bag = Bag(a=x + 1)
        row = Row([bag.a, bag["b"]])
        row.title = "row"
        return bag, row

    check_stateless(fn)


def test_an_object_made_inside_is_stored_outside():
    def fn(x, table):
        box = Box(x * 2, label=[x])
        table.box = box
        return box

    check(
        lambda: World(fn=fn, table=Box(None)),
        [lambda w, s=s: w.fn(rand(s), w.table) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_an_outside_object_is_put_into_a_fresh_one():
    def fn(x, table):
        table.content = table.content + x
        return Box(table, label=table.content)

    check(
        lambda: World(fn=fn, table=Box(torch.zeros(4))),
        [lambda w, s=s: w.fn(rand(s), w.table) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_a_class_is_looked_at():
    def fn(x, kind):
        box = kind(x)
        return x + len(type(box).__name__), issubclass(kind, Box), kind.__mro__[0] is kind, box.made_of

    class Crate(Box):
        made_of = "wood"

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), Box), lambda w: w.fn(rand(2), Box), lambda w: w.fn(rand(3), Crate)],
        expect="miss hit miss",
    )


def test_an_exception_object_is_made_and_inspected():
    def fn(x):
        error = ValueError("scale", 3)
        return x * error.args[1], str(error), repr(error)

    check_stateless(fn)


# ---- the dict of an object ----------------------------------------------------------------------


class Holder:
    pass


def holder_first(x):
    held = Holder()
    held.scale = 2.0
    return held, vars(held), x * 2


def dict_first(x):
    held = Holder()
    held.scale = 2.0
    return vars(held), held, x * 2


def dict_inside(x):
    held = Holder()
    held.own = [held.__dict__]
    held.scale = 2.0
    return held, held.own[0], x * 2


def dict_alone(x):
    held = Holder()
    held.scale = 2.0
    return vars(held), x * 2


def dict_of_a_function(x):
    def inner():
        return 1

    inner.scale = 2.0
    return inner.__dict__, inner, x * 2


@pytest.mark.parametrize("fn", [holder_first, dict_first, dict_inside, dict_alone, dict_of_a_function])
def test_an_object_and_its_dict_are_returned(fn):
    def call(w, seed):
        one, *rest, y = w.fn(rand(seed))
        namespace = one if isinstance(one, dict) else vars(one)
        namespace["later"] = seed  # is it seen in the others?
        return one, rest, y

    check(lambda: World(fn=fn), [lambda w, s=s: call(w, s) for s in (1, 2, 3)], expect="miss hit hit")


def test_an_object_and_its_dict_on_both_sides_of_a_break():
    def world():
        def fn(x):
            held = Holder()
            cache = held.__dict__
            print("here")
            cache["scale"] = 2.0
            return x * held.scale, held

        return World(fn=fn)

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect="miss hit hit", breaks=["call-print"])


# ---- how long objects live ----------------------------------------------------------------------


def given_up(x):
    held = Holder()
    held.scale = 2.0
    ref = weakref.ref(held)
    print("held")
    y = x * held.scale
    held = None
    print("given up")
    return y, ref() is None


def kept_in_a_variable(x):
    held = Holder()
    ref = weakref.ref(held)
    print("held")
    alive = ref() is not None  # though nothing reads the variable any more
    return x * 2, alive


def deleted_from_a_list(x):
    items = [Holder(), Holder()]
    refs = [weakref.ref(item) for item in items]
    print("held")
    del items[0]
    print("deleted")
    return x * 2, [ref() is None for ref in refs], len(items)


@pytest.mark.parametrize("fn", [given_up, kept_in_a_variable, deleted_from_a_list])
def test_an_object_lives_as_long_as_in_a_plain_run(fn):
    check(
        lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3, 4)], expect=None, unreplayed="call-print"
    )
