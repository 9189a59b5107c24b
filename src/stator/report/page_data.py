"""An event log as plain data: what the page shows, in the form in which its script reads it.

What enters: an event log. What leaves: dicts, lists, numbers and texts, nothing else. What holds: paths, origins and
forms of guards are named once, and by number from there on: a model of twelve layers has thousands of guards.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from typing import Any

from stator import events, source_lines
from stator.errors import BreakReason

from .event_log import EventLog, Noted, Ran

PageFields = dict[str, Any]
WHOLE = 400  # lines; of longer files only what lies around marked lines is shown
AROUND = 6
_AT = re.compile(r'File "(.*)", line (\d+)')
_HOLE = "\0"  # in the form of a guard: here stands its origin


class Table:
    """Texts by number."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self._number.setdefault(text, len(self._number))

    @property
    def texts(self) -> list[str]:
        return list(self._number)


def tell(event_log: EventLog) -> PageFields:
    """All that the page shows."""
    return _PageData(event_log).data()


class _PageData:
    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._files = Table()
        self._origins = Table()
        self._forms = Table()
        self._kinds = Table()
        self._marks: dict[int, dict[int, PageFields]] = {}  # by file and line
        self._recordings: list[PageFields] = []
        self._derived: list[PageFields] = []
        self._graphs: dict[int, int] = {}  # which recording a graph is of
        self._compiled: list[PageFields] = []
        self._breaks: dict[tuple[str, str, str], PageFields] = {}

    def data(self) -> PageFields:
        pending: list[PageFields] = []  # generated code: of the recording that comes next
        derived: list[events.BackwardDerived] = []
        for noted in list(self._event_log.noted):
            event = noted.event
            if isinstance(event, events.BackwardDerived):
                derived.append(event)
            elif isinstance(event, events.BackendCompiled):
                pending.append(self._generated(event.name, event.backend, event.output_code()))
            elif isinstance(event, events.CodeGenerated):
                pending.append(self._generated(event.part, event.backend, event.code()))
            elif isinstance(event, events.GraphBreak):
                self._break(event.reason)
            elif isinstance(event, events.Recorded):
                number = self._record(event)
                for part in pending:
                    part["recording"] = number
                pending.clear()
        self._derived = list(map(self._derive, derived))
        self._mark_guards()
        return {
            "files": self._files.texts,
            "origins": self._origins.texts,
            "forms": self._forms.texts,
            "kinds": self._kinds.texts,
            "recordings": self._recordings,
            "breaks": list(self._breaks.values()),
            "derived": self._derived,
            "compiled": self._compiled,
            "misses": [_miss(miss) for miss in self._event_log.of(events.CacheMiss) if miss.why and miss.records],
            "failures": [
                *map(_failure, self._event_log.of(events.InternalFailure)),
                *map(_not_derived, self._event_log.of(events.NotDerived)),
                *map(_not_generated, self._event_log.of(events.NotGenerated)),
                *map(_not_captured, self._event_log.of(events.NotCaptured)),
            ],
            "timeline": timeline(self._event_log.noted),
            "sources": [self._source(file, marks) for file, marks in self._marks.items()],
        }

    # -- parts

    def _place(self, text: str) -> tuple[int, int]:
        """(file, line) of `file:line`; (-1, 0) if it is none."""
        path, _, line = text.rpartition(":")
        return (self._files(path), int(line)) if path and line.isdigit() else (-1, 0)

    def _mark(self, place: tuple[int, int], kind: str, what: Any) -> None:
        if place[0] >= 0 and place[1] > 0:
            self._marks.setdefault(place[0], {}).setdefault(place[1], {}).setdefault(kind, []).append(what)

    def _record(self, event: events.Recorded) -> int:
        number, entry = len(self._recordings), event.entry
        graph = getattr(entry, "graph", None)
        nodes = self._nodes(number, graph) if graph is not None else []
        self._graphs[id(graph)] = number
        guards = entry.guards.told() if entry is not None else []
        why = getattr(entry, "break_reason", None)
        self._recordings.append(
            {
                "name": event.name,
                "seconds": event.seconds,
                "probes": event.probes,
                "ops": sum(node["op"] == "op" for node in nodes),
                "hits": getattr(entry, "hits", 0),
                **_times(self._event_log.ran(entry)),
                "symbolic": list(event.symbolic),
                "specialised": [self._specialised(number, text) for text in event.specialised],
                "nodes": nodes,
                "guards": [self._guard(told) for told in sorted(guards, key=lambda told: told.place == "")],
                "code": event.graph(),
                "replay": getattr(entry, "replay_source", ""),
                "bytecode": event.bytecode(),
                "break": self._break_key(why) if why is not None else None,
            }
        )
        return number

    def _nodes(self, recording: int, graph: Any) -> list[PageFields]:
        numbers = {node: index for index, node in enumerate(graph.graph.nodes)}
        nodes: list[PageFields] = []
        for node, index in numbers.items():
            found = _AT.match(node.meta.get("stack_trace") or "")
            place = (self._files(found[1]), int(found[2])) if found else (-1, 0)
            op = {"placeholder": "input", "output": "output", "get_attr": "input"}.get(node.op, "op")
            if op == "op":
                self._mark(place, "graph", [recording, index])
            nodes.append(
                {
                    "name": node.name,
                    "op": op,
                    "text": _spell(node),
                    "from": [numbers[source] for source in node.all_input_nodes],
                    "at": place,
                }
            )
        return nodes

    def _guard(self, told: Any) -> list[int]:
        """[kind, form, origin, file, line, file and line of the user's that led there]"""
        form = told.text.replace(told.origin, _HOLE, 1) if told.origin else told.text
        places = *self._place(told.place), *self._place(told.caller)
        return [self._kinds(told.kind), self._forms(form), self._origins(told.origin), *places]

    def _specialised(self, recording: int, text: str) -> PageFields:
        what, _, place = text.rpartition(", due to ")
        place, _, caller = place.partition(" from ")
        at = self._place(caller or place) if what else (-1, 0)
        self._mark(at, "specialised", [recording, what])
        return {"text": what if at[0] >= 0 else text, "at": at}

    def _break_key(self, why: BreakReason) -> int:
        key = (why.place, why.id, why.reason)
        return list(self._breaks).index(key) if key in self._breaks else self._break(why, times=0)

    def _break(self, why: BreakReason, times: int = 1) -> int:
        key = (why.place, why.id, why.reason)
        if key not in self._breaks:
            at = self._place(why.place)
            self._mark(at, "break", len(self._breaks))
            self._breaks[key] = {
                "id": why.id,
                "reason": why.reason,
                "hint": why.hint,
                "rest": why.rest,
                "function": why.function,
                "at": at,
                "line": why.line,
                "columns": why.columns,
                "stack": [[self._files(frame.filename), frame.lineno, frame.name] for frame in why.user_stack],
                "times": 0,
            }
        self._breaks[key]["times"] += times
        return list(self._breaks).index(key)

    def _derive(self, event: events.BackwardDerived) -> PageFields:
        return {
            "recording": self._graphs.get(id(event.source)),
            "label": event.label,
            "seconds": event.seconds,
            "steps": list(event.steps),
            "joint": event.joint(),
            "forward": event.forward(),
            "backward": event.backward(),
            "operations": list(event.operations),
            "kept": [kept._asdict() for kept in event.kept()],
        }

    def _generated(self, name: str, backend: str, code: str) -> PageFields:
        made = {"recording": None, "name": name, "backend": backend, "code": code}
        self._compiled.append(made)
        return made

    # -- sources

    def _mark_guards(self) -> None:
        """Lines that made guards necessary, in files that are shown anyway."""
        for recording in self._recordings:
            for _, _, _, *places in recording["guards"]:
                file, line = places[2:] if places[2] >= 0 else places[:2]
                if file in self._marks and line > 0:
                    mark = self._marks[file].setdefault(line, {})
                    mark["guards"] = mark.get("guards", 0) + 1

    def _source(self, file: int, marks: dict[int, PageFields]) -> PageFields:
        lines = [line.rstrip("\n") for line in source_lines.lines(self._files.texts[file])]
        wanted = [line for line, mark in marks.items() if mark.keys() != {"guards"}]
        chunks = [(start, lines[start - 1 : end]) for start, end in _stretches(wanted, len(lines))]
        shown = {start + offset for start, texts in chunks for offset in range(len(texts))}
        return {
            "file": file,
            "lines": len(lines),
            "chunks": chunks,
            "marks": {line: mark for line, mark in sorted(marks.items()) if line in shown},
        }


