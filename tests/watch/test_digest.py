"""Digests of guards, versions of dicts, and tripwires, by hand: no torch, no pytest.

What guards with a digest say is compared with what guards say that are made on the spot and have none.
"""

from __future__ import annotations

import ctypes
import gc
import random
import subprocess
import sys
import types
import weakref
from collections import OrderedDict
from typing import Any

from test_engine import Thing, Without, make, quick, root

from stator import _native as n

WARM = 5  # walks after which a digest answers


def warm(guards, *slots: Any) -> Any:
    """What guards answer, once they do so by their digest."""
    for _ in range(WARM):
        answer = guards.check(slots)
    before = guards.digested
    assert guards.check(slots) == answer
    assert guards.digested == before + 1, "no digest"
    return answer


def agree(guards, rows, *slots: Any, **more: Any) -> Any:
    """The answer, which is that of guards without a past. More than once: a walk and a digest must agree."""
    expected = make(*rows, **more).check(slots)
    for _ in range(3):
        found = guards.check(slots)
        assert found == expected, (found, expected)
        if found is not None:
            assert all(a is b for a, b in zip(found, expected, strict=True))
    return expected


# -- one row per way to reach a value, with a change that it must follow


class Slots:
    __slots__ = ("a", "b")


def slotted() -> Slots:
    thing = Slots()
    thing.a = [5]
    return thing


def function_with(value: Any) -> types.FunctionType:
    def function(a, b=value):
        return value

    return function


def set_code(function: Any) -> None:
    function.__code__ = function.__code__.replace(co_name="other")


EDGES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "key": ({"k": [1]}, {"edge": n.FETCH_KEY, "key": "k"}, lambda o: o.update(k=[2])),
    "key of many kinds": ({1: 0, "k": [1]}, {"edge": n.FETCH_KEY, "key": "k"}, lambda o: o.update(k=[2])),
    "item of a list": ([[1], [2]], {"edge": n.FETCH_INDEX, "number": 1}, lambda o: o.__setitem__(1, [3])),
    "a longer list": ([[1], [2]], {"edge": n.FETCH_INDEX, "number": 1}, lambda o: o.append([3])),
    "a shorter list": ([[1], [2]], {"edge": n.FETCH_INDEX, "number": 1}, lambda o: o.pop()),
    "member": (slotted(), {"edge": n.FETCH_MEMBER, "key": Slots.a}, lambda o: setattr(o, "a", [6])),
    "deleted member": (slotted(), {"edge": n.FETCH_MEMBER, "key": Slots.a}, lambda o: delattr(o, "a")),
    "defaults": (
        function_with([1]),
        {"edge": n.FETCH_FUNCTION, "number": n.PART_DEFAULTS},
        lambda o: setattr(o, "__defaults__", ([2],)),
    ),
    "no defaults": (
        function_with([1]),
        {"edge": n.FETCH_FUNCTION, "number": n.PART_DEFAULTS},
        lambda o: setattr(o, "__defaults__", None),
    ),
    "code": (function_with([1]), {"edge": n.FETCH_FUNCTION, "number": n.PART_CODE}, set_code),
    "cell": (types.CellType([1]), {"edge": n.FETCH_CELL}, lambda o: setattr(o, "cell_contents", [2])),
    "emptied cell": (types.CellType([1]), {"edge": n.FETCH_CELL}, lambda o: delattr(o, "cell_contents")),
    "namespace": (Thing(x=1), {"edge": n.FETCH_NAMESPACE}, lambda o: setattr(o, "__dict__", {"x": 2})),
}


def below(edge: dict[str, Any]) -> list[dict[str, Any]]:
    """The value is reached from an entry of a dict: nothing in the way is an argument of the call."""
    return [
        root(version=n.VERSION_DICT),
        {"edge": n.FETCH_KEY, "parent": 0, "key": "owner"},
        {**edge, "parent": 1},
    ]


def test_every_edge() -> None:
    for name, (owner, edge, change) in EDGES.items():
        rows, table = below(edge), {"owner": owner}
        guards = make(*rows, wanted=(2,))
        before = warm(guards, table)
        change(owner)
        after = agree(guards, rows, table, wanted=(2,))
        assert after is None or after[0] is not before[0] or name == "a longer list", name


