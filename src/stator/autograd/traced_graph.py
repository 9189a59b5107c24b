"""The graph of a trace: nodes, and which tensor of the program has which node's contents.

Enters: operators and their arguments, from the dispatch mode (`record.py`). Leaves: an `fx.Graph`. Every node has its
example value in `meta["val"]` and, if it is known, the user's line in `meta["stack_trace"]`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from ..errors import CannotDerive
from ..support.graph_leaves import OutsideRead
from .functional import TracedTensor, TracedTensors
from .operators import facts
from .standins import StandIns
from .symbols import Numbers, is_symbolic

Decompositions = Mapping[OpOverload, Callable[..., Any]]
Policy = Any  # a mark for nodes, or a function (operator, args, kwargs, result) -> mark
_META = torch.device("meta")


class TracedGraph:
    def __init__(self, stand_ins: StandIns, decompositions: Decompositions, decompose: Callable[..., Any]) -> None:
        """`decompose(op, args, kwargs)`: runs an operator of `decompositions` as others."""
        self.stand_ins = stand_ins
        self.graph = fx.Graph()
        self.numbers = Numbers(self.graph)
        self.values = TracedTensors(self.emit)
        self.constants: dict[str, Tensor] = {}
        self.random = False
        self.passes = 0  # backward passes that are part of the graph
        self.reads: list[OutsideRead] | None = None  # by backwards of the program's that were traced
        self.line = ""  # of the user, for the operators that run now
        self.policy: Policy = None  # of recomputation (`remat.policy_of`), for the operators that run now
        self.region: Any = None  # which checkpointed call they belong to
        self._lines: list[str] = []  # by autograd's sequence numbers: ascending, see `at_line`
        self._numbers: list[int] = []
        self._last_placeholder: fx.Node | None = None
        self._decompositions = decompositions
        self._decompose = decompose

    # -- nodes

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """A new input, after the inputs there are."""
        before = self._last_placeholder.next if self._last_placeholder else self.graph._root
        with self.graph.inserting_before(before):
            node = self.graph.placeholder(name)
        node.meta["val"] = value
        self._last_placeholder = node
        self.numbers.stand_behind(node)
        return node

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, part: int | None = None) -> fx.Node:
        """A node whose arguments are nodes (or symbolic numbers); it runs on their example values. `part`: of an
        operator with several results, this one."""
        if op in self._decompositions:
            return self._emit_decomposed(op, args, kwargs, part)
        values = tuple([fx.node.map_arg(arg, _example) for arg in args])
        with torch.no_grad():
            result = self.stand_ins.run(op, values, kwargs) if isinstance(op, OpOverload) else op(*values)
        if self.stand_ins.symbolic:
            args = tuple(map(self.numbers.in_place_of, args))
            kwargs = {key: self.numbers.in_place_of(arg) for key, arg in kwargs.items()}
        node = self.node(op, args, kwargs, result)
        return node if part is None else self.node(getitem, (node, part), {}, result[part])

    def _emit_decomposed(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], part: int | None) -> fx.Node:
        with torch.no_grad():
            result = self._decompose(op, tuple([fx.node.map_arg(arg, self.tensor_of) for arg in args]), kwargs)
        return self.node_of(result if part is None else result[part])

    def tensor_of(self, node: fx.Node) -> Tensor:
        """A tensor that has the node's contents."""
        made: Tensor = node.meta["val"].detach()
        self.values.new(made, node)
        return made

    def node(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> fx.Node:
        name = facts(op).name if isinstance(op, OpOverload) else op.__name__
        node = self.graph.create_node("call_function", op, args, kwargs, name)
        meta = node.meta
        meta["val"] = result
        line = self._line_now()
        if line:
            meta["stack_trace"] = line
        if self.policy is not None:
            meta["recompute"] = self._recompute(node, result)
            meta["checkpoint_region"] = self.region
        return node

    def _recompute(self, node: fx.Node, result: Any) -> Any:
        """What the checkpoint that this node belongs to wants of it."""
        if not callable(self.policy):
            return self.policy
        if node.target is getitem:
            return node.all_input_nodes[0].meta.get("recompute")
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), _example)
        return self.policy(node.target, args, kwargs, result)

    def _line_now(self) -> str:
        """The user's line: in the backward, the line of the operator whose formula runs."""
        running = torch._C._current_autograd_node()
        if running is None:
            return self.line
        at = bisect.bisect_right(self._numbers, running._sequence_nr()) - 1
        return self._lines[at] if at >= 0 else ""

    def at_line(self, line: str) -> None:
        """What runs from now on stands in this line."""
        self.line = line
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._lines.append(line)

    # -- arguments: tensors become nodes

    def node_of(self, tensor: Tensor) -> fx.Node:
        value = self.values.find(tensor)
        if value is None:
            value = self._constant(tensor)
        return self.values.node(value)

    def _constant(self, tensor: Tensor) -> TracedTensor:
        """A real tensor that the function reached by itself."""
        if self.stand_ins.owns(tensor):
            raise CannotDerive("a tensor that no operator made")
        if tensor.requires_grad:
            raise CannotDerive("a tensor that requires gradients is reached by the function, not given to it")
        name = f"_tensor_constant{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.create_node("get_attr", name, (), {}, name)
        node.meta["val"] = self.stand_ins.of(tensor)
        return self.values.new(tensor, node)

    def nodes_of(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self.node_of(arg)
        if isinstance(arg, (list, tuple)):
            return [self.nodes_of(item) for item in arg]
        if isinstance(arg, torch.Generator):
            raise CannotDerive("an operator with a generator of its own")
        if is_symbolic(arg):
            return self.numbers.node(arg)
        return self.stand_ins.device if arg == _META and self.stand_ins.device else arg

    def standing(self, arg: Any) -> Any:
        """The argument as an operator takes it: real tensors are replaced by stand-ins."""
        if isinstance(arg, Tensor):
            return arg if self.stand_ins.owns(arg) else self.node_of(arg).meta["val"]
        if isinstance(arg, (list, tuple)):
            return [self.standing(item) for item in arg]
        return arg

    def run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.Node, Any]:
        node_args = tuple([self.nodes_of(arg) for arg in args])
        node_kwargs = {key: self.nodes_of(arg) for key, arg in kwargs.items()} if kwargs else kwargs
        if facts(op).random:
            self.random = True
        given = {key: self.standing(arg) for key, arg in kwargs.items()} if kwargs else kwargs
        result = self.stand_ins.run(op, tuple([self.standing(arg) for arg in args]), given)
        return self.node(op, node_args, node_kwargs, result), result


def _example(node: fx.Node) -> Any:
    return node.meta["val"]
