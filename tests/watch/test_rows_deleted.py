"""Rows of the models, deleted one by one: what has no answer breaks the graph, and no result is another than eager's.

Which programs: for each builtin type one that reads an object of it from outside, uses one as a key, hands one to C
code and makes one; for C callables one that gives them a number. All of them see other values in every call. (Whole
rows of C callables are deleted in `test_rows_used.py`.)
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import stator
from stator.support.builtin_types import ITEMS, KEYS, TYPE_MODELS, VALUES
from stator.watch.finish import rebuild, resume_points
from stator.watch.models import calls, methods, reads
from stator.watch.models.call_model import NumberUse, RuleFacts, facts_of
from stator.watch.objects import attributes, constants, finalizers, ledger
from stator.watch.symbols import symbolic_uses


class Thing:
    def __init__(self, size: int) -> None:
        self.size = size

    def method(self) -> int:
        return self.size


def made_of(number: int) -> Callable[[], int]:
    def inner() -> int:
        return number

    return inner


LENGTH = "__len__"
LETTERS = types.SimpleNamespace(aa=2, aaa=3, aaaa=4)
# For each type: makes an object of a number, and what is read of it, which is a number again.
SAMPLES: dict[type, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    int: (int, lambda v: v + 1),
    float: (float, lambda v: v * 2.0),
    complex: (lambda k: complex(k, 1), lambda v: v.real),
    bool: (lambda k: k > 2, lambda v: 2 if v else 3),
    str: (str, int),
    bytes: (lambda k: bytes([k]), lambda v: v[0]),
    range: (range, len),
    re.Pattern: (lambda k: re.compile("a" * k), lambda v: len(v.pattern)),
    re.Match: (lambda k: re.compile("a+").search("a" * k), lambda v: v.end() + v.regs[0][1]),
    list: (lambda k: [k, k], lambda v: sum(v)),
    dict: (lambda k: {"a": k}, lambda v: v["a"]),
    tuple: (lambda k: (k, k + 1), lambda v: v[1]),
    set: (lambda k: {k, -k}, lambda v: max(v)),
    frozenset: (lambda k: frozenset({k, -k}), lambda v: max(v)),
    deque: (lambda k: deque([k, k]), lambda v: v[0] + len(v)),
    bytearray: (lambda k: bytearray([k]), lambda v: len(v)),
    slice: (lambda k: slice(0, k), lambda v: v.stop),
    types.MappingProxyType: (lambda k: types.MappingProxyType({"a": k}), lambda v: v["a"]),
    types.SimpleNamespace: (lambda k: types.SimpleNamespace(a=k), lambda v: v.a),
    KEYS: (lambda k: {k: 1}.keys(), lambda v: max(v)),
    VALUES: (lambda k: {"a": k}.values(), lambda v: max(v)),
    ITEMS: (lambda k: {"a": k}.items(), lambda v: max(v)[1]),
    types.FunctionType: (made_of, lambda v: v()),
    types.MethodType: (lambda k: Thing(k).method, lambda v: v()),
    types.BuiltinFunctionType: (lambda k: [k, k + 1].pop, lambda v: v.__self__[0]),
    types.MethodWrapperType: (lambda k: k.__add__, lambda v: v(1)),
    types.CellType: (lambda k: made_of(k).__closure__[0], lambda v: v.cell_contents),
    functools.partial: (lambda k: functools.partial(int, k), lambda v: v()),
    operator.itemgetter: (lambda k: operator.itemgetter(k), lambda v: v(range(20))),
    operator.attrgetter: (
        lambda k: operator.attrgetter("a" * k),
        lambda v: v(types.SimpleNamespace(aa=2, aaa=3, aaaa=4)),
    ),
    operator.methodcaller: (lambda k: operator.methodcaller("count", k), lambda v: v([2, 2, 3, 4, 4, 4])),
    types.GenericAlias: (lambda k: list[Thing] if k > 2 else list[int], lambda v: len(v.__args__[0].__name__)),
    torch.Size: (lambda k: torch.Size((k, 2)), lambda v: v[0]),
    torch.dtype: (lambda k: torch.float32 if k > 2 else torch.float64, lambda v: v.itemsize),
    torch.device: (lambda k: torch.device("cpu" if k > 2 else "meta"), lambda v: len(v.type)),
}


def read(value: Any, use: Callable[[Any], Any], make: Callable[[int], Any]) -> Any:
    return lambda x, w: x * use(w["value"])


def ask_c_code(value: Any, use: Callable[[Any], Any], make: Callable[[int], Any]) -> Any:
    return lambda x, w: x + [w["other"], w["value"]].count(w["wanted"])


def as_key(value: Any, use: Callable[[Any], Any], make: Callable[[int], Any]) -> Any:
    return lambda x, w: x + w["table"].get(w["value"], 7)


def made_inside(value: Any, use: Callable[[Any], Any], make: Callable[[int], Any]) -> Any:
    def fn(x: Any, w: Any) -> Any:
        made = make(w["number"])
        return x * 2, made, x + use(made)

    return fn


def comes_to(fn: Callable[[], Any], use: Callable[[Any], Any]) -> Any:
    """What is to be compared: a tensor's numbers, what is read of an object; or the exception."""
    try:
        result = fn()
    except Exception as error:
        return type(error)
    if isinstance(result, tuple):
        return [result[0].tolist(), type(result[1]), use(result[1]), result[2].tolist()]
    return result.tolist()


