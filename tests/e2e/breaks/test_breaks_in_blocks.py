"""Breaks inside loops, `with`, `try`, comprehensions' callers, and many of them in one function."""

from __future__ import annotations

import contextlib
import threading
import types
import warnings

import pytest
import torch
from harness import PLAIN, World, check, rand

import stator

LOCK = threading.Lock()


def calls(count=4):
    return [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(count)]


def replays(fn, graphs, breaks, world=None):
    """Four calls, recorded once; as many graphs and breaks as said."""
    return check(world or (lambda: World(fn=fn)), calls(), expect="miss hit hit hit", graphs=graphs, breaks=breaks)


# ---- several in a row ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_k_breaks_are_k_plus_1_graphs_after_one_call(count):
    lines = [f"    x = x + {n}\n    print({n}, x.shape)\n" for n in range(count)]
    namespace = {}
    exec("def fn(x):\n" + "".join(lines) + "    return x * 2\n", namespace)
    replays(namespace["fn"], count + 1, ["call-print"] * count)


def test_breaks_of_different_kinds():
    def fn(x):
        y = x + 1
        print("one")
        y = y * 2
        stator.graph_break()
        y = y - 3
        first = y[0].item()
        return y / 2, first > 1e9

    replays(fn, 4, ["call-print", "user-graph-break", "tensor-item"])


def test_a_break_before_anything_and_after_everything():
    def fn(x):
        print("start")
        y = x + 1
        print("end")
        return y

    replays(fn, 1, ["call-print"] * 2)


def test_breaks_with_nothing_between_them():
    def fn(x):
        y = x + 1
        print("one")
        print("two")
        print("three")
        return y * 2

    replays(fn, 2, ["call-print"] * 3)


def test_only_breaks_and_no_operation():
    def fn(x):
        print("one")
        print(x.shape)
        return x

    replays(fn, 0, ["call-print"] * 2)


def test_values_on_the_stack_of_every_shape():
    def fn(x):
        a = x + 1
        pair = (a * 2, [a - 1, noisy("in a list")], {"key": noisy("in a dict"), "tensor": a / 2})
        text = f"{pair[1][1]} and {noisy('in a text')}"
        total = a.sum() + noisy(1) * a.mean() + (noisy(2) if noisy(0) else a.max()) * 3
        return pair, text, total, max(noisy(3), noisy(4))

    def noisy(value):
        print(value)
        return value

    check(lambda: World(fn=fn), calls(), expect="miss hit hit hit", graphs=5)


def test_the_result_of_the_breaking_call_is_used():
    def fn(x, log):
        y = x + 1
        number = stamp(log)
        return y * number, number

    @stator.disable
    def stamp(log):
        log.append(len(log))
        return 3

    four = [lambda w, seed=seed: w.fn(rand(seed), w.log) for seed in range(4)]
    check(lambda: World(fn=fn, log=[]), four, expect="miss hit hit hit", graphs=2, breaks=["disabled-function"])


def test_the_result_of_the_breaking_call_differs_each_time():
    def fn(x, log):
        y = x + 1
        number = stamp(log)
        return y * 2, number

    @stator.disable
    def stamp(log):
        log.append(len(log))
        return f"number {len(log)}"

    four = [lambda w, seed=seed: w.fn(rand(seed), w.log) for seed in range(4)]
    check(lambda: World(fn=fn, log=[]), four, expect="miss hit hit hit", graphs=2)


# ---- with ---------------------------------------------------------------------------------------


class Manager:
    """A context manager that tells what happens to it, and can swallow exceptions."""

    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, cls, error, trace):
        self.log.append(("exit", None if cls is None else cls.__name__, str(error)))
        return self.swallows


def logged(fn, raises=(), unreplayed=()):
    four = [lambda w, seed=seed: w.fn(rand(seed), w.log) for seed in range(4)]
    return check(lambda: World(fn=fn, log=[]), four, expect=None, raises=raises, unreplayed=unreplayed)


