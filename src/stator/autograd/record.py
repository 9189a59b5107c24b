"""The dispatch mode of a trace: every ATen operator that runs under it becomes a node of a pure graph.

Enters: operators, as `TorchDispatchMode` hands them over (below autograd, so its formulas are seen too). Leaves: nodes
of a graph without writes (`traced_graph.py`). Which rule an operator goes by is found once per operator, from its
schema.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..errors import CannotDerive
from . import narrow_strides
from .functional import BY_STRIDES, TensorView, refuse_other_memory, restrided
from .operators import EFFECTS, UNCOUNTED, UNMARKED, OperatorFacts, Write, arguments_by_name, facts, pure_form
from .standins import StandIns
from .symbols import surely_equal
from .traced_graph import Decompositions, TracedGraph

aten = torch.ops.aten
RecordRule = Callable[["DispatchRecorder", Any, tuple[Any, ...], dict[str, Any]], Any]


class DispatchRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type its modes
    """The dispatch mode: every operator runs on stand-ins and becomes a node."""

    def __init__(self, stand_ins: StandIns, decompositions: Decompositions | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traced = TracedGraph(stand_ins, decompositions or {}, self._decompose)
        self._decompositions = decompositions or {}
        self._rules: dict[Any, RecordRule] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import and call TorchDynamo around every operator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = self._choose(func)
        return rule(self, func, args, kwargs or {})

    def _choose(self, op: OpOverload) -> RecordRule:
        if op.namespace == "prim":
            return _ask  # fake tensors answer for their device and layout
        if op in _SPECIAL:
            return _SPECIAL[op]
        if op in self._decompositions or facts(op).composite:
            return DispatchRecorder._decompose
        return self._choose_plain(op)

    def _choose_plain(self, op: OpOverload) -> RecordRule:
        known: OperatorFacts = facts(op)
        if op in UNMARKED:
            return DispatchRecorder._write_unmarked
        if known.in_place_view:
            return DispatchRecorder._change_shape
        if known.writes:
            return DispatchRecorder._write
        return DispatchRecorder._pure if known.view_of is None else DispatchRecorder._view

    # -- rules

    def _decompose(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = self._decompositions.get(op)
        if written is not None:
            with self._uncounted(op, args, kwargs), self:
                result = written(*args, **kwargs)
            if result is not NotImplemented:  # that is: not for these arguments
                return self._with_strides(op, args, kwargs, result)
        if not facts(op).composite:
            return self._choose_plain(op)(self, op, args, kwargs)
        with self:
            return op.decompose(*args, **kwargs)

    def _with_strides(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> Any:
        """What was made in another way than the operator does it, with the operator's strides in dimensions of
        size 1."""
        if facts(op).composite or not narrow_strides.may_differ(op, (args, kwargs)):
            return results
        given = {key: self.traced.standing(arg) for key, arg in kwargs.items()}
        told = self.traced.stand_ins.run(op, tuple([self.traced.standing(arg) for arg in args]), given)
        alone = isinstance(results, Tensor)
        pairs = zip([results] if alone else results, [told] if isinstance(told, Tensor) else told, strict=False)
        known = {id(arg) for arg in tree_leaves((args, kwargs))}
        made = [one if id(one) in known else self._with_strides_of(one, other) for one, other in pairs]
        return made[0] if alone else tuple(made)

    def _with_strides_of(self, made: Any, told: Any) -> Any:
        value = self.traced.values.find(made) if isinstance(made, Tensor) else None
        if value is None or value.parent is not None or value.node.op != "call_function":
            return made
        if not isinstance(told, Tensor) or not narrow_strides.differ_there(made, told):
            return made
        node = self.traced.values.node(value)
        node.meta["val"] = shown = narrow_strides.restrided(made, told.stride())
        self.traced.values.new(shown, node)
        return shown

    def _pure(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        node, result = self.traced.run(op, args, kwargs)
        if isinstance(result, Tensor):
            self.traced.values.new(result, node)
        elif isinstance(result, (list, tuple)):
            result = node.meta["val"] = _apart(result)
            for index, item in enumerate(result):
                if isinstance(item, Tensor):
                    self.traced.values.new(item, self.traced.node(getitem, (node, index), {}, item))
        elif op not in EFFECTS:
            raise CannotDerive(f"{op} gives {type(result).__name__}, which depends on data")
        return result

    def _view(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = facts(op).view_of
        assert position is not None
        base = args[position]
        self.traced.node_of(base)
        of = self.traced.values.find(base)
        assert of is not None
        self._refuse_other_memory(op, args, kwargs)
        node, result = self.traced.run(op, args, kwargs)
        view = TensorView(op, position, args, kwargs, None)
        self._look_where_node_lies(node, view, base)
        if isinstance(result, Tensor):
            self.traced.values.view(result, node, of, view)
        else:
            for index, item in enumerate(result):
                part = self.traced.node(getitem, (node, index), {}, node.meta["val"][index])
                self.traced.values.view(item, part, of, TensorView(op, position, args, kwargs, index))
        return result

    def _look_where_node_lies(self, node: fx.Node, view: TensorView, base: Tensor) -> None:
        """Once it was written to, a tensor of the program that began somewhere in its memory has a node in a memory of
        its own. So has then what is seen of it: offsets are counted from there."""
        given = self.traced.node_of(base).meta["val"]
        if surely_equal((given.storage_offset(),), (base.storage_offset(),)):
            return
        with torch.no_grad():
            node.meta["val"] = self.traced.stand_ins.run(view.op, view.on(given), view.kwargs)

    def _by_strides(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._refuse_other_memory(op, args, kwargs)
        return self._pure(op, args, kwargs)

    def _refuse_other_memory(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """(Memory that nobody has written to is in the graph what it is in eager.)"""
        if op not in BY_STRIDES:
            return
        self.traced.node_of(args[0])
        of = self.traced.values.find(args[0])
        if of is not None and of.memory.version:
            refuse_other_memory(of, TensorView(op, 0, args, kwargs, None))

    def _same(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`detach` and its like: another tensor, the same contents and memory, no node."""
        self.traced.node_of(args[0])
        value = self.traced.values.find(args[0])
        assert value is not None
        result = self.traced.stand_ins.run(op, (self.traced.standing(args[0]), *args[1:]), kwargs)
        self.traced.values.same(result, value)
        return result

    def _lift(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`torch.tensor(...)`: new in every run."""
        tensor = args[0]
        if self.traced.stand_ins.owns(tensor):
            return self._same(op, args, kwargs)
        if tensor.dim() == 0 and not tensor.is_complex():
            made = {"dtype": tensor.dtype, "device": tensor.device}
            node = self.traced.emit(aten.scalar_tensor.default, (tensor.item(),), made)
        else:
            node = self.traced.emit(aten.lift_fresh_copy.default, (self.traced.node_of(tensor),), {})
        result = node.meta["val"]
        self.traced.values.new(result, node)
        return result

    def _change_shape(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`t_`, `squeeze_`, …: the tensor becomes a view of what it was."""
        write = pure_form(op)
        value = self.traced.values.find(args[0])
        if write is None or value is None or value.node.op == "placeholder":
            raise CannotDerive(f"{op} changes the shape of an input")
        before = args[0].detach()
        node = self.traced.values.node(value)
        for made in self.traced.graph.nodes:  # also the one that made it, before it was written to
            if made.meta.get("val") is args[0]:
                made.meta["val"] = before
        self.traced.values.same(before, value)
        was = self.traced.values.find(before)
        assert was is not None
        op(*args, **kwargs)
        view = TensorView(write.functional, 0, args, kwargs, None)
        self.traced.values.view(args[0], self.traced.emit(write.functional, (node, *args[1:]), kwargs), was, view)
        return args[0]

    def _write(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        write = pure_form(op)
        if write is None:
            raise CannotDerive(f"{op} writes to its arguments, and there is no form of it that does not")
        named = arguments_by_name(op, args, kwargs)
        if facts(op).random and write.arguments == ("self",) and not named["self"].is_contiguous():
            self._draw(write, named)
            return args[0]
        with self._uncounted(op, args, kwargs):
            results = self._write_as(write, named)
        returns = op._schema.returns
        if not returns:
            return None
        if results or len(returns) != len(write.arguments):
            return results[0] if len(results) == 1 else tuple(results)
        targets = [named[name] for name in write.arguments]
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _write_unmarked(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        write = UNMARKED[op]
        named = arguments_by_name(op, args, kwargs)
        if not named["training"] or any(named[name] is None for name in write.arguments):
            return self._pure(op, args, kwargs)
        with self._uncounted(op, args, kwargs):
            return tuple(self._write_as(write, named))

    @contextlib.contextmanager
    def _uncounted(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """What eager does not count as written is not."""
        named = arguments_by_name(op, args, kwargs) if op in UNCOUNTED else {}
        written = [named[name] for name in UNCOUNTED[op] if named.get(name) is not None] if named else []
        memories = [self._memory_of(tensor) for tensor in written]
        counted = [memory.counted for memory in memories]
        yield
        for memory, before in zip(memories, counted, strict=True):
            memory.counted = before

    def _draw(self, write: Write, named: dict[str, Any]) -> None:
        """Random numbers are drawn in the order of memory, the pure forms of operators draw in the order of indices."""
        target = named["self"]
        order = sorted(range(target.dim()), key=target.stride, reverse=True)
        inside = self.traced.tensor_of(self.traced.emit(aten.permute.default, (self.traced.node_of(target), order), {}))
        self._write_as(write, {**named, "self": inside})
        back = [order.index(dim) for dim in range(len(order))]
        self.assign(target, self.traced.emit(aten.permute.default, (self.traced.node_of(inside), back), {}))

    def _write_as(self, write: Write, named: dict[str, Any]) -> list[Any]:
        """Say a write by its pure form; the results before the written values are given back."""
        self._refuse_later_reads(write, named)
        takes = {k: v for k, v in named.items() if write.keeps_arguments or k not in write.arguments}
        args = tuple([takes.pop(name) for name in _leading(write.functional, takes)])
        if write.functional is aten.copy.default:
            made: list[Any] = []
            nodes = [self._copied(named)]
        else:
            result = self.__torch_dispatch__(write.functional, (), args, takes)
            made = [result] if isinstance(result, Tensor) else list(result)
            nodes = [self.traced.node_of(item) for item in made]
        targets = [named[name] for name in write.arguments]
        flat = targets[0] if len(targets) == 1 and isinstance(targets[0], (list, tuple)) else targets
        for target, node in zip(flat, nodes[write.returns :], strict=True):
            self.assign(target, node)
        return made[: write.returns]

    def _refuse_later_reads(self, write: Write, named: dict[str, Any]) -> None:
        """An operator that writes to a list of tensors does so in order, and may read later what it has written."""
        targets = named[write.arguments[0]]
        if not isinstance(targets, (list, tuple)):
            return
        written = {self._memory_of(target): place for place, target in enumerate(targets)}
        for value in named.values():
            for place, tensor in enumerate(value) if isinstance(value, (list, tuple)) else ((-1, value),):
                if isinstance(tensor, Tensor) and written.get(self._memory_of(tensor), place) != place:
                    raise CannotDerive("a write to a list of tensors that share memory")

    def _memory_of(self, tensor: Tensor) -> Any:
        """(Two tensors that are not known share none.)"""
        self.traced.node_of(tensor)
        value = self.traced.values.find(tensor)
        return tensor if value is None else value.memory

    def _copied(self, named: dict[str, Any]) -> fx.Node:
        """`copy_`: a copy of the source if it looks like the target, else the target overwritten."""
        target, source = named["self"], named["src"]
        to, origin = self.traced.node_of(target), self.traced.node_of(source)
        if _looks_like(origin.meta["val"], target):
            return self.traced.emit(aten.clone.default, (origin,), {})
        return self.traced.emit(aten.copy.default, (to, origin), {})

    def assign(self, target: Tensor, node: fx.Node) -> None:
        """The tensor's contents are from now on the node's."""
        before = self.traced.node_of(target)
        value = self.traced.values.find(target)
        assert value is not None
        if value.root().node.op == "get_attr":
            raise CannotDerive("a write to a tensor which the function reached by itself")
        made = node.meta["val"]
        if made.shape != target.shape:
            raise CannotDerive("an operator changes the size of what it writes to")
        if made.dtype != target.dtype:
            node = self.traced.emit(aten._to_copy.default, (node,), {"dtype": target.dtype})
        if value.parent is None:
            node = restrided(self.traced.emit, node, before)
        self.traced.values.write(value, node)


def _apart(results: Any) -> Any:
    """Some meta kernels give one tensor in two places, where the operator gives two."""
    seen: set[int] = set()
    apart = []
    for item in results:
        apart.append(item.detach() if id(item) in seen and isinstance(item, Tensor) else item)
        seen.add(id(item))
    return type(results)(apart)


def _leading(op: OpOverload, given: dict[str, Any]) -> list[str]:
    """The arguments that can be given by position."""
    names = itertools.takewhile(lambda a: a.name in given and not a.kwarg_only, op._schema.arguments)
    return [a.name for a in names]


def _looks_like(one: Tensor, other: Tensor) -> bool:
    return (
        surely_equal(one.shape, other.shape)
        and surely_equal(one.stride(), other.stride())
        and one.dtype == other.dtype
        and one.device == other.device
        and torch._debug_has_internal_overlap(one) == 0
    )


def _ask(recorder: DispatchRecorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return op(*args, **kwargs)


def _data_wanted(recorder: DispatchRecorder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise CannotDerive(f"{op} needs the data of a tensor")


_SPECIAL: dict[Any, RecordRule] = {
    aten.as_strided_copy.default: DispatchRecorder._by_strides,
    aten.as_strided_scatter.default: DispatchRecorder._by_strides,
    aten.detach.default: DispatchRecorder._same,
    aten.lift_fresh.default: DispatchRecorder._lift,
    aten._local_scalar_dense.default: _data_wanted,
    aten.resize_.default: _data_wanted,
    aten.resize_as_.default: _data_wanted,
    aten.set_.source_Storage_storage_offset: _data_wanted,
}
