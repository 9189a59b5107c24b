"""Reads that no instruction shows: globals and dicts of classes reached by calls, annotations, registers, defaults."""

from __future__ import annotations

from changing_worlds import leave, steps
from harness import World

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
    steps(
        world,
        leave,
        leave,
        lambda w: setattr(w.settings, "more", 3),
        leave,
        unreplayed=["outside-iterator", "unguardable"],
    )


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


def test_defaults_taken_away():
    """The complaint about a missing argument is Python's."""

    def world():
        def fn(x, scale=2):
            return x * scale

        return World(fn=fn, plain=fn)

    steps(world, leave, leave, lambda w: setattr(w.plain, "__defaults__", None), raises=TypeError)


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

    steps(world, leave, leave, lambda w: set_scale(3), leave, unreplayed="unguardable")