def closed(code: Any) -> tuple[Any, ...]:
    return (code.__code__, code.__globals__)


class Left:
    pass


class Right:
    pass


FUNCTION = function_with([1])
EMPTY = types.CellType()

# what is checked, of which value, and a change after which it does not hold
FACTS: dict[str, tuple[int, Any, Any, Any]] = {
    "type": (n.CHECK_TYPE, Left, Left(), lambda o: setattr(o, "__class__", Right)),
    "length of a list": (n.CHECK_LEN, 1, [1], lambda o: o.append(2)),
    "length of a set": (n.CHECK_LEN, 1, {1}, lambda o: o.add(2)),
    "keys of a set": (n.CHECK_KEYS, (1,), {1}, lambda o: (o.clear(), o.add(2))),
    "code": (n.CHECK_CODE, closed(FUNCTION), FUNCTION, set_code),
    "unset": (n.CHECK_UNSET, None, EMPTY, lambda o: setattr(o, "cell_contents", 1)),
    "no slot": (n.CHECK_NO_SLOT, Slots.b, slotted(), lambda o: setattr(o, "b", 1)),
}


def test_every_fact() -> None:
    for name, (fact, expected, owner, change) in FACTS.items():
        rows = below({"edge": n.FETCH_INDEX, "number": 0, "checks": [(fact, n.LIVE, expected)]})
        table = {"owner": [owner]}
        guards = make(*rows, wanted=(2,))
        assert warm(guards, table) == (owner,), name
        change(owner)
        assert agree(guards, rows, table, wanted=(2,)) is None, name


def test_hooks() -> None:
    names = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
    for name in names:
        module = Thing(**{each: OrderedDict() for each in names})
        rows = [
            root(checks=[(n.CHECK_TYPE, n.LIVE, Thing)]),
            {
                "edge": n.FETCH_NAMESPACE,
                "parent": 0,
                "version": n.VERSION_DICT,
                "checks": [(n.CHECK_UNHOOKED, n.LIVE, None)],
            },
        ]
        guards = make(*rows)
        warm(guards, module)
        getattr(module, name)["hook"] = print
        assert agree(guards, rows, module) is None
        getattr(module, name).clear()
        assert warm(guards, module) == (module,)
        setattr(module, name, {"hook": print})
        assert agree(guards, rows, module) is None
        setattr(module, name, {})
        module.forward = print
        assert agree(guards, rows, module) is None


def test_an_address_is_not_an_object() -> None:
    """Another number comes to lie where the checked one was; nothing but the list leads there."""
    rows = below({"edge": n.FETCH_INDEX, "number": 0, "checks": [(n.CHECK_EQUAL, n.FIXED, 1.5)]})
    table: dict[str, Any] = {"owner": [float("1.5")]}
    guards = make(*rows, wanted=(2,))
    warm(guards, table)
    reused = 0
    for _ in range(50):
        address = id(table["owner"][0])
        table["owner"][0] = None
        table["owner"][0] = float("2.5")
        reused += id(table["owner"][0]) == address
        assert guards.check((table,)) is None
        table["owner"][0] = None
        table["owner"][0] = float("1.5")
        assert guards.check((table,)) == (1.5,)
    assert reused


def tree_rows() -> list[dict[str, Any]]:
    return [
        root(checks=[(n.CHECK_TYPE, n.LIVE, Thing)]),
        {"edge": n.FETCH_NAMESPACE, "parent": 0, "version": n.VERSION_DICT},
        {"edge": n.FETCH_KEY, "parent": 1, "key": "table", "version": n.VERSION_DICT, "past": 1},
        {"edge": n.FETCH_KEY, "parent": 2, "key": "a", "checks": [(n.CHECK_EQUAL, n.FIXED, 1)]},
        {"edge": n.FETCH_KEY, "parent": 2, "key": "b", "checks": [(n.CHECK_LEN, n.LIVE, 1)]},
    ]


def test_nothing_dangles() -> None:
    rows = tree_rows()
    guards = make(*rows, wanted=(3, 4))
    for round in range(100):
        thing = Thing(table={"a": 1, "b": [round]})
        for _ in range(WARM):
            assert guards.check((thing,)) == (1, [round])
        dead = weakref.ref(thing)
        del thing
        assert dead() is None
        assert guards.check((Thing(table={"a": 2, "b": [0]}),)) is None


