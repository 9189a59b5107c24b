"""Rule 3: containers from outside, changed by every way there is, in content and in order alone."""

from __future__ import annotations

import array
import collections
import ctypes
import operator
import types

from attacks import attack
from harness import World


def test_rule_3_the_order_of_a_dict():
    def world():
        d = {"a": 2.0, "b": 3.0}

        def fn(x):
            for v in d.values():
                x = x * v + 1
            return x

        return World(fn=fn, d=d)

    attack(world, lambda w: w.d.update(a=w.d.pop("a")))


def test_rule_3_the_order_of_a_set():
    def world():
        s = set([0.0, 8.0]) if 0 else set()
        s.add(0)
        s.add(8)

        def fn(x):
            for k in s:
                x = x * 2 + k
            return x

        return World(fn=fn, s=s)

    def ch(w):
        w.s.clear()
        w.s.add(8)
        w.s.add(0)

    attack(world, ch)


def test_rule_3_another_default_factory():
    def world():
        d = collections.defaultdict(float)

        def fn(x):
            v = x + d["a"]
            d.clear()
            return v

        return World(fn=fn, d=d)

    attack(
        world,
        lambda w: setattr(w.d, "default_factory", lambda: 3.0),
        lambda w: setattr(w.d, "default_factory", None),
        raises=KeyError,
        replayed=False,
    )


def test_rule_3_views_kept_outside():
    def world():
        d = {"a": 2.0, "b": 3.0}
        v, k, i = d.values(), d.keys(), d.items()
        return World(fn=lambda x: x * sum(v) + len(k) + ("c" in k) + sum(b for a, b in i), d=d)

    attack(
        world,
        lambda w: w.d.update(c=4.0),
        lambda w: w.d.update(c=5.0),
        replayed=False,
        unreplayed=["outside-iterator", "unguardable"],
    )


def test_rule_3_a_proxy_kept_outside():
    def world():
        d = {"a": 2.0, "b": 3.0}
        p = types.MappingProxyType(d)
        return World(fn=lambda x: x * p["a"] + len(p) + p.get("c", 0), d=d)

    attack(world, lambda w: w.d.update(a=4.0), lambda w: w.d.update(c=5.0), replayed=False)


def test_rule_3_a_chain_of_dicts():
    def world():
        a, b = {"a": 1.0}, {"a": 2.0, "b": 3.0}
        c = collections.ChainMap(a, b)
        return World(fn=lambda x: x * c["a"] + c["b"] + len(c), a=a, b=b, c=c)

    attack(
        world,
        lambda w: w.a.pop("a"),
        lambda w: w.b.update(b=7.0),
        lambda w: w.c.maps.insert(0, {"b": 9.0}),
        lambda w: setattr(w.c, "maps", [{"a": 1.0, "b": 2.0}]),
    )


def test_rule_3_a_counter():
    def world():
        c = collections.Counter("aab")
        return World(fn=lambda x: x * c["a"] + c["zz"] + c.total() + c.most_common(1)[0][1], c=c)

    attack(world, lambda w: w.c.update("zzzzz"), lambda w: w.c.subtract("aa"))


def test_rule_3_a_deque_is_rotated():
    def world():
        c = collections.deque([1.0, 2.0, 3.0], maxlen=3)
        return World(fn=lambda x: x * c[0] + c[-1], c=c)

    attack(world, lambda w: w.c.rotate(), lambda w: w.c.append(9.0))


def test_rule_3_an_ordered_dict_is_reordered():
    def world():
        c = collections.OrderedDict(a=1.0, b=2.0)

        def fn(x):
            c.move_to_end("a")
            return x * sum(list(c.values())[:1]) + next(iter(c.values()))

        return World(fn=fn, c=c)

    attack(world, lambda w: w.c.move_to_end("a"), lambda w: w.c.move_to_end("b", last=False))


def test_rule_3_a_bytearray_is_written():
    def world():
        c = bytearray(b"abc")
        return World(fn=lambda x: x * c[0], c=c)

    attack(world, lambda w: w.c.__setitem__(0, 5), replayed=False)


def test_rule_3_an_array_is_read():
    def world():
        c = array.array("d", [1.0, 2.0])
        return World(
            fn=lambda x: x * c[0] + len(c) + sum(c), change=lambda: (c.append(3.0), operator.setitem(c, 0, 5.0))
        )

    attack(world, lambda w: w.change(), replayed=False)


def test_rule_3_a_memoryview_of_bytes_that_change():
    def world():
        b = bytearray(b"abc")
        c = memoryview(b)
        return World(fn=lambda x: x * c[0], b=b)

    attack(world, lambda w: w.b.__setitem__(0, 5), replayed=False)


def test_rule_3_memory_behind_ctypes():
    def world():
        numbers, real = (ctypes.c_int * 2)(1, 2), ctypes.c_double(2.0)
        w = World(fn=lambda x: x * numbers[0] + real.value)
        w.set_item = lambda v: operator.setitem(numbers, 0, v)
        w.set_value = lambda v: setattr(real, "value", v)
        return w

    attack(world, lambda w: w.set_item(7), lambda w: w.set_value(9.0))


def test_rule_3_a_dict_that_makes_what_is_missing():
    def world():
        class D(dict):
            def __missing__(s, k):
                s[k] = len(s) + 1.0
                return s[k]

        d = D()
        w = World(d=d, k="a")
        w.fn = lambda x: x * d[w.k]
        return w

    attack(
        world,
        lambda w: setattr(w, "k", "b"),
        lambda w: w.d.clear(),
        lambda w: setattr(type(w.d), "__missing__", lambda s, k: 0.0),
        lambda w: w.d.clear(),
    )


def test_rule_3_a_dict_with_ways_of_its_own():
    def world():
        class D(dict):
            def __getitem__(s, k):
                return dict.__getitem__(s, k) * 2

            def get(s, k, d=None):
                return 9.0

        d = D(a=1.0)
        return World(fn=lambda x: x * d["a"] + d.get("a") + dict.get(d, "a") + sum(d.values()), d=d)

    attack(
        world,
        lambda w: w.d.update(a=2.0),
        lambda w: delattr(type(w.d), "__getitem__"),
        lambda w: delattr(type(w.d), "get"),
    )


def test_rule_3_keys_of_a_sort_that_write():
    def world():
        l = [3.0, 1.0, 2.0]
        seen = []

        def fn(x):
            l.sort(key=lambda v: (seen.append(v), -v)[1])
            m = max(l, key=lambda v: seen.append(v) or v)
            return x * l[0] + m

        return World(fn=fn, l=l, seen=seen)

    attack(world, lambda w: w.l.append(5.0), lambda w: w.seen.clear())
