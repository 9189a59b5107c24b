"""Keys of dicts: written, taken out, in order; tuples as keys; what a growing list keeps."""

from __future__ import annotations

import torch
from harness import World, check, rand

import stator


class Box:
    def __init__(self, n):
        self.n = n


def check_tables(fn, *tables):
    """Call `w.fn(x, table)` with a new table each time, and compare what becomes of it."""

    def call(seed, table):
        def run(w):
            w.table = dict(table)
            return w.fn(rand(seed), w.table)

        return run

    check(lambda: World(fn=fn), [call(seed, table) for seed, table in enumerate(tables)], expect=None)


def test_a_key_that_is_written_and_taken_out_again():
    """Whether it was there before was not looked at: afterwards it is not, in either case."""

    def fn(x, table):
        table["a"] = x
        return table.pop("a", None) + 1

    there, not_there = {"a": 1, "b": 2}, {"b": 2}
    check_tables(fn, there, not_there, there, not_there)
    check_tables(fn, not_there, there, not_there, there)


def test_a_key_that_is_taken_out_behind_a_write_to_a_tensor():
    """A replay that fails after its graph has written cannot be made good."""

    def fn(x, table):
        table["a"] = x
        x.add_(1)
        del table["a"]
        return x * 2

    check_tables(fn, {"a": 1}, {}, {"a": 1}, {})


def test_new_keys_lie_in_the_order_in_which_they_were_written():
    def written(x, table):
        table["q"] = 1
        table["p"] = 2
        return x + 1

    def moved(x, table):
        table["q"] = 1
        table["p"] = 2
        table.pop("q")
        table["q"] = 3
        return x + 1

    def attributes(x, table):
        box = table["box"]
        box.second = 1
        box.first = 2
        return x + 1

    tables = [{}, {"p": 0}, {"q": 0}, {"p": 0, "q": 0}, {"q": 0, "p": 0}]
    for fn in (written, moved):
        for first in range(len(tables)):
            check_tables(fn, *tables[first:], *tables[:first])

    def call(w, names):
        box = Box(1)
        for name in names:
            setattr(box, name, 0)
        w.fn(rand(1), {"box": box})
        return list(vars(box).items())

    for names in (["first"], []):
        calls = [lambda w, n=n: call(w, n) for n in (names, [], ["second"], ["first", "second"], ["first"])]
        check(lambda: World(fn=attributes), calls, expect=None)


def test_a_list_that_only_grows_keeps_the_rest_of_it():
    """Its first item is a number that changes, so the second recording puts a symbol in its place."""

    def fn(x, numbers):
        numbers.append("end")
        return x * numbers[0], numbers

    lists = ([1], [3, 1], [1], [5, 6, 7], [3, 2])
    calls = [lambda w, seed=seed, given=given: w.fn(rand(seed), [*given]) for seed, given in enumerate(lists)]
    check(lambda: World(fn=fn), calls, expect="miss miss hit hit hit")


def test_tuples_of_classes_and_modules_are_new_in_every_call():
    """Unless they come from outside. (Tuples of numbers and texts may be constants of the code.)"""

    def world():
        w = World(pair=(torch, 1), kept=[])

        def fn(x, given):
            w.kept.append((torch.float32, "a"))
            return x * 2, (given, 4), [(int, (str, 1))], w.pair, given, (given,)

        w.fn = fn
        return w

    def call(w, seed, given):
        results = w.fn(rand(seed), given)
        return results, results[3] is w.pair, results[4] is given, [a is b for a in w.kept for b in w.kept]

    def replace(w, seed):
        w.pair = (torch, 1)
        return call(w, seed, torch)

    calls = [lambda w, seed=seed: [call(w, seed, torch), call(w, seed, (int, 2))] for seed in range(3)]
    check(world, [*calls, lambda w: replace(w, 4), *calls], expect="miss hit hit hit hit hit hit", graphs=2)


def test_a_tuple_of_classes_that_a_dict_lacks():
    """What is looked up in the dict is not what lies there."""

    def world():
        w = World(table={})

        def fn(x, given):
            key = (int, given)
            if key not in w.table:
                stator.graph_break()
                w.table[key] = x * 2
            return w.table[key], key

        w.fn = fn
        return w

    calls = [lambda w, n=n: w.fn(rand(n), torch.float32 if n % 3 else n) for n in range(7)]
    clear = [lambda w: w.table.clear()]
    check(world, [*calls, *clear, *calls, *clear, *calls], expect=None)


def test_a_key_that_cannot_be_one():
    def world():
        table = {1: 1}

        def fn(x, key, change):
            if change:
                table[1] = table[1] + 1
            try:
                return table.get(key), x + 1
            except TypeError as error:
                try:
                    return table[key], x + 2
                except TypeError:
                    return str(error), x + 3

        return World(fn=fn, table=table)

    def keys():
        return [1], (1, [1]), slice(1, 2), (1, slice(2)), {}, 1

    for change in (False, True):
        calls = [lambda w, n=n, change=change: w.fn(rand(n), keys()[n // 3], change) for n in range(3 * len(keys()))]
        check(world, calls, expect=None)
