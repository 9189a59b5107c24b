"""The C parts by themselves: symbolic numbers as objects, and relations as programs for a small stack."""

from __future__ import annotations

import copy
import gc
import math
import operator
import pickle
import sys
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stator import _native
from stator._native import product, swap_item, symbol, total, turn_plain
from stator.recording import Edge
from stator.replay.engine import _formulas, _steps
from stator.support.guard_readers import torch_state
from stator.support.symbolic_exprs import Relation, evaluate, holds, render, term_value, terms_of

PLAIN = st.one_of(st.integers(), st.integers(-10, 10), st.floats(allow_nan=False))


class Counted(int):
    def __radd__(self, other):
        return other + 100


class Half(float):
    pass


# ---- symbolic numbers -----------------------------------------------------------------------------


def test_a_symbol_is_the_number_that_it_is():
    for value in (0, 1, -1, 255, 2**30, 2**63, -(2**200), 0.0, 1.5, -math.inf):
        number = symbol(value)
        assert number is not value and number == value and value == number
        assert isinstance(number, type(value)) and type(number) is not type(value)
        assert hash(number) == hash(value) and repr(number) == repr(value) and str(number) == str(value)
        assert f"{number}" == f"{value}" and bool(number) is bool(value)


def test_only_plain_numbers_become_symbols():
    class Own(int):
        pass

    for value in (True, None, "1", 1j, Own(3), symbol(3)):
        with pytest.raises(TypeError):
            symbol(value)


def test_their_classes_make_nothing():
    for cls in (_native.Int, _native.Float):
        with pytest.raises(TypeError):
            cls(3)
        with pytest.raises(TypeError):
            type("Sub", (cls,), {})


def test_turned_plain_in_place():
    for value in (7, -(2**70), 2.5):
        number = symbol(value)
        kept = [number]
        turn_plain(number)
        assert type(kept[0]) is type(value) and kept[0] is number and number == value
        turn_plain(number)  # once more does nothing
        turn_plain("no number at all")
        assert type(number) is type(value)


def test_plain_again_they_are_freed_as_numbers_are():
    before = sys.getallocatedblocks()
    for _ in range(5):
        numbers = [symbol(10**20 + i) for i in range(1000)] + [symbol(i + 0.5) for i in range(1000)]
        for number in numbers[::2]:
            turn_plain(number)
        del numbers, number
    gc.collect()
    assert sys.getallocatedblocks() - before < 1000


def test_pickled_and_copied_when_plain():
    number = symbol(12345678901234567890)
    turn_plain(number)
    assert pickle.loads(pickle.dumps([number])) == [number] and type(copy.deepcopy(number)) is int


_BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod]
_BITS = [operator.and_, operator.or_, operator.xor]
_COMPARE = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]


def outcome(function, *args):
    try:
        result = function(*args)
    except Exception as error:
        return type(error), ""
    return type(result), repr(result)


@settings(deadline=None, max_examples=200)
@given(PLAIN, PLAIN)
def test_outside_of_recordings_they_compute_as_plain_numbers_do(a, b):
    for function in [*_BINARY, *_COMPARE, *_BITS]:
        expected = outcome(function, a, b)
        for left, right in ((symbol(a), b), (a, symbol(b)), (symbol(a), symbol(b))):
            assert outcome(function, left, right) == expected, function
    for function in (operator.neg, operator.pos, operator.abs, operator.invert, int, float, bool, hash, str, round):
        assert outcome(function, symbol(a)) == outcome(function, a), function


@settings(deadline=None, max_examples=100)
@given(st.integers(-50, 50), st.integers(-6, 12), st.one_of(st.none(), st.integers(-9, 9)))
def test_powers(a, b, modulus):
    args = (a, b) if modulus is None else (a, b, modulus)
    assert outcome(pow, symbol(a), *args[1:]) == outcome(pow, *args)
    assert outcome(pow, a, symbol(b), *args[2:]) == outcome(pow, *args)
    assert outcome(operator.lshift, symbol(a), b) == outcome(operator.lshift, a, b)
    assert outcome(operator.rshift, a, symbol(b)) == outcome(operator.rshift, a, b)


