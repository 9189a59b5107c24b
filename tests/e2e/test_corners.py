"""Programs found by reading the recorder for what it does not see; whether they replay does not matter here."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

import torch
from harness import World, check, rand
from torch import nn


def check_calls(fn, *arguments, raises=(), **state):
    """Call `fn(x, *more)` with these further arguments, one tuple per call, under the same seeds."""

    def call(seed, more):
        return lambda w: w.fn(rand(seed), *more)

    calls = [call(seed, more) for seed, more in enumerate(arguments)]
    return check(lambda: World(fn=fn, **state), calls, expect=None, raises=raises)


def steps(world, *changes, raises=(), observe=None):
    """One call of `w.fn(x)` after each change to the world."""

    def call(seed, change):
        def run(w):
            change(w)
            return w.fn(rand(seed))

        return run

    calls = [call(seed, change) for seed, change in enumerate(changes)]
    return check(world, calls, expect=None, raises=raises, observe=observe)


def leave(w):
    """Change nothing."""


# ---- effects -------------------------------------------------------------------------------------


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

    steps(world, leave, leave, leave)


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


# ---- reads that nobody sees ----------------------------------------------------------------------


SCALE = 2


def test_globals_reached_by_a_call():
    """`globals()` hands out a dict from outside."""

    def fn(x, names=globals):
        return x * names()["SCALE"]

    def world():
        set_scale(2)
        return World(fn=fn)

    def set_scale(value):
        globals()["SCALE"] = value

    steps(world, leave, leave, lambda w: set_scale(3), leave)


def test_globals_of_a_function_made_inside():
    """A fresh function has the globals of the module."""

    def fn(x):
        return x * (lambda: 0).__globals__["SCALE"]

    def world():
        set_scale(2)
        return World(fn=fn)

    def set_scale(value):
        globals()["SCALE"] = value

    steps(world, leave, leave, lambda w: set_scale(3), leave)


def settings_world(use):
    def world():
        class Settings:
            """One line."""

            scale = 2

        return World(fn=lambda x: x * use(Settings), settings=Settings)

    return world


def test_the_dict_of_a_class():
    """`vars(cls)` is a view of the class."""
    world = settings_world(lambda cls: vars(cls)["scale"])
    steps(world, leave, leave, lambda w: setattr(w.settings, "scale", 3), leave)


def test_iterating_the_dict_of_a_class():
    """Each name of the class, as configuration classes are read."""
    world = settings_world(lambda cls: sum(v for k, v in cls.__dict__.items() if not k.startswith("__")))
    steps(world, leave, leave, lambda w: setattr(w.settings, "more", 3), leave)


def test_the_name_of_a_class():
    """A class can be renamed."""
    world = settings_world(lambda cls: len(cls.__name__))
    steps(world, leave, leave, lambda w: setattr(w.settings, "__name__", "Other"), leave)


def test_the_annotations_of_a_class():
    """A dict of the class like any other."""

    def world():
        class Settings:
            scale: int = 2

        return World(fn=lambda x: x * len(Settings.__annotations__), settings=Settings)

    steps(world, leave, leave, lambda w: w.settings.__annotations__.update(more=int), leave)


def test_writing_to_the_annotations_of_a_class():
    """And so it can be changed."""

    def world():
        class Settings:
            scale: int = 2

        def fn(x):
            Settings.__annotations__["more"] = "int"
            return x + 1

        return World(fn=fn, settings=Settings)

    def clear(w):
        w.settings.__annotations__.clear()

    steps(world, leave, clear, clear, clear, observe=lambda w: w.settings.__annotations__)


def test_pairs_from_outside_in_a_list_made_inside():
    """`dict` reads two levels deep."""

    def fn(x, pair):
        return x * dict([pair])["k"]

    check_calls(fn, (["k", 2],), (["k", 2],), (["k", 3],), (["k", 2],))


def test_lists_from_outside_chained():
    """`chain.from_iterable` reads two levels deep."""

    def fn(x, numbers):
        for number in itertools.chain.from_iterable([numbers, [1]]):
            x = x * number
        return x

    check_calls(fn, ([2],), ([2],), ([3],), ([2],))


def test_lists_from_outside_on_a_heap():
    """A heap compares its items."""
    import heapq

    def fn(x, a, b):
        heap = [a, b]
        heapq.heapify(heap)
        return x * (2 if heap[0] is a else 3)

    check_calls(fn, ([1], [2]), ([1], [2]), ([3], [2]), ([1], [2]))


def test_a_list_from_outside_in_a_tuple_made_inside():
    """`in` compares."""

    def fn(x, a, b):
        return x * 2 if [1, 2] in (a, b) else x * 3

    check_calls(fn, ([1, 2], [3]), ([1, 2], [3]), ([1, 5], [3]), ([1, 2], [3]))


def test_an_object_in_a_tuple_made_inside():
    """`in` compares by identity first."""

    class Item:
        pass

    a, b = Item(), Item()

    def fn(x, one, other):
        return x * 2 if one in (other, None) else x * 3

    check_calls(fn, (a, b), (b, a), (a, a), (a, b))


def test_objects_compared_by_functions():
    """`operator.is_` and `operator.eq` ask for the identity as the operators do."""

    class Item:
        pass

    a, b = Item(), Item()

    def fn(x, one, other):
        return x * (2 if operator.is_(one, other) else 3) + (1 if operator.eq(one, other) else 0)

    check_calls(fn, (a, b), (b, a), (a, a), (a, b))


def test_the_position_of_an_object_in_a_list():
    """`index` stops at the first one that is the same."""

    class Item:
        pass

    a, b = Item(), Item()

    def fn(x, items, one):
        return x * items.index(one)

    check_calls(fn, ([a, b], b), ([a, b], b), ([b, b], b), ([a, b], b))


def test_lists_of_objects_compared():
    """Equal if they hold the same objects."""

    class Item:
        pass

    a, b = Item(), Item()

    def fn(x, one, other):
        return x * 2 if one == other else x * 3

    check_calls(fn, ([a], [b]), ([b], [a]), ([a], [a]), ([a], [b]))


def test_a_class_registered_with_an_abstract_one():
    """`isinstance` gives another answer afterwards."""
    import abc

    def world():
        class Shape(abc.ABC):  # noqa: B024
            pass

        class Circle:
            pass

        circle = Circle()
        return World(
            fn=lambda x: x * 2 if isinstance(circle, Shape) else x * 3, register=lambda: Shape.register(Circle)
        )

    steps(world, leave, leave, lambda w: w.register() and None, leave)


def test_ranges_that_are_equal_and_not_the_same():
    """Equal as sequences, with different ends."""

    def fn(x, numbers):
        return x * numbers.stop

    check_calls(fn, (range(0, 3, 2),), (range(0, 3, 2),), (range(0, 4, 2),), (range(0, 3, 2),))


def test_numbers_and_texts_of_classes_of_their_own():
    """Their value matters as that of plain ones does."""

    class Level(int):
        pass

    class Name(str):
        pass

    def fn(x, level, name):
        return x * (level + 1) if name == "a" else x * 5

    one = (Level(2), Name("a"))
    check_calls(fn, one, one, (Level(3), Name("a")), one, (Level(2), Name("b")))


def test_a_text_of_a_class_of_its_own_as_a_key():
    """A key is looked up by value."""

    class Name(str):
        pass

    def fn(x, name):
        return x * {"a": 2, "b": 3}[name]

    check_calls(fn, (Name("a"),), (Name("a"),), (Name("b"),), (Name("a"),))


def test_a_frozen_set_as_a_key():
    """Likewise."""

    def fn(x, names):
        table = {frozenset({"a"}): 2, frozenset({"b"}): 3}
        return x * table[names]

    check_calls(fn, (frozenset("a"),), (frozenset("a"),), (frozenset("b"),), (frozenset("a"),))


def test_length_and_truth_of_objects_kept_by_c_code():
    """What the guards cannot look into is not asked for its length either."""

    def fn(x, data):
        return x * len(data) if data else x

    check_calls(fn, (bytearray(b"ab"),), (bytearray(b"ab"),), (bytearray(b"abc"),), (bytearray(),))


def test_truth_of_a_decimal():
    """A number of C code's own."""

    def fn(x, threshold):
        return x * 2 if threshold else x * 3

    check_calls(fn, (Decimal(1),), (Decimal(1),), (Decimal(0),), (Decimal(1),))


