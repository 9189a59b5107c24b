"""Objects and functions that the resumable functions use, and the list that they enter themselves into."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

CASES: list[Callable[[list[Any]], Any]] = []


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
