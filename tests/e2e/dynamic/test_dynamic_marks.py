"""`mark_dynamic`, `mark_static`, `dynamic=True` and `dynamic=False`; what cannot be kept is an error with a line."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest
import torch
from harness import rand

import stator
from stator.errors import SpecializationError
from stator.watch.models.user_hints import has_marks, marks_of


class Compiled:
    """A compiled function whose every call is compared with the function's own."""

    def __init__(self, fn, **options):
        self.fn, self.compiled = fn, stator.compile(fn, backend="eager", **options)

    def __call__(self, *args):
        expected = self.fn(*args)
        found = self.compiled(*args)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert type(found) is type(expected)

    @property
    def recordings(self):
        return self.compiled.stator.recordings


def marked(size, dim=0, **bounds):
    x = rand(size, size, 3)
    stator.mark_dynamic(x, dim, **bounds)
    return x


def double(x):
    return x * 2 + x.shape[0]


def test_a_marked_size_is_a_symbol_at_once():
    run = Compiled(double)
    for x in (marked(4), rand(1, 7, 3), rand(2, 9, 3), marked(5)):
        run(x)
    assert run.recordings == 1


def test_sizes_of_nothing_and_of_one_are_never_symbols():
    run = Compiled(double)
    for x in (marked(4), rand(1, 1, 3), rand(2, 0, 3), rand(3, 5, 3), rand(4, 1, 3)):
        run(x)
    assert run.recordings == 3


def test_bounds_are_guards():
    run = Compiled(double)
    run(marked(4, min=3, max=8))
    for size in (3, 8, 5):
        run(rand(size, size, 3))
    assert run.recordings == 1
    run(rand(1, 9, 3))
    assert run.recordings == 2
    lines = [line.split("  #")[0] for entry in run.compiled.stator.entries for line in entry.guards.lines()]
    assert "x.shape[0] >= 3" in lines and "x.shape[0] <= 8" in lines


def test_dimensions_from_the_end():
    run = Compiled(lambda x: x * 2)
    x = rand(1, 4, 5)
    stator.mark_dynamic(x, -1)
    for size in (5, 7, 9):
        run(x if size == 5 else rand(size, 4, size))
    assert run.recordings == 1


def test_a_marked_size_that_can_only_be_one_number():
    def fn(x):
        y = x * 2
        return sum([y[i] for i in range(x.shape[0])])

    line = inspect.getsourcelines(fn)[1] + 2
    with pytest.raises(SpecializationError, match=r"dimension 0 of x can only be 4") as caught:
        stator.compile(fn, backend="eager")(marked(4))
    assert f"{__file__}:{line}" in str(caught.value)


def test_a_marked_size_that_must_equal_a_constant():
    def fn(x, y):
        return x + y

    with pytest.raises(SpecializationError, match=r"dimension 0 of x can only be 4"):
        stator.compile(fn, backend="eager")(marked(4), rand(1, 4, 3))


def test_a_backend_that_needs_the_number():
    def backend(graph, examples):
        assert int(examples[0].shape[0]) == 4
        return graph.forward

    with pytest.raises(SpecializationError, match="dimension 0 of x can only be 4"):
        stator.compile(double, backend=backend)(marked(4))


def test_an_unmarked_size_that_can_only_be_one_number_is_no_error():
    run = Compiled(lambda x: sum([x[i] for i in range(x.shape[0])]))
    for size in (4, 5, 6, 4, 5):
        run(rand(size, size, 3))
    assert run.recordings == 3


def test_static_sizes_are_recordings_of_their_own():
    run = Compiled(double)
    for size in (4, 5, 6, 5):
        x = rand(size, size, 3)
        stator.mark_static(x, 0)
        run(x)
    assert run.recordings == 3


def test_static_in_all_dimensions():
    run = Compiled(double, dynamic=True)
    for size in (4, 5, 6, 5):
        x = rand(size, size, 3)
        stator.mark_static(x)
        run(x)
    assert run.recordings == 3


def test_the_last_mark_counts():
    x = rand(4, 4, 3)
    stator.mark_static(x)
    stator.mark_dynamic(x, 0)
    run = Compiled(double)
    for each in (x, rand(1, 7, 3)):
        run(each)
    assert run.recordings == 1
    stator.reset()
    stator.mark_static(x, 0)
    run = Compiled(double)
    for each in (x, rand(1, 7, 3)):
        run(each)
    assert run.recordings == 2


def test_marks_die_with_their_tensor():
    x = marked(4)
    compiled = stator.compile(double, backend="eager")
    compiled(x)
    compiled(x)
    assert has_marks()
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


def test_bad_arguments():
    x = rand(1, 4, 3)
    for error, call in (
        (TypeError, lambda: stator.mark_dynamic([1], 0)),
        (TypeError, lambda: stator.mark_static("x", 0)),
        (IndexError, lambda: stator.mark_dynamic(x, 2)),
        (IndexError, lambda: stator.mark_dynamic(x, -3)),
        (IndexError, lambda: stator.mark_dynamic(x, "0")),
        (IndexError, lambda: stator.mark_static(x, 5)),
        (ValueError, lambda: stator.mark_dynamic(x, 0, min=5)),
        (ValueError, lambda: stator.mark_dynamic(x, 0, max=3)),
        (ValueError, lambda: stator.mark_dynamic(x, 0, min=5, max=3)),
        (TypeError, lambda: stator.mark_dynamic(x, 0, 5)),
        (TypeError, lambda: stator.mark_dynamic(x, 0, min="a")),
        (TypeError, lambda: stator.compile(double, dynamic="yes")),
        (TypeError, lambda: stator.mark_static(None)),
    ):
        with pytest.raises(error):
            call()
    assert marks_of(x) == ({}, set())


def test_dynamic_from_the_first_call():
    run = Compiled(lambda x, y: (x @ y) / x.shape[0], dynamic=True)
    for n, m, k in ((2, 3, 4), (5, 6, 7), (9, 2, 3), (4, 4, 4)):
        run(rand(n, n, m), rand(m, m, k))
    assert run.recordings == 1


def test_dynamic_leaves_numbers_to_be_seen_first():
    run = Compiled(lambda x, n: x * n, dynamic=True)
    for n in (2, 3, 4, 5):
        run(rand(n, n + 1), n)
    assert run.recordings == 2


def test_never_dynamic():
    run = Compiled(lambda x, n: x * n, dynamic=False)
    for size, n in ((2, 1), (3, 1), (4, 1), (4, 2), (2, 1), (4, 2)):
        run(rand(size, size), n)
    assert run.recordings == 4


def test_never_dynamic_with_a_mark():
    run = Compiled(double, dynamic=False)
    for x in (marked(4), rand(1, 5, 3), rand(2, 4, 3)):
        run(x)
    assert run.recordings == 2


def test_options_say_the_same():
    run = Compiled(double, options={"dynamic_shapes": False})
    for size in (4, 5, 6):
        run(rand(size, size, 3))
    assert run.recordings == 3
    run = Compiled(double, options={"assume_static_by_default": False})
    for size in (4, 5, 6):
        run(rand(size, size, 3))
    assert run.recordings == 1


def test_reset_forgets_what_changed():
    run = Compiled(double)
    for size in (4, 5):
        run(rand(size, size, 3))
    stator.reset()
    before = run.recordings
    run(rand(1, 6, 3))
    lines = [line for entry in run.compiled.stator.entries for line in entry.guards.lines()]
    assert any("[6, 3]" in line for line in lines) and run.recordings == before + 1
