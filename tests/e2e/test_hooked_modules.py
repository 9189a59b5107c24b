"""Full backward hooks of modules: one step of plain Python each, and guards in C."""

from __future__ import annotations

import pytest
import torch
from harness import rand
from torch import nn

import stator
from stator.replay import engine


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 4))
    return model, []


def scaling(seen, factor):
    def hook(module, given, taken):
        seen.append(factor)
        return tuple(None if each is None else each * factor for each in given)

    return hook


def step(model, call, seed):
    model.zero_grad(set_to_none=True)
    x = rand(seed, 2, 4).requires_grad_()
    call(x).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def test_hooks_that_come_go_and_change_their_order():
    """Called in the order of the dict that they stand in, which is an OrderedDict with an order of its own."""

    def changes(model, seen):
        hooked = model[1]
        yield
        yield
        first = hooked.register_full_backward_hook(scaling(seen, 2.0))
        yield
        yield
        hooked.register_full_backward_hook(scaling(seen, 3.0))
        yield
        yield
        hooked._backward_hooks.move_to_end(next(iter(hooked._backward_hooks)))
        yield
        yield
        first.remove()
        yield
        yield

    (plain, expected), (model, seen) = build(), build()
    compiled = stator.compile(model)
    for seed, _ in enumerate(zip(changes(plain, expected), changes(model, seen), strict=True)):
        torch.testing.assert_close(step(model, compiled, seed), step(plain, plain, seed))
        assert seen == expected
    assert seen == [2.0, 2.0, 2.0, 3.0, 2.0, 3.0, 3.0, 2.0, 3.0, 2.0, 3.0, 3.0]
    assert compiled.stator.hits >= 4


def test_a_call_with_hooks_is_checked_in_c(monkeypatch):
    asked = []
    first_failing = engine._first_failing

    def asking(origin, checks, known):
        asked.append(checks)
        return first_failing(origin, checks, known)

    model, seen = build()
    model[1].register_full_backward_hook(scaling(seen, 2.0))
    compiled = stator.compile(model)
    for seed in range(3):
        step(model, compiled, seed)
    monkeypatch.setattr(engine, "_first_failing", asking)
    recorded = compiled.stator.recordings
    for seed in range(3):
        step(model, compiled, seed)
    assert asked == [] and compiled.stator.recordings == recorded and len(seen) == 6
    assert {why.id for why in compiled.stator.break_reasons} == {"module-hooks"}
    assert len(compiled.stator.graphs) == 3


def test_without_gradients_nothing_breaks():
    model, seen = build()
    model[1].register_full_backward_hook(scaling(seen, 2.0))
    compiled = stator.compile(model, fullgraph=True)
    with torch.no_grad():
        for seed in range(3):
            assert torch.allclose(compiled(rand(seed, 2, 4)), model(rand(seed, 2, 4)))
    assert (compiled.stator.recordings, compiled.stator.hits, seen) == (1, 2, [])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("part", [torch.vmap(lambda row: row + 1), Doubled.apply, lambda x: nn.functional.dropout(x)])
def test_hooks_for_all_modules_hear_of_no_module_of_ours(part, backend):
    """Graphs, and the parts of graphs that are called as a whole, are modules; the program has made none of them."""
    heard = []
    compiled = stator.compile(lambda x: part(x) * 3, backend=backend)
    hooks = [
        nn.modules.module.register_module_forward_pre_hook(lambda module, given: heard.append(type(module).__name__)),
        nn.modules.module.register_module_forward_hook(lambda module, given, result: heard.append("result")),
    ]
    try:
        for seed in (1, 2, 3):
            x = rand(seed, 2, 4)
            torch.manual_seed(seed)
            wanted = part(x) * 3
            torch.manual_seed(seed)
            assert torch.equal(compiled(x), wanted)
    finally:
        for hook in hooks:
            hook.remove()
    assert compiled.stator.hits == 2 and heard == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_a_part_of_a_graph_raises_is_not_printed(backend, capfd):
    """(Torch prints what is raised by the graph modules that it makes.)"""
    table = rand(1, 5)

    def picked(places):
        try:
            return torch.vmap(lambda place: table[place])(places) * 2
        except IndexError:
            return table[:3] * 3

    compiled = stator.compile(picked, backend=backend)
    for places in ([0, 1, 2], [0, 1, 9], [4, 1, 0], [0, 1, 9]):
        assert torch.equal(compiled(torch.tensor(places)), picked(torch.tensor(places)))
    assert compiled.stator.hits >= 1
    assert capfd.readouterr().err == ""
