"""Guards ask objects for nothing that the program does not ask, and are not led astray by what objects pretend."""

from __future__ import annotations

from changing_worlds import leave, steps
from harness import PLAIN, World, check, rand


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

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None, unreplayed="call-print")


def test_a_program_at_the_limit_of_recursion():
    """What watches it has even less room; nobody is warned of that."""

    def down(items):
        try:
            return down([items]) + len(f"{len(items)}")
        except RecursionError:
            return 0

    def world():
        return World(fn=lambda x: (x * 2, down([]) > 10))

    check(world, [lambda w, s=s: w.fn(rand(s)) for s in (1, 2, 3)], expect=None, unreplayed=PLAIN)


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

    check(
        world,
        [lambda w: w.fn(rand(1)), lambda w: w.fn(rand(2)), changed, lambda w: w.fn(rand(4))],
        expect=None,
        unreplayed="call-print",
    )
