"""Every way in which Python looks something up can be changed between two calls; none may go unnoticed.

The calls are: twice alike, then after a change, then once more. What no guard sees gives a wrong result.
"""

from __future__ import annotations

import builtins
import types

from harness import RECORDED, World, check, check_change, rand

# ---- classes ------------------------------------------------------------------------------------


class Base:
    factor = 2.0

    def scale(self, x):
        return x * self.factor


def object_world(*bases, body=None):
    """A world with one object `o` of a class of its own, and a function that uses it."""

    def world(use=lambda o, x: o.scale(x)):
        cls = types.new_class("Local", bases or (Base,), exec_body=lambda space: space.update(body or {}))
        o = cls()
        return World(fn=lambda x: use(o, x) + 1, cls=cls, o=o)

    return world


def test_attribute_of_a_base_class():
    def world():
        class Parent(Base):
            pass

        class Child(Parent):
            pass

        o = Child()
        return World(fn=lambda x: o.scale(x), parent=Parent, o=o)

    outcomes = check_change(
        world, lambda w: setattr(w.parent, "factor", 3.0), restore=lambda w: delattr(w.parent, "factor")
    )
    assert outcomes[:2] == ["miss", "hit"]


def test_instance_attribute_hides_class_attribute():
    outcomes = check_change(
        object_world(), lambda w: setattr(w.o, "factor", 5.0), restore=lambda w: delattr(w.o, "factor")
    )
    assert outcomes == ["miss", "hit", "miss", "hit", "hit"]


def test_bases_are_exchanged():
    class Other:
        factor = 7.0

        def scale(self, x):
            return x - self.factor

    def change(w):
        w.cls.__bases__ = (Other, Base)

    assert check_change(object_world(), change)[:2] == ["miss", "hit"]


def test_getattr_is_added_to_a_class():
    def use(o, x):
        return x * getattr(o, "missing", 1)

    def change(w):
        w.cls.__getattr__ = lambda self, name: 4.0

    assert check_change(lambda: object_world()(use), change)[:2] == ["miss", "hit"]


def test_getattribute_is_added_to_a_class():
    def change(w):
        w.cls.__getattribute__ = lambda self, name: 9.0 if name == "factor" else object.__getattribute__(self, name)

    def restore(w):
        del w.cls.__getattribute__

    assert check_change(object_world(), change, restore=restore)[:2] == ["miss", "hit"]


def test_a_data_descriptor_is_added_over_an_instance_attribute():
    def world():
        class Local(Base):
            def __init__(self):
                self.factor = 3.0

        o = Local()
        return World(fn=lambda x: o.scale(x), cls=Local)

    def change(w):
        w.cls.factor = property(lambda self: 11.0)

    assert check_change(world, change)[:2] == ["miss", "hit"]


def test_the_instance_dict_is_replaced():
    def change(w):
        w.o.__dict__ = {"factor": 6.0}

    assert check_change(object_world(), change)[:2] == ["miss", "hit"]


def test_a_property_is_replaced():
    body = {"factor": property(lambda self: 2.0)}

    def change(w):
        w.cls.factor = property(lambda self: 8.0)

    assert check_change(object_world(body=body), change)[:2] == ["miss", "hit"]


def test_state_behind_a_property():
    def world():
        level = [2.0]
        cls = type("Local", (Base,), {"factor": property(lambda self: level[0])})
        o = cls()
        return World(fn=lambda x: o.scale(x), level=level)

    assert check_change(world, lambda w: w.level.__setitem__(0, 3.0))[:2] == ["miss", "hit"]


def test_special_methods_are_replaced():
    def world():
        class Vector:
            def __init__(self, t):
                self.t = t

            def __add__(self, other):
                return Vector(self.t + other)

            def __len__(self):
                return 2

            def __bool__(self):
                return True

            def __contains__(self, item):
                return item == 1

            def __iter__(self):
                return iter([1, 2])

            def __call__(self, x):
                return x * 2

            def __getitem__(self, i):
                return i * 2

        v = Vector(rand(9))

        def fn(x):
            total = (v + x).t * len(v) + sum(v) + v(x) + v[3]
            return total + (1 if v else 2) + (10 if 1 in v else 20)

        return World(fn=fn, cls=Vector, v=v)

    replacements = {
        "__add__": lambda self, other: type(self)(self.t - other),
        "__len__": lambda self: 5,
        "__bool__": lambda self: False,
        "__contains__": lambda self, item: False,
        "__iter__": lambda self: iter([7]),
        "__call__": lambda self, x: x * 3,
        "__getitem__": lambda self, i: i * 9,
    }
    for name, method in replacements.items():
        outcomes = check_change(world, lambda w, name=name, method=method: setattr(w.cls, name, method))
        assert outcomes[:3] == ["miss", "hit", "miss"], name


def test_a_metaclass_looks_attributes_up():
    def world():
        class Meta(type):
            level = 2.0

            @property
            def scale(cls):
                return cls.level

        class Local(metaclass=Meta):
            pass

        return World(fn=lambda x: x * Local.scale, meta=Meta)

    assert check_change(world, lambda w: setattr(w.meta, "level", 3.0))[:2] == ["miss", "hit"]