def test_two_objects_in_turn() -> None:
    """One recording for two models: the values that are handed out are those of the model that was given."""
    guards = make(*tree_rows(), wanted=(3, 4))
    first, second = Thing(table={"a": 1, "b": ["first"]}), Thing(table={"a": 1, "b": ["second"]})
    for _ in range(40):
        warm_first = [guards.check((first,)) for _ in range(WARM)]
        assert warm_first == [(1, ["first"])] * WARM
        assert guards.check((second,)) == (1, ["second"])


def test_what_changes_in_every_call_is_visited() -> None:
    rows = [*tree_rows(), root(number=1, version=n.VERSION_DICT, checks=[(n.CHECK_LEN, n.OWN, 1)])]
    guards = make(*rows, wanted=(4, 5))
    thing = Thing(table={"a": 1, "b": [0]}, calls=0)
    for round in range(20):
        thing.calls += 1
        given = {"x": round}
        assert guards.check((thing, given)) == ([0], given)
    assert guards.digested > 10
    assert guards.check((thing, {})) is None
    given = {"x": 1}
    for _ in range(40):  # nothing changes any more
        guards.check((thing, given))
    before = guards.visited
    assert guards.check((thing, given)) == ([0], given)
    assert guards.visited - before == 2  # the two arguments


# -- every way to change a dict


class Attributed:
    pass


class Wide:
    def __init__(self) -> None:
        for index in range(50):
            setattr(self, f"a{index}", index)


def store(thing: Any, value: Any) -> None:
    thing.k = value


def discard(thing: Any) -> None:
    del thing.k


for _number in range(200):  # the interpreter specialises both
    _thing = Attributed()
    store(_thing, 1)
    store(_thing, 2)
    discard(_thing)

CHANGES: dict[str, Any] = {
    "set": lambda d: d.__setitem__("k", 2),
    "delete": lambda d: d.__delitem__("k"),
    "pop": lambda d: d.pop("k"),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "update": lambda d: d.update({"k": 2}),
    "update by name": lambda d: d.update(k=2),
    "update by pairs": lambda d: d.update([("k", 2)]),
    "or": lambda d: d.__ior__({"k": 2}),
    "init": lambda d: dict.__init__(d, k=2),
    "delete and set": lambda d: (d.pop("k"), d.setdefault("k", 2)),
    "clear and update": lambda d: (d.clear(), d.update({"k": 2})),
    "dict.__setitem__": lambda d: dict.__setitem__(d, "k", 2),
    "exec": lambda d: exec("k = 2", d) or d.pop("__builtins__"),
}

ATTRIBUTE_CHANGES: dict[str, Any] = {
    "store": lambda o: store(o, 2),
    "delete": discard,
    "setattr": lambda o: setattr(o, "k", 2),
    "object.__setattr__": lambda o: object.__setattr__(o, "k", 2),
    "by its dict": lambda o: vars(o).update(k=2),
    "another dict": lambda o: setattr(o, "__dict__", {"k": 2}),
    "no dict": lambda o: delattr(o, "__dict__"),
    "delete and store": lambda o: (discard(o), store(o, 2)),
    "other names": lambda o: [setattr(o, f"x{i}", i) for i in range(60)] and store(o, 2),
}


def test_every_change_of_a_dict() -> None:
    for kind in (dict, OrderedDict, type("Dict", (dict,), {})):
        for name, change in CHANGES.items():
            rows = [
                root(version=n.VERSION_DICT, past=1),
                {"edge": n.FETCH_KEY, "parent": 0, "key": "k", "checks": [(n.CHECK_EQUAL, n.FIXED, 1)]},
            ]
            if name == "exec" and kind is not dict:
                continue
            for calls in (1, 2, WARM):
                table = kind(k=1)
                guards = make(*rows, wanted=(1,))
                for _ in range(calls):
                    assert guards.check((table,)) == (1,)
                change(table)
                assert agree(guards, rows, table, wanted=(1,)) is None, (kind, name, calls)
                table["k"] = 1
                assert warm(guards, table) == (1,)


