"""The stages in order: check, replay; or else watch, compile, emit, store.

A `Program` is one function under compilation. It gets a call's argument slots and gives back the function's result,
whatever happens inside: a recording that cannot be trusted is dropped, a failure of ours falls back to the function.

A function whose graph breaks is a program with *continuations*: programs too, each the rest of the function from one
place on. A replay that ends at a break jumps to one of them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from . import _native, async_compile, events, reporting
from .backends.registry import Backend
from .build import build
from .calling import Given, hand_over
from .errors import (
    BackendError,
    BreakReason,
    GraphBreakError,
    InternalError,
    RecompileError,
    SpecializationError,
    StatorError,
    StorageError,
    VerificationError,
    break_reason,
    is_half_done,
    is_unwritten,
)
from .options import View, options
from .recording import Recording, ResumePoint, is_module_call
from .replay.backoff import Backoff
from .replay.cache import Cache, Entry, Pending
from .replay.graph import may_have_run
from .replay.guard_text import Miss, first_read, first_read_in_forward
from .replay.guards import EntryGuards
from .support import background
from .support.graph_numbers import Failed, Unexpected
from .support.interrupts import is_from_handler
from .support.tensor_memory import refuse_short
from .watch.models import other_compiler, user_hints
from .watch.observe import policy
from .watch.observe.recorder import CacheHistory, RecordedSegment, Recorder
from .watch.symbols.symbolic_numbers import Changing

Slots = tuple[Any, ...]
_MOST_UNEXPECTED = 4  # recordings of a function that may turn out to go by numbers that change
_TRANSIENT_LIMIT = 3
_SUSPENDED = frozenset({"generator-root", "coroutine-root"})  # kinds of functions that are never one graph
_SHARERS = 16  # functions of one code that may have all recordings that one may have
# What torch's operations raise for the data that they are given.
_OF_OPERATIONS = (IndexError, RuntimeError, ValueError, AssertionError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
_OF_COLLECTIVES: tuple[type[BaseException], ...] = (getattr(torch.distributed, "DistError", GraphBreakError),)
_FOR_THE_USER = (BackendError, GraphBreakError, InternalError, SpecializationError)
_stance = "default"


def set_stance(stance: str) -> str:
    """What to do with calls: the former stance is given back."""
    global _stance
    former, _stance = _stance, stance
    _let_c_code_call()
    return former


def stance() -> str:
    """What to do with calls: as the program has told us, or torch's own compiler."""
    return _stance if _stance != "default" else other_compiler.stance()


def _let_c_code_call() -> None:
    """Compiled callables check and replay in C, unless something wants to see or to prevent that."""
    _native.set_quick(_stance != "force_eager" and not options.check_guards, events.READERS, events.CacheHit)


options.on_change(_let_c_code_call)
_let_c_code_call()


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """The argument slots of a code object, in the order of its local variables."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Finalizers of earlier garbage would run inside the recording, and full collections take longer than it does."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _put_back(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(contents)


class _Overtaken(Exception):
    """Another thread has changed what a replay relies on, before it had the lock."""


class Plain:
    """A call is not compiled: it runs as plain Python."""

    __slots__ = ()


PLAIN = Plain()
LookUp = tuple[Entry, Slots] | Plain | None
Look = Callable[[Slots], LookUp]


class BreakReached:
    """A replay of `function` has come to a break: `step` makes the step, and says where the program goes on."""

    __slots__ = ("function", "state", "step")

    def __init__(self, step: _native.BreakStep, function: types.FunctionType, state: Slots) -> None:
        self.step = step
        self.function = function
        self.state = state

    def go(self) -> _native.PendingResume:
        state, self.state = self.state, ()
        try:
            return self.step.go(self.function, state)
        finally:
            del state  # the traceback of what the step raises may have this frame


@dataclass(slots=True)
class Stats:
    """What has happened in the calls of a function, its continuations included."""

    count: _native.Count = field(default_factory=_native.Count)  # calls served by replays alone
    recordings: int = 0  # watched runs that gave an entry
    plain: int = 0  # calls of which a part ran as plain Python
    last_miss: Miss | None = None
    graphs: list[fx.GraphModule] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)
    passed: _native.Count = field(default_factory=_native.Count)  # plain calls that nobody looked at
    complained: bool = False  # a fault of ours was warned of
    failures: list[tuple[Program, BaseException]] = field(default_factory=list)  # in the background, not told yet

    @property
    def hits(self) -> int:
        return self.count.value

    @property
    def plain_calls(self) -> int:
        return self.plain + self.passed.value


def _comes_from_program(error: BaseException) -> bool:
    """Was it raised by Python code of the program's that a graph has called? (TorchInductor writes files, too.)"""
    names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(not (name.startswith("<") or policy.is_trusted(name) or "torchinductor" in name) for name in names)


