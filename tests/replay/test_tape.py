"""Tapes: a graph that C code runs gives what the code of fx gives, lets go of values as that does, fails as it does."""

from __future__ import annotations

import gc
import operator
import signal
import sys
import weakref
from collections import namedtuple

import pytest
import torch
from torch import fx, nn

import stator
from stator import _native
from stator.backends.tape import tape_of
from stator.errors import is_unwritten


def graph_of(*nodes, inputs=1, result):
    """A graph from rows (op, target, args, kwargs): arguments name inputs and earlier rows by `Ref(number)`."""
    graph = fx.Graph()
    values = [graph.placeholder(f"x{i}") for i in range(inputs)]

    def filled(value):
        return fx.node.map_aggregate(value, lambda v: values[v.number] if isinstance(v, Ref) else v)

    for op, target, args, kwargs in nodes:
        values.append(graph.create_node(op, target, filled(args), filled(kwargs)))
    graph.output(filled(result))
    return graph


class Ref:
    def __init__(self, number):
        self.number = number


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, slice):
        return isinstance(b, slice) and same([a.start, a.stop, a.step], [b.start, b.stop, b.step])
    return a == b


def call(target, *args, **kwargs):
    return "call_function", target, args, kwargs


def method(name, *args, **kwargs):
    return "call_method", name, args, kwargs


def pair(a, b=None, *, c=None, d=None):
    return [a, b], {"c": c, "d": d}


