"""A graph whose inputs may have lost their memory, operator by operator.

Enters: a derived graph, and how it runs otherwise. Leaves: a callable that looks at the inputs first. Where the
storage of one is smaller than the tensor, an operator is called only if all that it touches is there: so views, sizes
and parts are what they are in eager, and there is a `StorageError` where ATen would read what is not the tensor's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import fx
from torch.utils._pytree import tree_leaves

from ..autograd.compile import as_run
from ..autograd.tangents import Boxed
from ..support.tensor_memory import is_short, reads_memory, refuse_short


class _Checking(fx.Interpreter):
    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reads_memory(target):
            refuse_short(*tree_leaves((args, kwargs)))
        return super().call_function(target, args, kwargs)


def looking(module: fx.GraphModule, plain: Boxed, written: Collection[int] = ()) -> Boxed:
    """`plain`, which is this graph; `written`: inputs that results are written to behind it."""
    constants = [getattr(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")]

    def run(inputs: list[Any]) -> Any:
        if not any(map(is_short, (*inputs, *constants))):
            return plain(inputs)
        refuse_short(*[inputs[number] for number in written])
        return _Checking(as_run(module)).boxed_run(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
