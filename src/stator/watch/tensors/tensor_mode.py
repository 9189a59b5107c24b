"""The tensor mode: every torch operation of a watched run executes for real and becomes a node of a graph.

Enters: calls of torch functions, as `TorchFunctionMode` hands them over. Leaves: a `torch.fx.Graph` whose inputs are
outside tensors. Three nets fail closed in between: a tensor that is neither outside nor made by a node, a tensor that
changed without a node, and global state that changed without a node end the recording.
"""

from __future__ import annotations

import enum
import functools
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from ... import _native
from ..._native import TrackedTensor
from ...recording import Edge, OnFailure
from ...support.graph_numbers import expect_truth
from ...support.guard_readers import (
    FORWARD_LEVEL,
    MODE_COUNT,
    RANDOM,
    container_kind,
    torch_state,
)
from ..graph_break import BreakGraph
from ..models import optimizers
from ..models.torch_functions import BODY, OPAQUE, SIMPLE, Model, UnmodelledCall, model_of, without_own_frames
from ..models.treatments import Treatment, needs_data, writes_in_place
from ..objects.constants import is_constant
from ..objects.containers import expose
from ..objects.fingerprints import PLAIN_TENSORS, fingerprint, is_tensor
from ..objects.run_context import RunContext
from ..symbols.asserts import TRUTH, Assert, call_in_graph
from ..symbols.data_branches import Truths
from ..symbols.symbolic_numbers import MAY_GIVE_BACK, Symbols
from . import failing_ops
from .nodes import NOTHING, OWN_FOLDERS, Nodes
from .op_targets import OpInfo, op_info_of, spell
from .operators import has_python_body, is_collective, require_sizes
from .segment_graph import STATE_READERS, SegmentGraph

_TensorBase = torch._C.TensorBase
_OP_INFOS: dict[Any, OpInfo] = {}
_KINDS_OF_ARGUMENT = (tuple, list, dict, slice)
_SIMPLE_ARGUMENTS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
_STRIDED = torch.strided
_REALS = (torch.float32, torch.float64)
_C: Any = torch._C
_native.tensors_are(torch.Tensor, _TensorBase)
_native.tracer_learn(
    BreakGraph,
    _OP_INFOS,
    spell,
    fx.Node,
    NOTHING,
    _STRIDED,
    PLAIN_TENSORS,
    _SIMPLE_ARGUMENTS,
    STATE_READERS,
    vars(forward_ad),
    "_current_level",
    FORWARD_LEVEL,
    OWN_FOLDERS,
    functools.partial,
)


def _op_info_of(func: Any) -> OpInfo:
    info = _OP_INFOS.get(func)
    if info is None:
        info = _OP_INFOS[func] = op_info_of(func)
    return info


class PreparedCall(NamedTuple):
    """One torch function between its two halves: found out about, not yet run."""

    kind: Treatment
    name: str
    tensors: list[tuple[Any, TrackedTensor]]
    in_place: bool
    node: tuple[str, Any, tuple[Any, ...], dict[str, Any], str]  # the arguments of `TensorTracer.node`
    run: Any = None  # called in place of the function, to look on; C code reads it, by position
    model: Model | UnmodelledCall = SIMPLE


class TensorMode(_native.Mode, TorchFunctionMode):
    """Stands on torch's stack of modes while a run is watched, and not at breaks: what is not watched finds the stack
    as the program left it. Made for a recorder: what torch calls goes to the recorder's tracer."""

    def _place(self) -> int | None:
        """Where on the stack it is; None where it is not, or where torch has taken it off to call it."""
        places = range(_C._len_torch_function_stack())
        return next((place for place in reversed(places) if _C._get_function_stack_at(place) is self), None)

    def follow(self, segment: Any) -> None:
        """From here on operations go to the tracer of this segment."""
        _native.Mode.__init__(self, segment)

    def put_on(self) -> None:
        if self._place() is None:
            _C._push_on_torch_function_stack(self)

    def take_off(self) -> bool:
        """From under modes of the program, too. False: torch is calling it, and will put it back; or has found it, and
        is about to call it."""
        place = self._place()
        if place is None or _native.interrupted() == _native.SENTINEL:
            return False
        above = [_C._pop_torch_function_stack() for _ in range(place, _C._len_torch_function_stack())]
        for mode in reversed(above[:-1]):
            _C._push_on_torch_function_stack(mode)
        return True

    def state_without(self) -> tuple[Any, ...]:
        """Torch's state as a call would find it at this place."""
        state = torch_state()
        return (*state[:MODE_COUNT], state[MODE_COUNT] - (self._place() is not None), *state[MODE_COUNT + 1 :])


