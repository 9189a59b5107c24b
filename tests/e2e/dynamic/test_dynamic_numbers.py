"""What programs do with ints that change: arithmetic and comparisons stay symbolic, all else needs the number."""

from __future__ import annotations

import collections
import copy
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import json
import math
import numbers
import operator
import pickle
import struct
import types

import numpy as np
import pytest
import torch
from harness import World, check, rand

NUMBERS = (5, 7, 9, 5, 7)
SYMBOLIC = "miss miss hit hit hit"
SPECIAL = "miss miss miss hit hit"  # the number itself is guarded: 9 is new
SEVEN = 7


class HasLength:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class HasIndex(HasLength):
    def __index__(self):
        return self.n


class HasFloat(HasLength):
    def __float__(self):
        return self.n * 0.5


class HasProperty(HasLength):
    @property
    def next(self):
        return self.n + 1

    def __add__(self, other):
        return self.n + other

    def __getitem__(self, key):
        return self.n * key

    def __call__(self, x):
        return x * self.n


class Bounded(collections.deque):
    pass


class Level(enum.IntEnum):
    LOW = 5
    HIGH = 7


def pair(n):
    yield n
    yield n + 1


def add(a, b):
    return a + b


def calls_of(fn, numbers=NUMBERS):
    return [lambda w, n=n, seed=seed: w.fn(rand(seed), n) for seed, n in enumerate(numbers)]


def check_numbers(fn, expect, **options):
    check(lambda: World(fn=fn), calls_of(fn), expect=expect, **options)


