"""Numbers that change in containers, attributes, slots, closures and globals; and where programs put them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import os
import typing
from collections import OrderedDict, defaultdict

import pytest
import torch
from harness import World, check, rand

import stator

NUMBERS = (5, 7, 9, 5, 12, 7)
SYMBOLIC = "miss miss hit hit hit hit"
CURRENT = 5


class Box:
    def __init__(self, **values):
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("log", "n")

    def __init__(self, n):
        self.n, self.log = n, []


class SlottedMore(Slotted):
    __slots__ = ("more",)


@dataclasses.dataclass
class Settings:
    n: int = 5
    scale: float = 0.5


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int


class Pair(typing.NamedTuple):
    n: int
    m: int


def assert_plain(value, seen=None):
    """No number anywhere in it is anything but an int or a float."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (torch.Tensor, str, type)):
        return
    seen.add(id(value))
    if isinstance(value, (int, float)):
        assert type(value) in (int, float, bool), type(value)
    elif isinstance(value, dict):
        assert_plain([*value, *value.values()], seen)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            assert_plain(item, seen)
    else:
        assert_plain(getattr(value, "__dict__", {}), seen)
        for name in getattr(type(value), "__slots__", ()):
            assert_plain(getattr(value, name), seen)


def check_holder(fn, make, put, expect=SYMBOLIC):
    """`put` a number into what `make` made, call, and look at everything."""

    def call(n):
        def run(w):
            w.box = put(w.box, n) or w.box
            result = w.fn(rand(n), w.box)
            assert_plain([result, w.box])
            return result

        return run

    return check(lambda: World(fn=fn, box=make()), [call(n) for n in NUMBERS], expect=expect)


def item(key):
    return lambda box, n: box.__setitem__(key, n)


def attribute(box, n):
    box.n = n


HOLDERS = {
    "fsum": (lambda: [5, 2], item(0), lambda x, b: x * math.fsum(b)),
    "list": (lambda: [5, 2], item(0), lambda x, b: (x * b[0], b[0] + 1, b)),
    "dict": (lambda: {"n": 5}, item("n"), lambda x, b: (x * b["n"], b)),
    "dict of ints": (lambda: {3: 5}, item(3), lambda x, b: (x * b[3], b)),
    "get": (lambda: {"n": 5}, item("n"), lambda x, b: (x * b.get("n", 3), b)),
    "values": (lambda: {"n": 5, "m": 2}, item("n"), lambda x, b: x * sum(b.values())),
    "sum of a list": (lambda: [5, 2], item(0), lambda x, b: x * sum(b)),
    "sum of floats": (lambda: [5, 2.5], item(0), lambda x, b: x * sum(b) * math.prod(b)),
    "sum of items": (lambda: {"n": 5, "m": 2.5}, item("n"), lambda x, b: x * sum(v for k, v in b.items())),
    "largest": (lambda: [5, 2], item(0), lambda x, b: x * max(b) + min(*b, 1)),
    "joined": (lambda: [5, 2], item(0), lambda x, b: (b + b, [*b], (*b, 2), list(b), tuple(b), x * 2)),
    "reversed and zipped": (
        lambda: [5, 2],
        item(0),
        lambda x, b: [x * p * q for p, q in zip(b, reversed(b), strict=True)],
    ),
    "items": (lambda: {"n": 5, "m": 2}, item("n"), lambda x, b: [(k, x * v) for k, v in b.items()]),
    "ordered dict": (lambda: OrderedDict(n=5), item("n"), lambda x, b: (x * b["n"], b)),
    "default dict": (lambda: defaultdict(int, n=5), item("n"), lambda x, b: (x * b["n"], b)),
    "nested": (
        lambda: {"a": [1, {"n": 5}]},
        lambda box, n: box["a"][1].__setitem__("n", n),
        lambda x, b: (x * b["a"][1]["n"], b),
    ),
    "attribute": (lambda: Box(n=5), attribute, lambda x, b: (x * b.n, b)),
    "attribute by name": (lambda: Box(n=5), attribute, lambda x, b: (x * getattr(b, "n"), vars(b)["n"])),  # noqa: B009
    "slot": (lambda: Slotted(5), attribute, lambda x, b: (x * b.n, b.log.append(b.n * 2), b)),
    "slot of a base": (lambda: SlottedMore(5), attribute, lambda x, b: (x * b.n, setattr(b, "more", b.n + 1))),
    "dataclass": (Settings, attribute, lambda x, b: (x * b.n * b.scale, b)),
    "tuple": (lambda: (5, 2), lambda box, n: (n, 2), lambda x, b: (x * b[0], b)),
    "tuple unpacked": (lambda: (5, 2), lambda box, n: (n, 2), lambda x, b: (lambda n, m: x * n + m)(*b)),
    "tuple of tuples": (lambda: ((1, 5), 2), lambda box, n: ((1, n), 2), lambda x, b: (x * b[0][1], b)),
    "list of tuples": (lambda: [(1, 5)], lambda box, n: [(1, n)], lambda x, b: (x * b[0][1], b)),
    "named tuple": (lambda: Pair(5, 2), lambda box, n: Pair(n, 2), lambda x, b: (x * b.n, b)),
    "frozen": (lambda: Frozen(5), lambda box, n: Frozen(n), lambda x, b: (x * b.n, b)),
    "size": (lambda: torch.Size([5, 2]), lambda box, n: torch.Size([n, 2]), lambda x, b: (torch.ones(b), b[0] + 1)),
}


