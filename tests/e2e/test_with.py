"""`with`: context managers of the user and those that switch torch's state."""

from __future__ import annotations

import contextlib
import io
import threading

import pytest
import torch
from harness import World, check, check_stateless, rand

import stator


class Scope:
    def __init__(self, name, log, swallow=()):
        self.name, self.log, self.swallow = name, log, swallow

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(f"exit {self.name} {kind.__name__ if kind else None}")
        return kind is not None and issubclass(kind, self.swallow)


def grad_calls(*seeds):
    return [lambda w, s=s: w.fn(rand(s, requires_grad=True)) for s in seeds]


def test_a_context_manager_of_the_user():
    def fn(x):
        log = []
        with Scope("outer", log) as outer, Scope("inner", log):
            y = x * len(outer.name)
        return y, log

    check_stateless(fn)


def test_a_context_manager_swallows_an_exception():
    def fn(x):
        log = []
        with Scope("a", log, swallow=(ValueError,)):
            x = x + 1
            raise ValueError("swallowed")
        return x * 2, log  # reached: the scope above swallows the exception

    check_stateless(fn)


def test_leaving_a_with_block_early():
    def fn(x):
        log = []
        for n in range(4):
            with Scope(str(n), log):
                if n == 1:
                    continue
                if n == 2:
                    break
                x = x + n
        with Scope("last", log):
            return x * 2, log

    check_stateless(fn)


def test_a_context_manager_from_outside_with_state():
    class Depth:
        def __init__(self):
            self.level = 0

        def __enter__(self):
            self.level += 1
            return self.level

        def __exit__(self, *_):
            self.level -= 1

    def fn(x, depth):
        with depth as a, depth as b:
            return x * a + b

    def deeper(w):
        with w.depth:
            return w.fn(rand(3), w.depth)

    check(
        lambda: World(fn=fn, depth=Depth()),
        [lambda w: w.fn(rand(1), w.depth), lambda w: w.fn(rand(2), w.depth), deeper],
        expect="miss hit miss",
    )


def test_contextlib_tools():
    @contextlib.contextmanager
    def shifted(x, by):
        yield x + by

    def fn(x):
        with shifted(x, 1) as y, contextlib.nullcontext(y * 2) as z, contextlib.suppress(KeyError):
            {}["absent"]
        return y + z

    check_stateless(fn)


def test_an_exit_stack_is_right_even_if_it_stays_plain():
    def fn(x):
        log = []
        with contextlib.ExitStack() as stack:
            for name in ("a", "b"):
                stack.enter_context(Scope(name, log))
            stack.callback(log.append, "closed")
            y = x * len(log)
        return y, log

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_no_grad():
    def fn(x):
        y = x * 2
        with torch.no_grad():
            z = y * 3
        return y, z, y + z

    check(lambda: World(fn=fn), grad_calls(1, 2, 3), expect="miss hit hit")


def test_no_grad_outside_makes_another_recording():
    def fn(x):
        return x * 2

    def without_grad(w):
        with torch.no_grad():
            return w.fn(rand(2, requires_grad=True))

    with_grad = grad_calls(1, 3)
    check(
        lambda: World(fn=fn),
        [with_grad[0], without_grad, with_grad[1], without_grad],
        expect="miss miss hit hit",
    )


def test_enable_grad_inside_no_grad():
    def fn(x):
        y = x * 2
        with torch.enable_grad():
            z = (x * 3).exp()
        return y, z

    def without_grad(seed):
        def run(w):
            with torch.no_grad():
                return w.fn(rand(seed, requires_grad=True))

        return run

    check(lambda: World(fn=fn), [without_grad(1), without_grad(2), without_grad(3)], expect="miss hit hit")


def test_set_grad_enabled_by_a_flag():
    def fn(x, flag):
        with torch.set_grad_enabled(flag):
            y = x * 2
        return y

    def call(seed, flag):
        return lambda w: w.fn(rand(seed, requires_grad=True), flag)

    check(
        lambda: World(fn=fn),
        [call(1, True), call(2, True), call(3, False), call(4, False)],
        expect="miss hit miss hit",
    )


def test_no_grad_as_a_decorator():
    @torch.no_grad()
    def frozen(x):
        return x * 2

    check(lambda: World(fn=lambda x: frozen(x) + x), grad_calls(1, 2, 3), expect="miss hit hit")
    check(lambda: World(fn=frozen), grad_calls(1, 2, 3), expect="miss hit hit")


def test_grad_mode_is_restored_when_an_exception_leaves_the_block():
    def fn(x):
        try:
            with torch.no_grad():
                y = x * 2
                raise ValueError("inside")
        except ValueError:
            return y, x * 3

    check(lambda: World(fn=fn), grad_calls(1, 2, 3), expect="miss hit hit")


def test_a_function_that_leaves_grad_mode_changed():
    def fn(x, on):
        torch.set_grad_enabled(on)
        return x * 2

    def call(seed, on):
        def run(w):
            torch.set_grad_enabled(True)
            result = w.fn(rand(seed, requires_grad=True), on)
            return result, torch.is_grad_enabled()

        return run

    check(lambda: World(fn=fn), [call(1, False), call(2, False), call(3, True)], expect=None)