def test_every_change_of_an_attribute() -> None:
    for cls in (Attributed, Wide):
        for name, change in ATTRIBUTE_CHANGES.items():
            for calls in (1, 2, WARM):
                rows = [
                    root(),
                    {"edge": n.FETCH_NAMESPACE, "parent": 0, "version": n.VERSION_DICT, "past": 1},
                    {"edge": n.FETCH_KEY, "parent": 1, "key": "k", "checks": [(n.CHECK_EQUAL, n.FIXED, 1)]},
                ]
                thing = cls()
                store(thing, 1)
                guards = make(*rows, wanted=(2,))
                for _ in range(calls):
                    assert guards.check((thing,)) == (1,)
                change(thing)
                assert agree(guards, rows, thing, wanted=(2,)) is None, (cls, name, calls)
                store(thing, 1)
                assert warm(guards, thing) == (1,)


def test_a_dict_is_watched_until_it_changes_or_dies() -> None:
    if n.watched_dicts() is None:
        return
    rows = [root(version=n.VERSION_DICT), {"edge": n.FETCH_KEY, "parent": 0, "key": "k"}]
    guards = make(*rows, wanted=(1,))
    gc.collect()
    before = n.watched_dicts()
    table = {"k": 1}
    warm(guards, table)
    assert n.watched_dicts() == before + 1
    table["k"] = 2
    assert n.watched_dicts() == before
    assert warm(guards, table) == (2,)
    assert n.watched_dicts() == before + 1
    del table
    assert n.watched_dicts() == before
    many = [{"k": number} for number in range(3000)]
    for table in many:
        assert guards.check((table,)) == (table["k"],)
    assert n.watched_dicts() == before + 3000
    del many, table
    assert n.watched_dicts() == before


