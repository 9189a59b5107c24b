"""Marks that libraries put on functions and tensors for torch's own compiler mean the same to us."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch._dynamo
from harness import World, check, rand
from torch import nn

import stator

CALLS = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3)), lambda w: w.fn(rand(4))]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("disable", [torch.compiler.disable, torch._dynamo.disable])
def test_a_disabled_function_is_not_watched(disable):
    def world():
        log = []

        @disable
        def inner(x):
            log.append(1)
            return x * (100 if torch.compiler.is_compiling() else 1)

        return World(fn=lambda x: inner(x + 1) - 1, log=log)

    seen = check(world, CALLS, expect=None, graphs=2)
    assert [why.id for why in seen.world.fn.stator.break_reasons] == ["disabled-function"]
    assert seen.outcomes == ["miss", "hit", "hit", "hit"]


def test_a_disabled_function_with_a_reason():
    inner = torch.compiler.disable(lambda x: x.sin(), reason="it is mine")
    compiled = stator.compile(lambda x: inner(x + 1) - 1, backend="eager")
    for seed in range(3):
        compiled(rand(seed))
    assert "it is mine" in str(compiled.stator.break_reasons[0])


def test_a_disabled_method_and_class():
    def world():
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0

            @torch.compiler.disable
            def helper(self, x):
                self.calls += 1
                return x * (100 if torch.compiler.is_compiling() else self.calls)

            def forward(self, x):
                return self.helper(x + 1) * 2

        net = Net()
        return World(fn=lambda x: net(x), net=net)

    check(world, CALLS, expect=None, graphs=2)


@pytest.mark.parametrize("disable", [torch.compiler.disable, torch._dynamo.disable])
@pytest.mark.parametrize("recursive", [True, False])
def test_what_a_disabled_function_calls(disable, recursive):
    """Eager, torch.compile and we agree: a part that is left alone, with or without what it calls, is not compiled."""

    @(disable if recursive else lambda fn: disable(fn, recursive=False))
    def outer(x):
        return x * (100 if torch.compiler.is_compiling() else 1)

    def fn(x):
        return outer(x + 1) - 1

    compiled, theirs = stator.compile(fn, backend="eager"), torch.compile(fn, backend="eager")
    for seed in range(4):
        assert torch.equal(compiled(rand(seed)), fn(rand(seed)))
        assert torch.equal(theirs(rand(seed)), fn(rand(seed)))
    kind = "disabled-function" if recursive else "disabled-frame"
    assert [why.id for why in compiled.stator.break_reasons] == [kind]
    assert compiled.stator.hits == 3


@pytest.mark.parametrize("part", [False, True])
def test_a_disabled_class_of_modules(part):
    def world():
        log = []

        @torch.compiler.disable
        class Net(nn.Module):
            def forward(self, x):
                log.append(1)
                return x * (100 if torch.compiler.is_compiling() else 1)

        net = nn.Sequential(nn.Tanh(), Net()) if part else Net()
        return World(fn=lambda x: net(x + 1) - 1, log=log)

    seen = check(world, CALLS, expect=None, graphs=2)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"disabled-function"}


def test_a_disabled_function_that_c_code_calls():
    def world():
        log = []

        @torch.compiler.disable
        def inner(x):
            log.append(torch.compiler.is_compiling())
            return x * (100 if torch.compiler.is_compiling() else 1)

        return World(fn=lambda x: sum(map(inner, [x + 1, x + 2])) - 1, log=log)

    check(world, CALLS, expect=None)


def test_torch_disables_functions_of_its_own():
    """Optimizers are patched when TorchDynamo is loaded: a step is a graph all the same."""

    def world():
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)

        def fn(x):
            weight.grad = x * 2
            optimizer.step()
            return weight * 1

        return World(fn=fn, weight=weight)

    seen = check(world, CALLS, expect=None)
    assert seen.outcomes[-1] == "hit"


def test_graph_break():
    def world():
        def fn(x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

        return World(fn=fn)

    seen = check(world, CALLS, expect=None, graphs=2)
    assert [why.id for why in seen.world.fn.stator.break_reasons] == ["user-graph-break"]
    assert seen.outcomes == ["miss", "hit", "hit", "hit"]


# -- is somebody compiling?


def test_a_library_is_told_that_somebody_compiles():
    def fn(x):
        asked = (torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), torch._dynamo.is_compiling())
        return x * sum(asked)

    compiled = stator.compile(fn, backend="eager")
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) * 3)
    assert compiled.stator.hits == 2 and not compiled.stator.break_reasons


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_itself_goes_the_way_of_eager(backend):
    """With a padding mask the encoder takes nested tensors, unless somebody compiles."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    compiled = stator.compile(net, backend=backend)
    mask = torch.tensor([[False, False, False], [False, False, True]])
    with torch.no_grad(), warnings.catch_warnings(record=True) as warned:
        for seed in range(4):
            x = rand(seed, 2, 3, 8)
            wanted = net(x, src_key_padding_mask=mask)
            assert torch.equal(compiled(x, src_key_padding_mask=mask), wanted)
    assert not [w for w in warned if "stator" in str(w.message)]


