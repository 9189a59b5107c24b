"""C code that changes outside objects: every replay must make the change again, or the function stays plain.

Each program changes something of the world in its own way. Before every call the world is put back in order.
"""

from __future__ import annotations

import array
import bisect
import functools
import heapq
import io
import itertools
import operator
import queue
import random
from collections import Counter, OrderedDict, deque

import pytest
import torch
from harness import World, check, rand


class Thing:
    level = 0

    def __init__(self):
        self.value = None


class Slotted:
    __slots__ = ("value",)


class Log(list):
    def append(self, item):
        super().append(item)
        super().append("logged")


class State(World):
    """Objects of every kind that a program may change."""

    def fill(self):
        self.items = [3, 1, 2]
        self.table = {"b": 1, "a": 2}
        self.names = {"x"}
        self.queue = deque([1, 2, 3], maxlen=4)
        self.ordered = OrderedDict(a=1, b=2)
        self.counts = Counter("ab")
        self.thing, self.slotted = Thing(), Slotted()
        self.cls = type("Local", (Thing,), {})
        self.log = Log()
        self.tensor = torch.zeros(4)
        self.raw = bytearray(b"abcd")
        self.numbers = array.array("d", [1.0, 2.0])
        self.counter = itertools.count(5)
        self.text = io.StringIO()
        self.fifo = queue.Queue()


def use(*effects):
    """Evaluate some expressions for their effects."""
    return len(effects)


def for_each(iterator):
    for _ in iterator:
        pass
    return 1


