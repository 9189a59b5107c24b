"""Exceptions: raised and caught inside, cleaned up after, and those that leave the function.

PYTEST_DONT_REWRITE: the `assert` statements in the programs below must stay what they are.
"""

from __future__ import annotations

import contextlib

import torch
from harness import PLAIN, RECORDED, World, check, check_stateless, rand


class TooBig(Exception):
    def __init__(self, size, limit):
        super().__init__(f"{size} is over {limit}")
        self.size, self.limit = size, limit


def refuse(x, limit):
    if x.shape[0] > limit:
        raise TooBig(x.shape[0], limit)
    return x + 1


def test_raised_and_caught():
    def fn(x):
        try:
            return refuse(x, 3)
        except TooBig as error:
            return x * error.size, str(error)

    check_stateless(fn)


def test_try_except_else_finally_in_order():
    def fn(x, limit):
        steps = []
        try:
            steps.append("try")
            y = refuse(x, limit)
        except TooBig:
            steps.append("except")
            y = x * 2
        else:
            steps.append("else")
            y = y * 3
        finally:
            steps.append("finally")
            x = x - 1
        return x + y, steps

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), 3),
            lambda w: w.fn(rand(2), 3),
            lambda w: w.fn(rand(3), 9),
            lambda w: w.fn(rand(4), 9),
        ],
        expect="miss hit miss hit",
    )


def test_a_missing_key_is_guarded():
    def fn(x, table):
        try:
            scale = table["scale"]
        except KeyError as error:
            scale = len(error.args[0])
        return x * scale

    def fill(w):
        w.table["scale"] = 3.0
        return w.fn(rand(3), w.table)

    check(
        lambda: World(fn=fn, table={}),
        [lambda w: w.fn(rand(1), w.table), lambda w: w.fn(rand(2), w.table), fill],
        expect="miss hit miss",
    )


def test_a_missing_attribute_is_guarded():
    class Holder:
        pass

    def fn(x, holder):
        try:
            return x * holder.scale
        except AttributeError:
            return x - 1

    def fill(w):
        w.holder.scale = 3.0
        return w.fn(rand(3), w.holder)

    check(
        lambda: World(fn=fn, holder=Holder()),
        [lambda w: w.fn(rand(1), w.holder), lambda w: w.fn(rand(2), w.holder), fill],
        expect="miss hit miss",
    )


def test_an_index_that_is_out_of_range_is_guarded():
    def fn(x, items):
        try:
            return x + items[2]
        except IndexError:
            return x * len(items)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), [rand(2)]),
            lambda w: w.fn(rand(3), [rand(4)]),
            lambda w: w.fn(rand(5), [rand(6), rand(7), rand(8)]),
        ],
        expect="miss hit miss",
    )


def test_several_handlers_and_a_tuple_of_types():
    def fn(x, kind):
        try:
            if kind == 0:
                raise ValueError(1)
            if kind == 1:
                {}["absent"]
            if kind == 2:
                int("two")
            1 / (kind - 3)
        except ValueError:
            return x + 1
        except (KeyError, ZeroDivisionError) as error:
            return x + 2, type(error).__name__
        return x + 3

    check(
        lambda: World(fn=fn),
        [lambda w, k=k: w.fn(rand(k), k) for k in (0, 0, 1, 2, 3, 4, 3)],
        expect="miss hit miss miss miss miss hit",
    )


def test_nested_handlers_reraise_and_chain():
    def fn(x):
        trail = []
        try:
            try:
                refuse(x, 1)
            except TooBig as error:
                trail.append(str(error))
                raise RuntimeError("outer") from error
            finally:
                trail.append("inner finally")
        except RuntimeError as error:
            trail.append(type(error.__cause__).__name__)
            try:
                raise
            except RuntimeError as again:
                trail.append(again is error)
        return x * len(trail), trail

    check_stateless(fn)


def test_finally_overrides_the_way_out():
    def leave(x):
        try:
            return x + 1
        finally:
            x = x * 100

    def swallow(x):
        for n in range(3):
            try:
                if n == 1:
                    continue
                x = x + n
            finally:
                x = x * 2
        return x

    check_stateless(lambda x: (leave(x), swallow(x)))


def test_exceptions_through_several_frames():
    def world():
        depths = []

        def level(x, n):
            try:
                return refuse(x, 0) if n == 0 else level(x + 1, n - 1)
            finally:
                depths.append(n)

        def fn(x):
            with contextlib.suppress(TooBig):
                level(x, 3)
            return x * len(depths)

        return World(fn=fn, depths=depths)

    def call(seed):
        def run(w):
            w.depths.clear()
            return w.fn(rand(seed))

        return run

    check(world, [call(1), call(2), call(3)], expect="miss hit hit")


