"""A difference as a script that shows it again: the graph node by node, its inputs beside it in a file.

Nothing in the file is code: it has the bytes of tensors. What cannot be written is imported by its name, or is for the
reader to put in.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from .. import own_files
from ..interrupts import let_through
from ..support.graph_leaves import CustomFunction
from ..support.literals import in_docstring, is_literal, is_path, literal, name_of, plain_text
from .saved_data import READER, Data

_HEAD = '''"""{name}: what backend {backend} made of a graph differs from eager.

{lines}

Run this file; it compares again, and ends with status 1 if there is a difference.
"""

import os
import sys

import torch
from torch import fx

import stator
from stator.verify import check_graph

with open(os.path.join(os.path.dirname(__file__), "inputs.bin"), "rb") as file:
    saved = file.read()

{reader}
storages = [
{storages}
]
inputs = [
{inputs}
]
torch.set_rng_state({numbers})
{imports}

root = torch.nn.Module()
{parts}
graph = fx.Graph()
'''

_TAIL = """
module = fx.GraphModule(root, graph)
backend = {backend}
torch.set_grad_enabled({grad})
differences = check_graph(module, backend(module, inputs), inputs)
print(module.code)
print("\\n".join(differences) or "no difference")
sys.exit(bool(differences))
"""


class Subject(NamedTuple):
    """What is verified."""

    name: str  # the function that the graph was captured from
    backend: tuple[str, Any]
    folder: str | None  # for reproductions


def save_reproduction(lines: list[str], subject: Subject, inputs: Sequence[Any], graph: fx.GraphModule) -> str | None:
    """Where the script was saved; None if that could not be done."""
    name, backend = subject.name, subject.backend
    try:
        writer = _Writer(graph)
        given = [writer.value(value) for value in inputs]
        numbers = writer.data.tensor(torch.get_rng_state())
        called = writer.backend(*backend)
        head = _HEAD.format(
            name=in_docstring(name),
            backend=in_docstring(literal(plain_text(backend[0]))),
            lines=in_docstring("\n".join(lines)),
            reader=READER,
            storages=_indented(writer.data.lines),
            inputs=_indented(given),
            numbers=numbers,
            imports=writer.imports(),
            parts="\n".join(writer.parts),
        )
        text = head + "\n".join(writer.lines) + _TAIL.format(backend=called, grad=torch.is_grad_enabled())
        return own_files.save_together(
            subject.folder, "verify", {"inputs.bin": bytes(writer.data.contents), "reproduce.py": text}
        )
    except Exception as error:  # the difference is told in any case
        let_through(error)
        return None


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}," for line in lines)


class _Writer:
    """The lines that build a graph."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.data = Data()
        self._modules: set[str] = set()
        nodes = list(module.graph.nodes)
        self._names = {node: f"node_{number}" for number, node in enumerate(nodes)}
        self.lines = [self._node(node) for node in nodes]
        paths = dict.fromkeys(plain_text(node.target) for node in nodes if node.op in ("call_module", "get_attr"))
        self.parts = [f"setattr(root, {literal(path)}, {self._part(module, path)})" for path in paths]

    def imports(self) -> str:
        return "\n".join(f"import {name}" for name in sorted(self._modules - {"torch"}))

    def backend(self, name: str, backend: Any) -> str:
        """How the backend is reached from another process."""
        if str(getattr(backend, "__module__", "")).startswith("stator."):
            return f"stator.backends.look_up({literal(plain_text(name))})[1]"
        return self._object(backend)

    def _node(self, node: fx.Node) -> str:
        if node.op == "output":
            return f"graph.output({self.value(node.args[0])})"
        if node.op == "placeholder":
            return f"{self._names[node]} = graph.placeholder({literal(plain_text(str(node.target)))})"
        target = self._target(node.target) if node.op == "call_function" else literal(plain_text(str(node.target)))
        kwargs = self.value(dict(node.kwargs))
        return f"{self._names[node]} = graph.{node.op}({target}, {self.value(tuple(node.args))}, {kwargs})"

    def _part(self, module: fx.GraphModule, path: str) -> str:
        """What the graph names: a tensor, or a function with a backward of its own, whose graphs are not written."""
        value = operator.attrgetter(path)(module)
        if type(value) is CustomFunction and not value.objects and "." not in path:
            self._modules.add(CustomFunction.__module__)
            sizes = literal(tuple(value.sizes))
            return f"{CustomFunction.__module__}.CustomFunction({self._object(value.cls)}, frozenset({sizes}), {{}})"
        if isinstance(value, torch.Tensor) and "." not in path:
            return self.data.tensor(value)
        what = f"{name_of(value)}({value.extra_repr()})" if isinstance(value, torch.nn.Module) else name_of(value)
        return f"sys.exit({literal(f'put {path} in here, which is {what}: it cannot be written')})"

    def _target(self, target: Any) -> str:
        """A function by a name under which it is found again."""
        name = getattr(target, "__name__", "")
        module = getattr(target, "__module__", None) or ""
        known = [f"{module}.{getattr(target, '__qualname__', name)}", f"torch.{name}", f"torch.ops.{target}"]
        known += [f"torch.nn.functional.{name}", f"torch._C._nn.{name}", f"torch._C.{name}", f"torch.Tensor.{name}"]
        known += [f"operator.{name}"] if getattr(operator, name, None) is target else []
        for path in known:
            found = _look_up(path)
            if found is not None and found[0] is target:
                self._modules.add(found[1])
                return path
        return self._object(target)

    def _object(self, value: Any) -> str:
        """What cannot be written: by the name under which a fresh process finds it, or for the reader to put in."""
        path = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"
        found = _look_up(path)
        if found is not None and found[0] is value and found[1] != "__main__":
            self._modules.add(found[1])
            return path
        return f"sys.exit({literal(f'put {name_of(value)} in here: it cannot be written')})"

    def value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self._names[value]
        if isinstance(value, torch.Tensor):
            return self.data.tensor(value)
        if type(value) in (tuple, list, fx.immutable_collections.immutable_list):
            items = ", ".join(map(self.value, value))
            return f"({items}{',' * (len(value) == 1)})" if type(value) is tuple else f"[{items}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.value(key)}: {self.value(item)}" for key, item in value.items()) + "}"
        if type(value) is slice:
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if is_literal(value):
            return literal(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({literal(str(value))})"
        return self._object(value)


def _look_up(path: str) -> tuple[Any, str] | None:
    """What a dotted path leads to, and the module that has to be imported for it."""
    parts = path.split(".") if is_path(path) else []
    for count in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:count]))
        if module is not None:
            value: Any = module
            for part in parts[count:]:
                value = getattr(value, part, None)
            return (value, ".".join(parts[:count])) if value is not None else None
    return None
