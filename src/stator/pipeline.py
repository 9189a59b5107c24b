"""The stages in order: check, replay; or else watch, compile, emit, store.

A `Program` is one function under compilation. It gets a call's argument slots and gives back the function's result,
whatever happens inside: a recording that cannot be trusted is dropped, a failure of ours falls back to the function.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad

from . import _native, events
from .backends.registry import Backend
from .errors import BackendError, BreakReason, GraphBreakError, InternalError, break_reason
from .options import View
from .recording import Recording
from .replay.cache import Cache, Entry
from .replay.emit import emit, wanted_origins
from .replay.engine import compile_guards
from .replay.graph import restoring
from .replay.guards import Guards, Miss
from .watch import policy
from .watch.recorder import Recorder

Slots = tuple[Any, ...]
_TRANSIENT_LIMIT = 3
_stance = "default"


def set_stance(stance: str) -> str:
    """What to do with calls: the former stance is given back."""
    global _stance
    former, _stance = _stance, stance
    return former


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


class Program:
    """One function, its recordings and its counters."""

    def __init__(
        self,
        function: types.FunctionType,
        call_plain: Callable[[Slots], Any],
        *,
        name: str,
        backend: tuple[str, Backend],
        settings: View,
        fullgraph: bool,
        cache: Cache,
    ) -> None:
        self.function = function
        self.name = name
        self.call_plain = call_plain
        self.backend_name, self._backend = backend
        self.settings = settings
        self.fullgraph = fullgraph
        self.names = slot_names(function.__code__)
        self.cache = cache
        self.hits = 0
        self.recordings = 0
        self.plain = 0
        self.last_miss: Miss | None = None
        self.graphs: list[fx.GraphModule] = []
        self.break_reasons: list[BreakReason] = []
        self._transient = 0
        self._raised = 0
        self._warned = False
        self._unwatchable = self.break_at_root = self._why_not(function)

    def reset(self) -> None:
        """Forget every recording."""
        self.cache.clear()
        self.last_miss = None
        self._transient = self._raised = 0
        self._warned = False

    # -- a call

    def __call__(self, slots: Slots) -> Any:
        if _stance == "force_eager" or self._unwatchable is not None:
            return self._run_plain(slots, self._unwatchable)
        if torch._C._len_torch_function_stack():
            return self._run_plain(slots, "a torch function mode of the program is active")
        if torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0:
            return self._run_plain(slots, "a function transform of the program is active")
        inputs = (*slots, self.function)
        for entry in self.cache.entries:
            values = entry.guards.check(inputs)
            if values is not None:
                self.cache.used(entry)
                return self._replay(entry, values, slots)
        return self._miss(slots, inputs)

    def _replay(self, entry: Entry, values: Slots, slots: Slots) -> Any:
        if entry.replay is None:
            if self.fullgraph and entry.break_reason is not None:
                raise GraphBreakError(entry.break_reason)
            return self._run_plain(slots, entry.break_reason)
        self.hits += 1
        if events.listening(events.CacheHit):
            events.emit(events.CacheHit(self.name))
        saved = [values[position].detach().clone() for position in entry.restores]
        try:
            return entry.replay(values)
        except Exception as error:
            for position, contents in zip(entry.restores, saved, strict=True):
                _put_back(values[position], contents)
            if entry.mutates and not entry.restores:
                error.add_note(f"raised by the replay of {self.name}, which had already written to its inputs")
                raise
        # The graph failed and what it changed is as before: the function itself raises what eager raises.
        return self.call_plain(slots)

    def _run_plain(self, slots: Slots, why: Any) -> Any:
        self.plain += 1
        if events.listening(events.RanPlain):
            events.emit(events.RanPlain(self.name, why))
        return self.call_plain(slots)

    # -- a miss

    def _miss(self, slots: Slots, inputs: Slots) -> Any:
        entries = self.cache.entries
        if entries:
            self.last_miss = self._why(entries[0], inputs)
        events.emit(events.CacheMiss(self.name, self.last_miss if entries else None))
        if _stance == "fail_on_recompile" and entries:
            raise RuntimeError(f"{self.name} would have to be recorded again: {self.last_miss}")
        if _stance == "eager_on_recompile" and entries:
            return self._run_plain(slots, self.last_miss)
        if len(entries) >= self.settings.cache_size_limit:
            return self._run_plain(slots, self._limit_reached())
        if policy.tracer_active():
            return self._run_plain(slots, self._break_once("tracer-active"))
        if self._transient >= _TRANSIENT_LIMIT or _native.current() is not None:
            return self._run_plain(slots, "recording was given up")
        if not self.cache.recording.acquire(blocking=False):
            return self._run_plain(slots, "another thread is recording")
        try:
            return self._record(slots)
        finally:
            self.cache.recording.release()

    def _record(self, slots: Slots) -> Any:
        """Watch the call; its result is the call's result, whatever becomes of the recording."""
        start = time.perf_counter()
        try:
            recorder = Recorder(self.name)
            recorder.prepare(self.function, self.names, slots)
        except Exception as error:
            self._internal_failure("preparing to watch", error)
            return self.call_plain(slots)
        try:
            with _collector_paused():
                result = recorder.run(slots)
                recording = self._finish(recorder, result)
        except _native.Unwatchable as why:
            self._unwatchable = self._break("unwatchable-code", str(why))
            return self._run_plain(slots, self._unwatchable)
        except BaseException:
            self._note_raise(recorder)
            raise
        try:
            self._keep(recorder, recording, start)
        except (GraphBreakError, InternalError):
            raise
        except BackendError as error:
            if not self.settings.suppress_errors:
                raise
            warnings.warn(f"{error}; {self.name} runs as plain Python", stacklevel=4)
            self._stop_trying()
        except Exception as error:
            self._internal_failure("making a replay", error)
        return result

    @staticmethod
    def _finish(recorder: Recorder, result: Any) -> Recording | None:
        """The recording; None, and the failure noted, if that went wrong. The recorder is taken apart."""
        try:
            return recorder.finish(result)
        except Exception as error:
            recorder.failure = recorder.failure or error
            return None
        finally:
            recorder.release()

    def _keep(self, recorder: Recorder, recording: Recording | None, start: float) -> None:
        if recorder.failure is not None or recording is None:
            self._internal_failure("watching", recorder.failure or RuntimeError("no recording"))
            return
        if recorder.dropped is not None:
            assert recording.break_reason is not None
            self.break_reasons.append(recording.break_reason)
            events.emit(events.GraphBreak(recording.break_reason))
            if recorder.dropped.transient:
                self._transient += 1
                self.plain += 1
                return
        entry = self.build(recording)
        entry.seconds = time.perf_counter() - start
        self._transient = self._raised = 0
        self.recordings += 1
        self.cache.add(entry)
        if events.listening(events.Recorded):
            events.emit(self._recorded(entry, recording))
        if self.fullgraph and recording.break_reason is not None:
            raise GraphBreakError(recording.break_reason)

    def build(self, recording: Recording) -> Entry:
        """From a recording to something that can be called: backend, guards, replay."""
        wanted = wanted_origins(recording)
        restores = tuple(wanted.index(origin) for origin in recording.restores)
        entry = Entry(recording.name, Guards(recording, wanted, compile_guards), None, recording.mutates, restores)
        entry.break_reason = recording.break_reason
        if recording.plain:
            return entry
        compiled: Callable[..., Any] | None = None
        if recording.graph is not None:
            compiled = restoring(self._compile(recording), recording.graph)
            self.graphs.append(recording.graph)
        entry.graph = recording.graph
        entry.replay, entry.replay_source = emit(recording, wanted, compiled)
        recording.example_inputs = []
        return entry

    def _compile(self, recording: Recording) -> Callable[..., Any]:
        assert recording.graph is not None
        start = time.perf_counter()
        try:
            compiled = self._backend(recording.graph, recording.example_inputs)
            if not callable(compiled):
                raise TypeError(f"the backend gave back {compiled!r}, which is not callable")
        except Exception as error:
            text = recording.graph.print_readable(print_output=False)
            raise BackendError(self.backend_name, error, self._save(text, "graph")) from error
        events.emit(events.BackendCompiled(self.name, self.backend_name, time.perf_counter() - start))
        return compiled

    # -- what went otherwise

    @staticmethod
    def _why(entry: Entry, inputs: Slots) -> Miss | None:
        """Words about a miss must not cost a call its result, whatever the objects in it do when they are looked at."""
        try:
            return entry.guards.why(inputs)
        except Exception as error:
            return Miss(entry.name, "guards to hold", f"{type(error).__name__}: {error}", "")

    def _note_raise(self, recorder: Recorder) -> None:
        """The program raised: nothing is kept, unless it keeps raising. A failure here must not hide its exception."""
        self._raised += 1
        self.plain += 1
        with contextlib.suppress(Exception):
            if self._raised >= _TRANSIENT_LIMIT and recorder.failure is None:
                recording = recorder.plain_recording()
                if recording.break_reason is None:
                    recording.break_reason = break_reason("raises", self.function.__code__, what=self.name)
                self.cache.add(self.build(recording))
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
        self.break_reasons.append(reason)
        events.emit(events.GraphBreak(reason))
        return reason

    def _break_once(self, reason_id: str) -> BreakReason | str:
        if self._warned:
            return reason_id
        self._warned = True
        return self._break(reason_id)

    def _limit_reached(self) -> str:
        limit = self.settings.cache_size_limit
        text = (
            f"{self.name} has {limit} recordings and none fits: {self.last_miss}. "
            "It runs as plain Python from here on; raise stator.options.cache_size_limit or keep that value constant."
        )
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=5)
        return text

    def give_up(self, reason_id: str) -> None:
        """This function is never to be watched."""
        self._unwatchable = self.break_at_root = break_reason(reason_id, None, what=self.name)

    def _stop_trying(self) -> None:
        self._transient = _TRANSIENT_LIMIT
        self.plain += 1

    def _internal_failure(self, where: str, error: BaseException) -> None:
        """A fault of ours: the program keeps its result; we keep a report."""
        self.plain += 1
        self._transient += 1
        text = "".join(traceback.format_exception(error))
        path = self._save(f"stator failed in {where} of {self.name}\n\n{text}", "report")
        events.emit(events.InternalFailure(where, error, path))
        if not self.settings.suppress_errors:
            raise InternalError(where, error, path) from error
        warnings.warn(f"{InternalError(where, error, path)}; {self.name} runs as plain Python", stacklevel=5)

    def _save(self, text: str, kind: str) -> str | None:
        folder = self.settings.debug_dir or os.path.join(tempfile.gettempdir(), "stator")
        try:
            os.makedirs(folder, exist_ok=True)
            handle, path = tempfile.mkstemp(prefix=f"{kind}-", suffix=".txt", dir=folder, text=True)
            with os.fdopen(handle, "w") as file:
                file.write(text)
        except OSError:
            return None
        return path

    def _recorded(self, entry: Entry, recording: Recording) -> events.Recorded:
        graph = entry.graph
        return events.Recorded(
            name=self.name,
            graph=(lambda: str(graph.code)) if graph is not None else (lambda: ""),
            guards=lambda: "\n".join(entry.guards.lines()),
            seconds=entry.seconds,
            probes=recording.probes,
            bytecode=lambda: entry.replay_source,
            ops=recording.operations,
        )