def test_length_of_an_array():
    """NumPy's."""
    import numpy as np

    def fn(x, data):
        return x * len(data)

    check_calls(fn, (np.zeros(2),), (np.zeros(2),), (np.zeros(3),), (np.zeros(2),))


def test_a_list_with_an_iteration_of_its_own():
    """The order of iteration is the class's business, the order of items the list's."""

    class Backwards(list):
        def __iter__(self):
            return list.__reversed__(self)

    def fn(x, items):
        first, second = items
        return x + first * 2 - second

    a, b = rand(11), rand(12)
    check_calls(fn, (Backwards([a, b]),), (Backwards([b, a]),), (Backwards([a, b]),))


def test_a_tuple_with_an_iteration_of_its_own():
    """Likewise, with an effect."""

    def world():
        log = []

        class Logged(tuple):
            def __iter__(self):
                log.append("iter")
                return tuple.__iter__(self)

        return World(fn=lambda x, items: [x + item for item in items], log=log, make=Logged)

    calls = [lambda w, s=s: w.fn(rand(s), w.make([rand(5), rand(6)])) for s in range(4)]
    check(world, calls, expect=None)


def test_a_lookup_of_its_own_is_not_asked_by_guards():
    """`__getattribute__` with an effect runs as often as the program looks."""

    def world():
        log = []

        class Logged:
            def __init__(self):
                self.scale = 2

            def __getattribute__(self, name):
                log.append(name)
                return object.__getattribute__(self, name)

        box = Logged()
        return World(fn=lambda x: x * box.scale, log=log)

    steps(world, leave, leave, lambda w: w.log.clear(), leave)


