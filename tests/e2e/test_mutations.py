"""Change one thing that a program read: the result is eager's. Change a thing that it did not read: still a hit.

One row per kind of guard, and random programs over trees of modules, dicts, lists, closures and tensors; each with the
guards in C alone, and with those in C and in Python compared in every call.
"""

from __future__ import annotations

import collections
import functools
import math
import sys
import types
from typing import Any

import pytest
import torch
from harness import rand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import stator
from stator.recording import Edge, Fact

WARM = 7  # calls after which guards are checked by their digest


class Thing:
    factor = 2.0

    def __init__(self) -> None:
        self.scale = 3.0
        self.unread = 1
        self.items = [1.0, 2.0]
        self.table = {"a": 1.0, "b": 2.0}
        self.part = types.SimpleNamespace(bias=0.5)

    def method(self, x):
        return x * self.factor

    def __len__(self):
        return 2


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1.0


class Number(float):
    pass


def derived():
    class Base:
        def method(self, x):
            return x + 5

    class Derived(Base):
        def method(self, x):
            return super().method(x) * 2

    return Derived()


def unbound():
    """A function whose cell is empty, and one that fills it."""

    def function(x):
        try:
            return x * value
        except NameError:
            return -x

    def bind(new):
        nonlocal value
        value = new

    if bind is None:
        value = 0.0
    return function, bind


def write_base(s, x):
    type(s.derived).__base__.set = 1
    return x * s.derived.set


class State:
    """Everything that the programs below read."""

    def __init__(self) -> None:
        self.thing = Thing()
        self.slotted = Slotted()
        self.number = 2
        self.real = 0.5
        self.text = "relu"
        self.flag = True
        self.nothing: Any = None
        self.pair = (1, 2.0)
        self.size = torch.Size([2, 2])
        self.tensor = rand(7)
        self.parameter = nn.Parameter(rand(8))
        self.tensors = {"x": rand(1), 1: rand(2)}
        self.ordered = collections.OrderedDict(a=1.0, b=2.0)
        self.default = collections.defaultdict(float, a=1.0)
        self.names = {"a", "b"}
        self.queue = collections.deque([1.0, 2.0])
        self.module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.function = lambda x: x + 1
        self.partial = functools.partial(torch.mul, other=2.0)
        self.cls: Any = type("Local", (), {"value": 1.0, "__len__": lambda self: 3})
        self.sub = Number(1.5)
        self.dtype = torch.float64
        self.device = torch.device("cpu")
        self.cell = 1.0
        self.shared = self.twin = [1.0]
        self.lonely = [2.0]
        self.error = None
        self.derived = derived()
        self.unbound, self.bind = unbound()
        self.of_objects: Any = {self.thing: 2.0, self.tensor: [3.0]}

    def closure(self):
        value = self.cell

        def inner(x):
            return x * value

        def change(new):
            nonlocal value
            value = new

        return inner, change


def swap_class(state):
    class Other(Thing):
        factor = 7.0

    state.thing.__class__ = Other


def set_data(tensor, new):
    tensor.data = new