def _stretches(marked: Iterable[int], count: int) -> list[tuple[int, int]]:
    """Which lines of a file are shown: first and last of each stretch."""
    if count <= WHOLE:
        return [(1, count)] if count else []
    found: list[tuple[int, int]] = []
    for line in sorted(marked):
        start, end = max(line - AROUND, 1), min(line + AROUND, count)
        if found and start <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start <= end:
            found.append((start, end))
    return found


def _spell(node: Any) -> str:
    arguments = [*map(str, node.args), *(f"{name}={value}" for name, value in node.kwargs.items())]
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    if node.op == "call_function":
        return f"{_name_of(node.target)}({', '.join(arguments)})"
    return ", ".join(arguments)


def _name_of(target: Any) -> str:
    return getattr(target, "__name__", None) or str(target)


def _times(ran: Ran) -> PageFields:
    """Seconds that a compiled graph ran, and its backward."""
    return {
        "timed": len(ran.timed),
        "median": ran.median,
        "total": ran.total,
        "backward": len(ran.backward),
        "backward_median": statistics.median(ran.backward) if ran.backward else 0.0,
        "backward_total": sum(ran.backward),
    }


def _miss(event: events.CacheMiss) -> PageFields:
    parts = {name: str(getattr(event.why, name, "")) for name in ("guard", "expected", "found", "place", "caller")}
    return {"name": event.name, "why": str(event.why), **parts}