# ---- rebuilding ----------------------------------------------------------------------------------


def test_a_partial_with_names_that_are_no_identifiers():
    """Keywords may be any text."""

    def fn(x):
        return functools.partial(dict, x, **{"a b": 1, "class": x})

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1)).keywords] * 3, expect=None)


def test_a_partial_with_attributes():
    """It has a dict."""

    def fn(x):
        call = functools.partial(max, x)
        call.note = 3
        return call

    check(lambda: World(fn=fn), [lambda w: vars(w.fn(rand(1)))] * 3, expect=None)


def test_an_exception_with_a_note():
    """Notes and attributes of an exception are parts of it."""

    def fn(x):
        error = ValueError("no", x)
        error.add_note("a note")
        return error

    def call(w):
        error = w.fn(rand(1))
        return vars(error), error.args

    check(lambda: World(fn=fn), [call] * 3, expect=None)


def test_what_an_exception_keeps_in_c():
    """`__init__` sets the value of a StopIteration, and the code of a SystemExit."""

    def fn(x):
        return StopIteration(x), SystemExit(3), AttributeError("no", name="a", obj=x)

    def call(w):
        stop, leaving, missing = w.fn(rand(1))
        return stop.value, leaving.code, missing.name, missing.obj

    check(lambda: World(fn=fn), [call] * 3, expect=None)


def test_an_exception_with_a_constructor_of_its_own():
    """`OSError(2, …)` is made once per call, as are the random numbers beside it."""

    def fn(x):
        return OSError(2, "gone"), x + torch.rand(4)

    def call(w):
        error, y = w.fn(rand(1))
        return type(error), error.errno, error.strerror, y

    check(lambda: World(fn=fn), [call] * 3, expect=None)


def test_a_frozen_set_of_objects_with_a_hash_of_their_own():
    """Their hash needs their fields; the random numbers are drawn once."""

    @dataclass(frozen=True)
    class Point:
        x: int

    def fn(x):
        return frozenset({Point(1)}), x + torch.rand(4)

    def call(w):
        points, y = w.fn(rand(1))
        return [point.x for point in points], y

    check(lambda: World(fn=fn), [call] * 3, expect=None)


def test_a_frozen_set_of_objects_after_a_write():
    """And nothing is raised."""

    @dataclass(frozen=True)
    class Point:
        x: int

    def fn(x):
        x.add_(1)
        return frozenset({Point(1)}), x

    def call(w):
        points, y = w.fn(rand(1))
        return [point.x for point in points], y

    check(lambda: World(fn=fn), [call] * 3, expect=None)


def test_a_number_with_many_digits():
    """Too long to be written in decimal."""

    def fn(x):
        return x + 1, 1 << 20000

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1))[1] >> 19990] * 3, expect=None)


def test_a_deeply_nested_result():
    """Deeper than Python recurses."""

    def fn(x):
        chain = None
        for _ in range(3000):
            chain = [chain]
        return x + 1, chain

    check(lambda: World(fn=fn), [lambda w: w.fn(rand(1))[0]] * 3, expect=None)


