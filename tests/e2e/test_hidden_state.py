"""State that is easy to overlook: programs which a recorder that only follows tensors would replay wrongly.

Whether such a program is replayed or stays plain is not the point here; that it is right on every call is.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import random
import threading
import time
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch
from harness import PLAIN, World, check, rand

# ---- readers of state in C ----------------------------------------------------------------------


def test_a_cached_function_whose_cache_is_cleared_in_between():
    def world():
        state = {"scale": 2.0}

        @functools.cache
        def scale():
            return state["scale"]

        return World(fn=lambda x: x * scale(), state=state, scale=scale)

    def changed(w):
        w.state["scale"] = 3.0
        return w.fn(rand(3))

    def cleared(w):
        w.scale.cache_clear()
        return w.fn(rand(4))

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed, cleared, lambda w: w.fn(rand(5))],
        expect=None,
        observe=lambda w: w.scale.cache_info().currsize,
    )


def test_a_weak_reference_dies():
    class Target:
        scale = 2.0

    def world():
        target = Target()
        ref = weakref.ref(target)
        return World(fn=lambda x: x * ref().scale if ref() is not None else x - 1, target=target)

    def drop(w):
        w.target = None
        gc.collect()
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), drop, lambda w: w.fn(rand(4))], expect=None)


def test_context_variables():
    def world():
        scale = contextvars.ContextVar("scale", default=2.0)
        return World(fn=lambda x: x * scale.get(), scale=scale)

    def with_value(value, seed):
        def run(w):
            token = w.scale.set(value)
            try:
                return w.fn(rand(seed))
            finally:
                w.scale.reset(token)

        return run

    check(
        world,
        [lambda w: w.fn(rand(1)), with_value(5.0, 2), with_value(6.0, 3), lambda w: w.fn(rand(4))],
        expect=None,
        observe=lambda w: w.scale.get(),
    )


def test_a_context_variable_is_set_inside():
    def world():
        last = contextvars.ContextVar("last", default=None)

        def fn(x):
            last.set(x.shape[0])
            return x * 2

        return World(fn=fn, last=last)

    def call(seed, n):
        def run(w):
            w.last.set(None)
            return w.fn(rand(seed, n)), w.last.get()

        return run

    check(world, [call(1, 4), call(2, 4), call(3, 5)], expect=None)


def test_thread_local_state():
    def world():
        local = threading.local()
        local.scale = 2.0
        return World(fn=lambda x: x * local.scale, local=local)

    def changed(w):
        w.local.scale = 3.0
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed], expect=None)


def test_partial_whose_arguments_are_exchanged():
    def world():
        bound = functools.partial(torch.add, rand(9))
        return World(fn=lambda x: bound(x) * 2, bound=bound)

    def exchanged(w):
        w.bound.__setstate__((torch.mul, (rand(8),), {}, None))
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), exchanged], expect=None)


def test_random_and_time_stay_alive():
    def fn(x):
        return (
            x * random.random(),
            random.randint(0, 100),
            np.random.default_rng(3).integers(9),
            time.time() > 0,
        )

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        unreplayed=["numpy", "random", "time"],
    )


def test_rng_state_is_saved_and_restored_inside():
    def fn(x):
        state = torch.get_rng_state()
        a = torch.rand(4)
        torch.set_rng_state(state)
        b = torch.rand(4)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            c = torch.rand(4)
        return x + a - b, c, torch.rand(2)

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_a_failing_replay_has_not_used_up_random_numbers():
    def fn(x, index):
        noise = torch.rand(4)
        return (x + noise)[index]

    def call(*index):
        return lambda w: w.fn(rand(1), torch.tensor(index))

    check(lambda: World(fn=fn), [call(0, 1), call(2, 3), call(1, 9), call(3, 0)], expect=None, raises=IndexError)


def test_a_failing_replay_has_not_changed_an_input_twice():
    def fn(x, index):
        x.add_(1)
        return x[index] * 2

    def call(*index):
        def run(w):
            w.x = rand(1)
            return w.fn(w.x, torch.tensor(index))

        return run

    check(
        lambda: World(fn=fn, x=None),
        [call(0, 1), call(2, 3), call(1, 9), call(3, 0)],
        expect=None,
        raises=IndexError,
        tracebacks=False,
    )


def test_default_dtype_is_set_inside():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        try:
            return x + torch.ones(4), torch.zeros(2)
        finally:
            torch.set_default_dtype(torch.float32)

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_a_torch_function_mode_of_the_program():
    class Shift(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result + 1 if func is torch.Tensor.mul or func is torch.mul else result

    def inside(x):
        with Shift():
            return torch.mul(x, 2)

    def around(w):
        with Shift():
            return w.fn(rand(9))

    check(
        lambda: World(fn=inside),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        unreplayed="unknown-callable",
    )
    check(
        lambda: World(fn=lambda x: torch.mul(x, 2)),
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), around, lambda w: w.fn(rand(3))],
        expect=None,
    )


def test_a_default_device():
    def fn(x):
        return torch.ones(4).device.type, x.device.type

    def on_meta(w):
        with torch.device("meta"):
            return w.fn(rand(3))

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), on_meta], expect=None)


# ---- objects that come and go -------------------------------------------------------------------


def test_temporary_objects_that_share_an_address():
    def fn(x):
        total = x
        for n in range(300):
            temporary = [x, n]
            total = total + temporary[0] * (temporary[1] % 3)
        return total

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_finalizers_run_inside():
    log = []

    class Noisy:
        def __init__(self, n):
            self.n = n

        def __del__(self):
            log.append(self.n)

    def fn(x):
        for n in range(3):
            Noisy(n)
            x = x + n
        return x

    def call(seed):
        def run(w):
            log.clear()
            return w.fn(rand(seed))

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect=None, observe=lambda _: log, unreplayed="finalizer")


def test_what_the_function_lets_go_is_free_after_the_call():
    def fn(box):
        y = box[0] * 2
        box.clear()
        return y

    def call(seed):
        def run(w):
            box = [rand(seed)]
            ref = weakref.ref(box[0])
            result = w.fn(box)
            gc.collect()
            return result, ref() is None

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect="miss hit hit")


def test_nothing_is_kept_alive():
    def fn(x):
        return x * 2

    def call(seed):
        def run(w):
            x = rand(seed)
            ref = weakref.ref(x)
            result = w.fn(x)
            del x
            gc.collect()
            return result, ref() is None

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect="miss hit hit")


def test_an_outside_object_dies_and_its_place_is_taken():
    class Config:
        def __init__(self, scale):
            self.scale = scale

    def fn(x, config):
        return x * config.scale

    calls = [lambda w, n=n: w.fn(rand(1), Config(float(n % 3))) for n in range(9)]
    check(lambda: World(fn=fn), calls, expect="miss miss " + "hit " * 6 + "hit")


def test_the_order_of_an_ordered_dict_is_guarded_even_if_its_keys_are_the_same():
    def fn(x, table):
        for scale in table.values():
            x = (x + 1) * scale
        return x

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), OrderedDict(a=rand(2), b=rand(3))),
            lambda w: w.fn(rand(1), OrderedDict(a=rand(4), b=rand(5))),
            lambda w: w.fn(rand(1), OrderedDict(b=rand(3), a=rand(2))),
        ],
        expect="miss hit miss",
    )


def test_a_value_read_before_and_after_it_is_changed_outside_by_the_program():
    class Holder:
        scale = 2.0

    def fn(x, holder):
        before = holder.scale
        holder.scale = before * 2
        middle = x * holder.scale
        holder.scale = before
        return middle, holder.scale

    check(
        lambda: World(fn=fn, holder=Holder()),
        [lambda w, s=s: w.fn(rand(s), w.holder) for s in (1, 2, 3)],
        expect=None,
    )


def test_a_list_is_changed_while_it_is_iterated():
    def fn(x, items):
        for item in items:
            if len(items) < 5:
                items.append(item + 1)
            x = x * item
        return x

    def call(seed):
        def run(w):
            w.items = [1, 2]
            return w.fn(rand(seed), w.items)

        return run

    check(lambda: World(fn=fn, items=None), [call(1), call(2), call(3)], expect=None)


def test_a_dict_that_changes_its_size_while_it_is_iterated_raises_as_plain():
    def fn(x, table):
        for key in table:
            table[key + "x"] = x * 2
        return x

    def call(seed):
        def run(w):
            w.table = {"a": 1}
            return w.fn(rand(seed), w.table)

        return run

    check(
        lambda: World(fn=fn, table=None),
        [call(1), call(2), call(3)],
        expect=None,
        raises=RuntimeError,
        unreplayed=PLAIN,
    )


@pytest.mark.parametrize("allocations", [20, 100, 300, 600, 1000])
def test_earlier_garbage_is_collected_during_a_recording(allocations):
    """Finalizers and callbacks of objects which the program does not know run in the middle of it."""
    collected = []

    class Member:
        def __del__(self):
            collected.append("finalizer")

    def litter():
        members = weakref.WeakSet()
        for _ in range(20):
            member = Member()
            member.itself = member
            member.ref = weakref.ref(member, lambda ref: collected.append("callback"))
            members.add(member)

    def fn(x):
        steps = [[x * n] for n in range(60)]
        return sum(step[0] for step in steps)

    def call(seed):
        def run(w):
            x, before = rand(seed), gc.get_threshold()
            gc.collect()
            litter()
            gc.set_threshold(gc.get_count()[0] + allocations, 1, 1)
            try:
                return w.fn(x)
            finally:
                gc.set_threshold(*before)

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect="miss hit hit")
    assert collected
