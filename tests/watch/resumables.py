"""Functions of all shapes, to be broken off at every instruction and finished by continuations. `CASES` has them all.

Each takes a log, in which it notes what it does, and returns something whose repr can be compared, or raises."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

CASES: list[Callable[[list[Any]], Any]] = []
LEVEL = 10


def case(func: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    CASES.append(func)
    return func


class Oops(Exception):
    pass


class Box:
    """Everything that can be a method."""

    def __init__(self, log: Any, value: Any = 0) -> None:
        self.log = log
        inner = [value]
        self.value = inner[0]

    def note(self, what: str) -> None:
        self.log.append((what, self.value))

    def __repr__(self) -> str:
        return f"Box({self.value})"

    def __str__(self) -> str:
        self.note("str")
        return "box " + str(self.value)

    def __format__(self, spec: str) -> str:
        self.note("format")
        return spec + str(self.value)

    def __add__(self, other: Any) -> Any:
        self.note("add")
        return Box(self.log, self.value + other)

    def __radd__(self, other: Any) -> Any:
        self.note("radd")
        return self.value + other

    def __imul__(self, other: Any) -> Any:
        self.note("imul")
        self.value *= other
        return self

    def __neg__(self) -> Any:
        self.note("neg")
        return -self.value

    def __invert__(self) -> Any:
        return ~self.value

    def __pos__(self) -> Any:
        return [self.value]

    def __lt__(self, other: Any) -> Any:
        self.note("lt")
        return self.value < other.value

    def __eq__(self, other: Any) -> Any:
        self.note("eq")
        return [self.value, other]

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        self.note("bool")
        return self.value > 2

    def __contains__(self, item: Any) -> Any:
        self.note("contains")
        return [item] if item == self.value else []

    def __getitem__(self, key: Any) -> Any:
        self.note("get")
        return (key, self.value)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.log.append((key, value))

    def __delitem__(self, key: Any) -> None:
        self.log.append(("del", key))
        if key == "bad":
            raise KeyError(key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.note("call")
        return (args, sorted(kwargs.items()))

    def __iter__(self) -> Any:
        self.note("iter")
        return Count(self.log, self.value)

    def __enter__(self) -> Any:
        self.note("enter")
        return self.value

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        self.log.append(("exit", kind and kind.__name__, repr(sys.exc_info()[1])))
        return self.value == 99

    @property
    def double(self) -> Any:
        self.note("double")
        return 2 * self.value

    @double.setter
    def double(self, value: Any) -> None:
        self.note("set double")
        self.value = value / 2

    @double.deleter
    def double(self) -> None:
        self.note("del double")

    @classmethod
    def made(cls, log: Any, value: Any) -> Any:
        return cls(log, value + 1)

    @staticmethod
    def twice(x: Any) -> Any:
        y = x
        return x + y


class Count:
    def __init__(self, log: Any, end: int) -> None:
        self.log, self.end, self.i = log, end, 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        self.i += 1
        if self.i > self.end:
            raise StopIteration
        if self.i == 7:
            raise Oops("seven")
        return self.i


class Sized:
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        size = self.size
        return abs(size)


class Dynamic:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("no"):
            raise AttributeError(name)
        return lambda *args: (name, args)


class Guarded:
    def __init__(self) -> None:
        self.kept = []

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        object.__setattr__(self, name, [value])

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found


class Descriptor:
    def __get__(self, owner: Any, kind: Any) -> Any:
        x = len("abc")
        return (x, kind.__name__)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["stored"] = abs(value)


class Described:
    field = Descriptor()


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.extra = len(args)
        return made


class Managed(metaclass=Meta):
    def __init__(self, x: Any) -> None:
        self.x = [x, abs(x)]


class Parent:
    def __init__(self, x: int) -> None:
        self.x = x + 1

    def run(self, log: Any, n: int) -> int:
        log.append("parent")
        return n + self.x


class Child(Parent):
    def __init__(self, x: int) -> None:
        super().__init__(x * 2)
        self.y = self.x

    def run(self, log: Any, n: int) -> Any:
        first = super().run(log, n) * 2
        name = lambda: self.__class__.__name__  # noqa: E731
        return first + super().run(log, first), name()


def helper(log: Any, x: int, y: int = 2, *rest: int, k: int = 0, **more: int) -> int:
    log.append(("helper", x))
    z = x * y + k
    for r in rest:
        z += r
    return z + len(more)


def fails(log: Any, n: int) -> int:
    log.append("fails")
    a = n + 1
    if a > 2:
        raise Oops(f"n={n}")
    return a


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