class TensorTracer(SegmentGraph):
    """The usual operations are C code from beginning to end; here is what is done about all others."""

    def __init__(
        self,
        context: RunContext,
        state: tuple[Any, ...],
        nodes: Nodes,
        symbols: Symbols | None = None,
        *,
        inside: bool = False,
    ) -> None:
        super().__init__(context, state, nodes, symbols, inside=inside)
        if symbols is not None:
            self.shapes = self._sized

    @property
    def symbols(self) -> Symbols | None:
        """The symbolic numbers of the segment."""
        return self._symbols

    def abandon(self) -> TensorTracer:
        """The recording ends: which tracer was there first?"""
        return self

    @property
    def truths(self) -> Truths:
        return Truths(self._context, self, self._nodes, self._symbols, inside=self._inside)

    # -- one torch function

    def _failed(self, error: Exception) -> None:
        """Something in stator raised."""
        self._context.fail(error)

    def _raised(self, func: Any, error: Exception) -> None:
        """The operation itself raised."""
        self.in_operator = False
        error.__traceback__ = without_own_frames(error.__traceback__)
        self._context.fail(BreakGraph("operation-raised", f"{_op_info_of(func).name}: {type(error).__name__}"))

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedCall:
        """What is about to run, spelled as a node; its tensors are looked up, outside ones become inputs."""
        info = _op_info_of(func)
        kind, name = info.kind, info.name
        if kind is Treatment.FACT and name == "type" and len(args) + len(kwargs) > 1:
            kind = Treatment.OPERATION  # asked for another type, it converts
        if kind is Treatment.BREAK and name == "data" and args[0] is args[-1]:
            kind = Treatment.FACT  # `t.data = t`, as `Module.to` does where there is nothing to do
        if kind is Treatment.BREAK and info.reason == "tensor-item" and self._takes_number(args[0]):
            known = self.lookup(args[0])
            return PreparedCall(
                Treatment.SCALAR, name, [], False, ("call_method", "item", (self.node_of(known),), {}, name)
            )
        if kind is Treatment.BREAK and name in ("__bool__", "is_nonzero") and is_tensor(args[0]):
            return self._before_truth(func, name, args[0])
        if kind is Treatment.BREAK and name in ("item", "__format__") and is_tensor(args[0]) and self._settled(*args):
            return PreparedCall(Treatment.FACT, name, [], False, ("call_function", func, args, kwargs, name))
        if kind is Treatment.GRAD:
            return self._before_grad(*args)
        if kind is Treatment.BREAK:
            raise BreakGraph(info.reason, name.removeprefix("__").removesuffix("__"))
        tensors: list[tuple[Any, TrackedTensor]] = []
        if kind is not Treatment.OPERATION:
            if kind is Treatment.STATE:
                self._check_state()
            for arg in args:
                if is_tensor(arg):
                    tensors.append((arg, self.lookup(arg)))
            if kind is Treatment.FACT:
                self._require_fact(info, args, kwargs)
                for _, known in tensors if info.sizes and self._symbols is None else ():
                    self.ask(known)
            return PreparedCall(kind, name, tensors, False, ("call_function", func, args, kwargs, info.label))
        self._check_state()
        if info.data and needs_data(func, name, args, kwargs):
            first = 1 if args and isinstance(args[0], torch.Tensor) else 0
            args = (*args[:first], *self.truths.without_constants(args[first:]))
            if needs_data(func, name, args, kwargs):
                raise BreakGraph("dynamic-shape-op", name)
        model = self._model_of(func, info, args, kwargs)
        run = model.run if isinstance(model, UnmodelledCall) else None
        given = args
        op, target, label = "call_function", func, info.label
        if not info.spelled:
            op, target, args, label = spell(func, name, args, not kwargs, self._context.watcher.last_probe)
        elif info.method and args and isinstance(args[0], torch.Tensor):
            op, target = "call_method", name
        argument = self.argument
        node_args = tuple([argument(arg, tensors) for arg in args])
        node_kwargs = {key: argument(arg, tensors) for key, arg in kwargs.items()} if kwargs else kwargs
        in_place = writes_in_place(name, kwargs) if kwargs and not info.opaque else info.writes
        if isinstance(model, Model) and model.fails:
            failing_ops.prepare(self, name, given, tensors, in_place)
        return PreparedCall(kind, name, tensors, in_place, (op, target, node_args, node_kwargs, label), run, model)

    def _model_of(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Model | UnmodelledCall:
        if info.opaque:
            require_sizes(func, info.name, args, kwargs)
            if has_python_body(func) or is_collective(func):
                failing_ops.prepare_body(self._context, info.name)
                self.in_operator = True
                return BODY
            self.in_operator = True
            return OPAQUE
        model = model_of(func, info.name, info.known, args, kwargs)
        if isinstance(model, Model) and model.reason:
            raise BreakGraph(model.reason, info.name)
        return model

    @staticmethod
    def _require_fact(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A tensor that is given in the place of a number is read."""
        if info.data and any(map(is_tensor, (*args[1:], *kwargs.values()))):
            raise BreakGraph("tensor-scalar", "a number")
        if info.name in ("sparse_dim", "dense_dim") and args[0].layout is not _STRIDED:
            raise BreakGraph("tensor-scalar", "the number of its sparse dimensions")

    def _after(self, step: PreparedCall, result: Any) -> Any:
        """It has run: the node, and what is known of the tensors now. Gives what the program gets."""
        opaque, self.in_operator = self.in_operator, False
        if result is NotImplemented:
            return result
        if step.kind is Treatment.FACT:
            return self._fact(step, result) if self._symbols is not None and step.tensors else result
        if step.kind is Treatment.SCALAR:
            return self._truth(step, result) if step.node[1] is expect_truth else self._scalar(step, result)
        if step.kind is Treatment.GRAD:
            self.last_effect = self._context.watcher.events
            return result
        if step.kind is Treatment.ATTRIBUTE:
            self._attribute(step.name, step.tensors[0][0], result)
        elif step.kind is Treatment.STATE:
            self.node(*step.node)
            self.expected, self.answers = self._read_state_under_mode(), None
            self.last_effect = self._context.watcher.events
        else:
            model = self._concluded(step)
            late = model is not step.model and model.fails  # else `_before` has seen to it
            if late:
                failing_ops.prepare_late(self, step.name, step.tensors, step.in_place)
            wrote = self.refresh(step.tensors, step.in_place) or self._switched_grad(step.name, step.tensors)
            self.operations += 1
            if late and self.mutates:
                self.keep(own=True)
            self.acted = self.acted or model is BODY
            if wrote or opaque or model.random:
                self.last_effect = self._context.watcher.events
            if wrote or not self._returns_known(result):
                node = self.node(*step.node)
                if model.random:
                    node.meta[RANDOM] = True
                if self._symbols is not None:
                    self._sized(node, result)
                self._register(result, node, step.tensors)
            elif self._symbols is not None:
                self._returned(*step.node[:4])
        return result

    def _concluded(self, step: PreparedCall) -> Model:
        """The model of a function that has run; of a new one, after it was seen."""
        if isinstance(step.model, Model):
            return step.model
        model = step.model.concluded()
        if model.reason:
            changed = any(fingerprint(tensor)[0] != known.print[0] for tensor, known in step.tensors)
            raise BreakGraph(
                model.reason, step.name, transient=changed or step.in_place
            )  # the next one breaks before it
        return model

    def _returned(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operation gave back a tensor that it got: it must do so in other calls, too, whatever their sizes."""
        assert self._symbols is not None
        node = fx.Node(self._nodes.graph, "aside", kind, target, args, kwargs)
        self._symbols.run_aside(node)
        node.args, node.kwargs = (), {}

    def tell_apart(self, *tensors: Any) -> None:
        """The program finds two tensors different. With other strides the one may be what an operation gave back."""
        if self._symbols is None:
            return
        known = [self.known.get(id(tensor)) for tensor in tensors if is_tensor(tensor)]
        nodes = [found.node for found in known if found is not None]
        for node in nodes if len(nodes) == 2 else ():
            if node.op == "call_method" and node.target in MAY_GIVE_BACK and node.args[0] in nodes:
                with torch._C.DisableTorchFunction():
                    self._symbols.run_aside(node)

    def _fact(self, step: PreparedCall, result: Any) -> Any:
        """Sizes are symbols where they may be others in the next call."""
        assert self._symbols is not None
        nodes = [self.node_of(known) for _, known in step.tensors]
        if step.name == "__len__" and self._asks_by_name("__len__"):
            return self._symbols.answer("size", nodes, (0,), result)
        return self._symbols.answer(step.name, nodes, (*step.node[2][1:], *step.node[3].values()), result)

    def _asks_by_name(self, method: str) -> bool:
        """Does the program call this very method? C code that does would make a plain number of what it gets."""
        watcher = self._context.watcher
        probe = watcher.last_probe
        if probe is None or probe.kind != _native.CALL:
            return False
        return any(getattr(operand, "__name__", None) == method for operand in watcher.stack(0, probe.depth)[-3:])

    def size_of(self, tensor: Any, dim: int) -> Any:
        assert self._symbols is not None
        return self._symbols.answer("size", [self.node_of(self.lookup(tensor))], (dim,), tensor.shape[dim])

    def _sized(self, node: fx.Node, result: Any) -> None:
        """Sizes of results as expressions of the inputs' sizes."""
        assert self._symbols is not None
        self._symbols.run(node, result)
        if self.mutates and self._symbols.may_fail(node):
            self.keep()

    def _takes_number(self, tensor: Any) -> bool:
        """Can what `item()` gives be a node? Optimizers compute with the numbers that they keep in tensors."""
        return self._context.captures_scalars or (self._in_optimizer() and tensor.dtype in _REALS)

    def _in_optimizer(self) -> bool:
        """Does the instruction at work stand in `torch.optim`?"""
        return optimizers.at_work(self._context.watcher)

    def numbers_of_data(self) -> Symbols:
        """From here on numbers that are taken from tensors are symbols."""
        if self._symbols is None:
            self._symbols = Symbols(self._context, None, self._nodes)
        return self._symbols

    def _scalar(self, step: PreparedCall, number: Any) -> Any:
        """A number as a node: an object of its own, so that it is known where it is used."""
        if type(number) not in (int, float):
            raise BreakGraph("tensor-item", f"a {type(number).__name__}")
        symbols = self.numbers_of_data() if self._in_optimizer() else self._symbols
        self.operations += 1
        node = self.node(*step.node)
        symbol = symbols.computed(number, node) if symbols is not None else None
        if symbol is not None:
            return symbol
        own = self._context.own.make(number)
        self.scalars[id(own)] = (own, node)
        self._context.watcher.leave_unguarded(own)
        return own

    def _before_truth(self, func: Any, name: str, tensor: Any) -> PreparedCall:
        """`bool(tensor)`: it may be the same for all data, or the graph may see to it that it comes out as it does
        now."""
        truths = self.truths
        if truths.is_certain(tensor) or truths.insists_on_truth(tensor) or truths.expects_truth(tensor):
            self.lookup(tensor)
            return PreparedCall(Treatment.FACT, name, [], False, ("call_function", func, (tensor,), {}, name))
        if not self._in_optimizer() or not self._context.may_expect:
            raise BreakGraph("tensor-bool", name.strip("_"))
        node = self.node_of(self.lookup(tensor))
        return PreparedCall(Treatment.SCALAR, name, [], False, ("call_function", expect_truth, (node,), {}, name))

    def _truth(self, step: PreparedCall, outcome: bool) -> bool:
        symbols = self.numbers_of_data()
        kind, _, (node,), kwargs, name = step.node
        self.operations += 1
        target, args = call_in_graph(Assert(node, TRUTH, outcome, OnFailure.GOES_ON))
        symbols.failing.append(self.node(kind, target, args, kwargs, name))
        return outcome

    def _settled(self, tensor: Any, *text: Any) -> bool:
        """May the program go by the number in this tensor, or have its text?"""
        if text:
            return self.truths.is_ignored(tensor)
        truths = self.truths
        return truths.is_constant(tensor) or truths.insists_on_number(tensor) or truths.expects_number(tensor)

    def _before_grad(self, tensor: Any, value: Any) -> PreparedCall:
        """`t.grad = …`: of an outside tensor, set again at the end."""
        origin = self._ledger.find(tensor)
        if origin is None:
            raise BreakGraph("attribute-set-on-tensor", "grad")
        if value is not None:
            self.lookup(value)
        self._ledger.change("grad", origin, tensor)
        return PreparedCall(Treatment.GRAD, "grad", [], False, ("call_function", setattr, (), {}, "grad"))

    def _attribute(self, name: str, tensor: Any, value: Any) -> None:
        """`t.grad`, `t.grad_fn`, hooks: state of a tensor that is not part of its facts."""
        origin = self._ledger.find(tensor)
        if name in ("grad", "_grad") and self._ledger.changed(tensor) is not None:
            return  # what the segment has set itself
        if name == "grad" and origin is None and id(value) in self.known:
            return  # what a backward pass has given to a leaf made inside
        if value is not None and name == "grad_fn":
            self.shows_nodes = self.shows_nodes or origin is None
            raise BreakGraph("backward", "grad_fn")
        if name == "storage_offset":
            if origin is None:
                raise BreakGraph("tensor-data-ptr", name)
            method = self._ledger.read(origin, Edge.ATTR, name, tensor.storage_offset)
            self._ledger.read(method, Edge.CALL, (), value)
        elif origin is not None and name != "grad_fn":
            self._ledger.read(origin, Edge.ATTR, name, value)
        elif value is not None and value is not False:
            raise BreakGraph("backward", name)

    def _switched_grad(self, name: str, tensors: list[tuple[Any, TrackedTensor]]) -> bool:
        """`requires_grad_` writes to a tensor without touching its version."""
        if name != "requires_grad_":
            return False
        for tensor, known in tensors:
            if tensor.requires_grad is known.print[-1]:
                return False
            if self._ledger.find(tensor) is not None:
                raise BreakGraph("attribute-set-on-tensor", "requires_grad")
            known.print = fingerprint(tensor)
        return True

    def _returns_known(self, result: Any) -> bool:
        """Operations like `to` and `contiguous` may give back the very tensor they got: no node is needed then."""
        return is_tensor(result) and id(result) in self.known

    # -- arguments

    def _uncommon(self, value: Any, tensors: list[tuple[Any, TrackedTensor]]) -> Any:
        """`argument`, for what is no tensor, no number and the like, and no tuple made by this run."""
        symbol = self._symbols.find(value) if self._symbols is not None else None
        if symbol is not None:
            assert self._symbols is not None
            node = self._symbols.node_of(symbol)
            if node in self._symbols.numbers and not self._in_optimizer():
                raise BreakGraph("tensor-item", "tensor.item()")  # a size might depend on it
            return node
        if isinstance(value, _KINDS_OF_ARGUMENT):
            return self._aggregate(value, tensors)
        cls = type(value)
        if isinstance(value, enum.Flag) and value._name_ not in cls._member_map_:  # printed, it would be no expression
            if isinstance(value, int) and not self.in_operator:
                return int.__int__(value)
        elif is_constant(value):
            return value
        raise BreakGraph("unsupported-argument", f"{cls.__module__}.{cls.__qualname__}")

    def _aggregate(self, value: Any, tensors: list[tuple[Any, TrackedTensor]]) -> Any:
        origin = self._ledger.find(value)
        if origin is not None and container_kind(type(value)) is not None:
            expose(self._ledger, origin, value)
        if isinstance(value, slice):
            return slice(*[self.argument(part, tensors) for part in (value.start, value.stop, value.step)])
        if isinstance(value, dict):
            return {key: self.argument(item, tensors) for key, item in value.items()}
        items = [self.argument(item, tensors) for item in value]
        return items if isinstance(value, list) else tuple(items)

    # -- nodes and results

    def _register(
        self, result: Any, node: fx.Node, operands: list[tuple[Any, TrackedTensor]], path: tuple[int, ...] = ()
    ) -> None:
        if is_tensor(result):
            if id(result) not in self.known:
                if type(result) not in PLAIN_TENSORS:
                    raise BreakGraph("tensor-subclass", type(result).__name__)
                self.enter(result, node, path, operands)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                self._register(item, node, operands, (*path, index))
        elif result is not None and not path:
            raise BreakGraph("tensor-scalar", f"result of type {type(result).__name__}")

    def leaf(self, target: Any, args: tuple[Any, ...], name: str) -> fx.Node:
        """Record a call that is not a torch function (entering autocast, say)."""
        self.last_effect = self._context.watcher.events
        node: fx.Node = self.node("call_function", target, args, {}, name)
        return node

    def module_leaf(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> fx.Node:
        """Record a call of a part that is a module of its own. What is in it may fail."""
        if self.mutates and not self.keep(own=True, most=self.most_kept):
            raise BreakGraph("may-fail", name.strip("_"))
        self.last_effect = self._context.watcher.events
        self.operations += 1
        self._leaves.append(module)
        return self._nodes.operation("call_module", f"leaf_{len(self._leaves)}", args, kwargs, name.strip("_"))
