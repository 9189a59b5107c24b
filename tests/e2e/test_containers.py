"""Containers from outside: read, iterated, sorted and changed, each guarded by what was used of it."""

from __future__ import annotations

import inspect
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from types import MappingProxyType

import pytest
import torch
from harness import RECORDED, World, check, rand

import stator


def tensors(first, count):
    return [rand(seed) for seed in range(first, first + count)]


def test_reading_a_list():
    def fn(items):
        first, *middle, last = items
        return first + items[-1], middle, last * len(items), items[1:3], items[::-1]

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(tensors(1, 4)),
            lambda w: w.fn(tensors(5, 4)),
            lambda w: w.fn(tensors(9, 3)),
            lambda w: w.fn(tensors(2, 4)),
        ],
        expect="miss hit miss hit",
    )


def test_list_of_numbers():
    def fn(x, numbers):
        return x * sum(numbers) + max(numbers), numbers.index(3), numbers.count(2), 5 in numbers

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), [1, 2, 3]),
            lambda w: w.fn(rand(2), [1, 2, 3]),
            lambda w: w.fn(rand(3), [1, 2, 3, 5]),
            lambda w: w.fn(rand(4), [2, 2, 3]),
        ],
        expect="miss hit miss miss",
    )


def test_iterating_a_list_of_tensors():
    def fn(items):
        total = torch.zeros(4)
        for i, item in enumerate(items):
            total = total + item * i
        return total

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(tensors(1, 3)),
            lambda w: w.fn(tensors(4, 3)),
            lambda w: w.fn(tensors(7, 4)),
            lambda w: w.fn([rand(1), rand(2), rand(3, 1)]),
        ],
        expect="miss hit miss miss",
    )


def test_the_same_tensor_twice_in_a_list():
    def fn(items):
        items[0].add_(1)
        return items[0] + items[1]

    def both_same(w):
        x = rand(3)
        return w.fn([x, x]), x

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(tensors(1, 2)), lambda w: w.fn(tensors(3, 2)), both_same, both_same],
        expect="miss hit miss hit",
    )


def test_changing_an_outside_list():
    def fn(x, items):
        items.append(x + 1)
        items.insert(0, x)
        items[1] = items[1] * 2
        items += [x, x * 3]
        del items[-2]
        items.reverse()
        return items.pop()

    def again(w, seed):
        w.items[:] = tensors(seed, 2)
        return w.fn(rand(seed), w.items)

    check(
        lambda: World(fn=fn, items=tensors(10, 2)),
        [lambda w: w.fn(rand(1), w.items), lambda w: again(w, 2), lambda w: again(w, 3)],
        expect="miss hit hit",
    )


def test_a_growing_outside_list():
    def fn(x, history):
        history.append(x * 2)
        return x + len(history)

    check(
        lambda: World(fn=fn, history=[]),
        [lambda w, s=s: w.fn(rand(s), w.history) for s in (1, 2, 3)],
        expect="miss miss miss",
        unreplayed=RECORDED,
    )


def test_slices_of_an_outside_list_are_assigned_and_deleted():
    def fn(x, items):
        items.remove("tag")
        items[1:3] = [x, x + 1, x + 2]
        del items[::3]
        items.extend(item * 2 for item in items[:1])
        return items[0]

    def again(w, seed):
        w.items[:] = ["tag", *tensors(seed, 4)]
        return w.fn(rand(seed), w.items)

    check(
        lambda: World(fn=fn, items=["tag", *tensors(10, 4)]),
        [lambda w: w.fn(rand(1), w.items), lambda w: again(w, 2), lambda w: again(w, 3)],
        expect="miss hit hit",
    )


def test_sorting_an_outside_list_with_a_key():
    def fn(x, rows):
        ranked = sorted(rows, key=lambda row: row["rank"], reverse=True)
        rows.sort(key=lambda row: row["name"])
        return x + ranked[0]["bias"], [row["name"] for row in ranked]

    def rows(*ranks):
        return [{"rank": r, "name": f"n{-r}", "bias": rand(r)} for r in ranks]

    def call(seed, *ranks):
        def run(w):
            w.rows = rows(*ranks)
            return w.fn(rand(seed), w.rows)

        return run

    check(
        lambda: World(fn=fn, rows=None),
        [call(1, 3, 1, 2), call(2, 3, 1, 2), call(3, 1, 2, 3), call(4, 3, 1, 2)],
        expect="miss hit miss hit",
    )


