"""Containers made inside, and the tools of the standard library that work on containers."""

from __future__ import annotations

import collections
import copy
import functools
import heapq
import itertools
import operator

import torch
from harness import World, check, check_stateless, rand


def test_every_kind_of_container_is_returned():
    def fn(x):
        return {
            "list": [x, x + 1],
            "tuple": (x, ()),
            "dict": {1: x, "a": {}},
            "set": {1, 2, x.shape[0]},
            "frozenset": frozenset("ab"),
            "deque": collections.deque([x, 1], maxlen=5),
            "ordered": collections.OrderedDict(b=x, a=x * 2),
            "default": collections.defaultdict(list, {"k": [x]}),
            "size": x.shape,
            "slice": slice(1, x.shape[0]),
            "range": range(x.shape[0]),
        }

    check_stateless(fn)


def test_aliasing_inside_the_result_is_kept():
    def fn(x):
        shared = [x + 1]
        return [shared, shared, (shared, x), {"x": x, "y": shared[0]}]

    check_stateless(fn)


def test_a_result_that_contains_itself():
    def fn(x):
        loop = [x + 1]
        loop.append(loop)
        table = {"loop": loop}
        table["self"] = table
        return loop, table

    check_stateless(fn)


def test_a_fresh_list_is_changed_in_every_way():
    def fn(x):
        items = [x] * 2
        items.append(x + 1)
        items += [x + 2]
        items.extend(map(torch.neg, items[:2]))
        items.insert(0, "s")
        items.remove("s")
        items[0:2] = [x * 3]
        last = items.pop()
        items.reverse()
        return items, last, items.copy(), len(items), items * 2

    check_stateless(fn)


def test_a_fresh_dict_is_changed_in_every_way():
    def fn(x):
        d = dict([("a", x)], b=x + 1)
        d["c"] = d["a"] * 2
        d.update({"a": 0}, e=x)
        d.setdefault("f", []).append(x)
        gone = d.pop("b")
        key, value = d.popitem()
        keys = dict.fromkeys("xy", x)
        return d, gone, key, value, keys, list(d.items()), {v: k for k, v in enumerate(d)}

    check_stateless(fn)


def test_zip_map_enumerate_reversed_and_filter():
    def fn(x):
        parts = list(x)
        pairs = [(i, a * b) for i, (a, b) in enumerate(zip(parts, reversed(parts), strict=True), start=1)]
        kept = list(filter(lambda pair: pair[0] != 2, pairs))
        shifted = tuple(map(lambda pair, n: pair[1] + n, kept, range(10)))
        return shifted, dict(zip("abcd", parts, strict=True)), list(zip(parts, parts[2:], strict=False))

    check_stateless(fn)


def test_zip_over_outside_lists():
    def fn(x, weights, names):
        out = {}
        for name, weight in zip(names, weights, strict=False):
            out[name] = x * weight
        return out, [*map(len, names)]

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), [rand(2), rand(3)], ["a", "bb"]),
            lambda w: w.fn(rand(4), [rand(5), rand(6)], ["a", "bb"]),
            lambda w: w.fn(rand(7), [rand(8), rand(9)], ["a", "cc"]),
            lambda w: w.fn(rand(1), [rand(2)], ["a", "bb"]),
        ],
        expect="miss hit miss miss",
    )


def test_itertools():
    def fn(x):
        parts = list(x)
        return (
            list(itertools.accumulate(parts)),
            list(itertools.accumulate(parts, operator.mul, initial=x.sum())),
            list(itertools.chain([x], parts, itertools.chain.from_iterable([[x + 1], [x + 2]]))),
            [a + b for a, b in itertools.product(parts[:2], parts[2:])],
            [sum(c) for c in itertools.combinations(parts, 3)],
            list(itertools.islice(itertools.cycle(parts), 6)),
            [a * b for a, b in itertools.pairwise(parts)],
            list(itertools.starmap(torch.sub, [(x, 1), (parts[0], x)])),
            list(itertools.zip_longest(parts[:1], parts[:2], fillvalue=x)),
            list(itertools.takewhile(lambda n: n < 3, itertools.count(1))),
            [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])],
            [p * n for p, n in zip(parts, itertools.repeat(3))],
        )

    check_stateless(fn)


