"""State outside of Python's own objects: modules, the process, files, frames, arrays of another library."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import logging
import os
import re
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from harness import World, check, check_change, rand

import stator

# ---- modules and the environment ----------------------------------------------------------------


def test_a_module_with_its_own_getattr():
    def world():
        module = types.ModuleType("lazy")
        values = {"scale": 2.0}
        module.__getattr__ = values.__getitem__
        return World(fn=lambda x: x * module.scale, values=values, set=functools.partial(setattr, module))

    check_change(world, lambda w: w.values.update(scale=3.0), restore=lambda w: w.set("scale", 4.0))


def test_an_import_is_redirected():
    def world():
        sys.modules["stator_test_settings"] = types.SimpleNamespace(scale=2.0)

        def fn(x):
            import stator_test_settings

            return x * stator_test_settings.scale

        return World(fn=fn)

    def change(_):
        sys.modules["stator_test_settings"] = types.SimpleNamespace(scale=3.0)

    try:
        check_change(world, change)
    finally:
        del sys.modules["stator_test_settings"]


def test_a_builtin_function_is_replaced_for_a_while():
    """stator's own code is written with it; it must neither go wrong nor be noticed."""

    def world():
        length = builtins.len

        def fn(x, replace):
            if replace:
                builtins.len = lambda items: 7
            try:
                found = len(items), sorted(items), [len(part) for part in (items, items)]
            finally:
                builtins.len = length
            return x * found[0], found, len(items)

        items = [3, 1]
        return World(fn=fn, items=items)

    calls = [lambda w, i=i, replace=replace: w.fn(rand(i), replace) for i, replace in enumerate([0, 1, 0, 1, 0, 1])]
    done = check(world, calls, expect=None, graphs=1)
    assert done.outcomes == ["miss", "plain", "hit", "plain", "hit", "plain"]


def test_a_builtin_function_is_replaced_before_a_call():
    def world():
        items = [3, 1]
        return World(fn=lambda x: x * len(items) + sum(items), items=items)

    def replaced(w):
        former, builtins.len = builtins.len, lambda items: 7
        try:
            return w.fn(rand(3))
        finally:
            builtins.len = former

    plainly = [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2))]
    check(world, [replaced, *plainly, replaced, *plainly], expect="plain miss hit plain hit hit", graphs=1)


def test_builtins_that_may_be_replaced_are_not_used_by_stator_itself():
    package = Path(stator.__file__).parent
    table = re.search(r"LEFT_OUT\[\] = \{(.*?)NULL", (package / "_native" / "builtins.c").read_text(), re.DOTALL)
    left_out = set(re.findall(r'"(\w+)"', table[1])) - {"_", "print", "open"}
    assert {"divmod", "input"} <= left_out
    for path in package.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        assert not left_out & {node.id for node in nodes if isinstance(node, ast.Name)} - own, path


def test_environment_variables(monkeypatch):
    def world():
        os.environ["STATOR_TEST_SCALE"] = "2"
        return World(fn=lambda x: x * float(os.environ.get("STATOR_TEST_SCALE", "1")))

    monkeypatch.setenv("STATOR_TEST_SCALE", "2")
    check_change(
        world,
        lambda _: os.environ.update(STATOR_TEST_SCALE="3"),
        restore=lambda _: os.environ.pop("STATOR_TEST_SCALE"),
    )


def test_switches_of_torch():
    def world():
        torch.use_deterministic_algorithms(False)
        return World(fn=lambda x: x * (3 if torch.are_deterministic_algorithms_enabled() else 2))

    try:
        check_change(
            world,
            lambda _: torch.use_deterministic_algorithms(True),
            restore=lambda _: torch.use_deterministic_algorithms(False),
        )
    finally:
        torch.use_deterministic_algorithms(False)


def test_number_of_threads():
    before = torch.get_num_threads()

    def world():
        torch.set_num_threads(1)
        return World(fn=lambda x: x * torch.get_num_threads())

    try:
        check_change(world, lambda _: torch.set_num_threads(2), restore=lambda _: torch.set_num_threads(1))
    finally:
        torch.set_num_threads(before)


def test_numpy_arrays_and_scalars_from_outside():
    def world():
        table = np.array([2.0, 3.0])
        return World(fn=lambda x: x * float(table[0]) + table.shape[0] + int(np.int64(3)), table=table)

    check_change(world, lambda w: w.table.__setitem__(0, 5.0))


def test_a_numpy_array_as_argument():
    def fn(x, scale):
        return x * torch.as_tensor(scale)

    check(
        lambda: World(fn=fn),
        [lambda w, n=n: w.fn(rand(1), np.float32([n] * 4)) for n in (1, 2, 3)],
        expect=None,
    )


# ---- effects outside of Python's objects --------------------------------------------------------


def test_warnings_and_logs_are_repeated():
    caught = []

    class Keep(logging.Handler):
        def emit(self, record):
            caught.append(record.getMessage())

    logger = logging.getLogger("a_program")
    handler = Keep()
    logger.addHandler(handler)

    def fn(x):
        logger.warning("shape %s", tuple(x.shape))
        warnings.warn("from the program", RuntimeWarning, stacklevel=1)
        return x * 2

    def call(seed, *shape):
        def run(w):
            caught.clear()
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = w.fn(rand(seed, *shape))
            return result, [str(warning.message) for warning in seen], list(caught)

        return run

    try:
        check(lambda: World(fn=fn), [call(1, 4), call(2, 4), call(3, 5)], expect=None)
    finally:
        logger.removeHandler(handler)


def test_files_are_read_and_written(tmp_path):
    path = tmp_path / "log.txt"

    def world():
        path.write_text("")
        return World(fn=fn)

    def fn(x):
        with open(path, "a") as file:
            file.write(f"{x.shape[0]}\n")
        return x * len(path.read_text())

    check(
        world,
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
        observe=lambda _: path.read_text(),
    )


def test_frames_locals_and_globals_are_inspected():
    def fn(x):
        here = inspect.currentframe().f_code.co_name
        names = sorted(locals())
        return x * len(names), here, names, sys._getframe().f_lineno > 0, "rand" in globals()

    check(lambda: World(fn=fn), [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None, unreplayed="frames")


def test_identities_and_hashes():
    marker = object()

    def fn(x, thing):
        return x * 2, id(thing) == id(marker), hash(thing) == hash(marker), thing in {marker: 1}

    check(
        lambda: World(fn=fn),
        [lambda w: w.fn(rand(1), marker), lambda w: w.fn(rand(2), marker), lambda w: w.fn(rand(3), object())],
        expect=None,
    )


def test_a_tensor_is_printed_into_a_string():
    check(
        lambda: World(fn=lambda x: (x * 2, f"{x}", repr(x.sum()), str(x.shape))),
        [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)],
        expect=None,
    )


def test_tensors_compared_and_searched():
    def fn(x, items):
        same = [item is x for item in items]
        return x * 2, same, x in items[:1], torch.equal(x, items[1]), bool((x == items[0]).all())

    def call(seed):
        def run(w):
            x = rand(seed)
            return w.fn(x, [x, rand(seed + (seed > 1))])

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect=None)
