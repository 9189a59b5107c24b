"""The first recording is static; what is seen to change becomes a symbol in the second one; a branch makes a third."""

from __future__ import annotations

import torch
from harness import World, check, rand

import stator


def fn(x, n):
    y = x**2
    if n >= 0:
        return (n + 1) * y
    else:
        return y / n


def test_three_recordings_serve_all_numbers():
    numbers = (2, 3, -2, 5, -7, 100, -1, 2, 3, 17, -30, 4)
    seen = check(
        lambda: World(fn=fn),
        [lambda w, n=n: w.fn(rand(abs(n)), n) for n in numbers],
        expect="miss miss miss" + " hit" * (len(numbers) - 3),
    )
    first, second, third = (graph.code for graph in seen.graphs)
    assert "mul = 3 * y" in first and "if" not in first and "l_n_" not in first
    assert "l_n_ : torch.SymInt" in second and "add = l_n_ + 1" in second
    assert "y / l_n_" in third and "l_n_ : torch.SymInt" in third


def test_guards_in_words():
    compiled = stator.compile(fn, backend="eager")
    for n in (2, 3, -2):
        compiled(rand(0), n)
    newest, second, first = compiled.stator.entries
    assert any(line == "n == 2" for line in first.guards.lines())
    lines = [line.split("  #")[0] for line in second.guards.lines()]
    assert "n >= 0" in lines and "type(n) is int" in lines
    assert "n < 0" in [line.split("  #")[0] for line in newest.guards.lines()]
    related = next(line for line in second.guards.lines() if line.startswith("n >= 0"))
    assert related.endswith(f"{__file__}:{fn.__code__.co_firstlineno + 2}")


def test_the_miss_names_the_number_and_the_line():
    compiled = stator.compile(fn, backend="eager")
    for n in (2, 3, -2):
        compiled(rand(0), n)
    miss = compiled.stator.last_miss
    assert miss.guard == "n >= 0" and "n = -2" in miss.found
    assert miss.place.endswith(f":{fn.__code__.co_firstlineno + 2}")


def test_a_size_that_changes_is_a_symbol_and_the_others_are_not():
    def program(x):
        return x.reshape(x.shape[0] * x.shape[1]) * 2

    sizes = [(4, 3), (5, 3), (6, 3), (9, 3), (9, 4), (7, 5), (2, 8), (4, 3)]
    seen = check(
        lambda: World(fn=program),
        [lambda w, s=s: w.fn(rand(s[0], *s)) for s in sizes],
        expect="miss miss hit hit miss hit hit hit",
    )
    entries = seen.world.fn.stator.entries
    facts = [next(line for line in e.guards.lines() if line.startswith("x: Tensor")) for e in reversed(entries)]
    assert "[4, 3] stride [3, 1]" in facts[0]
    assert "[_, 3] stride [3, 1]" in facts[1]
    assert "[_, _] stride [_, 1]" in facts[2]


def test_relations_between_sizes_are_learned_from_operations():
    def program(x, y):
        return x @ y

    pairs = [(3, 4, 5), (6, 7, 8), (2, 9, 3), (8, 2, 2), (5, 5, 5)]
    seen = check(
        lambda: World(fn=program),
        [lambda w, p=p: w.fn(rand(1, p[0], p[1]), rand(2, p[1], p[2])) for p in pairs],
        expect="miss miss hit hit hit",
    )
    lines = [line.split("  #")[0] for line in seen.world.fn.stator.entries[0].guards.lines()]
    assert "x.shape[1] == y.shape[0]" in lines or "y.shape[0] == x.shape[1]" in lines


def test_what_fits_no_relation_raises_as_eager_does():
    def program(x, y):
        return x @ y

    def call(a, b, c, d):
        return lambda w: w.fn(rand(1, a, b), rand(2, c, d))

    check(
        lambda: World(fn=program),
        [call(3, 4, 4, 5), call(6, 7, 7, 8), call(6, 7, 8, 9), call(2, 3, 3, 2)],
        expect="miss miss plain hit",
        raises=RuntimeError,
    )


def test_a_static_input_stays_guarded_by_its_value():
    def program(x, n, m):
        return x * n + m

    check(
        lambda: World(fn=program),
        [
            lambda w: w.fn(rand(1), 2, 10),
            lambda w: w.fn(rand(2), 3, 10),
            lambda w: w.fn(rand(3), 4, 10),
            lambda w: w.fn(rand(4), 4, 11),
            lambda w: w.fn(rand(5), 5, 12),
        ],
        expect="miss miss hit miss hit",
    )


def test_type_of_the_number_is_guarded():
    def program(x, n):
        return x * n, n

    check(
        lambda: World(fn=program),
        [lambda w, n=n: w.fn(rand(1), n) for n in (2, 3, 4, 2.5, 3.5, 4.5, True, False, 9, 9.5)],
        expect="miss miss hit miss hit hit miss miss hit hit",  # a number here is known to change
    )


def test_explain_counts_one_graph():
    explanation = stator.explain(fn)(torch.ones(3), 2)
    assert len(explanation.graphs) == 1 and not explanation.break_reasons
