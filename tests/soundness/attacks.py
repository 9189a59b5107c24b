"""What the attacks have in common: a program is replayed, its surroundings change, and it must be eager again.

An attack that is never replayed attacks nothing, so a call that should be one is asserted to be one.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from harness import LATER, Checked, World, check, rand

Change = Callable[[World], Any]
WARM = 8  # calls after which guards are checked by their digest


def after(change: Change, seed: int) -> Callable[[World], Any]:
    """A call with a new tensor, once `change` is made."""

    def call(w: World) -> Any:
        change(w)
        return w.fn(rand(seed))

    return call


def nothing(w: World) -> None:
    """No change."""


def attack(world: Callable[[], World], *changes: Change, replayed: bool = True, **how: Any) -> Checked:
    """Calls, and two more after each of the changes; all as the plain program's.

    The changes are made twice: after one call, when Python checks the guards, and after so many that C code checks
    them by their digest. `replayed`: by then calls are hits. False where a program needs another recording in each
    call, or has to run plain; then `unreplayed` says why, as in `check`.
    """
    run(world, changes, 1, {"unreplayed": LATER, **how})
    done = run(world, changes, WARM if replayed else 3, how)
    breaks = [why.id for why in done.world.fn.stator.break_reasons]
    assert not replayed or done.outcomes[2] == "hit", f"outcomes {done.outcomes}, breaks {breaks}"
    return done


def run(world: Callable[[], World], changes: Sequence[Change], before: int, how: dict[str, Any]) -> Checked:
    calls = [after(nothing, seed) for seed in range(before)]
    for seed, change in enumerate(changes, start=10):
        calls += [after(change, 2 * seed), after(nothing, 2 * seed + 1)]
    calls += [after(nothing, 9), after(nothing, 8)] if len(calls) < 3 else []
    return check(world, calls, expect=None, **how)


def function_in(namespace: dict[str, Any], source: str, name: str = "fn") -> Any:
    """A function whose globals are `namespace`."""
    exec(compile(source, "<program>", "exec"), namespace)
    return namespace[name]


MADE: set[str] = set()  # names of modules; conftest.py takes them away after each test


def module(name: str, source: str = "") -> types.ModuleType:
    """A new module of that name, which `import` finds."""
    made = sys.modules[name] = types.ModuleType(name)
    MADE.add(name)
    exec(compile(source, f"<{name}>", "exec"), made.__dict__)
    return made


def hidden(function: Callable[..., Any]) -> Any:
    """A callable that a world carries for its changes, and that no description looks into."""
    return type("Hidden", (), {"__slots__": (), "__call__": staticmethod(function)})()
