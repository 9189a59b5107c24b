"""What lives across a break: containers, attributes, globals, aliases, views. Each is one object before and after."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
from harness import RECORDED, World, check, rand

import stator

SETTINGS = {"scale": 2}
COUNT = 0


def replays(fn, graphs=2, *, call=lambda w, seed: w.fn(rand(seed)), **state):
    steps = [lambda w, seed=seed: call(w, seed) for seed in range(4)]

    def world():
        return World(fn=fn, **{name: make() for name, make in state.items()})

    return check(world, steps, expect="miss hit hit hit", graphs=graphs)


# ---- mutation -----------------------------------------------------------------------------------


def test_a_list_is_changed_before_and_after():
    def fn(x, log):
        y = x + 1
        log.append(y)
        print("between")
        log.append(y * 2)
        return y - 3

    replays(fn, call=lambda w, seed: w.fn(rand(seed), w.log), log=list)


def test_the_breaking_call_sees_the_change_made_before():
    """Effects must be there when Python runs, and only those that had happened by then."""

    @stator.disable
    def look(log):
        print([float(t[0]) for t in log])

    def fn(x, log):
        y = x + 1
        log.append(y)
        look(log)
        log.append(y * 2)
        look(log)
        log.clear()
        return y - 3

    replays(fn, 3, call=lambda w, seed: w.fn(rand(seed), w.log), log=list)


def test_the_breaking_call_changes_what_the_rest_reads():
    @stator.disable
    def change(config, value):
        config["scale"] = value

    def fn(x, config, value):
        y = x * config["scale"]
        change(config, value)
        return y + config["scale"]

    steps = [lambda w, v=v: w.fn(rand(v), w.config, v) for v in (1, 1, 2, 2, 1)]
    check(lambda: World(fn=fn, config={"scale": 1}), steps, expect=None)


def test_dicts_sets_deques_and_slices():
    def fn(x, state):
        y = x + 1
        state["dict"]["last"] = y
        state["set"].add(len(state["set"]))
        state["deque"].append(y * 2)
        state["list"][1:2] = [y, y]
        print("between")
        state["dict"].pop("old", None)
        state["dict"]["next"] = y * 3
        state["deque"].popleft()
        del state["list"][0]
        return y - 3

    def state():
        return {"dict": {"old": 1}, "set": {0}, "deque": collections.deque([1, 2]), "list": [1, 2, 3]}

    steps = [lambda w, seed=seed: w.fn(rand(seed), w.state) for seed in range(4)]
    check(lambda: World(fn=fn, state=state()), steps, expect=None, unreplayed="call-print")


def test_attributes_of_objects():
    class Counter:
        def __init__(self):
            self.total, self.calls = torch.zeros(4), 0

    def fn(x, counter):
        counter.total = counter.total + x
        print("between")
        counter.total = counter.total * 2
        counter.last = x
        del counter.last
        return counter.total + 1

    replays(fn, call=lambda w, seed: w.fn(rand(seed), w.counter), counter=Counter)


def test_a_counter_that_goes_up_is_read_anew():
    class Counter:
        calls = 0

    def fn(x, counter):
        counter.calls += 1
        y = x * counter.calls
        print(counter.calls)
        counter.calls += 1
        return y + counter.calls

    steps = [lambda w, seed=seed: w.fn(rand(seed), w.counter) for seed in range(4)]
    check(lambda: World(fn=fn, counter=Counter()), steps, expect=None)


def test_globals():
    def fn(x):
        global COUNT
        y = x * SETTINGS["scale"]
        COUNT = 5
        print(COUNT)
        SETTINGS["last"] = y
        COUNT = 0
        return y + 1

    def world():
        SETTINGS.clear()
        SETTINGS["scale"] = 2
        return World(fn=fn)

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(world, steps, expect="miss hit hit hit", graphs=2, observe=lambda w: [dict(SETTINGS), COUNT])


def test_a_global_that_changes_between_calls():
    def fn(x):
        y = x + 1
        print("between")
        return y * SETTINGS["scale"]

    def step(w, scale):
        SETTINGS["scale"] = scale
        return w.fn(rand(scale))

    steps = [lambda w, s=s: step(w, s) for s in (2, 2, 3, 3, 2)]
    seen = check(lambda: World(fn=fn), steps, expect="miss hit miss hit hit", graphs=3)
    assert len(seen.world.fn.stator.break_reasons) == 1  # only the rest was recorded again


def test_buffers_of_a_module():
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x):
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            x = self.norm(x)
            print("between")
            self.mean += 1
            return self.norm(x) - self.mean

    def world():
        model = Mean()
        return World(fn=model, model=model)

    steps = [lambda w, seed=seed: w.fn(rand(seed, 3, 4)) for seed in range(4)]
    check(world, steps, expect="miss hit hit hit", graphs=2)


def test_arguments_written_in_place():
    def fn(x, out):
        out.add_(x)
        print("between")
        out.mul_(2)
        x[0] = 7
        return out + x

    replays(fn, call=lambda w, seed: w.fn(w.x, w.out), x=lambda: rand(1), out=lambda: rand(2))


def test_random_numbers_of_torch_on_both_sides():
    def fn(x):
        y = x + torch.rand(4)
        print("between")
        return torch.nn.functional.dropout(y, 0.5) * torch.randn(4)

    replays(fn)


# ---- containers in the making -------------------------------------------------------------------

MAKING = {
    "list with a star": "[*v, 2]",
    "set with a star": "{*v, 2}",
    "tuple with a star": "(*v, 2)",
    "dict with a star": "{**t, 'b': 2}",
    "list comprehension": "[n for n in v]",
    "list comprehension that breaks": "[print(n) or n for n in v]",
    "set comprehension that breaks": "{print(n) or n for n in v}",
    "dict comprehension that breaks": "{n: print(n) for n in v}",
    "nested comprehensions": "[[print(n, m) or m for m in v] for n in v]",
    "break between items": "[1, print('item'), *v, print('again'), 4]",
    "break between keys": "{'a': print('item'), **t, 'b': print('again')}",
    "call with stars": "pack(0, *v, print('argument'), *v, key=1, **t, **{'more': print('keyword')})",
    "text": "f'{v[0]} {print(1)} {v}'",
    "slices of a list": "changed([7, 8, 9], v)",
    "slice": "v[print('start') or 0 : print('stop') or 1]",
}


def pack(*args, **kwargs):
    return args, kwargs


def changed(target, v):
    print("before")
    target[1:2] = v
    print("between")
    target[0:0] = v
    target += v
    return target


@pytest.mark.parametrize("name", MAKING)
def test_a_container_in_the_making(name):
    """What lies on the stack is filled by instructions of its own, before or behind a break."""
    source = f"""