class Program:
    """One function and its recordings."""

    def __init__(
        self,
        function: types.FunctionType,
        call_plain: Callable[[types.FunctionType, Given], Any],
        *,
        name: str,
        backend: tuple[str, Backend],
        settings: View,
        fullgraph: bool,
        cache: Cache,
        start: Program | None = None,
        point: ResumePoint | None = None,
    ) -> None:
        """`start` and `point`: this is what follows `start` behind a break."""
        self.function = function
        self.name = name
        self.call_plain = call_plain
        self.backend = backend
        self.settings = settings
        self.fullgraph = fullgraph
        self.names = slot_names(function.__code__) if point is None else point.names
        self.cache = cache
        self.start = start or self
        self.point = point
        self.stats: Stats = start.stats if start is not None else Stats()
        self._continuations: dict[tuple[int, ...], Program] = {}
        self._transient = 0
        self._raised = 0
        self._warned = False
        self.backoff = Backoff()
        self._seen_plain = False  # a first call has run plain, as the stance wanted
        self._unwatchable = self.break_at_root = self._why_not(function)

    def reset(self) -> None:
        """Forget every recording."""
        self.cache.clear()
        self._continuations = {}
        self.stats.last_miss = None
        self.stats.graphs.clear()
        self.stats.break_reasons.clear()
        self.stats.complained = False
        self.stats.failures.clear()
        self._transient = self._raised = 0
        self._warned = self._seen_plain = False
        self.backoff.reset()

    def wait(self, timeout: float | None) -> bool:
        """Until nothing is being compiled in the background, or so many seconds."""
        done = background.wait(lambda: not self.cache.is_pending(), timeout)
        self._tell_failures()
        return done

    def continuation(self, point: ResumePoint) -> Program:
        """The program from `point` on."""
        found = self._continuations.get(point.key)
        if found is None:
            code, namespace = point.frames[0]
            found = self._continuations[point.key] = Program(
                types.FunctionType(code, namespace, code.co_name, None, self.function.__closure__),
                hand_over,
                name=self.name,
                backend=self.backend,
                settings=self.settings,
                fullgraph=self.fullgraph,
                cache=self.cache.continuation(point),
                start=self,
                point=point,
            )
        return found

    # -- a call

    def __call__(self, slots: Slots) -> Any:
        outcome = self._call(self.function, slots)
        return self._follow(outcome) if type(outcome) is BreakReached else outcome

    def go_on(self, pending: _native.PendingResume) -> Any:
        """C code has made a step and found no recording for what follows."""
        return self._follow(pending)

    def _follow(self, outcome: Any) -> Any:
        """From break to break, up to the result. Nothing here holds on to what a segment was given."""
        stats = self.stats
        before = (stats.recordings, stats.plain_calls)
        try:
            while True:
                if type(outcome) is BreakReached:
                    outcome = outcome.go()
                elif type(outcome) is _native.PendingResume:
                    outcome = self._land(outcome)
                else:
                    return outcome
        finally:
            stats.count.value += (stats.recordings, stats.plain_calls) == before

    def _land(self, pending: _native.PendingResume) -> Any:
        target = pending.target
        function, slots = pending.take()
        program = None if target.point.raises else self._program_behind(target)
        # No program: a handler, or nothing but the way out; or a fault of ours.
        if program is None:
            return hand_over(function, slots)
        if program.backoff.lets_pass():
            self.stats.passed.value += 1
            return program.call_plain(function, slots)
        return program._call(function, slots)

    def _program_behind(self, target: _native.ResumeTarget) -> Program | None:
        try:
            program = self.continuation(target.point)
            if target.table is not program.cache.table:
                target.open(program.cache.table)
        except Exception as error:
            self._internal_failure("going on behind a break", error)
            return None
        return program

    def _call(self, function: types.FunctionType, slots: Given) -> Any:
        """The result, or a `BreakReached`: where a replay has come to a break."""
        return self._proceed(self._look, function, slots)

    def _proceed(self, look: Look, function: types.FunctionType, slots: Given) -> Any:
        """Look what is to be done about a call, and do it."""
        try:
            found = look((*slots, function))
        except StatorError:  # meant for the user
            raise
        except Exception as error:
            if is_from_handler(error):
                raise
            found = self._not_found(error)
        if isinstance(found, Plain):
            return self.call_plain(function, slots)
        if found is not None:
            return self._replay(*found, function, slots)
        if not self.cache.recording.acquire(blocking=False):
            return self.call_plain(function, slots)
        try:
            return self._record(function, slots)
        finally:
            self.cache.recording.release()

    def _look(self, inputs: Slots) -> LookUp:
        """The recording that fits a call, and the values that its replay needs; `Plain`: the call is not compiled;
        None: it is to be recorded.
        """
        why = self._unwatchable or self._why_plain()
        if why is not None:
            if self.fullgraph and type(why) is BreakReason and why.id in _SUSPENDED and stance() != "force_eager":
                raise GraphBreakError(why)
            return self._plain(why)
        if self.stats.failures:
            self._tell_failures()
        pending = self.cache.pending  # before the entries, of which one may become one now
        for entry in self.cache.entries:
            values = entry.guards.check(inputs)
            if values is not None:
                return self._take(entry, values)
        for each in pending:
            if each.guards.check(inputs) is not None:
                self._refuse_breaks(each)
                return self._plain("it is being compiled")
        return self._miss(inputs)

    def _take(self, entry: Entry, values: Slots) -> LookUp:
        self.cache.used(entry)
        if not entry.published and not (self.fullgraph and entry.break_reason is not None):
            self.cache.publish(entry)
        self._refuse_breaks(entry)
        return self._plain(entry.break_reason) if entry.replay is None else (entry, values)

    def _refuse_breaks(self, entry: Entry | Pending) -> None:
        if self.fullgraph and entry.break_reason is not None:
            raise GraphBreakError(entry.break_reason)

    @staticmethod
    def _why_plain() -> str | None:
        if stance() == "force_eager":
            return "the stance is force_eager"
        if torch._C._len_torch_function_stack():
            return "a torch function mode of the program is active"
        if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
            return "a function transform of the program is active"
        return None

    def _not_found(self, error: Exception) -> Plain:
        """Looking for a recording has failed. Those that are there are not tried again."""
        self.cache.clear()
        self._internal_failure("looking for a recording", error)
        return PLAIN

    def _replay(self, entry: Entry, values: Slots, function: types.FunctionType, slots: Given) -> Any:
        error: Exception
        saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.stats.count.value += self.start is self and entry.step is None
        start = time.perf_counter()
        try:
            if entry.lock is None:
                result = self._run(entry, values, saved)
            else:
                result = self._run_locked(entry, values[entry.lock], (*slots, function), saved)
        except Exception as raised:
            error = raised
        else:
            if events.READERS:
                self._tell_hit(entry, time.perf_counter() - start)
            return result if entry.step is None else BreakReached(entry.step, function, result)
        early = isinstance(error, Failed)
        if entry.restores or early:
            for tensor, contents in saved:
                _put_back(tensor, contents)
        if type(error) is Unexpected:
            return self._proceed(lambda inputs: self._look_again(entry, inputs), function, slots)
        if type(error) is _Overtaken:
            return self._proceed(self._look, function, slots)
        return self._repeat(entry, error, bool(entry.restores) or early, function, slots)

    @staticmethod
    def _run(entry: Entry, values: Slots, saved: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        for position in entry.restores or entry.early:
            refuse_short(values[position])
            saved.append((values[position], values[position].detach().clone()))
        return entry.replay(values)  # type: ignore[misc]  # those without one are not replayed

    def _run_locked(
        self, entry: Entry, lock: Any, inputs: Slots, saved: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> Any:
        """The program takes this lock. Another thread may have held it until now, and changed what the guards found."""
        with contextlib.ExitStack() as held:
            held.enter_context(lock)
            values = entry.guards.check(inputs)
            if values is None or entry.lock is None or values[entry.lock] is not lock:
                raise _Overtaken
            result = self._run(entry, values, saved)
            if entry.keeps_lock:
                held.pop_all()
            return result

    def _repeat(
        self, entry: Entry, error: BaseException, restored: bool, function: types.FunctionType, slots: Given
    ) -> Any:
        """A replay raised. What it changed is as before: the function itself raises what eager raises. If it does not
        raise, it has handled what an operation raised, or the fault is ours, or the backend's. What is not as before,
        and what no operation has raised, goes to the program.
        """
        if isinstance(error, (VerificationError, StorageError)) or is_half_done(error) or is_from_handler(error):
            raise error
        if entry.acts and (_comes_from_program(error) or isinstance(error, _OF_COLLECTIVES)):
            raise error
        if entry.mutates and not restored and not is_unwritten(error) and may_have_run(entry.replay, error):
            error.add_note(f"raised by the replay of {self.name}, which had already written to its inputs")
            raise error
        result = self.call_plain(function, slots) if function is self.function else hand_over(function, slots)
        expected = isinstance(error, Failed) or restored or type(error) in _OF_OPERATIONS
        if not expected:
            self._internal_failure("a replay", error)
        return result

    def _look_again(self, entry: Entry, inputs: Slots) -> LookUp:
        """A recording went by a number that is another one now. If that happens often, the next ones will not."""
        self.cache.unexpected += 1
        self.cache.remove(entry)
        return self._miss(inputs)

    def _tell_hit(self, entry: Entry, seconds: float) -> None:
        try:
            if events.listening(events.CacheHit):
                events.emit(events.CacheHit(self.name, entry.number, seconds, entry))
        except Exception as error:
            self._internal_failure("telling of a hit", error)

    def resume(self, entry: Entry, values: Slots, slots: Slots) -> Any:
        """C code found that an entry's guards hold, and that there is more to do than to call its replay."""
        entry.count.value += 1
        self._refuse_breaks(entry)
        if entry.replay is None:
            self._plain(entry.break_reason)
            return self.call_plain(self.function, slots)
        outcome = self._replay(entry, values, self.function, slots)
        return self._follow(outcome) if type(outcome) is BreakReached else outcome

    def replay_failed(self, entry: Entry, error: BaseException, function: types.FunctionType, slots: Slots) -> Any:
        """A replay that C code called raised: one of ours, or of a continuation of ours."""
        # Nothing had to be saved before: a number that failed did so before anything was written.
        owner = self._owner_of(entry) if type(error) is Unexpected else None
        if owner is None:
            return self._repeat(entry, error, isinstance(error, Failed), function, slots)
        outcome = owner._proceed(lambda inputs: owner._look_again(entry, inputs), function, slots)
        return self._follow(outcome) if type(outcome) is BreakReached else outcome

    def _owner_of(self, entry: Entry) -> Program | None:
        """The program, this one or a continuation, whose recording this is."""
        programs = (self, *self.start._continuations.values())
        return next((program for program in programs if entry in program.cache.entries), None)

    def _plain(self, why: Any) -> Plain:
        """A call is going to run as plain Python."""
        self.stats.plain += 1
        if events.RanPlain in events.READERS:
            events.emit(events.RanPlain(self.name, why))
        return PLAIN

    # -- a miss

    def _miss(self, inputs: Slots) -> LookUp:
        known = self._known_guards()
        miss = self._why(known[0], inputs) if known else None
        if known:
            self.stats.last_miss = miss
            if self.point is not None:
                self.cache.note_change(known[0], inputs)
            self._note_symbols(inputs, known)
        events.emit(events.CacheMiss(self.name, miss))
        refused = self._refuse_to_record(miss)
        if refused is None and self.cache.recording.locked():
            refused = "another thread is recording"
        return None if refused is None else self._plain(refused)

    def _known_guards(self) -> list[EntryGuards]:
        """Of all recordings, those which are still being compiled included; most recently used first."""
        pending = self.cache.pending
        return [entry.guards for entry in self.cache.entries] + [each.guards for each in pending]

    def _refuse_to_record(self, miss: Miss | None) -> Any:
        """Why a call that no recording fits is not recorded; None if it is."""
        known = bool(self._known_guards())
        now = stance()
        if now == "fail_on_recompile" and known:
            raise RecompileError(self.name, miss)
        if now == "eager_on_recompile" and known:
            return miss
        if now == "eager_then_compile" and not known and not self._seen_plain and self.point is None:
            self._seen_plain = True
            return "the stance is eager_then_compile, and this is the first call"
        if self._is_full():
            return self._limit_reached(miss)
        if policy.tracer_active():
            return self._break_once("tracer-active")
        if not _native.builtins_intact():
            return self._break_once("builtins-replaced")
        if torch._C._is_torch_function_all_disabled():
            return "torch's modes are disabled"
        if self._transient >= _TRANSIENT_LIMIT or _native.current() is not None:
            return "recording was given up"
        return None

    def _is_full(self, more: int = 0) -> bool:
        """Are there, with so many more, as many recordings as there may be? The limit is each function's own, whoever
        shares its code; together they have some more."""
        limit, cache = self.settings.cache_size_limit, self.cache
        if cache.recorded_by(self.start) + more >= limit:
            return True
        if len(cache.entries) + more < limit * _SHARERS:
            return False
        cache.drop_orphans()
        return len(cache.entries) + more >= limit * _SHARERS

    def _record(self, function: types.FunctionType, slots: Given) -> Any:
        """Watch the call; its result is the call's result, whatever becomes of the recording."""
        start = time.perf_counter()
        recorder: Recorder | None = None
        try:
            user_hints.adopt_marks([*slots])
            known = self._history(False)
            recorder = Recorder(self.name, self.start, self.settings, self._ask, known, whole=self.fullgraph)
            recorder.prepare(function, self.names, slots, self.point, frozenset(self.cache.changing))
        except Exception as error:
            recorder = None
            self._internal_failure("preparing to watch", error)
        if recorder is None:
            return self.call_plain(function, slots)
        segments: list[RecordedSegment] = []
        misled = displaced = False
        try:
            recorder.on_stop = gc.enable if gc.isenabled() else recorder.on_stop  # the program may wait for it
            with _collector_paused(), reporting.watching(self.name, recorder):
                result = recorder.run()
                displaced = recorder.watcher.displaced
                misled = recorder.watcher.misled or recorder.exhausted or displaced
                segments = [] if misled else self._finish(recorder, result)
        except BaseException as error:
            if recorder.raised is error:
                recorder.raised = None  # who holds an exception holds its frames, and these the recorder
                self._note_raise(recorder)
                raise
            if not isinstance(error, Exception):
                raise
            recorder.failure = recorder.failure or error
            if hasattr(recorder, "watcher"):  # it has not been taken apart
                recorder.collapse(error)
                self._let_go(recorder)
        if recorder.raised is not None:  # the fault came while that was on its way
            self._internal_failure("watching", recorder.failure)
            raise recorder.raised
        if not recorder.returned:
            self._not_begun(recorder.failure)
            return self.call_plain(function, slots)
        if misled:  # our own code could not run, or not as it is written, or did not see everything
            self._transient += not displaced
            self.stats.plain += 1
            self._let_go(recorder)
        else:
            self._try_to_keep(recorder, segments, start)
        return recorder.own.original(recorder.returned[0])

    def _not_begun(self, why: BaseException | None) -> None:
        """A run did not even start."""
        if isinstance(why, _native.Unwatchable):
            self._unwatchable = self._break("unwatchable-code", str(why))
            self._plain(self._unwatchable)
        else:
            self._internal_failure("watching", why)

    def _try_to_keep(self, recorder: Recorder, segments: list[RecordedSegment], start: float) -> None:
        try:
            try:
                self._keep(recorder, segments, start)
            except Exception as error:
                self._not_kept(error)
        except (*_FOR_THE_USER, Warning):
            raise
        except Exception as error:
            if is_from_handler(error):
                raise
            self._internal_failure("telling what has failed", error)

    def _not_kept(self, error: BaseException) -> None:
        """A recording has come to nothing: said, or raised."""
        if isinstance(error, BackendError) and error.__cause__ is not None and is_from_handler(error.__cause__):
            error = error.__cause__
        if isinstance(error, BackendError) and self.settings.suppress_errors:
            self._transient = _TRANSIENT_LIMIT
            self.stats.plain += 1
            reporting.warn(f"{error}; {self.name} runs as plain Python")
        elif isinstance(error, _FOR_THE_USER) or not isinstance(error, Exception) or is_from_handler(error):
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        else:
            self._internal_failure("making a replay", error)

    def _tell_failures(self) -> None:
        """Those of the background, of this program and its continuations."""
        while self.stats.failures:
            failed = self.stats.failures.pop(0)
            self.stats.recordings -= 1  # the call that was recorded counts as a plain one
            try:
                failed[0]._not_kept(failed[1])
            finally:
                del failed

    @staticmethod
    def _finish(recorder: Recorder, result: Any) -> list[RecordedSegment]:
        """All segments of the run; none, and the failure noted, if that went wrong. The recorder is taken apart."""
        segments: list[RecordedSegment] = []
        try:
            segments = recorder.finish(result)
        except Exception as error:
            recorder.collapse(error)
        Program._let_go(recorder)
        return segments

    @staticmethod
    def _let_go(recorder: Recorder) -> None:
        try:
            recorder.release()
        except Exception as error:
            recorder.collapse(error)

    def _ask(
        self, segments: list[RecordedSegment], point: ResumePoint, inputs: Slots, state: tuple[Any, ...]
    ) -> CacheHistory:
        """What a call that arrives at `point` with this would find."""
        program = self.start.continuation(point)
        guards = [EntryGuards(s.recording, []) for s in segments if s.point is not None and s.point.key == point.key]
        new = len(guards)
        guards = [*reversed(guards), *program._known_guards()]
        recorded = any(guard.check(inputs, state) is not None for guard in guards)
        if not recorded and guards:
            program.cache.note_change(guards[0], inputs)
            program._note_symbols(inputs, guards)
        full = not recorded and program._is_full(new)
        return program._history(recorded)._replace(full=full)

    def _note_symbols(self, inputs: Slots, guards: Iterable[EntryGuards]) -> None:
        if self.settings.dynamic_shapes:
            with contextlib.suppress(Exception):  # whatever the objects in it do when they are looked at
                self.cache.note_symbols(inputs, guards)

    def _history(self, recorded: bool) -> CacheHistory:
        changing = None
        if self.settings.dynamic_shapes:
            rates = any(reason.id == "scheduler-step" for reason in self.stats.break_reasons)
            changing = Changing(self.cache.symbols, not self.settings.assume_static_by_default, rates)
        expects = self.cache.unexpected < _MOST_UNEXPECTED
        return CacheHistory(recorded, frozenset(self.cache.changing), changing, expects)

    def _keep(self, recorder: Recorder, segments: list[RecordedSegment], start: float) -> None:
        if recorder.failure is not None or not segments:
            self._internal_failure("watching", recorder.failure or RuntimeError("no recording"))
            return
        in_background = self.settings.background_compile and not getattr(self.backend[1], "benchmarks", False)
        parts = []
        for segment in segments:
            program = self if segment.point is None else self.start.continuation(segment.point)
            if program._is_lasting(segment):
                make = functools.partial(program._make_entry, segment.recording, start, recorder.frames)
                part = async_compile.part(program.cache, segment.recording, make) if in_background else None
                if part is None:
                    make(program._store)
                else:
                    parts.append((program, part))
        if parts and not async_compile.Compilation([part for _, part in parts], self._failed_later).submit():
            for program, part in parts:
                part.make(program._store)
        if any(not segment.transient and not segment.again for segment in segments):
            self.stats.recordings += 1
        reasons = [segment.recording.break_reason for segment in segments if segment.recording.break_reason]
        if self.fullgraph and reasons:
            raise GraphBreakError(reasons[0], has_run=True)

    def _failed_later(self, error: BaseException) -> None:
        self.stats.failures.append((self, error))

    def _is_lasting(self, segment: RecordedSegment) -> bool:
        """Is a segment to become an entry?"""
        reason = segment.recording.break_reason
        if reason is not None:
            self.stats.break_reasons.append(reason)
            events.emit(events.GraphBreak(reason))
        if segment.transient or (segment.again and not self.fullgraph):  # else it is refused before it runs once more
            self._transient += segment.transient
            self.stats.plain += 1
            return False
        return True

    def _make_entry(
        self, recording: Recording, start: float, frames: list[types.CodeType], store: Callable[[Entry], bool]
    ) -> None:
        stage = f"compiling with {self.backend[0]}"
        with events.stage(stage, self.name, lambda: recording.operations, self.settings.debug_dir):
            entry = build(recording, self.name, self.backend, self.settings, len(self.stats.graphs) + 1)
            entry.seconds = time.perf_counter() - start
            entry.owner = weakref.ref(self.start)
            if not store(entry):
                return
            self._transient = self._raised = 0
            if entry.number:
                self.stats.graphs.append(entry.graph)
            if events.listening(events.Recorded):
                shown = frames if self.point is None else []
                events.emit(reporting.recorded(self.name, entry, recording, shown, self.names))
        recording.example_inputs = []

    def _store(self, entry: Entry) -> bool:
        self.cache.add(entry)
        return True

    # -- what went otherwise

    def _why(self, guards: EntryGuards, inputs: Slots) -> Miss | None:
        """Words about a miss must not cost a call its result, whatever the objects in it do when they are looked at."""
        try:
            miss = guards.why(inputs)
            if miss is not None and not miss.place and miss.guard in self.names:  # guarded before anything ran
                return miss._replace(place=first_read(self.function.__code__, miss.guard))
            if miss is not None and not miss.caller and is_module_call(miss.place):
                return miss._replace(caller=first_read_in_forward(inputs[0], miss.guard))
            return miss
        except Exception as error:
            if not self.settings.suppress_errors:
                raise
            return Miss(self.name, "guards to hold", f"{type(error).__name__}: {error}", "")

    def _note_raise(self, recorder: Recorder) -> None:
        """The program raised: nothing is kept, unless it keeps raising. A failure here must not hide its exception."""
        self._raised += 1
        self.stats.plain += 1
        fault = recorder.failure or recorder.watcher.error
        try:
            if self._raised >= _TRANSIENT_LIMIT and fault is None and not recorder.segments:
                recording = recorder.plain_recording()
                if recording.break_reason is None:
                    recording.break_reason = break_reason("raises", self.function.__code__, what=self.name)
                self.cache.add(build(recording, self.name, self.backend, self.settings, 0))
            recorder.release()
        except Exception as error:
            recorder.collapse(error)
            fault = fault or error
        if isinstance(fault, Exception):
            self._internal_failure("watching", fault)

    @staticmethod
    def _why_not(function: types.FunctionType) -> BreakReason | None:
        code = function.__code__
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return break_reason("coroutine-root", code, what=code.co_qualname)
        if code.co_flags & inspect.CO_GENERATOR:
            return break_reason("generator-root", code, what=code.co_qualname)
        return None

    def _break(self, reason_id: str, what: str = "") -> BreakReason:
        reason = break_reason(reason_id, self.function.__code__, what=what or self.name)
        self.stats.break_reasons.append(reason)
        events.emit(events.GraphBreak(reason))
        return reason

    def _break_once(self, reason_id: str) -> BreakReason | str:
        if self._warned:
            return reason_id
        self._warned = True
        return self._break(reason_id)

    def _limit_reached(self, miss: Miss | None) -> str:
        own, together = self.cache.recorded_by(self.start), len(self.cache.entries) + len(self.cache.pending)
        sharing = "" if own >= self.settings.cache_size_limit else f" ({together} with others of the same code)"
        text = (
            f"{self.name} has {own} recordings{sharing} and none fits: {miss}. "
            "It runs as plain Python from here on; raise stator.options.cache_size_limit or keep that value constant."
        )
        if not self._warned:
            self._warned = True
            reporting.warn(text)
        self.backoff.missed(sum(entry.hits for entry in self.cache.entries))
        return text

    def give_up(self, reason_id: str) -> None:
        """This function is never to be watched."""
        self._unwatchable = self.break_at_root = break_reason(reason_id, None, what=self.name)

    def _internal_failure(self, where: str, error: BaseException | None) -> None:
        """A fault of ours: the program keeps its result; we keep a report, and warn of the first one."""
        self.stats.plain += 1
        self._transient += 1
        fault = error or RuntimeError("no recording")
        warned, self.stats.complained = self.stats.complained, True
        try:
            reporting.failure(self.name, where, fault, self.settings, quiet=warned)
        except (InternalError, Warning):
            raise
        except Exception:  # not even that can be told
            if not self.settings.suppress_errors:
                raise InternalError(where, fault) from fault