def test_reading_a_dict():
    def fn(d):
        out = {k: v * 2 for k, v in d.items() if k != "skip"}
        out["first"] = d.get("a", None)
        out["absent"] = d.get("zz")
        return out, list(d), len(d), "b" in d, "q" not in d

    def d(seed, *names):
        return {name: rand(seed + i) for i, name in enumerate(names)}

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(d(1, "a", "b")),
            lambda w: w.fn(d(3, "a", "b")),
            lambda w: w.fn(d(5, "a", "b", "skip")),
            lambda w: w.fn(d(7, "b", "a")),
            lambda w: w.fn(d(9, "a", "b", "zz")),
        ],
        expect="miss hit miss miss miss",
    )


def test_changing_an_outside_dict():
    def fn(x, d):
        d["new"] = x + 1
        d["a"] = d.pop("b") * 2
        d.update(c=x, new=d["new"] * 2)
        d.setdefault("d", x)
        d.setdefault("a", None)
        d |= {"e": [x]}
        del d["c"]
        return d["a"] + len(d)

    def again(w, seed):
        w.d.clear()
        w.d.update(a=rand(seed), b=rand(seed + 1))
        return w.fn(rand(seed + 2), w.d)

    check(
        lambda: World(fn=fn, d={"a": rand(10), "b": rand(11)}),
        [lambda w: w.fn(rand(1), w.d), lambda w: again(w, 2), lambda w: again(w, 5)],
        expect="miss hit hit",
    )


def test_a_dict_as_cache_hits_once_it_is_filled():
    def fn(x, cache):
        key = tuple(x.shape)
        if key not in cache:
            cache[key] = torch.arange(key[0]) + 1.0
        return x * cache[key]

    check(
        lambda: World(fn=fn, cache={}),
        [lambda w, s=s: w.fn(rand(s), w.cache) for s in (1, 2, 3)],
        expect="miss miss hit",
    )


def test_dict_views_and_merging():
    def fn(x, a, b):
        both = {**a, **b}
        shared = sorted(a.keys() & b.keys())
        merged = a | b
        return (
            [x * v for v in both.values()],
            shared,
            list(reversed(merged)),
            list(zip(a, b.values(), strict=True)),
        )

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), {"p": 1, "q": 2}, {"q": 3, "r": rand(4)}),
            lambda w: w.fn(rand(2), {"p": 1, "q": 2}, {"q": 3, "r": rand(5)}),
            lambda w: w.fn(rand(3), {"p": 1, "q": 9}, {"q": 3, "r": rand(6)}),
        ],
        expect="miss hit miss",
    )


def test_dicts_with_other_keys():
    def fn(x, table):
        return x * table[1] + table[(2, "b")] + table[torch.float32] + table[None]

    def table(seed):
        return {1: rand(seed), (2, "b"): 3.0, torch.float32: 1, None: rand(seed + 1)}

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), table(2)),
            lambda w: w.fn(rand(2), table(4)),
            lambda w: w.fn(rand(3), table(6)),
        ],
        expect="miss hit hit",
    )


def test_sets():
    def fn(x, names):
        names.add("new")
        names.discard("old")
        both = names & {"a", "new"}
        if "b" in names:
            x = x + 1
        return x * len(names), both, names | {"z"}, frozenset(names - {"a"}), sorted(names)

    def call(seed, *names):
        def run(w):
            w.names = set(names)
            return w.fn(rand(seed), w.names)

        return run

    check(
        lambda: World(fn=fn, names=None),
        [call(1, "a", "old"), call(2, "a", "old"), call(3, "b", "old"), call(4, "a", "old")],
        expect="miss hit miss hit",
    )


def test_tuples():
    def fn(pair, nested):
        (a, b), c = nested
        joined = pair + nested[0]
        return joined[1:], joined * 2, c in ("x", "y"), a * 2 if joined.index(2) else b * 3

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn((1, 2), ((rand(1), rand(2)), "x")),
            lambda w: w.fn((1, 2), ((rand(3), rand(4)), "x")),
            lambda w: w.fn((1, 2), ((rand(5), rand(6)), "z")),
            lambda w: w.fn((2, 2), ((rand(5), rand(6)), "x")),
        ],
        expect="miss hit miss miss",
    )


