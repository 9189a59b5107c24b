"""Resumable functions: loops, blocks, handlers, closures, definitions. See `resumables.py`."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from resumable_objects import Box, Child, Oops, Sized, case, fails, helper


@case
def arithmetic(log: Any) -> Any:
    a, b = 3, 4
    total = 0
    for i in range(3):
        total += a * b + i
    return total, -a, ~b, +a, not total


@case
def nested_loops(log: Any) -> Any:
    out = []
    for row in [[1, 2], [3], []]:
        for x in row:
            if x == 2:
                continue
            for y in (1, 2, 3):
                if y == 3:
                    break
                out.append((x, y))
        else:
            log.append("else")
    return out


@case
def while_loops(log: Any) -> Any:
    n, seen = 3, []
    while n:
        seen.append(n)
        n -= 1
        if n == 10:
            break
    else:
        seen.append("else")
    while True:
        n += 1
        if n > 2:
            break
    return seen, n


@case
def silent_loops(log: Any) -> Any:
    """Loops in which no instruction has a probe."""
    for x in (1, 2, 3):  # noqa: B007
        pass
    for _ in [1, 2]:
        y = x
    return x, y


@case
def maybe_unbound(log: Any) -> Any:
    for i in ():
        j = i
    try:
        log.append(j)
    except UnboundLocalError as error:
        log.append(str(error))
    for i in (1, 2):
        if i == 2:
            j = len("ab")
    try:
        del j
        return j
    except UnboundLocalError as error:
        return str(error), i


@case
def managers(log: Any) -> Any:
    with Box(log, 1) as a, Box(log, 99) as b:
        log.append(a + b)
        raise Oops("in with")
    log.append("after")
    with Box(log, 5):
        result = helper(log, 3)
    with contextlib.suppress(KeyError):
        {}[1]
    return result


@case
def manager_lets_through(log: Any) -> Any:
    with Box(log, 1), Box(log, 2):
        x = 1
        x.foo


@case
def tries(log: Any) -> Any:
    out = []
    for i in range(3):
        try:
            out.append(("try", i))
            if i == 1:
                raise ValueError(i)
            if i == 2:
                raise KeyError(i)
        except ValueError as error:
            out.append((error.args, repr(sys.exc_info()[1])))
        except (KeyError, IndexError):
            out.append(sys.exc_info()[1].args)
        else:
            out.append("else")
        finally:
            out.append("finally")
    return out


@case
def raised_again(log: Any) -> Any:
    try:
        try:
            fails(log, 5)
        except Oops:
            log.append(repr(sys.exc_info()[1]))
            raise
        finally:
            log.append("finally")
    except Oops as error:
        log.append(repr(error))
        raise RuntimeError("x") from error


@case
def handlers_in_handlers(log: Any) -> Any:
    try:
        1 / 0
    except ZeroDivisionError:
        log.append(repr(sys.exc_info()[1]))
        try:
            {}["k"]
        except KeyError as second:
            log.append((repr(second), repr(second.__context__)))
            try:
                [].pop()
            except IndexError:
                log.append(repr(sys.exc_info()[1]))
            log.append(repr(sys.exc_info()[1]))
        log.append(repr(sys.exc_info()[1]))
        try:
            raise Oops("implicit context")
        finally:
            log.append("finally " + repr(sys.exc_info()[1]))


@case
def return_through_finally(log: Any) -> Any:
    for i in range(4):
        try:
            if i == 2:
                return ("ret", i)
            if i == 0:
                continue
            log.append(i)
        finally:
            log.append(("finally", i, repr(sys.exc_info()[1])))


@case
def finally_swallows(log: Any) -> Any:
    while True:
        try:
            fails(log, 9)
        finally:
            log.append(repr(sys.exc_info()[1]))
            break
    try:
        return 1
    finally:
        log.append("x")


@case
def return_in_handler(log: Any) -> Any:
    for i in (1, 2):
        try:
            fails(log, i + 1)
        except Oops as error:
            with Box(log, 1):
                return str(error), repr(sys.exc_info()[1])


@case
def closures(log: Any) -> Any:
    n, acc = 0, []

    def more(k: int = 1) -> int:
        nonlocal n
        n += k
        acc.append(n)
        return n

    def get() -> int:
        return n

    more()
    more(5)
    m = get()
    n *= 2
    functions = [lambda j=j: (j, n) for j in range(2)]
    return m, n, acc, [f() for f in functions], get()


def changing_cell(log: Any, x: int) -> Any:
    def h() -> int:
        return x + 1

    a = h()
    x = x * 2
    b = h()
    del x
    try:
        h()
    except NameError as error:
        log.append(error.args)
    x = 3
    return a, b, h(), sorted(name for name in locals() if name != "h"), locals()["x"]


@case
def cell_arguments(log: Any) -> Any:
    return changing_cell(log, 7)


@case
def comprehensions(log: Any) -> Any:
    k, x = 3, "outer"
    a = [i * k for i in range(4) if i % 2]
    b = {i: j for i in range(2) for j in range(i)}
    c = {x for x in "hello"}
    d = list(y + k for y in a)
    e = [[i * j + helper(log, j) for j in range(2)] for i in range(2)]
    f = [lambda: x for x in range(2)]
    return a, b, sorted(c), d, e, x, [g() for g in f]


@case
def star_arguments(log: Any) -> Any:
    p, kw = [1, 2], {"k": 5, "zz": 1}
    a = helper(log, *p)
    b = helper(log, *p, 3, 4, **kw)
    c = helper(log, 1, k=2, zz=3)
    first, *mid, last = [1, 2, 3, 4]
    return a, b, c, first, mid, last, [*p, *mid], {**kw, "q": 1}


def all_arguments(a: int, /, b: int, *args: int, c: int = 5, **kw: int) -> Any:
    kw["z"] = a + b
    total = sum(args) + c
    return total, kw, args


@case
def argument_kinds(log: Any) -> Any:
    return all_arguments(1, 2, 3, 4, d=5), all_arguments(1, b=2, c=3), all_arguments(*(1, 2), **{"c": 4})


@case
def walrus(log: Any) -> Any:
    if (n := len("abc")) > 2 and (m := n * 2):
        log.append((n, m))
    while n := n - 1:
        log.append(n)
    return [y := 1, y**2], n


def matched(log: Any, value: Any) -> Any:
    match value:
        case 0 | 1:
            return "small"
        case [x, y, *rest] if x < y:
            return ("sequence", x, y, rest)
        case {"k": [a, _], **others}:
            return ("mapping", a, others)
        case Sized(size=size):
            return ("object", size)
        case str() as s:
            return s.upper()
        case _:
            return None


@case
def matching(log: Any) -> Any:
    values = (1, [1, 2, 3], [3, 1], {"k": [1, 2], "z": 3}, Sized(4), "hey", 3.0)
    return [matched(log, value) for value in values]


def factorial(log: Any, n: int) -> int:
    log.append(n)
    return 1 if n < 2 else n * factorial(log, n - 1)


@case
def recursion(log: Any) -> Any:
    return factorial(log, 4) + factorial(log, 2)


@case
def raised_in_the_middle(log: Any) -> Any:
    x = [1, 2]
    return helper(log, x[0]) + helper(log, x[5]) + helper(log, 1)


def numbers(log: Any, n: int) -> Any:
    try:
        for i in range(n):
            log.append(("g", i))
            yield i
    finally:
        log.append("closed")


@case
def generators_inside(log: Any) -> Any:
    total, generator = 0, numbers(log, 5)
    for value in generator:
        total += value
        if value == 2:
            break
    following = next(generator)
    generator.close()
    pairs = list(zip(numbers(log, 2), enumerate("ab"), strict=True))
    return total, following, sum(q for q in numbers(log, 3)), pairs


@case
def class_inside(log: Any) -> Any:
    base = 4

    class A:
        v = base + 1

        def m(self, q: int = 2) -> int:
            return self.v * q + base

    class B(A):
        def m(self, q: int = 3) -> int:
            r = super().m(q) + 1
            return super().m() + r

    return A().m(), B().m(), B.__mro__[1].__name__


@case
def supers(log: Any) -> Any:
    child = Child(3)
    return child.run(log, 3), Child.run(child, log, 1), child.x, child.y
