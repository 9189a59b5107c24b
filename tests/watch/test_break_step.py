"""From break to break in C, by hand: no torch, no pytest, so that every CPython and every sanitizer can run it."""

from __future__ import annotations

import gc
import threading
import types
import weakref
from typing import Any

from stator import _native as n

from test_engine import Without, make, root  # isort: skip


class Chain:
    """A function of one argument in three segments: each adds one, each step between them calls `between`."""

    def __init__(self, between=lambda value: value, last=lambda values: values[0] + 1) -> None:
        self.count, self.handed, self.failures = n.Count(), [], []
        self.entries = [object() for _ in range(3)]
        self.tables = [n.EntryTable() for _ in range(3)]
        self.counts = [n.Count() for _ in range(3)]

        def function(value):
            return between  # a closure: steps and continuations share it

        def step(value):
            return 0, between(value)

        self.targets = [n.ResumeTarget(number, function.__code__, {}) for number in (1, 2)]
        self.steps = [n.BreakStep(step.__code__, {}, (target,)) for target in self.targets]
        self.function = function
        self.replays = [lambda values: (values[0] + 1,)] * 2 + [last]
        for number in range(3):
            self.publish(number)
        for target, table in zip(self.targets, self.tables[1:], strict=True):
            target.open(table)
        self.compiled = n.Compiled(self.fallback, function, self.tables[0], self.count, None, self.failed, self.go_on)

    def publish(self, number: int) -> None:
        table, entry = self.tables[number], self.entries[number]
        step = self.steps[number] if number < 2 else None
        table.clear()
        table.add(entry)
        guards = make(root(checks=[(n.CHECK_TYPE, n.FIXED, int)]), root(number=1))
        table.publish(entry, guards, self.replays[number], step, self.counts[number])

    def fallback(self, value):
        return "fallback"

    def failed(self, entry, error, function, slots):
        self.failures.append((self.entries.index(entry), type(error), slots))
        return function(*slots)

    def go_on(self, pending):
        function, slots = pending.take()
        self.handed.append((pending.target.point, type(function), slots))
        return "handed over"

    @property
    def hits(self) -> list[int]:
        return [count.value for count in (self.count, *self.counts)]


class On(Without):
    """C code may use recordings in here."""

    def __enter__(self) -> None:
        super().__enter__()
        n.set_quick(True, {}, object)

    def __exit__(self, *exception: object) -> None:
        n.set_quick(False, {}, object)
        super().__exit__(*exception)


def test_a_chain_counts_one_hit() -> None:
    with On():
        chain = Chain()
        assert [chain.compiled(value) for value in (1, 2, 1)] == [4, 5, 4]
        assert chain.hits == [3, 3, 3, 3] and not chain.handed and not chain.failures


def test_a_step_may_give_back_a_constant() -> None:
    with On():
        chain = Chain()
        chain.steps[0] = n.BreakStep((lambda value: (0, 7)).__code__, {}, tuple(chain.targets[:1]))
        chain.publish(0)
        assert [chain.compiled(1) for _ in range(3)] == [9, 9, 9]


def test_a_miss_in_the_middle_is_handed_over() -> None:
    with On():
        seen: list[Any] = []
        chain = Chain(lambda value: seen.append(value) or (value if len(seen) != 2 else "text"))
        assert chain.compiled(1) == "handed over"
        assert chain.handed == [(2, types.FunctionType, ["text"])]
        assert chain.hits == [0, 1, 1, 0]  # whoever goes on counts the call
        assert chain.compiled(1) == 4 and chain.hits == [1, 2, 2, 1]


def test_what_is_not_open_or_has_no_replay_is_handed_over() -> None:
    with On():
        chain = Chain()
        chain.replays[1] = None
        chain.publish(1)
        assert chain.compiled(1) == "handed over" and chain.handed == [(1, types.FunctionType, [2])]
        closed = n.ResumeTarget("closed", chain.function.__code__, {})
        chain.steps[0] = n.BreakStep((lambda value: (0, value)).__code__, {}, (closed,))
        chain.publish(0)
        assert chain.compiled(1) == "handed over" and chain.handed[1] == ("closed", types.FunctionType, [2])
        assert chain.hits == [0, 2, 0, 0]


def test_somebody_begins_to_listen_in_the_middle() -> None:
    with On():
        readers: dict[Any, Any] = {}
        n.set_quick(True, readers, "hits")
        chain = Chain(lambda value: readers.update(hits=()) or value)
        assert chain.compiled(1) == "handed over" and chain.hits == [0, 1, 0, 0]
        assert chain.compiled(1) == "fallback"


def test_exceptions() -> None:
    def wrong(value):
        raise KeyError(value)

    with On():
        chain = Chain(wrong)  # steps raise nothing, except what may come at any time
        try:
            chain.compiled(1)
            raise AssertionError
        except KeyError as error:
            assert error.args == (2,)
        chain = Chain(last=lambda values: 1 / 0)
        assert chain.compiled(1) is not None
        assert chain.failures == [(2, ZeroDivisionError, (3,))] and chain.hits == [1, 1, 1, 1]
        chain = Chain()
        for answer in (lambda value: value, lambda value: (), lambda value: (7, value), lambda value: ("a",)):
            chain.steps[0] = n.BreakStep(answer.__code__, {}, tuple(chain.targets[:1]))
            chain.publish(0)
            try:
                chain.compiled(1)
                raise AssertionError(answer)
            except SystemError:
                pass


def test_the_shelves_are_cleared_in_the_middle() -> None:
    with On():

        def clear(value):
            for number, table in enumerate(chain.tables):
                table.clear()
                if value == 12:
                    chain.publish(number)
            gc.collect()
            return value

        chain = Chain(clear)
        assert chain.compiled(1) == "handed over" and chain.handed[0][0] == 1
        assert chain.compiled(1) == "fallback"
        for number in range(3):
            chain.publish(number)
        assert chain.compiled(11) == "handed over" and chain.handed[1][0] == 2


def test_recursion() -> None:
    with On():
        chain = Chain(lambda value: chain.compiled(100) + value if value == 2 else value)
        assert chain.compiled(1) == 103 + 2 + 2
        assert chain.hits == [2, 2, 2, 2]


def test_what_was_let_go_of_dies() -> None:
    class Thing:
        pass

    dead: list[bool] = []
    refs: list[Any] = []

    def between(value):
        thing = Thing()
        dead.extend(ref() is None for ref in refs)
        refs.append(weakref.ref(thing))
        return thing

    with On():
        chain = Chain(between)
        for number in range(3):
            chain.replays[number] = lambda values: (1,)
            chain.tables[number].clear()
            chain.tables[number].add(chain.entries[number])
            step = chain.steps[number] if number < 2 else None
            chain.tables[number].publish(chain.entries[number], make(root()), lambda values: (1,), step, n.Count())
        assert chain.compiled(1) == (1,) and dead == [True]
        assert refs[-1]() is None


def test_it_is_collected() -> None:
    with On():
        chain = Chain()
        assert chain.compiled(1) == 4
        refs = [weakref.ref(chain.compiled), weakref.ref(chain.function)]
        del chain
        gc.collect()
        assert [ref() for ref in refs] == [None, None]


def test_threads() -> None:
    with On():
        chain = Chain()
        wrong: list[Any] = []

        def work(number: int) -> None:
            for k in range(2000):
                result = chain.compiled(number)
                if result not in (number + 3, "handed over", "fallback"):
                    wrong.append(result)
                if number == 0 and k % 20 == 0:
                    chain.publish(k % 3)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and chain.count.value > 0