def world(make: Callable[[int], Any], number: int) -> dict[str, Any]:
    value = make(number)
    table: dict[Any, int] = {}
    try:
        table[value] = number
    except TypeError:
        pass
    return {"value": value, "other": make(3), "wanted": make(2), "number": number, "table": table}


def same_as_eager(cls: type) -> None:
    make, use = SAMPLES[cls]
    for program in (read, ask_c_code, as_key, made_inside):
        fn = program(None, use, make)
        compiled = stator.compile(fn, backend="eager")
        compiled.stator.reset()  # functions of one code share their recordings
        for number in (2, 2, 3, 2, 4, 4):
            x, w = torch.arange(3.0) + number, world(make, number)
            wanted, got = comes_to(lambda: fn(x, w), use), comes_to(lambda: compiled(x, w), use)
            assert got == wanted, (cls, program.__name__, number, got, wanted)


TABLES: dict[str, tuple[Any, str]] = {
    "compared": (constants, "_FIXED_TYPES"),
    "compared by C code": (ledger, "KINDS"),
    "compared by content": (constants, "_BY_VALUE"),
    "held": (ledger, "HELD"),
    "attributes": (attributes, "_PARTS"),
    "told by": (reads, "_PARTS"),
    "inert": (reads, "_INERT"),
    "transparent": (finalizers, "_TRANSPARENT"),
    "hides": (symbolic_uses, "_HOLDERS"),
    "rebuilt": (rebuild, "_DESCRIBE"),
    "iterated": (rebuild, "_WALKERS"),
    "made of": (ledger, "_MADE_OF"),
    "changes": (resume_points, "_CHANGEABLE"),
    "constructed": (calls, "_SAFE_NEW"),
}


@contextmanager
def deleted(monkeypatch: pytest.MonkeyPatch, table: str, cls: type) -> Iterator[None]:
    module, name = TABLES[table]
    found = getattr(module, name)
    kept = [key for key in found if key is not cls]
    rest = {key: found[key] for key in kept} if isinstance(found, dict) else type(found)(kept)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, rest)
        yield


ANSWERS = [(table, cls) for table, (module, name) in TABLES.items() for cls in SAMPLES if cls in getattr(module, name)]


def test_every_row_has_a_sample_or_a_reason_for_none() -> None:
    """Types whose objects say nothing of a number."""
    plain = {type(None), type(...), type(NotImplemented), object, type, super, property, staticmethod, classmethod}
    fixed = {types.CodeType, types.UnionType, torch.layout, torch.memory_format, torch.qscheme, torch.Generator}
    fixed |= {torch._ops.OpOverload, torch._ops.OpOverloadPacket, weakref.ReferenceType, functools._lru_cache_wrapper}
    fixed |= {BaseException, OrderedDict, defaultdict, weakref.ProxyType, weakref.CallableProxyType}  # in other tests
    rows = {model.type for model in TYPE_MODELS if not model.type.__name__.endswith(("descriptor", "iterator"))}
    rows -= {model.type for model in TYPE_MODELS if model.walks and model.type not in SAMPLES}
    assert rows - set(SAMPLES) == plain | fixed
    assert len({model.type for model in TYPE_MODELS}) == len(TYPE_MODELS)


@pytest.mark.parametrize("cls", SAMPLES)
def test_nothing_deleted(cls):
    same_as_eager(cls)


@pytest.mark.filterwarnings("ignore:stator failed")  # `tuple` without what it holds: then the call runs plain
@pytest.mark.parametrize("table, cls", ANSWERS, ids=lambda value: getattr(value, "__name__", value))
def test_a_type_without_an_answer_is_no_wrong_result(monkeypatch, table, cls):
    with deleted(monkeypatch, table, cls):
        same_as_eager(cls)


