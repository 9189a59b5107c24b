"""Programs called again and again while their surroundings change; whether they replay does not matter here."""

from __future__ import annotations

from harness import World, check, rand


def check_calls(fn, *arguments, raises=(), unreplayed=(), **state):
    """Call `fn(x, *more)` with these further arguments, one tuple per call, under the same seeds."""

    def call(seed, more):
        return lambda w: w.fn(rand(seed), *more)

    calls = [call(seed, more) for seed, more in enumerate(arguments)]
    return check(lambda: World(fn=fn, **state), calls, expect=None, raises=raises, unreplayed=unreplayed)


def steps(world, *changes, raises=(), unreplayed=(), observe=None):
    """One call of `w.fn(x)` after each change to the world."""

    def call(seed, change):
        def run(w):
            change(w)
            return w.fn(rand(seed))

        return run

    calls = [call(seed, change) for seed, change in enumerate(changes)]
    return check(world, calls, expect=None, raises=raises, observe=observe, unreplayed=unreplayed)


def leave(w):
    """Change nothing."""