def test_a_list_subclass_with_its_own_ways():
    class Doubling(list):
        factor = 2

        def __getitem__(self, i):
            return super().__getitem__(i) * self.factor

        def __iter__(self):
            return (item * self.factor for item in super().__iter__())

        def __len__(self):
            return 7

    def world():
        items = Doubling([1, 2])
        return World(fn=lambda x: x * items[0] + sum(items) + len(items), items=items)

    check_change(world, lambda w: setattr(w.items, "factor", 5), restore=lambda w: w.items.append(9))


def test_a_dict_subclass_with_missing():
    class Table(dict):
        default = 3.0

        def __missing__(self, key):
            return self.default

    def world():
        table = Table(a=1.0)
        return World(fn=lambda x: x * table["a"] + table["b"], table=table)

    check_change(world, lambda w: setattr(w.table, "default", 4.0), restore=lambda w: w.table.update(b=9.0))


def test_numbers_and_strings_of_user_classes():
    class Meters(float):
        unit = "m"

        def __mul__(self, other):
            return other * 100

    class Name(str):
        __slots__ = ()

        def upper(self):
            return "custom"

    def fn(x, length, name):
        return length * x, name.upper(), isinstance(length, float), type(length) is float

    check(
        lambda: World(fn=fn),
        [
            lambda w: w.fn(rand(1), 2.0, "n"),
            lambda w: w.fn(rand(1), Meters(2.0), "n"),
            lambda w: w.fn(rand(1), 2.0, Name("n")),
            lambda w: w.fn(rand(1), Meters(2.0), Name("n")),
        ],
        expect=None,
        unreplayed=RECORDED,
    )


# ---- functions ----------------------------------------------------------------------------------


def function_world():
    offset = 1.0

    def helper(x, scale=2.0, *, shift=0.0):
        return x * scale + shift + offset

    def set_offset(value):
        nonlocal offset
        offset = value

    return World(fn=lambda x: helper(x), helper=helper, set_offset=set_offset)


def test_defaults_of_a_helper():
    outcomes = check_change(
        function_world,
        lambda w: setattr(w.helper, "__defaults__", (5.0,)),
        restore=lambda w: setattr(w.helper, "__defaults__", (2.0,)),
    )
    assert outcomes == ["miss", "hit", "miss", "hit", "hit"]


def test_keyword_defaults_of_a_helper():
    outcomes = check_change(function_world, lambda w: w.helper.__kwdefaults__.update(shift=5.0))
    assert outcomes[:3] == ["miss", "hit", "miss"]


def test_the_closure_of_a_helper():
    outcomes = check_change(function_world, lambda w: w.set_offset(5.0), restore=lambda w: w.set_offset(1.0))
    assert outcomes == ["miss", "hit", "miss", "hit", "hit"]


def test_the_code_of_a_helper():
    def other(x, scale=2.0, *, shift=0.0):
        return x - scale - shift

    def world():
        def helper(x, scale=2.0, *, shift=0.0):
            return x * scale + shift

        return World(fn=lambda x: helper(x), helper=helper)

    assert check_change(world, lambda w: setattr(w.helper, "__code__", other.__code__))[:3] == [
        "miss",
        "hit",
        "miss",
    ]


def test_the_code_of_the_compiled_function_itself():
    def other(x):
        return x - 100

    def world():
        def fn(x):
            return x * 2

        return World(fn=fn, plain=fn)

    check_change(world, lambda w: setattr(w.plain, "__code__", other.__code__))


def test_builtins_are_replaced(monkeypatch):
    original = builtins.divmod

    def world():
        monkeypatch.setattr(builtins, "divmod", original)
        return World(fn=lambda x: x * divmod(7, 4)[0])

    outcomes = check_change(
        world,
        lambda _: monkeypatch.setattr(builtins, "divmod", lambda a, b: (50, 0)),
        restore=lambda _: monkeypatch.setattr(builtins, "divmod", original),
    )
    assert outcomes == ["miss", "hit", "miss", "hit", "hit"]


def test_a_builtin_is_hidden_by_a_global():
    def fn(x):
        return x * divmod(7, 4)[0]

    def world():
        space = {}
        return World(fn=types.FunctionType(fn.__code__, space), space=space)

    outcomes = check_change(
        world,
        lambda w: w.space.update(divmod=lambda a, b: (50, 0)),
        restore=lambda w: w.space.pop("divmod"),
    )
    assert outcomes == ["miss", "hit", "miss", "hit", "hit"]


def test_a_method_bound_to_another_object():
    def world():
        holder = types.SimpleNamespace(method=Base().scale)
        return World(fn=lambda x: holder.method(x), holder=holder)

    def change(w):
        other = Base()
        other.factor = 9.0
        w.holder.method = other.scale

    assert check_change(world, change)[:3] == ["miss", "hit", "miss"]