def test_a_deque():
    def fn(x, window):
        window.append(x)
        oldest = window.popleft() if len(window) > 2 else x
        window.appendleft(x * 2)
        window.rotate(1)
        return sum(window) + oldest

    def call(seed):
        def run(w):
            w.window.clear()
            w.window.extend(tensors(seed, 2))
            return w.fn(rand(seed), w.window)

        return run

    check(
        lambda: World(fn=fn, window=deque(maxlen=4)),
        [call(1), call(2), call(3), lambda w: w.fn(rand(9), w.window)],
        expect="miss hit hit miss",
    )


def test_a_deque_that_drops_its_oldest():
    def fn(x, window):
        window.append(x * 2)
        return torch.stack(list(window)).mean(0)

    check(
        lambda: World(fn=fn, window=deque(tensors(10, 3), maxlen=3)),
        [lambda w, s=s: w.fn(rand(s), w.window) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_an_ordered_dict():
    def fn(x, layers):
        layers.move_to_end("a")
        layers["new"] = x
        name, first = layers.popitem(last=False)
        for key, value in layers.items():
            x = x * value + len(key)
        return x, name, first, layers

    def call(seed, *names):
        def run(w):
            w.layers = OrderedDict((n, rand(seed + i)) for i, n in enumerate(names))
            return w.fn(rand(seed), w.layers)

        return run

    check(
        lambda: World(fn=fn, layers=None),
        [call(1, "a", "b", "c"), call(4, "a", "b", "c"), call(7, "b", "a", "c"), call(1, "a", "b", "c")],
        expect="miss hit miss hit",
    )


def test_a_defaultdict():
    def fn(x, groups):
        for i, part in enumerate(x):
            groups["even" if i % 2 == 0 else "odd"].append(part)
        return torch.stack(groups["even"]), len(groups["other"])

    def call(seed):
        def run(w):
            w.groups.clear()
            return w.fn(rand(seed), w.groups)

        return run

    check(lambda: World(fn=fn, groups=defaultdict(list)), [call(1), call(2), call(3)], expect="miss hit hit")


def test_other_mappings():
    def fn(x, table, chain, counts):
        return x * table["k"] + chain["b"] + counts["z"], dict(chain), counts.most_common(1)

    def call(seed, k=2):
        return lambda w: w.fn(
            rand(seed), MappingProxyType({"k": k}), ChainMap({"a": 1}, {"b": rand(seed)}), Counter("zzy")
        )

    check(lambda: World(fn=fn), [call(1), call(2), call(3, k=3), call(4)], expect=None)


def test_nested_containers_are_changed_in_place():
    def fn(x, state):
        state["layers"][0]["weights"].append(x)
        state["count"][0] = x.sum()
        state["layers"].append({"weights": [x, state["layers"][0]]})
        return state["layers"][1]["weights"][0] * 2

    def call(seed):
        def run(w):
            w.state = {"layers": [{"weights": []}], "count": [rand(seed)]}
            return w.fn(rand(seed), w.state)

        return run

    check(lambda: World(fn=fn, state=None), [call(1), call(2), call(3)], expect="miss hit hit")


def test_an_outside_container_is_returned_as_itself():
    def fn(x, items, d):
        items[0] = x * 2
        return {"items": items, "again": [items, d], "copy": list(items), "d": dict(d)}

    check(
        lambda: World(fn=fn, items=tensors(10, 2), d={"k": 1}),
        [lambda w, s=s: w.fn(rand(s), w.items, w.d) for s in (1, 2, 3)],
        expect="miss hit hit",
    )


def test_the_same_list_under_two_names():
    def fn(x, a, b):
        a.append(x)
        return x * len(b)

    def call(seed, same):
        def run(w):
            w.a = [rand(seed)]
            w.b = w.a if same else [rand(seed + 1)]
            return w.fn(rand(seed), w.a, w.b)

        return run

    check(
        lambda: World(fn=fn, a=None, b=None),
        [call(1, False), call(2, False), call(3, True), call(4, True), call(5, False)],
        expect="miss hit miss hit hit",
    )


def test_a_list_that_contains_itself():
    def fn(x, loop):
        return loop[1][1][0] + x

    def call(seed):
        def run(w):
            w.loop = [rand(seed)]
            w.loop.append(w.loop)
            return w.fn(rand(seed + 1), w.loop)

        return run

    check(lambda: World(fn=fn, loop=None), [call(1), call(3), call(5)], expect="miss hit hit")


def test_comparing_containers():
    def fn(x, a, b):
        if a == b:
            return x + 1
        return x * 2 if a < b else x * 3

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), [1, 2], [1, 2]),
            lambda w: w.fn(rand(2), [1, 2], [1, 2]),
            lambda w: w.fn(rand(3), [1, 2], [1, 3]),
            lambda w: w.fn(rand(4), [2, 2], [1, 3]),
        ],
        expect="miss hit miss miss",
    )


