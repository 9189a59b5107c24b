"""`python -m stator explain SCRIPT`: a script with its modules compiled, and what that gave."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator
from typing import Any

from .. import events
from ..backends.registry import look_up
from ..report.event_log import EventLog
from ..report.explain import Explanation, runs
from ..report.forecast import Forecast, forecast
from ..report.page import write
from ..report.style import folded, short_path
from .bench import duration
from .misuse import check_readable, check_writable
from .top_calls import TopCalls, TopCallSite
from .tracebacks import print_error


def run(given: argparse.Namespace) -> int:
    check_readable(given.script)
    if given.html:
        check_writable(given.html)
    if given.backend:
        look_up(given.backend)
    event_log = EventLog()
    # What we render meanwhile is not the program's time.
    calls = TopCalls(given.backend, event_log.now, event_log.timing)
    with event_log:
        code = run_script(given.script, given.args, calls)
    lines = list(report(given.script, calls, event_log))
    print("\n".join(["", *lines]))
    if given.html:
        text = "\n".join(lines)
        print(f"\npage: {write(given.html, event_log, title=given.script, summary=text, calls=_rows(calls))}")
    if code == 0 and given.strict and (event_log.of(events.GraphBreak) or _misses(event_log)):
        return 3
    return code


def run_script(path: str, arguments: list[str], calls: TopCalls) -> int:
    """Run it as `python path arguments…` would; gives its exit code."""
    former = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [path, *arguments], os.path.dirname(os.path.abspath(path))
    try:
        with calls:
            runpy.run_path(path, run_name="__main__")
    except SystemExit as wish:
        if wish.code is None or isinstance(wish.code, int):
            return wish.code or 0
        print(wish.code, file=sys.stderr)
        return 1
    except BaseException as error:
        print_error(error)
        return 1
    finally:
        sys.argv, sys.path[0] = former
    return 0


# ------------------------------------------------------------------------------------------------------ in words


def report(script: str, calls: TopCalls, event_log: EventLog) -> Iterator[str]:
    """What is printed."""
    graphs = sum(len(handle.graphs) for handle in calls.handles)
    breaks, misses = event_log.of(events.GraphBreak), _misses(event_log)
    yield (
        f"{script}: {_count(len(calls.handles), 'module or function', 'modules and functions')} compiled, "
        f"{_count(graphs, 'graph')}, {_count(len(breaks), 'graph break')}, {_count(len(misses), 'recompilation')}"
    )
    if not calls.sites:
        yield "It called no nn.Module."
    for site in calls.sites.values():
        yield ""
        yield from _site(site)
    explained = Explanation(graphs=[], break_reasons=[event.reason for event in breaks])
    yield from str(explained).splitlines()[1:]
    entries = [event.entry for event in event_log.of(events.Recorded)]
    ran = list(runs(entries, event_log))
    if ran:
        yield ""
        yield "Compiled graphs that ran:"
        yield from (f"  {line}" for line in ran)
    if misses:
        yield ""
        yield "Recompilations:"
        yield from (folded(f"  {miss.name}: {short_path(str(miss.why))}") for miss in misses)
    foretold = list(_forecasts(calls, event_log))
    if foretold:
        yield ""
        yield "Forecast:"
        yield from (folded(f"  {line}") for each in foretold for line in each.lines())
    for failure in event_log.of(events.InternalFailure):
        yield ""
        yield f"Failure inside stator, in {failure.where}: {failure.exception!r}; report: {failure.report_path}"


def _site(site: TopCallSite) -> Iterator[str]:
    yield f"{_shown(site.filename)}:{site.lineno}  {site.name}, {_count(site.calls, 'call')}"
    if site.too_many:
        yield "  a new module in almost every call: it runs as plain Python"
        return
    found, won = site.medians, site.won
    if found is None or won is None:
        yield f"  first call {duration(site.first)}; too few calls with the same shapes to say what was won or lost"
        return
    plain, compiled = found
    yield f"  first call {duration(site.first)}, then plain {duration(plain)}, compiled {duration(compiled)} (medians)"
    among = " (the shapes that were timed most)" if len(site.by_shapes) > 1 else ""
    yield f"  {plain / compiled:.2f} times as fast{among}; {_balance(site, won)}"
    if plain > compiled:
        yield f"  that is paid back after {int(site.recording / (plain - compiled)) + 1:,} calls"


def _balance(site: TopCallSite, won: float) -> str:
    word = "won" if won >= 0 else "lost"
    return f"{duration(abs(won))} {word} so far, {duration(site.recording)} spent on recording and compiling"


def _forecasts(calls: TopCalls, event_log: EventLog) -> Iterator[Forecast]:
    """Of each function that was called often enough."""
    misses = event_log.of(events.CacheMiss)
    for handle in calls.handles:
        own = [miss for miss in misses if miss.name == handle.name]
        found = forecast(handle.name, own, handle.calls, handle.recordings, handle.limit)
        if found is not None:
            yield found


def _misses(event_log: EventLog) -> list[events.CacheMiss]:
    return [miss for miss in event_log.of(events.CacheMiss) if miss.why is not None and miss.records]


def _rows(calls: TopCalls) -> list[dict[str, Any]]:
    """For the page."""
    rows = []
    for site in calls.sites.values():
        plain, compiled = site.medians or (None, None)
        note = "a new module in almost every call: not compiled" if site.too_many else ""
        if plain is not None and compiled is not None and site.won is not None:
            note = _balance(site, site.won)
        rows.append(
            {
                "place": f"{_shown(site.filename)}:{site.lineno}",
                "name": site.name,
                "calls": site.calls,
                "first": site.first,
                "plain": plain,
                "compiled": compiled,
                "note": note,
            }
        )
    return rows


def _shown(path: str) -> str:
    """Relative to where we are, if it lies there."""
    here = os.path.join(os.getcwd(), "")
    return path.removeprefix(here)


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
