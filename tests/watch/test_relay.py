"""The replay of a segment that is nothing but a graph, by hand: no torch, no pytest, as test_engine."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

from stator import _native as n


def raises(error: type[BaseException], call: Any, *args: Any) -> None:
    try:
        call(*args)
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected")


class Graph:
    """As a graph module: what a backend gives back is mostly its bound method."""

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        return (len(inputs), *inputs)

    __call__ = forward


def test_parts_of_the_result() -> None:
    state = [object() for _ in range(4)]
    constant = object()
    parts = ((n.FROM_OUTPUT, 1), (n.FROM_VALUE, 3), (n.FROM_CONSTANT, constant), (n.FROM_VALUE, 0), (n.FROM_OUTPUT, 0))
    relay = n.Relay(Graph().forward, 2, parts, True)
    for _ in range(3):
        made = relay(tuple(state))
        assert type(made) is tuple and made == (state[0], state[3], constant, state[0], 2)
    assert n.Relay(Graph().forward, 2, ((n.FROM_OUTPUT, 2),), False)(tuple(state)) is state[1]
    assert n.Relay(Graph().forward, 2, (), True)(tuple(state)) == ()


def test_every_kind_of_callable_and_number_of_inputs() -> None:
    graph = Graph()

    def as_list(*inputs: Any) -> list[Any]:
        return [len(inputs), *inputs]

    for callable_ in (graph.forward, graph, as_list):
        for count in (0, 1, 7, 8, 9, 40):
            values = tuple(range(1000, 1000 + count + 1))
            parts = tuple((n.FROM_OUTPUT, i) for i in range(count + 1))
            assert n.Relay(callable_, count, parts, True)(values) == (count, *values[:count])


def test_without_a_graph() -> None:
    relay = n.Relay(None, 0, ((n.FROM_VALUE, 1), (n.FROM_CONSTANT, None)), True)
    assert relay.graph is None and relay((1, 2)) == (2, None)
    raises(ValueError, n.Relay, None, 0, ((n.FROM_OUTPUT, 0),), True)
    raises(ValueError, relay.settle, Graph())


def test_what_it_refuses() -> None:
    relay = n.Relay(Graph(), 1, ((n.FROM_VALUE, 2),), False)
    for values in ((), (1, 2), [1, 2, 3], None):
        raises(TypeError, relay, values)
    raises(TypeError, relay)
    assert relay((1, 2, 3)) == 3
    for parts in (((n.FROM_VALUE, -1),), ((9, 0),), ((-1, 0),), (), ((n.FROM_VALUE, 0),) * 2):
        raises(ValueError, n.Relay, Graph(), 1, parts, False)
    raises(ValueError, n.Relay, Graph(), -1, (), True)
    raises(TypeError, n.Relay, Graph(), 1, ((n.FROM_VALUE, "0"),), False)


def test_what_goes_wrong_in_the_graph_is_raised() -> None:
    def fails(x: Any) -> Any:
        raise KeyError(x)

    raises(KeyError, n.Relay(fails, 1, ((n.FROM_OUTPUT, 0),), True), ("x",))
    raises(IndexError, n.Relay(lambda x: (x,), 1, ((n.FROM_OUTPUT, 0), (n.FROM_OUTPUT, 1)), True), ("x",))
    raises(TypeError, n.Relay(lambda x: None, 1, ((n.FROM_OUTPUT, 0),), False), ("x",))


def test_another_graph_while_it_runs() -> None:
    def first(x: Any) -> Any:
        relay.settle(lambda x: ("second",))
        gc.collect()
        return ("first",)

    relay = n.Relay(first, 1, ((n.FROM_OUTPUT, 0), (n.FROM_VALUE, 0)), True)
    assert relay((1,)) == ("first", 1) and relay((1,)) == ("second", 1)


def test_nothing_is_held_or_lost() -> None:
    value, constant, graph = object(), object(), Graph()
    relay = n.Relay(graph.forward, 1, ((n.FROM_OUTPUT, 1), (n.FROM_VALUE, 0), (n.FROM_CONSTANT, constant)), True)
    before = [sys.getrefcount(thing) for thing in (value, constant, graph)]
    for _ in range(100):
        relay((value,))
    assert [sys.getrefcount(thing) for thing in (value, constant, graph)] == before


def test_a_cycle_is_collected() -> None:
    graph = Graph()
    graph.relay = n.Relay(graph.forward, 0, ((n.FROM_CONSTANT, graph),), False)  # type: ignore[attr-defined]
    dead = weakref.ref(graph)
    del graph
    gc.collect()
    assert dead() is None
