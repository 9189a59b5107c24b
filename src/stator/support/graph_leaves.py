"""Leaves: parts of a graph that are called as a whole. They are modules, so that a graph can name and print them.

A `Transform` applies a function transform of torch to a graph of its own; a `CustomFunction` calls a
`torch.autograd.Function`. As it is, its forward is run as Python whenever the graph is, and its backward whenever torch
asks. If it has an `inside`, a backend may derive both ahead of time.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .graph_modules import Unhooked
from .literals import name_of

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


class Transform(Unhooked):
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


class GlobalRead(NamedTuple):
    """A variable that a function reads: of its module (or, there being none, of `builtins`)."""

    namespace: dict[str, Any]
    builtins: dict[str, Any]
    name: str
    value: Any

    def now(self) -> Any:
        return self.namespace.get(self.name, self.builtins.get(self.name))


class AttributeRead(NamedTuple):
    """An attribute of a module, a class, a function or a cell."""

    owner: Any
    name: str
    value: Any

    def now(self) -> Any:
        return getattr(self.owner, self.name, None)


OutsideRead = GlobalRead | AttributeRead


def still_hold(reads: Sequence[OutsideRead]) -> bool:
    """Would a function read now what it read when it was looked at?"""
    for read in reads:
        value, expected = read.now(), read.value
        if value is not expected and not (type(value) is type(expected) in _BY_VALUE and value == expected):
            return False
    return True


_BY_VALUE = (int, float, complex, bool, str, bytes)  # NaN differs from itself: then the objects decide


@dataclass(frozen=True)
class Context:
    """What a forward has noted in its `ctx`: tensors by their place among the outputs of the forward's graph."""

    saved: tuple[int, ...]
    tensors: dict[str, int]
    constants: dict[str, Any]
    dirty: tuple[int, ...]
    not_differentiable: tuple[int, ...]
    materializes: bool | None  # None: nobody knows


@dataclass(frozen=True)
class Inside:
    """An autograd function as a graph of its forward, and a backward of which is known all that it reads besides."""

    cls: Any
    body: fx.GraphModule  # gives the tensors of the result, and what `context` has
    places: tuple[int, ...]  # which arguments it takes
    result: Structure
    context: Context | None  # None: nothing is differentiated
    reads: tuple[OutsideRead, ...]
    allows: Callable[[Any], bool]  # may the backward call this function of torch, in a trace?

    def apply(self, args: Sequence[Any], backward: Callable[..., Any] | None = None) -> Any:
        """What `cls.apply` gives, by the graph. `backward`: what is to run in the place of the program's."""
        context, outputs = self.context, sum(leaf is TENSOR for leaf in self.result.leaves)
        if context is None:
            with torch.no_grad():
                return self.result.filled(self.body(*[args[place] for place in self.places]))
        applied: Any = _applied(self, context, outputs, backward or self.cls.backward)
        return applied.apply(*args)


def _applied(inside: Inside, context: Context, outputs: int, run: Callable[..., Any]) -> type:
    """An autograd function whose forward is a graph. `outputs`: how many of its results are given back."""

    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            made = inside.body(*[given[place] for place in inside.places])
            ctx.save_for_backward(*[made[place] for place in context.saved])
            ctx.mark_dirty(*[made[place] for place in context.dirty])
            ctx.mark_non_differentiable(*[made[place] for place in context.not_differentiable])
            ctx.set_materialize_grads(context.materializes is True)
            for name, place in context.tensors.items():
                setattr(ctx, name, made[place])
            for name, value in context.constants.items():
                setattr(ctx, name, value)
            return inside.result.filled(made[:outputs])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return run(ctx, *gradients)

    return Applied


class CustomFunction(Unhooked):
    def __init__(self, cls: Any, sizes: frozenset[int], objects: dict[int, Any], inside: Inside | None = None) -> None:
        """`sizes`: which arguments are `torch.Size`; nodes of graphs have tuples there. `objects`: arguments that nodes
        cannot have, by position."""
        super().__init__()
        self.inside = inside
        self.cls, self.sizes, self.objects = cls, sizes, objects

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.cls.apply(*self.arguments(args), **kwargs)

    def arguments(self, args: Sequence[Any]) -> Sequence[Any]:
        """Those of the program, for those that the node has."""
        if self.sizes or self.objects:
            return tuple(map(self._given, range(len(args)), args))
        return args

    def _given(self, place: int, value: Any) -> Any:
        return torch.Size(value) if place in self.sizes else self.objects.get(place, value)

    def extra_repr(self) -> str:
        return name_of(self.cls)
