"""What `stator.explain` returns: one run of a function, in numbers and in words.

What enters: the graphs, breaks, guards, segments and times that one recorded run yielded. What leaves: an
object to ask and to print. What holds: the counts are those of the lists beside them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from stator.errors import BreakReason, render
from stator.events import BackwardDerived, CacheMiss, Kept

from .event_log import EventLog
from .forecast import Forecast, forecast
from .logs import SPECIALISED
from .page import write
from .style import folded, guards_in_short, short_path

MOST_GUARDS = 8  # shown in words; the page shows all
MOST_KEPT = 5
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
    event_log: EventLog | None = None  # what happened
    derive: Callable[[], None] | None = None  # derives the backward graphs, for the event log
    call_again: Callable[..., Explanation] | None = None
    calls: tuple[int, int, int] = (0, 0, 0)  # that were made; recordings among them; how many there may be

    def again(self, *args: Any, **kwargs: Any) -> Explanation:
        """Call the function again, with what it has recorded so far; explains all calls up to this one."""
        if self.call_again is None:
            raise ValueError("this explanation comes from no call")
        return self.call_again(*args, **kwargs)

    def save_html(self, path: str | os.PathLike[str]) -> str:
        """Write a page about all of this: one file that needs nothing else. Returns its path."""
        if self.derive is not None:
            self.derive()
        return write(path, self.event_log or EventLog(), title=self.name or "stator", summary=str(self))

    @property
    def recompilations(self) -> list[str]:
        """Why calls were recorded again: the guard that failed, the value expected and the value found."""
        misses = self.event_log.of(CacheMiss) if self.event_log is not None else []
        return [str(miss.why) for miss in misses if miss.why is not None and miss.records]

    @property
    def forecast(self) -> Forecast | None:
        """How many recordings there will be, and which lines cause them; None before the tenth call."""
        misses = self.event_log.of(CacheMiss) if self.event_log is not None else []
        return forecast(self.name or "function", misses, *self.calls)

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

    @property
    def kept(self) -> list[tuple[str, tuple[Kept, ...]]]:
        """What is kept for the backward, by graph, if it is compiled ahead of time. Takes time when first asked."""
        if self.derive is not None:
            self.derive()
        derived = self.event_log.of(BackwardDerived) if self.event_log is not None else []
        return [(event.label, event.kept()) for event in derived if event.operations[1]]

    def __str__(self) -> str:
        return "\n".join([*self._what_was_captured(), *self._what_it_rests_on(), *self._what_ran()])

    def _what_was_captured(self) -> Iterator[str]:
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

    def _what_it_rests_on(self) -> Iterator[str]:
        if self.guards:
            lines = list(dict.fromkeys(map(str, self.guards)))
            yield f"\nAssumed ({_count(len(lines), 'guard')}):"
            yield from (f"  {line}" for line in guards_in_short(lines, MOST_GUARDS))
        for why in self.recompilations:
            yield folded(f"\nRecorded again: {short_path(why)}")
        if self.forecast is not None:
            yield folded("\nForecast: " + "\n".join(self.forecast.lines()))
        if self.symbolic:
            yield f"\nSymbolic: {', '.join(self.symbolic)}"
        for text in self.specialised:
            yield f"\nSpecialised: {short_path(text)}\n  hint: {SPECIALISED}"

    def _what_ran(self) -> Iterator[str]:
        for label, values in self.kept:
            extra = sorted((value for value in values if value.extra), key=lambda value: -value.bytes)
            yield f"\nKept for the backward of {label}: {sum(value.bytes for value in extra):,} bytes"
            for value in extra[:MOST_KEPT]:
                yield f"  {value.name}: {value.what}, {value.bytes:,} bytes: {value.why}"
            if extra[MOST_KEPT:]:
                yield f"  and {_count(len(extra) - MOST_KEPT, 'smaller one')}"
        entries = sorted(self.segments, key=lambda entry: int(entry.number))
        ran = list(runs(entries, self.event_log)) if self.event_log is not None else []
        if ran:
            yield "\nCompiled graphs that ran:"
            yield from (f"  {line}" for line in ran)
        if self.compile_times:
            yield ""
            yield "Times: " + ", ".join(f"{step} {_duration(spent)}" for step, spent in self.compile_times.items())


def runs(entries: Iterable[Any], event_log: EventLog) -> Iterator[str]:
    """How often each compiled graph ran and how long that took, one line each: `mse, graph 1: 2 times, …`."""
    for entry in entries:
        ran = event_log.ran(entry)
        if not entry.number or not ran.times:
            continue
        about = "" if len(ran.timed) == ran.times else "about "
        took = f", median {_duration(ran.median)}, {about}{_duration(ran.total)} in all" if ran.timed else ""
        back = ran.backward
        behind = f"; backward {times(len(back))}, median {_duration(median(back))}" if back else ""
        yield f"{entry.name}, graph {entry.number}: {times(ran.times)}{took}{behind}"


def times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


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
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e3:.3f} ms"
