"""C code that calls C code on outside objects: no Python frame runs, only the call itself shows the read.

Each program reads one value of `table` or `items` in such a way. The value changes before the third call.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import os
from collections import ChainMap, OrderedDict, defaultdict, deque

import pytest
import torch
from harness import World, check, rand

NESTED, PERCENT = "{a} {inner[deep]}", "%(a)s %(b).1f"
ITEM, ITEMS, ATTRIBUTE = "{0[1]}", "%s", "{0.inner.scale}"


def from_table(*args, **kwargs):
    return dict(*args, **kwargs)


TABLE_READERS = {
    "map of get": lambda x, table: x * sum(map(table.get, ["a", "b"])),
    "map of getitem": lambda x, table: x * sum(map(table.__getitem__, ["a", "b"])),
    "max by get": lambda x, table: x * len(max(["a", "b"], key=table.get)) + table["b"],
    "sorted by get": lambda x, table: (x * 2, sorted(["a", "b"], key=table.get)),
    "itemgetter": lambda x, table: x * operator.itemgetter("a")(table),
    "itemgetter of several": lambda x, table: x * sum(operator.itemgetter("a", "b")(table)),
    "operator getitem": lambda x, table: x * operator.getitem(table, "a"),
    "reduce of getitem": lambda x, table: x * functools.reduce(operator.getitem, ["inner", "deep"], table),
    "contains": lambda x, table: x * (2 if operator.contains(table, "a") else 3) * table["a"],
    "partial of get": lambda x, table: x * functools.partial(table.get, "a")(),
    "dict.get unbound": lambda x, table: x * dict.get(table, "a"),
    "dict of dict": lambda x, table: x * dict(table)["a"],
    "dict from items": lambda x, table: x * dict(table.items())["a"],
    "list of values": lambda x, table: (x * 2, list(table.values())),
    "double star": lambda x, table: x * from_table(**table)["a"],
    "union": lambda x, table: x * (table | {"z": 1.0})["a"],
    "union reversed": lambda x, table: x * ({"z": 1.0} | table)["a"],
    "update": lambda x, table: x * updated({}, table)["a"],
    "ordered dict": lambda x, table: x * OrderedDict(table)["a"],
    "default dict": lambda x, table: x * defaultdict(float, table)["a"],
    "chain map": lambda x, table: x * ChainMap({}, table)["a"],
    "copy": lambda x, table: x * table.copy()["a"],
    "equality": lambda x, table: x * (2 if table == {"a": 2.0, "b": 3.0, "inner": {"deep": 4.0}} else 3),
    "format": lambda x, table: (x * 2, NESTED.format(**table)),
    "format map": lambda x, table: (x * 2, "{a}".format_map(table)),
    "percent": lambda x, table: (x * 2, PERCENT % table),
    "repr": lambda x, table: (x * 2, repr(table)),
    "f-string": lambda x, table: (x * 2, f"{table}"),
    "zip": lambda x, table: x * sum(v for _, v in zip("ab", table.values(), strict=False)),
    "items sorted": lambda x, table: x * min(v for v in table.values() if isinstance(v, float)),
    "set of values": lambda x, table: (x * 2, {v for v in table.values() if isinstance(v, float)}),
    "next of iter": lambda x, table: x * next(iter(table.values())),
    "setdefault": lambda x, table: x * table.setdefault("a", 9.0),
    "match": lambda x, table: x * matched(table),
}


def updated(target, source):
    target.update(source)
    return target


def matched(table):
    match table:
        case {"a": 2.0}:
            return 5
        case {"a": value}:
            return value
    return 0


@pytest.mark.parametrize("name", TABLE_READERS)
@pytest.mark.parametrize("changed", ["a", "deep"])
def test_reading_a_dict(name, changed):
    def world():
        return World(fn=TABLE_READERS[name], table={"a": 2.0, "b": 3.0, "inner": {"deep": 4.0}})

    def change(w):
        owner = w.table if changed == "a" else w.table["inner"]
        owner[changed] = 7.0
        return w.fn(rand(3), w.table)

    check_reads(world, change, lambda w, seed: w.fn(rand(seed), w.table))


ITEM_READERS = {
    "sum": lambda x, items: x * sum(items),
    "max": lambda x, items: x * max(items),
    "min by key": lambda x, items: x * min(items, key=operator.neg),
    "sorted": lambda x, items: (x * 2, sorted(items)),
    "reversed": lambda x, items: (x * 2, list(reversed(items))),
    "reduce": lambda x, items: x * functools.reduce(operator.mul, items),
    "accumulate": lambda x, items: (x * 2, list(itertools.accumulate(items))),
    "chain": lambda x, items: (x * 2, list(itertools.chain(items, items))),
    "islice": lambda x, items: (x * 2, list(itertools.islice(items, 1, None))),
    "enumerate": lambda x, items: (x * 2, list(enumerate(items))),
    "map of operator": lambda x, items: (x * 2, list(map(operator.add, items, items))),
    "filter of none": lambda x, items: (x * 2, list(filter(None, items))),
    "all and any": lambda x, items: (x * 2, all(items), any(items), all(map(bool, items))),
    "tuple": lambda x, items: (x * 2, tuple(items)),
    "set": lambda x, items: (x * 2, set(items)),
    "deque": lambda x, items: (x * 2, deque(items, maxlen=2)),
    "slice": lambda x, items: (x * 2, items[1:], items[::-1]),
    "concatenation": lambda x, items: (x * 2, items + items, [*items], items * 2),
    "extend": lambda x, items: (x * 2, extended([], items)),
    "index": lambda x, items: (x * 2, items.index(3, 0)),
    "count": lambda x, items: (x * 2, items.count(5)),
    "contains": lambda x, items: (x * 2, 5 in items),
    "comparison": lambda x, items: (x * 2, items == [2, 3, 0], items < [2, 4]),
    "join": lambda x, items: (x * 2, ",".join(map(str, items))),
    "format": lambda x, items: (x * 2, ITEM.format(items), ITEMS % (items,), str(items)),
    "bisect": lambda x, items: (x * 2, bisect.bisect(items[:2], 4)),
    "view": lambda x, items: x.view([4 if i == 3 else 1 for i in items]) * 2,
    "tensor": lambda x, items: x[:3] * torch.tensor(items),
    "tensor index": lambda x, items: x[items[:1]] * x[[i % 4 for i in items]].sum(),
    "permute": lambda x, items: x.expand(2, 3, 4).permute([i % 3 for i in (items[1], 1, 5)]) * 1,
    "zeros": lambda x, items: x.sum() + torch.zeros(items[:2]),
    "star call": lambda x, items: torch.full((2,), max(*items)) + x.sum(),
    "unpacking": lambda x, items: x * unpacked(items),
    "divmod": lambda x, items: (x * 2, divmod(*items[:2])),
    "reading twice": lambda x, items: x * items[1] + x * items[-2],
}


def extended(target, source):
    target.extend(source)
    target += source
    return target


def unpacked(items):
    _, *rest = items
    return sum(rest)


@pytest.mark.parametrize("name", ITEM_READERS)
def test_reading_a_list(name):
    def world():
        return World(fn=ITEM_READERS[name], items=[2, 3, 0])

    def change(w):
        w.items[:2] = [3, 6]
        return w.fn(rand(3), w.items)

    check_reads(world, change, lambda w, seed: w.fn(rand(seed), w.items))


OBJECT_READERS = {
    "attrgetter": lambda x, o: x * operator.attrgetter("inner.scale")(o),
    "methodcaller": lambda x, o: operator.methodcaller("apply", x)(o),
    "map of attrgetter": lambda x, o: x * sum(map(operator.attrgetter("scale"), [o, o.inner])),
    "map of a method": lambda x, o: sum(map(o.apply, [x, x + 1])),
    "sorted by attribute": lambda x, o: x * sorted([o, o.inner], key=operator.attrgetter("scale"))[-1].scale,
    "getattr": lambda x, o: x * getattr(getattr(o, "inner"), "scale"),  # noqa: B009  the call is the point
    "vars": lambda x, o: x * vars(o)["scale"] * vars(o.inner).get("scale"),
    "dunder dict": lambda x, o: x * o.__dict__["scale"] * len(list(o.inner.__dict__.values())),
    "object getattribute": lambda x, o: x * object.__getattribute__(o.inner, "scale"),
    "type lookup": lambda x, o: x * type(o).__dict__["level"] * type(o).level,
    "format": lambda x, o: (x * 2, ATTRIBUTE.format(o)),
    "partial of a method": lambda x, o: functools.partial(o.inner.apply, x)(),
    "reduce of getattr": lambda x, o: x * functools.reduce(getattr, ["inner", "scale"], o),
    "hasattr": lambda x, o: x * (2 if hasattr(o.inner, "extra") else 3),
    "callable": lambda x, o: x * (2 if callable(o.inner.hook) else 3),
    "isinstance": lambda x, o: x * (2 if isinstance(o.inner.hook, (int, str)) else 3),
    "bool": lambda x, o: x * (2 if bool(o.inner.hook) else 3),
    "truth": lambda x, o: x * (2 if not o.inner.hook else 3),
}


class Node:
    level = 2.0

    def __init__(self, scale, inner=None):
        self.scale, self.inner, self.hook = scale, inner, None

    def apply(self, x):
        return x * self.scale


@pytest.mark.parametrize("name", OBJECT_READERS)
@pytest.mark.parametrize("change", ["scale", "inner scale", "hook", "extra", "level"])
def test_reading_an_object(name, change):
    def world():
        cls = type("Local", (Node,), {"level": 4.0})
        return World(fn=OBJECT_READERS[name], o=cls(2.0, cls(3.0)), cls=cls)

    changes = {
        "scale": lambda w: setattr(w.o, "scale", 7.0),
        "inner scale": lambda w: setattr(w.o.inner, "scale", 8.0),
        "hook": lambda w: setattr(w.o.inner, "hook", 1),
        "extra": lambda w: setattr(w.o.inner, "extra", 2.0),
        "level": lambda w: setattr(w.cls, "level", 9.0),
    }

    def changed(w):
        changes[change](w)
        return w.fn(rand(3), w.o)

    check_reads(world, changed, lambda w, seed: w.fn(rand(seed), w.o))


def check_reads(world, change, call):
    check(
        world,
        [lambda w: call(w, 1), lambda w: call(w, 2), change, lambda w: call(w, 4)],
        expect=None,
        unreplayed="unknown-callable",
    )


def test_a_getattr_that_is_c_code():
    def world():
        values = {"scale": 2.0}
        cls = type("Proxy", (), {"__getattr__": staticmethod(values.__getitem__)})
        o = cls()
        return World(fn=lambda x: x * o.scale, values=values)

    def change(w):
        w.values["scale"] = 3.0
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), change], expect=None)


def test_properties_that_are_c_code():
    def world():
        cls = type(
            "Row",
            (),
            {"first": property(operator.itemgetter(0)), "__getitem__": lambda self, i: self.items[i]},
        )
        row = cls()
        row.items = [2.0]
        cls.scale = property(operator.attrgetter("hidden"))
        row.hidden = 3.0
        return World(fn=lambda x: x * row.first + row.scale, row=row)

    def change_item(w):
        w.row.items[0] = 5.0
        return w.fn(rand(3))

    def change_hidden(w):
        w.row.hidden = 6.0
        return w.fn(rand(4))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), change_item, change_hidden], expect=None)


def test_special_methods_that_are_c_code():
    def world():
        items = [1.0, 2.0]
        cls = type("View", (), {"__len__": staticmethod(items.__len__), "__getitem__": None})
        cls.__getitem__ = staticmethod(items.__getitem__)
        cls.__contains__ = staticmethod(items.__contains__)
        view = cls()

        def fn(x):
            return x * len(view) + view[1] + (1 if 2.0 in view else 100)

        return World(fn=fn, items=items)

    def change(w):
        w.items[1] = 5.0
        return w.fn(rand(3))

    def grow(w):
        w.items.append(9.0)
        return w.fn(rand(4))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), change, grow], expect=None)


def test_a_default_factory_that_is_c_code():
    def world():
        source = [5.0, 4.0, 3.0, 2.0, 1.0]
        return World(fn=lambda x, d: x * d["new"], source=source, make=lambda: defaultdict(source.pop))

    check(world, [lambda w, s=s: w.fn(rand(s), w.make()) for s in (1, 2, 3)], expect=None)


def test_iterators_over_outside_containers_made_by_c_code():
    def world():
        items = [1.0, 2.0, 3.0]
        return World(fn=lambda x: [x * n for n in iter(items.pop, 1.0)], items=items)

    def refill(seed):
        def run(w):
            w.items[:] = [1.0, *[float(seed)] * seed]
            return w.fn(rand(seed))

        return run

    check(world, [lambda w: w.fn(rand(1)), refill(2), refill(3), refill(2)], expect=None)


def test_the_text_of_a_path():
    class Place:
        def __init__(self):
            self.text = "a"

        def __fspath__(self):
            return self.text

    def fn(x, place):
        return x * len(os.fspath(place))

    def call(w, text):
        w.place.text = text
        return w.fn(rand(1), w.place)

    calls = [lambda w, t=t: call(w, t) for t in ("a", "a", "abc", "a", "abc")]
    check(lambda: World(fn=fn, place=Place()), calls, expect="miss hit miss hit hit", breaks=[])
