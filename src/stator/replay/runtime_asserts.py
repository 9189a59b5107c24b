"""Running what a graph relies on before the graph itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..interrupts import let_through
from ..recording import Checks, OnFailure
from ..support.graph_numbers import Failed, Unexpected


def checking(compiled: Callable[..., Any], checks: Checks) -> Callable[..., Any]:
    """The compiled graph behind its checks: where one comes out otherwise than it did, `Failed` is raised, and nothing
    has been done. `Unexpected`: the program would go on, by another way."""
    graph, positions, outcomes, on_failure = checks
    compute = graph.forward  # (calling a graph module writes to stderr if it raises)

    def run(*inputs: Any) -> Any:
        try:
            with torch.no_grad():
                found = compute(*[inputs[position] for position in positions])
        except Exception as error:
            let_through(error)
            raise Failed("a check") from error
        if found != outcomes:
            failed = {what for a, b, what in zip(found, outcomes, on_failure, strict=True) if a is not b}
            raise (Unexpected if OnFailure.GOES_ON in failed else Failed)("a tensor is not as true as it was")
        return compiled(*inputs)

    return run
