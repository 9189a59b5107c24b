"""A fault of stator's own: the program gets eager's result, one warning, and a report is saved."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
from harness import rand

import stator
from stator import _native
from stator.replay import emit, guards
from stator.watch.finish import conclude
from stator.watch.objects import attributes, ledger
from stator.watch.observe import handlers, recorder
from stator.watch.tensors import leaves, tensor_mode


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = 2.0
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.append(1)
        with torch.autocast("cpu", enabled=False):
            y = self.linear(x) * self.scale
        return {"y": y, "rows": [row.sum() for row in y]}


# Every stage between a call and its replay, by a function that all recordings of the program above go through.
FAULTS = {
    "a handler": (handlers.HANDLERS, _native.ATTR),
    "a call's handler": (handlers.HANDLERS, _native.CALL),
    "entering a function": (recorder.CALLBACKS, "enter"),
    "a call of a module": (recorder.CALLBACKS, "transparent"),
    "a leaf": (leaves.Leaves, "enter_autocast"),
    "the ledger": (ledger.Ledger, "read"),
    "an attribute": (attributes.Attributes, "read"),
    "before an operation": (tensor_mode.TensorTracer, "_input"),
    "after an operation": (tensor_mode.TensorTracer, "_register"),
    "preparing": (recorder.Recorder, "prepare"),
    "the end": (conclude, "at_return"),
    "the recorder": (recorder.Recorder, "finish"),
    "emitting": (emit._Emitter, "make"),
    "guards": (guards.EntryGuards, "__init__"),
}


def broken(*args: object, **kwargs: object) -> None:
    raise ZeroDivisionError("a fault put in on purpose")


@pytest.mark.parametrize("place", FAULTS)
def test_a_fault_in(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    torch.manual_seed(0)
    plain, model = Scaled(), Scaled()
    model.load_state_dict(plain.state_dict())
    broken.__code__ = broken.__code__.replace(co_filename=recorder.__file__)  # as one of stator's own frames
    where, name = FAULTS[place]
    if isinstance(where, dict):
        monkeypatch.setitem(where, name, broken)
    else:
        monkeypatch.setattr(where, name, broken)
    compiled = stator.compile(model, backend="eager", options={"debug_dir": os.fspath(tmp_path)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(5):
            x = rand(seed, 3, 4)
            wanted, got = plain(x), compiled(x)
            assert torch.equal(wanted["y"], got["y"])
            assert all(map(torch.equal, wanted["rows"], got["rows"]))
    assert plain.calls == model.calls == [1] * 5
    faults = [str(w.message) for w in caught if "stator failed" in str(w.message)]
    assert faults and all("a fault put in on purpose" in fault for fault in faults)
    reports = list(Path(tmp_path).glob("report-*"))
    assert reports and "ZeroDivisionError" in reports[0].read_text()
    assert compiled.stator.hits == 0


def test_without_suppression_the_fault_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conclude, "at_return", broken)
    compiled = stator.compile(lambda x: x + 1, backend="eager", options={"suppress_errors": False})
    with pytest.raises(stator.errors.InternalError, match="a fault put in on purpose") as caught:
        compiled(rand(1))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