# name: (program, a change that it must notice)
READ = {
    "attribute": (lambda s, x: x * s.thing.scale, lambda s: setattr(s.thing, "scale", 9.0)),
    "attribute deleted": (lambda s, x: x * getattr(s.thing, "scale", 0.0), lambda s: delattr(s.thing, "scale")),
    "attribute appears": (lambda s, x: x * getattr(s.thing, "late", 1.0), lambda s: setattr(s.thing, "late", 2.0)),
    "nested attribute": (lambda s, x: x + s.thing.part.bias, lambda s: setattr(s.thing.part, "bias", 3.0)),
    "instance shadows class": (lambda s, x: s.thing.method(x), lambda s: setattr(s.thing, "factor", 5.0)),
    "instance dict replaced": (
        lambda s, x: x * s.thing.scale,
        lambda s: setattr(s.thing, "__dict__", {"scale": 4.0}),
    ),
    "class of an object": (lambda s, x: x * s.thing.factor, swap_class),
    "class attribute": (lambda s, x: x * s.cls().value, lambda s: setattr(s.cls, "value", 8.0)),
    "special method": (lambda s, x: x * len(s.cls()), lambda s: setattr(s.cls, "__len__", lambda self: 5)),
    "slot": (lambda s, x: x * s.slotted.a, lambda s: setattr(s.slotted, "a", 2.0)),
    "empty slot": (lambda s, x: x * getattr(s.slotted, "b", 1.0), lambda s: setattr(s.slotted, "b", 2.0)),
    "int": (lambda s, x: x * s.number, lambda s: setattr(s, "number", 3)),
    "int to float": (lambda s, x: x * s.number, lambda s: setattr(s, "number", 2.0)),
    "int to bool": (lambda s, x: x * 2 if s.number == 1 else x, lambda s: setattr(s, "number", True)),
    "sign of zero": (lambda s, x: x * s.real, lambda s: setattr(s, "real", -0.0)),
    "text": (lambda s, x: getattr(torch, s.text)(x), lambda s: setattr(s, "text", "neg")),
    "flag": (lambda s, x: x if s.flag else -x, lambda s: setattr(s, "flag", False)),
    "none": (lambda s, x: x if s.nothing is None else -x, lambda s: setattr(s, "nothing", 0)),
    "tuple": (lambda s, x: x * s.pair[1], lambda s: setattr(s, "pair", (1, 3.0))),
    "tuple, deep": (lambda s, x: x * sum(s.pair), lambda s: setattr(s, "pair", (1, 2))),
    "size": (lambda s, x: x.view(s.size), lambda s: setattr(s, "size", torch.Size([4, 1]))),
    "dtype": (lambda s, x: x.to(s.dtype), lambda s: setattr(s, "dtype", torch.float16)),
    "device": (lambda s, x: x.to(s.device), lambda s: setattr(s, "device", torch.device("meta"))),
    "value of a subclass": (lambda s, x: x * float(s.sub), lambda s: setattr(s, "sub", Number(2.5))),
    "list item": (lambda s, x: x * s.thing.items[0], lambda s: s.thing.items.__setitem__(0, 5.0)),
    "list length": (lambda s, x: x * len(s.thing.items), lambda s: s.thing.items.append(1.0)),
    "list contents": (lambda s, x: x * sum(s.thing.items), lambda s: s.thing.items.insert(0, 4.0)),
    "dict item": (lambda s, x: x * s.thing.table["a"], lambda s: s.thing.table.update(a=5.0)),
    "dict key missing": (lambda s, x: x * s.thing.table.get("c", 1.0), lambda s: s.thing.table.update(c=2.0)),
    "dict key present": (lambda s, x: x if "a" in s.thing.table else -x, lambda s: s.thing.table.pop("a")),
    "dict keys": (lambda s, x: x * len(list(s.thing.table)), lambda s: s.thing.table.update(z=1.0)),
    "dict order": (
        lambda s, x: x * tuple(s.thing.table.values())[0],  # noqa: RUF015
        lambda s: s.thing.table.update(a=s.thing.table.pop("a")),
    ),
    "dict replaced": (lambda s, x: x * s.thing.table["a"], lambda s: setattr(s.thing, "table", {"a": 3.0})),
    "ordered dict": (lambda s, x: x * s.ordered["a"], lambda s: s.ordered.update(a=4.0)),
    "order of an ordered dict": (
        lambda s, x: x * tuple(s.ordered.values())[0],  # noqa: RUF015
        lambda s: s.ordered.move_to_end("a"),
    ),
    "default dict": (lambda s, x: x * s.default["a"], lambda s: s.default.update(a=4.0)),
    "object as a key": (lambda s, x: x * s.of_objects[s.thing], lambda s: s.of_objects.update({s.thing: 3.0})),
    "tensor as a key": (lambda s, x: x * s.of_objects[s.tensor][0], lambda s: s.of_objects[s.tensor].insert(0, 5.0)),
    "another tensor as a key": (
        lambda s, x: x * s.of_objects.get(s.parameter, 1.0),
        lambda s: s.of_objects.update({s.parameter: 2.0}),
    ),
    "object that is a key": (lambda s, x: x if s.tensor in s.of_objects else -x, lambda s: s.of_objects.pop(s.tensor)),
    "key replaced": (
        lambda s, x: x if s.tensor in s.of_objects else -x,
        lambda s: setattr(s, "tensor", rand(7)),
    ),
    "set": (lambda s, x: x if "a" in s.names else -x, lambda s: s.names.discard("a")),
    "deque": (lambda s, x: x * s.queue[0], lambda s: s.queue.appendleft(4.0)),
    "tensor object": (lambda s, x: x + s.tensor, lambda s: setattr(s, "tensor", rand(9))),
    "tensor shape": (lambda s, x: x + s.tensor.sum(), lambda s: setattr(s, "tensor", rand(9, 2, 2))),
    "tensor dtype": (lambda s, x: x + s.tensor, lambda s: setattr(s, "tensor", s.tensor.double())),
    "tensor strides": (
        lambda s, x: x + s.tensor.view(-1)[:1] if s.tensor.is_contiguous() else x,
        lambda s: setattr(s, "tensor", rand(9, 8)[::2]),
    ),
    "tensor requires grad": (lambda s, x: x * s.tensor, lambda s: s.tensor.requires_grad_()),
    "tensor data": (lambda s, x: x + s.tensor.sum(), lambda s: set_data(s.tensor, rand(3, 6))),
    "tensor contents": (lambda s, x: x + s.tensor, lambda s: s.tensor.add_(1)),
    "tensors in a dict": (lambda s, x: x + s.tensors["x"] + s.tensors[1], lambda s: s.tensors.update({1: rand(5, 1)})),
    "parameter frozen": (lambda s, x: x * s.parameter, lambda s: s.parameter.requires_grad_(False)),
    "parameter data": (lambda s, x: x * s.parameter.sum(), lambda s: set_data(s.parameter, rand(5, 2))),
    "parameter of a module": (
        lambda s, x: s.module(x),
        lambda s: setattr(s.module[0], "weight", nn.Parameter(torch.zeros(4, 4))),
    ),
    "parameter's data in a module": (
        lambda s, x: s.module(x),
        lambda s: set_data(s.module[0].weight, torch.ones(4, 4)),
    ),
    "parameter's dtype in a module": (
        lambda s, x: s.module(x.to(s.module[0].weight.dtype)),
        lambda s: s.module.double(),
    ),
    "bias removed": (lambda s, x: s.module(x), lambda s: setattr(s.module[0], "bias", None)),
    "submodule replaced": (lambda s, x: s.module(x), lambda s: s.module.__setitem__(1, nn.Tanh())),
    "submodule appended": (lambda s, x: s.module(x), lambda s: s.module.append(nn.Tanh())),
    "training": (lambda s, x: x if s.module.training else -x, lambda s: s.module.eval()),
    "forward hook": (
        lambda s, x: s.module(x),
        lambda s: s.module[1].register_forward_hook(lambda m, args, out: out + 1),
    ),
    "forward of an instance": (lambda s, x: s.module(x), lambda s: setattr(s.module[1], "forward", torch.neg)),
    "class of a module": (lambda s, x: s.module(x), lambda s: setattr(s.module[1], "__class__", nn.Sigmoid)),
    "function": (lambda s, x: s.function(x), lambda s: setattr(s, "function", lambda x: x - 1)),
    "code of a function": (
        lambda s, x: s.function(x),
        lambda s: setattr(s.function, "__code__", (lambda x: x - 1).__code__),
    ),
    "partial": (lambda s, x: s.partial(x), lambda s: setattr(s, "partial", functools.partial(torch.mul, other=3.0))),
    "identity of two": (
        lambda s, x: x if s.shared is s.twin else -x,
        lambda s: setattr(s, "twin", [1.0]),
    ),
    "two become one": (
        lambda s, x: x if s.shared is s.lonely else -x,
        lambda s: setattr(s, "lonely", s.shared),
    ),
    "method of a base class": (
        lambda s, x: s.derived.method(x),
        lambda s: setattr(type(s.derived).__base__, "method", lambda self, x: x - 5),
    ),
    "empty cell": (lambda s, x: s.unbound(x), lambda s: s.bind(4.0)),
    "what a function answers": (
        lambda s, x: x * sys.getrecursionlimit(),
        lambda s: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    ),
    "number that is computed with": (lambda s, x: x * math.cos(s.real), lambda s: setattr(s, "real", 0.75)),
    "class that hides what is set": (write_base, lambda s: setattr(type(s.derived), "set", 2)),
}

