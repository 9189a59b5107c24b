"""The graph of a recording: single nodes while the run goes on, a `torch.fx.Graph` at its end.

Enters: operations and inputs, as the tensor mode sees them. Leaves: a graph like any other, inputs first. In between,
nodes know their arguments but have no unique name and stand in no list: what `Graph.create_node` does for each of them
is done for all at once, which takes a third of the time.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _register_custom_builtin
from torch.fx.immutable_collections import immutable_dict

from ...recording import Origin, describe_key

_UNNAMED_STEPS = ("__dict__", "_modules", "_parameters", "_buffers")
_NOT_A_NAME = re.compile(r"\W+")
OWN_FOLDERS: tuple[str, ...] = (torch.__path__[0], __file__.rsplit("watch", 1)[0])
NOTHING: Any = immutable_dict()
if "numpy" in sys.modules:  # torch loads it; its numbers print as `np.float64(0.5)`
    _register_custom_builtin("np", "import numpy as np", sys.modules["numpy"])
_set = object.__setattr__  # past `Node.__setattr__`, which looks after nodes that stand in a graph


_RESHAPE_IN_PLACE = frozenset("t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_ as_strided_ resize_ set_".split())


def is_reshaped_by(user: fx.Node) -> bool:
    """Does this node change the sizes of a tensor that it is given?"""
    name = user.target if isinstance(user.target, str) else getattr(user.target, "__name__", "")
    return name in _RESHAPE_IN_PLACE


class Regions:
    """Which operations were recorded inside of checkpointed calls; the outermost call counts."""

    def __init__(self, operations: list[fx.Node]) -> None:
        self._operations = operations
        self._open: list[tuple[int, Any]] = []
        self._found: list[tuple[int, int, Any]] = []

    @property
    def any(self) -> bool:
        return bool(self._open or self._found)

    def enter(self, context_fn: Any) -> None:
        self._open.append((len(self._operations), context_fn))

    def leave(self) -> None:
        if self._open:  # else it began before a break
            begin, context_fn = self._open.pop()
            if not self._open:
                self._found.append((begin, len(self._operations), context_fn))

    def mark(self) -> None:
        """Say so in the nodes: `meta["checkpoint"]` is the number of the region, and who says what to keep of it."""
        while self._open:  # a break inside
            self.leave()
        for number, (begin, end, context_fn) in enumerate(self._found, 1):
            for node in self._operations[begin:end]:
                node.meta["checkpoint"] = (number, context_fn)


class Nodes:
    def __init__(self) -> None:
        self._inputs: list[tuple[fx.Node, Origin]] = []
        self._numbers: list[tuple[fx.Node, Origin]] = []
        self.operations: list[fx.Node] = []
        self.regions = Regions(self.operations)
        self._names: dict[int, str] = {}
        self._graph: fx.Graph | None = None

    @property
    def graph(self) -> fx.Graph:
        """Made when the first node is: a graph is a cycle, and who counts what the collector finds would notice it.

        (No `cached_property`: its lock is one for all recordings, and is not free in a process forked meanwhile.)
        """
        if self._graph is None:
            self._graph = fx.Graph()
        return self._graph

    @property
    def inputs(self) -> list[fx.Node]:
        return [node for node, _ in (*self._inputs, *self._numbers)]

    def by_origin(self) -> dict[int, fx.Node]:
        """The inputs, by the index of their origin."""
        return {origin.index: node for node, origin in (*self._inputs, *self._numbers)}

    @property
    def computes(self) -> bool:
        return bool(self.operations)

    def input(self, origin: Origin) -> fx.Node:
        node = fx.Node(self.graph, "", "placeholder", "", (), NOTHING, torch.Tensor)
        self._inputs.append((node, origin))
        return node

    def number(self, origin: Origin, kind: type) -> fx.Node:
        """A number that is an input. Those come behind the tensors."""
        node = fx.Node(self.graph, "", "placeholder", "", (), NOTHING, kind)
        self._numbers.append((node, origin))
        return node

    def operation(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> fx.Node:
        node = fx.Node(self.graph, name, kind, target, args, kwargs)
        self.operations.append(node)
        return node

    def close(self, outputs: list[fx.Node]) -> fx.Graph:
        """All nodes in their order, with names that tell them apart."""
        self.regions.mark()
        for node, origin in (*self._inputs, *self._numbers):
            _set(node, "target", self._add(node, f"l_{self._name_of(origin)}_"))
        for node in self.operations:
            self._add(node, node.name)
        self.graph.output(tuple(outputs))
        return self.graph

    def _add(self, node: fx.Node, candidate: str) -> str:
        graph = self.graph
        names = graph._graph_namespace
        name = self._another(candidate) if candidate in names._used_names else names.create_name(candidate, None)
        _set(node, "name", name)
        names.associate_name_with_obj(name, node)
        graph._insert(node)
        graph._find_nodes_lookup_table.insert(node)
        graph._len += 1
        return name

    def _another(self, base: str) -> str:
        """What the namespace makes of a name that is in use, without looking at it again."""
        names = self.graph._graph_namespace
        if base[-1].isdigit():
            return names.create_name(base, None)  # perhaps it ends in a number, to be counted up
        number = names._base_count.get(base, 0) + 1
        while (name := f"{base}_{number}") in names._used_names:
            number += 1
        names._used_names.add(name)
        names._base_count[base] = number
        return name

    def _name_of(self, origin: Origin) -> str:
        """The origin as part of an identifier: `self_encoder_linear_weight`."""
        name = self._names.get(origin.index)
        if name is None:
            own = "" if origin.key in _UNNAMED_STEPS else _NOT_A_NAME.sub("_", describe_key(origin)).strip("_")
            above = self._name_of(origin.parent) if origin.parent is not None else ""
            name = self._names[origin.index] = f"{above}_{own}" if above and own else above or own
        return name
