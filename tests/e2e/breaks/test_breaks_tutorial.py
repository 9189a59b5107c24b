"""The tutorial's programs: how many graphs, how many breaks, why, and how that is told."""

from __future__ import annotations

import pytest
import torch
from harness import World, check, rand
from torch import nn

import stator


def with_print(x):
    y = x + 1
    print("Debug:", y.shape)
    return y * 2


def with_item(x):
    total = x.sum()
    if total.item() > 0:
        return x * 2
    return x - 1


def no_break(x):
    y = x * 2
    z = y + 1
    return z.relu()


def with_two_prints(x):
    a = x + 1
    print(a.shape)
    b = a * 2
    print(b.shape)
    return b - 3


PROGRAMS = {
    "with_print": (with_print, 2, ["call to print (side effect)"]),
    "with_item": (with_item, 2, ["call to tensor.item() (data-dependent control flow)"]),
    "no_break": (no_break, 1, []),
    "with_two_prints": (with_two_prints, 3, ["call to print (side effect)"] * 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_and_reasons(name):
    fn, graphs, reasons = PROGRAMS[name]
    for e in (stator.explain(fn)(torch.ones(4)), stator.explain(fn, torch.ones(4))):
        assert e.graph_count == graphs
        assert e.graph_break_count == len(reasons)
        assert [why.reason for why in e.break_reasons] == reasons
        assert len(e.graphs) == graphs


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_call_compiles_everything_and_later_calls_replay_it(name):
    fn, graphs, reasons = PROGRAMS[name]
    calls = [lambda w, seed=seed: w.fn(rand(seed).abs()) for seed in range(4)]
    seen = check(lambda: World(fn=fn), calls, expect="miss hit hit hit", graphs=graphs)
    assert [why.reason for why in seen.world.fn.stator.break_reasons] == reasons
    assert seen.world.fn.stator.plain == 0


def test_the_graphs_around_a_print():
    first, second = stator.explain(with_print)(torch.ones(4)).graphs
    assert [node.name for node in first.graph.nodes if node.op == "call_function"] == ["y"]
    assert [node.name for node in second.graph.nodes if node.op == "call_function"] == ["mul"]


def test_a_break_knows_its_place_and_what_to_do():
    (why,) = stator.explain(with_print)(torch.ones(4)).break_reasons
    assert (why.id, why.filename, why.function) == ("call-print", __file__, "with_print")
    assert why.lineno == with_print.__code__.co_firstlineno + 2
    assert why.line == 'print("Debug:", y.shape)'
    assert why.user_stack[-1].name == "with_print"
    assert why.hint == stator.errors.REASONS["call-print"].hint


def test_the_text_of_an_explanation():
    text = str(stator.explain(with_print)(torch.ones(4)))
    line = with_print.__code__.co_firstlineno + 2
    assert text.startswith(
        "\n".join(
            [
                "stator produced 2 graphs with 1 graph break and 2 ops",
                "",
                "Graph 1 (1 op):",
                "  y = add(l_x_, 1)",
                "",
                "Graph 2 (1 op):",
                "  mul = mul(l_y_, 2)",
                "",
                "Graph break 1: call to print (side effect)  [call-print]",
                f'  File "{__file__}", line {line}, in with_print',
                '    print("Debug:", y.shape)',
                "    ^^^^^^^^^^^^^^^^^^^^^^^^",
                f"  hint: {stator.errors.REASONS['call-print'].hint}",
            ]
        )
    )


@pytest.mark.parametrize("name", ["with_print", "with_item"])
def test_fullgraph_raises_the_text_of_the_explanation(name):
    fn = PROGRAMS[name][0]
    (why,) = stator.explain(fn)(torch.ones(4)).break_reasons
    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    for seed in range(3):
        with pytest.raises(stator.errors.GraphBreakError) as caught:
            compiled(rand(seed).abs())
        assert str(why) in str(caught.value)
        assert str(why) in str(stator.explain(fn)(torch.ones(4)))
    assert torch.equal(
        stator.compile(no_break, backend="eager", fullgraph=True)(torch.ones(4)), no_break(torch.ones(4))
    )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.linear(x)
        print("block")
        return x.relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if x.sum().item() > 1e9:
            return x
        return x * 2


def test_breaks_of_a_model_are_grouped_by_place_with_counts():
    torch.manual_seed(0)
    e = stator.explain(Model())(torch.ones(2, 4))
    # The second and the third block are served by one recording: what is behind the break in one serves the other.
    assert (e.graph_count, e.graph_break_count) == (5, 3)
    assert [(why.id, why.line, times) for why, times in e.breaks_by_place] == [
        ("call-print", 'print("block")', 2),
        ("tensor-item", "if x.sum().item() > 1e9:", 1),
    ]
    text = str(e)
    assert text.count('print("block")') == 1
    assert "Graph break 1 (2 times): call to print (side effect)  [call-print]" in text
    assert "Graph break 2: call to tensor.item()" in text


def test_a_model_with_breaks_replays():
    def world():
        torch.manual_seed(0)
        model = Model()
        return World(fn=model, model=model)

    calls = [lambda w, seed=seed: w.fn(rand(seed, 2, 4)) for seed in range(4)]
    check(world, calls, expect="miss hit hit hit", graphs=5, breaks=["call-print"] * 2 + ["tensor-item"])
