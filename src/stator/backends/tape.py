"""A graph as a tape for C code: its operations in their order, functions and constants looked up once.

Enters: an fx graph of calls. Leaves: a `_native.Tape`, or None where the graph has something else in it (submodules,
attributes). What fx would write as Python code does the same, one frame and many lookups later.
"""

from __future__ import annotations

import functools
import operator
import types
from typing import Any

import torch
from torch import fx

from .. import _native as n
from ..support.graph_numbers import wrong_sizes
from ..support.guard_readers import SIZES, WRITES

PartRow = tuple[int, Any]
_NAMES = ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod", "getitem")
_BINARY = {getattr(operator, name): name for name in _NAMES}


class _NotATape(Exception):
    """There is something in the graph that a tape has no step for."""


class _Writer:
    def __init__(self, graph: fx.Graph) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.registers: dict[fx.Node, int] = {}
        self._free: list[int] = []
        self._last_of: dict[fx.Node, list[fx.Node]] = {}
        seen: set[fx.Node] = set()
        for node in reversed(graph.nodes):
            self._last_of[node] = [used for used in node.all_input_nodes if used not in seen]
            seen.update(node.all_input_nodes)
        self.inputs = sum(node.op == "placeholder" for node in graph.nodes)
        self.count = self.inputs
        self.writes = False
        self.harmless = 0  # so many steps come before the first one that writes to what nobody has kept

    def part(self, value: Any) -> PartRow:
        """An argument, or a part of one."""
        if isinstance(value, fx.Node):
            return n.TAPE_REGISTER, self.registers[value]
        if isinstance(value, slice):
            return n.TAPE_SLICE, [self.part(item) for item in (value.start, value.stop, value.step)]
        if isinstance(value, list):
            return n.TAPE_LIST, [self.part(item) for item in value]
        if isinstance(value, dict):
            return n.TAPE_DICT, (tuple(value), [self.part(item) for item in value.values()])
        if type(value) is tuple:
            parts = [self.part(item) for item in value]
            fixed = all(kind == n.TAPE_CONSTANT for kind, _ in parts)
            return (n.TAPE_CONSTANT, value) if fixed else (n.TAPE_TUPLE, parts)
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            raise _NotATape  # a named one
        return n.TAPE_CONSTANT, value

    def step(self, node: fx.Node) -> None:
        args = [self.part(value) for value in (*node.args, *node.kwargs.values())]
        kind, target = n.TAPE_CALL, node.target
        if node.op == "call_method":
            kind = n.TAPE_METHOD
        elif node.op != "call_function":
            raise _NotATape
        elif type(target) is types.BuiltinFunctionType and target in _BINARY and not node.kwargs:
            kind, target = n.TAPE_BINARY, _BINARY[target]
        last = [self.registers[used] for used in self._last_of[node] if used.op != "placeholder"]
        self._free += last
        out = -1
        if node.users or SIZES in node.meta:
            if not self._free:
                self._free.append(self.count)
                self.count += 1
            out = self.registers[node] = self._free.pop()
        if WRITES in node.meta and not self.writes:
            self.writes, self.harmless = True, len(self.steps)
        self.steps.append((kind, target, args, tuple(node.kwargs), out, tuple(last)))
        if SIZES in node.meta:
            self._compare_sizes(node, out)

    def _compare_sizes(self, node: fx.Node, register: int) -> None:
        """The program has asked for the sizes of this value: they must be the same."""
        args = [(n.TAPE_REGISTER, register), (n.TAPE_CONSTANT, node.meta[SIZES])]
        args.append((n.TAPE_CONSTANT, functools.partial(wrong_sizes, node.name)))
        last = () if node.users else (register,)
        self._free += last
        self.steps.append((n.TAPE_CALL, n.expect_sizes, args, (), -1, last))


def tape_of(graph: fx.Graph) -> n.Tape | None:
    writer = _Writer(graph)
    result: PartRow | None = None
    try:
        for node in graph.nodes:
            if node.op == "placeholder":
                writer.registers[node] = len(writer.registers)
            elif node.op == "output":
                result = writer.part(node.args[0])
            else:
                writer.step(node)
    except _NotATape:
        return None
    if result is None:
        return None
    return n.Tape(writer.steps, writer.inputs, writer.count, result, writer.harmless)