def test_a_context_manager_of_the_program_s():
    def fn(x, log):
        with Manager(log) as manager:
            y = x + 1
            print("inside", manager.swallows)
            y = y * 2
        return y - 3

    seen = logged(fn)
    assert seen.outcomes == ["miss", "hit", "hit", "hit"]
    assert len(seen.graphs) == 2


def test_nested_context_managers():
    def fn(x, log):
        with Manager(log) as a, Manager(log) as b:
            y = x + 1
            print("inside")
            with Manager(log):
                y = y * 2
                print("deeper")
                log.append(a is b)
            y = y - 3
        return y

    logged(fn)


def test_entering_and_leaving_break():
    class Noisy(Manager):
        def __enter__(self):
            print("enter")
            return super().__enter__()

        def __exit__(self, *exception):
            print("exit")
            return super().__exit__(*exception)

    def fn(x, log):
        y = x + 1
        with Noisy(log):
            y = y * 2
        return y - 3

    logged(fn)


def test_an_exception_after_a_break_is_swallowed():
    def fn(x, log):
        y = x + 1
        with Manager(log, swallows=True):
            print("inside")
            y = y * 2
            raise ValueError("inside")
        return y - 3

    logged(fn)


def test_an_exception_after_a_break_is_not_swallowed():
    def fn(x, log):
        y = x + 1
        with Manager(log):
            print("inside")
            y = y * 2
            raise ValueError("inside")
        return y - 3

    logged(fn, raises=ValueError, unreplayed=PLAIN)


def test_return_break_and_continue_out_of_a_with():
    def fn(x, log):
        for i in range(4):
            with Manager(log):
                x = x + 1
                print(i)
                if i == 1:
                    continue
                if i == 2:
                    return x * 2
        return x

    logged(fn)


def test_contextmanager_functions():
    @contextlib.contextmanager
    def scope(log, name):
        log.append(f"enter {name}")
        try:
            yield name
        finally:
            log.append(f"exit {name}")

    def fn(x, log):
        with scope(log, "a") as name:
            y = x + 1
            print("inside", name)
            y = y * 2
        return y - 3

    logged(fn, unreplayed="call-print")


def test_suppress_and_exitstack():
    def fn(x, log):
        with contextlib.suppress(KeyError):
            y = x + 1
            print("inside")
            y = y * 2
            log.append("before")
            {}["missing"]
        with contextlib.ExitStack() as stack:
            stack.enter_context(Manager(log))
            y = y - 3
            print("in the stack")
            y = y / 2
        return y

    logged(fn)


GRAD_MODES = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("name", GRAD_MODES)
def test_a_break_under_a_grad_mode(name):
    def fn(x, weight):
        y = x * weight
        with GRAD_MODES[name]():
            z = y * 2
            print("inside", torch.is_grad_enabled())
            z = z * weight
        return (y + z).sum(), z.requires_grad, torch.is_grad_enabled()

    four = [lambda w, seed=seed: w.fn(rand(seed), rand(9, requires_grad=True)) for seed in range(4)]
    check(lambda: World(fn=fn), four, expect="miss hit hit hit", graphs=2, breaks=["call-print"])


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_a_break_under_another_mode(mode):
    def fn(x, weight):
        with mode():
            y = x @ weight
            print("inside", torch.is_inference_mode_enabled())
            y = y @ weight
        return y + 1

    four = [lambda w, seed=seed: w.fn(rand(seed, 4, 4), rand(9, 4, 4)) for seed in range(4)]
    check(lambda: World(fn=fn), four, expect=None, unreplayed="call-print")


# ---- try ----------------------------------------------------------------------------------------


def test_try_except_else_finally():
    def fn(x, log):
        try:
            y = x + 1
            print("try")
            y = y * 2
        except ValueError:
            log.append("except")
            y = x
        else:
            log.append("else")
            print("else")
            y = y - 3
        finally:
            log.append("finally")
            print("finally")
            y = y / 2
        return y

    seen = logged(fn)
    assert seen.outcomes == ["miss", "hit", "hit", "hit"]
    assert len(seen.graphs) == 4