def test_with_operands_of_other_types():
    for other in ("a", None, [1], (1, 2), 1j, torch.tensor(2.0)):
        for function in (operator.add, operator.mul, operator.eq, operator.lt):
            assert outcome(function, symbol(3), other)[0] is outcome(function, 3, other)[0]
            assert outcome(function, other, symbol(3))[0] is outcome(function, other, 3)[0]


def test_where_c_code_takes_numbers():
    n = symbol(3)
    assert [10, 20, 30, 40][n] == 40 and list(range(n)) == [0, 1, 2] and "ab" * n == "ababab"
    assert torch.zeros(n).shape == (3,) and chr(symbol(97)) == "a" and {3: "x"}[n] == "x"


def test_swapping_items_of_tuples():
    items = (1000, 2.5, "a", True)
    number = symbol(1000)
    swap_item(items, 0, number)
    assert items[0] is number
    swap_item(items, 1, symbol(2.5))
    assert type(items[1]) is _native.Float
    for index, value, error in ((0, symbol(1001), ValueError), (2, symbol(1), ValueError), (3, symbol(1), ValueError)):
        with pytest.raises(error):
            swap_item(items, index, value)
    for arguments in ((items, 4, number), (items, -1, number), ([1000], 0, number), (items, 1, "a"), (items, 0)):
        with pytest.raises(TypeError):
            swap_item(*arguments)
    assert items == (1000, 2.5, "a", True)
    plain = int("1000")
    turn_plain(number)
    swap_item(items, 0, plain)
    assert items[0] is plain


@settings(deadline=None)
@given(st.lists(PLAIN, max_size=6))
def test_totals_and_products(numbers):
    assert repr(total(numbers)) == repr(sum(numbers)) and repr(product(numbers)) == repr(math.prod(numbers))
    assert repr(total(iter(numbers), 2.5)) == repr(sum(numbers, 2.5))
    assert repr(total([*map(symbol, numbers)], symbol(2.5))) == repr(sum(numbers, 2.5))


@settings(deadline=None)
@given(st.lists(st.one_of(PLAIN, st.booleans(), st.sampled_from([2**63, -(2**80), Counted(3), Half(0.5)])), max_size=8))
def test_totals_of_numbers_of_all_kinds(numbers):
    """From 3.12 on `sum` adds floats in a way of its own, and leaves it once it meets something else."""
    for start in (0, 0.1, True, Counted(1), Half(0.5)):
        assert repr(total(numbers, start)) == repr(sum(numbers, start))


def test_totals_of_what_cannot_be_added():
    for arguments in (([1, "a"],), (3,), (), ([1], 2, 3)):
        with pytest.raises(TypeError):
            total(*arguments)
    with pytest.raises(TypeError):
        product([None])
    assert total([[1], [2]], []) == [1, 2]


# ---- relations ------------------------------------------------------------------------------------

SMALL = st.integers(-12, 12)
ANY = st.one_of(SMALL, st.sampled_from([2**31, 2**62, -(2**62), 2**63 - 1, -(2**63) + 1]))
LEAVES = st.one_of(
    ANY,
    st.sampled_from([("number", 0), ("number", 1), ("size", 2, 0), ("size", 2, 1), ("stride", 2, 0)]),
)


def grow(inner):
    binary = st.sampled_from(["//", "%", "**", "==", "!=", "<", "<="])
    several = st.sampled_from(["+", "*", "min", "max", "and", "or"])
    return st.one_of(
        st.tuples(binary, inner, inner),
        st.tuples(several, inner, inner),
        st.tuples(several, inner, inner, inner),
        st.tuples(st.just("not"), inner),
    )


EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=12)


def native_guards(expression):
    """Guards in C with nothing but this relation, on three argument slots."""
    places: dict[int, int] = {}
    steps = _steps(expression, places)
    assert steps is not None
    nodes = [(_native.FETCH_LOCAL, -1, None, slot, _native.VERSION_NONE, slot + 1, slot, []) for slot in range(3)]
    return _native.Guards(
        state=torch_state(),
        nodes=nodes,
        relations=[],
        groups=[],
        formulas=[steps],
        terms=tuple(places),
        wanted=(0, 1, 2),
        asked=(),
        always=-1,
        ask=None,
    )


@settings(deadline=None, max_examples=500)
@given(EXPRESSIONS, st.one_of(ANY, st.sampled_from([2**63, -(2**63), 2**70])), ANY, st.tuples(SMALL, SMALL))
def test_c_and_python_agree_about_relations(expression, first, second, sizes):
    tensor = torch.empty(abs(sizes[0]), abs(sizes[1]))
    values = (first, second, tensor)
    found = native_guards(expression).check(values)
    assert (found is not None) == holds(Relation(expression, None), values)


