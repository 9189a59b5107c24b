"""Leaves whose inside is watched: transforms of functions (`torch.func`) and `torch.autograd.Function`.

Torch's own code in them runs unwatched; the program's code in them is watched as anywhere, so that what it reads is
guarded. Tensors inside are no tensors of the graph outside (a transform wraps them): while the program's code runs, an
`Inner` tracer stands in the place of the recording's. What becomes of it, docs/design/leaves.md says.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..._native import AliasSet, TrackedTensor
from ...recording import Edge, Fact
from ...support.graph_leaves import TENSOR, Applied, Context, CustomFunction, Inside, Structure, Transform
from ...support.guard_readers import draws_numbers
from ..graph_break import BreakGraph
from ..models import backwards
from ..models.reads import consult_deep
from ..models.treatments import Treatment, name_of
from ..objects.constants import is_constant
from ..objects.fingerprints import fingerprint, is_tensor
from ..objects.run_context import RunContext
from ..segment import Segment
from ..symbols.symbolic_numbers import Symbols
from .nodes import Nodes
from .tensor_mode import PreparedCall, TensorTracer


class _Body(Nodes):
    """A graph whose inputs have names of their own."""

    def _name_of(self, origin: Any) -> str:
        return str(origin)


class Inner(TensorTracer):
    """The tensors and nodes inside of a leaf. Tensors from outside of it are captured: inputs of its graph."""

    def __init__(self, context: RunContext, outer: TensorTracer) -> None:
        super().__init__(context, outer.state, _Body(), inside=True)
        self.outer = outer
        self.captured: list[fx.Node] = []  # in the graph outside
        self._alive: list[Any] = []

    def take(self, tensor: Any) -> None:
        """A tensor that the program's function is given."""
        self._enter(tensor, f"given_{len(self._alive)}", outside=False)

    def _enter(self, tensor: Any, name: Any, *, outside: bool) -> TrackedTensor:
        found = fingerprint(tensor)
        known = TrackedTensor(self._nodes.input(name), (), AliasSet(found[0], outside=outside), found)
        self.known[id(tensor)] = known
        self._alive.append(tensor)
        return known

    def _input(self, tensor: Any) -> TrackedTensor:
        self.captured.append(self.outer.node_of(self.outer.lookup(tensor)))
        return self._enter(tensor, f"captured_{len(self.captured)}", outside=True)

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedCall:
        name = name_of(func)
        if name == "_backward_hooks" and args[1:] == (None,) and args[0]._backward_hooks is None:
            # Torch itself, of a tensor that a function has written to.
            return PreparedCall(Treatment.FACT, name, [], False, ("call_function", func, args, kwargs, name))
        return super()._before(func, args, kwargs)

    def _uncommon(self, value: Any, tensors: list[tuple[Any, TrackedTensor]]) -> Any:
        symbols = self.symbols
        if symbols is not None:
            symbols.specialise_in(value)  # its graph takes no numbers
        return super()._uncommon(value, tensors)

    @property
    def symbols(self) -> Symbols | None:
        return self.outer.symbols

    def numbers_of_data(self) -> Symbols:
        raise BreakGraph("tensor-item", "tensor.item()")

    def abandon(self) -> TensorTracer:
        self.active = False
        return self.outer.abandon()

    def body(self, result: Any) -> tuple[fx.GraphModule, Structure]:
        """The graph, and the structure of what the program's function gave back."""
        flat, spec = pytree.tree_flatten(result)
        leaves: list[Any] = []
        for leaf in flat:
            if is_tensor(leaf):
                self.outputs.append(self.node_of(self.lookup(leaf)))
                leaves.append(TENSOR)
            elif is_constant(leaf):
                leaves.append(leaf)
            else:
                raise BreakGraph("functorch", f"a function that gives a {type(leaf).__qualname__}")
        if self.mutates:
            raise BreakGraph("functorch", "a function that writes to a tensor which it was not given")
        graph = self.module("Body")
        assert graph is not None
        return graph, Structure(spec, tuple(leaves))


