"""How a segment ends: at a break, where the program goes on behind it or not, or because something has failed.

Enters: the watched run and why it cannot be recorded further. Leaves: the run with one more recording, which waits for
the next segment or has stopped; the program has back what is its own. Nothing here alters what the program does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

import torch

from ... import _native
from ...errors import BreakReason
from ...interrupts import is_from_outside, is_put_in
from ...recording import Recording
from ..finish import conclude
from ..finish.resume_points import Break, NotResumable, break_here
from ..graph_break import BreakGraph, learn
from ..objects.object_age import newborn
from ..objects.own_objects import is_unguarded
from .break_reasons import reason_of, words
from .recorded import RecordedSegment
from .unguarded_values import give_back, is_call_of
from .watched_run import WatchedRun

_SET_TRACERS = frozenset({"sys.settrace", "sys.setprofile"})
_LOOK_AT_CALLERS = frozenset({"frames", "call-warn"})


def add(
    run: WatchedRun, recording: Recording, transient: bool = False, *, again: bool = False, bare: bool = False
) -> None:
    assumed = None if bare else conclude.assumptions(run.segment)
    run.segments.append(RecordedSegment(run.segment.point, recording, assumed, transient, again))


def lasting(run: WatchedRun, recording: Recording) -> Recording:
    """The recording, if its guards can hold in another call."""
    made = newborn(recording.origins, run.beginning)
    if made is not None:
        raise BreakGraph("unguardable", f"{made.__qualname__}, which the call itself has made", transient=True)
    return recording


def plain_recording(run: WatchedRun, reason: BreakReason | None = None, *, bare: bool = False) -> Recording:
    """What is known of a run that cannot be replayed. `bare`: without guards, which would keep what they name."""
    return conclude.plain(run.segment, reason, bare=bare)


def stop_recording(run: WatchedRun, stop: BreakGraph) -> None:
    """The recording cannot go on here; the run does."""
    try:
        _end_here(run, stop)
    except Exception as fault:
        _end_by(run, fault)


def _end_by(run: WatchedRun, fault: BaseException) -> None:
    """While the program is at work: what another thread has put in is raised in it."""
    collapse(run, fault)
    if run.failure is not None and is_put_in(run.failure):
        run.watcher.interrupt(run.failure)


def collapse(run: WatchedRun, fault: BaseException) -> None:
    """The recorder itself has failed: nothing of this run is kept, and the program gets back what is its own."""
    if isinstance(fault, RecursionError):  # the program's, of which we had our share
        run.exhausted = True
    else:
        run.failure = run.failure or fault
    run.over, run.waiting = True, False
    run.segments = []
    for step in (_stop_tracing, _make_plain, _give_all_back):
        for _ in range(2):
            try:
                step(run)
            except Exception as error:  # parts of it may be gone
                if is_from_outside(error):
                    run.failure = error
                    continue  # and once more
            break
    if run.mode.take_off() or not _wait_for_mode(run):
        run.watcher.stop()


def _stop_tracing(run: WatchedRun) -> None:
    run.segment.tracer.active = False


def _give_all_back(run: WatchedRun) -> None:
    give_back(run.segment, unguarded=True, inside=True)


def _end_here(run: WatchedRun, stop: BreakGraph) -> None:
    if run.over or run.waiting:
        return
    reason = reason_of(stop, run.watcher.last_probe)
    run.segment.tracer = run.segment.tracer.abandon()
    run.segment.tracer.active = False
    if stop.untrusted:
        give_up(run, stop, reason)
        give_back(run.segment, unguarded=True, inside=stop.inside)
        _stop_watching(run)
        return
    try:
        if stop.detail in _SET_TRACERS or (stop.reason == "other-compiler" and stop.detail.endswith("__enter__")):
            raise NotResumable("a tracer, or another compiler, would see frames that are not the program's")
        _suspend(run, reason, inside=stop.inside)
    except NotResumable as why:
        earlier = learn(why.probe, run.program, stop.reason, stop.detail)
        stop.again = earlier or _break_before_pass(run)
        give_up(run, stop, replace(reason, rest=str(why)))
        give_back(run.segment, unguarded=True, inside=stop.inside)
        if earlier:
            _wait(run, None, why.calls)
        else:
            _stop_watching(run)
    except (BreakGraph, RecursionError) as why:
        stop.again = _break_before_pass(run)
        give_up(run, stop, replace(reason, rest=words(why)))
        give_back(run.segment, unguarded=True, inside=stop.inside)
        _stop_watching(run)


def _break_before_pass(run: WatchedRun) -> bool:
    """The graph comes to nothing because of what stands behind a backward pass: the next one is to end before."""
    return learn(run.segment.graph.passed, run.program, "backward", "what stands behind it is no graph")


def at_mark(run: WatchedRun, stop: BreakGraph) -> None:
    """An instruction at which somebody has learned to break."""
    assert stop.learned_by is not None
    learned = stop.learned_by.get(run.program)
    if learned is not None:
        stop_recording(run, BreakGraph(*learned))


def give_up(run: WatchedRun, stop: BreakGraph, reason: BreakReason) -> None:
    """The segment runs as plain Python under the guards noted so far."""
    run.over = True
    if not run.known_already:
        made = newborn(run.segment.ledger.origins, run.beginning) is not None
        recording = plain_recording(run, reason, bare=made)
        add(run, recording, stop.transient or made, again=stop.again, bare=made)
    _make_plain(run)


def _wait(run: WatchedRun, broken: Break | None, calls: int = 0) -> None:
    """The next segment is to start in the frame so many calls away, behind the instruction where it stands."""
    run.last_break = broken and broken.emptied(lambda value: is_unguarded(run.own.original(value)))
    run.waiting, run.over = True, False
    run.segment.tracer.active = False
    run.mode.take_off()
    run.watcher.pend(calls)
    _let_die(run)


def _stop_watching(run: WatchedRun) -> None:
    """Nothing more is recorded of this run."""
    if not run.mode.take_off() and _wait_for_mode(run):
        return
    run.watcher.stop()
    run.on_stop()
    _let_die(run)


def _wait_for_mode(run: WatchedRun) -> bool:
    """Torch is at work with the mode: it can be taken off at the next probe. False: there is none to wait for."""
    if run.stopping or run.waiting:
        return False
    try:
        run.watcher.pend()
    except RuntimeError:
        return False
    run.stopping = True
    return True


def _let_die(run: WatchedRun) -> None:
    """The program may look whether what it has given up is gone."""
    run.slots, run.segment.context.slot_values = (), []
    run.segment.attributes.let_go()
    with contextlib.suppress(RuntimeError):  # in use: then it is closed with the next segment
        run.segment.ledger.close()


def _suspend(run: WatchedRun, reason: BreakReason | None, *, inside: bool) -> None:
    """End the segment before the instruction at which it breaks; the next one is to start behind it."""
    if run.segment.tracer.last_effect == run.watcher.events:
        raise NotResumable("the instruction has changed something already")
    with torch._C.DisableTorchFunction():
        here = break_here(run.watcher, inside=inside)
        if reason is not None and reason.id in _LOOK_AT_CALLERS and len(here.frames) > 1:
            raise NotResumable("the frames of its callers would not be there")
        if not run.known_already:
            recording = lasting(run, conclude.at_break(run.segment, here, _held(run), partial(_known_function, run)))
            if reason is not None and not _goes_on_in_a_loop(run, reason):
                recording.break_reason = reason
            add(run, recording)
        give_back(run.segment, unguarded=True, inside=inside)
    _make_plain(run)
    _wait(run, here)
    if reason is not None and reason.id == "let-go":
        run.segment.ledger.close()


def _make_plain(run: WatchedRun) -> None:
    """What runs from here on finds the numbers that the program has put there."""
    if run.segment.symbols is not None:
        run.segment.symbols.close()


def _goes_on_in_a_loop(run: WatchedRun, reason: BreakReason) -> bool:
    """Is this the next round of a loop with a break in it? Its iterator is outside now; that is no new break."""
    probe = run.watcher.last_probe
    assert probe is not None
    return run.segment.point is not None and reason.id == "outside-iterator" and probe.kind == _native.NEXT


def step_over(run: WatchedRun) -> bool:
    """Let Python make the next step, if that can be: one segment ends here, the next begins behind it."""
    noted = run.segment.ledger.changed_at == run.watcher.events
    if noted and not is_call_of(run.segment, run.watcher.last_probe, list.append):
        return False  # the change counts as made: it is too late to break
    try:
        _suspend(run, None, inside=False)
    except NotResumable:
        return False
    return True


def _held(run: WatchedRun) -> Iterator[Any]:
    """What the frames' variables hold and nobody else may: made inside, or by Python at an earlier break."""
    for entry in run.watcher.frames()[0]:
        for value in entry[5]:
            if id(value) not in run.callers and (
                run.segment.point is not None or run.segment.ledger.find(value) is None
            ):
                yield value


def _known_function(run: WatchedRun, function: FunctionType) -> FunctionType:
    """A function with the same closure that the segment knows. To it the frames that it started with are those of
    their continuations.
    """
    return run.continued.get(id(function), (function, function))[0]


def lost(run: WatchedRun, raised: bool) -> None:
    """The program left the frame of the break otherwise: by an exception, as a rule."""
    run.over = True
    if run.stopping:
        run.mode.take_off()
        run.watcher.stop()
        run.on_stop()
    else:
        _stop_watching(run)


def failed_inside(run: WatchedRun, error: BaseException) -> None:
    """The recording cannot go on while an instruction is at work."""
    failed(run, error, inside=True)


def failed(run: WatchedRun, error: BaseException, *, inside: bool = False) -> None:
    """A handler raised: on purpose (BreakGraph), or because something in stator is wrong. `inside`: what lies on
    the stack is in use."""
    if isinstance(error, RecursionError):  # the program's, of which we had our share
        error = BreakGraph("recursion", "a handler", transient=True)
    if isinstance(error, BreakGraph):
        error.inside = error.inside or inside
        stop_recording(run, error)
    else:
        _end_by(run, error)
