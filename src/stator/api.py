"""The public functions."""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from . import _native, callees, events
from . import stance as stances
from .backends.registry import DEFAULT, look_up_with
from .dispatch import Handle, plain_caller
from .dispatch import compiled as compiled_callable
from .errors import break_reason
from .interrupts import let_through
from .modules import compile_in_place, compiled_module
from .options import FIELDS
from .options import options as global_options
from .program import Program
from .replay.cache import Cache, Entry, cache_for
from .report import dump, progress  # noqa: F401  they read events
from .report.event_log import EventLog
from .report.explain import Explanation
from .report.logs import set_logs
from .support.by_identity import Alive
from .support.python_source import number
from .watch.models import other_compiler, user_hints
from .watch.models.user_hints import graph_break, mark_dynamic, mark_static
from .watch.observe.marked_functions import allow_in_graph, assume_constant_result
from .watch.observe.policy import is_compiling

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")
ProgramOf = Callable[..., Program]  # (function, name, shared: with other functions of the same code)
_programs: Alive[Program] = Alive()

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "reset",
    "set_logs",
    "set_stance",
]


def compile(
    fn: Any = None,
    *,
    backend: Any = DEFAULT,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, a method or a module. Without `fn`: a decorator.

    The first call runs for real and is recorded; later calls are replayed where everything that was read is as before.
    `backend="native"` makes machine code in this process, for CPUs and NVIDIA GPUs; `"inductor"` is torch's generator.
    Names of torch's own registry work, too.
    `mode`, for those two: `"reduce-overhead"` launches the kernels of a graph on a GPU all at once, `"max-autotune"`
    does too, and `"inductor"` then takes time to find the fastest kernels, as it does for
    `"max-autotune-no-cudagraphs"`. Other backends have nothing to choose.
    A compiled module is the module, called another way; a deep copy of it is compiled, a pickle is of the original.
    `options`: `stator.options` for this callable alone; with `"inductor"` also options of the generator.
    """
    if fn is None:
        return functools.partial(
            compile,
            backend=backend,
            mode=mode,
            fullgraph=fullgraph,
            dynamic=dynamic,
            options=options,
            disable=disable,
        )
    if not callable(fn):
        raise TypeError(f"stator.compile takes a function, a method or a module, not {fn!r}")
    program_of = _programs_with(backend, mode, fullgraph, dynamic, options)
    if disable:
        return fn
    if isinstance(fn, torch.nn.Module):
        return compiled_module(fn, program_of)
    return _compile_callable(fn, program_of)


# What `dynamic` stands for, in options.
_DYNAMIC: dict[bool | None, dict[str, Any]] = {
    None: {},
    True: {"dynamic_shapes": True, "assume_static_by_default": False},
    False: {"dynamic_shapes": False},
}


def _programs_with(
    backend: Any, mode: str | None, fullgraph: bool, dynamic: bool | None, options: Mapping[str, Any] | None
) -> ProgramOf:
    """What makes programs with these settings, all of them checked."""
    if dynamic not in (None, True, False):
        raise TypeError(f"dynamic is None, True or False, not {dynamic!r}")
    given = {**_DYNAMIC[dynamic], **(options or {})}
    options = {name: value for name, value in given.items() if backend != "inductor" or name in FIELDS}
    if mode is not None and mode not in MODES:
        raise ValueError(f"there is no mode {mode!r}; known modes: {', '.join(MODES)}")
    chosen = look_up_with(backend, mode, {name: value for name, value in given.items() if name not in options})
    settings = global_options.merged(options)

    def program_of(function: types.FunctionType, name: str, *, shared: bool = False) -> Program:
        settings_key = (fullgraph, *sorted(options.items()))
        program = Program(
            function,
            plain_caller(function),
            name=name,
            backend=chosen,
            settings=settings,
            fullgraph=fullgraph,
            cache=cache_for(function.__code__, chosen[1], *settings_key) if shared else Cache(),
        )
        program.choose_callee = functools.partial(callees.choose, weakref.ref(program))
        _programs.add(program)
        return program

    return program_of


def _compile_callable(fn: Any, program_of: ProgramOf) -> Any:
    if isinstance(fn, _native.Compiled):
        fn = fn.__wrapped__  # type: ignore[attr-defined]
    if isinstance(fn, types.MethodType):
        return types.MethodType(_compile_callable(fn.__func__, program_of), fn.__self__)
    function = fn if isinstance(fn, types.FunctionType) else _as_function(fn)
    program = program_of(function, getattr(fn, "__qualname__", function.__qualname__), shared=function is fn)
    if isinstance(fn, _C_CALLABLES):
        program.give_up("unwatchable-code")
    if program.break_at_root is not None:
        events.emit(events.GraphBreak(program.break_at_root))
    compiled = compiled_callable(function, program)
    if function is not fn:
        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(compiled, fn)
    compiled.__wrapped__ = fn
    compiled.stator = Handle(program)
    return compiled


_C_CALLABLES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type)


def _as_function(fn: Any) -> types.FunctionType:
    """Any callable as a function that calls it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # Made under a name of its own: frames of this package's files are not watched.
    call.__code__ = call.__code__.replace(co_filename="<stator call>", co_name=type(fn).__name__)
    return call  # type: ignore[return-value]


def compile_(
    module: torch.nn.Module,
    *,
    backend: Any = DEFAULT,
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Compile a module in place: its own calls are compiled from now on. `module.stator` is what `compile` puts on what
    it gives. Copies and pickles of the module are plain."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"stator.compile_ takes a module, not {module!r}")
    compile_in_place(module, _programs_with(backend, mode, fullgraph, dynamic, options))
    return module


def optimize(backend: Any = DEFAULT, **kwargs: Any) -> Any:
    """A decorator: `stator.optimize("eager")(fn)`."""
    return functools.partial(compile, backend=backend, **kwargs)


def disable(fn: Any = None, recursive: bool = True, *, reason: str = "") -> Any:
    """Run a function as plain Python, also inside compiled ones (it breaks the graph there). What it calls is plain,
    too, but for functions that are compiled themselves; without `recursive` each function of the program's that it
    calls inside a compiled one is compiled by itself, from the second call on."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    return user_hints.disabled(fn, reason, recursive)


def reset() -> None:
    """Forget every recording of every compiled callable."""
    for program in list(_programs):
        program.reset()


def _follow_reset() -> None:
    """Torch's own compiler may have been told to forget everything (`torch.compiler.reset`)."""
    if other_compiler.was_reset():
        reset()


_native.set_other_compiler(torch._C._dynamo.eval_frame.set_eval_frame, _follow_reset)


def _start_or_stop_verifying() -> None:
    """Recordings are made to be verified, or not to be: with the option they are made again."""
    global _verifying
    former, _verifying = _verifying, global_options.verify
    if former is not _verifying:
        reset()


_verifying = global_options.verify
global_options.on_change(_start_or_stop_verifying)


def explain(fn: Any, *args: Any, **kwargs: Any) -> Any:
    """`explain(fn)(*args)` or `explain(fn, *args)`: run once, and say what was captured and where the graph broke.

    What it gives prints itself, and as a page: `stator.explain(fn)(*args).save_html("report.html")`.
    """
    if not callable(fn):
        raise TypeError(f"stator.explain takes a function, a method or a module, not {fn!r}")

    def run(*args: Any, **kwargs: Any) -> Explanation:
        return _Explained(fn)(*args, **kwargs)

    return run(*args, **kwargs) if args or kwargs else run


class _Explained:
    """A function that is called in order to explain it; its graphs run as they were captured."""

    def __init__(self, fn: Any) -> None:
        self._name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
        self._captured: list[tuple[Any, list[Any]]] = []  # graphs to differentiate, with stand-ins for their inputs
        self._event_log = EventLog(replays=True)
        with self._event_log:
            # One of its own: no recording is there already.
            self._compiled = compile(fn, backend=self.as_captured, options={"background_compile": False})
        self._at_once = [event.reason for event in self._event_log.of(events.GraphBreak)]  # why it cannot be recorded

    def as_captured(self, gm: Any, example_inputs: Any) -> Any:
        if torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in example_inputs):
            try:
                self._captured.append((gm, _without_data(example_inputs)))
            except Exception as error:  # what has no stand-in is not differentiated ahead of time either
                let_through(error)
            if any(map(_is_symbolic, example_inputs)):
                gm.meta["label"] += ", with the sizes of the call that was recorded"
        return gm.forward

    def _derive(self) -> None:
        """Derive the backward of what was captured, if anybody wants to know."""
        captured, self._captured = self._captured, []
        with self._event_log:
            for gm, inputs in captured:
                autograd = importlib.import_module(".autograd.compile", __package__)  # takes longer than stator itself
                try:
                    with torch.enable_grad():
                        autograd.derive_without_data(gm, inputs)
                except Exception as why:  # CannotDerive, or a fault of ours, which is no reason to explain nothing
                    let_through(why)
                    events.emit(events.NotDerived(why))

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        with self._event_log:
            self._compiled(*args, **kwargs)
        handle: Handle | None = getattr(self._compiled, "stator", None)
        if handle is None:
            reason = break_reason("unwatchable-code", None, what=self._name)
            return Explanation(graphs=[], break_reasons=[reason], name=self._name)
        entries = handle.entries
        return Explanation(
            graphs=handle.graphs,
            break_reasons=[*self._at_once, *handle.break_reasons],
            guards=[line for entry in entries for line in entry.guards.lines()],
            segments=entries,
            compile_times=_seconds(entries),
            symbolic=[text for entry in entries for text in entry.symbolic],
            specialised=[text for entry in entries for text in entry.specialised],
            name=self._name,
            event_log=self._event_log,
            derive=self._derive,
            call_again=self,
            calls=(handle.calls, handle.recordings, handle.limit),
        )


def _seconds(entries: Sequence[Entry]) -> dict[str, float]:
    """By recording, under the names that reports have for them."""
    return {f"{entry.name}, graph {entry.number}" if entry.number else entry.name: entry.seconds for entry in entries}


def _without_data(inputs: Sequence[Any]) -> list[Any]:
    """Meta or fake tensors that look like the inputs of a graph and hold nothing; sizes as in the call that was
    recorded. To differentiate a graph for symbolic ones takes ten times as long, and a reader would see much the same.
    """
    on_cpu = all(value.device.type == "cpu" for value in inputs if torch.is_tensor(value))
    with contextlib.nullcontext() if on_cpu else FakeTensorMode():
        return [_empty(value, on_cpu) if torch.is_tensor(value) else number(value) for value in inputs]


def _is_symbolic(value: Any) -> bool:
    return any(number(length) is not length for length in (value.shape if torch.is_tensor(value) else [value]))


def _empty(value: torch.Tensor, on_meta: bool) -> torch.Tensor:
    size, stride = [number(length) for length in value.shape], [number(step) for step in value.stride()]
    made = torch.empty_strided(size, stride, dtype=value.dtype, device="meta" if on_meta else value.device)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, value.requires_grad)
    made.requires_grad_(value.requires_grad)
    return made if value.is_leaf else made.view_as(made)


class _Stance(contextlib.AbstractContextManager[None]):
    def __init__(self, former: str) -> None:
        self._former = former

    def __exit__(self, *exception: object) -> None:
        stances.set_stance(self._former)


def set_stance(stance: str) -> contextlib.AbstractContextManager[None]:
    """What compiled callables do; as a context manager, until its end."""
    if stance not in STANCES:
        raise ValueError(f"there is no stance {stance!r}; known: {', '.join(STANCES)}")
    return _Stance(stances.set_stance(stance))
