"""A break inside a callee keeps one graph up to it, across all frames, and one from there on."""

from __future__ import annotations

import functools

import pytest
import torch
from harness import World, check, rand
from torch import nn

import stator


def replays(world, graphs=2, breaks=("call-print",), *, call=lambda w, seed: w.fn(rand(seed))):
    steps = [lambda w, seed=seed: call(w, seed) for seed in range(4)]
    return check(world, steps, expect="miss hit hit hit", graphs=graphs, breaks=list(breaks))


# three frames deep: a calls b calls c, with operations before and after each call


def a(x):
    x = x + 1
    x = b(x)
    return x * 2


def b(x):
    x = x + 3
    x = c(x)
    return x * 4


def c(x):
    x = x + 5
    print("in c")
    return x * 6


def test_three_frames_deep_two_graphs_and_not_six():
    seen = replays(lambda: World(fn=a))
    operations = [[n.name for n in g.graph.nodes if n.op == "call_function"] for g in seen.graphs]
    assert [len(names) for names in operations] == [3, 3]
    (why,) = seen.world.fn.stator.break_reasons
    assert [frame.name for frame in why.user_stack][-3:] == ["a", "b", "c"]
    assert (why.line, why.function) == ('print("in c")', "c")


def test_explain_counts_two_graphs_and_one_break():
    e = stator.explain(a)(torch.ones(4))
    assert (e.graph_count, e.graph_break_count, e.op_count) == (2, 1, 6)


def test_breaks_in_every_frame():
    def outer(x):
        x = x + 1
        print("outer")
        x = middle(x)
        print("outer again")
        return x * 2

    def middle(x):
        x = x + 3
        print("middle")
        x = c(x)
        return x * 4

    replays(lambda: World(fn=outer), 5, ["call-print"] * 4)


def test_a_callee_called_twice():
    def fn(x):
        return c(x) + c(x * 2)

    replays(lambda: World(fn=fn), 3, ["call-print"] * 2)


def test_methods_properties_and_special_methods():
    class Box:
        def __init__(self, value):
            print("init")
            self.value = value

        @property
        def double(self):
            print("property")
            return self.value * 2

        def method(self, x, *, scale=1):
            print("method")
            return self.value * x * scale

        @classmethod
        def of(cls, x):
            print("class method")
            return cls(x)

        @staticmethod
        def plain(x):
            print("static method")
            return x - 1

        def __call__(self, x):
            print("call")
            return self.value + x

        def __add__(self, other):
            print("add")
            return Box(self.value + other)

        def __getitem__(self, index):
            print("item")
            return self.value[index]

        def __len__(self):
            print("length")
            return 3

        def __enter__(self):
            print("enter")
            return self

        def __exit__(self, *exception):
            print("exit")

    def fn(x):
        box = Box(x + 1)
        y = box.double + box.method(x, scale=3)
        y = y + Box.of(y).value + Box.plain(y)
        y = box(y) + (box + y).value + box[0] * len(box)
        with box as same:
            y = y + same.value
        return y, box

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_super_and_inheritance():
    class Base:
        def step(self, x):
            print("base")
            return x + 1

    class Derived(Base):
        def step(self, x):
            x = x * 2
            x = super().step(x)
            return x - 3

    def world():
        thing = Derived()
        return World(fn=lambda x: thing.step(x) * 5, thing=thing)

    replays(world)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        x = self.linear(x)
        self.calls += 1
        print("inner")
        return x.relu()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.inner(x * 2) + 1)


def modules():
    torch.manual_seed(0)
    model = Outer()
    return World(fn=model, model=model)


def test_modules_inside_modules():
    class Quiet(Inner):
        def forward(self, x):
            x = self.linear(x)
            print("inner")
            return x.relu()

    def world():
        made = modules()
        made.model.inner = Quiet()
        return made

    replays(world, call=lambda w, seed: w.fn(rand(seed, 3, 4)))


def test_modules_that_count_their_calls():
    steps = [lambda w, seed=seed: w.fn(rand(seed, 3, 4)) for seed in range(4)]
    check(modules, steps, expect=None)


def test_modules_in_sequence():
    class Noisy(nn.Module):
        def forward(self, x):
            print("noisy")
            return x + 1

    def world():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Noisy(), nn.Linear(4, 4), Noisy(), nn.ReLU())
        return World(fn=model, model=model)

    # Rounds of a loop with a break in it part at the loop's head: what follows the first print serves all of them.
    replays(world, 4, ["call-print"] * 2, call=lambda w, seed: w.fn(rand(seed, 2, 4)))


def test_modules_with_hooks_that_break():
    def world():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[0].register_forward_pre_hook(lambda module, args: print("before"))
        model[0].register_forward_hook(lambda module, args, out: print("after") or out * 2)
        return World(fn=model, model=model)

    steps = [lambda w, seed=seed: w.fn(rand(seed, 2, 4)) for seed in range(4)]
    check(world, steps, expect=None)


