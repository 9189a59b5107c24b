"""The compiled callable as an object: it binds, carries attributes, is pickled and dies as the function does."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import resource
import weakref

import pytest
import torch
from harness import rand
from torch import nn

import stator
from stator import _native


def compiled(fn, **options):
    return stator.compile(fn, backend="eager", **options)


def signatures():
    def plain(a, b):
        return a * b

    def defaults(a, b=2.0, *, c=3.0):
        return a * b + c

    def stars(a, *rest, **named):
        for value in (*rest, *named.values()):
            a = a + value
        return a * (len(named) + 1)

    def positional_only(a, b=1.0, /, c=2.0, **named):
        return a * b + c + sum(named.values())

    def keyword_only(*, a, b=1.0):
        return a * b

    def cells(a, b):
        return [a * value for value in (b, b)]

    x = rand(1)
    yield plain, [((x, 2.0), {}), ((x,), {"b": 2.0}), ((), {"b": 2.0, "a": x})]
    yield defaults, [((x,), {}), ((x, 3.0), {}), ((x,), {"c": 1.0}), ((x,), {"c": 1.0, "b": 4.0})]
    yield stars, [((x,), {}), ((x, 1.0, 2.0), {}), ((x,), {"k": 1.0}), ((), {"a": x, "k": 1.0, "b": 2.0})]
    yield positional_only, [((x,), {}), ((x, 2.0, 3.0), {}), ((x,), {"c": 1.0}), ((x,), {"b": 4.0}), ((x,), {"a": 1.0})]
    yield keyword_only, [((), {"a": x}), ((), {"b": 2.0, "a": x})]
    yield cells, [((x, 2.0), {})]


@pytest.mark.parametrize("fn, calls", list(signatures()), ids=lambda value: getattr(value, "__name__", ""))
def test_arguments_are_bound_as_by_the_function(fn, calls):
    fast = compiled(fn)
    assert type(fast) is _native.Compiled
    for args, kwargs in calls:
        for _ in range(4):
            got, wanted = fast(*args, **kwargs), fn(*args, **kwargs)
            assert all(map(torch.equal, got, wanted))  # a list of tensors, or the rows of one
    assert fast.stator.hits + fast.stator.recordings == 4 * len(calls)
    assert fast.stator.recordings <= len(calls) and fast.stator.plain == 0


@pytest.mark.parametrize(
    "args, kwargs", [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1}), ((1,), {"a": 1}), ((1, 2), {"b": 1})]
)
def test_wrong_arguments_raise_what_the_function_raises(args, kwargs):
    def fn(a, b=1):
        return a

    fast = compiled(fn)
    fast(rand(1))
    fast(rand(1))
    with pytest.raises(TypeError) as plain:
        fn(*args, **kwargs)
    with pytest.raises(TypeError) as got:
        fast(*args, **kwargs)
    assert str(got.value).replace("dispatch", "fn").split(".")[-1] == str(plain.value).split(".")[-1]


def test_a_keyword_that_is_not_interned_finds_its_parameter():
    fast = compiled(lambda alpha, **more: alpha * len(more))
    name = "".join(["al", "pha"])
    assert name is not "alpha"  # noqa: F632
    for _ in range(3):
        assert torch.equal(fast(**{name: rand(1), "beta": 1}), rand(1))


def test_defaults_are_those_of_now():
    def fn(x, scale=2.0):
        return x * scale

    fast = compiled(fn)
    for scale in (2.0, 2.0, 2.0, 3.0, 3.0, 2.0):
        fn.__defaults__ = (scale,)
        assert torch.equal(fast(rand(1)), rand(1) * scale)
    fn.__defaults__ = None
    with pytest.raises(TypeError):
        fast(rand(1))


def test_new_code_is_run():
    def fn(x):
        return x + 1

    fast = compiled(fn)
    for _ in range(3):
        fast(rand(1))
    fn.__code__ = (lambda x: x - 1).__code__
    for _ in range(3):
        assert torch.equal(fast(rand(1)), rand(1) - 1)


def documented(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Multiplies."""
    return x * scale


