"""Arguments with any names: those that stator uses in code of its own, keywords, no identifiers, equal after NFKC."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import rand

import stator

OURS = "run function recording default find names call dispatch slots".split()
OURS += "_run_ _function_ _recording_ _default_ _find_".split()
ODD = [
    "class",
    "None",
    "__debug__",
    "a b",
    "",
    "1",
    ".0",
    "a)(",
    "a=1",
    "\n",
    "'",
    "\ud800",
    "\x00",
    "ﬁ",
    "fi",
    "µ",
    "μ",
]


def made(kinds: str, names: list[str]) -> types.FunctionType:
    """A function with these names for `a`, `b`, `c` of one of these signatures."""
    text = {
        "plain": "def f(a, b, c): return a * 2 + b + c",
        "defaults": "def f(a, b=3, c=4): return a * 2 + b + c",
        "positional": "def f(a, b=2, /, c=5): return a * 2 + b + c",
        "named": "def f(a, *, b=3, c): return a * 2 + b + c",
        "stars": "def f(a, *b, **c): return a * 2 + sum(b) + sum(c.values())",
    }[kinds]
    space: dict[str, Any] = {}
    exec(text, space)
    function: types.FunctionType = space["f"]
    code = function.__code__
    kwdefaults = {names["abc".index(name)]: value for name, value in (function.__kwdefaults__ or {}).items()}
    function.__code__ = code.replace(co_varnames=tuple(names))
    function.__kwdefaults__ = kwdefaults or None
    return function


def calls(kinds: str, names: list[str]) -> list[Callable[[Any, torch.Tensor], Any]]:
    a, b, c = names
    return {
        "plain": [lambda f, x: f(x, 1, 2), lambda f, x: f(**{a: x, b: 1, c: 2}), lambda f, x: f(x, 1)],
        "defaults": [lambda f, x: f(x), lambda f, x: f(x, **{c: 9}), lambda f, x: f(x, **{b: 7, "other": 1})],
        "positional": [lambda f, x: f(x), lambda f, x: f(x, 7, **{c: 9}), lambda f, x: f(x, **{b: 7})],
        "named": [lambda f, x: f(x, **{c: 1}), lambda f, x: f(x, **{b: 8, c: 1}), lambda f, x: f(x, **{b: 8})],
        "stars": [lambda f, x: f(x), lambda f, x: f(x, 1, 2), lambda f, x: f(x, **{b: 2, "run": 3, "fi": 4})],
    }[kinds]  # fmt: skip


def outcome(call: Callable[[Any, torch.Tensor], Any], f: Any, x: torch.Tensor) -> Any:
    try:
        return call(f, x).tolist()
    except TypeError as error:
        return type(error), str(error)


NAMES = OURS + ODD
TRIPLES = [[NAMES[(i + k * 11) % len(NAMES)] for k in range(3)] for i in range(11)]


@pytest.mark.parametrize("kinds", ["plain", "defaults", "positional", "named", "stars"])
@pytest.mark.parametrize("names", TRIPLES, ids=[str(i) for i in range(len(TRIPLES))])
def test_any_name(kinds: str, names: list[str]) -> None:
    plain = made(kinds, names)
    fast = stator.compile(made(kinds, names), backend="eager")
    for turn in range(3):
        for call in calls(kinds, names):
            x = rand(turn)
            assert outcome(call, fast, x) == outcome(call, plain, x), turn
            with stator.options.patch(check_guards=True):  # not from C: through the dispatcher
                assert outcome(call, fast, x) == outcome(call, plain, x), turn
            assert outcome(call, fast.__wrapped__, x) == outcome(call, plain, x), turn
    assert fast.stator.hits >= 6


def test_a_caller_cannot_take_the_place_of_what_runs() -> None:
    def g(x: torch.Tensor, *, _run_: Any, run: Any = None) -> torch.Tensor:
        return x * 2 if _run_ is not None else x

    fast = stator.compile(g, backend="eager")
    hijack = lambda *_: "hijacked"  # noqa: E731
    for seed in range(3):
        assert torch.equal(fast(rand(seed), _run_=hijack, run=hijack), rand(seed) * 2)
    assert fast.stator.hits == 2


def test_two_arguments_of_one_name() -> None:
    def f(a: Any, b: Any) -> Any:
        print(end="")  # a break
        return a * 2 + b

    plain = types.FunctionType(f.__code__.replace(co_varnames=("a", "a")), globals())
    fast = stator.compile(types.FunctionType(f.__code__.replace(co_varnames=("a", "a")), globals()), backend="eager")

    def outer(x: torch.Tensor) -> Any:
        return plain(x, x + 1) * 3

    outer_fast = stator.compile(outer, backend="eager")
    for seed in range(4):
        x, y = rand(seed), rand(seed + 10)
        assert torch.equal(fast(x, y), x * 2 + y)
        assert torch.equal(outer_fast(x), outer(x))
