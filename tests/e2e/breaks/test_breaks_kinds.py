"""Every kind of break: its id, its words, the user's line, a graph on either side, and replays of both."""

from __future__ import annotations

import datetime
import importlib.util
import io
import logging
import os
import pathlib
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
import torch
from harness import World, check, rand

import stator
from stator.errors import REASONS

PATH = pathlib.Path(tempfile.gettempdir()) / f"breaks-{os.getpid()}.txt"
LOCK = threading.Lock()
ARRAY = np.arange(4.0)
GENERATOR = torch.Generator()
LOUD = logging.getLogger("tests.breaks.loud")
QUIET = logging.getLogger("tests.breaks.quiet")


@pytest.fixture(autouse=True, scope="module")
def a_file():
    PATH.write_text("text")
    torch.save(torch.ones(2), PATH.with_suffix(".pt"))
    yield
    PATH.unlink()
    PATH.with_suffix(".pt").unlink()


@pytest.fixture(autouse=True)
def loggers():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    LOUD.addHandler(handler)
    LOUD.propagate = QUIET.propagate = False
    LOUD.setLevel(logging.INFO)
    QUIET.addHandler(logging.StreamHandler(stream))
    QUIET.setLevel(logging.ERROR)
    yield SimpleNamespace(stream=stream, handler=handler)
    for logger in (LOUD, QUIET):
        logger.handlers.clear()


@stator.disable(reason="too clever")
def disabled(x):
    return helper(x) + 1


def helper(x):
    return x * 3


def leaf(x):
    return x.detach().clone().requires_grad_()


# name: (id, what the reason names, the breaking statement)
KINDS = {
    "print": ("call-print", "print", lambda x: print("text", 1)),
    "print a tensor": ("call-print", "print", lambda x: print(x)),
    "print nothing": ("call-print", "print", lambda x: print()),
    "open": ("call-open", "open", lambda x: open(PATH)),  # noqa: SIM115
    "os.listdir": ("call-open", "os.listdir", lambda x: os.listdir(PATH.parent)),
    "os.path.exists": ("call-open", "os.path.exists", lambda x: os.path.exists(PATH)),
    "os.getcwd": ("call-os", "os.getcwd", lambda x: os.getcwd()),
    "Path.read_text": ("call-open", "pathlib.Path.read_text", lambda x: PATH.read_text()),
    "Path.exists": ("call-open", "pathlib.Path.exists", lambda x: PATH.exists()),
    "Path.stat": ("call-open", "pathlib.Path.stat", lambda x: PATH.stat()),
    "subprocess": ("call-process", "subprocess.run", lambda x: subprocess.run(["true"])),
    "socket": ("call-socket", "socket.gethostname", lambda x: socket.gethostname()),
    "logging": ("call-logging", "logging.Logger.info", lambda x: LOUD.info("message %s", 1)),
    "logger.log": ("call-logging", "logging.Logger.log", lambda x: LOUD.log(logging.WARNING, "message")),
    "logger.error": ("call-logging", "logging.Logger.error", lambda x: QUIET.error("message")),
    "time.time": ("time", "time.time", lambda x: time.time()),
    "time.perf_counter": ("time", "time.perf_counter", lambda x: time.perf_counter()),
    "time.sleep": ("time", "time.sleep", lambda x: time.sleep(0)),
    "datetime.now": ("time", "datetime.datetime.now", lambda x: datetime.datetime.now()),
    "random.random": ("random", "random.random", lambda x: random.random()),
    "random.randint": ("random", "random.randint", lambda x: random.randint(1, 6)),
    "random.shuffle": ("random", "random.shuffle", lambda x: random.shuffle([1, 2, 3])),
    "secrets": ("random", "secrets.token_hex", lambda x: secrets.token_hex(4)),
    "uuid": ("random", "uuid.uuid4", lambda x: uuid.uuid4()),
    "torch.manual_seed": ("rng-state", "torch.manual_seed", lambda x: torch.manual_seed(3)),
    "generator": ("rng-state", "torch.Generator.manual_seed", lambda x: GENERATOR.manual_seed(3)),
    "np.add": ("numpy", "numpy.add", lambda x: np.add(ARRAY, 2)),
    "np.mean": ("numpy", "numpy.mean", lambda x: np.mean([1.0, 2.0])),
    "np.array": ("numpy", "numpy.array", lambda x: np.array([1.0])),
    "array method": ("numpy", "numpy.ndarray.sum", lambda x: ARRAY.sum()),
    "array operator": ("numpy", "ndarray", lambda x: ARRAY + 1),
    "tensor.numpy": ("tensor-numpy", "numpy", lambda x: x.numpy()),
    "tensor.item": ("tensor-item", "tensor.item()", lambda x: x[0].item()),
    "tensor.tolist": ("tensor-tolist", "tensor.tolist()", lambda x: x.tolist()),
    "int": ("tensor-scalar", "int", lambda x: int(x[0])),
    "float": ("tensor-scalar", "float", lambda x: float(x[0])),
    "bool": ("tensor-bool", "truth value", lambda x: bool(x[0] > 0)),
    "text of a tensor": ("tensor-text", "text of a tensor", lambda x: str(x)),
    "data_ptr": ("tensor-data-ptr", "data_ptr", lambda x: x.data_ptr()),
    "nonzero": ("dynamic-shape-op", "nonzero", lambda x: x.nonzero()),
    "backward": ("backward", "grad_fn", lambda x: leaf(x).sum().grad_fn),
    "torch.save": ("call-save", "torch.save", lambda x: torch.save(x, PATH.with_suffix(".pt"))),
    "torch.load": ("call-save", "torch.load", lambda x: torch.load(PATH.with_suffix(".pt"))),
    "lock": ("threads", "threading.lock.locked", lambda x: LOCK.locked()),
    "thread": ("thread-local", "threading.get_ident", lambda x: threading.get_ident()),
    "eval": ("exec-eval", "eval", lambda x: eval("1 + 1")),
    "unknown C function": ("unknown-callable", "sys.getsizeof", lambda x: sys.getsizeof(1)),
    "graph_break": ("user-graph-break", "stator.graph_break()", lambda x: stator.graph_break()),
    "graph_break with a reason": ("user-graph-break", "(I said so)", lambda x: stator.graph_break("I said so")),
    "disabled": ("disabled-function", "disabled: too clever", lambda x: disabled(x)),
}


