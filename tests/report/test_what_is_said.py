"""Messages name the program: its arguments, its lines; and they say what is going to happen."""

from __future__ import annotations

import copy
import functools
import logging
import pickle
import warnings

import pytest
import torch
from harness import rand
from torch import nn

import stator


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, ids, mask=None):
        return self.linear(self.embedding(ids))


USERS = f"{__file__}:{Net.forward.__code__.co_firstlineno + 1}"


def test_a_recompilation_names_the_argument_and_the_line_of_the_user(caplog):
    caplog.set_level(logging.INFO, "stator")
    net = stator.compile(Net(), backend="eager", dynamic=False)
    stator.set_logs(recompiles=True)
    for length in (2, 3, 4):
        net(torch.zeros(length, dtype=torch.long))
    stator.set_logs()
    told = [record.getMessage() for record in caplog.records if "Recompiling" in record.getMessage()]
    assert len(told) == 2
    assert told[0].startswith("Recompiling Net: ids.size: expected (2,), found (3,)\n    needed by ")
    assert told[0].splitlines()[1].endswith(": return self.linear(self.embedding(ids))")
    assert str(net.stator.last_miss).startswith(f"ids.size: expected (3,), found (4,) (needed by {USERS}, in ")


def test_recompiling_is_said_where_something_is_recompiled(caplog):
    def fn(x, text):
        return x + len(text)

    caplog.set_level(logging.INFO, "stator")
    compiled = stator.compile(fn, backend="eager", options={"cache_size_limit": 2})
    stator.set_logs(recompiles=True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for count in range(6):
            assert torch.equal(compiled(rand(1), "a" * count), rand(1) + count)
    with stator.set_stance("eager_on_recompile"):
        compiled(rand(1), "other")
    stator.set_logs()
    told = [record.getMessage() for record in caplog.records if "Recompiling" in record.getMessage()]
    assert len(told) == 1 == len(warned) and compiled.stator.recordings == 2


class Loud(nn.Module):
    def forward(self, x):
        print("loud")
        return x + 1


class Around(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def wrapped(fn):
    @functools.wraps(fn)
    def call(*args, **kwargs):
        return fn(*args, **kwargs)

    return call


class Callable:
    @wrapped
    def __call__(self, x):
        return Loud()(x)


@pytest.mark.parametrize("make", [Loud, lambda: Around(Loud()), Callable, lambda: functools.partial(wrapped(Loud()))])
def test_breaks_in_wrappers_name_the_line_of_the_user(make):
    compiled = stator.compile(make(), backend="eager")
    for seed in range(3):
        assert torch.equal(compiled(rand(seed)), rand(seed) + 1)
    (reason,) = {(why.filename, why.line) for why in compiled.stator.break_reasons}
    assert reason == (__file__, 'print("loud")')
    for why in compiled.stator.break_reasons:
        assert not [frame for frame in why.user_stack if "<stator" in frame.filename]


def test_a_break_in_torch_names_who_called_it():
    compiled = stator.compile(functools.partial(torch.save, torch.zeros(1)), backend="eager")
    compiled("/dev/null")
    assert {why.filename for why in compiled.stator.break_reasons} <= {__file__, "<built-in>"}


def test_anomaly_mode_shows_the_program():
    def fn(x):
        y = x.log() * 0
        return y.sqrt().sum()

    compiled = stator.compile(fn)
    for _ in range(3):
        x = torch.full((2,), -1.0, requires_grad=True)
        with warnings.catch_warnings(record=True) as warned, torch.autograd.detect_anomaly():
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError, match="SqrtBackward0"):
                compiled(x).backward()
        (text,) = [str(w.message) for w in warned if "Traceback of forward call" in str(w.message)]
        assert "y.sqrt()" in text and "/stator/" not in text
    assert compiled.stator.recordings == 0
    for _ in range(3):
        compiled(torch.ones(2, requires_grad=True)).backward()
    assert (compiled.stator.recordings, compiled.stator.hits) == (1, 2)


def test_a_module_compiled_in_place_has_a_handle():
    net = stator.compile_(Net(), backend="eager")
    ids = torch.arange(3)
    for _ in range(4):
        result = net(ids)
    assert (net.stator.recordings, net.stator.hits, len(net.stator.graphs)) == (1, 3, 1)
    for other in (copy.deepcopy(net), copy.copy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(ids), result)
    assert copy.deepcopy(net).stator is None  # a plain module
    assert list(net.state_dict()) == list(Net().state_dict())
    assert net.stator.hits == 3
    net.stator.reset()
    assert torch.equal(net(ids), result) and len(net.stator.entries) == 1