def test_asking_for_grad_mode():
    def fn(x):
        return x + 1 if torch.is_grad_enabled() else x - 1

    def without_grad(w):
        with torch.no_grad():
            return w.fn(rand(3))

    check(lambda: World(fn=fn), [*grad_calls(1, 2), without_grad], expect="miss hit miss")


def test_inference_mode_inside():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
        return y, x + 1

    check(lambda: World(fn=fn), grad_calls(1, 2, 3), expect="miss hit hit")


def test_inference_mode_outside_makes_another_recording():
    def fn(x):
        return x * 2

    def inference(seed):
        def run(w):
            with torch.inference_mode():
                return w.fn(rand(seed))

        return run

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1)), inference(2), inference(3), lambda w: w.fn(rand(4))],
        expect="miss miss hit hit",
    )


def test_autocast_inside():
    def fn(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
        return z, x @ y

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s, 3, 4), rand(s + 1, 4, 3)) for s in (1, 3, 5)],
        expect="miss hit hit",
    )


def test_autocast_outside_makes_another_recording():
    def fn(x, y):
        return x @ y

    def cast(seed, dtype):
        def run(w):
            with torch.autocast("cpu", dtype=dtype):
                return w.fn(rand(seed, 3, 4), rand(seed + 1, 4, 3))

        return run

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1, 3, 4), rand(2, 4, 3)),
            cast(3, torch.bfloat16),
            cast(5, torch.bfloat16),
            cast(7, torch.float16),
            lambda w: w.fn(rand(8, 3, 4), rand(9, 4, 3)),
        ],
        expect="miss miss hit miss hit",
    )


def test_autocast_nested_and_disabled():
    def fn(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ y
            with torch.autocast("cpu", enabled=False):
                b = x @ y
            return a, b, torch.is_autocast_enabled("cpu")

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s, 3, 4), rand(s + 1, 4, 3)) for s in (1, 3, 5)],
        expect="miss hit hit",
    )


def test_contexts_of_torch_and_user_interleaved():
    def fn(x):
        log = []
        with Scope("a", log), torch.no_grad(), Scope("b", log):
            y = x * 2
            with torch.enable_grad():
                z = x * 3
        return y, z, log

    check(lambda: World(fn=fn), grad_calls(1, 2, 3), expect="miss hit hit")


def test_an_exception_leaves_a_block_whose_manager_is_not_of_python():
    """Only the instruction itself calls its `__exit__` then."""

    def world():
        def fn(x):
            lock, entered = threading.Lock(), False
            with contextlib.suppress(ZeroDivisionError), lock:
                entered = lock.locked()
                raise ZeroDivisionError
            return x * 2, entered, lock.locked()

        return World(fn=fn)

    done = check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3, 4)], expect="miss hit hit hit")
    assert done.world.fn(rand(5))[1:] == (True, False)


def test_a_class_that_inherits_enter_and_exit_from_c():
    class Text(io.StringIO):
        pass

    def world():
        def fn(x, text, fail):
            with contextlib.suppress(ZeroDivisionError), text as entered:
                entered.write("inside")
                if fail:
                    raise ZeroDivisionError
            return x * 2, text.closed

        return World(fn=fn)

    calls = [lambda w, s=s: w.fn(rand(s), Text(), s % 2) for s in (1, 2, 3, 4, 5)]
    check(world, calls, expect=None)


def test_a_recording_that_ends_inside_a_range_of_the_profiler():
    """Torch's own `__exit__` runs then, after an `__enter__` that was left out."""

    def inner(n):
        with torch.autograd.profiler.record_function("range"):
            y = torch.ones(2) * n
            print(n)  # called by C code, so that the rest of the call is not recorded
            return y

    def fn(x):
        return list(map(inner, [1, 2])), x + 1

    check(lambda: World(fn=fn), [lambda w, n=n: w.fn(rand(n)) for n in range(4)], expect=None)


LAYER = torch.nn.Linear(4, 4)


@torch.inference_mode()
def of_inference(x):
    return LAYER(x).relu() * 2, x


def partly_of_inference(x):
    with torch.inference_mode():
        y = LAYER(x) * 2
    return y, LAYER(x) + 1


def written_in_inference(x):
    with torch.inference_mode():
        x.add_(1)
        return x * 2, x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [of_inference, partly_of_inference, written_in_inference])
def test_tensors_made_in_inference_mode(fn, backend):
    compiled = stator.compile(fn, backend=backend)
    for seed in range(4):
        for got, wanted in zip(compiled(rand(seed, 2, 4)), fn(rand(seed, 2, 4)), strict=True):
            torch.testing.assert_close(got, wanted)
            assert (got.is_inference(), got.requires_grad) == (wanted.is_inference(), wanted.requires_grad)
    assert compiled.stator.hits == 3
