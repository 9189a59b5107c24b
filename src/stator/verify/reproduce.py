"""A difference as a script that shows it again: the graph node by node, its inputs beside it in a file."""

from __future__ import annotations

import math
import operator
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

_HEAD = '''"""{name}: what backend {backend!r} made of a graph differs from eager.

{lines}

Run this file; it compares again, and ends with status 1 if there is a difference.
"""

import os
import sys

import torch
from torch import fx

import stator
from stator.verify import check_graph

saved = torch.load(os.path.join(os.path.dirname(__file__), {data!r}), weights_only=False)
inputs, objects = saved["inputs"], saved["objects"]
torch.set_rng_state(saved["random numbers"])
{imports}

graph = fx.Graph()
'''

_TAIL = """
module = fx.GraphModule(torch.nn.Module(), graph)
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
    folder = subject.folder or os.path.join(tempfile.gettempdir(), "stator")
    name, backend = subject.name, subject.backend
    try:
        os.makedirs(folder, exist_ok=True)
        here = tempfile.mkdtemp(prefix="verify-", dir=folder)
        path = os.path.join(here, "reproduce.py")
        writer = _Writer(graph.graph)
        head = _HEAD.format(
            name=name, backend=backend[0], lines="\n".join(lines), data="inputs.pt", imports=writer.imports()
        )
        text = head + "\n".join(writer.lines)
        text += _TAIL.format(backend=writer.backend(*backend), grad=torch.is_grad_enabled())
        data = {
            "inputs": [_savable(value) for value in inputs],
            "objects": writer.objects,
            "random numbers": torch.get_rng_state(),
        }
        torch.save(data, os.path.join(here, "inputs.pt"))
        with open(path, "w") as file:
            file.write(text)
    except Exception:  # the difference is told in any case
        return None
    return path


def _savable(value: Any) -> Any:
    """A tensor as a leaf: what computed it is not saved."""
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return value.detach().requires_grad_(value.requires_grad)
    return value


class _Writer:
    """The lines that build a graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.objects: list[Any] = []  # what cannot be written
        self._modules: set[str] = set()
        self.lines = [self._node(node) for node in graph.nodes]

    def imports(self) -> str:
        return "\n".join(f"import {name}" for name in sorted(self._modules - {"torch"}))

    def backend(self, name: str, backend: Any) -> str:
        """How the backend is reached from another process."""
        if str(getattr(backend, "__module__", "")).startswith("stator."):
            return f"stator.backends.look_up({name!r})[1]"
        if not _can_be_saved(backend):
            return f'sys.exit("put the backend {name} in here: it cannot be saved")'
        return self._object(backend)

    def _node(self, node: fx.Node) -> str:
        if node.op == "output":
            return f"graph.output({self._value(node.args[0])})"
        if node.op == "placeholder":
            return f"{node.name} = graph.placeholder({node.target!r})"
        target = self._target(node.target) if node.op == "call_function" else repr(node.target)
        kwargs = self._value(dict(node.kwargs))
        return f"{node.name} = graph.{node.op}({target}, {self._value(tuple(node.args))}, {kwargs})"

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
        self.objects.append(value if _can_be_saved(value) else f"not saved: {value!r}")
        return f"objects[{len(self.objects) - 1}]"

    def _value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return value.name
        if type(value) in (tuple, list, fx.immutable_collections.immutable_list):
            items = ", ".join(map(self._value, value))
            return f"({items}{',' * (len(value) == 1)})" if type(value) is tuple else f"[{items}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self._value(item)}" for key, item in value.items()) + "}"
        if type(value) is slice:
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        if isinstance(value, float) and not math.isfinite(value):
            return f"float({str(value)!r})"
        if type(value) in (int, float, bool, str, type(None), type(...)):
            return repr(value) if value is not ... else "..."
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        return self._object(value)


def _can_be_saved(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _look_up(path: str) -> tuple[Any, str] | None:
    """What a dotted path leads to, and the module that has to be imported for it."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:count]))
        if module is not None:
            value: Any = module
            for part in parts[count:]:
                value = getattr(value, part, None)
            return (value, ".".join(parts[:count])) if value is not None else None
    return None
