"""What `stator.explain` returns: one run of a function, in numbers and in words.

What enters: the graphs, breaks, guards, segments and times that one recorded run yielded. What leaves: an
object to ask and to print. What holds: the counts are those of the lists beside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stator.errors import BreakReason, render
from stator.events import CacheMiss

from .chronicle import Chronicle
from .logs import SPECIALISED
from .page import write

OPS = frozenset({"call_function", "call_method", "call_module"})  # the FX nodes which compute


@dataclass(frozen=True)
class Explanation:
    """What calls of a function gave: graphs and what lies between them."""

    graphs: Sequence[Any]  # torch.fx.GraphModule, in the order they were recorded
    break_reasons: Sequence[BreakReason] = ()
    guards: Sequence[Any] = ()  # str() of each says what must hold
    segments: Sequence[Any] = ()
    compile_times: Mapping[str, float] = field(default_factory=dict)  # seconds by step
    symbolic: Sequence[str] = ()  # sizes and numbers that may be others in later calls
    specialised: Sequence[str] = ()  # those which were meant to be, and the line that prevents it
    name: str = ""  # of the function
    chronicle: Chronicle | None = None  # what happened
    derive: Callable[[], None] | None = None  # derives the backward graphs, for the chronicle
    call_again: Callable[..., Explanation] | None = None

    def again(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call the function again, with what it has recorded so far; explains all calls up to this one."""
        if self.call_again is None:
            raise ValueError("this explanation comes from no call")
        return self.call_again(*args, **kwargs)

    def save_html(self, path: str | os.PathLike[str]) -> str:
        """Write a page about all of this: one file that needs nothing else. Returns its path."""
        if self.derive is not None:
            self.derive()
        return write(path, self.chronicle or Chronicle(), title=self.name or "stator", summary=str(self))

    @property
    def recompilations(self) -> list[str]:
        """Why calls were recorded again: the guard that failed, the value expected and the value found."""
        misses = self.chronicle.of(CacheMiss) if self.chronicle is not None else []
        return [str(miss.why) for miss in misses if miss.why is not None]

    @property
    def graph_count(self) -> int:
        """How many graphs were captured."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """How many times Python had to run in between."""
        return len(self.break_reasons)

    @property
    def breaks_by_place(self) -> list[tuple[BreakReason, int]]:
        """Each break once per place in the program, and how often it happened there; in order of appearance."""
        first: dict[tuple[str, str, str], BreakReason] = {}
        count: dict[tuple[str, str, str], int] = {}
        for why in self.break_reasons:
            key = (why.place, why.id, why.reason)
            first.setdefault(key, why)
            count[key] = count.get(key, 0) + 1
        return [(why, count[key]) for key, why in first.items()]

    @property
    def op_count(self) -> int:
        """How many operations all graphs hold together."""
        return sum(len(ops(graph)) for graph in self.graphs)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"stator produced {_count(self.graph_count, 'graph')} with "
            f"{_count(self.graph_break_count, 'graph break')} and {_count(self.op_count, 'op')}"
        )
        for number, graph in enumerate(self.graphs, 1):
            yield f"\nGraph {number} ({_count(len(ops(graph)), 'op')}):"
            yield from (f"  {line}" for line in ops(graph))
        for number, (why, times) in enumerate(self.breaks_by_place, 1):
            often = f" ({times} times)" if times > 1 else ""
            yield f"\nGraph break {number}{often}: {render(why)}"
        if self.symbolic:
            yield f"\nSymbolic: {', '.join(self.symbolic)}"
        for text in self.specialised:
            yield f"\nSpecialised: {text}\n  hint: {SPECIALISED}"
        if self.compile_times:
            yield ""
            yield "Times: " + ", ".join(f"{step} {_duration(spent)}" for step, spent in self.compile_times.items())


def ops(graph: Any) -> list[str]:
    """The operations of a `torch.fx.GraphModule`, one line each: `z = pow(sub, 2)`."""
    return [f"{node.name} = {_spelling(node)}" for node in graph.graph.nodes if node.op in OPS]


def _spelling(node: Any) -> str:
    arguments = [*map(repr, node.args), *(f"{name}={value!r}" for name, value in node.kwargs.items())]
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    target = node.target if node.op == "call_module" else getattr(node.target, "__name__", str(node.target))
    return f"{target}({', '.join(arguments)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
