"""Values nested tens of thousands deep, under a limit of recursion that the program has raised: no crash, eager's
results. Each program runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import faulthandler, sys
faulthandler.dump_traceback_later(240, exit=True)
import torch
import stator
sys.setrecursionlimit(10**6)

def nested(count, make):
    made = make(None)
    for _ in range(count):
        made = make(made)
    return made

def depth(value, step):
    count = 0
    while value is not None:
        value, count = step(value), count + 1
    return count

KINDS = {
    "tuples": (lambda inner: (inner,), lambda value: value[0]),
    "lists": (lambda inner: [inner], lambda value: value[0]),
    "dicts": (lambda inner: {"in": inner}, lambda value: value["in"]),
    "slices": (lambda inner: slice(inner), lambda value: value.stop),
    "mixed": (lambda inner: ([inner],), lambda value: value[0][0]),
}
make, step = KINDS[KIND]
deep = nested(DEPTH, make)
hits = []

def check(fn, *args):
    fast = stator.compile(fn, backend="eager")
    for seed in range(4):
        x = torch.full((2,), float(seed))
        found, wanted = fast(x, *args), fn(x, *args)
        assert type(found) is type(wanted)
        if isinstance(found, tuple):
            assert torch.equal(found[0], wanted[0])
            assert depth(found[1], step) == depth(wanted[1], step)
        else:
            assert torch.equal(found, wanted)
    hits.append(fast.stator.hits)

check(lambda x, value: (x * 2, value), deep)
check(lambda x, value: x * (2 if value else 1), deep)
check(lambda x: (x * 3, deep))
check(lambda x, count: (x * 3, nested(count, make)), DEPTH)
check(lambda x, value: x * (step(value) is None), deep)
held = type("Held", (), {})()
held.value = deep
check(lambda x, holder: x * bool(holder.value), held)
held.value = nested(DEPTH, make)
check(lambda x, holder: x * bool(holder.value), held)
assert hits.count(3) >= 4, hits
print("done")
"""
WALK = """
check(lambda x, value: x * depth(value, step), nested(WALKED, make))
"""


@pytest.mark.parametrize("kind", ["tuples", "lists", "dicts", "slices", "mixed"])
def test_rule_8_a_value_that_is_nested_deeply(kind: str) -> None:
    _run(f"KIND, DEPTH = {kind!r}, 30_000" + HEAD)


@pytest.mark.parametrize("kind", ["tuples", "lists"])
def test_rule_8_a_way_into_the_depth(kind: str) -> None:
    _run(f"KIND, DEPTH, WALKED = {kind!r}, 3, 3_000" + HEAD + WALK)


def _run(text: str) -> None:
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0 and "done" in ran.stdout, ran.stderr[:2000] + ran.stderr[-1500:]
