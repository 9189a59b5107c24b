"""An object that tells whenever one of its special methods runs. The tests classify this file as not to be watched:
its code runs in the middle of an instruction, as an operation on a tensor does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Spy:
    def __init__(self, called: Callable[[int], None]) -> None:
        self._called = called
        self._count = 0

    def _tell(self, result: Any) -> Any:
        self._count += 1
        self._called(self._count)
        return result

    def __getattr__(self, name: str) -> Any:
        return self._tell(name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if not name.startswith("_"):
            self._tell(None)

    def __delattr__(self, name: str) -> None:
        self._tell(None)

    def __add__(self, other: Any) -> Any:
        return self._tell(("add", other))

    def __radd__(self, other: Any) -> Any:
        return self._tell(("radd", other))

    def __iadd__(self, other: Any) -> Any:
        return self._tell(self)

    def __neg__(self) -> Any:
        return self._tell("neg")

    def __lt__(self, other: Any) -> Any:
        return self._tell(other)

    def __eq__(self, other: Any) -> Any:
        return self._tell(other)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        return self._tell(("get", key))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._tell(None)

    def __delitem__(self, key: Any) -> None:
        self._tell(None)

    def __contains__(self, item: Any) -> Any:
        return self._tell(True)

    def __bool__(self) -> bool:
        return self._tell(True)

    def __repr__(self) -> str:
        return self._tell("Spy")

    def __str__(self) -> str:
        return self._tell("spy")

    def __format__(self, spec: str) -> str:
        return self._tell(spec + "!")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._tell((len(args), sorted(kwargs)))

    def method(self, *args: Any, **kwargs: Any) -> Any:
        return self._tell((args, kwargs))

    def fail(self, log: list[Any]) -> None:
        self._tell(None)
        raise ValueError(len(log))

    def __iter__(self) -> Any:
        return self._tell(iter([1, 2, 3]))

    def __enter__(self) -> Any:
        return self._tell("entered")

    def __exit__(self, *args: Any) -> Any:
        return self._tell(None)


class Made:
    def __init__(self, spy: Any) -> None:
        self.x = spy._tell(5)


class Mapping:
    def __init__(self, spy: Any) -> None:
        self._spy = spy

    def keys(self) -> Any:
        return self._spy._tell(["a"])

    def __getitem__(self, key: str) -> Any:
        return self._spy._tell(key)
