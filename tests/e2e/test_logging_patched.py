"""`logging` with other functions in the place of its own, as error trackers put them there."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from harness import World, check, rand

METHODS = ["callHandlers", "_log", "handle", "makeRecord", "findCaller", "isEnabledFor", "getEffectiveLevel", "info"]
PLACES = [*((logging.Logger, name) for name in METHODS), (logging.Filterer, "filter")]
PLACES += [(logging.LogRecord, "__init__"), (logging.NullHandler, "handle")]


APP = "app.of.tests"


def quiet_logger():
    """One whose messages nobody emits."""
    logger = logging.getLogger(APP)
    logger.handlers[:] = [logging.NullHandler()]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return logger


def patched(monkeypatch, owner, name, heard):
    function = getattr(owner, name)

    def instead(self, *args, **kwargs):
        if APP in (getattr(self, "name", None), args[:1] and args[0], getattr(args and args[0], "name", None)):
            heard.append(name)  # of the program's own messages, not of ours
        return function(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, instead)


def call(number):
    return lambda w: w.fn(rand(number))


@pytest.mark.parametrize(("owner", "name"), PLACES)
def test_a_patched_function_hears_of_every_message(monkeypatch, owner, name):
    def world():
        logger, heard = quiet_logger(), []
        monkeypatch.undo()  # that of the other world
        patched(monkeypatch, owner, name, heard)

        def fn(x):
            y = x + 1
            logger.info("one %s", 1)
            logger.log(logging.INFO, "two")
            return y * 2

        return World(fn=fn, heard=heard)

    check(world, [call(1), call(2), call(3), call(4)], expect=None)


@pytest.mark.parametrize(("owner", "name"), PLACES)
def test_a_function_is_patched_between_calls(monkeypatch, owner, name):
    def world():
        logger, heard = quiet_logger(), []

        def fn(x):
            y = x + 1
            logger.info("one %s", 1)
            return y * 2

        return World(fn=fn, heard=heard)

    def patch(w):
        with monkeypatch.context() as patching:
            patched(patching, owner, name, w.heard)
            return [w.fn(rand(3)), w.fn(rand(4))]

    check(world, [call(1), call(2), patch, call(5), call(6)], expect=None)


@pytest.mark.parametrize("name", METHODS[:-1])
def test_a_logger_has_a_method_of_its_own(name):
    def world():
        logger = quiet_logger()

        def fn(x):
            y = x + 1
            logger.info("one")
            return y * 2

        return World(fn=fn, heard=[])

    def patch(w):
        logger = logging.getLogger(APP)
        function, heard = getattr(logger, name), w.heard

        def instead(*args, **kwargs):
            heard.append(name)
            return function(*args, **kwargs)

        setattr(logger, name, instead)
        try:
            return [w.fn(rand(3)), w.fn(rand(4))]
        finally:
            delattr(logger, name)

    check(world, [call(1), call(2), patch, call(5)], expect=None)


def test_a_quiet_message_breaks_nothing():
    def world():
        logger = quiet_logger()

        def fn(x):
            logger.info("one")
            return x + logger.isEnabledFor(logging.DEBUG)

        return World(fn=fn)

    check(world, [call(1), call(2), call(3)], expect="miss hit hit", breaks=[])


BEFORE = """
import logging
heard, plain = [], logging.Logger.callHandlers
def patched(self, record):
    heard.append(record.name)
    return plain(self, record)
logging.Logger.callHandlers = patched
info = logging.Logger.info
def loud(self, *args):
    heard.append("info of " + self.name)
    return info(self, *args)
logging.Logger.info = loud
import torch, stator
logger = logging.getLogger("quiet")
logger.addHandler(logging.NullHandler())
logger.propagate = False
logger.setLevel(logging.INFO)
def fn(x):
    logger.info("hello")
    return x + 1
fast = stator.compile(fn, backend="eager")
for number in range(4):
    assert torch.equal(fast(torch.ones(2) * number), torch.ones(2) * number + 1)
print([name for name in heard if "quiet" in name] == ["info of quiet", "quiet"] * 4)
"""


def test_functions_that_were_patched_before_stator_was_imported():
    done = subprocess.run([sys.executable, "-c", BEFORE], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stdout + done.stderr