@pytest.mark.parametrize(("make", "put", "fn"), HOLDERS.values(), ids=list(HOLDERS))
def test_where_numbers_are_found(make, put, fn):
    check_holder(fn, make, put)


READERS = {
    "fsum of values": (lambda: {"n": 5, "m": 2.5}, item("n"), lambda x, b: x * math.fsum(b.values())),
    "fsum of an iterator": (lambda: [5, 2], item(0), lambda x, b: x * math.fsum(iter(b))),
    "bytes": (lambda: [5, 2], item(0), lambda x, b: (x * 2, bytes(b), bytes(reversed(b)))),
    "partial": (lambda: [5, 2.5], item(0), lambda x, b: x * functools.partial(sum, [1.5, *b])()),
    "partial from outside": (
        lambda: functools.partial(math.gcd, 5),
        lambda box, n: functools.partial(math.gcd, n),
        lambda x, b: x * b(35),
    ),
    "sorted": (lambda: [5, 2.5], item(0), lambda x, b: (x * 2, sorted(b))),
    "pop": (lambda: [5, 2], item(0), lambda x, b: x * list(range(20)).pop(b[0])),
}


@pytest.mark.parametrize(("make", "put", "fn"), READERS.values(), ids=list(READERS))
def test_where_c_code_reads_them(make, put, fn):
    check_holder(fn, make, put, "miss miss miss hit miss hit")


def test_arguments_of_every_kind():
    def positional(x, *rest):
        return x * rest[0] + rest[1], rest

    def named(x, **rest):
        return x * rest["n"], rest

    def keyword_only(x, *, n, m=2):
        return x * n + m

    for fn, call in (
        (positional, lambda w, n: w.fn(rand(n), n, 3)),
        (named, lambda w, n: w.fn(rand(n), n=n, m=3)),
        (keyword_only, lambda w, n: w.fn(rand(n), n=n)),
        (keyword_only, lambda w, n: w.fn(rand(n), n=3, m=n)),
    ):
        check(lambda fn=fn: World(fn=fn), [lambda w, n=n, call=call: call(w, n) for n in NUMBERS], expect=SYMBOLIC)


def test_closures():
    def world():
        n = 5

        def fn(x):
            return x * n, n + 1

        def put(value):
            nonlocal n
            n = value

        return World(fn=fn, put=put)

    check(world, [lambda w, n=n: (w.put(n), w.fn(rand(n))) for n in NUMBERS], expect=SYMBOLIC)


def test_counters_in_closures():
    def world():
        n = 0

        def fn(x):
            nonlocal n
            n += 1
            return x * n, n

        return World(fn=fn)

    check(world, [lambda w: w.fn(rand(1))] * 6, expect=SYMBOLIC)


def test_globals():
    def call(n):
        def run(w):
            globals()["CURRENT"] = n
            result = w.fn(rand(n))
            assert type(CURRENT) is int
            return result, CURRENT

        return run

    def read(x):
        return x * CURRENT + CURRENT

    def count(x):
        global CURRENT
        CURRENT += 1
        return x * CURRENT

    for fn in (read, count):
        check(lambda fn=fn: World(fn=fn), [call(n) for n in NUMBERS], expect=SYMBOLIC)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.step, self.seen, self.last = 0, {}, None

    def forward(self, x):
        self.step += 1
        self.last = x.shape
        self.seen["size"] = x.shape[0]
        return self.linear(x) * self.step


def test_a_step_counter_and_sizes_of_a_module():
    def world():
        torch.manual_seed(0)
        return World(fn=lambda m, x: m(x), module=Counting())

    def call(n):
        def run(w):
            result = w.fn(w.module, rand(n, n, 4))
            assert type(w.module.step) is int and type(w.module.last) is torch.Size
            assert_plain([w.module.seen, tuple(w.module.last)])
            return result

        return run

    check(world, [call(n) for n in NUMBERS], expect=SYMBOLIC)


