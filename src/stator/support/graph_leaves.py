"""Leaves: parts of a graph that are called as a whole. They are modules, so that a graph can name and print them.

A `Transform` applies a function transform of torch to a graph of its own; a `CustomFunction` calls a
`torch.autograd.Function`, whose forward is run as Python whenever the graph is, and its backward whenever torch asks.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

TENSOR = object()  # stands for a tensor among the leaves of a structure


class Structure(NamedTuple):
    """Nested containers: which, the constants in them, and where tensors go."""

    spec: Any
    leaves: tuple[Any, ...]

    def filled(self, tensors: Any) -> Any:
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if leaf is TENSOR else leaf for leaf in self.leaves], self.spec)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Applied(NamedTuple):
    """A function of torch that transforms `func`: an argument of it, the first one, or a variable of its closure."""

    function: types.FunctionType
    in_closure: bool

    def call(self, func: Callable[..., Any], slots: tuple[Any, ...], call: Callable[..., Any] | None = None) -> Any:
        """Apply it to another `func`. `slots`: its arguments, as a frame has them, without `func`."""
        function: Any = self.function
        code: types.CodeType = function.__code__
        if self.in_closure:
            cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
            closure = tuple(types.CellType(func) if name == "func" else cell for name, cell in cells)
            function = types.FunctionType(code, function.__globals__, function.__name__, None, closure)
        else:
            slots = (func, *slots)
        named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        positional, rest = slots[: code.co_argcount], list(slots[code.co_argcount :])
        kwargs = {name: rest.pop(0) for name in named}
        positional += tuple(rest.pop(0)) if code.co_flags & 0x04 else ()
        kwargs |= rest.pop(0) if code.co_flags & 0x08 else {}
        return function(*positional, **kwargs) if call is None else call(function, positional, kwargs)


class Transform(torch.nn.Module):
    """`vmap(f)(…)`, `grad(f)(…)` and the like. Takes the tensors among the arguments, then those that `f` finds
    elsewhere; gives all tensors of the result, flat."""

    def __init__(self, applied: Applied, given: Structure, body: fx.GraphModule, result: Structure) -> None:
        super().__init__()
        self.body = body
        self._applied, self._given, self._result = applied, given, result
        self._count = sum(leaf is TENSOR for leaf in given.leaves)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        captured = inputs[self._count :]

        def func(*args: Any, **kwargs: Any) -> Any:
            return self._result.filled(self.body(*tensors_in((args, kwargs)), *captured))

        return tuple(tensors_in(self._applied.call(func, self._given.filled(inputs[: self._count]))))

    def extra_repr(self) -> str:
        return self._applied.function.__qualname__


class CustomFunction(torch.nn.Module):
    runs_python = True  # what its backward reads it reads when it is called: nobody can derive that ahead of time

    def __init__(self, cls: Any, sizes: frozenset[int], objects: dict[int, Any]) -> None:
        """`sizes`: which arguments are `torch.Size`; nodes of graphs have tuples there. `objects`: arguments that nodes
        cannot have, by position."""
        super().__init__()
        self._cls, self._sizes, self._objects = cls, sizes, objects

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._sizes or self._objects:
            args = tuple(map(self._given, range(len(args)), args))
        return self._cls.apply(*args, **kwargs)

    def _given(self, place: int, value: Any) -> Any:
        return torch.Size(value) if place in self._sizes else self._objects.get(place, value)

    def extra_repr(self) -> str:
        return str(self._cls.__qualname__)