def test_closures_with_nonlocal():
    def fn(x):
        total = x + 1
        count = 0

        def add(y):
            nonlocal total, count
            total = total + y
            count += 1
            print("added", count)
            total = total * 2
            return count

        add(x)
        add(x * 3)
        return total, count, add(x)

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect="miss hit hit hit", graphs=4)


def test_a_cell_shared_with_the_outside():
    def world():
        count = 0

        def fn(x):
            nonlocal count
            count += 1
            y = x + 1
            print("count", count)
            count += 1
            return y * 2

        return World(fn=fn, count=lambda: count)

    steps = [lambda w, seed=seed: (w.fn(rand(seed)), w.count()) for seed in range(4)]
    check(world, steps, expect=None)


def test_a_closure_made_before_the_break_and_called_after_it():
    def fn(x):
        scale = 2

        def scaled(y):
            return y * scale

        y = scaled(x)
        print("between")
        scale = 3
        return scaled(y), scaled

    steps = [lambda w, seed=seed: [w.fn(rand(seed))[0], w.fn(rand(seed))[1](rand(9))] for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_every_kind_of_argument():
    def fn(x):
        y = callee(x, 2, 3, 4, key=5, other=6)
        z = callee(x, *[2, 3], **{"key": 7, "more": 8})
        return y, z

    def callee(x, first=1, *rest, key=0, **named):
        y = x * first + key
        print(first, rest, key, sorted(named))
        return y - len(rest), named

    replays(lambda: World(fn=fn), 3, ["call-print"] * 2)


def test_the_root_takes_every_kind_of_argument():
    def fn(x, /, first=1, *rest, key=0, **named):
        y = x * first + key
        print(first, rest, key, sorted(named))
        return y - len(rest), rest, named

    steps = [lambda w, seed=seed: w.fn(rand(seed), 2, 3, 4, key=5, other=6) for seed in range(3)]
    steps += [lambda w: w.fn(rand(7)), lambda w: w.fn(rand(8))]
    check(lambda: World(fn=fn), steps, expect="miss hit hit miss hit", graphs=4)


def test_partial_lambda_default_and_wrapped():
    def noisy(x, n, scale=2):
        print("noisy", n)
        return x * scale + n

    @functools.wraps(noisy)
    def wrapped(*args, **kwargs):
        return noisy(*args, **kwargs) - 1

    def fn(x):
        y = functools.partial(noisy, n=1, scale=3)(x)
        y = (lambda t, n=2: noisy(t, n))(y)
        return wrapped(y, 3)

    replays(lambda: World(fn=fn), 3, ["call-print"] * 3)  # nothing is computed before the first print


def test_recursion():
    def fn(x):
        return down(x, 3) + 1

    def down(x, depth):
        x = x * 2
        print("depth", depth)
        if depth:
            x = down(x + 1, depth - 1)
        return x - 3

    replays(lambda: World(fn=fn), 5, ["call-print"] * 4)


def test_recursion_that_breaks_at_the_bottom():
    def fn(x):
        return down(x, 4)

    def down(x, depth):
        if not depth:
            print("bottom")
            return x
        return down(x + depth, depth - 1) * 2

    replays(lambda: World(fn=fn))


def test_the_compiled_function_calls_itself():
    """Inside a recording, a compiled callee is watched like any other function."""

    def fn(x, depth=2):
        x = x + 1
        print("depth", depth)
        return fn(x, depth - 1) * 2 if depth else x

    replays(lambda: World(fn=fn), 4, ["call-print"] * 3)


def test_frames_that_c_code_calls():
    def noisy(value):
        print("noisy", value)
        return value

    def fn(x):
        y = x + 1
        order = sorted([2, 1], key=noisy)
        y = y * order[0]
        mapped = list(map(noisy, [1, 2]))
        best = max([1, 5, 3], key=noisy)
        return y + mapped[1] + best

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(8)]  # one place is learned per recording
    seen = check(lambda: World(fn=fn), steps, expect=None)
    assert seen.outcomes[-1] == "hit"


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
def test_at_any_depth(depth):
    source = "def f0(x):\n    x = x + 1\n    print('deep')\n    return x * 2\n"
    for level in range(1, depth):
        source += f"def f{level}(x):\n    x = x + {level}\n    x = f{level - 1}(x)\n    return x * 2\n"
    namespace = {}
    exec(source, namespace)
    replays(lambda: World(fn=namespace[f"f{depth - 1}"]))


def test_a_break_in_a_default_factory_and_in_a_missing_key():
    class Missing(dict):
        def __missing__(self, key):
            print("missing", key)
            return 3

    def fn(x):
        y = x + 1
        table = Missing(a=1)
        return y * table["a"] + table["b"]

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_the_caller_s_locals_change_what_the_continuation_sees():
    """Guards of the second graph are about what the frames hold there, whoever put it in."""

    def fn(x, n):
        scale = n * 2
        y = middle(x)
        return y * scale

    def middle(x):
        x = x + 1
        print("middle")
        return x

    steps = [lambda w, n=n: w.fn(rand(n), n) for n in (1, 1, 2, 1, 2)]
    check(lambda: World(fn=fn), steps, expect=None)