def test_every_rule_of_a_row_is_one() -> None:
    """What nobody says of a rule is taken for the worst: C code asks it at each call, and numbers become constants."""
    rules = {row.rule for row in calls.CALL_MODELS}
    rules |= {rule for row in methods.METHODS for rule in (*row.rules, row.otherwise) if rule is not None}
    assert len(rules) > 50 and all(type(facts_of(rule)) is RuleFacts for rule in rules)
    assert facts_of(lambda s, func, args, kwnames: None) == RuleFacts(False, False, NumberUse.READ)
    skipped = {rule.__name__ for rule in rules if facts_of(rule).skipped}
    asked = {"calls_back", "get_attribute", "set_attribute", "read_again", "identity_of", "no_mode", "call_first"}
    assert skipped.isdisjoint(asked) and {"pure", "shallow", "nothing"} <= skipped


NUMBERS: dict[Any, Callable[[int], Any]] = {
    max: lambda n: max(n, 3),
    min: lambda n: min(n * 0.5, 1.75),
    sorted: lambda n: sorted([n, 3])[0],
    sum: lambda n: sum([n, n, 1]),
    math.prod: lambda n: math.prod([n, 2, n]),
    math.sqrt: lambda n: math.sqrt(n * 0.5),
    math.floor: lambda n: math.floor(n) + 1,
    divmod: lambda n: divmod(n, 3)[1],
    int: lambda n: int(n) * 2,
    float: lambda n: float(n) / 2,
    abs: lambda n: abs(-n),
    str: lambda n: len(str(n)),
    bool: lambda n: 2 if bool(n - 3) else 5,
    hash: lambda n: hash(n) + 1,
    round: lambda n: round(n) + 1,
    tuple: lambda n: tuple([n, 2])[1] + n,
    dict: lambda n: dict(a=n)["a"],
    set: lambda n: max(set([n, 1])),
    zip: lambda n: next(zip([n], [1], strict=True))[0],
    map: lambda n: next(map(abs, [n])),
    enumerate: lambda n: next(enumerate([5], n))[0],
    deque: lambda n: len(deque([1, 2, 3, 4, 5], n)),
    operator.add: lambda n: operator.add(n, 2),
    operator.eq: lambda n: 2 if operator.eq(n, 3) else 4,
    operator.iadd: lambda n: operator.iadd(n, 2),
    functools.reduce: lambda n: functools.reduce(operator.add, [n, 2]),
    functools.partial: lambda n: functools.partial(max, n)(3),
    itertools.chain: lambda n: sum(itertools.chain([n], [2])),
    types.SimpleNamespace: lambda n: types.SimpleNamespace(a=n).a,
    type: lambda n: 2 if type(n) is int else 3,
    len: lambda n: len([n, 1]),
}
# What is deleted of a row: each answer about symbolic numbers, and all of them.
ANSWERS_ABOUT_NUMBERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "numbers": {"numbers": NumberUse.READ},
    "heard": {"heard": False},
    "all": {"numbers": NumberUse.READ, "heard": False, "instead": None},
}


@pytest.mark.parametrize("use", NumberUse)
def test_every_use_of_numbers_is_judged(use):
    assert symbolic_uses._PASSES[use](()) is (use is not NumberUse.READ)


@pytest.mark.parametrize("deleted_answers", ANSWERS_ABOUT_NUMBERS)
@pytest.mark.parametrize("func", NUMBERS)
def test_a_callable_without_an_answer_about_numbers_is_no_wrong_result(monkeypatch, func, deleted_answers):
    program = NUMBERS[func]
    row = calls.RULES[id(func)]
    monkeypatch.setitem(calls.RULES, id(func), row._replace(**ANSWERS_ABOUT_NUMBERS[deleted_answers]))
    compiled = stator.compile(lambda x, n: x * program(n) + n, backend="eager", dynamic=True)
    compiled.stator.reset()
    for number in (2, 2, 3, 4, 5, 4):
        x = torch.arange(3.0) + number
        wanted = (x * program(number) + number).tolist()
        assert compiled(x, number).tolist() == wanted, (func, number)
    follows = {sum, math.prod, divmod, tuple, dict, zip, map, operator.add, operator.iadd, functools.reduce, type, len}
    if func in follows:  # one for all numbers, behind the first; without the answers one for each
        assert compiled.stator.recordings == {"nothing": 2, "all": 4}.get(deleted_answers, compiled.stator.recordings)
    assert compiled.stator.hits
