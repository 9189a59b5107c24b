"""What cannot be watched runs as plain Python and says so; mistakes raise what the plain program raises."""

from __future__ import annotations

import asyncio
import gc
import heapq
import logging
import operator
import sys
import warnings
import weakref

import pytest
import torch
from harness import World, check, rand

import stator


@pytest.fixture
def break_log(caplog):
    """The lines of the log `graph_breaks`, as they come."""
    caplog.set_level(logging.INFO, logger="stator.graph_breaks")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "stator.graph_breaks"]


# ---- functions that cannot be watched -----------------------------------------------------------


@pytest.mark.parametrize("fn", [torch.sin, torch.Tensor.sin], ids=["builtin", "method descriptor"])
def test_a_c_function_runs_as_it_is(fn, break_log):
    compiled = stator.compile(fn, backend="eager")
    for seed in (1, 2, 3):
        assert torch.equal(compiled(rand(seed)), fn(rand(seed)))
    assert compiled.stator.plain == 3
    assert compiled.stator.recordings == compiled.stator.hits == 0
    assert len(break_log()) == 1
    assert "sin" in break_log()[0]


def test_a_generator_function_runs_as_it_is(break_log):
    def steps(x, n):
        for i in range(n):
            yield x * i

    compiled = stator.compile(steps, backend="eager")
    for seed in (1, 2, 3):
        made = compiled(rand(seed), 3)
        assert torch.equal(torch.stack(list(made)), torch.stack(list(steps(rand(seed), 3))))
    assert compiled.stator.plain == 3
    assert len(break_log()) == 1
    assert "steps" in break_log()[0]


def test_a_coroutine_function_runs_as_it_is(break_log):
    async def double(x):
        await asyncio.sleep(0)
        return x * 2

    compiled = stator.compile(double, backend="eager")
    for seed in (1, 2, 3):
        assert torch.equal(asyncio.run(compiled(rand(seed))), rand(seed) * 2)
    assert compiled.stator.plain == 3
    assert len(break_log()) == 1
    assert "double" in break_log()[0]


def test_an_async_generator_function_runs_as_it_is(break_log):
    async def steps(x):
        yield x + 1
        yield x + 2

    async def collect(source):
        return [item async for item in source]

    compiled = stator.compile(steps, backend="eager")
    for seed in (1, 2, 3):
        made = asyncio.run(collect(compiled(rand(seed))))
        assert torch.equal(torch.stack(made), torch.stack([rand(seed) + 1, rand(seed) + 2]))
    assert compiled.stator.plain == 3
    assert len(break_log()) == 1


def test_under_a_debugger_the_function_runs_as_it_is_and_is_traced(break_log):
    def double(x):
        y = x * 2
        return y

    lines = []

    def tracer(frame, event, arg):
        if frame.f_code is double.__code__:
            lines.append(event)
        return tracer

    compiled = stator.compile(double, backend="eager")
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        result = compiled(rand(1))
    finally:
        sys.settrace(before)
    assert torch.equal(result, rand(1) * 2)
    assert lines == ["call", "line", "line", "return"]
    assert (compiled.stator.plain, compiled.stator.recordings) == (1, 0)
    assert len(break_log()) == 1
    assert "double" in break_log()[0]


def test_when_the_debugger_is_gone_the_function_is_recorded():
    compiled = stator.compile(lambda x: x * 2, backend="eager")
    sys.settrace(lambda *_: None)
    try:
        compiled(rand(1))
    finally:
        sys.settrace(None)
    for seed in (2, 3):
        assert torch.equal(compiled(rand(seed)), rand(seed) * 2)
    assert (compiled.stator.plain, compiled.stator.recordings, compiled.stator.hits) == (1, 1, 1)


def test_a_recorded_function_is_replayed_or_plain_under_a_debugger():
    compiled = stator.compile(lambda x: x * 2, backend="eager")
    compiled(rand(1))
    sys.settrace(lambda *_: None)
    try:
        result = compiled(rand(2))
    finally:
        sys.settrace(None)
    assert torch.equal(result, rand(2) * 2)
    assert torch.equal(compiled(rand(3)), rand(3) * 2)


# ---- wrong arguments ----------------------------------------------------------------------------


def greet(x, y, /, z=1, *, scale, shift=0):
    return (x + y) * scale + z + shift