def program(statement):
    def fn(x):
        y = x + 1
        statement(x)
        return y * 2

    return fn


@pytest.mark.parametrize("name", KINDS)
def test_a_break(name):
    id, what, statement = KINDS[name]
    fn = program(statement)
    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    seen = check(lambda: World(fn=fn), calls, expect="miss hit hit hit", graphs=2, breaks=[id])
    (why,) = seen.world.fn.stator.break_reasons
    assert what in why.reason
    assert why.hint == REASONS[id].hint
    assert why.filename == __file__
    assert why.lineno == statement.__code__.co_firstlineno
    assert f'"{name}"' in why.line
    assert [frame.name for frame in why.user_stack][-2:] == ["program.<locals>.fn", "<lambda>"]


@pytest.mark.parametrize("name", KINDS)
def test_under_fullgraph_it_raises_the_same_text(name):
    fn = program(KINDS[name][2])
    (why,) = stator.explain(fn)(rand(1)).break_reasons
    compiled = stator.compile(fn, backend="eager", fullgraph=True)
    for seed in range(3):
        with pytest.raises(stator.errors.GraphBreakError) as caught:
            compiled(rand(seed))
        assert why.reason in str(caught.value)
        assert caught.value.why.lineno == why.lineno


# ---- kinds that need more than one expression ---------------------------------------------------


def test_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\nthree\none\ntwo\nthree\n"))

    def fn(x):
        y = x + 1
        text = input("your name: ")
        return y * 2, text

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["call-input"])


def test_a_file_is_written_and_read(tmp_path):
    def fn(x, path):
        y = x + 1
        with open(path, "a") as file:
            file.write("line\n")
        z = y * 2
        with open(path) as file:
            lines = file.readlines()
        return z - 3, lines

    def world():
        path = tmp_path / "lines.txt"
        path.write_text("")
        return World(fn=fn, path=str(path))

    calls = [lambda w, seed=seed: w.fn(rand(seed), w.path) for seed in range(3)]
    seen = check(world, calls, expect="miss hit hit", graphs=3, observe=lambda w: pathlib.Path(w.path).read_text())
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"call-open"}