@pytest.mark.parametrize(
    ("expression", "values", "expected"),
    [
        (("==", ("+", ("number", 0), 1), 0), (2**63 - 1,), False),
        (("<", 0, ("*", ("number", 0), ("number", 0))), (2**32,), False),
        (("<", 0, ("number", 0)), (2**63,), False),
        (("==", ("//", ("number", 0), -1), 5), (-5,), True),
        (("==", ("%", ("number", 0), -1), 0), (-(2**63),), True),
        (("<", 0, ("//", ("number", 0), -1)), (-(2**63),), False),
        (("==", ("//", 7, ("number", 0)), 0), (0,), False),
        (("==", ("**", 2, ("number", 0)), 2**62), (62,), True),
        (("<", 0, ("**", 2, ("number", 0))), (63,), False),
        (("<", 0, ("**", 1, ("number", 0))), (65,), False),
        (("==", ("//", ("number", 0), 2), -4), (-7,), True),
        (("==", ("%", ("number", 0), -3), -2), (7,), True),
        (("==", ("size", 0, 5), 3), (torch.empty(3),), False),
        (("==", ("number", 0), 1), (True,), False),
        (("==", ("number", 0), 1), (1.0,), False),
    ],
)
def test_what_does_not_fit_fails(expression, values, expected):
    values = (*values, *([None] * (3 - len(values))))
    assert (native_guards(expression).check(values) is not None) is expected


def test_programs_that_make_no_sense_are_refused():
    for steps in (
        [],
        [(_native.STEP_ADD, 0, 0)],
        [(_native.STEP_CONSTANT, 1, 0)] * 2,
        [(_native.STEP_CONSTANT, 1, 0)] * 40,
        [(_native.STEP_NUMBER, 9, 0)],
        [(_native.STEP_SIZE, 0, -1)],
        [(99, 0, 0)],
        [(_native.STEP_CONSTANT, 2**64, 0)],
        ["step"],
    ):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            _native.Guards(torch_state(), [], [], [], [steps], (), (), (), -1, None)


def test_relations_that_only_python_checks():
    for expression in (
        ("<", ("real", 0), 3),
        ("==", ("number", 0), 2.5),
        ("is", ("real", 0), 0.0),
        ("<", ("/", ("number", 0), 2), 3),
        ("==", ("number", 0), 2**70),
        ("<", ("neg", ("real", 0)), 1),
    ):
        assert _steps(expression, {}) is None
        assert _formulas([Relation(expression, None)], {})[2]


def test_floats_in_relations():
    def told(expression, *values):
        return holds(Relation(expression, None), values)

    nan = float("nan")
    assert told(("<", ("real", 0), 3), 2.5) and not told(("<", ("real", 0), 3), nan)
    assert told(("not", ("<", ("real", 0), 3)), nan)
    assert told(("is", ("real", 0), 0.0), 0.0) and not told(("is", ("real", 0), 0.0), -0.0)
    assert told(("is", ("real", 0), nan), nan)
    assert told(("<", ("real", 0), 10**400), 1e300)
    assert not told(("<", ("/", 1, ("real", 0)), 3), 0.0)  # cannot be computed
    assert evaluate(("+", ("neg", ("real", 0)), ("-", 3, 1)), (2.5,)) == -0.5


def test_in_words():
    origins = [types.SimpleNamespace(edge=Edge.LOCAL, key=(slot, name)) for slot, name in enumerate("xn")]
    assert render(("<=", 2, ("size", 0, 1)), origins) == "x.shape[1] >= 2"
    assert render(("==", ("stride", 0, 0), ("*", ("number", 1), 4)), origins) == "x.stride()[0] == (n * 4)"
    assert render(("not", ("<", ("real", 1), 0.5)), origins) == "not (n < 0.5)"
    assert render(("max", ("neg", ("number", 1)), 4), origins) == "max(-n, 4)"
    assert terms_of(("+", ("size", 0, 1), ("number", 1), 4)) == {("size", 0, 1), ("number", 1)}
    assert term_value(("size", 0, 1), (torch.ones(2, 5),)) == 5
