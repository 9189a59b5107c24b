"""Changes that are easily lost or made twice: taken back, through slots and items at once, by C code, before a
failure.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict

import torch
from changing_worlds import leave, steps
from harness import World, check, rand


def test_a_key_that_is_taken_out_and_put_back_leaves_the_others_alone():
    """Only the key's place in the dict changes: what the other keys hold is not read."""

    def world():
        cache = {"a": 1, "b": 2, "c": [3]}

        def fn(x):
            cache.pop("a", None)
            cache["a"] = 4
            return x + 1

        return World(fn=fn, cache=cache, c=cache["c"])

    steps(
        world, leave, lambda w: w.cache.update(b=3), lambda w: w.cache.update(d=3, a=1), lambda w: w.cache.update(b=5)
    )


def test_an_attribute_that_is_deleted_and_set_again_leaves_the_others_alone():
    """The instance dict has another order afterwards, and other values where somebody else set them."""

    class Box:
        def __init__(self):
            self.tmp, self.other, self.items = 1, 2, [3]

    def world():
        box = Box()

        def fn(x):
            del box.tmp
            box.tmp = x * 2
            return box.tmp + 1

        return World(fn=fn, box=box, items=box.items)

    def change(w):
        w.box.__dict__ = {"tmp": 1, "other": 7, "items": w.items}

    steps(world, leave, lambda w: setattr(w.box, "other", 5), change, change, lambda w: setattr(w.box, "other", 8))


def test_writing_one_key_of_a_dict_with_objects_as_keys():
    """The keys stay the very objects they are."""

    class Key:
        pass

    def world():
        key = Key()
        table = {key: 1, "count": 0}

        def fn(x):
            table["count"] = 5
            return x + 1

        return World(fn=fn, key=key, table=table)

    steps(world, leave, leave, lambda w: w.table.update({w.key: 2}), leave)


def test_a_class_attribute_read_after_it_was_written():
    """What was just written is no value from outside."""

    def world():
        class Stats:
            last = None
            items = ()

        def fn(x):
            Stats.last = x * 2
            Stats.items = [x * 3]
            return Stats.last + Stats.items[0]

        return World(fn=fn, stats=Stats)

    steps(world, leave, leave, leave, leave)


def test_items_and_slots_of_one_object_are_both_changed():
    """A list with slots has two kinds of contents."""

    class Row(list):
        __slots__ = ("note",)

    def world():
        row = Row([1])

        def fn(x):
            row.note = x * 2
            row.append(x)
            return x + 1

        return World(fn=fn, row=row)

    steps(world, leave, leave, leave)


def test_slots_and_items_of_one_object_are_both_changed():
    """The same in the other order."""

    class Row(list):
        __slots__ = ("note",)

    def world():
        row = Row([1])

        def fn(x):
            row.append(x)
            row.note = x * 2
            return x + 1

        return World(fn=fn, row=row)

    steps(world, leave, leave, leave)


def test_slots_and_keys_of_one_object_are_both_changed():
    """And with a dict."""

    class Table(dict):
        __slots__ = ("note",)

    def world():
        table = Table(a=1)

        def fn(x):
            table["a"] = x
            table.note = x * 2
            return x + 1

        return World(fn=fn, table=table)

    steps(world, leave, leave, leave)


def test_a_method_that_writes_is_called_by_c_code():
    """`map` calls `log.append`, also when `map` was used harmlessly before."""

    def world():
        log = []

        def fn(x):
            sizes = list(map(abs, [1, -2]))
            list(map(log.append, sizes))
            return x * sizes[1]

        return World(fn=fn, log=log)

    steps(world, leave, leave, leave)


def test_a_method_that_reads_is_called_by_c_code():
    """`max(key=table.get)` reads the table, also when `max` was used harmlessly before."""

    def world():
        table = {"a": 1, "b": 2}

        def fn(x):
            most = max([1, 2])
            best = max(["a", "b"], key=table.get)
            return x * most, best

        return World(fn=fn, table=table)

    steps(world, leave, leave, lambda w: w.table.update(a=5), leave)


def test_an_iterator_from_outside_is_moved_by_c_code():
    """Through its bound `__next__`."""

    def world():
        numbers = iter(range(100))

        def fn(x):
            first = next(iter([1, 2]))
            take = numbers.__next__
            return x * first, list(itertools.islice(iter(take, None), 2))

        return World(fn=fn)

    steps(world, leave, leave, leave, unreplayed="unknown-callable")


def test_defaultdict_makes_entries_however_it_is_asked():
    """`operator.getitem` and `__getitem__` call the factory as a subscript does."""

    def world():
        table = defaultdict(list)

        def fn(x):
            operator.getitem(table, "a").append(1)
            table.__getitem__("b")
            return x + 1

        return World(fn=fn, table=table)

    steps(world, leave, lambda w: w.table.clear(), lambda w: w.table.clear(), lambda w: w.table.clear())


def test_getitem_of_a_defaultdict_makes_an_entry():
    """`__getitem__` alone."""

    def world():
        table = defaultdict(list)

        def fn(x):
            table.__getitem__("b")
            return x + 1

        return World(fn=fn, table=table)

    steps(world, leave, lambda w: w.table.clear(), lambda w: w.table.clear(), lambda w: w.table.clear())


def test_a_set_remembers_where_it_popped():
    """`pop` and `add` in turn go round a set."""

    def world():
        names = {1, 2, 3}

        def fn(x):
            name = names.pop()
            names.add(name)
            return x * name

        return World(fn=fn, names=names)

    steps(world, leave, leave, leave, leave)


def test_a_member_of_a_set_replaced_by_an_equal_one():
    """1 and True are equal, and not the same."""

    def world():
        names = {1}

        def fn(x):
            names.discard(1)
            names.add(True)
            return x + 1

        return World(fn=fn, names=names)

    def change(w):
        w.names.clear()
        w.names.add(1)

    steps(world, leave, change, change, change)


def test_effects_before_an_operation_that_raises_after_a_write():
    """The index is out of range in a later call: what came before it has happened."""

    def world():
        log = []

        def fn(x, index):
            x.add_(1)
            log.append(1)
            return x[index]

        return World(fn=fn, log=log, x=rand(1))

    def call(index):
        return lambda w: w.fn(w.x, torch.tensor([index]))

    check(
        world,
        [call(0), call(1), call(9), call(2)],
        expect=None,
        raises=IndexError,
        tracebacks=False,
    )


def test_the_program_handles_an_exception_that_only_a_replay_meets():
    """An operation fails for the data of a later call, and the program expects that."""

    def fn(x, index):
        x.add_(1)
        try:
            return x[index]
        except IndexError:
            return x * 0

    def world():
        return World(fn=fn, x=rand(1))

    def call(index):
        return lambda w: w.fn(w.x, torch.tensor([index]))

    check(world, [call(0), call(1), call(9), call(2)], expect=None)


def test_a_class_attribute_written_and_read_through_a_subclass():
    """What was just written is no value from outside, whoever inherits it."""

    def world():
        class Base:
            last = None

        class Child(Base):
            pass

        child = Child()

        def fn(x):
            Base.last = x * 2
            return child.last + Child.last

        return World(fn=fn, base=Base)

    steps(world, leave, leave, leave, leave)