def test_reduce_sum_min_max_any_all():
    def fn(x, sizes):
        parts = list(x)
        total = functools.reduce(lambda a, b: a * 2 + b, parts)
        total = functools.reduce(operator.add, parts, total) + sum(parts) + sum(parts, start=x)
        if any(s > 3 for s in sizes) and all(sizes):
            total = total * max(sizes) - min(sizes, key=lambda s: -s) + max(sizes, default=1)
        return total

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), [1, 5]), lambda w: w.fn(rand(2), [1, 5]), lambda w: w.fn(rand(3), [0, 5])],
        expect="miss hit miss",
    )


def test_sorting():
    def fn(x):
        rows = [("b", 2, x), ("a", 2, x + 1), ("c", 1, x + 2)]
        by_name = sorted(rows, key=operator.itemgetter(0))
        by_number = sorted(rows, key=lambda r: (-r[1], r[0]), reverse=True)
        rows.sort(key=functools.cmp_to_key(lambda p, q: (p[0] < q[0]) - (p[0] > q[0])))
        return [r[2] for r in by_name], [r[2] for r in by_number], rows

    check_stateless(fn)


def test_a_queue():
    def fn(x):
        queue = collections.deque([(0, x)])
        done = []
        while queue:
            depth, item = queue.popleft()
            if depth < 2:
                queue.extend([(depth + 1, item * 2), (depth + 1, item + 1)])
            done.append(item)
        return done

    check_stateless(fn)


def test_a_counter_and_a_bytearray():
    check_stateless(lambda x: (x + 1, collections.Counter("aab"), bytearray(b"ab")))


def test_star_displays():
    def fn(x):
        a, b = [("k", x), ("m", x + 1)], {"k": x}
        return [*a, *a], (*a, x), {*range(2), 7}, {**b, "l": 1, **dict(a)}

    check_stateless(fn)


def test_copies():
    def fn(x):
        nested = {"a": [x, [1, 2]]}
        shallow, more = copy.copy(nested), nested["a"].copy()
        more[1].append(x * 2)
        return nested["a"] is shallow["a"], shallow, more, [*more], dict(nested)

    check_stateless(fn)


def test_nested_lists_of_tensors_are_stacked():
    def fn(x):
        rows = [[x * i + j for j in range(2)] for i in range(3)]
        return torch.stack([torch.cat(row) for row in rows]), torch.tensor([[1, 2], [3, x.shape[0]]])

    check_stateless(fn)


def test_tensors_split_into_containers():
    def fn(x):
        a, b = x.chunk(2)
        parts = torch.split(x, [1, 3])
        values, indices = x.sort()
        top = torch.topk(x, 2)
        return a, b, parts, values + 1, indices, top, top.values, x.unbind(), x.max(dim=0).indices

    check_stateless(fn)


# ---- right, even if they stay plain --------------------------------------------------------------


def check_right(fn):
    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        unreplayed="unknown-callable",
    )


def test_tensors_as_dict_keys():
    def fn(x):
        y = x + 1
        names = {x: "x", y: "y"}
        return names[x] + names[y], y, len({x, y, x})

    check_right(fn)


def test_heaps():
    def fn(x):
        heap = [(3, "c"), (1, "a"), (2, "b")]
        heapq.heapify(heap)
        heapq.heappush(heap, (0, "z"))
        return [heapq.heappop(heap)[0] * x for _ in range(4)]

    check_right(fn)


def test_deep_copies():
    def fn(x):
        nested = copy.deepcopy({"n": [1, {"m": (2, x)}]})
        nested["n"][1]["k"] = x
        return nested, copy.deepcopy(x) + 1

    check_right(fn)


def test_searching_a_list_of_tensors_for_something_else():
    def fn(x):
        items = [x, x + 1, "s"]
        items.remove("s")
        return items, [x].count("t")

    check_right(fn)
