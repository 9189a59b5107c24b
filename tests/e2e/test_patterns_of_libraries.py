"""Patterns that libraries of models use, each as small as it can be: one graph, and right in every call."""

from __future__ import annotations

import copy
import functools
import importlib
import math
import sys
import types

import numpy as np
import torch
from harness import World, check, check_stateless, rand
from torch import nn

import stator


def calls(*seeds):
    return [lambda w, s=s: w.fn(rand(s)) for s in seeds or (1, 2, 3)]


def test_a_callable_is_given_the_items_of_an_iterator():
    class Sum(nn.Module):
        def forward(self, *parts):
            return sum(parts)

    def world():
        model = nn.Module()
        model.a, model.b, model.add = nn.Parameter(rand(7)), nn.Parameter(rand(8)), Sum()

        def fn(x):
            of_parameters = model.add(*(getattr(model, name) for name in ("a", "b")))
            of_operations = torch.stack(tuple(map(torch.sin, (x, x + 1))))
            of_numbers = max(*iter([1, 2]))
            return torch.cat(*zip([x])) + of_parameters, model.add(*map(torch.cos, [x])), of_operations, of_numbers

        return World(fn=fn, model=model)

    def other_parameter(w):
        w.model.a = nn.Parameter(rand(20))
        return w.fn(rand(4))

    check(world, [*calls(), other_parameter], expect=None, breaks=[])


