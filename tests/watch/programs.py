"""Small programs, one per corner of the language. Each returns something that can be compared; watched and
unwatched runs must agree. `PROGRAMS` has them all."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import sys
from collections.abc import Callable
from typing import Any

from programs_async import asynchronous

PROGRAMS: list[Callable[[], Any]] = []
COUNTER = 0


def program(func: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(func)
    return func


class Base:
    kind = "base"

    def __init__(self, x: int = 1) -> None:
        self.x = x

    @property
    def twice(self) -> int:
        return self.x * 2

    def name(self) -> str:
        return f"{self.kind}:{self.x!r:>4}"

    @classmethod
    def make(cls, x: int) -> Base:
        return cls(x)

    @staticmethod
    def plain(x: int) -> int:
        return x + 1


class Child(Base):
    kind = "child"

    def __init__(self, x: int = 1) -> None:
        super().__init__(x + 1)

    def name(self) -> str:
        return super().name() + "!"

    def __getattr__(self, name: str) -> str:
        if name == "nothing":
            raise AttributeError(name)
        return name.upper()

    def __getitem__(self, key: Any) -> Any:
        return key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Child) and self.x == other.x

    def __hash__(self) -> int:
        return self.x

    def __len__(self) -> int:
        return 3

    def __contains__(self, item: object) -> bool:
        return item == 3

    def __add__(self, other: int) -> Child:
        return Child(self.x + other)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


@program
def classes() -> Any:
    c = Child.make(3)
    with contextlib.suppress(AttributeError):
        c.nothing
    return c.name(), c.twice, c.other, c[1:2], c == Child(3), len(c), 3 in c, (c + 1).x, c(1, k=2), c.plain(1)


@program
def class_made_inside() -> Any:
    outer = 5

    class Meta(type):
        def __new__(mcs, name: str, bases: Any, space: Any, **kw: Any) -> Any:
            space["extra"] = kw
            return super().__new__(mcs, name, bases, space)

        def __call__(cls, *args: Any) -> Any:
            return super().__call__(*args)

    class Made(metaclass=Meta, flag=1):
        value = outer

        def get(self) -> Any:
            return __class__.extra, self.value

    return Made().get()


@program
def arguments() -> Any:
    def f(a, /, b, *args, c=3, d, **kwargs):
        return a, b, args, c, d, sorted(kwargs.items()), sorted(locals())

    rest: Any = {"d": 7, "e": 8}
    return f(1, 2, d=4), f(1, 2, 3, 4, c=5, **rest), f(*[1, 2, 3], **rest), f(*(1,), b=2, **rest)


@program
def wrong_arguments() -> Any:
    def f(a, *, b):
        return a, b

    out = []
    for args, kwargs in (((), {}), ((1,), {}), ((1, 2), {"b": 1}), ((1,), {"b": 1, "c": 2})):
        try:
            f(*args, **kwargs)
        except TypeError as error:
            out.append(str(error))
    return out


@program
def closures() -> Any:
    total = 0

    def add(n: int, seen: list[int] = []) -> Callable[[], int]:
        nonlocal total
        total += n
        seen.append(n)
        return lambda: total + n + len(seen)

    one, two = add(1), add(2)
    del add
    return one(), two(), total


@program
def unbound_names() -> Any:
    out = []

    def cell() -> Any:
        def inner() -> Any:
            return value

        if out is None:
            value = 1
        return inner()

    def local() -> Any:
        if out is None:
            value = 1
        return value

    for f in (cell, local, lambda: does_not_exist):
        try:
            f()
        except NameError as error:
            out.append((type(error), str(error)))
    return out


@program
def global_variable() -> Any:
    global COUNTER
    COUNTER += 1
    value = COUNTER
    del COUNTER
    gone = "COUNTER" not in globals()
    COUNTER = 0
    return value, gone


def countdown(n: int) -> Any:
    try:
        while n:
            got = yield n
            n = n - 1 if got is None else got
    finally:
        yield "closing"
    return "end"


@program
def generators() -> Any:
    def outer() -> Any:
        result = yield from countdown(3)
        yield result
        yield from [7, 8]

    g = outer()
    out = [next(g), g.send(5), next(g)]
    out += list(g)
    h = countdown(2)
    next(h)
    try:
        out.append(h.throw(ValueError("in")))
        next(h)
    except ValueError as error:
        out.append(str(error))
    k = outer()
    next(k)
    out.append(k.gi_yieldfrom.__name__)
    out.append(k.throw(KeyError("deep")))
    with contextlib.suppress(RuntimeError, KeyError):
        k.close()
    return out, k.__name__, k.__qualname__, sum(x * y for x in range(3) for y in range(x))


@program
def generator_that_ends_badly() -> Any:
    def g() -> Any:
        yield 1
        raise StopIteration(3)

    it = g()
    next(it)
    try:
        next(it)
    except RuntimeError as error:
        return type(error.__cause__), str(error)


@program
def recursion() -> Any:
    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return fib(12)


@program
def too_deep() -> Any:
    def down(n: int) -> int:
        return down(n + 1)

    try:
        down(0)
    except RecursionError:
        return "too deep"


@program
def finally_blocks() -> Any:
    log: list[Any] = []

    def f(point: int) -> Any:
        for i in range(3):
            try:
                try:
                    if point == 0:
                        return "returned"
                    if point == 1:
                        raise ValueError(i)
                    if point == 2:
                        continue
                    break
                finally:
                    log.append(i)
                    if point == 4:
                        return "overruled"
            except ValueError as error:
                log.append(str(error))
        else:
            log.append("else")
        return point

    return [f(point) for point in range(5)], log


@program
def exceptions() -> Any:
    out: list[Any] = []
    try:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("other") from error
    except (TypeError, ValueError) as error:
        out += [str(error), type(error.__cause__)]
        try:
            raise
        except ValueError as again:
            out.append(again is error)
    else:
        out.append("no")
    try:
        1 / 0
    except ZeroDivisionError:
        out.append(sys.exc_info()[0])
    out.append(sys.exc_info()[0])
    return out


@program
def exception_groups() -> Any:
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)])
    except* ValueError as group:
        out.append(len(group.exceptions))
    except* (TypeError, KeyError) as group:
        out.append(len(group.exceptions))
    return out


@program
def uncaught() -> Any:
    def inner(x: int) -> Any:
        return (
            x
            / 0
        )  # fmt: skip

    return inner(3)


class Manager:
    def __init__(self, log: list[Any], swallow: bool) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Manager:
        self.log.append("in")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.log.append(kind)
        return self.swallow


@contextlib.contextmanager
def manager(log: list[Any]) -> Any:
    try:
        yield len(log)
    except ValueError as error:
        log.append(str(error))


@program
def with_blocks() -> Any:
    log: list[Any] = []
    with Manager(log, True), Manager(log, False) as m:
        m.log.append("body")
        raise KeyError
    with manager(log) as length:
        log.append(length)
        raise ValueError("caught")
    for i in range(2):
        with Manager(log, False):
            if i:
                break
            continue
    return log


@program
def comprehensions() -> Any:
    y = 10
    rows = [[i * j for j in range(3) if j] for i in range(3)]
    pairs = {k: v for k, v in zip("abc", range(3), strict=True) if v}
    names = {f"{i}{y}" for i in range(2)}
    late = [lambda i=i: i + y for i in range(3)]
    return rows, pairs, names, [f() for f in late], [z for x in rows for z in x], (last := y), last


@program
def pattern_matching() -> Any:
    @dataclasses.dataclass
    class Point:
        x: int
        y: int

    def look(value: Any) -> Any:
        match value:
            case {"op": op, **rest}:
                return op, rest
            case [1, *middle, 2]:
                return middle
            case Point(x=0, y=y) | Point(x=y, y=0):
                return y
            case str() as text if len(text) > 1:
                return text
            case None | True:
                return "constant"
            case enum.Enum.__class__:
                return "never"
            case _:
                return "other"

    return [look(v) for v in ({"op": 1, "a": 2}, [1, 5, 6, 2], Point(0, 3), Point(4, 0), "ab", "a", True, 3.5)]


@program
def walrus_and_conditions() -> Any:
    out = []
    n = 5
    while (n := n - 1) and n != 1:
        out.append(n if n % 2 else -n)
    return out, 1 < n + 1 < 3, not n, n or "zero", n and "never", None is None, [] is not None


@program
def unpacking() -> Any:
    a, (b, *c), d = 1, "xyz", {2: 3}
    *start, end = range(3)
    e = [*c, *d]
    f = {**d, "k": a}
    g = {*c, b}
    try:
        a, b = 1, 2, 3
    except ValueError as error:
        return a, b, c, d, start, end, e, f, sorted(g), str(error)


@program
def items_and_slices() -> Any:
    x = list(range(10))
    x[2:4] = [7]
    x[0] += 5
    del x[1], x[-2:]
    d: dict[Any, Any] = {"a": [1]}
    d["a"] += [2]
    d |= {"b": 3}
    b = Base(3)
    b.x *= 2
    b.y = 3
    del b.y
    return x, x[1:3], d, b.x, hasattr(b, "y"), -b.x, ~b.x, +b.x, b.x**2, b.x // 4, 7 @ Mat()


class Mat:
    def __rmatmul__(self, other: int) -> int:
        return other * 100


@program
def formatting() -> Any:
    x, w = 3.14159, 8
    return f"{x:{w}.2f}|{x!r}|{'a'!s}|{'é'!a}|{x=:.1f}|{w:>{w}}|{{}}", "%s %d" % ("a", 1), f"{Base(1).name()}"


@program
def imports() -> Any:
    import os.path as p
    from collections import OrderedDict as Ordered

    try:
        from os import no_such_name
    except ImportError as error:
        return p.basename("a/b"), Ordered(a=1)["a"], error.name
    return no_such_name


@program
def called_from_c() -> Any:
    data = sorted([3, 1, 2], key=lambda v: -v)
    mapped = list(map(lambda a, b: a + b, data, data))
    part = functools.partial(lambda *a, **k: (a, k), 1, z=2)
    return (
        data,
        mapped,
        list(filter(None, data)),
        functools.reduce(lambda a, b: a * b, data),
        part(3, y=4),
        max(data, key=lambda v: v % 3),
    )


@functools.lru_cache
def cached(x: int) -> int:
    return x + 1


@program
def decorated() -> Any:
    @functools.wraps(cached)
    def wrapper(*args: Any) -> Any:
        return cached(*args)

    return wrapper(3), wrapper(3), wrapper.__name__


@program
def executed_code() -> Any:
    space: dict[str, Any] = {}
    exec("def f(x, *, y=2):\n    return x + y\nz = [f(i) for i in range(3)]", space)

    def without_arguments() -> Any:
        return 5

    exec(without_arguments.__code__)
    return space["z"], eval("space['f'](5)")


@program
def local_names() -> Any:
    a, b = 1, 2

    def inner(c: int) -> Any:
        return sorted(locals().items()), sorted(sys._getframe().f_locals)

    return sorted(locals()), inner(a + b), sys._getframe().f_code.co_name


program(asynchronous)


@program
def enums_and_descriptors() -> Any:
    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    class Field:
        def __set_name__(self, owner: Any, name: str) -> None:
            self.name = "_" + name

        def __get__(self, obj: Any, owner: Any) -> Any:
            return getattr(obj, self.name, "unset")

        def __set__(self, obj: Any, value: Any) -> None:
            obj.__dict__[self.name] = value

    class Thing:
        field = Field()
        __slots__ = ("__dict__",)

    t = Thing()
    before = t.field
    t.field = Colour.RED
    return before, t.field.name, Colour(2).name, [c.value for c in Colour]


@program
def assertions() -> Any:
    try:
        assert [] == 1, "message"
    except AssertionError as error:
        return str(error)


if sys.version_info >= (3, 12):
    exec(
        """
@program
def type_parameters():
    def first[T](x: list[T]) -> T:
        return x[0]
    class Box[T]:
        def __init__(self, v: T): self.v = v
    type Pair[A] = tuple[A, A]
    return first([3]), Box(4).v, str(Pair), first.__type_params__[0].__name__
"""
    )