fast_by_name = compiled(documented)
fast_by_name.__qualname__ = "fast_by_name"


def test_it_carries_the_attributes_of_the_function():
    fast = compiled(documented)
    assert fast.__wrapped__ is documented
    assert (fast.__name__, fast.__qualname__, fast.__module__) == ("documented", "documented", __name__)
    assert fast.__doc__ == "Multiplies."
    assert inspect.signature(fast) == inspect.signature(documented)
    assert fast.__annotations__ == documented.__annotations__
    assert callable(fast) and "documented" in repr(fast)
    fast.mine = 1
    assert fast.mine == 1 and "mine" in vars(fast)


def test_it_is_pickled_and_copied_as_a_function_is():
    assert pickle.loads(pickle.dumps(fast_by_name)) is fast_by_name
    assert copy.copy(fast_by_name) is fast_by_name
    assert copy.deepcopy([fast_by_name])[0] is fast_by_name


def test_compiling_twice_is_compiling_once():
    twice = compiled(compiled(documented))
    for _ in range(3):
        assert torch.equal(twice(rand(1)), rand(1) * 2)
    assert twice.__wrapped__ is documented and twice.stator.hits == 2


def test_it_binds_as_a_method():
    class Thing:
        scale = 3.0

        @stator.compile(backend="eager")
        def times(self, x, more=1.0):
            return x * self.scale * more

        @staticmethod
        @stator.compile(backend="eager")
        def static(x):
            return x + 1

        @classmethod
        @stator.compile(backend="eager")
        def of_class(cls, x):
            return x * cls.scale

    thing = Thing()
    for _ in range(4):
        assert torch.equal(thing.times(rand(1)), rand(1) * 3)
        assert torch.equal(thing.times(rand(1), more=2.0), rand(1) * 6)
        assert torch.equal(Thing.times(thing, rand(1)), rand(1) * 3)
        assert torch.equal(thing.static(rand(1)), rand(1) + 1)
        assert torch.equal(Thing.of_class(rand(1)), rand(1) * 3)
    assert Thing.times.stator.hits == 10
    assert thing.times.__self__ is thing and thing.times.__func__ is Thing.times


def test_inside_a_recording_it_is_the_plain_function():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = compiled(nn.Linear(4, 4))

        def forward(self, x):
            return self.inner(inner(x)) + sum(map(inner, (x, x)))

    inner = compiled(lambda x: x * 2)
    model = Model()
    fast = compiled(model, fullgraph=True)
    for seed in (1, 2, 3, 4):
        assert torch.equal(fast(rand(seed)), model(rand(seed)))
    assert (len(fast.stator.graphs), fast.stator.hits) == (1, 3)


def test_an_exception_of_the_graph_is_that_of_the_function():
    def fn(x, y):
        return x @ y

    fast = compiled(fn)
    for _ in range(3):
        fast(rand(1, 2, 2), rand(2, 2, 2))

    def failing(gm, example_inputs):
        return lambda *inputs: 1 / 0

    fast = stator.compile(fn, backend=failing)
    for _ in range(4):
        assert torch.equal(fast(rand(1, 2, 2), rand(2, 2, 2)), fn(rand(1, 2, 2), rand(2, 2, 2)))


def test_an_exception_after_a_write_is_raised_with_a_note():
    def half(gm, example_inputs):
        def run(*inputs):
            inputs[0].add_(1)
            raise ValueError("half way")

        return run

    def fn(x):
        x.add_(1)
        return x * 2

    fast = stator.compile(fn, backend=half)
    fast(rand(1))
    for _ in range(3):
        with pytest.raises(ValueError, match="half way") as raised:
            fast(rand(1))
        assert "written to its inputs" in raised.value.__notes__[0]