@pytest.mark.parametrize(
    "wrong",
    [
        lambda f: f(),
        lambda f: f(rand(1)),
        lambda f: f(rand(1), rand(2)),
        lambda f: f(rand(1), rand(2), 3, 4, scale=1),
        lambda f: f(rand(1), y=rand(2), scale=1),
        lambda f: f(rand(1), rand(2), 3, z=4, scale=1),
        lambda f: f(rand(1), rand(2), scale=1, color="red"),
        lambda f: f(rand(1), rand(2), **{"scale": 1, "not a name": 2}),
    ],
    ids=[
        "nothing",
        "one too few",
        "keyword missing",
        "too many",
        "positional as keyword",
        "given twice",
        "unknown keyword",
        "odd keyword",
    ],
)
def test_wrong_arguments_raise_what_the_plain_function_raises(wrong):
    compiled = stator.compile(greet, backend="eager")
    compiled(rand(1), rand(2), scale=2.0)
    for _ in range(2):
        with pytest.raises(TypeError) as plain:
            wrong(greet)
        with pytest.raises(TypeError) as seen:
            wrong(compiled)
        assert type(seen.value) is type(plain.value)
        assert str(seen.value) == str(plain.value)
    assert torch.equal(compiled(rand(3), rand(4), scale=2.0), greet(rand(3), rand(4), scale=2.0))
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: m(),
        lambda m: m(rand(1), rand(2)),
        lambda m: m("text"),
        lambda m: m(rand(1, 3)),
        lambda m: m(y=1),
    ],
    ids=["nothing", "too many", "not a tensor", "wrong shape", "unknown keyword"],
)
def test_wrong_arguments_for_a_module(wrong):
    def world():
        torch.manual_seed(0)
        return World(fn=torch.nn.Linear(4, 2))

    right = [lambda w, s=s: w.fn(rand(s)) for s in (1, 2)]
    check(
        world,
        [right[0], lambda w: wrong(w.fn), lambda w: wrong(w.fn), right[1]],
        expect=None,
        raises=(TypeError, RuntimeError),
    )


def test_wrong_arguments_of_a_method():
    class Scaler:
        def scale(self, x, by):
            return x * by

    def world():
        scaler = Scaler()
        return World(fn=scaler.scale, scaler=scaler)

    check(
        world,
        [
            lambda w: w.fn(rand(1), 2),
            lambda w: w.fn(rand(1)),
            lambda w: w.fn(rand(1), 2, 3),
            lambda w: w.fn(by=2),
            lambda w: w.fn(rand(2), 2),
        ],
        expect=None,
        raises=TypeError,
    )


# ---- backends -----------------------------------------------------------------------------------


class Broken(Exception):
    pass


def raising_backend(gm, example_inputs):
    raise Broken("cannot compile this")


def test_a_backend_that_raises_gives_the_plain_result_and_a_warning():
    def fn(x):
        return x * 2 + 1

    compiled = stator.compile(fn, backend=raising_backend)
    with pytest.warns(Warning, match="cannot compile this"):
        first = compiled(rand(1))
    assert torch.equal(first, fn(rand(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (2, 3):
            assert torch.equal(compiled(rand(seed)), fn(rand(seed)))
    assert compiled.stator.hits == 0


def test_a_backend_that_raises_leaves_the_effects_of_one_run():
    log = []

    def fn(x):
        x.add_(1)
        log.append("ran")
        return x * 2

    compiled = stator.compile(fn, backend=raising_backend)
    x = torch.zeros(4)
    with pytest.warns(Warning):
        assert torch.equal(compiled(x), torch.full((4,), 2.0))
    assert torch.equal(x, torch.ones(4))
    assert log == ["ran"]


def test_without_suppression_a_backend_that_raises_is_an_error():
    compiled = stator.compile(lambda x: x * 2, backend=raising_backend)
    with stator.options.patch(suppress_errors=False):
        for seed in (1, 2, 3):
            with pytest.raises(stator.errors.BackendError, match="cannot compile this") as caught:
                compiled(rand(seed))
            assert isinstance(caught.value.__cause__, Broken)


def test_suppression_can_be_chosen_for_one_function():
    compiled = stator.compile(lambda x: x * 2, backend=raising_backend, options={"suppress_errors": False})
    for seed in (1, 2, 3):
        with pytest.raises(stator.errors.BackendError):
            compiled(rand(seed))


def test_a_backend_that_returns_no_callable():
    compiled = stator.compile(lambda x: x * 2, backend=lambda gm, inputs: None)
    with pytest.warns(Warning):
        assert torch.equal(compiled(rand(1)), rand(1) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (2, 3):
            assert torch.equal(compiled(rand(seed)), rand(seed) * 2)


def test_an_unknown_backend_is_refused_with_the_nearest_name():
    with pytest.raises(stator.errors.UnknownBackend, match="eager"):
        stator.compile(lambda x: x, backend="eagr")


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="max-autotune"):
        stator.compile(lambda x: x, backend="eager", mode="fastest")


def test_example_inputs_fit_the_graph():
    seen = []

    def backend(gm, example_inputs):
        seen.append(([n.name for n in gm.graph.nodes if n.op == "placeholder"], list(example_inputs)))
        return gm.forward

    compiled = stator.compile(lambda x, y: x @ y, backend=backend)
    for seed in (1, 2, 3):
        x, y = rand(seed, 2, 3), rand(seed + 1, 3, 2)
        assert torch.equal(compiled(x, y), x @ y)
    ((names, inputs),) = seen
    assert len(names) == len(inputs) == 2
    assert [tuple(t.shape) for t in inputs] == [(2, 3), (3, 2)]


# ---- programs that interfere --------------------------------------------------------------------


def test_a_function_that_sets_a_trace_function_itself():
    def fn(x):
        before = sys.gettrace()
        sys.settrace(None)
        sys.settrace(before)
        return x * 2

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        unreplayed=["call-debugger", "unknown-callable"],
    )


def test_exec_and_eval_inside():
    def fn(x, code):
        space = {"x": x}
        exec("y = x * 2", space)
        return space["y"] + eval(code, space)

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), "x + 1"),
            lambda w: w.fn(rand(2), "x + 1"),
            lambda w: w.fn(rand(3), "x - 1"),
        ],
        expect=None,
    )