USES_OF_PROXIES = {
    "item": lambda x, p: x * p["a"],
    "get": lambda x, p: x * p.get("b", 5) + p.get("c", 7),
    "values": lambda x, p: [x * v for v in p.values()],
    "items": lambda x, p: {k: x * v for k, v in p.items()},
    "iteration": lambda x, p: (x + len(p), [*p]),
    "contains": lambda x, p: x * 2 if "c" in p else x * 3,
    "copied": lambda x, p: ({**p}, p.copy(), dict(p), x + 1),
    "equal": lambda x, p: (p == {"a": 2, "b": 3}, x + 1),
}


@pytest.mark.parametrize("name", USES_OF_PROXIES)
@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_mappingproxy_from_outside(name, kind):
    """What it shows is guarded, whoever changes it."""
    use = USES_OF_PROXIES[name]

    def world():
        shown = kind(a=2, b=3)
        proxy = MappingProxyType(shown)
        return World(fn=lambda x: use(x, proxy), shown=shown)

    def changed(**items):
        return lambda w: (w.shown.update(items), w.fn(rand(3)))[1]

    calls = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed(a=4, b=5, c=6), lambda w: w.fn(rand(4))]
    check(world, calls, expect="miss hit miss hit", graphs=2)


def test_numbers_in_the_dict_of_a_class():
    """Once they change they are no constants, and still nobody writes to a class behind CPython's back."""

    class Node:
        pass

    def fn(x, cls):
        return x * cls.__dict__["level"] * cls.level

    def write_and_read(x, cls):
        entries = cls.__dict__
        cls.level += 1.0
        return x * entries["level"] * cls.level, list(entries)

    for use, unreplayed in ((fn, ()), (write_and_read, "unguardable")):

        def world(use=use):
            return World(fn=use, cls=type("Leveled", (Node,), {"level": 4.5}))

        def changed(level):
            return lambda w: (setattr(w.cls, "level", level), w.fn(rand(3), w.cls), w.cls.__dict__["level"])[1:]

        calls = [changed(level) for level in (4.5, 4.5, 9.5, 9.5, 7.5, 7.5)]
        check(world, calls, expect=None, unreplayed=unreplayed)

    cls = type("Leveled", (Node,), {})
    fast = stator.compile(fn, backend="eager")
    for number in range(40):
        cls.level = number + 0.5
        assert torch.equal(fast(rand(1), cls), fn(rand(1), cls))
        assert cls.level is cls.__dict__["level"]


def test_a_signature_binds_arguments():
    def world():
        def fn(x, *args, **kwargs):
            bound = w.signature.bind(None, *args, **kwargs)
            bound.apply_defaults()
            return x * bound.arguments["scale"], [*bound.arguments]

        w = World(fn=fn, signature=inspect.signature(lambda self, scale=2.0, *, shift=1: None))
        return w

    def other(w):
        w.signature = inspect.signature(lambda self, scale=4.0: None)
        return w.fn(rand(5))

    calls = [
        lambda w: w.fn(rand(1)),
        lambda w: w.fn(rand(2)),
        lambda w: w.fn(rand(3), 3.0, shift=2),
        lambda w: w.fn(rand(4), 3.0, shift=2),
        other,
        lambda w: w.fn(rand(6)),
    ]
    check(world, calls, expect="miss hit miss hit miss hit", graphs=3)