UNREAD = {
    "attribute": lambda s: setattr(s.thing, "unread", 2),
    "new attribute": lambda s: setattr(s, "fresh", 2),
    "new key": lambda s: s.tensors.update(new=rand(3)),
    "module attribute": lambda s: setattr(s.module, "note", "text"),
    "class attribute": lambda s: setattr(s.cls, "other", 1),
    "contents of a tensor": lambda s: s.tensor.mul_(2),
}


@pytest.fixture(autouse=True, params=["in C", "compared with Python"])
def compared(request):
    limit = sys.getrecursionlimit()
    with stator.options.patch(check_guards=request.param != "in C", suppress_errors=False):
        yield
    sys.setrecursionlimit(limit)


def run(fn, state, x):
    try:
        return fn(state, x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def same(a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        facts = [(t.dtype, t.shape, t.device, t.requires_grad) for t in (a, b)]
        return facts[0] == facts[1] and (a.device.type == "meta" or torch.equal(a, b))
    return type(a) is type(b) and str(a) == str(b)


@pytest.mark.parametrize("name", READ)
def test_a_change_of_what_was_read_is_noticed(name):
    program, change = READ[name]
    compiled = stator.compile(program, backend="eager")
    state = State()
    for seed in range(WARM):
        assert same(run(compiled, state, rand(seed)), run(program, state, rand(seed)))
    assert compiled.stator.hits >= WARM - 2 or compiled.stator.plain, compiled.stator
    if compiled.stator.hits == WARM - 1:
        assert any(entry.guards.engine.digested for entry in compiled.stator.entries)
    change(state)
    for seed in (1, 2, 3, 4):
        assert same(run(compiled, state, rand(seed)), run(program, state, rand(seed))), compiled.stator.last_miss


def test_every_kind_of_guard_is_among_them():
    facts, edges = set(), set()
    for program, change in READ.values():
        compiled = stator.compile(program, backend="eager")
        state = State()
        run(compiled, state, rand(1))
        change(state)
        run(compiled, state, rand(2))
        for entry in compiled.stator.entries:
            for origin in entry.guards._origins:
                edges.add(origin.edge)
                facts.update(check.fact for check in origin.checks)
    assert (set(Fact) - facts, set(Edge) - edges) == (set(), set())


@pytest.mark.parametrize("name", UNREAD)
def test_a_change_of_what_was_not_read_is_a_hit(name):
    def program(s, x):
        return s.module(x) * s.thing.scale + s.tensors["x"] + s.tensor * s.cls().value

    compiled = stator.compile(program, backend="eager")
    state = State()
    for seed in range(WARM):
        compiled(state, rand(seed))
    before = compiled.stator.hits
    for seed in (1, 2, 3):
        UNREAD[name](state)
        assert same(compiled(state, rand(seed)), program(state, rand(seed)))
    assert compiled.stator.hits == before + 3
    assert compiled.stator.recordings == 1


def test_closures():
    state = State()
    inner, change = state.closure()
    compiled = stator.compile(inner, backend="eager")
    for value in (1.0, 1.0, 1.0, 2.0, 2.0, 1.0):
        change(value)
        assert same(compiled(rand(1)), rand(1) * value)
    assert (compiled.stator.recordings, compiled.stator.hits) == (2, 4)


def test_the_words_are_those_of_the_reference():
    """The engine's index, put into words, says what a walk in Python says, where only one thing has changed."""
    compared = 0
    for name, (program, change) in READ.items():
        compiled = stator.compile(program, backend="eager")
        state = State()
        for seed in (1, 2, 3):
            run(compiled, state, rand(seed))
        entries = compiled.stator.entries
        if not entries:
            continue
        change(state)
        slots = (state, rand(1), program)
        guards = entries[0].guards
        found, reference = guards.why(slots), guards.why_in_python(slots)
        assert (found is None) == (reference is None), name
        if found is not None:
            compared += found == reference
            assert str(found), name
    assert compared >= 40


# -- random programs: a tree of modules, dicts, lists and tensors, of which a program reads a part

LEAVES = ("number", "text", "tensor")


def build(shape: Any) -> Any:
    """A tree as hypothesis describes it: leaves are (kind, seed), branches are lists."""
    if isinstance(shape, tuple):
        kind, seed = shape
        return {"number": seed, "text": f"t{seed}", "tensor": rand(seed)}[kind]
    return branch(len(shape), [build(child) for child in shape])


def branch(seed: int, children: list[Any]) -> Any:
    kind = (seed + sum(isinstance(child, torch.Tensor) for child in children)) % 4
    if kind == 0:
        return {f"k{i}": child for i, child in enumerate(children)}
    if kind == 1:
        return list(children)
    if kind == 2:
        return types.SimpleNamespace(**{f"k{i}": child for i, child in enumerate(children)})
    module = nn.Module()
    for i, child in enumerate(children):
        setattr(module, f"k{i}", nn.Parameter(child) if isinstance(child, torch.Tensor) else child)
    return module


def child_of(node: Any, index: int) -> Any:
    if isinstance(node, dict):
        return node[f"k{index}"]
    if isinstance(node, list):
        return node[index]
    return getattr(node, f"k{index}")


def set_child(node: Any, index: int, value: Any) -> None:
    if isinstance(node, dict):
        node[f"k{index}"] = value
    elif isinstance(node, list):
        node[index] = value
    else:
        if isinstance(node, nn.Module) and hasattr(node, f"k{index}"):
            delattr(node, f"k{index}")
        setattr(node, f"k{index}", value)


def paths(shape: Any, prefix: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    if isinstance(shape, tuple):
        return [prefix]
    return [path for i, child in enumerate(shape) for path in paths(child, (*prefix, i))]


def follow(root: Any, path: tuple[int, ...]) -> Any:
    for index in path:
        root = child_of(root, index)
    return root


def reader(read: tuple[tuple[int, ...], ...]) -> Any:
    def program(root, x):
        for path in read:
            value = root
            for index in path:  # in this frame: a container that leaves one is read as a whole
                if isinstance(value, dict):
                    value = value[f"k{index}"]
                elif isinstance(value, list):
                    value = value[index]
                else:
                    value = getattr(value, f"k{index}")
            if isinstance(value, torch.Tensor):
                x = x + value.sum()
            elif isinstance(value, str):
                x = x * len(value)
            else:
                x = x + value
        return x

    return program


trees = st.recursive(
    st.tuples(st.sampled_from(LEAVES), st.integers(0, 9)),
    lambda kids: st.lists(kids, min_size=1, max_size=4),
    max_leaves=9,
).filter(lambda shape: isinstance(shape, list))


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(shape=trees, data=st.data())
def test_random_trees(shape, data):
    everything = paths(shape)
    read = tuple(data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=4, unique=True)))
    program = reader(read)
    stator.reset()
    compiled = stator.compile(program, backend="eager")
    root = build(shape)
    for seed in range(data.draw(st.sampled_from((3, WARM)))):
        assert same(run(compiled, root, rand(seed)), run(program, root, rand(seed)))
    for step in range(4):
        target = data.draw(st.sampled_from(everything))
        hits, recordings = compiled.stator.hits, compiled.stator.recordings
        old = follow(root, target)
        change = data.draw(st.sampled_from(["replace", "equal", "in place"]))
        if change == "in place" and isinstance(old, torch.Tensor):
            set_data(old, rand(step, 3, 3))
        elif change == "equal" and not isinstance(old, torch.Tensor):
            set_child(follow(root, target[:-1]), target[-1], type(old)(old))
        else:
            set_child(follow(root, target[:-1]), target[-1], rand(step) if isinstance(old, int) else step + 100)
        calls = data.draw(st.sampled_from((2, WARM)))
        for seed in range(calls):
            assert same(run(compiled, root, rand(seed)), run(program, root, rand(seed)))
        if target not in read and not compiled.stator.plain:
            assert (compiled.stator.hits, compiled.stator.recordings) == (hits + calls, recordings)
