"""What can go wrong, one exception class per mistake, and the catalogue of graph-break reasons.

What enters: a reason's id and the place in the user's program. What leaves: a `BreakReason` which names that
place, or an exception whose message shows the user's own line with a caret, says why and says what to do.
What holds: ids are stable (logs, tests, users' scripts compare them); reasons and hints stand in `REASONS`.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from traceback import FrameSummary
from types import CodeType

from . import source_lines

# ----------------------------------------------------------------------------------- the catalogue of reasons


@dataclass(frozen=True)
class Reason:
    """Why a graph can break. `reason` may hold `{what}`: the callable, type or name that it is about."""

    id: str
    reason: str
    hint: str
    section: str = ""  # the part of the catalogue that it stands in


_IN_GRAPH = "keep it a tensor (torch.where, a mask, index_select), or decide outside the compiled function"
_MOVE_OUT = "move it out of the compiled function"
_AROUND = "do it before or after the compiled function"
_UNLESS = f"{_AROUND}, or put it under `if not stator.is_compiling()`"

# By section: id, reason, hint. `docs/graph-breaks.md` is written from this (`python -m stator.report.catalogue`).
_CATALOGUE: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Calls that reach the world outside": (
        ("call-print", "call to print (side effect)", f"{_AROUND}, or return what is to be printed"),
        ("call-input", "call to {what} (waits for the user)", _AROUND),
        ("call-open", "call to {what} (reads or writes a file)", _AROUND),
        ("call-save", "call to {what} (reads or writes a file of tensors)", _AROUND),
        ("call-socket", "call to {what} (talks over the network)", _AROUND),
        ("call-process", "call to {what} (starts or signals a process)", _AROUND),
        ("call-os", "call to {what} (asks the operating system)", f"pass the answer in, or {_MOVE_OUT}"),
        (
            "call-logging",
            "call to {what} (a log message is a side effect)",
            f"log at a level that is off while compiled code runs, or {_UNLESS}",
        ),
        ("call-warn", "call to {what} (a warning is a side effect)", _UNLESS),
        (
            "call-debugger",
            "call to {what} (debugger)",
            "debug with stator.set_stance('force_eager'), or take it out",
        ),
        ("time", "call to {what} (the time differs in every call)", "measure around the compiled function"),
        ("random", "call to {what} (Python's random numbers)", "pass the number in, or draw it with torch"),
        ("rng-state", "call to {what} (reads or sets torch's random state)", "seed before the compiled function"),
        ("numpy", "call to {what} (numpy)", f"use torch's function of the same purpose, or {_MOVE_OUT}"),
        ("pandas", "call to {what} (pandas)", f"take the values out as tensors first, or {_MOVE_OUT}"),
        ("scipy", "call to {what} (scipy)", f"use torch's function of the same purpose, or {_MOVE_OUT}"),
        ("import", "import of {what} (not loaded yet)", "import it at the top of the module"),
        ("exec-eval", "call to {what} (code made at run time)", f"write it as a function, or {_MOVE_OUT}"),
        ("build-class", "class statement ({what})", "define the class at the top of the module"),
        ("frames", "call to {what} (looks at the frames of its callers)", _AROUND),
        ("thread-local", "read of {what} (differs between threads or contexts)", "pass the value in"),
        ("threads", "call to {what} (threads and locks)", "share nothing with other threads inside, or lock around it"),
    ),
    "Values of tensors that become values of Python": (
        ("tensor-item", "call to tensor.item() (data-dependent control flow)", _IN_GRAPH),
        ("tensor-bool", "truth value of a tensor (data-dependent control flow)", _IN_GRAPH),
        ("tensor-tolist", "call to tensor.tolist() (data-dependent values)", _IN_GRAPH),
        ("tensor-scalar", "conversion of a tensor to {what} (data-dependent control flow)", _IN_GRAPH),
        ("tensor-text", "text of a tensor (data-dependent values)", "format it after the compiled function"),
        ("tensor-numpy", "conversion of a tensor to numpy (its memory is shared from then on)", _MOVE_OUT),
        ("tensor-data-ptr", "read of a tensor's memory address or storage ({what})", _MOVE_OUT),
        (
            "line-search",
            "call to {what} (its course depends on the data at every turn)",
            "compile the closure that it calls",
        ),
        (
            "dynamic-shape-op",
            "call to {what} (the result's shape depends on the data)",
            f"use a form of fixed size (torch.where with three arguments, a mask, topk), or {_MOVE_OUT}",
        ),
    ),
    "Tensors that the graph cannot account for": (
        (
            "unknown-tensor",
            "a tensor from {what} (made where stator could not see it)",
            "make tensors with torch's functions inside, or pass them in",
        ),
        (
            "tensor-changed",
            "a tensor was changed where stator could not see it ({what})",
            f"change tensors with torch's operations, or {_MOVE_OUT}",
        ),
        ("attribute-set-on-tensor", "attribute {what} set on a tensor", "return the value beside the tensor"),
        (
            "tensor-subclass",
            "operation on a tensor of class {what} (runs Python of its own)",
            f"use a plain tensor, or {_MOVE_OUT}",
        ),
        (
            "backward",
            "backward pass that cannot be part of a graph ({what})",
            "compute all that it differentiates inside of the compiled function, or call backward outside",
        ),
        ("backward-hooks", "backward hook ({what})", "register the hook outside the compiled function"),
        (
            "module-hooks",
            "full backward hook of a {what} (torch sets it in each call)",
            "leave it, or register hooks on tensors and parameters outside of the compiled function",
        ),
        (
            "autograd-function",
            "call to the autograd function {what} (its backward is Python)",
            f"write it with torch's operations, or {_MOVE_OUT}",
        ),
        (
            "functorch",
            "call to {what} (transform of functions)",
            f"transform the compiled function, or {_MOVE_OUT}",
        ),
    ),
    "Calls and code that cannot be followed": (
        (
            "unknown-callable",
            "call to {what} (stator does not know what it reads or changes)",
            f"write it in Python, where it can be watched, or {_MOVE_OUT}",
        ),
        (
            "cached-function",
            "call to {what} (cached by functools; not asked with constants, or called behind a write)",
            f"call the function behind the cache (`__wrapped__`), or {_MOVE_OUT}",
        ),
        (
            "unsupported-argument",
            "a tensor operation takes an argument of type {what} (a graph cannot hold it)",
            f"pass numbers, strings, containers or tensors, or {_MOVE_OUT}",
        ),
        (
            "may-fail",
            "call to {what} (it may fail for other data, after much was written that would have to be put back)",
            "do it before writing to tensors from outside",
        ),
        ("operation-raised", "a tensor operation raised ({what})", "avoid the exception, or catch it outside"),
        (
            "other-compiler",
            "call to {what} (a function compiled by torch.compile)",
            "leave it to stator: call the plain function",
        ),
        ("unknown-function", "call to {what} (its code cannot be watched)", _MOVE_OUT),
        ("unwatchable-code", "the code of {what} cannot be watched", "compile a Python function which calls it"),
        ("generator-root", "{what} is a generator function", "compile the function which consumes it"),
        ("coroutine-root", "{what} is a coroutine function", "compile the plain functions which it calls"),
        (
            "outside-iterator",
            "use of an iterator made outside ({what})",
            "pass the list and iterate over it inside",
        ),
        ("outside-generator", "use of a generator made outside ({what})", "pass a list, or make it inside"),
        ("recursion", "recursion too deep to be watched ({what})", "use a loop, or compile the inner function"),
        (
            "foreign-frame",
            "{what} ran in between and touched what was being recorded",
            "share no mutable state with callbacks, hooks or signal handlers",
        ),
        (
            "finalizer",
            "a finalizer ran in between, or is going to ({what})",
            "close resources explicitly rather than in __del__",
        ),
        (
            "let-go",
            "an outside object is let go of, and its end is noticed ({what} has a finalizer or weak references)",
            "let go of it before or behind the compiled function",
        ),
        (
            "builtins-replaced",
            "the program has replaced builtin functions ({what})",
            "put them back; stator itself is written with them",
        ),
        ("tracer-active", "a tracing or profiling function is active ({what})", "take the debugger or tool off"),
        (
            "already-recording",
            "{what} was called while a recording is on",
            "nothing to do: that recording goes on",
        ),
        ("raises", "the call raised {what}", "nothing to do: calls that raise run as plain Python"),
    ),
    "State": (
        (
            "state-changed",
            "torch's global state was changed where stator could not see it ({what})",
            f"change it with torch's own context managers, or {_MOVE_OUT}",
        ),
        (
            "outside-changed",
            "an object from outside was changed where stator could not see it ({what})",
            f"change it in Python code of the compiled function, or {_MOVE_OUT}",
        ),
        ("rebuild", "a result cannot be made again ({what})", "return tensors, containers and plain objects"),
        (
            "too-many-guards",
            "more values would have to be guarded than is worth it ({what})",
            f"keep large tables in tensors, or {_MOVE_OUT}",
        ),
        (
            "unguardable",
            "a value from outside cannot be guarded ({what})",
            "pass plain values, containers, tensors or objects with attributes",
        ),
        ("object-keys", "an outside dict or set with objects as keys ({what})", "use strings or numbers as keys"),
        (
            "identity",
            "call to {what} (identities differ in every run)",
            "compare with `is`, or use a key of your own",
        ),
    ),
    "The program's own wish, and faults of ours": (
        ("user-graph-break", "call to stator.graph_break() ({what})", "take the call out to have one graph"),
        (
            "disabled-function",
            "call to {what} (disabled with stator.disable)",
            f"take the mark off, or {_MOVE_OUT}",
        ),
        (
            "disabled-frame",
            "call to {what} (disabled with recursive=False: what it calls is compiled)",
            f"take the mark off, or {_MOVE_OUT}",
        ),
        (
            "scheduler-step",
            "call to {what} (computes rates by Python, which costs no recording)",
            "leave it; under fullgraph=True, or called outside of the compiled function, there is one graph",
        ),
        (
            "data-parallel",
            "call to {what} (sends parameters, buffers or gradients between processes)",
            "leave it: the layers inside are compiled; for fullgraph=True compile the module inside of the wrapper",
        ),
        (
            "cache-limit",
            "{what} has used up its recordings (options.cache_size_limit)",
            "pass what keeps changing as a tensor, or raise the limit",
        ),
        (
            "internal-error",
            "failure inside stator ({what})",
            "the result is eager's; please report the saved file",
        ),
    ),
}

REASONS: dict[str, Reason] = {row[0]: Reason(*row, section) for section, rows in _CATALOGUE.items() for row in rows}


# ------------------------------------------------------------------------------------ one break, at one place


@dataclass(frozen=True)
class BreakReason:
    """One graph break: which, why, where in the user's program, and how to avoid it."""

    id: str
    reason: str
    filename: str
    lineno: int
    line: str  # the user's line, without indentation; empty if its source cannot be read
    user_stack: tuple[FrameSummary, ...]  # outermost first; the last one is the place itself
    hint: str
    function: str = "<unknown>"  # the function that the line belongs to
    columns: tuple[int, int] | None = field(default=None, compare=False)  # of the instruction in `line`, for the caret
    rest: str = ""  # why nothing after the break is compiled, if so

    @property
    def place(self) -> str:
        """`file:line`, as editors read it."""
        return f"{self.filename}:{self.lineno}"

    def __str__(self) -> str:
        return render(self)


