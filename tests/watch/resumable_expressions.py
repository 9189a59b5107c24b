"""Resumable functions: expressions, calls, attributes, frames; and one of great length. See `resumables.py`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from resumable_objects import (
    CASES,
    Box,
    Child,
    Count,
    Described,
    Dynamic,
    Guarded,
    Managed,
    Oops,
    Sized,
    case,
    fails,
    helper,
)

LEVEL = 10


@case
def chained_comparisons(log: Any) -> Any:
    a, b, c = 1, 5, 9
    result = a < b < c, a < b > c, a == 1 != b
    if a < helper(log, b) < c * 9:
        log.append("yes")
    return result, not a < b <= 4, Box(log, 1) < Box(log, 2) < Box(log, 0)


@case
def formats(log: Any) -> Any:
    s, w = "x", 10
    box = Box(log, 4)
    text = f"{s!r:>{w}}|{3.14159:.2f}|{s}{helper(log, 2)}" + f"{ {1: f'{w + 1}'} }"
    return text, f"{box}", f"{box:<{w}}", f"{box!r}", f"{box!s}", f"{Sized(1).size}"


@case
def displays(log: Any) -> Any:
    d = {"a": helper(log, 1), "b": [helper(log, 2), {helper(log, 3), 4}], "c": (1, helper(log, 4), *range(2))}
    t = [1, helper(log, 5), *(d["b"][0:1] if d else ()), helper(log, 6)]
    return d["a"], d["b"][0], sorted(d["b"][1]), d["c"], t, {"x": 1, **d}["x"]


@case
def conditions(log: Any) -> Any:
    a, b = 0, 5
    r = helper(log, (a and b) or 7, (b if a else helper(log, 1)), k=(a or helper(log, 2)) if b else 0)
    x = (a and fails(log, 9)) or (b and helper(log, b)) or None
    yes, no = Box(log, 3), Box(log, 1)
    y = (yes and no) or (no or yes), not yes, not no
    if no:
        log.append("no")
    if Sized(0) or Sized(2):
        log.append("sized")
    return r, x, not (a or b), [a or "e", b and "f"], y, 1 if yes else 2


@case
def deletions(log: Any) -> Any:
    x, y, d = 1, [1, 2, 3], {"a": 1}
    box = Box(log, 1)
    box.q = 1
    del x
    del y[0], d["a"], box.q, box["k"], box.double
    try:
        x
    except UnboundLocalError as error:
        log.append(str(error))
    x = 5
    z = x
    del z
    try:
        del box["bad"]
    except KeyError as error:
        log.append(error.args)
    return x, y, d


@case
def augmented(log: Any) -> Any:
    box = Box(log, 1)
    box.items = [1]
    d = {"k": [0], "n": 2}
    i = 0
    box.value += helper(log, 3)
    box.items += [2]
    d["k"][i] -= 1
    d["n"] **= 2
    box.items[helper(log, 0) or 1] += d["n"]
    d.setdefault("z", []).append(box.value)
    box *= 3
    box.double += 4
    return box, d, box.items


@case
def operators(log: Any) -> Any:
    box = Box(log, 3)
    total = box + 4
    return total, 1 + box, -box, ~box, +box, box == 5, 3 in box, 4 in box, 3 not in box, box[1], box[1:2]


@case
def subscripts(log: Any) -> Any:
    box = Box(log, 1)
    box["a"] = helper(log, 1)
    box[1:2] = 5
    del box["k"]
    return box["a"], box[helper(log, 2) :]


@case
def calls_of_objects(log: Any) -> Any:
    box = Box(log, 1)
    part = functools.partial(helper, log, 3)
    bound = box.note
    bound("bound")
    return box(1, k=helper(log, 1)), box(*[2], **{"z": 3}), part(), part(k=1), Box.made(log, 4), Box.twice(2)


@case
def properties(log: Any) -> Any:
    box = Box(log, 2)
    a = box.double
    box.double = helper(log, 5)
    del box.double
    return a, box, [box.double, box.double]


@case
def special_attributes(log: Any) -> Any:
    d, g, c = Dynamic(), Guarded(), Described()
    g.kept = 1
    g.other = 2
    del g.other
    c.field = -4
    try:
        d.nothing
    except AttributeError as error:
        log.append(error.args)
    return d.some(1, 2), d.other(), g.kept, c.field, c.stored


@case
def instances(log: Any) -> Any:
    box = Box(log, Box(log, 1).value + 1)
    managed = Managed(-3)
    return box, managed.x, managed.extra, Child(1).y, Sized(size=3).size, Sized(*[4]).size


@case
def iterators(log: Any) -> Any:
    out = []
    for x in Box(log, 3):
        out.append(x)
        if x == 2:
            log.append("two")
    for x in Count(log, 2):
        out.append(x)
    else:
        out.append("else")
    try:
        for x in Count(log, 9):
            out.append(x)
    except Oops as error:
        out.append(repr(error))
    for i, (a, b) in enumerate(zip([1, 2], "xy", strict=False)):
        out.append((i, a, b))
    for k, v in {"a": 1, "b": 2}.items():
        out.append((k, v))
    return out


@case
def c_code_between(log: Any) -> Any:
    values = [3, 1, 2]
    values.sort(key=lambda v: -v)
    return values, max(values, key=lambda v: helper(log, v)), list(map(lambda v: v + 1, values)), sorted(Count(log, 3))


@case
def keywords(log: Any) -> Any:
    return helper(log, helper(log, 1, k=helper(log, 2, y=3)), y=helper(log, x=4), k=1, extra=5)


@case
def groups(log: Any) -> Any:
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as error:
        log.append(len(error.exceptions))
    except* TypeError:
        log.append(repr(sys.exc_info()[1]))


@case
def caught_from_callee(log: Any) -> Any:
    out = []
    for n in range(3):
        try:
            out.append(fails(log, n))
        except Oops as error:
            out.append(str(error))
            out.append(error.__traceback__.tb_lineno)
    return out


@case
def asserts(log: Any) -> Any:
    v = 3
    try:
        assert v == 4, f"v={v}"
    except AssertionError as error:
        log.append(error.args)
    try:
        raise Oops from KeyError("c")
    except Oops as error:
        log.append(repr(error.__cause__))
        del error
    raise TypeError("end")


@case
def imports(log: Any) -> Any:
    import os.path as p
    from collections import OrderedDict, deque

    global LEVEL
    LEVEL = 10
    LEVEL += 1
    level = LEVEL
    return p.basename("/a/b"), OrderedDict(a=1)["a"], deque([1, 2], maxlen=1), level


@case
def unpacking(log: Any) -> Any:
    a = list(range(10))
    a[1:3] = [7]
    a[::2] = a[::2][::-1]
    b = a[-1:][0], a[2:][0]
    del a[3:5]
    x, (y, z), *w = 1, (2, 3), 4, 5
    x, y = y, x
    x, y, z = z, x, y
    return a, b, x, y, z, w


def called_in_handler(log: Any) -> Any:
    log.append(repr(sys.exc_info()[1]))
    try:
        {}["q"]
    except KeyError as error:
        log.append((repr(error.__context__), repr(sys.exc_info()[1])))
    log.append(repr(sys.exc_info()[1]))
    raise


@case
def handler_calls(log: Any) -> Any:
    try:
        try:
            fails(log, 4)
        except Oops:
            called_in_handler(log)
    except Oops as error:
        log.append(("again", repr(error)))
        return repr(error.__context__)


def deeper(log: Any) -> Any:
    with Box(log, 4):
        for i in range(2):
            if i:
                fails(log, 3)
    return "no"


def deep(log: Any) -> Any:
    try:
        return deeper(log)
    except KeyError:
        return "wrong"
    finally:
        log.append("finally " + repr(sys.exc_info()[1]))


@case
def tracebacks(log: Any) -> Any:
    lines = []
    try:
        lines.append(deep(log))
    except Oops as error:
        traceback = error.__traceback__
        while traceback is not None:
            lines.append(traceback.tb_lineno)
            traceback = traceback.tb_next
    return lines


@case
def seen_locals(log: Any) -> Any:
    a, b = 1, None
    for i in range(2):
        c = i
    before = sorted(locals())

    def f() -> Any:
        return b

    del a
    return before, sorted(set(locals()) - {"before", "f"}), f(), sys._getframe().f_code.co_name


@case
def own_lines(log: Any) -> Any:
    a = sys._getframe().f_lineno
    b = (
        1 +
        2 * sys._getframe().f_lineno
    )  # fmt: skip
    return (a, b,
            [].foo)  # fmt: skip


@case
def deep_stack(log: Any) -> Any:
    v = 1
    return v + (v + (v + (v + (v + (v + (v + helper(log, v, k=v)))))))


@case
def changed_context(log: Any) -> Any:
    def inner() -> None:
        try:
            {}["x"]
        except KeyError:
            raise Oops("context is a KeyError")  # noqa: B904

    try:
        [][1]
    except IndexError:
        try:
            inner()
        except Oops as error:
            log.append((repr(error.__context__), repr(error.__context__.__context__)))
            x = len(log)
        inner()
        return x


def many_variables() -> Callable[[list[Any]], Any]:
    """More than 256 variables and constants, and long jumps: all arguments need prefixes."""
    lines = ["def many_variables(log):", "    t = 0", "    for i in range(2):", "        if i == 5: return 0"]
    lines += [f"        x{k} = i + {1000 + k}" for k in range(280)]
    lines += ["        try:", "            if i: fails(log, 8)", "        except Oops as e: log.append(str(e))"]
    lines += ["        t += x0 + x279", "    return t"]
    space = {"fails": fails, "Oops": Oops}
    exec(compile("\n".join(lines), __file__, "exec"), space)
    return space["many_variables"]


CASES.append(many_variables())
