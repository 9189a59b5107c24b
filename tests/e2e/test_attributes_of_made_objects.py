"""Objects made inside: which attributes they take, and who finds them afterwards."""

from __future__ import annotations

import collections
import gc
import typing

from harness import World, check, rand

FOUR = [lambda w, seed=seed: w.fn(rand(seed)) for seed in range(4)]


def test_the_factory_is_part_of_the_text_of_a_defaultdict():
    def fn(x):
        def made():
            return 43

        table = collections.defaultdict(made)
        table[13]
        return repr(table) == f"defaultdict({made!r}, {{13: 43}})", x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_attributes_of_an_ordered_dict_made_inside():
    def fn(x):
        made = collections.OrderedDict(a=1)
        made.x = [2]
        print("here")
        return made.x, list(made), x + 1

    check(lambda: World(fn=fn), FOUR, expect=None)


def test_classes_that_let_nothing_be_set():
    def world():
        class Mine:
            n = 1

        def fn(x):
            texts = []
            for write in (
                lambda: object.__setattr__(str, "foo", 42),
                lambda: object.__setattr__(Mine, "n", 42),
                lambda: object.__delattr__(Mine, "n"),
                lambda: setattr(str, "foo", 42),
                lambda: setattr(Mine, "m", 2),
            ):
                try:
                    write()
                except TypeError as error:
                    texts.append(str(error))
            return x * Mine.n, texts

        return World(fn=fn, Mine=Mine)

    check(world, FOUR, expect=None, raises=())


def test_variables_of_types_made_inside():
    def fn(x):
        t, p = typing.TypeVar("t"), typing.ParamSpec("p")
        nested = list[typing.Callable[p, t]]
        return x + 1, nested.__parameters__[0] is p, nested.__parameters__[1] is t

    check(lambda: World(fn=fn), FOUR, expect=None, unreplayed="frames")


def test_the_collector_finds_what_the_program_left():
    """Nothing of a recorder, or of a segment that is over, is in a cycle that waits for it."""

    def world():
        def fn(x):
            gc.collect()
            ring: list = []
            ring.append(ring)
            del ring
            first = gc.collect()
            return first, gc.collect(), x + 1

        def call(w, seed):
            while gc.collect():  # what other tests left, and what comes of that
                pass
            return w.fn(rand(seed))

        return World(fn=fn, call=call)

    check(world, [lambda w, seed=seed: w.call(w, seed) for seed in range(4)], expect=None)