def test_standard_output_and_standard_error_directly():
    def fn(x):
        y = x + 1
        sys.stdout.write("out\n")
        y = y * 2
        sys.stderr.write("")
        return y - 1

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=3)


def test_a_warning_is_given_each_time():
    def fn(x):
        y = x + 1
        warnings.warn("careful", stacklevel=1)
        return y * 2

    compiled = stator.compile(fn, backend="eager")
    for seed in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert torch.equal(compiled(rand(seed)), (rand(seed) + 1) * 2)
        assert [(str(w.message), w.filename, w.lineno) for w in caught] == [
            ("careful", __file__, fn.__code__.co_firstlineno + 2)
        ]
    assert [why.id for why in compiled.stator.break_reasons] == ["call-warn"]
    assert (compiled.stator.hits, compiled.stator.plain, len(compiled.stator.graphs)) == (2, 0, 2)


def test_a_warning_that_is_an_error():
    def fn(x):
        y = x + 1
        try:
            warnings.warn("careful", UserWarning, stacklevel=1)
        except UserWarning as error:
            return y * 2, str(error)
        return y * 3, ""

    compiled = stator.compile(fn, backend="eager")
    for action in ("ignore", "error", "ignore", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            result, text = compiled(rand(1))
            assert torch.equal(result, (rand(1) + 1) * (2 if action == "error" else 3))
            assert text == ("careful" if action == "error" else "")


@pytest.mark.parametrize("how", ["breakpoint", "pdb.set_trace"])
def test_a_debugger(how, monkeypatch):
    stopped = []
    spec = importlib.util.find_spec("pdb")
    pdb = importlib.util.module_from_spec(spec)  # a copy of its own: pytest has replaced functions of the other
    spec.loader.exec_module(pdb)
    monkeypatch.setattr(sys, "breakpointhook", lambda *args, **kwargs: stopped.append(sys._getframe(1).f_code.co_name))
    monkeypatch.setattr(pdb.Pdb, "set_trace", lambda self, frame=None: stopped.append(frame.f_code.co_name))

    def with_breakpoint(x):
        y = x + 1
        breakpoint()
        return y * 2

    def with_pdb(x):
        y = x + 1
        pdb.set_trace()
        return y * 2

    fn = with_breakpoint if how == "breakpoint" else with_pdb
    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["call-debugger"])
    assert len(stopped) == 6
    assert set(stopped) == {fn.__name__}


def test_random_numbers_come_from_the_program_s_own_generator():
    def fn(x):
        y = x + random.random()
        k = random.randint(0, 1)
        return y * k, random.choice(["a", "b", "c"])

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(6)]
    check(lambda: World(fn=fn), calls, expect=None)  # also compares the generator's state after each call


def test_numpy_in_and_out():
    def fn(x):
        y = x + 1
        array = y.numpy()
        other = np.sqrt(np.abs(array)) + array.mean()
        return torch.from_numpy(other) * 2, float(other.max())

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    seen = check(lambda: World(fn=fn), calls, expect=None, unreplayed=["numpy", "tensor-numpy", "unknown-callable"])
    assert {"tensor-numpy", "numpy"} <= {why.id for why in seen.world.fn.stator.break_reasons}


def test_an_array_shares_its_memory_with_the_tensor():
    def fn(x):
        y = x + 1
        array = y.numpy()
        y.mul_(2)
        array[0] = 7.0
        return y * 3, array.tolist()

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]
    check(lambda: World(fn=fn), calls, expect=None)


def test_a_library_of_tables(tmp_path, monkeypatch):
    """pandas is not installed for the tests: a package of that name, loaded from another folder, is the same to us."""
    package = tmp_path / "pandas"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import mean\n")
    (package / "inner.py").write_text("def mean(values):\n    return sum(values) / len(values)\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("pandas")
    try:

        def fn(x):
            y = x + 1
            mean = module.mean([1.0, 2.0])
            return y * mean

        calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
        seen = check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["pandas"])
        (why,) = seen.world.fn.stator.break_reasons
        assert why.reason == "call to pandas.mean (pandas)"
        assert why.line == "mean = module.mean([1.0, 2.0])"
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "pandas"]:
            del sys.modules[name]


