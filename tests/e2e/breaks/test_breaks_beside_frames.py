"""Functions that are disabled, frames that cannot be watched, and effects that are no breaks."""

from __future__ import annotations

import torch
from harness import World, check, rand

import stator

# ---- a disabled function ------------------------------------------------------------------------


class Handwritten:
    """C code calls this to compare: a frame that no plain Python call stands above."""

    def __lt__(self, other):
        return True


def test_callees_of_a_disabled_function_are_plain_too():
    seen_by_callee = []

    def callee(x):
        seen_by_callee.append((stator.is_compiling(), torch.compiler.is_compiling()))
        return x * 3

    @stator.disable
    def plain(x):
        return callee(x) + 1

    def fn(x):
        y = x + 1
        y = plain(y)
        return y * 2

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    checked = check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["disabled-function"])
    assert set(seen_by_callee) == {(False, False)}
    operations = [node.target for graph in checked.graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert len(operations) == 2  # neither of the disabled function's


def test_a_disabled_method_and_a_disabled_module():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        @stator.disable
        def note(self, x):
            self.count += 1
            return x

        def forward(self, x):
            y = x + 1
            y = self.note(y)
            return y * 2

    def world():
        model = Counter()
        return World(fn=model, model=model)

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(world, calls, expect="miss hit hit", graphs=2, breaks=["disabled-function"])


# ---- what does not break ------------------------------------------------------------------------


def test_appending_to_a_global_list_is_an_effect():
    def fn(x, history):
        y = x + 1
        history.append(y)
        return y * 2

    calls = [lambda w, seed=seed: w.fn(rand(seed), w.history) for seed in range(3)]
    check(lambda: World(fn=fn, history=[]), calls, expect="miss hit hit", graphs=1, breaks=[])


HISTORY = []


def test_appending_to_a_list_of_the_module():
    def fn(x):
        y = x + 1
        HISTORY.append(y)
        return y * 2

    def world():
        HISTORY.clear()
        return World(fn=fn)

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(world, calls, expect="miss hit hit", graphs=1, breaks=[], observe=lambda w: list(HISTORY))


def test_getattr_with_a_name_and_the_instance_dict():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.scale = 3.0

        def forward(self, x, names):
            for name in names:
                x = getattr(self, name)(x)
            return x * self.__dict__["scale"]

    def world():
        torch.manual_seed(0)
        model = Model()
        return World(fn=model, model=model)

    calls = [lambda w, seed=seed: w.fn(rand(seed), ["first", "second"]) for seed in range(3)]
    check(world, calls, expect="miss hit hit", graphs=1, breaks=[])


# ---- frames that cannot be watched --------------------------------------------------------------


def test_a_class_statement():
    def fn(x):
        y = x + 1

        class Local:
            scale = 3

        return y * Local.scale

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    seen = check(lambda: World(fn=fn), calls, expect=None, unreplayed=["build-class", "unguardable"])
    # Guards that name the class can hold in no other call.
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"build-class", "unguardable"}


def test_code_made_at_run_time():
    def fn(x, names):
        y = x + 1
        exec("names.append(len(names))", {"names": names})
        return y * 2

    calls = [lambda w, seed=seed: w.fn(rand(seed), w.names) for seed in range(3)]
    seen = check(lambda: World(fn=fn, names=[]), calls, expect="miss hit hit", graphs=2)
    assert [why.id for why in seen.world.fn.stator.break_reasons] == ["exec-eval"]


def test_an_iterator_from_outside_moves_on_in_every_call():
    def fn(x, numbers):
        y = x + 1
        number = next(numbers)
        return y * number

    def world():
        return World(fn=fn, numbers=iter([1, 2, 3, 4, 5, 6]))

    calls = [lambda w, seed=seed: w.fn(rand(seed), w.numbers) for seed in range(4)]
    seen = check(world, calls, expect=None)
    assert "outside-iterator" in [why.id for why in seen.world.fn.stator.break_reasons]


def test_code_of_c_that_compares_by_python():
    def fn(x, things):
        y = x + 1
        things = sorted(things)
        print(len(things))
        return y * len(things)

    calls = [lambda w, seed=seed: w.fn(rand(seed), [Handwritten() for _ in range(3)]) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["call-print"])


def test_a_break_in_a_function_that_c_code_calls():
    """`sorted` stands in between: the break is at its call, from the second recording on at the latest."""

    def fn(x):
        y = x + 1
        order = sorted([3, 1, 2], key=noisy)
        return y * order[0]

    def noisy(number):
        print("key", number)
        return number

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    seen = check(lambda: World(fn=fn), calls, expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"call-print"}
    assert seen.outcomes[-1] == "hit"