X, Y, A, B, C = map(Ref, range(5))
GRAPHS = {
    "operators": ([call(operator.add, X, Y), call(operator.mul, A, 2), call(operator.pow, 2, B)], (A, B, C)),
    "all operators": (
        [call(getattr(operator, n), X, Y) for n in ("sub", "truediv", "matmul", "floordiv", "mod")],
        [Ref(i) for i in range(2, 7)],
    ),
    "other operators": ([call(operator.lt, X, Y), call(operator.neg, X), call(operator.and_, A, A)], (A, B, C)),
    "in place": ([method("clone", X), call(operator.iadd, A, Y), method("mul_", B, 2)], (A, B, C)),
    "items": ([call(operator.getitem, X, (0, slice(None, 2), None)), call(operator.getitem, Y, ...)], (A, B)),
    "slices of numbers": (
        [method("size", X, 1), call(operator.getitem, X, (slice(None), slice(0, A, 1))), method("sum", B)],
        (A, B, C),
    ),
    "keywords": ([call(torch.sum, X, dim=1, keepdim=True), method("sum", Y, dim=0), call(torch.add, A, B, alpha=3)], C),
    "lists": ([call(torch.cat, [X, Y, X], 1), call(torch.stack, (X, Y)), call(torch.cat, tensors=[X, Y])], (A, B, C)),
    "dicts": ([call(pair, {"x": X, "n": [1, Y]}, (X, (Y, 3)), c=slice(X, None, 2), d={})], {"out": A, "x": [X, (Y,)]}),
    "constants": (
        [call(torch.zeros, (2, 3), dtype=torch.float64), call(torch.full, [2, 2], 1.5)],
        (A, B, None, 3, "x"),
    ),
    "an input alone": ([], X),
    "nothing": ([method("add_", X, 0)], ()),
    "the same twice": ([call(operator.add, X, X)], (A, A, X, Y)),
    "unused": ([call(operator.add, X, Y), call(operator.add, X, 1)], (B,)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_fx_gives(name):
    rows, result = GRAPHS[name]
    graph = graph_of(*rows, inputs=2, result=result)
    forward, tape = fx.GraphModule({}, graph).forward, tape_of(graph)
    assert isinstance(tape, _native.Tape)
    for seed in range(3):
        torch.manual_seed(seed)
        given = torch.rand(3, 3), torch.rand(3, 3) + 1
        wanted = forward(*(t.clone() for t in given))
        assert same(wanted, tape(*(t.clone() for t in given)))


def test_many_values_and_many_arguments():
    rows = [call(operator.add, X, i) for i in range(60)]
    graph = graph_of(*rows, call(torch.stack, [Ref(i) for i in range(1, 61)]), result=(Ref(61), Ref(7)))
    tape = tape_of(graph)
    assert tape.registers > 30
    x = torch.rand(4)
    for _ in range(3):
        assert same(tape(x), fx.GraphModule({}, graph).forward(x))
    chain = graph_of(*[call(operator.add, Ref(i), 1) for i in range(60)], result=Ref(60))
    assert tape_of(chain).registers == 2  # rooms are used again
    assert same(tape_of(chain)(x), fx.GraphModule({}, chain).forward(x))
    wide = graph_of(call(max, *[Ref(i) for i in range(40)]), inputs=40, result=Ref(40))
    assert tape_of(wide)(*range(40)) == 39


def test_values_are_let_go_of_behind_their_last_use():
    alive = []

    def make(x):
        result = x + 1
        alive.append(weakref.ref(result))
        return result

    def count(x):
        return sum(ref() is not None for ref in alive)

    rows = [call(make, X), call(make, A1), call(count, B1), call(make, B1), call(count, D1), call(make, X)]
    graph = graph_of(*rows, result=(C1, E1))
    for run in (fx.GraphModule({}, graph).forward, tape_of(graph)):
        alive.clear()
        assert run(torch.ones(2)) == (1, 1)
        assert count(None) == 0


A1, B1, C1, D1, E1 = map(Ref, range(1, 6))


def test_an_operation_that_fails():
    kept = []

    def fail(x):
        kept.append(weakref.ref(x))
        raise ValueError("no")

    tape = tape_of(graph_of(call(operator.add, X, 1), call(fail, A1), call(operator.mul, B1, 2), result=(C1,)))
    x = torch.ones(3)
    before = sys.getrefcount(x)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            tape(x)
    assert sys.getrefcount(x) == before and all(ref() is None for ref in kept)
    with pytest.raises(RuntimeError, match="size of tensor"):
        tape_of(graph_of(call(operator.add, X, Y), inputs=2, result=A))(torch.ones(2), torch.ones(3))
    with pytest.raises(AttributeError, match="nonsense"):
        tape_of(graph_of(method("nonsense", X), result=A1))(x)
    with pytest.raises(TypeError, match="unhashable"):
        tape_of(graph_of(call(hash, [X]), result=A1))(x)


def test_references_stay_in_balance():
    rows = [call(pair, {"x": X}, [X, (1, X)], c=slice(X, X), d=(X,)), call(operator.add, X, X), method("view", B1, -1)]
    tape = tape_of(graph_of(*rows, result=(A1, [C1], {"x": X})))
    x, constant = torch.ones(3), None
    before = sys.getrefcount(x), sys.getrefcount(constant)
    for _ in range(1000):
        tape(x)
    assert sys.getrefcount(x) == before[0] and abs(sys.getrefcount(constant) - before[1]) < 100


def test_wrong_calls():
    tape = tape_of(graph_of(call(operator.add, X, 1), result=A1))
    for given in ((), (1, 2)):
        with pytest.raises(TypeError, match="takes 1 inputs"):
            tape(*given)
    with pytest.raises(TypeError, match="keywords"):
        tape(x=1)
    for wrong in (
        ([], 2, 1, (0, 0)),
        ([], 1, 1, (0, 1)),
        ([], 1, 1, (9, 0)),
        ([(7, len, [], (), 1, ())], 1, 2, (0, 1)),
        ([(0, len, [(0, 5)], (), 1, ())], 1, 2, (0, 1)),
        ([(0, len, [], (), 0, ())], 1, 2, (0, 1)),
        ([(0, len, [], (), 1, (0,))], 1, 2, (0, 1)),
        ([(0, len, [(4, [(0, 0)])], (), 1, ())], 1, 2, (0, 1)),
        ([(0, len, [(5, (("a",), []))], (), 1, ())], 1, 2, (0, 1)),
        ([(1, len, [(0, 0)], (), 1, ())], 1, 2, (0, 1)),
        ([(2, "add", [(0, 0)], (), 1, ())], 1, 2, (0, 1)),
        ([(2, "nonsense", [(0, 0), (0, 0)], (), 1, ())], 1, 2, (0, 1)),
        ([(0, len, [], ("a",), 1, ())], 1, 2, (0, 1)),
        ([(0, len, ["x"], (), 1, ())], 1, 2, (0, 1)),
        (["x"], 1, 2, (0, 1)),
    ):
        with pytest.raises((ValueError, TypeError)):
            _native.Tape(*wrong)
    unset = _native.Tape([(0, len, [(0, 1)], (), -1, ())], 1, 2, (0, 0))
    with pytest.raises(SystemError, match="before it is set"):
        unset(1)
    with pytest.raises(SystemError, match="before it is set"):
        _native.Tape([], 1, 2, (2, [(0, 1)]))(1)


def test_what_is_no_tape():
    class Sub(nn.Module):
        def forward(self, x):
            return x + 1

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("sub", (x,)))
    assert tape_of(graph) is None
    graph = fx.Graph()
    graph.output(graph.get_attr("weight"))
    assert tape_of(graph) is None
    assert tape_of(fx.Graph()) is None
    point = namedtuple("point", "x y")
    assert tape_of(graph_of(call(pair, point(X, X)), result=A1)) is None
    assert tape_of(graph_of(call(torch.zeros, torch.Size((2, 3))), result=A1))(0).shape == (2, 3)


def test_cycles_are_collected():
    class Target:
        __name__ = "target"

        def __call__(self, x):
            return x

    target = Target()
    tape = tape_of(graph_of(call(target, X, [1, (X, target)], c={"x": target}), result=(A1, target)))
    target.tape = tape
    gone = weakref.ref(target)
    del target, tape
    gc.collect()
    assert gone() is None


def test_an_interrupt_comes_through():
    def interrupt(x):
        signal.raise_signal(signal.SIGINT)
        return x

    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        rows = [call(torch.add, X, 1)] * 5
        tape = tape_of(graph_of(call(interrupt, X), *rows * 10, result=(Ref(9),)))
        with pytest.raises(KeyboardInterrupt):
            tape(torch.ones(2))
    finally:
        signal.signal(signal.SIGINT, former)


def test_the_eager_backend_runs_tapes():
    def fn(x, y):
        z = torch.cat([x, y], dim=1)[:, 1:].relu()
        return {"sum": z.sum(dim=0), "parts": list(torch.split(z, 2))}, z.max(dim=1)

    compiled = stator.compile(fn, backend="eager")
    for _ in range(4):
        x, y = torch.randn(4, 3), torch.randn(4, 2)
        (made, (values, indices)), (wanted, (most, places)) = compiled(x, y), fn(x, y)
        assert same(made, wanted) and torch.equal(values, most) and torch.equal(indices, places)
    (entry,) = compiled.stator.entries
    assert stator.explain(fn)(x, y).graph_count == 1 and entry is not None


def test_what_fails_before_anything_is_lost_says_so() -> None:
    def tape(harmless: int) -> _native.Tape:
        steps = [(0, operator.index, [(0, place)], (), -1, ()) for place in range(3)]
        return _native.Tape(steps, 3, 3, (0, 0), harmless)

    for harmless in range(5):
        for place in range(3):
            with pytest.raises(TypeError) as raised:
                tape(harmless)(*["a" if at == place else 1 for at in range(3)])
            assert is_unwritten(raised.value) is (place < harmless)
    assert tape(1)(1, 2, 3) == 1


def test_an_exception_that_is_raised_once_more_says_it_anew() -> None:
    error = KeyError("one")

    def fail(fails: bool) -> None:
        if fails:
            raise error

    tape = _native.Tape([(0, fail, [(0, place)], (), -1, ()) for place in range(2)], 2, 2, (0, 0), 1)
    for first in (True, False, True):
        with pytest.raises(KeyError) as raised:
            tape(first, not first)
        assert raised.value is error and is_unwritten(error) is first
