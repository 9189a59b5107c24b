"""What an event log notes, and when."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import torch

import stator
from stator import events
from stator.report.event_log import EventLog
from stator.report.page_data import timeline


def test_it_notes_what_happens_inside_of_it_only() -> None:
    event_log = EventLog()
    with event_log:
        events.emit(events.CacheMiss("first"))
    events.emit(events.CacheMiss("outside"))
    with event_log:
        events.emit(events.CacheMiss("second"))
    assert [miss.name for miss in event_log.of(events.CacheMiss)] == ["first", "second"]
    assert event_log.of(events.GraphBreak) == []


def test_it_does_not_listen_to_what_comes_with_every_call() -> None:
    with EventLog():
        assert not events.listening(events.CacheHit)
        assert not events.listening(events.FrameWatched)


def test_replays_are_timed_where_that_is_asked_for() -> None:
    def square(x: Any) -> Any:
        return (x * x).sum()

    compiled = stator.compile(square, backend="aot_eager")
    event_log = EventLog()
    with event_log:
        for number in range(5):
            compiled(torch.ones(3, requires_grad=True)).backward()
            if number == 3:
                with event_log.timing():
                    compiled(torch.ones(3))  # has no gradient: recorded by itself
                    compiled(torch.ones(3, requires_grad=True))
        assert not events.listening(events.CacheHit)
    compiled(torch.ones(3, requires_grad=True)).backward()
    first, second = (event_log.ran(event.entry) for event in event_log.of(events.Recorded))
    assert (
        first.times == 6 and len(first.timed) == 1 and len(first.backward) == 4
    )  # plain in the call that was recorded
    assert first.total == 6 * first.median > 0
    assert second == (0, (), ()) and second.median == second.total == 0


def test_a_chronicle_of_all_replays() -> None:
    with EventLog(replays=True) as event_log:
        compiled = stator.compile(lambda x: x.sin(), backend="eager")
        for _ in range(4):
            compiled(torch.ones(2))
    (event,) = event_log.of(events.Recorded)
    ran = event_log.ran(event.entry)
    assert ran.times == len(ran.timed) == 3 and ran.total == sum(ran.timed)


def test_an_exception_ends_it_too() -> None:
    listened = events.listening(events.CacheMiss)
    with pytest.raises(ZeroDivisionError), EventLog():
        raise ZeroDivisionError
    assert events.listening(events.CacheMiss) == listened


def test_the_time_of_rendering_is_not_told() -> None:
    def slow() -> str:
        time.sleep(0.2)
        return "text"

    with EventLog() as event_log:
        start = time.perf_counter()
        events.emit(events.BackwardDerived(0.0, slow, slow, slow))
        events.emit(events.BackendCompiled("f", "b", time.perf_counter() - start))
    derived, compiled = event_log.noted
    assert event_log.of(events.BackwardDerived)[0].forward() == "text"
    assert compiled.end - compiled.start < 0.1 and compiled.end - derived.end < 0.1


def test_texts_are_those_of_the_moment() -> None:
    texts = ["before"]
    with EventLog() as event_log:
        events.emit(events.BackwardDerived(0.0, lambda: texts[0], lambda: texts[0], lambda: texts[0]))
    texts[0] = "after"
    (event,) = event_log.of(events.BackwardDerived)
    assert {event.joint(), event.forward(), event.backward()} == {"before"}


def test_stages_of_a_call_with_a_break() -> None:
    def two(x: Any) -> Any:
        y = x.sin()
        stator.graph_break()
        return y.cos()

    with EventLog() as event_log:
        compiled = stator.compile(two, backend="aot_eager")
        for seed in range(3):
            compiled(torch.full((3,), float(seed), requires_grad=True))
    stages = timeline(event_log.noted)
    assert [stage["stage"] for stage in stages if stage["stage"] != "forward and backward"] == [
        "watch",
        "backend",
        "guards and replay",
        "backend",
        "guards and replay",
    ]
    assert len(stages) == 7
    backends = [stage for stage in stages if stage["stage"] == "backend"]
    for inner in (stage for stage in stages if stage["stage"] == "forward and backward"):
        assert any(outer["start"] <= inner["start"] and inner["end"] <= outer["end"] for outer in backends)
    for before, after in itertools.pairwise(stages):
        assert 0 <= before["start"] <= after["start"]
