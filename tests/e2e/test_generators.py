"""Comprehensions, generators and hand-made iterators, suspended and resumed inside a recording."""

from __future__ import annotations

import contextlib

import torch
from harness import World, check, check_stateless, rand


def with_empty_log(seed):
    def run(w):
        w.log.clear()
        return w.fn(rand(seed))

    return run


def test_comprehensions_of_every_kind():
    def fn(x):
        squares = [p * p for p in x]
        table = {f"p{i}": p + 1 for i, p in enumerate(x)}
        sizes = {p.dim() for p in (x, x.reshape(2, 2), x.sum())}
        nested = [[a * b for b in x[:2]] for a in x[2:]]
        flat = [a + b for a in x[:2] for b in x[2:] if a is not b]
        return squares, table, sizes, nested, flat

    check_stateless(fn)


def test_a_comprehension_over_an_outside_list_with_a_condition():
    def fn(x, rows):
        return [x * row["w"] for row in rows if row["on"]]

    def rows(seed, *flags):
        return [{"w": rand(seed + i), "on": flag} for i, flag in enumerate(flags)]

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), rows(2, True, False, True)),
            lambda w: w.fn(rand(5), rows(6, True, False, True)),
            lambda w: w.fn(rand(9), rows(10, True, True, True)),
            lambda w: w.fn(rand(2), rows(3, True, False, True)),
        ],
        expect="miss hit miss hit",
    )


def test_generator_expressions():
    def fn(x):
        total = sum(p * 2 for p in x)
        biggest = max(len(s) for s in ("a", "bbb"))
        joined = torch.stack(list(p + i for i, p in enumerate(x)))
        return total, x * biggest, joined, tuple(p for p in x[:2])

    check_stateless(fn)


def test_a_generator_function():
    def halves(x):
        while x.numel() > 1:
            x = x[: x.numel() // 2]
            yield x

    def fn(x):
        return [h * 2 for h in halves(x)], next(halves(x + 1))

    check_stateless(fn)


def test_a_generator_that_is_left_unfinished():
    def count(x):
        n = 0
        while True:
            yield x + n
            n += 1

    def fn(x):
        steps = count(x)
        first, second = next(steps), next(steps)
        for step in steps:
            return first, second, step
        return None

    check_stateless(fn)


def test_yield_from():
    def inner(x):
        yield x + 1
        yield x + 2
        return x * 10

    def outer(x):
        returned = yield from inner(x)
        yield returned
        yield from [x, x * 2]

    check_stateless(lambda x: list(outer(x)))


def test_send_throw_and_close():
    def world():
        log = []

        def averager():
            total, count = torch.zeros(4), 0
            try:
                while True:
                    try:
                        value = yield total / max(count, 1)
                        total, count = total + value, count + 1
                    except ValueError as error:
                        total = total * int(str(error))
            finally:
                log.append("closed")

        def fn(x):
            running = averager()
            next(running)
            results = [running.send(x), running.send(x * 3), running.throw(ValueError("2")), running.send(x)]
            running.close()
            return results

        return World(fn=fn, log=log)

    check(world, [with_empty_log(1), with_empty_log(2), with_empty_log(3)], expect="miss hit hit")


def test_the_value_of_stop_iteration():
    def steps(x):
        yield x
        return x * 7

    def fn(x):
        running = steps(x)
        next(running)
        try:
            next(running)
        except StopIteration as stop:
            return stop.value
        return next(running, None)

    check_stateless(fn)


def test_generators_that_run_in_turns():
    def ping(x, other):
        for n in range(3):
            x = x + n
            other.append(x)
            yield x

    def fn(x):
        left, right = [], []
        for a, b in zip(ping(x, right), ping(x * 2, left), strict=True):
            x = x + a - b
        return x, left, right

    check_stateless(fn)


def test_a_generator_reads_outside_state_when_it_is_resumed():
    def world():
        settings = {"scale": 2.0}

        def scaled(parts):
            for part in parts:
                yield part * settings["scale"]

        return World(fn=lambda x: list(scaled(x)), settings=settings)

    def rescale(w):
        w.settings["scale"] = 3.0
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), rescale], expect="miss hit miss")


def test_an_iterator_class():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    def fn(x, start):
        return [x * n for n in Countdown(start)], list(iter([1, 2].pop, 1))

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), 3), lambda w: w.fn(rand(2), 3), lambda w: w.fn(rand(3), 2)],
        expect="miss hit miss",
    )


def test_iterating_by_the_old_protocol():
    class Rows:
        def __init__(self, x):
            self.x = x

        def __getitem__(self, i):
            if i >= 3:
                raise IndexError(i)
            return self.x * i

    check_stateless(lambda x: [row + 1 for row in Rows(x)])


def test_a_generator_based_context_manager():
    def world():
        log = []

        @contextlib.contextmanager
        def noted(name):
            log.append(f"enter {name}")
            try:
                yield len(name)
            finally:
                log.append(f"exit {name}")

        def fn(x):
            with noted("ab") as n, noted("cde") as m:
                return x * n + m

        return World(fn=fn, log=log)

    check(world, [with_empty_log(1), with_empty_log(2), with_empty_log(3)], expect="miss hit hit")


def test_a_generator_from_outside_is_consumed_only_once():
    def fn(x, source):
        return x * next(source)

    check(
        lambda: World(fn=fn, source=(n for n in (2, 3, 5, 7))),
        [lambda w, s=s: w.fn(rand(s), w.source) for s in (1, 2, 3)],
        expect=None,
        observe=lambda w: w.source.gi_frame.f_lasti,
    )


def test_an_iterator_from_outside_moves_on():
    def fn(x, source):
        for n in source:
            return x * n
        return x

    check(
        lambda: World(fn=fn, source=iter([2, 3])),
        [lambda w, s=s: w.fn(rand(s), w.source) for s in (1, 2, 3)],
        expect=None,
        unreplayed="outside-iterator",
    )


def test_a_generator_is_returned():
    def fn(x):
        y = x * 2
        return (y + n for n in range(3))

    check(
        lambda: World(fn=fn), [lambda w, s=s: list(w.fn(rand(s))) for s in (1, 2, 3)], expect=None, unreplayed="rebuild"
    )
