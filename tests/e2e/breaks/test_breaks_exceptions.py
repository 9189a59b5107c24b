"""Exceptions before, at and after a break: type, arguments, context, cause, and the user's lines in the traceback."""

from __future__ import annotations

import sys
import traceback

import pytest
import torch
from harness import PLAIN, World, check, rand

import stator


class Refused(Exception):
    """An exception of the program's, with arguments and attributes of its own."""

    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code


@stator.disable
def refuse(when, code=1):
    if when:
        raise Refused(code, "refused")
    return 2


def alternating(fn, *, raises=Refused, world=None):
    """Fine and failing calls in turn; what fails is compared by type, arguments, chain and traceback."""
    flags = [False, True, False, True, True, False, False]
    steps = [lambda w, n=n, flag=flag: w.fn(rand(n), flag) for n, flag in enumerate(flags)]
    return check(world or (lambda: World(fn=fn)), steps, expect=None, raises=raises)


def failing(fn, *, raises=Refused, unreplayed=()):
    """Every call fails; also tells whether later ones are replayed."""
    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    return check(lambda: World(fn=fn), steps, expect=None, raises=raises, unreplayed=unreplayed)


# ---- raised by the breaking instruction ---------------------------------------------------------


def test_nobody_catches_it():
    def fn(x, when):
        y = x + 1
        refuse(when)
        return y * 2

    seen = alternating(fn)
    assert seen.outcomes[-1] == "hit"


def test_the_function_catches_it():
    def fn(x, when):
        y = x + 1
        try:
            n = refuse(when)
        except Refused as error:
            return y * 3, error.code, error.args
        return y * n, 0, ()

    seen = alternating(fn)
    assert seen.outcomes[-2:] == ["hit", "hit"]


def test_finally_runs():
    def fn(x, when):
        y = x + 1
        try:
            refuse(when)
        finally:
            y = y * 2
            print("finally", when)
        return y - 3

    alternating(fn)


def test_a_caller_inside_catches_it():
    def fn(x, when):
        x = x + 1
        try:
            y = middle(x, when)
        except Refused as error:
            y = x * 5
            print("caught", error.code)
        return y - 3

    def middle(x, when):
        y = x * 2
        refuse(when, 7)
        return y * 4

    alternating(fn)


def test_an_error_of_c_code():
    def fn(x, when):
        y = x + 1
        number = int("not a number" if when else "3")
        stator.graph_break()
        text = print("between") or ("7", "seven")[when]
        try:
            number += int(text)
        except ValueError as error:
            return y * 2, str(error)
        return y * number, ""

    alternating(fn, raises=ValueError)


def test_item_of_a_tensor_with_many_elements():
    def fn(x, when):
        y = x + 1
        try:
            number = (y if when else y[0]).item()
        except RuntimeError as error:
            return y * 2, type(error).__name__
        return y * 3, type(number).__name__

    alternating(fn)


def test_the_wrong_exception_is_not_caught():
    def fn(x, when):
        y = x + 1
        try:
            refuse(when)
        except (KeyError, ValueError):
            y = y * 100
        return y * 2

    alternating(fn)


def test_an_operation_that_fails_after_the_break():
    def fn(x, when):
        y = x + 1
        print("between")
        other = torch.ones(3 if when else 4)
        return y + other

    alternating(fn, raises=RuntimeError)


def test_an_operation_that_fails_before_the_break():
    def fn(x, when):
        y = x + torch.ones(3 if when else 4)
        print("between")
        return y * 2

    alternating(fn, raises=RuntimeError)


# ---- raised by the program, around a break ------------------------------------------------------


def test_raised_after_the_break():
    def fn(x, when):
        y = x + 1
        print("between")
        if when:
            raise Refused(3, "after")
        return y * 2

    alternating(fn)


def test_raised_before_the_break():
    def fn(x, when):
        y = x + 1
        if when:
            raise Refused(3, "before")
        print("between")
        return y * 2

    alternating(fn)


def test_raised_in_a_callee_after_its_break():
    def fn(x, when):
        return outer(x + 1, when) * 2

    def outer(x, when):
        try:
            return inner(x, when)
        finally:
            print("outer")

    def inner(x, when):
        x = x * 3
        print("inner")
        if when:
            raise Refused(4, "inner")
        return x - 1

    alternating(fn)


def test_raised_by_the_data():
    def fn(x, when):
        y = x.abs() + 1
        if when:
            y = -y
        if y.sum() < 0:
            raise Refused(5, "negative")
        return y * 2

    alternating(fn)


# ---- context, cause, exc_info -------------------------------------------------------------------


def test_context_of_an_exception_raised_in_a_handler_after_a_break():
    def fn(x):
        y = x + 1
        try:
            raise KeyError("first")
        except KeyError:
            print("handling")
            y = y * 2
            raise Refused(1, "second")

    failing(fn, unreplayed=PLAIN)


def test_cause_and_suppressed_context():
    def fn(x):
        y = x + 1
        try:
            refuse(True)
        except Refused as error:
            print("handling", error.code)
            raise ValueError(len(y)) from error

    failing(fn, raises=ValueError, unreplayed=PLAIN)

    def suppressed(x):
        y = x + 1
        try:
            refuse(True)
        except Refused:
            print("handling")
            raise ValueError(len(y)) from None

    failing(suppressed, raises=ValueError, unreplayed=PLAIN)


