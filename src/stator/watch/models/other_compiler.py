"""What torch's own compiler leaves in a program, and what it means while we record.

TorchDynamo need not be loaded: its functions are known by file and name. It marks functions with wrappers and
attributes, keeps books of its own, and answers whether somebody compiles.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch

from ..graph_break import BreakGraph
from ..segment import Segment
from . import user_hints

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_DYNAMO = os.path.join(_TORCH, "_dynamo") + os.sep


def _is(code: types.CodeType, file: str, *names: str) -> bool:
    return code.co_qualname in names and code.co_filename == _DYNAMO + file


def is_bookkeeping(code: types.CodeType) -> bool:
    """Notes each new module in a table of TorchDynamo's, where nobody but it looks. It is left out, as in a replay."""
    return _is(code, "mutation_guard.py", "GenerationTracker.tag")


# -- functions that it was told to leave alone


def is_mark(code: types.CodeType) -> bool:
    """A frame that may mean a break: of the wrapper that `torch.compiler.disable` makes, or of `graph_break`."""
    return (
        _is(code, "eval_frame.py", "DisableContext.__call__.<locals>._fn")
        or _leaves_callees(code)
        or _is(code, "decorators.py", "graph_break", "skip_frame", "step_unsupported")
    )


def _leaves_callees(code: types.CodeType) -> bool:
    return _is(code, "external_utils.py", "get_nonrecursive_disable_wrapper.<locals>.nonrecursive_disable_wrapper")


def takes_over(code: types.CodeType) -> bool:
    """A frame below which torch's own compiler is at work, or is to let everything be."""
    return code.co_filename == _DYNAMO + "eval_frame.py"


def is_entry(code: types.CodeType) -> bool:
    """What `torch.compile` makes of a function."""
    return takes_over(code) and code.co_qualname.startswith("_TorchDynamoContext.__call__.<locals>.")


# Torch marks no classes of modules: a program has marked one of its own, whose calls are these functions.
_CALLS_OF_MODULES = (torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__)


def break_at(function: types.FunctionType, caller: types.CodeType) -> BreakGraph | None:
    """The break that a call of such a function means; None: torch marks its own functions, too, for what its compiler
    cannot do, and that says nothing of ours."""
    if "fn" not in function.__code__.co_freevars:
        return None if caller.co_filename.startswith(_TORCH) else BreakGraph("user-graph-break")
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    disabled = cells["fn"].cell_contents
    code = getattr(disabled, "__code__", None)
    if code is None or (code.co_filename.startswith(_TORCH) and code not in _CALLS_OF_MODULES):
        return None
    name = getattr(disabled, "__name__", type(disabled).__name__)
    reason = vars(function).get("_torchdynamo_disable_msg")
    kind = "disabled-function"
    if _leaves_callees(function.__code__):
        kind = "disabled-frame"
        user_hints.leave_alone(disabled)
    return BreakGraph(kind, f"{name}: {reason}" if reason else name)


# -- its stance

_STANCES = frozenset({"force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile"})


def stance() -> str:
    """What `torch.compiler.set_stance` was told, if that means something to us."""
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    found = getattr(getattr(frames, "_stance", None), "stance", None)
    found = "eager_then_compile" if found == "aot_eager_then_compile" else found
    return found if found in _STANCES else "default"


_books: Any = None  # a table that its reset replaces, as last seen


def was_reset() -> bool:
    """Has `torch.compiler.reset` been called since the last time?"""
    global _books
    guard: Any = sys.modules.get("torch._dynamo.mutation_guard")
    books = getattr(getattr(guard, "GenerationTracker", None), "generation_values", None)
    former, _books = _books, books
    return former is not None and former is not books


# -- is somebody compiling?

_ASKERS = frozenset({"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"})
# Places in torch that are told that a compiler is at work, each with its reason. All others take the way that they take
# without one: what they do with a compiler may come to other results.
_TOLD: dict[tuple[str, str], str] = {
    ("autograd/graph.py", "region_activation_memory_budget"): "raises without one",
}


def ask_for_compiler(s: Segment, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> Any:
    """`torch.compiler.is_compiling()`: a rule, see `watch.rules`."""
    code = None if s.ledger.place is None else s.ledger.place.code
    if code is not None and code.co_name in _ASKERS and code.co_filename.startswith(_TORCH):  # for somebody else
        callers = (entry[2] for entry in reversed(s.watcher.frames()[0]))
        code = next((caller for caller in callers if caller.co_name not in _ASKERS), None)
    if code is None or not code.co_filename.startswith(_TORCH):
        return None
    place = (code.co_filename.removeprefix(_TORCH).replace(os.sep, "/"), code.co_qualname)
    return None if place in _TOLD else bool  # which answers False, without a frame
