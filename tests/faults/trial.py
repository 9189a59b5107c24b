"""One program with one fault in it: is the program still the plain program?

A trial runs the calls of a program twice, and forgets all recordings in between. The fault falls into the first round;
the second one must be as if nothing had happened, which it is not if something was left behind.
"""

from __future__ import annotations

import collections
import gc
import io
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, NamedTuple

import harness
import sites
import torch
from programs import Program

import stator
from stator import _native


class Round(NamedTuple):
    seen: list[list[str]]  # after each call: results, world, torch's state, output
    outcomes: list[str]
    complaints: list[str]  # stator's warnings


class Failed(AssertionError):
    """The program noticed the fault."""


def run(program: Program, world: harness.World) -> Round:
    """All calls once."""
    seen, outcomes, results = [], [], []
    output = io.StringIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in program.calls:
            before = harness.counters(world.fn)
            try:
                with redirect_stdout(output):
                    results.append(call(world))
            except Exception as error:
                results.append(harness.Raised(error))
            outcomes.append(harness.outcome(before, harness.counters(world.fn)))
            state = {name: value for name, value in vars(world).items() if name != "fn"}
            if isinstance(world.fn, torch.nn.Module):
                state["module"] = [*world.fn.parameters(), *world.fn.buffers()]
            every = {"results": results, "world": state, "torch": harness.torch_state(), "output": output.getvalue()}
            seen.append(harness.describe(every))
    return Round(seen, outcomes, [str(w.message) for w in caught if is_ours(w)])


def is_ours(warning: Any) -> bool:
    return "stator" in f"{warning.category.__module__} {warning.message}"


def compiled(program: Program, **options: Any) -> harness.World:
    """A world with its function compiled; no recording of an earlier one is found."""
    world = program.world()
    world.fn = stator.compile(world.fn, backend=program.backend, options={**program.options, **options})
    forget(world)
    return world


def forget(world: harness.World) -> None:
    world.fn.stator.reset()


class Reference(NamedTuple):
    """What a program does without faults."""

    plain: tuple[Round, Round]
    compiled: tuple[Round, Round]
    passages: collections.Counter[int]  # of each site, in the first round


def reference(program: Program) -> Reference:
    with harness.fresh_torch_state():
        world = program.world()
        plain = run(program, world), run(program, world)
    compiled_rounds: tuple[Round, Round]
    for _ in range(2):  # what the first run of all leaves in caches is left to it
        with harness.fresh_torch_state():
            world = compiled(program)
            sites.start_counting()
            first = run(program, world)
            passages = sites.counts()
            forget(world)
            compiled_rounds = first, run(program, world)
    for wanted, got in zip(plain, compiled_rounds, strict=True):
        compare(wanted, got)
    nothing_is_left(world)
    return Reference(plain, compiled_rounds, passages)


def attempt(
    program: Program,
    known: Reference,
    site: sites.Site,
    passage: int,
    kind: type[BaseException] = sites.Fault,
    *,
    once: bool = False,
) -> str:
    """Put the fault in. Gives how it was survived; raises `Failed` if it was not. `once`: without the second round."""
    with harness.fresh_torch_state():
        world = compiled(program)
        with sites.arm(site, passage, kind) as armed:
            first = run(program, world)
            fired = armed.fired()
        nothing_is_left(world)
        if not fired:
            return "not reached"
        compare(known.plain[0], first)
        if once:
            return judge_warnings(known.compiled[0], first)
        forget(world)
        second = run(program, world)
    nothing_is_left(world)
    compare(known.plain[1], second, " in the second round")
    if second.outcomes != known.compiled[1].outcomes:
        raise Failed(f"in the second round {second.outcomes}, not {known.compiled[1].outcomes}")
    if second.complaints != known.compiled[1].complaints and len(second.complaints) > len(known.compiled[1].complaints):
        raise Failed(f"warnings in the second round: {second.complaints}")
    return judge_warnings(known.compiled[0], first)