STAYS_SYMBOLIC = {
    "math": lambda x, n: x * (math.floor(n / 2) + math.sqrt(n) + math.log(n) + math.comb(n, 2) + math.gcd(n, 35)),
    "tensors of it": lambda x, n: x * torch.tensor(n) + torch.tensor([n, 1]).sum(),
    "arithmetic": lambda x, n: (x * (n + 1), n - 2, 2 - n, n * n, n // 2, n % 3, n / 4, -n, +n, n**2, n**0.5),
    "comparisons": lambda x, n: (x * 2, n > 3, n != 4, n <= 100, n == 3.5, n < 2.5),
    "truth": lambda x, n: x * 2 if n else x,
    "and or": lambda x, n: x * (n and n + 1) + (n or 4),
    "a float at its left": lambda x, n: (x * 2, 1.5 * n, 2.5 - n, 2.5 / n, 2.5 // n, 2.5 % n, n > 2.5, n == 1.5),
    "a float computed from it": lambda x, n: x * (1.5 * (n / 3)) - (n * 0.5) ** 2,
    "compared with None and text": lambda x, n: x * (2 if n == "a" else 3) + (n is not None) + (n == None),  # noqa: E711
    "isinstance": lambda x, n: x * n if isinstance(n, int) and not isinstance(n, (bool, float)) else x,
    "its type": lambda x, n: x * n if type(n) is int else x - 1,
    "int of it": lambda x, n: x * int(n),
    "sum": lambda x, n: x * sum([n, 6, 8]),
    "sum with floats": lambda x, n: x * sum([1.5, n, 8]),
    "sum of a generator": lambda x, n: x * sum(v for v in [1.5, n, 2]),
    "sum from a start": lambda x, n: x * sum([n, 1], n),
    "product": lambda x, n: x * math.prod([n, 2]),
    "product with floats": lambda x, n: x * math.prod(v for v in [1.5, n]),
    "reduce": lambda x, n: x * functools.reduce(operator.mul, (n, 2, n)),
    "reduce by a function": lambda x, n: x * functools.reduce(lambda a, b: a * b, (1.5, 2, n)),
    "a partial of a function": lambda x, n: x * functools.partial(add, n)(35),
    "a comprehension": lambda x, n: x * sum([i * n for i in (1, 2, 3)]),
    "a generator": lambda x, n: x * sum(pair(n)),
    "nested functions": lambda x, n: (lambda a: (lambda b: x * (a + b + n))(a * 2))(n + 1),
    "a property, operators, items and calls of a class": lambda x, n: (
        HasProperty(n)(x) * HasProperty(n).next + (HasProperty(n) + 2) + HasProperty(n)[3]
    ),
    "containers": lambda x, n: (x * 2, [n, (n + 1, {"a": n * 2})], {"k": n}, {**{"a": n}}, [*(n, n)]),
    "a key that is another": lambda x, n: (x * 2, {"a": 1}.get("a", n), {}.get("b", n)),
    "a named tuple": lambda x, n: (x * 2, Pair(n, n + 1), Pair(n, 2).left),
    "sizes": lambda x, n: torch.zeros(n * 4).view(n, -1).sum(0) + x,
    "arange": lambda x, n: torch.arange(2, n * 3, n).sum() * x,
    "full": lambda x, n: (torch.full((n,), n * 0.5), x.new_full((2,), n)),
    "an index": lambda x, n: x[n - 6],
    "large results": lambda x, n: (x * 2, n + 10**30, n * 2**62, n**40),
    "operators as functions": lambda x, n: x * operator.add(n, 2) * operator.mul(3, n),
    "functions called by C": lambda x, n: (
        x * sum(map(lambda v: v * n, [1, 2])),
        list(filter(lambda v: v < n, [1, 20])),
        dict(zip("ab", (n, n + 1), strict=True)),
        min([], default=n),
        any(v > 4 for v in (n, 1)),
    ),
    "what its type makes": lambda x, n: (x * 2, type(n)(3), type(n).__name__, type(n) in (int, float)),
    "a default": lambda x, n: (x * 2, collections.defaultdict(lambda: n)["a"], {}.setdefault("a", n)),
    "stars": lambda x, n: (lambda a, *b, **c: x * a + b[-1] + c["z"])(*(n, n + 1), **{"z": n}),
    "a walrus": lambda x, n: x * (m + 1) if (m := n * 2) > 3 else x,
    "a deque": lambda x, n: (x * 2, collections.deque([n, 6]), list(collections.deque([n]))),
    "min and max": lambda x, n: x * min(n, 60) + max(n, 3) + max([n, 2]),
    "bits": lambda x, n: x * ((n << 2) | (n & 1) ^ (~n)),
    "abs and divmod": lambda x, n: x * abs(n - 7) + divmod(n, 3)[1] + divmod(40, n)[0],
    "powers below zero": lambda x, n: x * n**-1,
    "a float to its power": lambda x, n: (x * 2, 1.5**n),
    "round": lambda x, n: x * round(n / 3) + round(n, -1),
}
Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("fn", STAYS_SYMBOLIC.values(), ids=list(STAYS_SYMBOLIC))
def test_it_stays_symbolic(fn):
    check_numbers(fn, SYMBOLIC)


NEEDS_THE_NUMBER = {
    "range": lambda x, n: x * sum(i for i in range(n)),
    "a list index": lambda x, n: x * list(range(20))[n],
    "slices of a list": lambda x, n: (x * 2, list(range(20))[:n], list(range(20))[n::2]),
    "repeating": lambda x, n: (x * 2, "ab" * n, n * "ab", [0] * n, n * (1,)),
    "hashing": lambda x, n: (x * 2, {n: 1}, {5: "a", 7: "b"}.get(n), {(n, 1): 2}, {n}, hash(n), n in {1, 7}),
    "powers of two": lambda x, n: x * 2**n + pow(3, n, 7),
    "chr and the like": lambda x, n: (x * 2, chr(n + 60), hex(n), bin(n), oct(n)),
    "methods": lambda x, n: x * n.bit_length() + n.real + n.numerator + n.conjugate(),
    "methods by name": lambda x, n: x * getattr(n, "bit_length")(),  # noqa: B009
    "its class by name": lambda x, n: (x * 2, getattr(n, "__class__"), n.__class__),  # noqa: B009
    "to bytes": lambda x, n: (x * 2, n.to_bytes(2, "big"), bytes([n, 1]), bytes(collections.deque([n]))),
    "bytearrays": lambda x, n: (x * 2, put(bytearray(2), 0, n)),
    "in a range": lambda x, n: x * (2 if n in range(100) else 3),
    "in bytes": lambda x, n: x * (2 if n in b"\x05\x09" else 3),
    "among floats": lambda x, n: x * (2 if n in [1.0, 7.0] else 3),
    "tuples with floats": lambda x, n: x * (2 if (n, 1) == (7.0, 1) else 3),
    "tuples with complex numbers": lambda x, n: x * (2 if (n, 1) == (7 + 0j, 1) else 3),
    "complex numbers": lambda x, n: (x * 2, 2j * n, n * 2j, complex(n)),
    "largest of floats": lambda x, n: x * max(6.0, n) + max(v for v in [6.0, n]) + max({1: 6.0, 2: n}.values()),
    "sorting": lambda x, n: (x * 2, sorted([n, 6.5, 8]), put_in_order([n, 6, 8])),
    "sorting by C functions": lambda x, n: (x * 2, sorted([n, 6, 8], key=math.isqrt), max([n, 6], key=float)),
    "sorting by comparing": lambda x, n: (x * 2, sorted([n, 6, 8], key=functools.cmp_to_key(lambda a, b: a - b))),
    "counting": lambda x, n: (x * 2, [n, 7, 7].count(n), [5, 7, n].index(7), collections.Counter([n, 7])),
    "text by numbers": lambda x, n: (x * 2, "abcdefghijklm"[n], "a".ljust(n), "x".zfill(n), int("101", n)),
    "abstract numbers": lambda x, n: x * n if isinstance(n, numbers.Number) else x,
    "slices as objects": lambda x, n: (x * 2, slice(n).indices(6), range(n), len(range(n))),
    "iterators of C": lambda x, n: (x * 2, list(itertools.accumulate([1.5, n])), sum(itertools.chain([n], [1]))),
    "sorting by computed keys": lambda x, n: (x * 2, sorted([1, 2], key=lambda a: [6.5, n][a - 1])),
    "floats added as functions": lambda x, n: x * operator.mul(1.5, n),
    "reduce with floats": lambda x, n: x * functools.reduce(operator.mul, (1.5, 2, n)),
    "reduce by C functions": lambda x, n: x * functools.reduce(math.gcd, [n, 35]),
    "a partial of a C function": lambda x, n: x * functools.partial(math.gcd, n)(35),
    "fsum": lambda x, n: x * math.fsum(v for v in [1.5, n]),
    "repeat": lambda x, n: x * len(list(itertools.repeat(1, n))),
    "islice": lambda x, n: x * sum(itertools.islice(range(100), n)),
    "count": lambda x, n: x * next(itertools.count(n)),
    "enumerate": lambda x, n: x * list(enumerate([1, 2], n))[1][0],
    "the length of a deque": lambda x, n: (x * 2, collections.deque(range(20), n), collections.deque(maxlen=n)),
    "of a subclass": lambda x, n: (x * 2, len(Bounded(range(20), n))),
    "pop": lambda x, n: x * list(range(20)).pop(n),
    "setitem": lambda x, n: (x * 2, put(list(range(12)), n, 3)),
    "delete": lambda x, n: (x * 2, remove(list(range(12)), n)),
    "getitem": lambda x, n: x * operator.getitem(list(range(12)), n) + operator.itemgetter(n)(list(range(12))),
    "length of an object": lambda x, n: x * len(HasLength(n)),
    "truth of an object": lambda x, n: x * (2 if HasLength(n - 5) else 3),
    "index of an object": lambda x, n: x * list(range(20))[HasIndex(n)] + operator.index(HasIndex(n)),
    "float of an object": lambda x, n: x * float(HasFloat(n)) + math.sqrt(HasFloat(n)),
    "methods of int": lambda x, n: x * int.__add__(n, 3) * int.__mul__(4, n),
    "enums": lambda x, n: x * (2 if n == Level.LOW else 3),
    "fractions": lambda x, n: (x * 2, str(fractions.Fraction(1, 3) + n)),
    "identity": lambda x, n: (x * 2, n is n, n + 0 is n, n is SEVEN),
    "copies": lambda x, n: (x * 2, copy.copy([n]), copy.deepcopy({"a": [n]})),
}


def put(items, index, value):
    items.__setitem__(index, value)
    return items


def remove(items, index):
    del items[index]
    return items


def put_in_order(items):
    items.sort()
    return items


@pytest.mark.parametrize("fn", NEEDS_THE_NUMBER.values(), ids=list(NEEDS_THE_NUMBER))
def test_it_needs_the_number(fn):
    check_numbers(fn, SPECIAL)


BREAKS = {
    "json": (lambda x, n: (x * n, json.dumps({"n": [n]})), 3),
    "pickle": (lambda x, n: (x * n, pickle.loads(pickle.dumps([n])), x + n), 3),
    "struct": (lambda x, n: (x * n, struct.pack("i", n)), 3),
    "decimal": (lambda x, n: (x * n, decimal.Decimal(1) + n), 3),
    "timedelta": (lambda x, n: (x * n, datetime.timedelta(seconds=1) * n), 3),
    "map of a C function": (lambda x, n: (x * n, list(map(chr, [n + 60]))), 3),
    "map over a generator": (lambda x, n: (x * n, list(map(math.gcd, pair(n), [35, 35]))), 3),
    "filter": (lambda x, n: (x * n, list(filter(math.isqrt, [n - 5, 1]))), 3),
    "numpy": (lambda x, n: (x * n, np.arange(n).tolist(), int(np.int64(2) + n), n in np.arange(6)), 3),
    "numpy compares": (lambda x, n: (x * n, (np.arange(3) < n).tolist(), float(np.float64(2) * n)), 3),
}


@pytest.mark.parametrize(("fn", "most"), BREAKS.values(), ids=list(BREAKS))
def test_python_gets_plain_numbers_at_breaks(fn, most):
    seen = check(lambda: World(fn=fn), calls_of(fn), expect=None, unreplayed="unknown-callable")
    assert seen.world.fn.stator.recordings <= most
    assert seen.outcomes[:2] == ["miss", "miss"] and seen.world.fn.stator.break_reasons


def test_branches_make_recordings_not_numbers():
    def fn(x, n):
        match n:
            case 5:
                return x
            case int() if n > 8:
                return x * 2
        return x * n if 4 < n < 8 else x - n

    numbers = (5, 7, 9, 5, 6, 12, 3, 2, 10)
    check(lambda: World(fn=fn), calls_of(fn, numbers), expect="miss miss miss hit hit hit miss hit hit", graphs=3)


def test_division_rounds_as_python_does():
    def fn(x, n):
        return x * 2, n // 3, n % 3, -n // 4, -n % 4, 7 // n, 7 % n, n / 2

    numbers = (5, 7, -5, -7, -8, 8, 1, -1, 0, 2)
    check(
        lambda: World(fn=fn),
        calls_of(fn, numbers),
        expect="miss miss hit hit hit hit hit hit plain hit",
        raises=ZeroDivisionError,
    )


@pytest.mark.parametrize("operation", [operator.floordiv, operator.mod, operator.truediv])
def test_division_by_zero_raises(operation):
    def fn(x, n):
        return x * operation(10, n - 7)

    check(
        lambda: World(fn=fn),
        calls_of(fn, (5, 9, 7, 8, 7)),
        expect="miss miss plain hit plain",
        raises=ZeroDivisionError,
    )


def test_an_index_out_of_range_raises():
    def fn(x, n):
        return x[n]

    check(
        lambda: World(fn=fn),
        calls_of(fn, (0, 1, 2, 3, -1, -4, 4, -5, 1)),
        expect="miss miss hit hit hit hit hit hit hit",
        raises=IndexError,
    )


def test_an_index_out_of_range_behind_writes_leaves_what_eager_leaves():
    def fn(x, n, log):
        log.append(n)
        x.add_(1)
        x[n] = 7.0
        return x[n + 1]

    check(
        lambda: World(fn=fn, x=rand(1), log=[]),
        [lambda w, n=n: w.fn(w.x, n, w.log) for n in (0, 1, 2, 3, -1, 4, -5, 0)],
        expect="miss miss hit hit hit hit hit hit",
        raises=IndexError,
    )


def test_large_numbers_miss_guards_of_64_bits():
    def fn(x, n):
        return (x * 2 if n > 6 else x * 3), n + 1

    numbers = (5, 7, 9, 2**62, -(2**62), 8)
    check(lambda: World(fn=fn), calls_of(fn, numbers), expect="miss miss hit hit miss hit")
    large = (5, 7, 2**63, 2**64, -(2**63), 2**200, 9)
    seen = check(lambda: World(fn=fn), calls_of(fn, large), expect=None)
    assert seen.outcomes[-1] == "hit"


def test_large_numbers_without_guards_are_computed():
    def fn(x, n):
        return x * 2, n + 1, n * n, n // 3, -n

    numbers = (5, 2**70, 2**63, -(2**64), 9, 2**200)
    check(lambda: World(fn=fn), calls_of(fn, numbers), expect="miss miss hit hit hit hit")


def test_scalars_that_tensors_cannot_take_raise():
    def fn(x, n):
        return x.to(torch.int32) // n

    check(
        lambda: World(fn=fn),
        calls_of(fn, (3, 4, 5, 0, 2**70, 7)),
        expect="miss miss hit hit hit hit",
        raises=(RuntimeError, OverflowError),
    )


def test_equal_numbers_are_different_objects_where_eager_makes_different_ones():
    def fn(x, n):
        a, b = n * 1000, n * 1000
        return x * 2, a is b, a is a, n + 0 is n, +n is n, x.shape[0] is x.shape[0]

    def sized(x):
        return x * 2, x.shape[0] is x.shape[0], x.size(0) is x.size(0), x.numel() is x.numel()

    check(lambda: World(fn=fn), calls_of(fn, (500, 700, 900, 500)), expect="miss miss miss hit")
    check(
        lambda: World(fn=sized),
        [lambda w, n=n: w.fn(rand(n, n)) for n in (500, 700, 900, 5, 6, 5)],
        expect="miss miss miss miss miss hit",
    )


def test_symbols_inside_objects_made_inside():
    def fn(x, n):
        space = types.SimpleNamespace(n=n, parts=[n + 1])
        return x * space.n, space, functools.partial(add, n), slice(n, n + 1), lambda: n + 1

    seen = check(
        lambda: World(fn=fn),
        [lambda w, n=n: inspect_result(w.fn(rand(n), n)) for n in NUMBERS],
        expect=SYMBOLIC,
    )
    assert len(seen.graphs) == 2


def inspect_result(result):
    y, space, partial, cut, closure = result
    kinds = [type(space.n), type(space.parts[0]), type(partial.args[0]), type(cut.start), type(closure())]
    assert kinds == [int] * 5
    return y, space, partial(1), cut, closure()


@pytest.mark.parametrize("order", ["2N N34MN", "23N4MN", "N23NM", "2MN3N"])
def test_a_nan_is_found_by_identity(order):
    """Containers look at the identity before they compare; a symbol would be another object, or be found unequal."""
    nan = float("nan")
    values = {"N": nan, "M": float("nan")}

    def make():
        return World(fn=lambda x, n, known: x if n in known else -x, known=[nan])

    calls = [lambda w, n=n: w.fn(torch.ones(2), values.get(n, float(n if n.isdigit() else 0)), w.known) for n in order]
    check(make, calls, expect=None)