def test_a_function_made_inside_sees_the_globals_of_its_module():
    """Not a copy of them."""

    def world():
        names = {"SCALE": 2, "__builtins__": {}}
        exec("def fn(x):\n    y = x * 2\n    return lambda: y * SCALE\n", names)
        return World(fn=names["fn"], names=names)

    def call(seed):
        def run(w):
            made = w.fn(rand(seed))
            w.names["SCALE"] = seed + 2
            return made()

        return run

    check(world, [call(1), call(2), call(3)], expect=None)


def test_the_identity_of_an_object_is_an_int():
    """As a result of the watched call too."""

    def fn(x):
        return x + 1, id(x)

    check(lambda: World(fn=fn), [lambda w: type(w.fn(rand(1))[1])] * 3, expect=None)


# ---- tensors -------------------------------------------------------------------------------------


def test_writes_to_tensors_without_a_version():
    """In inference mode tensors do not count their writes."""

    def fn(x):
        y = x * 2
        y.add_(1)
        y.relu_()
        return y

    def call(seed):
        def run(w):
            with torch.inference_mode():
                return w.fn(rand(seed)).clone()

        return run

    check(lambda: World(fn=fn), [call(1), call(2), call(3)], expect=None)


def test_writes_to_inference_tensors_from_outside():
    """Their effect is seen outside."""

    def fn(x):
        x.add_(1)
        return x * 2

    def world():
        with torch.inference_mode():
            return World(fn=fn, x=rand(1))

    def run(w):
        with torch.inference_mode():
            return w.fn(w.x)

    check(world, [run, run, run], expect=None)


def test_writes_in_an_inference_mode_of_the_programs_own():
    """The same with the mode entered inside."""

    def fn(x):
        with torch.inference_mode():
            y = x * 2
            y.mul_(3)
            return y

    check(
        lambda: World(fn=fn), [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), lambda w: w.fn(rand(3))], expect=None
    )


def test_shapes_that_depend_on_data():
    """`argwhere` has as many rows as there are hits."""

    def fn(x, y):
        return x * torch.argwhere(y > 0).shape[0]

    one, two = torch.tensor([1.0, -1.0]), torch.tensor([1.0, 1.0])
    check_calls(fn, (one,), (one,), (two,), (one,))


# ---- modules -------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x):
        return self.linear(x) * self.scale


def model_world(make):
    def world():
        torch.manual_seed(3)
        model = make()
        return World(fn=model, model=model)

    return world


def test_another_instance_of_the_compiled_class():
    """`type(model)(...)` makes a module of its own."""

    def run(w):
        torch.manual_seed(5)
        other = type(w.fn)(3.0)
        return w.fn(rand(1)), other(rand(1))

    check(model_world(Scaled), [run, run, run], expect=None)


def test_a_module_class_that_keeps_a_register_of_its_subclasses():
    """Compiling adds nothing to it."""

    def world():
        known = {}

        class Base(nn.Module):
            def __init_subclass__(cls, **kwargs):
                super().__init_subclass__(**kwargs)
                known[cls.__name__] = cls.__mro__[1].__name__

        class Model(Base):
            def forward(self, x):
                return x * 2

        return World(fn=Model(), known=known)

    steps(world, leave, leave, leave)


def test_a_module_class_whose_subclasses_need_an_argument():
    """Compiling does not give any."""

    def world():
        class Base(nn.Module):
            def __init_subclass__(cls, *, tag, **kwargs):
                super().__init_subclass__(**kwargs)
                cls.tag = tag

        class Model(Base, tag="a"):
            def forward(self, x):
                return x * 2

        return World(fn=Model())

    steps(world, leave, leave, leave)


def test_a_lookup_of_a_modules_own_that_asks_its_base():
    """`super().__getattr__` reads a parameter that is None."""

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("bias", None)

        def __getattr__(self, name):
            return super().__getattr__(name)

        def forward(self, x):
            return x * 2 if self.bias is None else x + self.bias

    def change(w):
        w.model.bias = nn.Parameter(torch.ones(4))

    steps(model_world(Wrapper), leave, leave, change, leave)


def test_a_lookup_of_a_modules_own_that_finds_nothing_in_its_base():
    """What is missing in the wrapper is asked of the wrapped."""

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Scaled()

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self._modules["inner"], name)

        def forward(self, x):
            return x * self.scale

    def change(w):
        w.model._buffers["scale"] = torch.full((4,), 3.0)

    steps(model_world(Wrapper), leave, leave, change, leave)