def test_a_class_statement_inside():
    def fn(x):
        class Local:
            scale = 3

            def apply(self, t):
                return t * self.scale

        return Local().apply(x)

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        unreplayed=["build-class", "unguardable"],
    )


def test_an_import_inside():
    def fn(x):
        import math as m
        from fractions import Fraction

        return x * m.sqrt(4) * float(Fraction(1, 2))

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_time_and_random_state_are_never_frozen():
    import random
    import time

    def fn(x):
        return x * 2, random.random(), time.perf_counter_ns() > 0

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_tensors_that_leave_as_numpy_arrays():
    def fn(x):
        y = x * 2
        array = y.numpy()
        array += 1
        return y, array.sum().item()

    check(
        lambda: World(fn=fn),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        unreplayed=["numpy", "tensor-numpy"],
    )


def test_backward_inside_the_function():
    def fn(x):
        loss = (x * x).sum()
        loss.backward()
        return loss.detach()

    def call(seed):
        def run(w):
            w.x = rand(seed, requires_grad=True)
            return w.fn(w.x)

        return run

    check(lambda: World(fn=fn, x=None), [call(1), call(2), call(3)], expect=None)


def test_a_custom_autograd_function():
    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (x.abs() < 1) * 10

    def call(seed):
        def run(w):
            w.x = rand(seed, requires_grad=True)
            w.fn(w.x).sum().backward()

        return run

    check(lambda: World(fn=lambda x: Clamp.apply(x * 2), x=None), [call(1), call(2), call(3)], expect=None)


# ---- errors for the user ---------------------------------------------------------------------------


def _broken(gm, example_inputs):
    raise ZeroDivisionError


def test_an_error_for_the_user_keeps_nothing_alive():
    """It is dropped with its frames, and they with what they hold."""

    def breaks(x):
        y = x + 1
        stator.graph_break()
        return y * 2

    def call(compiled):
        tensor = rand(1)
        with pytest.raises(stator.errors.StatorError):
            compiled(tensor)
        return weakref.ref(tensor)

    failing = stator.compile(lambda x: x + 1, backend=_broken, options={"suppress_errors": False})
    whole = stator.compile(breaks, backend="eager", fullgraph=True)
    collects = gc.isenabled()
    gc.disable()
    try:
        assert [call(compiled)() for compiled in (failing, whole) for _ in range(3)] == [None] * 6
    finally:
        if collects:
            gc.enable()


def test_a_failing_backend_whose_warning_is_an_error_is_asked_once():
    asked = []

    def backend(gm, example_inputs):
        asked.append(gm)
        raise ZeroDivisionError

    compiled = stator.compile(lambda x: x + 1, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="ZeroDivisionError"):
            compiled(rand(1))
        for seed in (1, 2):
            assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    assert len(asked) == 1


# ---- C callables with too few arguments ---------------------------------------------------------

SHORT_CALLS = {
    "dict.get": lambda w: w.table.get(),
    "dict.setdefault": lambda w: w.table.setdefault(),
    "dict.pop": lambda w: w.table.pop(),
    "dict.__contains__": lambda w: w.table.__contains__(),
    "dict.__getitem__": lambda w: w.table.__getitem__(),
    "dict.__setitem__": lambda w: w.table.__setitem__("a"),
    "dict.update unbound": lambda w: dict.update(),
    "list.append unbound": lambda w: list.append(),
    "list.extend": lambda w: w.items.extend(),
    "list.sort unbound": lambda w: list.sort(*()),  # as `list.sort()` CPython itself crashes, once it is specialised
    "list.remove": lambda w: w.items.remove(),
    "set.pop unbound": lambda w: set.pop(),
    "str.format unbound": lambda w: str.format(),
    "setattr": lambda w: setattr(w, "items"),
    "object.__setattr__": lambda w: object.__setattr__(w, "items"),
    "object.__eq__ unbound": lambda w: object.__eq__(),
    "next": lambda w: next(),
    "hash": lambda w: hash(),
    "operator.getitem": lambda w: operator.getitem(w.items),
    "attrgetter": lambda w: operator.attrgetter("items")(),
    "methodcaller": lambda w: operator.methodcaller("append")(),
    "heappush": lambda w: heapq.heappush(),
}


@pytest.mark.parametrize("short", SHORT_CALLS.values(), ids=SHORT_CALLS)
def test_a_c_callable_that_lacks_arguments_raises_what_it_raises(short):
    def world():
        w = World(table={"a": 1}, items=[1, 2], scale=2.0)

        def fn(x):
            try:
                short(w)
            except TypeError as error:
                text = str(error)
            return x * w.scale, text, w.items, w.table

        w.fn = fn
        return w

    def rescaled(w):
        w.scale = 3.0
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), rescaled], expect=None, raises=())