def test_stances_and_listeners_are_heeded(caplog):
    fast = compiled(lambda x: x + 1)
    for _ in range(3):
        fast(rand(1))
    with stator.set_stance("force_eager"):
        fast(rand(1))
    assert (fast.stator.hits, fast.stator.plain) == (2, 1)
    with stator.set_stance("fail_on_recompile"):
        fast(rand(1))
        with pytest.raises(RuntimeError):
            fast(rand(1, 9))
    heard = []
    end = stator.events.subscribe(heard.append, stator.events.CacheHit)
    fast(rand(1))
    end()
    fast(rand(1))
    assert len(heard) == 1 and fast.stator.hits == 5
    assert fast.stator.entries[0].hits == 5


def test_modes_of_the_program():
    fast = compiled(lambda x: x * 2)
    x = rand(1, requires_grad=True)
    for _ in range(3):
        assert fast(x).requires_grad
    with torch.no_grad():
        for _ in range(3):
            assert not fast(x).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            assert torch.equal(fast(x), x * 2)
    with torch.inference_mode():
        assert fast(x).is_inference()
    assert torch.equal(torch.func.vmap(fast)(rand(1, 2, 3)), rand(1, 2, 3) * 2)
    before = fast.stator.recordings
    assert fast(x).requires_grad and fast.stator.recordings == before


def test_the_recording_used_last_is_tried_first():
    fast = compiled(lambda x: x + 1, dynamic=False)
    for size in (1, 2, 3):
        fast(rand(0, size))
    for size in (1, 2, 3, 2, 2):
        fast(rand(0, size))
        shapes = [str(entry.guards.lines()) for entry in fast.stator.entries]
        assert f"[{size}]" in shapes[0]
    assert (fast.stator.recordings, fast.stator.hits) == (3, 5)


# -- lifetimes


def test_a_function_dies_with_its_last_reference():
    def make():
        big = rand(1)
        return compiled(lambda x: x + big), weakref.ref(big)

    fast, big = make()
    for seed in (1, 2, 3):
        fast(rand(seed))
    dead = weakref.ref(fast)
    assert dead() is fast
    del fast
    gc.collect()
    assert dead() is None and big() is None


def test_a_model_dies_with_its_compiled_code():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(weakref.ref(gm))
        return gm.forward

    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    fast = stator.compile(model, backend=backend)
    for seed in (1, 2, 3, 4):
        fast(rand(seed))
    assert fast.stator.hits == 3
    watched = [weakref.ref(value) for value in (model, fast, *model.parameters(), fast.stator.entries[0].guards)]
    del model, fast
    gc.collect()
    assert [ref() for ref in (*watched, *graphs)] == [None] * (len(watched) + 1)


def test_a_model_may_die_while_its_recordings_live():
    """One function for many models: the guards of a dead one hold nothing, and nothing dangles."""

    def apply(model, x):
        return model(x) * model.scale

    fast = compiled(apply)
    for _ in range(30):
        model = nn.Linear(4, 4)
        model.scale = 2.0
        for seed in (1, 2):
            assert torch.equal(fast(model, rand(seed)), apply(model, rand(seed)))
        dead = weakref.ref(model)
        del model
        gc.collect()
        assert dead() is None
    assert fast.stator.recordings == 1, fast.stator.last_miss


def test_results_and_inputs_are_not_kept():
    fast = compiled(lambda x: (x + 1, [x]))
    for seed in (1, 2, 3, 4):
        x = rand(seed)
        result = fast(x)
        refs = [weakref.ref(x), weakref.ref(result[0])]
        del x, result
        assert [ref() for ref in refs] == [None, None]


def test_recording_again_does_not_grow():
    """300 times here; 10,000 times by tests/replay/grow.py, which takes minutes."""

    def fn(x, n):
        return x * n + 1

    fast = compiled(fn)

    def rounds(count):
        for n in range(count):
            fast(rand(1), n % 7)
            fast(rand(1), n % 7)
            fast.stator.reset()

    rounds(100)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds(300)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5 * 1024