def test_weight_norm_of_a_compiled_module():
    """A parametrization changes the class of what it is given."""

    def change(w):
        torch.nn.utils.parametrizations.weight_norm(w.fn, "weight")

    def run(w):
        return w.fn(rand(1))

    def first(w):
        change(w)
        return w.fn(rand(2))

    def world():
        torch.manual_seed(3)
        return World(fn=nn.Linear(4, 4))

    check(world, [run, run, first, run], expect=None)


# ---- through what was made inside ----------------------------------------------------------------


def test_tuples_of_lists_compared():
    """C code compares all the way down."""

    def fn(x, a, b):
        return x * 2 if (a, 1) < (b, 1) else x * 3

    check_calls(fn, ([1], [2]), ([1], [2]), ([3], [2]), ([1], [2]))


def test_tuples_of_objects_compared():
    """And finds objects equal that are the same."""

    class Item:
        pass

    a, b = Item(), Item()

    def fn(x, one, other):
        return x * 2 if (one, 1) == (other, 1) else x * 3

    check_calls(fn, (a, b), (b, a), (a, a), (a, b))


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


def test_the_sign_of_a_zero():
    """NumPy's zeros have one too."""
    import math

    import numpy as np

    def fn(x, number):
        return x * math.copysign(1.0, number)

    plus, minus = np.float64(0.0), np.float64(-0.0)
    check_calls(fn, (plus,), (plus,), (minus,), (plus,))


def test_an_object_made_inside_with_a_lookup_of_its_own():
    """Nobody asks it but the program."""

    def world():
        log = []

        class Logged:
            def __getattribute__(self, name):
                log.append(name)
                return object.__getattribute__(self, name)

        def fn(x):
            box = Logged()
            box.scale = x * 2
            return box

        return World(fn=fn, log=log)

    def run(w):
        w.fn(rand(1))
        return list(w.log)

    check(world, [run, run, run], expect=None)


def test_running_statistics_are_updated_once():
    """`batch_norm` writes to its buffers without counting that, and then the index is out of range."""

    def world():
        mean, var = torch.zeros(4), torch.ones(4)

        def fn(x, index):
            return nn.functional.batch_norm(x, mean, var, training=True)[index]

        return World(fn=fn, mean=mean, var=var)

    def call(index):
        return lambda w: w.fn(rand(index, 3, 4), torch.tensor([index]))

    check(world, [call(0), call(1), call(9), call(2)], expect=None, raises=IndexError, tracebacks=False)


def test_a_compiled_function_under_vmap():
    """The tensors are wrappers without memory."""

    def run(w):
        return torch.vmap(w.fn)(rand(1, 3, 4))

    def fn(x):
        return x.sin() * x.shape[0]

    check(lambda: World(fn=fn), [run, run, run, lambda w: w.fn(rand(1)), run], expect=None)


def test_a_compiled_function_under_grad():
    """Likewise."""

    def run(w):
        return torch.func.grad(w.fn)(rand(1)), torch.func.jvp(w.fn, (rand(1),), (rand(2),))

    def fn(x):
        return (x.sin() * x).sum()

    check(lambda: World(fn=fn), [run, run, run, lambda w: w.fn(rand(1)), run], expect=None)


def test_defaults_taken_away():
    """The complaint about a missing argument is Python's."""

    def world():
        def fn(x, scale=2):
            return x * scale

        return World(fn=fn, plain=fn)

    steps(world, leave, leave, lambda w: setattr(w.plain, "__defaults__", None), raises=TypeError)


def test_a_module_class_with_slots():
    """They are shared as the attributes are."""

    class Model(nn.Module):
        __slots__ = ("extra",)

        def __init__(self):
            super().__init__()
            object.__setattr__(self, "extra", 3)

        def forward(self, x):
            return x * self.extra

    def change(w):
        object.__setattr__(w.fn, "extra", w.fn.extra + 1)
        return w.fn(rand(1))

    check(model_world(Model), [lambda w: w.fn(rand(1)), change, change, lambda w: w.fn(rand(2))], expect=None)


def test_a_pickle_of_a_compiled_module():
    """Is a pickle of the module."""
    import pickle

    def run(w):
        copied = pickle.loads(pickle.dumps(w.fn))
        return copied(rand(1)), w.fn(rand(2))

    check(model_world(Scaled), [run, run, run], expect=None)