def test_an_iterator_from_outside_is_not_spread_twice():
    def world():
        state = World(fn=None, items=iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        state.fn = lambda x: x * max(*(next(state.items) for _ in range(2)))
        return state

    def items_left(w):
        return len(list(copy.copy(w.items)))

    check(world, calls(), expect=None, observe=items_left, unreplayed="outside-iterator")


def test_a_generator_that_raises_while_it_is_spread():
    def broken(x):
        yield x
        raise ValueError("no more")

    class Adder:
        def __call__(self, *parts):
            return sum(parts)

    def world():
        add = Adder()

        def fn(x):
            try:
                return add(*broken(x))
            except ValueError as error:
                return x + len(str(error))

        return World(fn=fn)

    check(world, calls(), expect=None)


def test_names_are_imported_from_a_package_that_is_loaded():
    def fn(x):
        from torch import nn, optim
        from torch.nn import functional as F
        from torch.nn.functional import relu

        return relu(x) + F.gelu(x) + len(nn.__name__) + len(optim.__name__)

    check(lambda: World(fn=fn), calls(), expect="miss hit hit", breaks=[])


def test_a_name_that_is_another_after_a_while_is_noticed():
    def world():
        from torch.utils import data

        def fn(x):
            from torch.utils import data

            return x + len(data.__name__)

        return World(fn=fn, original=data)

    def patched(w):
        package = sys.modules["torch.utils"]
        package.data = math
        try:
            return w.fn(rand(4))
        finally:
            package.data = w.original

    check(world, [*calls(), patched, calls(5)[0]], expect="miss hit hit miss hit")


def test_a_module_that_is_not_loaded_is_imported_where_python_does_it(tmp_path, monkeypatch):
    folder = tmp_path / "stator_lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def world():
        for name in [name for name in sys.modules if name.startswith("stator_lazy_package")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        importlib.import_module("stator_lazy_package")

        def fn(x):
            from stator_lazy_package import part

            return x * part.VALUE

        return World(fn=fn)

    check(world, calls(), expect=None)
    check(world, calls(), expect=None, observe=lambda w: "stator_lazy_package.part" in sys.modules)


def test_numbers_of_numpy_are_numbers():
    def world():
        config = {"width": 8, "count": 6}
        half, three = np.float32(0.5), np.int64(3)

        def fn(x):
            width = np.sqrt(config["width"])
            x = x * width + np.log(float(config["width"]))
            x *= half
            return x / np.lcm(config["count"], 4), x - three, torch.tensor(width)

        return World(fn=fn, config=config)

    def other_width(w):
        w.config["width"] = 9
        return w.fn(rand(4))

    check(world, [*calls(), other_width], expect="miss hit hit miss", breaks=[])


def test_numpy_is_asked_for_what_it_warns_of():
    def fn(x):
        return x * float(np.log(0) < 0)

    with np.errstate(divide="ignore"):
        check(lambda: World(fn=fn), calls(), expect=None)


def test_arrays_of_numpy_break():
    def fn(x):
        return x * float(np.sqrt(np.array([4.0, 9.0])).sum())

    check(lambda: World(fn=fn), calls(), expect=None)


def test_a_tensor_is_converted_by_type():
    def world():
        scale = torch.tensor(3.0, dtype=torch.float64)

        def fn(x):
            return x * scale.type(x.dtype), x.type("torch.DoubleTensor"), x.type(torch.int32), x.type()

        return World(fn=fn, scale=scale)

    check(world, calls(), expect="miss hit hit", breaks=[])


def test_a_module_that_is_where_it_should_be_is_moved_there():
    def world():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.eval()

        def fn(x):
            return model.to(torch.float32)(x[None])

        return World(fn=fn, model=model)

    check(world, calls(), expect="miss hit hit", breaks=[])

    def doubled(w):
        w.model.double()
        return w.fn(rand(4))

    check(world, [*calls(), doubled, *calls(5)], expect=None)


def test_the_facts_of_a_dtype_are_constants():
    def world():
        state = World(fn=None, dtype=torch.float32)
        kinds = lambda dtype: (dtype.is_floating_point, dtype.is_complex, dtype.is_signed, dtype.itemsize)  # noqa: E731
        state.fn = lambda x: x * sum(kinds(state.dtype))
        return state

    def other(w):
        w.dtype = torch.int64
        return w.fn(rand(4))

    check(world, [*calls(), other], expect="miss hit hit miss", breaks=[])


def test_a_configuration_with_sets_is_copied():
    class Config:
        def __init__(self):
            self.names, self.sizes = {"a", "b"}, [1, 2]

    def world():
        config = Config()

        def fn(x):
            mine = copy.deepcopy(config)
            mine.sizes.append(len(mine.names))
            return x * sum(mine.sizes)

        return World(fn=fn, config=config)

    def more_names(w):
        w.config.names.add("c")
        return w.fn(rand(4))

    check(world, [*calls(), more_names], expect="miss hit hit miss", breaks=[])


def test_a_transform_of_functions_breaks():
    check_stateless_with_breaks = [lambda w, s=s: w.fn(rand(s, 3, 4)) for s in (1, 2, 3)]

    def fn(x):
        return torch.vmap(lambda row: row * row.sum())(x + 1) + 1

    check(lambda: World(fn=fn), check_stateless_with_breaks, expect=None)


def test_views_that_a_graph_hands_on_are_written_to_by_the_next_one():
    def transposed(x):
        y = (x * 2).view(2, 2).transpose(0, 1)
        stator.graph_break()
        y /= 3
        return y.sum()

    def beside_another_result(x):
        y = (x * 2).view(2, 2)
        other = y + 1
        stator.graph_break()
        y /= 3
        return (y * other).sum()

    def with_its_base(x):
        y = x * 2
        part = y[:2]
        stator.graph_break()
        part /= 3
        return (part * y[2:]).sum() + y.sum()

    def written_in_python(x):
        y = (x * 2).view(2, 2)
        stator.graph_break()
        y.mul_(x.view(2, 2))
        stator.graph_break()
        return y.sum()

    def step(seed):
        def run(w):
            x = rand(seed, requires_grad=True)
            w.fn(x).backward()
            return x.grad

        return run

    for fn in (transposed, beside_another_result, with_its_base, written_in_python):
        for backend in (None, stator.backends.registry.look_up("aot_eager")[1]):
            check(lambda fn=fn: World(fn=fn), [step(1), step(2), step(3)], expect=None, backend=backend)


def test_stateless_patterns():
    check_stateless(lambda x: torch.stack([*map(torch.sin, (x, x))]))


def test_a_cached_function_is_asked_behind_a_write():
    def world():
        state = types.SimpleNamespace(count=0, calls=[], seen=None)

        @functools.lru_cache
        def is_available():
            state.calls.append("asked")
            return 2.0

        @functools.cache
        def at_least(version, accept_dev):
            return state.count if accept_dev else version

        def fn(x):
            state.count += 1
            state.seen = x * 2
            return x * is_available() + at_least(3, True) + at_least(4, False)

        return World(fn=fn, state=state, caches=[is_available, at_least])

    def cleared(w):
        for cache in w.caches:
            cache.cache_clear()
        return w.fn(rand(4))

    def filled(w):
        for cache, args in zip(w.caches, ((), (3, True), (4, False)), strict=False):
            cache(*args)
        w.caches[1](4, False)
        return w.fn(rand(4))

    check(world, [filled, *calls(1, 2, 3)], expect="miss miss hit hit", breaks=[])
    check(world, [*calls(1, 2), cleared, *calls(5, 6), filled, *calls(7)], expect=None)


def test_a_cache_that_tells_types_apart():
    def world():
        typed = functools.lru_cache(typed=True)(abs)
        w = World(k=-2, typed=typed)
        w.fn = lambda x: x * w.typed(w.k)
        return w

    def of(k):
        def call(w):
            w.k = k
            return w.fn(rand(4))

        return call

    check(world, [of(-2), of(-2), of(-2.0), of(-2), of(-2.0)], expect="miss hit miss hit hit", breaks=[])


def test_a_cache_that_keeps_nothing_breaks():
    def world():
        state = types.SimpleNamespace(count=0)
        nothing = functools.lru_cache(maxsize=0)(abs)

        def fn(x):
            state.count += 1
            return x * nothing(-3)

        return World(fn=fn, state=state)

    check(world, calls(), expect=None)