def fn(x, values):
    v, t = list(values), {{"k": values[0]}}
    y = x + 1
    print("before")
    made = {MAKING[name]}
    print("after")
    return y * 2, made
"""
    namespace = {"pack": pack, "changed": changed}
    exec(source, namespace)
    steps = [lambda w, v=v: w.fn(rand(1), v) for v in ((5, 6), (5, 6), (7, 6), (5, 6), (7, 6), (5,))]
    check(lambda: World(fn=namespace["fn"]), steps, expect=None)


def test_arguments_gathered_before_a_break_are_those_of_the_call():
    def fn(x, a, b):
        y = x * 2
        return y, pack(0, *a, print("argument"), *b)

    steps = [lambda w, a=a: w.fn(rand(1), a, [1, 1]) for a in ([1, 2], [3, 4], [3, 4], [1, 2], [5, 6])]
    check(lambda: World(fn=fn), steps, expect=None)


def test_a_key_that_changes_behind_a_break():
    def fn(x, n, state):
        y = x * 2
        stator.graph_break()
        state[n % 3] = n
        state[n % 3] = 5
        state.setdefault(n % 4, 7)
        state.pop(n % 5, None)
        return y

    def call(n):
        def run(w):
            w.state = {}
            return w.fn(rand(n), n, w.state)

        return run

    steps = [call(n) for n in (9, 4, 11, 13, 3, 9, 8, 26)]
    check(lambda: World(fn=fn), steps, expect=None, unreplayed="user-graph-break")


def test_a_slice_is_set_from_a_list_of_the_caller_s():
    def fn(x, items, values):
        items[0:0] = values
        return x + 1

    steps = [lambda w, v=v: w.fn(rand(1), w.items, [v, v + 1]) for v in (1, 1, 2, 3)]
    check(lambda: World(fn=fn, items=[0]), steps, expect=None, unreplayed=RECORDED)


# ---- aliases ------------------------------------------------------------------------------------


def test_one_list_in_two_locals():
    def fn(x):
        first = [x + 1]
        second = first
        print("between")
        first.append(x * 2)
        return first, second, first is second, len(second)

    replays(fn)


def test_one_list_in_a_local_in_a_dict_and_on_the_stack():
    def fn(x):
        items = [x + 1]
        table = {"items": items, "nested": [items, (items,)]}
        total = sum_of(items, print("between"), table)
        items.append(x * 3)
        return total, items, table

    def sum_of(items, nothing, table):
        table["items"].append(items[0] * 2)
        return items[0] + items[1]

    replays(fn)


def test_a_container_that_holds_itself():
    def fn(x):
        ring = [x + 1]
        ring.append(ring)
        print("between")
        ring[1].append(x * 2)
        return ring

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_an_outside_list_and_a_local_of_the_same():
    def fn(x, log):
        mine = log
        y = x + 1
        mine.append(y)
        print("between")
        log.append(y * 2)
        return mine is log, y

    replays(fn, call=lambda w, seed: w.fn(rand(seed), w.log), log=list)


def test_the_same_list_given_twice_or_not():
    def fn(x, a, b):
        y = x + 1
        a.append(1)
        print("between", len(b))
        b.append(2)
        return y * len(a), a is b

    def same(w):
        both = []
        return w.fn(rand(1), both, both), both

    def apart(w):
        return w.fn(rand(2), [], [])

    check(lambda: World(fn=fn), [apart, apart, same, same, apart], expect=None)


def test_a_view_and_its_base():
    def fn(x):
        base = x * 2
        view = base[1:3]
        print("between")
        view.mul_(10)
        base.add_(1)
        return base, view

    replays(fn)


def test_views_of_an_argument():
    def fn(x):
        head, tail = x[:2], x[2:]
        y = head + tail
        print("between")
        head.add_(1)
        tail.mul_(2)
        return y, head, x

    replays(fn, call=lambda w, seed: w.fn(w.x), x=lambda: rand(1))


def test_a_view_made_after_the_break_of_a_base_made_before():
    def fn(x):
        base = x * 2
        print("between")
        view = base.view(2, 2)
        view[0] = 0
        print("again")
        base.add_(1)
        return view, base.t() if base.dim() == 2 else base

    replays(fn, 3)


def test_detached_tensors_share_memory():
    def fn(x):
        y = x * 2
        shadow = y.detach()
        print("between")
        shadow.zero_()
        return y, shadow

    replays(fn)


def test_the_same_tensor_in_two_locals():
    def fn(x):
        a = x + 1
        b = a
        print("between")
        b += 1
        return a, b, a is b

    replays(fn)


def test_an_argument_that_is_a_local_under_another_name():
    def fn(x, y):
        z = x
        a = x + y
        print("between")
        return a * z, z is x, z is y

    def same(w):
        t = rand(1)
        return w.fn(t, t)

    apart = [lambda w, seed=seed: w.fn(rand(seed), rand(seed + 9)) for seed in range(2)]
    check(lambda: World(fn=fn), [*apart, same, same, *apart], expect=None)


def test_objects_made_inside():
    @dataclasses.dataclass
    class Pair:
        left: torch.Tensor
        right: list

    def fn(x):
        pair = Pair(x + 1, [x])
        alias = pair
        print("between")
        alias.left = alias.left * 2
        pair.right.append(pair.left)
        return pair, alias is pair

    replays(fn)


def test_locals_that_are_unbound_deleted_or_rebound():
    def fn(x, flag):
        a = x + 1
        if flag:
            b = a * 2
        del a
        print("between")
        try:
            return b - 3
        except UnboundLocalError:
            return x - 5

    steps = [lambda w, flag=flag: w.fn(rand(1), flag) for flag in (True, True, False, False, True)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_locals_are_shown_as_they_are():
    def fn(x):
        y = x + 1
        names = sorted(locals())
        print(names)
        z = y * 2
        return z, sorted(locals()), sorted(vars())

    steps = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_tensors_die_when_the_program_lets_go_of_them():
    import weakref

    alive = []

    @stator.disable
    def look():
        alive.append([ref() is not None for ref in refs])

    refs = []

    @stator.disable
    def note(t):
        refs.append(weakref.ref(t))

    def fn(x):
        y = x + 1
        note(y)
        z = y * 2
        del y
        look()
        return z

    compiled = stator.compile(fn, backend="eager")
    for seed in range(3):
        refs.clear()
        assert torch.equal(compiled(rand(seed)), (rand(seed) + 1) * 2)
    assert alive[1:] == [[False]] * 2  # the recorded run keeps what its segments were given


# ---- other inputs -------------------------------------------------------------------------------


def test_another_shape_or_type_is_recorded_anew():
    def fn(x):
        y = x + 1
        print(tuple(y.shape), y.dtype)
        return y * 2

    inputs = [rand(1), rand(2), rand(3, 2, 2), rand(4, 2, 2), rand(5, dtype=torch.float64), rand(6), rand(7, 2, 2)]
    steps = [lambda w, x=x: w.fn(x.clone()) for x in inputs]
    check(lambda: World(fn=fn), steps, expect="miss hit miss hit miss hit hit", graphs=6)


def test_a_result_of_another_shape_after_the_break():
    @stator.disable
    def pick(x, n):
        return x[:n]

    def fn(x, n):
        y = x + 1
        z = pick(y, n)
        return z * 2

    steps = [lambda w, n=n: w.fn(rand(n), n) for n in (2, 2, 3, 3, 2)]
    check(lambda: World(fn=fn), steps, expect=None)


def test_the_break_itself_may_go_away():
    def fn(x, verbose):
        y = x + 1
        if verbose:
            print("verbose")
        return y * 2

    steps = [lambda w, v=v: w.fn(rand(1), v) for v in (True, False, True, False, True)]
    check(lambda: World(fn=fn), steps, expect="miss miss hit hit hit", graphs=3)


def test_print_replaced_by_something_else():
    def fn(x):
        y = x + 1
        print("text")
        return y * 2

    written = []

    def step(w, replaced):
        if replaced:
            fn.__globals__["print"] = lambda *args: written.append(args)
        try:
            return w.fn(rand(1))
        finally:
            fn.__globals__.pop("print", None)

    steps = [lambda w, r=r: step(w, r) for r in (False, True, True, False, True)]
    check(lambda: World(fn=fn), steps, expect=None)
    assert written == [("text",)] * 6