def test_a_number_of_a_class_of_its_own_as_an_index():
    """Of a list made inside."""

    class Level(int):
        pass

    def fn(x, level):
        return x * [5, 6, 7][level]

    check_calls(fn, (Level(1),), (Level(1),), (Level(0),), (Level(1),))


def test_values_of_classes_of_their_own_in_a_list_made_inside():
    """`sum` and `join` read them there."""

    class Level(int):
        pass

    class Name(str):
        pass

    def fn(x, level, name):
        return x * sum([level, 1]), "-".join([name, "c"])

    one = (Level(1), Name("a"))
    check_calls(fn, one, one, (Level(0), Name("a")), one, (Level(1), Name("b")))


def test_text_of_a_list_with_a_value_kept_by_c_code():
    """Formatting a list formats what is in it."""

    def fn(x, value):
        return x + 1, f"{[value]}"

    check_calls(fn, (Decimal(1),), (Decimal(1),), (Decimal(0),), (Decimal(1),))


def test_a_class_derived_from_one_that_keeps_its_value_in_c():
    """Its truth and its text depend on that value."""

    class Amount(Decimal):
        pass

    def fn(x, amount):
        return x * 2 if amount else x * 3, str(amount)

    check_calls(fn, (Amount(1),), (Amount(1),), (Amount(0),), (Amount(2),))


def test_bound_methods_compared():
    """Equal if they are bound to the same object."""

    class Item:
        def method(self):
            pass

    a, b = Item(), Item()

    def fn(x, one, other):
        return x * 2 if one.method == other.method else x * 3

    check_calls(fn, (a, b), (b, a), (a, a), (a, b))


def test_globals_of_a_frame():
    """A generator made inside has a frame, and the frame has the globals of the module."""

    def fn(x):
        def numbers():
            yield 1

        return x * numbers().gi_frame.f_globals["SCALE"]

    def set_scale(value):
        globals()["SCALE"] = value

    def world():
        set_scale(2)
        return World(fn=fn)

    steps(world, leave, leave, lambda w: set_scale(3), leave)


def test_what_is_asked_of_an_object_is_what_the_program_asks():
    """`isinstance` asks an object for its `__class__`, and an object may notice."""

    class Shy:
        def __init__(self, log):
            object.__setattr__(self, "log", log)

        def __getattribute__(self, name):
            object.__getattribute__(self, "log").append(name)
            return object.__getattribute__(self, name)

        def __call__(self, value):
            return value + 1

        def __enter__(self):
            return 2

        def __exit__(self, *error):
            return True

        def __iter__(self):
            return iter((1, 2))

        def __contains__(self, item):
            return item == 1

    def world():
        log = []
        shy = Shy(log)

        def fn(x):
            print(shy is None)
            with shy as two:
                print(two, 1 in shy, sum(shy), shy(3))
                raise ValueError
            print([shy, 1][1], bool(shy), {"shy": shy}.keys())
            return x * two + len(shy.log)

        return World(fn=fn, log=log)

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_a_program_at_the_limit_of_recursion():
    """What watches it has even less room; nobody is warned of that."""

    def down(items):
        try:
            return down([items]) + len(f"{len(items)}")
        except RecursionError:
            return 0

    def world():
        return World(fn=lambda x: (x * 2, down([]) > 10))

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None)


def test_dicts_that_are_not_what_they_seem():
    """A class, or its metaclass, may have a `__dict__` of its own: nobody but the program asks for it."""

    class Meta(type):
        @property
        def __dict__(cls):
            cls.asked.append("class")
            return {}

    class Odd(metaclass=Meta):
        asked = []  # noqa: RUF012

        @property
        def __dict__(self):
            self.asked.append("object")
            return {"scale": 3.0}

        def scaled(self, x):
            return x * self.scale

    def world():
        Odd.asked.clear()
        odd = Odd()
        odd.scale = 2.0

        def fn(x):
            fresh = Odd()
            fresh.scale = 4.0
            print(len(Odd.asked))
            return odd.scaled(x), fresh.scaled(x), fresh.__dict__["scale"], len(Odd.asked)

        return World(fn=fn, set=lambda scale: setattr(odd, "scale", scale))

    def changed(w):
        w.set(5.0)
        return w.fn(rand(3))

    check(world, [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed, lambda w: w.fn(rand(4))], expect=None)
