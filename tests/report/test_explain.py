"""What an explanation counts and how it prints."""

from __future__ import annotations

import dis
from typing import Any

import torch
from torch import fx

import stator
from stator.errors import break_reason
from stator.report.explain import Explanation, ops


def graph_of(function: Any) -> fx.GraphModule:
    return fx.symbolic_trace(function)


def mse(x: Any, y: Any) -> Any:
    z = (x - y) ** 2
    return z.sum()


def prints(x: Any) -> Any:
    x = x + 1
    print("hi")
    return x * 2


def a_break() -> Any:
    call = next(at.offset for at in dis.get_instructions(prints) if at.opname == "CALL")
    return break_reason("call-print", prints.__code__, call)


def test_counts_come_from_the_lists() -> None:
    e = Explanation(graphs=[graph_of(mse), graph_of(lambda x: x.sin())], break_reasons=[a_break()])
    assert (e.graph_count, e.graph_break_count, e.op_count) == (2, 1, 4)
    assert e.break_reasons[0].id == "call-print"


def test_an_explanation_of_nothing() -> None:
    e = Explanation(graphs=[])
    assert str(e) == "stator produced 0 graphs with 0 graph breaks and 0 ops"


def test_singular_and_plural() -> None:
    one = Explanation(graphs=[graph_of(lambda x: x.sin())], break_reasons=[a_break()])
    assert str(one).splitlines()[0] == "stator produced 1 graph with 1 graph break and 1 op"
    many = Explanation(graphs=[graph_of(mse), graph_of(lambda x: x.sin())])
    assert str(many).splitlines()[0] == "stator produced 2 graphs with 0 graph breaks and 4 ops"


def test_graphs_are_printed_as_their_operations() -> None:
    assert ops(graph_of(mse)) == ["sub = sub(x, y)", "pow_1 = pow(sub, 2)", "sum_1 = pow_1.sum()"]


def test_arguments_by_name_and_submodules_are_printed() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.inner(x).mean(dim=-1)

    assert ops(graph_of(Net())) == ["inner = inner(x)", "mean = inner.mean(dim=-1)"]


def test_the_whole_text() -> None:
    first = graph_of(lambda x: x + 1)
    second = graph_of(lambda x: x * 2)
    why = a_break()
    e = Explanation([first, second], [why], compile_times={"watch": 0.0123, "backend": 1.5})
    assert str(e) == "\n".join(
        [
            "stator produced 2 graphs with 1 graph break and 2 ops",
            "",
            "Graph 1 (1 op):",
            "  add = add(x, 1)",
            "",
            "Graph 2 (1 op):",
            "  mul = mul(x, 2)",
            "",
            "Graph break 1: call to print (side effect)  [call-print]",
            f'  File "{__file__}", line {why.lineno}, in prints',
            '    print("hi")',
            "    ^^^^^^^^^^^",
            "  hint: do it before or after the compiled function, or return what is to be printed",
            "",
            "Times: watch 12.3 ms, backend 1.50 s",
        ]
    )


def test_breaks_at_one_place_are_counted() -> None:
    load = next(at.offset for at in dis.get_instructions(prints) if at.opname == "RETURN_VALUE")
    elsewhere = break_reason("call-print", prints.__code__, load)
    e = Explanation([], [a_break(), elsewhere, a_break(), a_break()])
    assert e.graph_break_count == 4
    assert [(why.lineno, times) for why, times in e.breaks_by_place] == [(a_break().lineno, 3), (elsewhere.lineno, 1)]
    heads = [line for line in str(e).splitlines() if line.startswith("Graph break")]
    assert heads == [
        "Graph break 1 (3 times): call to print (side effect)  [call-print]",
        "Graph break 2: call to print (side effect)  [call-print]",
    ]


def test_two_reasons_at_one_place_stay_apart() -> None:
    e = Explanation([], [a_break(), break_reason("time", prints.__code__, None, what="time.time"), a_break()])
    assert [(why.id, times) for why, times in e.breaks_by_place] == [("call-print", 2), ("time", 1)]


def test_what_cannot_be_recorded_at_all_is_said() -> None:
    def numbers(x: Any) -> Any:
        yield x + 1

    for function, name in ((torch.sin, "sin"), (numbers, "numbers")):
        explanation = stator.explain(function)(torch.ones(2))
        assert (explanation.graph_count, explanation.graph_break_count) == (0, 1), name
        assert name in explanation.break_reasons[0].reason and "hint: " in str(explanation)
        assert explanation.again(torch.ones(2)).graph_break_count == 1
