"""What C code reads of the values that it is handed: lists and objects inside of fresh containers, comparisons, values
of classes of their own.
"""

from __future__ import annotations

import itertools
import operator
from decimal import Decimal

from changing_worlds import check_calls
from harness import World, check, rand


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