WRITERS = {
    "bound append": lambda s, x: use(*[append(x * n) for append in [s.items.append] for n in range(2)]),
    "unbound append": lambda s, x: use(list.append(s.items, x), dict.__setitem__(s.table, "new", x)),
    "map of append": lambda s, x: for_each(map(s.items.append, [x, x + 1])),
    "map of setitem": lambda s, x: for_each(map(s.table.__setitem__, "pq", [x, x + 1])),
    "map of add": lambda s, x: for_each(map(s.names.add, ["y", "z"])),
    "deque of map": lambda s, x: len(deque(map(s.items.append, [x, 1]), maxlen=0)) + 1,
    "list of map of pop": lambda s, x: sum(map(s.table.pop, ["a", "b"])),
    "comprehension of pops": lambda s, x: sum([s.items.pop() for _ in range(2)]),
    "partial of append": lambda s, x: use(functools.partial(s.items.append, x)()),
    "operator setitem": lambda s, x: use(operator.setitem(s.table, "a", x), operator.setitem(s.items, 0, x)),
    "operator delitem": lambda s, x: use(operator.delitem(s.table, "a"), operator.delitem(s.items, 0)),
    "operator iadd": lambda s, x: len(operator.iadd(s.items, [x])),
    "operator ior": lambda s, x: len(operator.ior(s.table, {"n": x})),
    "methodcaller": lambda s, x: use(operator.methodcaller("append", x)(s.items)),
    "extend by iterator": lambda s, x: use(s.items.extend(x * n for n in range(2)), s.items.extend(iter([1, x]))),
    "extend by itself": lambda s, x: use(s.items.extend(s.items), s.items.append(s.items)),
    "slice assignment": lambda s, x: use(s.items.__setitem__(slice(0, 2), [x, x, x])),
    "sort": lambda s, x: use(s.items.sort(), s.items.reverse()),
    "sort by key": lambda s, x: use(s.items.sort(key=lambda n: -n)),
    "sort by c key": lambda s, x: use(s.items.sort(key=operator.neg)),
    "insort": lambda s, x: use(s.items.sort(), bisect.insort(s.items, 2.5)),
    "heap": lambda s, x: use(heapq.heapify(s.items), heapq.heappush(s.items, 0)) + heapq.heappop(s.items),
    "shuffle": lambda s, x: use(random.shuffle(s.items)),
    "dict update": lambda s, x: use(s.table.update(a=x, c=[x]), s.table.update([("d", x)])),
    "dict update from self": lambda s, x: use(s.table.update(s.table)),
    "dict pop and popitem": lambda s, x: s.table.pop("a") + len(s.table.popitem()),
    "dict clear": lambda s, x: use(s.table.clear(), s.items.clear(), s.names.clear()),
    "dict order": lambda s, x: use(s.table.__setitem__("b", s.table.pop("b"))),
    "set methods": lambda s, x: use(s.names.add("y"), s.names.update("pq"), s.names.discard("x"), s.names.remove("p")),
    "set operators": lambda s, x: use(s.names.__ior__({"n"}), s.names.__isub__({"x"})),
    "deque methods": lambda s, x: use(s.queue.appendleft(x), s.queue.rotate(2), s.queue.extend([x, 1]), s.queue.pop()),
    "ordered dict": lambda s, x: use(s.ordered.move_to_end("a"), s.ordered.update(c=x), s.ordered.popitem(last=False)),
    "counter": lambda s, x: use(s.counts.update("bc"), s.counts.subtract("a")),
    "setattr": lambda s, x: use(setattr(s.thing, "value", x), setattr(s.thing, "fresh", [x])),
    "object setattr": lambda s, x: use(object.__setattr__(s.thing, "value", x)),
    "map of setattr": lambda s, x: for_each(map(setattr, [s.thing], ["value"], [x])),
    "delattr": lambda s, x: use(delattr(s.thing, "value")),
    "instance dict": lambda s, x: use(s.thing.__dict__.update(value=x, more=1), vars(s.thing).pop("more")),
    "slot": lambda s, x: use(setattr(s.slotted, "value", x)),
    "slot descriptor": lambda s, x: use(Slotted.value.__set__(s.slotted, x)),
    "class attribute": lambda s, x: use(setattr(s.cls, "level", x), setattr(s.cls, "fresh", 1)),
    "class attribute by type": lambda s, x: use(type.__setattr__(s.cls, "level", x)),
    "list subclass": lambda s, x: use(s.log.append(x)),
    "tensor setitem": lambda s, x: use(operator.setitem(s.tensor, 0, x.sum()), s.tensor.__setitem__(1, 2.0)),
    "tensor in place by operator": lambda s, x: use(operator.iadd(s.tensor, x), operator.imul(s.tensor, 2)),
    "tensor out": lambda s, x: use(torch.add(x, 1, out=s.tensor)),
    "map of in place": lambda s, x: for_each(map(s.tensor.add_, [x, 1])),
    "foreach": lambda s, x: use(torch._foreach_add_([s.tensor, s.tensor.view(2, 2)[0]], 1.0)),
    "bytearray": lambda s, x: use(s.raw.extend(b"e"), s.raw.__setitem__(0, 65)),
    "memory view": lambda s, x: use(memoryview(s.raw).__setitem__(0, 66)),
    "array": lambda s, x: use(s.numbers.append(3.0), s.numbers.__setitem__(0, 9.0)),
    "outside counter": lambda s, x: next(s.counter) + next(s.counter),
    "zip with a counter": lambda s, x: sum(n for _, n in zip("ab", s.counter, strict=False)),
    "text": lambda s, x: s.text.write("written"),
    "queue": lambda s, x: use(s.fifo.put(x), s.fifo.put(1)) + s.fifo.qsize(),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_change_is_made_on_every_call(name):
    def world():
        state = State()

        def fn(x):
            return x * WRITERS[name](state, x)

        state.fn = fn
        state.fill()
        return state

    def call(seed):
        def run(w):
            random.seed(seed)
            w.fill()
            return w.fn(rand(seed))

        return run

    def call_in_the_world_left_behind(w):
        return w.fn(rand(4))

    check(
        world,
        [call(1), call(2), call(3), call_in_the_world_left_behind],
        expect=None,
        observe=lambda w: (w.text.getvalue(), repr(w.counter), w.numbers.tolist(), list(w.fifo.queue)),
        raises=LEFT_BEHIND.get(name, ()),
        unreplayed="outside-iterator" if name == "zip with a counter" else "unknown-callable",
    )


LEFT_BEHIND = {
    "list of map of pop": KeyError,
    "comprehension of pops": IndexError,
    "operator delitem": KeyError,
    "dict pop and popitem": KeyError,
    "delattr": AttributeError,
}