# -- its books


def test_modules_are_made_inside():
    def world():
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))

        def fn(x):
            return nn.Sequential(nn.Identity(), nn.ReLU())(x * 2)

        return World(fn=fn)

    check(world, CALLS, expect="miss hit hit hit")


def test_a_module_that_was_made_inside_is_given_back():
    def world():
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))

        class Scale(nn.Module):
            def __init__(self, factor):
                super().__init__()
                self.factor = factor

            def forward(self, x):
                return x * self.factor

        def fn(x):
            scale = Scale(3)
            return scale(x), scale

        return World(fn=fn)

    check(world, CALLS, expect="miss hit hit hit")


# -- functions that are not looked into


@pytest.mark.parametrize("mark", [torch.compiler.allow_in_graph, stator.allow_in_graph])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_allowed_in_the_graph(mark, backend):
    ran = []

    @mark
    def inner(x, k, *, bias):
        ran.append(stator.is_compiling())
        print(end="")  # would break the graph
        return x * k + bias, x - 1

    def fn(x):
        a, b = inner(x + 1, 2.0, bias=x)
        return a - b

    compiled = stator.compile(fn, backend=backend, fullgraph=True)
    for seed in range(4):
        x = rand(seed).requires_grad_()
        y = compiled(x)
        y.sum().backward()
        torch.testing.assert_close(y, (x + 1) * 2.0 + x - ((x + 1) - 1))
        torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))
    assert compiled.stator.hits == 3 and len(compiled.stator.graphs) == 1
    assert inner in [node.target for node in compiled.stator.graphs[0].graph.nodes]
    assert not any(ran)


def test_an_allowed_function_writes_and_fails():
    def world():
        @stator.allow_in_graph
        def inner(x):
            if x.numel() > 4:
                raise ValueError("too long")
            x.add_(1)
            return x * 2

        def fn(x):
            try:
                return inner(x)
            except ValueError as error:
                return str(error)

        return World(fn=fn)

    def call(seed, size):
        return lambda w: (w.fn(x := rand(seed, size)), x)

    check(world, [call(1, 3), call(2, 3), call(3, 5), call(4, 5), call(5, 3)], expect=None)


@pytest.mark.parametrize("mark", [torch.compiler.assume_constant_result, stator.assume_constant_result])
def test_an_assumed_constant(mark):
    ran = []

    @mark
    def settings(name):
        ran.append(name)
        print(end="")
        return {"k": 3.0, "w": torch.full((4,), 2.0)}

    def fn(x):
        found = settings("a")
        return x * found["k"] + found["w"]

    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    for seed in range(4):
        assert torch.equal(compiled(rand(seed)), rand(seed) * 3.0 + 2.0)
    assert compiled.stator.hits == 3 and ran == ["a"]


def test_marks_on_what_is_no_function():
    for mark in (stator.allow_in_graph, stator.assume_constant_result):
        with pytest.raises(TypeError, match="takes a Python function"):
            mark(3)


# -- sizes