def _failure(event: events.InternalFailure) -> PageFields:
    text = f"{type(event.exception).__name__}: {event.exception}"
    return {"where": event.where, "what": text, "path": event.report_path}


def _not_derived(event: events.NotDerived) -> PageFields:
    return {"where": "ahead-of-time autograd", "what": str(event.why), "path": None}


def _not_generated(event: events.NotGenerated) -> PageFields:
    return {"where": f"code of the {event.part}", "what": event.why, "path": None}


def _not_captured(event: events.NotCaptured) -> PageFields:
    return {"where": f"CUDA graph of the {event.part}", "what": event.why, "path": None}


# --------------------------------------------------------------------------------------------------- timeline


def timeline(noted: Iterable[Noted]) -> list[PageFields]:
    """Stages, by start. A call that is recorded is watched from the miss on; then each of its segments is compiled,
    and guards and replay are made."""
    stages: list[PageFields] = []
    began: dict[int, float] = {}  # by thread: since when it watches, or makes the next segment
    watching: set[int] = set()
    derived: dict[int, list[PageFields]] = {}  # by thread: what belongs to a backend that has not finished
    labels: dict[int, str] = {}  # by thread: of the graph that was differentiated last
    for event, start, end, thread in noted:
        if isinstance(event, events.CacheMiss):
            began[thread] = end
            watching.add(thread)
        elif isinstance(event, (events.BackendCompiled, events.Recorded)):
            name = event.name
            until = start if isinstance(event, events.BackendCompiled) else end
            since = began.get(thread, until)
            if thread in watching:
                watching.discard(thread)
                stages.append(_stage("watch", name, since, until))
            elif isinstance(event, events.Recorded):
                stages.append(_stage("guards and replay", name, since, until))
            if isinstance(event, events.BackendCompiled):
                stages += derived.pop(thread, [])
                stages.append(_stage("backend", f"{name} ({event.backend})", start, end))
            began[thread] = end
        elif isinstance(event, events.BackwardDerived):
            labels[thread] = event.label
            derived.setdefault(thread, []).append(
                _stage("forward and backward", "; ".join((event.label, *event.steps)), start, end)
            )
        elif isinstance(event, events.CodeGenerated):
            of = f"{labels[thread]}: {event.part} ({event.backend})" if thread in labels else event.part
            derived.setdefault(thread, []).append(_stage("code generation", of, start, end))
    return sorted(stages, key=lambda stage: (stage["start"], -stage["end"]))


def _stage(stage: str, name: str, start: float, end: float) -> PageFields:
    return {"stage": stage, "name": name, "start": start, "end": max(end, start)}
