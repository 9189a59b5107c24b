"""Generated programs about shapes, over random sizes and numbers: eager's results, and a bounded number of recordings.

`DYNAMIC_EXAMPLES=2000` in the environment looks longer.
"""

from __future__ import annotations

import linecache
import os

import torch
from harness import GENERATED, Replays, World, check, rand
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("DYNAMIC_EXAMPLES", "0"))
LIMIT = 8  # recordings that a function may have

# Lines of a program with tensors x [a, b] and y, ints n and k, a float f and a list of numbers. Each leaves them such.
SYMBOLIC = [
    "x = x * n",
    "x = x + x.shape[0]",
    "x = x.reshape(-1).reshape(x.shape)",
    "x = torch.cat([x, x[:1]])",
    "x = x.unsqueeze(0).expand(2, -1, -1).sum(0)",
    "x = x @ torch.ones(x.shape[1], x.shape[1])",
    "x = (x @ x.t()) @ x",
    "x = x + torch.arange(x.shape[1])",
    "x = x.flatten().view(x.size(0), -1)",
    "x = x - x.mean() * f",
    "y = torch.zeros(n, 2) + k",
    "y = torch.cat([y, torch.ones(k + 1, 2)])",
    "y = y[1:] if len(y) > 6 else torch.cat([y, y])",
    "y = y.new_full(y.shape, f)",
    "n = n + 1",
    "k = k * 2 - n",
    "n = (n + k) % 7 + 3",
    "k = (n * 3) // 2",
    "f = f * 0.5 + n",
    "f = n / 2",
    "numbers.append(n + k)",
    "numbers = [n, *numbers[:1], x.shape[0]]",
    "n, k = k + 3, n",
    "state['n'] = n * 2",
    "state['size'] = x.shape",
    "state['list'].append(k)",
    "if n > k:\n        x = x * 2",
    "if x.shape[0] == x.shape[1]:\n        x = x + 1",
    "if len(numbers) > 2 and k >= 0:\n        y = y * 3",
    "for number in numbers:\n        x = x + number",
    "x = helper(x, n)",
    "y, k = other(y, k)",
]
SPECIAL = [
    "x = x * sum(i for i in range(abs(n) % 4))",
    "x = x + [1, 2, 3, 4][n % 4]",
    "n = min(n, k) + max(n, 5)",
    "numbers = sorted([*numbers, n])",
    "state[n % 3] = k",
    "text = f'{n} {x.shape}'; state['text'] = text",
    "x = x.t()",
    "x = x[::2] if x.shape[0] > 3 else x",
    "k = abs(k) + int(f) % 3",
    "x = sum([row for row in x.unbind(0)]).expand(2, -1) * 1.0",
    "n = divmod(n, 4)[1] + 3",
    "stator.graph_break()",
    "k = 100 // (n - 5)",
    "x = x[n % x.shape[0]].expand(3, -1) * 1.0",
]
TEXT = """
def helper(x, n):
    return x * (n + 1) - x.shape[1]

def other(y, k):
    return y + k, k + y.shape[0]

def fn(x, n, k, f, state):
    y = torch.ones(2, 2)
    numbers = []
    {body}
    return x, y, n, k, f, numbers
"""


def world_of(lines):
    text = TEXT.format(body="\n    ".join(lines))
    name = f"<generated {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    code = compile(text, name, "exec")

    def world():
        import stator

        namespace = {"torch": torch, "stator": stator}
        exec(code, namespace)
        return World(fn=namespace["fn"], state={"list": []})

    note(text)
    return world


def call(values):
    (a, b), n, k, f = values

    def run(w):
        w.state = {"list": []}
        result = w.fn(rand(a * 31 + b, a, b), n, k, f, w.state)
        for number in (*result[2:5], *result[5], *(v for v in w.state.values() if isinstance(v, (int, float)))):
            assert type(number) in (int, float), type(number)
        return result

    return run


SIZES = st.tuples(st.integers(2, 9), st.integers(2, 6))
ANY_SIZES = st.tuples(st.integers(0, 7), st.integers(1, 5))
FLOATS = st.sampled_from([0.5, 1.5, 2.25, -3.0, 10.0])
CALLS = st.lists(st.tuples(SIZES, st.integers(1, 12), st.integers(-4, 9), FLOATS), min_size=4, max_size=8)
ANY_CALLS = st.lists(st.tuples(ANY_SIZES, st.integers(-3, 9), st.integers(-3, 9), FLOATS), min_size=4, max_size=8)


def shape_programs(*lines, most=6):
    return st.lists(st.sampled_from(lines), min_size=1, max_size=most)


def property_settings(count):
    return settings(
        max_examples=EXAMPLES or count,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        phases=set(Phase) - {Phase.explain},  # it traces, and what is traced is not compiled
    )


def branches(lines):
    return sum("if " in line for line in lines)


def test_symbolic_programs():
    replays = Replays(0.5)

    @property_settings(25)
    @given(shape_programs(*SYMBOLIC), CALLS)
    def generated(lines, calls):
        calls = [((3, 4), 2, 1, 0.5), ((5, 6), 4, 3, 1.5), *calls]  # everything is seen to change
        seen = replays.count(compare(lines, calls, RuntimeError, ZeroDivisionError))
        if not branches(lines):
            recordings = seen.world.fn.stator.recordings
            assert recordings <= 5, f"{recordings} recordings\n{seen.outcomes}"  # two are for sizes that come to 0 or 1

    generated()
    replays.enough()


def test_any_programs():
    replays = Replays(0.25)  # 20 of 25 mostly, but examples are much alike in some runs: then ten

    @property_settings(25)
    @given(shape_programs(*SYMBOLIC, *SPECIAL), ANY_CALLS)
    def generated(lines, calls):
        failures = (RuntimeError, ZeroDivisionError, IndexError, TypeError, AttributeError)
        assert replays.count(compare(lines, calls, *failures)).world.fn.stator.recordings <= LIMIT

    generated()
    replays.enough()


def compare(lines, calls, *failures):
    calls = [call(values) for values in calls]
    return check(world_of(lines), calls, expect=None, raises=failures, unreplayed=GENERATED)