def break_reason(
    id: str,
    code: CodeType | None,
    offset: int | None = None,
    *,
    what: str = "",
    user_stack: Iterable[FrameSummary] = (),
) -> BreakReason:
    """The break `id` at the instruction at `offset` of `code` (no offset: at the function's first line).

    `code` is None for what has no Python code, such as a C function. `what` names the callable, type or value
    which the case is about. `user_stack` holds the callers, outermost first; the place itself is added.
    """
    known = REASONS[id]
    filename, function = (code.co_filename, code.co_qualname) if code is not None else ("<built-in>", what)
    lineno, columns = _position(code, offset) if code is not None else (0, None)
    text = source_lines.line(filename, lineno)
    return BreakReason(
        id=id,
        reason=_fill(known.reason, what),
        filename=filename,
        lineno=lineno,
        line=text.strip(),
        user_stack=(*user_stack, FrameSummary(filename, lineno, function, line=text, lookup_line=False)),
        hint=known.hint,
        function=function,
        columns=_within_stripped(text, columns),
    )


def _fill(reason: str, what: str) -> str:
    """The reason with what it is about put in, or left out if that is not known."""
    return reason.format(what=what) if what else reason.replace(" ({what})", "").format(what="something unknown")


def _position(code: CodeType, offset: int | None) -> tuple[int, tuple[int, int | None] | None]:
    """Line of an instruction and its columns there, in UTF-8 bytes; no end column: up to the line's end."""
    if offset is None:
        return code.co_firstlineno, None
    line, end_line, column, end_column = next(islice(code.co_positions(), offset // 2, None), (None,) * 4)
    if line is None:
        return code.co_firstlineno, None
    if column is None or end_column is None:
        return line, None
    return line, (column, end_column if end_line == line else None)


def _within_stripped(text: str, columns: tuple[int, int | None] | None) -> tuple[int, int] | None:
    """Byte columns of a source line as character columns of the stripped line."""
    if columns is None or not text.strip():
        return None
    raw = text.encode()
    start = len(raw[: columns[0]].decode(errors="replace"))
    end = len(raw[: columns[1]].decode(errors="replace")) if columns[1] is not None else len(text.rstrip())
    indent = len(text) - len(text.lstrip())
    return max(start - indent, 0), max(end - indent, start - indent + 1)


def _width(text: str) -> int:
    """How many columns of a terminal `text` takes (East Asian characters take two)."""
    return sum(2 if unicodedata.east_asian_width(character) in "FW" else 1 for character in text)


def caret(line: str, columns: tuple[int, int] | None) -> str:
    """The line of carets that goes under `line`: under these columns, or under all of it."""
    start, end = columns if columns is not None else (0, len(line))
    return " " * _width(line[:start]) + "^" * max(_width(line[start:end]), 1)


def render(why: BreakReason) -> str:
    """The reason, the user's line with a caret, and the hint, on lines of their own."""
    lines = [f"{why.reason}  [{why.id}]", f'  File "{why.filename}", line {why.lineno}, in {why.function}']
    if why.line:
        lines += [f"    {why.line}", f"    {caret(why.line, why.columns)}"]
    if why.rest:
        lines.append(f"  what follows runs as plain Python: {why.rest}")
    return "\n".join([*lines, f"  hint: {why.hint}"])


# ------------------------------------------------------------------------------------------------- exceptions


class StatorError(Exception):
    """Base of every exception that stator itself raises."""


class GraphBreakError(StatorError):
    """The graph broke under `fullgraph=True`. `why` says where, why, and how to avoid it; `has_run`, whether the call
    has been made all the same."""

    def __init__(self, why: BreakReason, *, has_run: bool = False) -> None:
        super().__init__(why)
        self.why, self.has_run = why, has_run

    def __str__(self) -> str:
        effects = "the call has run; its effects stand" if self.has_run else "nothing of the call has run"
        return f"the graph breaks, and fullgraph=True forbids that ({effects}):\n{render(self.why)}"


class RecompileError(StatorError, RuntimeError):
    """No recording fits a call, and the stance `fail_on_recompile` forbids to make another one."""

    def __init__(self, name: str, miss: object) -> None:
        super().__init__(name, miss)
        self.name, self.miss = name, miss

    def __str__(self) -> str:
        return f"{self.name} would have to be recorded again: {self.miss}"


class SpecializationError(StatorError):
    """A dimension that was marked as dynamic can have one size only. `what` says which, and due to which line."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name, self.what = name, what

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.what}; it was marked with stator.mark_dynamic. "
            "Change that line, or mark the dimension with stator.mark_static."
        )


class UnknownBackend(StatorError):
    """`backend=` names none of the registered backends."""

    def __init__(self, name: object, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        close = difflib.get_close_matches(str(self.name), self.known, n=1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        return f"there is no backend {self.name!r}{meant} (known: {', '.join(self.known) or 'none'})"


class BackendError(StatorError):
    """A backend raised on a graph. `__cause__` is what it raised, `graph_path` where the graph was saved."""

    def __init__(self, backend: str, cause: BaseException, graph_path: str | None = None) -> None:
        super().__init__(backend, cause, graph_path)
        self.backend, self.graph_path = backend, graph_path
        self.__cause__ = cause

    def __str__(self) -> str:
        saved = f"; the graph was saved to {self.graph_path}" if self.graph_path else ""
        cause = self.__cause__
        return f"backend {self.backend!r} failed with {type(cause).__name__}: {_beginning(str(cause))}{saved}"


def _beginning(text: str, lines: int = 12, columns: int = 300) -> str:
    """Of what a C++ compiler says, the first lines tell."""
    found = [line if len(line) <= columns else line[:columns] + " …" for line in text.splitlines()]
    more = [f"… {len(found) - lines} more lines"] if len(found) > lines else []
    return "\n".join([*found[:lines], *more])


class VerificationError(StatorError):
    """With `options.verify`: a compiled graph is not what eager is. `differences` says in what, one line each;
    `reproduction` is the path of a script that shows it again."""

    def __init__(self, name: str, backend: str, differences: list[str], reproduction: str | None) -> None:
        super().__init__(name, backend, differences, reproduction)
        self.name, self.backend, self.differences, self.reproduction = name, backend, differences, reproduction

    def __str__(self) -> str:
        lines = "".join(f"\n  {line}" for line in self.differences)
        saved = f"\nTo see it again: python {self.reproduction}" if self.reproduction else ""
        return f"{self.name}: what backend {self.backend!r} made of a graph differs from eager{lines}{saved}"


class StorageError(StatorError, RuntimeError):
    """A compiled graph was given a tensor whose storage is smaller than the tensor: eager would read or write what is
    not the tensor's."""

    def __str__(self) -> str:
        return "the storage of a tensor is smaller than the tensor (was it resized?)"


class CannotDerive(StatorError):
    """A graph whose backward cannot be derived ahead of time; backends then run it as it was captured."""


class InternalError(StatorError):
    """A step of stator failed, a fault of ours. `__cause__` is the failure, `report_path` a saved report."""

    def __init__(self, where: str, cause: BaseException | None = None, report_path: str | None = None) -> None:
        super().__init__(where, cause, report_path)
        self.where, self.report_path = where, report_path
        self.__cause__ = cause

    def __str__(self) -> str:
        what = f" with {type(self.__cause__).__name__}: {self.__cause__}" if self.__cause__ else ""
        saved = f"; a report was saved to {self.report_path}" if self.report_path else ""
        return f"stator failed in {self.where}{what}{saved}"


def mark_unwritten(error: BaseException) -> None:
    """Raised by a graph that writes to its inputs, before it has written anything: it can be run again."""
    error.__dict__["__stator_unwritten__"] = True


def is_unwritten(error: BaseException) -> bool:
    """Was it marked so?"""
    return "__stator_unwritten__" in error.__dict__


def mark_half_done(error: BaseException) -> None:
    """It came while effects were made, and they could not all be taken back."""
    error.__dict__["__stator_half_done__"] = True


def is_half_done(error: BaseException) -> bool:
    """May some effects of the call have been made?"""
    return "__stator_half_done__" in error.__dict__