def test_what_is_stored():
    def fn(x, n, b):
        b.n = n + 1
        b.log[:] = [n, (n * 2, {"k": n * 0.5})]
        b.d.update(k=n * 2)
        b.d["shape"] = x.shape
        b.s = slice(n, n + 1)
        return x * b.n, (n,) * 2 + (n + 1,), b.log + b.log

    def call(n):
        def run(w):
            result = w.fn(rand(n, n), n, w.box)
            assert_plain([result, w.box])
            assert type(w.box.d["shape"]) is torch.Size and type(w.box.s.start) is int
            return result

        return run

    check(lambda: World(fn=fn, box=Box(log=[], d={})), [call(n) for n in NUMBERS], expect=None)


def test_what_is_appended():
    def fn(x, n, log):
        log.append((n, [n + 1], {"k": n / 2}, x.shape))
        return x * n

    def call(n):
        def run(w):
            result = w.fn(rand(n, n), n, w.log)
            assert_plain(w.log)
            return result

        return run

    check(lambda: World(fn=fn, log=[]), [call(n) for n in NUMBERS], expect=SYMBOLIC)


def test_a_number_at_two_places():
    def fn(x, a, b):
        a.n = b.n + 1
        return x * a.n + b.n, a.n is b.n

    def call(n):
        def run(w):
            w.b.n = n
            return w.fn(rand(n), w.a, w.b)

        return run

    seen = check(lambda: World(fn=fn, a=Box(n=1), b=Box(n=1)), [call(n) for n in NUMBERS], expect=None)
    assert seen.world.fn.stator.recordings <= 5


def test_two_numbers_and_their_relation():
    def fn(x, a, b):
        return x * a if a < b else x * b

    pairs = [(1, 2), (3, 4), (4, 3), (5, 9), (9, 5), (7, 7), (8, 9)]
    check(
        lambda: World(fn=fn),
        [lambda w, p=p: w.fn(rand(1), *p) for p in pairs],
        expect="miss miss miss hit hit hit hit",
    )


def test_objects_die_as_in_eager():
    box = Box(n=5, log=[])

    def fn(x, box):
        box.log = [box.n, box.n + 1]
        return x * box.n

    compiled = stator.compile(fn, backend="eager")
    for n in NUMBERS:
        box.n = n
        compiled(rand(n), box)
    gc.collect()
    kinds = {type(o) for o in gc.get_objects() if type(o).__module__ == "stator._native"}
    assert not {kind for kind in kinds if kind.__name__ in ("Int", "Float")}
    assert_plain(box)


def test_a_key_is_looked_for_among_arguments_that_hold_numbers():
    def shaped(x, **options):
        if "old" in options:
            return x
        return x.to(options["dtype"]).view(*options["shape"])

    def fn(x, n):
        return shaped(x, dtype=torch.float64, device=x.device, shape=(x.shape[0], 2, -1)) * n

    calls = [lambda w, n=n: w.fn(rand(n, n, 4), n + 1) for n in NUMBERS]
    check(lambda: World(fn=fn), calls, expect=SYMBOLIC)


def test_a_number_that_was_overwritten_before_it_is_read():
    """What a container held when the segment began matters to its guards, and is not put into it again."""

    def items(x, box):
        box.d["n"] = box.d["m"] + 1
        return x * sum(box.d.values()), list(box.d.items())

    def attributes(x, box):
        box.n = 3
        return x * sum(v for v in vars(box).values() if type(v) is int)

    def same_number(x, box):
        box.n = 7
        return x * sum(v for v in vars(box).values() if type(v) is int)

    for fn in (items, attributes, same_number):

        def call(w, n):
            w.box.n, w.box.d = n, {"n": n, "m": n + 1}
            return w.fn(rand(1), w.box)

        calls = [lambda w, n=n: call(w, n) for n in NUMBERS]
        check(lambda fn=fn: World(fn=fn, box=Box(n=5, d={})), calls, expect=None)


def test_a_number_in_what_was_moved_before_it_is_read():
    def moved(x, box):
        old = box.d
        box.d = {"k": 1}
        return x * old["n"], old

    def swapped(x, box):
        first, second = box.first, box.d
        box.first, box.d = second, first
        return x * first["n"] + second["n"]

    for fn in (moved, swapped):

        def call(w, n):
            w.box.first, w.box.d = {"n": n + 1}, {"n": n}
            return w.fn(rand(1), w.box)

        calls = [lambda w, n=n: call(w, n) for n in NUMBERS]
        check(lambda fn=fn: World(fn=fn, box=Box(first={}, d={})), calls, expect=None)


def test_a_number_in_an_object_of_c_that_cannot_be_written():
    def world():
        return World(fn=lambda x, status: x * status.st_size)

    def call(w, size):
        return w.fn(rand(size), os.stat_result((1, 2, 3, 4, 5, 6, size, 8, 9, 10)))

    check(world, [lambda w, s=s: call(w, s) for s in NUMBERS], expect=None)