def test_a_library_of_arrays():
    def fn(x):
        y = x + 1
        count = scipy.special.comb(5, 2, exact=True)
        return y * count

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    seen = check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=2, breaks=["scipy"])
    (why,) = seen.world.fn.stator.break_reasons
    assert why.line == "count = scipy.special.comb(5, 2, exact=True)"


def test_a_backward_pass_through_a_graph_from_outside():
    def fn(loss):
        loss.backward()

    def call(seed):
        def run(w):
            loss = (w.weight * rand(seed)).sum()
            w.fn(loss)
            return w.weight.grad

        return run

    seen = check(lambda: World(fn=fn, weight=rand(9, requires_grad=True)), [call(1), call(2), call(3)], expect=None)
    assert {why.id for why in seen.world.fn.stator.break_reasons} == {"backward"}


def test_a_training_step_inside():
    def fn(x, weight):
        loss = (x * weight).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
        return loss.detach()

    def world():
        return World(fn=fn, weight=rand(9, requires_grad=True))

    calls = [lambda w, seed=seed: w.fn(rand(seed), w.weight) for seed in range(4)]
    check(world, calls, expect="miss hit hit hit", breaks=[])


def test_saving_inside_writes_the_value_of_the_moment(tmp_path):
    path = tmp_path / "tensor.pt"

    def fn(x):
        y = x + 1
        torch.save(y, path)
        y.mul_(2)
        return y + torch.load(path)

    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect=None, observe=lambda w: torch.load(path))


QUIET_CALLS = {
    "debug": lambda x: QUIET.debug("a tensor: %s", x),
    "info": lambda x: QUIET.info("text"),
    "warning": lambda x: QUIET.warning("text", exc_info=True),
    "log": lambda x: QUIET.log(logging.DEBUG, "text"),
    "isEnabledFor": lambda x: QUIET.isEnabledFor(logging.DEBUG) and QUIET.debug(str(x)),
    "getLogger": lambda x: logging.getLogger("tests.breaks.quiet").info("text"),
    "adapter": lambda x: logging.LoggerAdapter(QUIET, {}).info("text"),
}


@pytest.mark.parametrize("name", QUIET_CALLS)
def test_a_message_below_the_level_is_no_break(name):
    fn = program(QUIET_CALLS[name])
    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=1, breaks=[])


def test_a_message_that_no_handler_wants_is_no_break(loggers):
    LOUD.handlers[:] = [loggers.handler, logging.NullHandler()]  # pytest has put some of its own there
    loggers.handler.setLevel(logging.CRITICAL)
    fn = program(lambda x: LOUD.warning("text"))
    calls = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(3)]
    check(lambda: World(fn=fn), calls, expect="miss hit hit", graphs=1, breaks=[])
    assert loggers.stream.getvalue() == ""


def test_a_change_of_level_is_noticed(loggers):
    def fn(x):
        y = x + 1
        QUIET.info("heard")
        return y * 2

    compiled = stator.compile(fn, backend="eager")
    heard = 0
    for level in (logging.ERROR, logging.ERROR, logging.INFO, logging.INFO, logging.ERROR, logging.INFO):
        QUIET.setLevel(level)
        heard += level == logging.INFO
        assert torch.equal(compiled(rand(level)), (rand(level) + 1) * 2)
        assert loggers.stream.getvalue() == "heard\n" * heard
    assert (compiled.stator.hits, compiled.stator.plain) == (4, 0)
    assert len(compiled.stator.graphs) == 3  # one without the break, two around it


def test_logging_turned_off_as_a_whole_is_noticed(loggers):
    def fn(x):
        y = x + 1
        LOUD.info("heard")
        return y * 2

    compiled = stator.compile(fn, backend="eager")
    try:
        for number, off in enumerate([False, True, True, False, True]):
            logging.disable(logging.CRITICAL if off else logging.NOTSET)
            compiled(rand(number))
    finally:
        logging.disable(logging.NOTSET)
    assert loggers.stream.getvalue() == "heard\n" * 2


def test_messages_are_formatted_with_the_values_of_the_call(loggers):
    def fn(x, name):
        y = x + 1
        LOUD.info("%s has %d", name, x.shape[0])
        return y * 2

    calls = [lambda w, seed=seed: w.fn(rand(seed), "ab"[seed % 2]) for seed in range(4)]
    check(lambda: World(fn=fn), calls, expect=None)
    assert loggers.stream.getvalue() == "a has 4\nb has 4\n" * 4
