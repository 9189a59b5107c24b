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
