"""Looking for a recording that fits a call: which, if any; and if none does, may the call be recorded?

Enters: a program and what a call was given. Leaves: an entry with the values that its replay needs; `PLAIN`, the call
runs as plain Python; or None: the call is to be recorded, and this thread holds the lock that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from . import _native, events, reporting
from .errors import BreakReason, GraphBreakError, RecompileError
from .fallback import TRANSIENT_LIMIT, break_at, plain, tell_failures
from .interrupts import let_through
from .program import LookupResult, Program, Slots
from .replay.cache import Entry, Pending
from .replay.guard_text import Miss, first_read, of_module
from .replay.guards import EntryGuards
from .stance import stance
from .support.guard_readers import torch_state
from .watch.observe import policy

_NEVER_WHOLE = frozenset({"generator-root", "coroutine-root", "other-compiler"})  # functions that are never one graph
_LOOKS = 8  # in one call, while others add to the recordings each time
_SHARERS = 16  # functions of one code that may have all recordings that one may have


def look(program: Program, inputs: Slots, looks: int = _LOOKS) -> LookupResult:
    """The recording that fits a call, and the values that its replay needs; `Plain`: the call is not compiled;
    None: it is to be recorded, by who holds the lock `program.cache.recording` now.
    """
    why = program.unwatchable or _why_plain()
    if why is not None:
        if program.fullgraph and type(why) is BreakReason and why.id in _NEVER_WHOLE and stance() != "force_eager":
            raise GraphBreakError(why)
        return plain(program, why)
    if program.stats.failures:
        tell_failures(program)
    pending = program.cache.pending  # before the entries, of which one may become one now
    state = torch_state()
    entries = program.cache.entries
    for entry in entries:
        values = entry.guards.check(inputs, state)
        if values is not None:
            return _take(program, entry, values)
    for each in pending:
        if each.guards.check(inputs, state) is not None:
            refuse_breaks(program, each)
            return plain(program, "it is being compiled")
    if stance() == "default" and program.backoff.spares():
        return plain(program, "there are as many recordings as there may be")
    return _miss(program, inputs, entries, looks)


def _take(program: Program, entry: Entry, values: Slots) -> LookupResult:
    program.cache.used(entry)
    if not entry.published and not (program.fullgraph and entry.break_reason is not None):
        program.cache.publish(entry)
    refuse_breaks(program, entry)
    return plain(program, entry.break_reason) if entry.replay is None else (entry, values)


def refuse_breaks(program: Program, entry: Entry | Pending) -> None:
    if program.fullgraph and entry.break_reason is not None:
        raise GraphBreakError(entry.break_reason)


def _why_plain() -> str | None:
    if stance() == "force_eager":
        return "the stance is force_eager"
    if torch._C._len_torch_function_stack():
        return "a torch function mode of the program is active"
    if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
        return "a function transform of the program is active"
    return None


def look_again(program: Program, entry: Entry, inputs: Slots) -> LookupResult:
    """A recording went by a number that is another one now. If that happens often, the next ones will not."""
    program.cache.unexpected += 1
    program.cache.remove(entry)
    return _miss(program, inputs, program.cache.entries)


def _miss(program: Program, inputs: Slots, tried: tuple[Entry, ...], looks: int = _LOOKS) -> LookupResult:
    recording = program.cache.recording
    free = recording.acquire(blocking=False)
    try:
        if free and not set(program.cache.entries) <= set(tried):  # another thread has just made one
            recording.release()
            free = False
            if looks > 1:
                return look(program, inputs, looks - 1)
        refused = _refuse(program, inputs, free)
    except BaseException:
        if free:
            recording.release()
        raise
    if refused is None:
        return None
    if free:
        recording.release()
    return plain(program, refused)


def _refuse(program: Program, inputs: Slots, free: bool) -> Any:
    """No recording fits. Why it is not recorded, either; None if it is. `free`: no other thread records."""
    known = known_guards(program)
    miss = _why(program, known[0], inputs) if known else None
    if known:
        program.stats.last_miss = miss
        if program.point is not None:
            program.cache.note_change(known[0], inputs)
        note_symbols(program, inputs, known)
    refused: Any = "the stance forbids it"
    try:
        refused = _refuse_to_record(program, miss)
        if refused is None and not free:
            refused = "another thread is recording"
    finally:
        events.emit(events.CacheMiss(program.name, miss, refused is None, program.stats.calls + 1))
    return refused


def known_guards(program: Program) -> list[EntryGuards]:
    """Of all recordings, those which are still being compiled included; most recently used first."""
    pending = program.cache.pending
    return [entry.guards for entry in program.cache.entries] + [each.guards for each in pending]


def _refuse_to_record(program: Program, miss: Miss | None) -> Any:
    """Why a call that no recording fits is not recorded; None if it is."""
    known = bool(known_guards(program))
    now = stance()
    if now == "fail_on_recompile" and known:
        raise RecompileError(program.name, miss)
    if now == "eager_on_recompile" and known:
        return miss
    if now == "eager_then_compile" and not known and not program.seen_plain and program.point is None:
        program.seen_plain = True
        return "the stance is eager_then_compile, and this is the first call"
    if is_full(program):
        return _limit_reached(program, miss)
    if policy.tracer_active():
        return _break_once(program, "tracer-active")
    if not _native.builtins_intact():
        return _break_once(program, "builtins-replaced")
    if torch._C._is_torch_function_all_disabled():
        return "torch's modes are disabled"
    if program.transient >= TRANSIENT_LIMIT or _native.current() is not None:
        return "recording was given up"
    return None


def is_full(program: Program, more: int = 0) -> bool:
    """Are there, with so many more, as many recordings as there may be? The limit is each function's own, whoever
    shares its code; together they have some more."""
    limit, cache = program.settings.cache_size_limit, program.cache
    if cache.recorded_by(program.start) + more >= limit:
        return True
    if len(cache.entries) + more < limit * _SHARERS:
        return False
    cache.drop_orphans()
    return len(cache.entries) + more >= limit * _SHARERS


def note_symbols(program: Program, inputs: Slots, guards: Iterable[EntryGuards]) -> None:
    if program.settings.dynamic_shapes:
        try:
            program.cache.note_symbols(inputs, guards)
        except Exception as error:  # whatever the objects in it do when they are looked at
            let_through(error)


def _why(program: Program, guards: EntryGuards, inputs: Slots) -> Miss | None:
    """Words about a miss must not cost a call its result, whatever the objects in it do when they are looked at."""
    try:
        miss = guards.why(inputs)
        if miss is not None and not miss.place and miss.guard in program.names:  # guarded before anything ran
            return miss._replace(place=first_read(program.function.__code__, miss.guard))
        if miss is not None and isinstance(inputs[0], torch.nn.Module) and program.names[1:] == ("args", "kwargs"):
            return of_module(miss, inputs[0])
        return miss
    except Exception as error:
        let_through(error)
        if not program.settings.suppress_errors:
            raise
        return Miss(program.name, "guards to hold", f"{type(error).__name__}: {error}", "")


def _limit_reached(program: Program, miss: Miss | None) -> str:
    own, together = program.cache.recorded_by(program.start), len(program.cache.entries) + len(program.cache.pending)
    sharing = "" if own >= program.settings.cache_size_limit else f" ({together} with others of the same code)"
    text = (
        f"{program.name} has {own} recordings{sharing} and none fits: {miss}. "
        "It runs as plain Python from here on; raise stator.options.cache_size_limit or keep that value constant."
    )
    if not program.warned:
        program.warned = True
        reporting.warn(text)
    program.cache.publish_all(broken=not program.fullgraph)  # C code is to tell by itself that none fits
    program.backoff.missed(sum(entry.hits for entry in program.cache.entries))
    return text


def _break_once(program: Program, reason_id: str) -> BreakReason | str:
    if program.warned:
        return reason_id
    program.warned = True
    return break_at(program, reason_id)