class Interiors:
    def __init__(self, s: Segment) -> None:
        self._segment = s

    def call(self, payload: str, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        return getattr(self, payload)(function, slots)

    def _attempt(self, step: Callable[..., Any], *args: Any) -> Any:
        """A part of recording; None if it failed, and with it the recording."""
        try:
            with torch._C.DisableTorchFunction():
                return step(*args)
        except Exception as error:
            self._segment.fail(error)
            return None

    # -- transforms

    def transform(self, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        s, watcher = self._segment, self._segment.watcher
        outer = s.tracer
        in_closure = "func" in function.__code__.co_freevars
        applied = Applied(function, in_closure)
        func = _variable(function, "func") if in_closure else slots[0]
        given = slots if in_closure else slots[1:]
        ready = self._attempt(self._take, function, given) if outer.active else None
        if ready is None:
            return applied.call(func, given, watcher.call_leaf)
        quiet = s.tracer = Inner(s.context, outer)  # what torch's own code does inside is no part of any graph
        call = _Call(s, quiet, func)
        try:
            result = applied.call(call, given, watcher.call_leaf)
        finally:
            if s.tracer is quiet:
                s.tracer = outer
        if outer.active and s.tracer is outer and call.body is not None:
            self._attempt(self._record, applied, ready, call, result)
        return result

    def _take(
        self, function: types.FunctionType, given: tuple[Any, ...]
    ) -> tuple[Structure, list[tuple[Any, TrackedTensor]]]:
        """What a transform is given: constants, and tensors, in containers."""
        s = self._segment
        s.enter(function)
        self._read_closure(function)
        s.fix_sizes("a function transform")
        for value in given:
            consult_deep(s, value)
        flat, spec = pytree.tree_flatten(given)
        operands: list[tuple[Any, TrackedTensor]] = []
        leaves: list[Any] = []
        for leaf in flat:
            if is_tensor(leaf):
                operands.append((leaf, s.tracer.lookup(leaf)))
                leaves.append(TENSOR)
            elif is_constant(leaf):
                leaves.append(leaf)
            else:
                raise BreakGraph("functorch", f"a transform, given a {type(leaf).__qualname__}")
        return Structure(spec, tuple(leaves)), operands

    def _read_closure(self, function: types.FunctionType) -> None:
        ledger = self._segment.ledger
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            origin = ledger.find(cell)
            if origin is not None:
                ledger.read(origin, Edge.ATTR, "cell_contents", cell.cell_contents)
            if name != "func" and not is_constant(cell.cell_contents):
                raise BreakGraph("functorch", f"a transform with a {type(cell.cell_contents).__qualname__} as {name}")

    def _record(self, applied: Applied, ready: tuple[Structure, list[Any]], call: _Call, result: Any) -> None:
        outer: TensorTracer = self._segment.tracer
        given, operands = ready
        flat = pytree.tree_leaves(result)
        if not all(is_tensor(leaf) or is_constant(leaf) for leaf in flat):
            raise BreakGraph("functorch", "a transform that gives more than tensors")
        assert call.body is not None
        module = Transform(applied, given, *call.body)
        inputs = (*(outer.node_of(known) for _, known in operands), *call.captured)
        outer.refresh(operands, False)
        node = outer.module_leaf(module, inputs, {}, applied.function.__name__)
        for place, tensor in enumerate(leaf for leaf in flat if is_tensor(leaf)):
            if id(tensor) not in outer.known:
                outer.enter(tensor, node, (place,), operands)

    # -- functions with a backward of their own

    def apply(self, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        """`torch.autograd.Function.apply`."""
        cls, args, kwargs = slots
        s, watcher = self._segment, self._segment.watcher
        outer = s.tracer
        ready = self._attempt(self._take_call, function, cls, args, kwargs) if outer.active else None
        if ready is None:
            return watcher.call_leaf(function, (cls, *args), kwargs)
        inner = Inner(s.context, outer)
        inner.expected, inner.answers, inner.active = (False, *outer.expected[1:]), None, True
        s.tracer, watcher.interior = inner, True
        try:
            with s.ledger.seal(cls.__qualname__):
                result = watcher.call_leaf(function, (cls, *args), kwargs)
        finally:
            watcher.interior = False
            if s.tracer is inner:
                s.tracer = outer
        if outer.active and s.tracer is outer:
            self._attempt(self._record_call, cls, args, ready, result, inner)
        return result

    def _take_call(
        self, function: types.FunctionType, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[tuple[Any, TrackedTensor]]]:
        s = self._segment
        if torch._C._are_functorch_transforms_active():
            raise BreakGraph("autograd-function", f"{cls.__qualname__}, inside of a function transform")
        self._prepare_for_changes(cls)
        for name in ("forward", "setup_context"):
            s.attributes.read(cls, name)
        s.enter(function)
        s.fix_sizes("an autograd function")
        for value in (*args, *kwargs.values()):
            consult_deep(s, value)
        operands: list[tuple[Any, TrackedTensor]] = []
        argument = s.tracer.argument
        for value in kwargs.values():
            self._refuse_copies(cls, value)
        positional = tuple([None if self._is_itself(cls, value) else argument(value, operands) for value in args])
        return positional, {name: argument(value, operands) for name, value in kwargs.items()}, operands

    def _is_itself(self, cls: Any, value: Any) -> bool:
        """Is it given as the object that it is, from outside?"""
        origin = self._segment.ledger.find(value)
        if origin is not None and not is_tensor(value) and not is_constant(value) and type(value) is not tuple:
            self._segment.ledger.require(origin, Fact.IS, value)
            return True
        if type(value) is not torch.Size:
            self._refuse_copies(cls, value)
        return False

    def _refuse_copies(self, cls: Any, value: Any) -> None:
        """A graph gives it other objects than the program does. It must not be able to tell them, and it may keep them
        for its backward."""
        if type(value) is tuple:
            for item in value:
                self._refuse_copies(cls, item)
        elif is_tensor(value):
            if vars(value) and self._segment.ledger.find(value) is None:
                raise BreakGraph("autograd-function", f"{cls.__qualname__}, given a tensor with attributes of its own")
        elif not is_constant(value):
            raise BreakGraph("autograd-function", f"{cls.__qualname__}, given a {type(value).__qualname__}")

    def _prepare_for_changes(self, cls: Any) -> None:
        """Its forward runs in every call, before the effects: what the segment has changed so far is as it was then, so
        whoever looks at that must be noticed, and what was noted before is noted once more."""
        changes = self._segment.ledger.changes.values()
        if any(change.kind == "class" for change in changes):
            raise BreakGraph("autograd-function", f"{cls.__qualname__}, behind changes of classes")
        if changes:
            self._segment.look_anew()

    def _record_call(
        self,
        cls: Any,
        given: Any,
        ready: tuple[Any, dict[str, Any], list[tuple[Any, TrackedTensor]]],
        result: Any,
        inner: Inner,
    ) -> None:
        outer: TensorTracer = self._segment.tracer
        args, kwargs, operands = ready
        for part in result if type(result) is tuple else (result,):
            if not is_tensor(part) and not is_constant(part):
                raise BreakGraph("autograd-function", f"{cls.__qualname__}, which gives a {type(part).__qualname__}")
        inside = None if kwargs else _Inside(cls, given, args, result, inner).known()
        outer.refresh(operands, False)
        function = CustomFunction(
            cls,
            sizes=frozenset(place for place, value in enumerate(given) if type(value) is torch.Size),
            objects={place: value for place, value in enumerate(given) if args[place] is None and value is not None},
            inside=inside,
        )
        node = outer.module_leaf(function, args, kwargs, cls.__name__)
        outer._register(result, node, operands)


class _Unclear(Exception):
    """An autograd function is more than the graph of its forward tells."""


class _Inside:
    """What is known of one call of an autograd function, so that a backend may derive its backward."""

    def __init__(self, cls: Any, given: tuple[Any, ...], nodes: tuple[Any, ...], result: Any, inner: Inner) -> None:
        """`nodes`: what the graph outside has for what is `given`."""
        self._cls, self._given, self._nodes, self._inner = cls, given, nodes, inner
        self._parts = result if type(result) is tuple else (result,)
        self._single = type(result) is not tuple
        self._made = [part for part in self._parts if is_tensor(part)]  # and then what the context has

    def known(self) -> Inside | None:
        reads = backwards.reads_of(self._cls)
        try:
            if reads is None:
                raise _Unclear
            context = self._context() if any(part.requires_grad for part in self._made) else None
            inner = self._inner
            inner.outputs += [self._node(tensor) for tensor in self._made]
            places = tuple(map(self._place, inner.captured))
            body = inner.module(self._cls.__name__)
        except (_Unclear, RuntimeError):  # torch says so of a saved tensor that was written to
            return None
        if body is None or draws_numbers(body.graph):
            return None
        flat, spec = pytree.tree_flatten(self._parts[0] if self._single else self._parts)
        result = Structure(spec, tuple([TENSOR if is_tensor(leaf) else leaf for leaf in flat]))
        return Inside(self._cls, body, places, result, context, reads, backwards.is_allowed)

    def _place(self, node: fx.Node) -> int:
        """Which argument a captured tensor is."""
        for place, given in enumerate(self._nodes):
            if given is node:
                return place
        raise _Unclear

    def _node(self, tensor: Any) -> fx.Node:
        inner = self._inner
        known = inner.known.get(id(tensor))
        if known is None:
            given = any(value is tensor for value in self._given)
            known = inner.lookup(tensor) if given else self._alike(tensor)
        return inner.node_of(known)

    def _alike(self, tensor: Any) -> TrackedTensor:
        """What torch has made a view of because it was given back as it was given; or a result that was saved."""
        others = [given for given in self._given if is_tensor(given) and id(given) in self._inner.known]
        others += [made for made in self._made if id(made) in self._inner.known]
        others += [given for given in self._given if is_tensor(given) and id(given) not in self._inner.known]
        found = {id(other): other for other in others if other is not tensor and _is_same_memory(tensor, other)}
        if len(found) != 1:
            raise _Unclear
        (other,) = found.values()
        return self._inner.known.get(id(other)) or self._inner.lookup(other)

    def _context(self) -> Context:
        ctx = next(part.grad_fn for part in self._made if part.requires_grad)
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        if type(ctx) is not self._cls._backward_cls or hooked:
            raise _Unclear
        differentiable = [place for place, part in enumerate(self._made) if part.requires_grad]
        floats = [place for place, part in enumerate(self._made) if part.dtype.is_floating_point or part.is_complex()]
        given = {id(value) for value in self._given}
        dirty = tuple([place for place, part in enumerate(self._made) if id(part) in given])
        saved = tuple([self._keep(tensor) for tensor in ctx.saved_tensors])
        tensors: dict[str, int] = {}
        constants: dict[str, Any] = {}
        for name, value in vars(ctx).items():
            if is_tensor(value):
                tensors[name] = self._keep(value)
            elif is_constant(value):
                constants[name] = value
            else:
                raise _Unclear
        rest = tuple([place for place in floats if place not in differentiable])
        return Context(saved, tensors, constants, dirty, rest, backwards.materializes(self._cls))

    def _keep(self, tensor: Any) -> int:
        """The place among the outputs of the graph."""
        if not is_tensor(tensor):
            raise _Unclear
        for place, made in enumerate(self._made):
            if made is tensor:
                return place
        self._made.append(tensor)
        return len(self._made) - 1


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


class _Call:
    """The program's function as a transform calls it: watched, with a graph of its own."""

    def __init__(self, s: Segment, quiet: Inner, func: Callable[..., Any]) -> None:
        self._segment, self._quiet, self._func = s, quiet, func
        self.body: tuple[fx.GraphModule, Structure] | None = None
        self.captured: list[fx.Node] = []
        self._calls = 0
        self.__name__ = getattr(func, "__name__", "function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        s, func = self._segment, self._func
        if s.tracer is not self._quiet:
            return func(*args, **kwargs)
        try:
            inner = Inner(s.context, self._quiet.outer)
            self._calls += 1
            if self._calls > 1:
                raise BreakGraph("functorch", "a transform that calls its function more than once")
            with torch._C.DisableTorchFunction():
                for leaf in pytree.tree_leaves((args, kwargs)):
                    if is_tensor(leaf):
                        inner.take(leaf)
            func = s.table.call(s, None, func, (*args, *kwargs.values()), tuple(kwargs)) or func
            inner.begin()
        except Exception as error:
            s.fail(error)
            return self._func(*args, **kwargs)
        s.tracer = inner
        try:
            result = s.watcher.call_watched(func, args, kwargs)
        finally:
            if s.tracer is inner:
                s.tracer = self._quiet
        if inner.active:
            inner.active = False
            try:
                with torch._C.DisableTorchFunction():
                    self.body, self.captured = inner.body(result), inner.captured
            except Exception as error:
                s.fail(error)
        return result


def _variable(function: types.FunctionType, name: str) -> Any:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(name)].cell_contents