@pytest.mark.parametrize("mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic])
def test_a_size_that_is_marked_as_dynamic(mark):
    compiled = stator.compile(lambda xs: xs["a"][0] * 2 + 1, backend="eager")
    for size in (3, 4, 5, 6):
        x = rand(size, size, 2)
        mark(x, 0)
        assert torch.equal(compiled({"a": [x]}), x * 2 + 1)
    assert compiled.stator.hits == 3 and len(compiled.stator.graphs) == 1


def test_a_size_that_is_marked_as_dynamic_and_is_not():
    def fn(x):
        return x * len(range(x.shape[0]))

    compiled = stator.compile(fn, backend="eager")
    x = rand(3, 3, 2)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    with pytest.raises(stator.errors.SpecializationError):
        compiled(x)
    weak = stator.compile(fn, backend="eager")
    for size in (3, 4, 3):
        x = rand(size, size, 2)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert torch.equal(weak(x), x * size)


def test_a_size_that_is_marked_as_static():
    compiled = stator.compile(lambda x: x * 2 + 1, backend="eager", dynamic=True)
    for size in (3, 4, 5):
        x = rand(size, size, 2)
        torch._dynamo.mark_static(x, 0)
        assert torch.equal(compiled(x), x * 2 + 1)
    assert compiled.stator.hits == 0 and len(compiled.stator.graphs) == 3


# -- stances


@pytest.mark.parametrize("set_stance", [torch.compiler.set_stance, stator.set_stance])
def test_force_eager(set_stance):
    ran = []

    def fn(x):
        ran.append(1)
        return x + 1

    compiled = stator.compile(fn, backend="eager")
    for seed in range(3):
        compiled(rand(seed))
    assert compiled.stator.hits + compiled.stator.recordings == 3
    with set_stance("force_eager"):
        for seed in range(3):
            assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    assert compiled.stator.plain == 3 and len(ran) == 6
    compiled(rand(1))
    assert compiled.stator.plain == 3


@pytest.mark.parametrize("set_stance", [torch.compiler.set_stance, stator.set_stance])
def test_eager_then_compile(set_stance):
    compiled = stator.compile(lambda x: x + 1, backend="eager")
    with set_stance("eager_then_compile"):
        for seed in range(4):
            assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    assert (compiled.stator.plain, compiled.stator.recordings, compiled.stator.hits) == (1, 1, 2)


@pytest.mark.parametrize("set_stance", [torch.compiler.set_stance, stator.set_stance])
def test_no_recompilation(set_stance):
    compiled = stator.compile(lambda x: x + 1, backend="eager", dynamic=False)
    compiled(rand(1, 3))
    with set_stance("fail_on_recompile"):
        compiled(rand(2, 3))
        with pytest.raises(stator.errors.RecompileError):
            compiled(rand(2, 4))
    with set_stance("eager_on_recompile"):
        compiled(rand(2, 3))
        assert torch.equal(compiled(rand(2, 4)), rand(2, 4) + 1)
    assert (compiled.stator.plain, compiled.stator.recordings, compiled.stator.hits) == (1, 1, 2)


@pytest.mark.parametrize("reset", [torch.compiler.reset, torch._dynamo.reset, stator.reset])
def test_reset(reset):
    compiled = stator.compile(lambda x: x + 1, backend="eager")
    for seed in range(3):
        compiled(rand(seed))
    assert compiled.stator.recordings == 1
    torch.compile(lambda x: x + 1, backend="eager")(rand(1))  # is no reset
    compiled(rand(1))
    assert compiled.stator.recordings == 1
    reset()
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    assert compiled.stator.recordings == 2


def test_disabled_but_not_what_it_calls():
    inner = stator.compile(lambda x: x * (2 if stator.is_compiling() else 1), backend="eager")

    @stator.disable(recursive=False, reason="own code")
    def outer(x):
        return inner(x) + (100 if stator.is_compiling() else 0)

    compiled = stator.compile(lambda x: outer(x + 1) - 1, backend="eager")
    for seed in range(4):
        compiled(rand(seed))
    assert [why.id for why in compiled.stator.break_reasons] == ["disabled-frame"]
    assert len(compiled.stator.graphs) == 2 and inner.stator.hits