def test_all_watchers_are_taken() -> None:
    """By others, in another process: then everything is checked in every call."""
    if n.watched_dicts() is None or not hasattr(ctypes.pythonapi, "PyDict_AddWatcher"):
        return
    code = """
import ctypes
callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3)(lambda *given: 0)
try:
    while True:
        ctypes.pythonapi.PyDict_AddWatcher(callback)
except RuntimeError:
    pass
import test_digest
from stator import _native as n
assert n.watched_dicts() is None
test_digest.warm = lambda guards, *slots: guards.check(slots)
for name in ("test_every_change_of_a_dict", "test_every_change_of_an_attribute", "test_every_edge", "test_hooks"):
    getattr(test_digest, name)()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]


# -- random trees, random changes


def random_tree(rng: random.Random, depth: int) -> Any:
    if depth == 0:
        return rng.choice([1, 2.5, "text", None, (1, 2)])
    kids = [random_tree(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    kind = rng.choice(["dict", "thing", "list", "tuple", "cell", "slots"])
    if kind == "list":
        return kids
    if kind == "tuple":
        return tuple(kids)
    if kind == "cell":
        return types.CellType(kids[0])
    if kind == "slots":
        made = Slots()
        made.a = kids[0]
        return made
    named = {f"k{index}": kid for index, kid in enumerate(kids)}
    return named if kind == "dict" else Thing(**named)


def describe(value: Any, rows: list[dict[str, Any]], at: int) -> None:
    """Adds the guards on a value that stands at row `at`, and on all below it."""
    cls = type(value)
    simple = not isinstance(value, (dict, list, tuple, Thing, types.CellType, Slots))
    lasting = n.LIVE if cls is Thing else n.FIXED
    check = (n.CHECK_EQUAL, n.FIXED, value) if simple else (n.CHECK_TYPE, lasting, cls)
    rows[at]["checks"] = [check]
    kids: list[tuple[dict[str, Any], Any]] = []
    if cls is Thing:
        rows.append({"edge": n.FETCH_NAMESPACE, "parent": at, "version": n.VERSION_DICT})
        at, value = len(rows) - 1, vars(value)
    if isinstance(value, dict):
        rows[at]["version"] = n.VERSION_DICT
        kids = [({"edge": n.FETCH_KEY, "key": key}, kid) for key, kid in value.items()]
    elif isinstance(value, (list, tuple)):
        kids = [({"edge": n.FETCH_INDEX, "number": index}, kid) for index, kid in enumerate(value)]
    elif isinstance(value, types.CellType):
        kids = [({"edge": n.FETCH_CELL}, value.cell_contents)]
    elif isinstance(value, Slots):
        kids = [({"edge": n.FETCH_MEMBER, "key": Slots.a}, value.a)]
    for row, kid in kids:
        rows.append({**row, "parent": at})
        describe(kid, rows, len(rows) - 1)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(setter, value) of everything in a tree that can be replaced."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, Thing):
        value = vars(value)
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif isinstance(value, types.CellType):
        items = [("cell_contents", value.cell_contents)]
    else:
        items = [("a", value.a)] if isinstance(value, Slots) else []
    for key, kid in items:
        if isinstance(value, (dict, list)):
            found.append((lambda new, key=key: value.__setitem__(key, new), kid))
        elif not isinstance(value, tuple):
            found.append((lambda new, key=key: setattr(value, key, new), kid))
        found += places(kid)
    return found


def equal_to(value: Any) -> Any:
    """Another object, where there can be one, that passes for this one."""
    if isinstance(value, float):
        return float(str(value))
    if isinstance(value, Thing):
        return Thing(**vars(value))
    return type(value)(value) if type(value) in (dict, list) else value


def test_random_trees() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        tree: Any = {"top": random_tree(rng, 3)}
        rows: list[dict[str, Any]] = [root()]
        describe(tree, rows, 0)
        every = range(len(rows))
        guards = make(*rows, wanted=every)
        warm(guards, tree)
        for _ in range(6):
            put, old = rng.choice(places(tree))
            put(equal_to(old) if rng.random() < 0.4 else rng.choice([1, 7.5, [1], {"k0": 1}, Thing(k0=1)]))
            agree(guards, rows, tree, wanted=every)
            if rng.random() < 0.5:
                put(old)
                agree(guards, rows, tree, wanted=every)
                for _ in range(rng.randint(0, WARM)):
                    guards.check((tree,))
    assert guards.visited


# -- several recordings


def late(*values: int, common: int = 300) -> list[dict[str, Any]]:
    """Many guards that all recordings have, then one per value in which they differ."""
    rows = [root(version=n.VERSION_DICT)]
    entry = {"edge": n.FETCH_KEY, "parent": 0, "checks": [(n.CHECK_LEN, n.LIVE, 1)]}
    rows += [{**entry, "key": f"k{i}"} for i in range(common)]
    for index, value in enumerate(values):
        rows.append({"edge": n.FETCH_KEY, "parent": 0, "key": f"late{index}"})
        rows.append({"edge": n.FETCH_INDEX, "parent": len(rows) - 1, "checks": [(n.CHECK_EQUAL, n.FIXED, value)]})
    return rows


def shelf_of(recordings: list[Any]) -> Any:
    compiled, calls, _, table = quick(lambda table: "plain", None, None)
    table.clear()
    for value, guards in recordings:
        entry = object()
        table.add(entry)
        table.publish(entry, guards, lambda values, value=value: value, None, n.Count())
    return compiled


def test_what_recordings_have_in_common_is_checked_once() -> None:
    with Without():
        n.set_quick(True, {}, object)
        common = 300
        recordings = [(value, make(*late(value, common=common))) for value in range(8)]
        compiled = shelf_of(recordings)
        table: dict[str, Any] = {f"k{i}": [i] for i in range(common)} | {"late0": [0]}
        rng = random.Random(1)
        for turn in range(200):
            value = rng.randrange(8)
            table["late0"][0] = value
            before = sum(guards.visited for _, guards in recordings)
            assert compiled(table) == value
            visited = sum(guards.visited for _, guards in recordings) - before
            assert turn < 100 or visited < common + 80, visited
        table["k7"].append(1)
        assert compiled(table) == "plain"
        n.set_quick(False, {}, object)


def test_recordings_that_differ_in_two_late_places() -> None:
    with Without():
        n.set_quick(True, {}, object)
        pairs = [(a, b) for a in range(3) for b in range(3)]
        recordings = [(pair, make(*late(*pair))) for pair in pairs]
        compiled = shelf_of(recordings)
        table: dict[str, Any] = {f"k{i}": [i] for i in range(300)} | {"late0": [0], "late1": [0]}
        rng = random.Random(2)
        for turn in range(300):
            pair = rng.choice(pairs)
            table["late0"][0], table["late1"][0] = pair
            before = sum(guards.visited for _, guards in recordings)
            assert compiled(table) == pair
            assert turn < 150 or sum(guards.visited for _, guards in recordings) - before < 300 + 120
        n.set_quick(False, {}, object)
