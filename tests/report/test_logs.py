"""Events become lines of the `stator.*` loggers, of which `set_logs`, options and the environment choose."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NoReturn

import pytest

from stator import events
from stator.errors import break_reason
from stator.options import options
from stator.replay.guard_text import Miss
from stator.report.logs import LOGS, SPECIALISED, parse, set_logs


@pytest.fixture(autouse=True)
def _logs_off() -> Iterator[None]:
    set_logs()
    yield
    set_logs()


def never() -> NoReturn:
    raise AssertionError("rendered although nobody reads it")


def recorded() -> events.Recorded:
    return events.Recorded(
        name="mse",
        graph=lambda: "def forward(self, l_x_): ...",
        guards=lambda: "type(x) is Tensor",
        seconds=0.0123,
        probes=17,
        bytecode=lambda: "LOAD_FAST x",
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.name, record.getMessage()) for record in caplog.records]


def test_nothing_is_rendered_or_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    events.emit(events.Recorded("mse", never, never, 0.1, bytecode=never))
    events.emit(events.BackendCompiled("mse", "eager", 0.1, never))
    events.emit(events.GraphBreak(break_reason("call-print", never.__code__)))
    assert lines(caplog) == []


def test_what_is_symbolic_and_what_is_not(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(recompiles=True)
    event = dataclasses.replace(
        recorded(), symbolic=("x.shape[0]", "n"), specialised=("k can only be 3, due to a.py:7",)
    )
    events.emit(event)
    assert lines(caplog) == [
        ("stator.recompiles", "Recorded mse for any x.shape[0], n"),
        ("stator.recompiles", f"Specialised mse: k can only be 3, due to a.py:7\n    {SPECIALISED}"),
    ]


def test_hot_events_have_no_reader_by_default() -> None:
    hot = (events.CacheHit, events.BackwardRan, events.FrameWatched, events.RanPlain)
    assert [events.listening(kind) for kind in hot] == [False] * 4
    with options.patch(verbose=True):
        assert [events.listening(kind) for kind in hot] == [True] * 4
    assert [events.listening(kind) for kind in hot] == [False] * 4


def test_graph_code_alone(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(graph_code=True)
    events.emit(recorded())
    assert lines(caplog) == [
        (
            "stator.graph_code",
            "FX Graph:\n# mse: recorded in 12.3 ms, 17 probes\ndef forward(self, l_x_): ...",
        )
    ]


def test_a_graph_break_tells_function_reason_place_line_and_hint(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(graph_breaks=True)
    reason = break_reason("call-print", never.__code__)
    events.emit(events.GraphBreak(reason))
    assert lines(caplog) == [
        (
            "stator.graph_breaks",
            "Graph break in never: call to print (side effect)  [call-print]\n"
            f'  File "{__file__}", line {never.__code__.co_firstlineno}, in never\n'
            "    def never() -> NoReturn:\n"
            "    ^^^^^^^^^^^^^^^^^^^^^^^^\n"
            f"  hint: {reason.hint}",
        )
    ]


def test_recompiles_name_the_guard_but_first_calls_are_none(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(recompiles=True)
    events.emit(events.CacheMiss("mse"))
    events.emit(events.CacheMiss("mse", "x.shape[0]: expected 2, found 3"))
    assert lines(caplog) == [("stator.recompiles", "Recompiling mse: x.shape[0]: expected 2, found 3")]


def test_recompiles_show_the_line_that_needs_the_guard(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(recompiles=True)
    line = never.__code__.co_firstlineno
    events.emit(events.CacheMiss("mse", Miss("n", "2", "3", f"{__file__}:{line}")))
    place = f"{os.path.relpath(__file__)}:{line}"
    text = f"Recompiling mse: n: expected 2, found 3\n    needed by {place}: def never() -> NoReturn:"
    assert lines(caplog) == [("stator.recompiles", text)]


def test_a_later_choice_replaces_an_earlier_one(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(graph_code=True)
    set_logs(guards=True)
    events.emit(recorded())
    assert [name for name, _ in lines(caplog)] == ["stator.guards"]


def test_all(caplog: pytest.LogCaptureFixture) -> None:
    set_logs(all=True)
    events.emit(recorded())
    assert [name for name, _ in lines(caplog)] == ["stator.graph_code", "stator.guards", "stator.bytecode"]


def test_options_turn_logs_on_too(caplog: pytest.LogCaptureFixture) -> None:
    with options.patch(print_guards=True, output_code=True):
        events.emit(recorded())
        events.emit(events.BackendCompiled("mse", "inductor", 0.5, lambda: "kernel"))
    events.emit(recorded())
    assert lines(caplog) == [
        ("stator.guards", "Guards:\n# mse: recorded in 12.3 ms, 17 probes\ntype(x) is Tensor"),
        ("stator.output_code", "Output Code:\n# mse: compiled by inductor in 500.0 ms\nkernel"),
    ]


def test_log_level_info_shows_the_short_lines(caplog: pytest.LogCaptureFixture) -> None:
    with options.patch(log_level="INFO"):
        events.emit(events.Recorded("mse", never, never, 0.1))
        events.emit(events.CacheMiss("mse", "n: expected 1, found 2"))
    assert [name for name, _ in lines(caplog)] == ["stator.recompiles"]


def test_verbose_shows_hits_misses_frames_and_blocks(caplog: pytest.LogCaptureFixture) -> None:
    with options.patch(verbose=True):
        events.emit(events.CacheMiss("mse"))
        events.emit(events.FrameWatched(never.__code__))
        events.emit(recorded())
        events.emit(events.CacheHit("mse"))
        events.emit(events.CacheHit("mse", 2, 0.0015))
        events.emit(events.BackwardRan("mse, graph 2", 0.00012))
        events.emit(events.RanPlain("gen", "it is a generator function"))
    heads = [message.split("\n")[0] for _, message in lines(caplog)]
    assert heads == [
        "[Cache Miss] mse: no recording yet",
        f"CONVERT_FRAME never {os.path.relpath(__file__)}:{never.__code__.co_firstlineno}",
        "FX Graph:",
        "Guards:",
        "Bytecode:",
        "[Cache Hit] mse",
        "[Cache Hit] mse: graph 2 ran in 1.5 ms",
        "[Backward] mse, graph 2: ran in 0.120 ms",
        "[Plain] gen: it is a generator function",
    ]


def test_a_level_set_by_hand_holds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="stator.graph_breaks"):
        events.emit(events.GraphBreak(break_reason("call-print", never.__code__)))
    assert [name for name, _ in lines(caplog)] == ["stator.graph_breaks"]


def test_a_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with options.patch(log_level="INFO"):
        try:
            never()
        except AssertionError as error:
            events.emit(events.InternalFailure("recording", error, "some/report.txt"))
    assert lines(caplog) == [("stator.failures", "Failure in recording, report: some/report.txt")]
    assert caplog.records[0].exc_info is not None


def test_a_reader_that_fails_does_not_disturb_the_program(caplog: pytest.LogCaptureFixture) -> None:
    leave = events.subscribe(lambda event: never(), events.CacheHit)
    try:
        events.emit(events.CacheHit("mse"))
    finally:
        leave()
    assert lines(caplog) == [("stator", "a reader of CacheHit failed")]


def test_readers_get_the_kinds_they_asked_for_until_they_leave() -> None:
    some: list[events.Event] = []
    every: list[events.Event] = []
    leave_some = events.subscribe(some.append, events.CacheHit)
    leave_every = events.subscribe(every.append)
    hit, miss = events.CacheHit("f"), events.CacheMiss("f")
    events.emit(hit)
    events.emit(miss)
    leave_some()
    leave_every()
    events.emit(hit)
    assert (some, every) == ([hit], [hit, miss])


# ------------------------------------------------------------------------------------------------ STATOR_LOGS


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        ("guards", {"guards"}),
        ("graph_code, +guards", {"graph_code", "guards"}),
        ("+all", set(LOGS)),
        ("all,-bytecode", set(LOGS) - {"bytecode"}),
    ],
)
def test_a_list_of_names_is_read(text: str, names: set[str]) -> None:
    assert parse(text) == names


def test_an_unknown_name_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(ValueError, match="no log 'graph_break'; the nearest is 'graph_breaks'"):
        parse("graph_break")


def run(program: str, logs: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STATOR_LOGS": logs}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)


EMIT = """
from stator import events
import stator.report.logs
events.emit(events.CacheMiss("mse", "n: expected 1, found 2"))
"""


def test_without_handlers_of_the_application_logs_go_to_standard_error() -> None:
    assert run(EMIT, "recompiles").stderr == "[stator.recompiles] Recompiling mse: n: expected 1, found 2\n"
    assert run(EMIT, "").stderr == ""


def test_an_application_that_configured_logging_gets_each_line_once() -> None:
    program = "import logging; logging.basicConfig(format='mine: %(message)s')\n" + EMIT
    assert run(program, "recompiles").stderr == "mine: Recompiling mse: n: expected 1, found 2\n"


def test_a_mistake_in_the_variable_warns_and_the_program_runs() -> None:
    ran = run(EMIT + "print('done')", "recompile")
    assert ran.stdout == "done\n"
    assert "STATOR_LOGS is ignored" in ran.stderr
    assert "nearest is 'recompiles'" in ran.stderr
