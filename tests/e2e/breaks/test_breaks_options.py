"""Options that spare a break: numbers that stay in the graph, lines that are printed later."""

from __future__ import annotations

import torch
from harness import World, check, rand

import stator


def test_a_number_stays_in_the_graph_where_only_tensor_operations_use_it():
    def fn(x):
        scale = x.sum().item()
        y = x * scale
        return (y + 1).relu() - scale

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    with stator.options.patch(capture_scalar_outputs=True):
        seen = check(lambda: World(fn=fn), calls, expect="miss hit hit hit", graphs=1, breaks=[])
    (graph,) = seen.graphs
    targets = [node.target for node in graph.graph.nodes if node.op == "call_method"]
    assert "item" in targets


def test_a_number_that_python_needs_breaks_where_it_is_needed():
    def fn(x):
        total = x.sum().item()
        y = x * 2 + total
        if total > 0:
            return y + 1, total
        return y - 1, total

    values = [[1.0, 2.0], [3.0, 4.0], [-1.0, -5.0], [2.0, 2.0], [-3.0, 1.0]]
    calls = [lambda w, v=v: w.fn(torch.tensor(v)) for v in values]
    with stator.options.patch(capture_scalar_outputs=True):
        check(lambda: World(fn=fn), calls, expect="miss hit miss hit hit", graphs=3, breaks=["tensor-item"])


def test_an_int_of_a_tensor():
    def fn(x):
        n = x.argmax().item()
        return x + n, n

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    with stator.options.patch(capture_scalar_outputs=True):
        check(lambda: World(fn=fn), calls, expect="miss hit hit hit", graphs=1, breaks=[])


def test_without_the_option_it_breaks():
    def fn(x):
        return x * x.sum().item()

    e = stator.explain(fn)(rand(1))
    assert [why.id for why in e.break_reasons] == ["tensor-item"]


def test_lines_are_printed_where_the_segment_ends():
    def fn(x, name):
        print("start", name, 3, sep="-")
        y = x + 1
        print("half", end="!\n")
        y = y * 2
        print(1.5, None, True)
        return y

    calls = [lambda w, seed=seed: w.fn(rand(seed), "one") for seed in range(3)]
    calls.append(lambda w: w.fn(rand(4), "two"))
    with stator.options.patch(reorder_print=True):
        check(lambda: World(fn=fn), calls, expect="miss hit hit miss", graphs=2, breaks=[])


def test_what_depends_on_a_tensor_is_still_a_break():
    def fn(x):
        y = x + 1
        print("before")
        print(y)
        print("after")
        return y * 2

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    with stator.options.patch(reorder_print=True):
        check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["call-print"])


def test_a_line_in_a_loop_with_a_break():
    def fn(x):
        for i in range(4):
            x = x + 1
            print("round", i)
            stator.graph_break()
        print("done")
        return x

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    with stator.options.patch(reorder_print=True):
        check(lambda: World(fn=fn), calls, expect=None)
