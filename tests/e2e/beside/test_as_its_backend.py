"""`torch.compile(model, backend="stator")`: TorchDynamo's graphs become our machine code."""

from __future__ import annotations

from importlib.metadata import entry_points

import torch
from torch import nn

from stator import events
from stator.backends import native


def test_it_is_found_by_name() -> None:
    (found,) = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "stator"]
    assert found.load() is native.compile_graph


def test_training() -> None:
    made: list[events.CodeGenerated] = []
    end = events.subscribe(made.append, events.CodeGenerated)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    other = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    other.load_state_dict(model.state_dict())
    compiled = torch.compile(other, backend="stator")
    for rows in (3, 5, 7, 9):
        x = torch.randn(rows, 8)
        for one in (model, other):
            one.zero_grad()
        one, two = model(x), compiled(x)
        torch.testing.assert_close(two, one)
        for result in (one, two):
            result.square().sum().backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad)
        for b, c in zip(model.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(c, b)
    end()
    assert [event.part for event in made][:2] == ["forward", "backward"] and len(made) <= 4