def test_a_break_in_a_handler():
    def fn(x, log):
        try:
            y = x + 1
            raise KeyError("missing")
        except KeyError as error:
            y = x * 2
            print("handling", error)
            log.append(str(error))
            y = y - 3
        return y

    logged(fn)


def test_return_out_of_a_finally():
    def fn(x, log):
        for i in range(3):
            try:
                x = x + 1
                print("try", i)
                if i == 1:
                    return x * 2
            finally:
                log.append(i)
                print("finally", i)
        return x

    logged(fn)


def test_nested_try():
    def fn(x, log):
        try:
            try:
                y = x + 1
                print("one")
                raise ValueError("first")
            except ValueError:
                print("two")
                y = y * 2
                raise KeyError("second") from None
            finally:
                log.append("inner")
                print("three")
        except KeyError as error:
            log.append(repr(error))
            y = y - 3
            print("four")
        return y * 5

    logged(fn)


def test_match():
    def fn(x, subject):
        y = x + 1
        match subject:
            case {"kind": kind, **rest}:
                print("mapping", kind)
                return y * 2, rest
            case [first, *others]:
                print("sequence", first)
                return y * 3, others
            case _:
                print("other")
                return y * 4, None

    subjects = [{"kind": 1, "a": 2}, [1, 2, 3], 7]
    steps = [lambda w, s=s, n=n: w.fn(rand(n), s) for n, s in enumerate(subjects * 2)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_walrus_conditional_and_boolean_operators():
    def fn(x):
        if (n := len(x.shape)) and not print("and"):
            x = x + n
        x = x * 2 if print("conditional") is None else x
        return x + (print("or") or 1), 0 < n < (print("chain") or 5)

    check(lambda: World(fn=fn), calls(), expect=None)


def test_globals_deletes_and_star_targets():
    def fn(x):
        first, *rest = [x + 1, x + 2, x + 3]
        print("unpacked", len(rest))
        del first
        rest[0] += 1
        (a, b), c = rest, noisy(x)
        return a, b, c

    def noisy(t):
        print("noisy")
        return t * 2

    check(lambda: World(fn=fn), calls(), expect=None)


def test_entering_and_leaving_are_disabled():
    class Plain:
        def __init__(self, log):
            self.log = log

        @stator.disable
        def __enter__(self):
            self.log.append("enter")
            return 5

        @stator.disable
        def __exit__(self, *exception):
            self.log.append("exit")

    def fn(x, log):
        y = x + 1
        with Plain(log) as five:
            y = y * 2
        return y * five

    logged(fn)


def test_a_lock_and_filters_of_warnings():
    def fn(x, log):
        y = x + 1
        with LOCK:
            y = y * 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = y - 3
        return y

    logged(fn)


class Disabled:
    """A manager at the top of a module, whose two methods run aside."""

    @stator.disable
    def __enter__(self):
        return 5

    @stator.disable
    def __exit__(self, *exception):
        print("left")


def test_entering_and_leaving_are_disabled_and_replayed():
    def fn(x):
        y = x + 1
        with Disabled() as five:
            y = y * 2
        return y * five

    check(lambda: World(fn=fn), calls(), expect="miss hit hit hit", graphs=3)


def test_a_loop_whose_every_round_would_be_another_recording(capsys):
    """No more of them are made than there may be; the rest of the run is plain."""
    modules = [types.ModuleType(f"module{number}") for number in range(200)]
    for number, module in enumerate(modules):
        module.value = number

    def fn(x):
        total = 0
        for module in modules:
            print(end="")
            total = total + module.value
        return x * total

    compiled = stator.compile(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the limit is reached
        for seed in (1, 2, 3):
            assert torch.equal(compiled(rand(seed)), rand(seed) * 19900)
    assert 1 < len(compiled.stator.entries) <= 4 * stator.options.cache_size_limit