def test_context_from_the_caller_outside():
    """The compiled function is called in a handler: what it raises has that exception as its context."""

    def fn(x):
        y = x + 1
        print("between")
        raise Refused(1, len(y))

    def step(w, seed):
        try:
            raise KeyError("outside")
        except KeyError:
            return w.fn(rand(seed))

    steps = [lambda w, seed=seed: step(w, seed) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None, raises=Refused, unreplayed=PLAIN)


def test_re_raising_after_a_break():
    def fn(x, when):
        y = x + 1
        try:
            refuse(when)
        except Refused:
            print("noted")
            y = y * 2
            raise
        return y

    alternating(fn)


def test_exc_info_in_a_handler_across_a_break():
    def fn(x):
        y = x + 1
        seen = [sys.exc_info()[0]]
        try:
            raise KeyError("inside")
        except KeyError:
            seen.append(sys.exc_info()[0])
            print("handling", sys.exc_info()[0].__name__)
            y = y * 2
            seen.append(str(sys.exc_info()[1]))
            try:
                raise ValueError("deeper")
            except ValueError as error:
                print("deeper")
                seen.append((str(error), repr(error.__context__), sys.exc_info()[0].__name__))
            seen.append(sys.exc_info()[0])
        seen.append(sys.exc_info()[0])
        print("after", sys.exc_info()[0])
        return y - 3, seen

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_what_the_breaking_call_sees_as_the_current_exception():
    @stator.disable
    def current():
        error = sys.exc_info()[1]
        return repr(error), traceback.extract_tb(error.__traceback__)[-1].name if error else None

    def fn(x):
        y = x + 1
        before = current()
        try:
            raise KeyError("inside")
        except KeyError:
            during = current()
            y = y * 2
        return y, before, during, current()

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_an_exception_kept_and_raised_later():
    def fn(x, when):
        y = x + 1
        kept = None
        try:
            refuse(when)
        except Refused as error:
            kept = error
        print("between")
        y = y * 2
        if kept is not None:
            raise kept
        return y

    alternating(fn)


def test_exception_groups():
    def fn(x, when):
        y = x + 1
        try:
            if when:
                raise ExceptionGroup("many", [Refused(1, "a"), KeyError("b")])
            print("fine")
        except* Refused as group:
            print("refused", len(group.exceptions))
            y = y * 2
        except* KeyError:
            print("key")
            y = y * 3
        return y

    alternating(fn)


def test_stop_iteration_and_base_exceptions():
    def fn(x, when):
        y = x + 1
        numbers = iter([1, 2])
        try:
            while True:
                y = y * next(numbers)
                print("next")
        except StopIteration:
            print("stop")
        return y - 3

    alternating(fn)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit], ids=lambda e: e.__name__)
def test_exceptions_that_are_no_errors(error):
    @stator.disable
    def interrupt(when):
        if when:
            raise error("now")

    log = []

    def fn(x, when):
        y = x + 1
        try:
            interrupt(when)
        finally:
            log.append(when)
        return y * 2

    compiled = stator.compile(fn, backend="eager")
    for n, when in enumerate([False, True, False, True, False]):
        if when:
            with pytest.raises(error, match="now"):
                compiled(rand(n), when)
        else:
            assert torch.equal(compiled(rand(n), when), (rand(n) + 1) * 2)
    assert log == [False, True, False, True, False]


# ---- tracebacks ---------------------------------------------------------------------------------


def test_the_traceback_shows_the_program_and_not_the_compiler():
    def fn(x, when):
        x = x + 1
        print("one")
        x = middle(x, when)
        return x * 2

    def middle(x, when):
        x = x + 3
        print("two")
        x = inner(x, when)
        return x * 4

    def inner(x, when):
        x = x + 5
        print("three")
        if when:
            raise Refused(6, "deep")
        return x * 6

    def lines(call):
        with pytest.raises(Refused) as caught:
            call(rand(1), True)
        frames = traceback.extract_tb(caught.value.__traceback__)
        return [(frame.name, frame.lineno, frame.line) for frame in frames if frame.filename == __file__]

    compiled = stator.compile(fn, backend="eager")
    wanted = lines(fn)[1:]
    assert [name for name, _, _ in wanted] == ["fn", "middle", "inner"]
    for _ in range(4):
        assert lines(compiled)[-3:] == wanted
        assert torch.equal(compiled(rand(2), False), fn(rand(2), False))


def test_notes_and_attributes_survive():
    def fn(x, when):
        y = x + 1
        try:
            refuse(when, 9)
        except Refused as error:
            error.add_note("a note")
            error.extra = 5
            print("noted")
            raise
        return y

    compiled = stator.compile(fn, backend="eager")
    for n, when in enumerate([True, False, True, True]):
        if not when:
            compiled(rand(n), when)
            continue
        with pytest.raises(Refused) as caught:
            compiled(rand(n), when)
        assert (caught.value.code, caught.value.extra, caught.value.__notes__) == (9, 5, ["a note"])
