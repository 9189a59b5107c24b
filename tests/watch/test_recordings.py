"""A recording that does not fit together is refused: `Recording.validate`, which runs in all tests (`conftest.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import stator
import stator.record
from stator.recording import Checks, Construct, Effect, Fresh, Output, Outside, Recording


def recorded(fn: Callable[..., Any], *args: Any, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """The recording of a call, as the backend's graph is about to be compiled."""
    found: list[Recording] = []
    build = stator.record.build
    with monkeypatch.context() as patch:
        patch.setattr(
            stator.record, "build", lambda recording, *rest: [found.append(recording), build(recording, *rest)][1]
        )
        stator.compile(fn, backend="eager")(*args)
    return found[0]


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    def fn(x, w):
        w["seen"] = x
        return [x + w["number"], x.sum() if x.shape[0] > 2 else x]

    return recorded(fn, torch.ones(4), {"number": 2.5, "seen": None}, monkeypatch=monkeypatch)


def test_a_recording_is_plain_data(recording):
    """Nothing in it is a function of ours: it can be kept, shown and compared without running anything."""
    recording.validate()
    functions = [f.name for f in dataclasses.fields(recording) if callable(getattr(recording, f.name))]
    assert functions == ["graph"]  # a module


def _without_graph(r: Recording) -> None:
    r.graph = None


def _without_an_output(r: Recording) -> None:
    graph = fx.Graph()
    for index in range(len(r.inputs)):
        graph.placeholder(f"x{index}")
    graph.output(())
    r.graph = fx.GraphModule({}, graph)


def _with_checks(r: Recording) -> None:
    assert r.graph is not None
    r.checks = Checks(r.graph, (0,), (True,), (True,))


MISTAKES: dict[str, tuple[str, Callable[[Recording], Any]]] = {
    "an origin in another place": ("has the number", lambda r: r.origins.reverse()),
    "an origin too few": ("is not there", lambda r: r.origins.pop()),
    "a parent that is missing": ("has the number", lambda r: r.origins.pop(0)),
    "an input that is missing": ("is not there", lambda r: r.inputs.append(1000)),
    "an input too many": ("a graph with", lambda r: r.inputs.append(0)),
    "no graph": ("outputs of no graph", _without_graph),
    "another graph": ("a graph with", _without_an_output),
    "checks of another graph": ("not those of their graph", _with_checks),
    "an output too many": ("a graph with", lambda r: setattr(r, "outputs", r.outputs + 1)),
    "a result that is no output": ("is not there", lambda r: setattr(r, "result", Output(7))),
    "a result that nobody makes": ("is not there", lambda r: setattr(r, "result", Fresh(7))),
    "a part that is missing": ("is not there", lambda r: r.constructs.append(Construct("list", list, [Outside(99)]))),
    "an effect on what is missing": ("is not there", lambda r: r.effects.append(Effect("item", 99, "a", Output(0)))),
    "a relation of what is missing": (
        "is not there",
        lambda r: r.relations.append(stator.support.symbolic_exprs.Relation((">", ("size", 99, 0), 2), None)),
    ),
    "what is put back and no input": ("is no input", lambda r: r.restores.append(r.effects[0].target)),
    "storages of no inputs": ("storages", lambda r: setattr(r, "storages", ((0, 9),))),
    "a comparison with what comes later": (
        "not known by then",
        lambda r: r.origins[0].checks.append(stator.recording.Check(stator.recording.Fact.SAME, 3, None)),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_does_not_fit_together_is_refused(recording, name):
    words, spoil = MISTAKES[name]
    kept = list(recording.origins)  # parents are not kept by their children's list alone
    spoil(recording)
    with pytest.raises(ValueError, match=words):
        recording.validate()
    assert kept
