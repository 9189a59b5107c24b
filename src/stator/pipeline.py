"""The stages in order: check, replay; or else watch, compile, emit, store.

A `Program` is one function under compilation. It gets a call's argument slots and gives back the function's result,
whatever happens inside: a recording that cannot be trusted is dropped, a failure of ours falls back to the function.

A function whose graph breaks is a program with *continuations*: programs too, each the rest of the function from one
place on. A replay that ends at a break jumps to one of them.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from . import _native, announce, events
from .backends.registry import Backend, is_ours
from .errors import BackendError, BreakReason, GraphBreakError, InternalError, SpecializationError, break_reason
from .numbers_in_graphs import Failed, Unexpected
from .options import View, options
from .recording import Recording, Way
from .relations import symbols_in_words
from .replay.cache import Cache, Entry
from .replay.emit import emit, wanted_origins
from .replay.engine import compile_guards
from .replay.graph import restoring
from .replay.guards import Guards
from .replay.words import Miss, first_read
from .watch import policy
from .watch.recorder import Experience, Recorder, Segment
from .watch.symbols import Changing

Slots = tuple[Any, ...]
_MOST_UNEXPECTED = 4  # recordings of a function that may turn out to go by numbers that change
_TRANSIENT_LIMIT = 3
_stance = "default"


def set_stance(stance: str) -> str:
    """What to do with calls: the former stance is given back."""
    global _stance
    former, _stance = _stance, stance
    _let_c_code_call()
    return former


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


class Leaving:
    """A replay of `function` has come to a break: `leave` makes the step, and says where the program goes on."""

    __slots__ = ("function", "leave", "state")

    def __init__(self, leave: _native.Leave, function: types.FunctionType, state: Slots) -> None:
        self.leave = leave
        self.function = function
        self.state = state

    def go(self) -> _native.Jump:
        state, self.state = self.state, ()
        return self.leave.go(self.function, state)


@dataclass(slots=True)
class Tally:
    """What has happened in the calls of a function, its continuations included."""

    count: _native.Count = field(default_factory=_native.Count)  # calls served by replays alone
    recordings: int = 0  # watched runs that gave an entry
    plain: int = 0  # calls of which a part ran as plain Python
    last_miss: Miss | None = None
    graphs: list[fx.GraphModule] = field(default_factory=list)
    break_reasons: list[BreakReason] = field(default_factory=list)

    @property
    def hits(self) -> int:
        return self.count.value


class Program:
    """One function and its recordings."""

    def __init__(
        self,
        function: types.FunctionType,
        call_plain: Callable[[types.FunctionType, Slots], Any],
        *,
        name: str,
        backend: tuple[str, Backend],
        settings: View,
        fullgraph: bool,
        cache: Cache,
        start: Program | None = None,
        way: Way | None = None,
    ) -> None:
        """`start` and `way`: this is what follows `start` behind a break."""
        self.function = function
        self.name = name
        self.call_plain = call_plain
        self.backend_name, self._backend = backend
        self.settings = settings
        self.fullgraph = fullgraph
        self.names = slot_names(function.__code__) if way is None else way.names
        self.cache = cache
        self.start = start or self
        self.way = way
        self.tally: Tally = start.tally if start is not None else Tally()
        self._continuations: dict[tuple[int, ...], Program] = {}
        self._transient = 0
        self._raised = 0
        self._warned = False
        self._unwatchable = self.break_at_root = self._why_not(function)

    def reset(self) -> None:
        """Forget every recording."""
        self.cache.clear()
        self._continuations = {}
        self.tally.last_miss = None
        self.tally.graphs.clear()
        self.tally.break_reasons.clear()
        self._transient = self._raised = 0
        self._warned = False

    def continuation(self, way: Way) -> Program:
        """The program from `way` on."""
        found = self._continuations.get(way.key)
        if found is None:
            code, namespace = way.frames[0]
            found = self._continuations[way.key] = Program(
                types.FunctionType(code, namespace, code.co_name, None, self.function.__closure__),
                lambda function, slots: function(*slots),
                name=self.name,
                backend=(self.backend_name, self._backend),
                settings=self.settings,
                fullgraph=self.fullgraph,
                cache=self.cache.continuation(way),
                start=self,
                way=way,
            )
        return found

    # -- a call

    def __call__(self, slots: Slots) -> Any:
        outcome = self._call(self.function, slots)
        return self._follow(outcome) if type(outcome) is Leaving else outcome

    def go_on(self, jump: _native.Jump) -> Any:
        """C code has made a step and found no recording for what follows."""
        return self._follow(jump)

    def _follow(self, outcome: Any) -> Any:
        """From break to break, up to the result. Nothing here holds on to what a segment was given."""
        tally = self.tally
        before = (tally.recordings, tally.plain)
        try:
            while True:
                if type(outcome) is Leaving:
                    outcome = outcome.go()
                elif type(outcome) is _native.Jump:
                    outcome = self._land(outcome)
                else:
                    return outcome
        finally:
            tally.count.value += (tally.recordings, tally.plain) == before

    def _land(self, jump: _native.Jump) -> Any:
        landing = jump.landing
        function, slots = jump.take()
        if landing.way.raises:  # a handler, or nothing but the way out
            return function(*slots)
        program = self.continuation(landing.way)
        if landing.shelf is not program.cache.shelf:
            landing.open(program.cache.shelf)
        return program._call(function, slots)

    def _call(self, function: types.FunctionType, slots: Slots) -> Any:
        """The result, or a `Leaving`: where a replay has come to a break."""
        if _stance == "force_eager" or self._unwatchable is not None:
            return self._run_plain(function, slots, self._unwatchable)
        if torch._C._len_torch_function_stack():
            return self._run_plain(function, slots, "a torch function mode of the program is active")
        if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
            return self._run_plain(function, slots, "a function transform of the program is active")
        inputs = (*slots, function)
        for entry in self.cache.entries:
            values = entry.guards.check(inputs)
            if values is not None:
                self.cache.used(entry)
                if not entry.armed and not (self.fullgraph and entry.break_reason is not None):
                    self.cache.arm(entry)
                return self._replay(entry, values, function, slots)
        return self._miss(function, slots, inputs)

    def _replay(self, entry: Entry, values: Slots, function: types.FunctionType, slots: Slots) -> Any:
        if self.fullgraph and entry.break_reason is not None:
            raise GraphBreakError(entry.break_reason)
        if entry.replay is None:
            return self._run_plain(function, slots, entry.break_reason)
        if self.start is self and entry.leave is None:
            self.tally.count.value += 1
        start = time.perf_counter()
        saved = [values[position].detach().clone() for position in entry.restores or entry.early]
        try:
            result = entry.replay(values)
        except Exception as error:
            early = isinstance(error, Failed)
            if entry.restores or early:
                for position, contents in zip(entry.restores or entry.early, saved, strict=True):
                    _put_back(values[position], contents)
            if type(error) is Unexpected:
                return self._record_again(entry, function, slots)
            if entry.mutates and not entry.restores and not early:
                error.add_note(f"raised by the replay of {self.name}, which had already written to its inputs")
                raise
        else:
            if events.listening(events.CacheHit):
                events.emit(events.CacheHit(self.name, entry.number, time.perf_counter() - start))
            return result if entry.leave is None else Leaving(entry.leave, function, result)
        # The graph failed and what it changed is as before: the function itself raises what eager raises.
        return self.call_plain(function, slots)

    def _record_again(self, entry: Entry, function: types.FunctionType, slots: Slots) -> Any:
        """A recording went by a number that is another one now. If that happens often, the next ones will not."""
        self.cache.unexpected += 1
        self.cache.remove(entry)
        return self._miss(function, slots, (*slots, function))

    def resume(self, entry: Entry, values: Slots, slots: Slots) -> Any:
        """C code found that an entry's guards hold, and that there is more to do than to call its replay."""
        entry.count.value += 1
        outcome = self._replay(entry, values, self.function, slots)
        return self._follow(outcome) if type(outcome) is Leaving else outcome

    def replay_failed(self, entry: Entry, error: BaseException, function: types.FunctionType, slots: Slots) -> Any:
        """A replay that C code called raised: one of ours, or of a continuation of ours."""
        if entry.mutates:
            error.add_note(f"raised by the replay of {self.name}, which had already written to its inputs")
            raise error
        return self.call_plain(function, slots) if function is self.function else function(*slots)

    def _run_plain(self, function: types.FunctionType, slots: Slots, why: Any) -> Any:
        self.tally.plain += 1
        if events.listening(events.RanPlain):
            events.emit(events.RanPlain(self.name, why))
        return self.call_plain(function, slots)

    # -- a miss

    def _miss(self, function: types.FunctionType, slots: Slots, inputs: Slots) -> Any:
        entries = self.cache.entries
        miss = self._why(entries[0], inputs) if entries else None
        if entries:
            self.tally.last_miss = miss
            if self.way is not None:
                self.cache.note_change(entries[0].guards, inputs)
            self._note_symbols(inputs, [entry.guards for entry in entries])
        events.emit(events.CacheMiss(self.name, miss))
        refused = self._refuse_to_record(miss)
        if refused is not None:
            return self._run_plain(function, slots, refused)
        if not self.cache.recording.acquire(blocking=False):
            return self._run_plain(function, slots, "another thread is recording")
        try:
            return self._record(function, slots)
        finally:
            self.cache.recording.release()

    def _refuse_to_record(self, miss: Miss | None) -> Any:
        """Why a call that no recording fits is not recorded; None if it is."""
        entries = self.cache.entries
        if _stance == "fail_on_recompile" and entries:
            raise RuntimeError(f"{self.name} would have to be recorded again: {miss}")
        if _stance == "eager_on_recompile" and entries:
            return miss
        if len(entries) >= self.settings.cache_size_limit:
            return self._limit_reached(miss)
        if policy.tracer_active():
            return self._break_once("tracer-active")
        if not _native.builtins_intact():
            return self._break_once("builtins-replaced")
        if self._transient >= _TRANSIENT_LIMIT or _native.current() is not None:
            return "recording was given up"
        return None

    def _record(self, function: types.FunctionType, slots: Slots) -> Any:
        """Watch the call; its result is the call's result, whatever becomes of the recording."""
        start = time.perf_counter()
        try:
            recorder = Recorder(self.name, self.start, self.settings, self._ask, self._experience(False))
            recorder.prepare(function, self.names, slots, self.way, frozenset(self.cache.changing))
        except Exception as error:
            self._internal_failure("preparing to watch", error)
            return self.call_plain(function, slots)
        try:
            with _collector_paused(), announce.watching(self.name, recorder):
                result = recorder.run()
                misled = recorder.watcher.misled
                segments = self._finish(recorder, result)
                result = recorder.original(result)
        except _native.Unwatchable as why:
            self._unwatchable = self._break("unwatchable-code", str(why))
            return self._run_plain(function, slots, self._unwatchable)
        except BaseException:
            self._note_raise(recorder)
            raise
        if misled:  # our own code could not run, or not as it is written
            self._transient += 1
            self.tally.plain += 1
            return result
        try:
            self._keep(recorder, segments, start)
        except (GraphBreakError, InternalError, SpecializationError):
            raise
        except BackendError as error:
            if not self.settings.suppress_errors:
                raise
            announce.warn(f"{error}; {self.name} runs as plain Python")
            self._stop_trying()
        except Exception as error:
            self._internal_failure("making a replay", error)
        return result

    @staticmethod
    def _finish(recorder: Recorder, result: Any) -> list[Segment]:
        """All segments of the run; none, and the failure noted, if that went wrong. The recorder is taken apart."""
        try:
            return [] if recorder.watcher.misled else recorder.finish(result)
        except Exception as error:
            recorder.failure = recorder.failure or error
            return []
        finally:
            recorder.release()

    def _ask(self, segments: list[Segment], way: Way, inputs: Slots, state: tuple[Any, ...]) -> Experience:
        """What a call that arrives at `way` with this would find."""
        program = self.start.continuation(way)
        guards = [Guards(s.recording, []) for s in segments if s.way is not None and s.way.key == way.key]
        guards = [*reversed(guards), *(entry.guards for entry in program.cache.entries)]
        recorded = any(guard.check(inputs, state) is not None for guard in guards)
        if not recorded and guards:
            program.cache.note_change(guards[0], inputs)
            program._note_symbols(inputs, guards)
        full = not recorded and len(guards) >= self.settings.cache_size_limit
        return program._experience(recorded)._replace(full=full)

    def _note_symbols(self, inputs: Slots, guards: Iterable[Guards]) -> None:
        if self.settings.dynamic_shapes:
            with contextlib.suppress(Exception):  # whatever the objects in it do when they are looked at
                self.cache.note_symbols(inputs, guards)

    def _experience(self, recorded: bool) -> Experience:
        changing = None
        if self.settings.dynamic_shapes:
            changing = Changing(self.cache.symbols, not self.settings.assume_static_by_default)
        expects = self.cache.unexpected < _MOST_UNEXPECTED
        return Experience(recorded, frozenset(self.cache.changing), changing, expects)

    def _keep(self, recorder: Recorder, segments: list[Segment], start: float) -> None:
        if recorder.failure is not None or not segments:
            self._internal_failure("watching", recorder.failure or RuntimeError("no recording"))
            return
        for segment in segments:
            program = self if segment.way is None else self.start.continuation(segment.way)
            program._keep_segment(segment, start, recorder.frames)
        if any(not segment.transient and not segment.again for segment in segments):
            self.tally.recordings += 1
        reasons = [segment.recording.break_reason for segment in segments if segment.recording.break_reason]
        if self.fullgraph and reasons:
            raise GraphBreakError(reasons[0])

    def _keep_segment(self, segment: Segment, start: float, frames: list[types.CodeType]) -> None:
        recording = segment.recording
        if recording.break_reason is not None:
            self.tally.break_reasons.append(recording.break_reason)
            events.emit(events.GraphBreak(recording.break_reason))
        if segment.transient or segment.again:
            self._transient += segment.transient
            self.tally.plain += 1
            return
        stage = f"compiling with {self.backend_name}"
        with events.stage(stage, self.name, lambda: recording.operations, self.settings.debug_dir):
            entry = self.build(recording)
            entry.seconds = time.perf_counter() - start
            self._transient = self._raised = 0
            self.cache.add(entry)
            if events.listening(events.Recorded):
                shown = frames if self.way is None else []
                events.emit(announce.recorded(self.name, entry, recording, shown, self.names))
        recording.example_inputs = []

    def build(self, recording: Recording) -> Entry:
        """From a recording to something that can be called: backend, guards, replay."""
        wanted = wanted_origins(recording)
        compiled: Callable[..., Any] | None = None
        if not recording.plain and recording.graph is not None:
            compiled = restoring(self._compile(recording), recording.graph)
            self.tally.graphs.append(recording.graph)
        self._take_assumptions(recording)
        restores = tuple(wanted.index(origin) for origin in recording.restores)
        early = tuple(wanted.index(origin) for origin in recording.early)
        guards = Guards(recording, wanted, compile_guards)
        entry = Entry(recording.name, guards, None, recording.mutates, restores, early)
        entry.break_reason = recording.break_reason
        entry.symbolic, entry.specialised = symbols_in_words(recording)
        if recording.plain:
            return entry
        entry.graph = recording.graph
        entry.replay, entry.leave, entry.replay_source = emit(recording, wanted, compiled)
        entry.number = len(self.tally.graphs) if compiled is not None else 0
        return entry

    @staticmethod
    def _take_assumptions(recording: Recording) -> None:
        """What the backend assumed of sizes is guarded, too."""
        if recording.more_relations is not None:
            recording.relations = recording.more_relations()
        broken = recording.violated() if recording.violated is not None else None
        recording.more_relations = recording.violated = recording.describe_nodes = None
        if broken is not None:
            raise SpecializationError(recording.name, broken)

    def _compile(self, recording: Recording) -> Callable[..., Any]:
        assert recording.graph is not None
        number = len(self.tally.graphs) + 1
        recording.graph.meta["label"] = announce.label(self.name, number)
        if events.listening(events.GraphCaptured):
            events.emit(announce.captured(self.name, number, recording))
        start = time.perf_counter()
        depth = sys.getrecursionlimit()
        try:
            if recording.describe_nodes is not None and not is_ours(self._backend):
                recording.describe_nodes()
            with torch.set_grad_enabled(recording.state[0]):  # as it is where the graph will run
                compiled = self._backend(recording.graph, recording.example_inputs)
            if not callable(compiled):
                raise TypeError(f"the backend gave back {compiled!r}, which is not callable")
        except Exception as error:
            text = recording.graph.print_readable(print_output=False)
            saved = announce.save(text, "graph", self.settings.debug_dir)
            raise BackendError(self.backend_name, error, saved) from error
        finally:
            if sys.getrecursionlimit() != depth:  # it is the program's, and some programs read it
                sys.setrecursionlimit(depth)
        spent = time.perf_counter() - start
        events.emit(announce.compiled(self.name, self.backend_name, spent, number, recording.graph, compiled))
        return compiled

    # -- what went otherwise

    def _why(self, entry: Entry, inputs: Slots) -> Miss | None:
        """Words about a miss must not cost a call its result, whatever the objects in it do when they are looked at."""
        try:
            miss = entry.guards.why(inputs)
            if miss is not None and not miss.place and miss.guard in self.names:  # guarded before anything ran
                return miss._replace(place=first_read(self.function.__code__, miss.guard))
            return miss
        except Exception as error:
            return Miss(entry.name, "guards to hold", f"{type(error).__name__}: {error}", "")

    def _note_raise(self, recorder: Recorder) -> None:
        """The program raised: nothing is kept, unless it keeps raising. A failure here must not hide its exception."""
        self._raised += 1
        self.tally.plain += 1
        with contextlib.suppress(Exception):
            try:
                if self._raised >= _TRANSIENT_LIMIT and recorder.failure is None and not recorder.segments:
                    recording = recorder.plain_recording()
                    if recording.break_reason is None:
                        recording.break_reason = break_reason("raises", self.function.__code__, what=self.name)
                    self.cache.add(self.build(recording))
            finally:
                recorder.release()

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
        self.tally.break_reasons.append(reason)
        events.emit(events.GraphBreak(reason))
        return reason

    def _break_once(self, reason_id: str) -> BreakReason | str:
        if self._warned:
            return reason_id
        self._warned = True
        return self._break(reason_id)

    def _limit_reached(self, miss: Miss | None) -> str:
        limit = self.settings.cache_size_limit
        text = (
            f"{self.name} has {limit} recordings and none fits: {miss}. "
            "It runs as plain Python from here on; raise stator.options.cache_size_limit or keep that value constant."
        )
        if not self._warned:
            self._warned = True
            announce.warn(text)
        return text

    def give_up(self, reason_id: str) -> None:
        """This function is never to be watched."""
        self._unwatchable = self.break_at_root = break_reason(reason_id, None, what=self.name)

    def _stop_trying(self) -> None:
        self._transient = _TRANSIENT_LIMIT
        self.tally.plain += 1

    def _internal_failure(self, where: str, error: BaseException) -> None:
        """A fault of ours: the program keeps its result; we keep a report."""
        self.tally.plain += 1
        self._transient += 1
        text = "".join(traceback.format_exception(error))
        path = announce.save(f"stator failed in {where} of {self.name}\n\n{text}", "report", self.settings.debug_dir)
        events.emit(events.InternalFailure(where, error, path))
        if not self.settings.suppress_errors:
            raise InternalError(where, error, path) from error
        announce.warn(f"{InternalError(where, error, path)}; {self.name} runs as plain Python")