def test_exception_groups():
    def fn(x):
        caught = []
        try:
            raise ExceptionGroup("both", [ValueError("a"), KeyError("b")])
        except* ValueError as group:
            caught += [str(e) for e in group.exceptions]
        except* KeyError as group:
            caught += [str(e) for e in group.exceptions]
        return x * len(caught), caught

    check_stateless(fn)


def test_assertions():
    def fn(x, limit):
        try:
            assert x.shape[0] < limit, f"over {limit}"
        except AssertionError as error:
            return x - 1, str(error)
        return x + 1

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), 3), lambda w: w.fn(rand(2), 3), lambda w: w.fn(rand(3), 5)],
        expect="miss hit miss",
    )


def test_an_error_of_a_tensor_operation_is_caught():
    def fn(x, y):
        try:
            return x @ y
        except RuntimeError:
            return x * 2

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 2, 3), rand(2, 2, 3)),
            lambda w: w.fn(rand(3, 2, 3), rand(4, 2, 3)),
            lambda w: w.fn(rand(5, 2, 3), rand(6, 3, 2)),
        ],
        expect=None,
    )


def test_an_exception_carries_a_tensor():
    class Found(Exception):
        pass

    def search(x):
        for n in range(5):
            if n == 3:
                raise Found(x * n, n)

    def fn(x):
        try:
            search(x)
        except Found as found:
            tensor, n = found.args
            return tensor + n
        return x

    check_stateless(fn)


# ---- exceptions that leave the function ---------------------------------------------------------


def test_an_exception_escapes_every_time():
    def fn(x):
        return refuse(x * 2, 2)

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        raises=TooBig,
        unreplayed=PLAIN,
    )


def test_an_exception_escapes_for_some_arguments_only():
    def fn(x, limit):
        y = x + 1
        return refuse(y, limit)

    check(
        lambda: World(fn=fn),
        [lambda w, n=n: w.fn(rand(1), n) for n in (9, 9, 3, 3, 9)],
        expect=None,
        raises=TooBig,
    )


def test_the_effects_before_an_escaping_exception_stay():
    def fn(x, log, limit):
        log.append(x * 2)
        x.add_(1)
        try:
            return refuse(x, limit)
        finally:
            log.append("left")

    def call(seed, limit):
        def run(w):
            w.x = rand(seed)
            return w.fn(w.x, w.log, limit)

        return run

    check(
        lambda: World(fn=fn, log=[], x=None),
        [call(1, 3), call(2, 3), call(3, 9), call(4, 3)],
        expect=None,
        raises=TooBig,
        unreplayed=[PLAIN, RECORDED],
    )


def test_the_cause_and_context_of_an_escaping_exception():
    def fn(x, chained):
        try:
            refuse(x.relu(), 1)
        except TooBig as error:
            if chained:
                raise ValueError("chained") from error
            raise KeyError("in context")  # noqa: B904  the implicit context is the point

    check(
        lambda: World(fn=fn),
        [lambda w, c=c: w.fn(rand(1), c) for c in (True, False, True)],
        expect=None,
        raises=(ValueError, KeyError),
        unreplayed=PLAIN,
    )


def test_an_error_of_a_tensor_operation_escapes():
    def fn(x, y):
        z = x * 2
        return z @ y

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 2, 3), rand(2, 3, 2)),
            lambda w: w.fn(rand(1, 2, 3), rand(2, 2, 3)),
            lambda w: w.fn(rand(3, 2, 3), rand(4, 2, 3)),
            lambda w: w.fn(rand(5, 2, 3), rand(6, 3, 2)),
        ],
        expect=None,
        raises=RuntimeError,
    )


def test_an_error_that_depends_on_the_values():
    def fn(x, index):
        return x[index] * 2

    def call(*index):
        return lambda w: w.fn(rand(1), torch.tensor(index))

    check(lambda: World(fn=fn), [call(0, 1), call(2, 3), call(1, 9), call(3, 0)], expect=None, raises=IndexError)


def test_a_recursion_without_end():
    def fn(x):
        return fn_again(x + 1)

    def fn_again(x):
        return fn_again(x)

    def call(w):
        try:
            return w.fn(rand(1))
        except RecursionError as error:
            return type(error)  # the message depends on which call was one too many

    check(lambda: World(fn=fn), [call, call, call], expect=None, unreplayed=PLAIN)


def test_after_an_exception_the_function_still_compiles():
    def fn(x, limit):
        return refuse(x, limit) * 2

    seen = check(
        lambda: World(fn=fn),
        [lambda w, n=n: w.fn(rand(n), n) for n in (3, 9, 9, 9)],
        expect=None,
        raises=TooBig,
    )
    assert seen.outcomes[1:] == ["miss", "hit", "hit"]
