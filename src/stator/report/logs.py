"""The logs: events as lines of the standard `logging` tree `stator.*`.

What enters: events, `set_logs(...)`, `STATOR_LOGS`, and the options `verbose`, `log_level`, `print_guards`
and `output_code`.
What leaves: records of the loggers `stator.<name>`, one logger per name in `LOGS`. An application that has
configured logging gets them through its own handlers; otherwise they go to standard error.
What holds: a text is rendered only for a logger that is on; hot events are read only while wanted.

Short lines (breaks, recompiles) are INFO, texts of many lines DEBUG, so `options.log_level` chooses by size
and `set_logs` by name. A level set by hand (``logging.getLogger("stator.guards").setLevel(...)``) holds.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TextIO, cast

from stator import events
from stator.events import Event
from stator.options import nearest, options, requested_logs

ROOT = logging.getLogger("stator")
SPECIALISED = "Keep it constant, or avoid there what needs the number itself (range, an index, formatting)."

LOGS: dict[str, str] = {
    "graph_code": "each captured graph, as runnable Python",
    "guards": "each recording's guards",
    "bytecode": "each replay, source and bytecode",
    "graph_breaks": "each graph break: function, reason, the user's line",
    "recompiles": "each call that no recording fitted, and the guard that failed",
    "aot_graphs": "joint, forward and backward graphs",
    "output_code": "the code that the backend generated",
}


# -------------------------------------------------------------------------------------- events become records


def _log(name: str) -> logging.Logger:
    return ROOT.getChild(name)


def _block(name: str, heading: str, about: str, text: Callable[[], str]) -> None:
    """One DEBUG record: a heading, a comment line about it, and the text, rendered if the logger is on."""
    if _log(name).isEnabledFor(logging.DEBUG):
        rendered = text().strip()
        if rendered:
            _log(name).debug("%s\n# %s\n%s", heading, about, rendered)


def _recorded(event: events.Recorded) -> None:
    about = f"{event.name}: recorded in {event.seconds * 1e3:.1f} ms, {event.probes} probes"
    _block("graph_code", "FX Graph:", about, event.graph)
    _block("guards", "Guards:", about, event.guards)
    _block("bytecode", "Bytecode:", about, event.bytecode)
    if event.symbolic:
        _log("recompiles").info("Recorded %s for any %s", event.name, ", ".join(event.symbolic))
    for text in event.specialised:
        _log("recompiles").info("Specialised %s: %s. %s", event.name, text, SPECIALISED)


def _compiled(event: events.BackendCompiled) -> None:
    about = f"{event.name}: compiled by {event.backend} in {event.seconds * 1e3:.1f} ms"
    _log("compile").debug("%s", about)
    _block("output_code", "Output Code:", about, event.output_code)


def _derived(event: events.BackwardDerived) -> None:
    about = f"derived in {event.seconds * 1e3:.1f} ms" + "".join(f"\n#   {step}" for step in event.steps)
    _block("aot_graphs", "Joint Graph:", about, event.joint)
    _block("aot_graphs", "Forward Graph:", about, event.forward)
    _block("aot_graphs", "Backward Graph:", about, event.backward)


def _not_derived(event: events.NotDerived) -> None:
    _log("aot_graphs").info("No backward ahead of time, the graph runs as it was captured: %s", event.why)


def _graph_break(event: events.GraphBreak) -> None:
    why = event.reason
    _log("graph_breaks").info("Graph break in %s: %s at %s [%s]", why.function, why.reason, why.place, why.id)


def _miss(event: events.CacheMiss) -> None:
    if event.why is None:
        _log("cache").debug("[Cache Miss] %s: no recording yet", event.name)
        return
    _log("cache").debug("[Cache Miss] %s: %s", event.name, event.why)
    _log("recompiles").info("Recompiling %s: %s", event.name, event.why)


def _hit(event: events.CacheHit) -> None:
    _log("cache").debug("[Cache Hit] %s", event.name)


def _watched(event: events.FrameWatched) -> None:
    code = event.code
    _log("frames").debug("CONVERT_FRAME %s %s:%d", code.co_qualname, code.co_filename, code.co_firstlineno)


def _plain(event: events.RanPlain) -> None:
    _log("cache").debug("[Plain] %s: %s", event.name, event.why)


def _failure(event: events.InternalFailure) -> None:
    # The warning the user sees is the pipeline's; here is the traceback for who asks.
    failed = event.exception
    _log("failures").info(
        "Failure in %s, report: %s",
        event.where,
        event.report_path,
        exc_info=(type(failed), failed, failed.__traceback__),
    )


RARE: dict[type[Event], Callable[..., None]] = {
    events.Recorded: _recorded,
    events.BackendCompiled: _compiled,
    events.BackwardDerived: _derived,
    events.NotDerived: _not_derived,
    events.GraphBreak: _graph_break,
    events.CacheMiss: _miss,
    events.InternalFailure: _failure,
}
HOT: dict[type[Event], Callable[..., None]] = {  # once per call or per frame: read only at level DEBUG
    events.CacheHit: _hit,
    events.FrameWatched: _watched,
    events.RanPlain: _plain,
}


def _read(event: Event) -> None:
    (RARE.get(type(event)) or HOT[type(event)])(event)


# ------------------------------------------------------------------------------------------ which logs are on


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is by then, and only if the application has no handler of its own."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter("[%(name)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


class _Switchboard:
    """Which logs are on, by name and by option; keeps levels and subscriptions in step with that."""

    def __init__(self) -> None:
        self.named: frozenset[str] = frozenset()
        self._set: frozenset[str] = frozenset()  # loggers whose level we set
        self._level: int | None = None
        self._end_hot: Callable[[], None] | None = None
        ROOT.addHandler(_StandardError())
        events.subscribe(_read, *RARE)
        options.on_change(self.update)
        self.update()

    def update(self) -> None:
        """Set levels and subscriptions to what options and names ask for now."""
        level = logging.DEBUG if options.verbose else options.log_level
        if level != self._level:
            ROOT.setLevel(level)
            self._level = level
        by_option = {
            name for name, on in (("guards", options.print_guards), ("output_code", options.output_code)) if on
        }
        wanted = self.named | by_option
        for name in self._set - wanted:
            _log(name).setLevel(logging.NOTSET)
        for name in wanted - self._set:
            _log(name).setLevel(logging.DEBUG)
        self._set = wanted
        if level <= logging.DEBUG and self._end_hot is None:
            self._end_hot = events.subscribe(_read, *HOT)
        elif level > logging.DEBUG and self._end_hot is not None:
            self._end_hot()
            self._end_hot = None


def parse(text: str) -> frozenset[str]:
    """The logs that a list like `guards,+all,-bytecode` names; ValueError for a name that is none."""
    chosen: set[str] = set()
    for word in (part.strip() for part in text.split(",")):
        name = word.lstrip("+-")
        if not name:
            continue
        names: Iterable[str] = LOGS if name == "all" else [name]
        if name != "all" and name not in LOGS:
            known = [*LOGS, "all"]
            raise ValueError(
                f"there is no log {name!r}; the nearest is {nearest(name, known)!r} (known: {', '.join(known)})"
            )
        chosen = chosen - set(names) if word.startswith("-") else chosen | set(names)
    return frozenset(chosen)


def set_logs(
    *,
    graph_code: bool = False,
    guards: bool = False,
    bytecode: bool = False,
    graph_breaks: bool = False,
    recompiles: bool = False,
    aot_graphs: bool = False,
    output_code: bool = False,
    all: bool = False,
) -> None:
    """Choose the logs that are on, in place of earlier choices and of `STATOR_LOGS`; no arguments: none."""
    given = cast(dict[str, bool], {name: value for name, value in locals().items() if name != "all"})
    _switchboard.named = frozenset(name for name, on in given.items() if on or all)
    _switchboard.update()


_switchboard = _Switchboard()
try:
    _switchboard.named = parse(requested_logs())
    _switchboard.update()
except ValueError as error:  # a slip in the environment must not stop `import stator`
    warnings.warn(f"environment variable STATOR_LOGS is ignored: {error}", stacklevel=2)