def judge_warnings(usual: Round, found: Round) -> str:
    """One warning for one fault; none where all that was lost is the chance to generalise a recording."""
    more = len(found.complaints) - len(usual.complaints)
    if more > 1:
        raise Failed(f"{more} warnings: {found.complaints}")
    lost = found.outcomes.count("plain") > usual.outcomes.count("plain")
    if lost and not found.complaints:  # (of several faults of one function the first is warned of)
        raise Failed(f"no warning, although the calls were {found.outcomes}, not {usual.outcomes}")
    return "with a warning" if more == 1 else "without loss"


def attempt_unsuppressed(program: Program, site: sites.Site, passage: int) -> str:
    """With `suppress_errors` off the fault is raised once, as the cause of an error of stator's own."""
    with harness.fresh_torch_state():
        world = compiled(program, suppress_errors=False)
        errors: list[BaseException] = []
        with sites.arm(site, passage) as armed, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for call in program.calls:
                try:
                    with redirect_stdout(io.StringIO()):
                        call(world)
                except Exception as error:
                    errors.append(error)
            fired = armed.fired()
        nothing_is_left(world)
    if not fired:
        return "not reached"
    raised = [error for error in errors if is_fault(error) or is_fault(error.__cause__)]
    for error in raised:
        if not isinstance(error, (stator.errors.InternalError, stator.errors.BackendError)):
            raise Failed(f"raised as {error!r}, not as an error of stator's") from error
    if len(raised) > 1:
        raise Failed(f"raised {len(raised)} times")
    if any("on purpose" in str(w.message) for w in caught):
        raise Failed(f"warned, not raised: {[str(w.message) for w in caught]}")
    return "raised" if raised else "without loss"


def is_fault(error: BaseException | None) -> bool:
    return isinstance(error, sites.Fault)


def attempt_interrupt(program: Program, known: Reference, site: sites.Site, passage: int) -> str:
    """A KeyboardInterrupt reaches the user, and the next calls are as ever."""
    with harness.fresh_torch_state():
        world = compiled(program)
        reached = 0
        with sites.arm(site, passage, sites.Interrupt) as armed:
            for call in program.calls:
                try:
                    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        call(world)
                except KeyboardInterrupt:
                    reached += 1
            fired = armed.fired()
        torch.set_autocast_enabled("cpu", False)  # it may have come before the program's own `__exit__` was through
        nothing_is_left(world)
    if not fired:
        return "not reached"
    if reached != 1:
        raise Failed("the interrupt was lost" if reached == 0 else f"{reached} interrupts")
    if program.repeatable:
        with harness.fresh_torch_state():
            program.world()  # draws random numbers, as it did for the reference
            compare(known.plain[0], run(program, world), " after the interrupt")
            nothing_is_left(world)
    return "reached the user"


def compare(wanted: Round, got: Round, where: str = "") -> None:
    for number, (plain, found) in enumerate(zip(wanted.seen, got.seen, strict=True), start=1):
        if plain != found:
            raise Failed(f"call {number}{where} differs:\n{harness.difference(plain, found)}")


def nothing_is_left(world: harness.World) -> None:
    """Nobody watches, no mode is on, no lock is held."""
    caches = [world.fn.stator._program.cache]
    for cache in caches:
        caches += [inner for _, inner in cache.continuations.values()]
    found = [what for what, is_there in LEFT.items() if is_there()]
    found += ["a lock"] * any(cache.recording.locked() or _is_held(cache._lock) for cache in caches)
    if found:
        raise Failed(f"left behind: {', '.join(found)}")


def _is_held(lock: Any) -> bool:
    """A re-entrant lock, by this thread or another: it does not say so itself before CPython 3.14."""
    if lock._is_owned():
        return True
    free = lock.acquire(blocking=False)
    if free:
        lock.release()
    return not free


LEFT: dict[str, Callable[[], Any]] = {
    "a watcher": _native.current,
    "the frame hook": _native.hook_installed,
    "a torch function mode": torch._C._len_torch_function_stack,
    "a torch dispatch mode": torch._C._len_torch_dispatch_stack,
    "the collector, off": lambda: not gc.isenabled(),
    "a handled exception": lambda: sys.exc_info()[0],
    "a tracer": sys.gettrace,
}


def cleaned_up() -> bool:
    """After a failure: can the next trial start in this process?"""
    gc.enable()
    return not any(is_there() for what, is_there in LEFT.items() if what != "a handled exception")
