"""Numbers, truths and texts: of which type, with which sign, as which object they come out again."""

from __future__ import annotations

import operator

import torch
from harness import RECORDED, World, check, rand

import stator


def check_calls(world, *arguments, expect=None, unreplayed=()):
    """Call `w.fn(x, *more)` with these further arguments, one tuple per call."""
    calls = [lambda w, seed=seed, more=more: w.fn(rand(seed), *more) for seed, more in enumerate(arguments)]
    return check(world, calls, expect=expect, unreplayed=unreplayed)


class Box:
    def __init__(self, n):
        self.n = n


def test_a_changed_number_in_what_was_taken_out_of_its_container():
    """By the time it is read, no way leads to it from outside."""

    def popped(x, boxes):
        return x * boxes.pop().n

    def deleted(x, boxes):
        box = boxes[0]
        del boxes[0]
        return x * box.n

    def emptied(x, boxes):
        (box,) = boxes
        boxes.clear()
        return x * box.n

    for fn in (popped, deleted, emptied):
        calls = [lambda w, n=n: w.fn(rand(n), [Box(n)]) for n in (3, 4, 5, 6, 3)]
        check(lambda fn=fn: World(fn=fn), calls, expect=None)


def test_a_bool_at_the_left_of_a_number_that_changes():
    """Both are ints, and neither class is the other's: the left one answers."""

    def minus(x, flag, n):
        return x * (flag - n), flag - n, flag + n, flag * n, flag // n, flag % n, flag | n

    def compared(x, flag, n):
        return (x if flag < n else -x), flag == n, flag != n, flag >= n

    def in_containers(x, flag, n):
        return x * max(flag, n), [flag] == [n], sum([n, 1], flag), sorted([flag, n, 3])

    def by_operator(x, flag, n):
        return x * operator.sub(flag, n), operator.lt(flag, n)

    for fn in (minus, compared, in_containers, by_operator):
        arguments = [(True, 3), (True, 4), (True, 5), (False, 6), (True, 1), (False, 2), (True, 7)]
        check_calls(lambda fn=fn: World(fn=fn), *arguments, unreplayed=RECORDED)


def test_a_bool_and_a_global_number_take_turns():
    def world():
        n = -1

        def fn(x, flag):
            nonlocal n
            n = flag - n
            return x + 1, n

        return World(fn=fn)

    check_calls(world, (2,), (2,), (2,), (True,), (True,), (True,), (False,), (True,))


def test_a_truth_is_no_number_where_identities_are_compared():
    numbers = {"n": 7}

    def fn(x, flag):
        if numbers["n"] is True:
            return x, flag
        numbers["n"] = 1
        return x * 2, flag

    compiled = stator.compile(fn, backend="eager", dynamic=True)
    for flag in (True, True, True, False, True):
        assert compiled(rand(1), flag)[1] is flag
    assert compiled.stator.hits == 2


def test_an_argument_that_becomes_a_number_behind_a_break():
    """Two empty places were one object, and the guards say so."""

    def fn(x, y, flag):
        kept = flag
        stator.graph_break()
        y += 2
        return x * 2, y, kept

    makers = (lambda: (torch.arange(1), []), lambda: (7, 1), lambda: ([], []), lambda: (8, 1), lambda: (2.5, 2.5))
    calls = [lambda w, seed=seed, make=make: w.fn(rand(seed), *make()) for seed, make in enumerate(makers)]
    check(lambda: World(fn=fn), calls, expect=None, raises=TypeError)


def test_whole_numbers_are_added_to_behind_inference_mode():
    """All sizes are plain there, whatever was a symbol before."""

    def make():
        tensors = [torch.tensor(1), torch.tensor(2)]

        def fn(x):
            with torch.inference_mode():
                tensors[0] * 2
            for t in tensors:
                t.add_(1)
            return x + tensors[0]

        return fn, tensors

    (plain, wanted), (fn, found) = make(), make()
    compiled = stator.compile(fn, backend="eager", dynamic=True, options={"suppress_errors": False})
    for n in (2, 3, 4, 3):
        assert torch.equal(compiled(rand(n, n)), plain(rand(n, n))) and found == wanted
    assert compiled.stator.hits == 1


def test_an_infinite_number_among_those_that_change():
    def fn(x, f):
        x -= x
        return 300 + torch.tensor(f)

    for backend in ("eager", "aot_eager"):
        compiled = stator.compile(fn, backend=backend, dynamic=True, options={"suppress_errors": False})
        for n, f in ((2, 3.25), (3, float("inf")), (4, 2.5), (5, float("-inf")), (3, float("inf")), (7, 2.5)):
            x, y = (torch.arange(n * 4).reshape(n, 4) for _ in range(2))
            assert torch.equal(compiled(x, f), fn(y, f)) and torch.equal(x, y)
        assert compiled.stator.hits == 4


def test_the_sign_of_a_zero_that_becomes_a_tensor():
    for backend in ("eager", "aot_eager"):
        compiled = stator.compile(lambda x, f: (x * 2, torch.tensor(f)), backend=backend, dynamic=True)
        for n, f in enumerate((-0.0, -0.0, 2.0, -0.0, -0.0, 0.0, -0.0, 0.0, 2.0), start=2):
            found = compiled(rand(n, n), f)
            assert torch.equal(found[0], rand(n, n) * 2) and found[1].signbit() == torch.tensor(f).signbit()
            assert found[1] == f


def test_a_number_that_a_caller_has_on_its_stack_at_a_break():
    """The index and what was read are one object in the first call."""

    def world():
        w = World(numbers=[5, 1])

        def inner(x):
            stator.graph_break()
            return x.shape[0], 1

        def fn(x):
            w.numbers[1] += inner(x)[0]
            return x * w.numbers[1], [w.numbers[1], inner(x)]

        w.fn = fn
        return w

    check(world, [lambda w, seed=seed: w.fn(rand(seed, 3)) for seed in range(6)], expect=None)


def test_a_text_that_is_made_of_a_text_behind_a_break():
    def world():
        w = World(written=[], of=1)

        def printed(x, n):
            stator.graph_break()
            w.written.append(f"{n}{w.of}")
            return x * 2

        def returned(x, n):
            stator.graph_break()
            return f"{n}-{x.dim()}"

        def handed_on(x, n):
            text = f"<{n}>"
            stator.graph_break()
            return x + 1, f"{text}{text}", [f"{text}!"]

        w.fn = lambda x, n: (printed(x, n), returned(x, n), handed_on(x, n))
        return w

    numbers = (7, 2.5, 7, 7, 8, 9, 2.5, "text", "other", 300, 301, 2.5)
    calls = [lambda w, seed=seed, n=n: w.fn(rand(seed), n) for seed, n in enumerate(numbers)]
    check(world, calls, expect=None)
