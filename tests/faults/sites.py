"""Places where stator can be made to fail: its own source, with a tick before every statement that calls something.

Enters: nothing; `install()` comes before the first `import stator`. Leaves: `SITES`, one `Site` for the start of each
function and for each statement with a call in it, and `arm`, which makes the k-th passage of one of them raise.
What holds: a tick runs no Python code until it raises, and raises from stator's own frame, so that nothing can tell the
fault from one of stator's own.
"""

from __future__ import annotations

import ast
import collections
import importlib.machinery
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

# The stages, and what they share. Not: the public functions, the options, and reports asked for by the user.
ROOMS = ("watch.", "replay.", "autograd.", "backends.", "report.logs")
MODULES = (
    "pipeline",
    "program",
    "lookup",
    "record",
    "fallback",
    "stance",
    "build",
    "dispatch",
    "modules",
    "events",
    "errors",
    "recording",
    "support.symbolic_exprs",
    "support.guard_readers",
)

# The way back to the program. Only what stands in a `try` can fail here: the rest is what faults are survived by.
WAY_BACK = {
    "pipeline": (
        *("run", "go_on", "resume", "replay_failed"),  # what C code calls
        *("_follow", "_land", "_program_behind", "BreakReached.go", "BreakReached.__init__"),
        *("_call", "_proceed", "_tell_hit", "_replay", "_look_again"),
    ),
    "replay.saving": ("put_back",),
    "program": ("Stats.plain_calls",),
    "record": ("record", "_prepare", "_finish", "_let_go", "_try_to_keep", "_not_begun", "_note_raise"),
    "fallback": ("repeat", "not_found", "internal_failure"),
    "watch.observe.recorder": ("Recorder.collapse",),
    "watch.observe.segment_ends": ("collapse", "_stop_tracing"),
    "watch.observe.unguarded_values": ("_in_place_of", "_length", "_compute"),  # the program calls them
    "watch.objects.own_objects": ("OwnObjects.original",),  # the result of a watched run is handed back by it
    "errors": ("InternalError", "BackendError", "is_half_done"),
    "autograd.runtime": ("_before_writes.marking",),
    # Around the program's function; what they do before and after it stands in `_attempt`.
    "watch.tensors.leaf_interiors": ("_Call.__call__", "Interiors._attempt", "Interiors.transform", "Interiors.apply"),
    "watch.observe.policy": ("recording", "is_compiling"),
    "modules": ("compiled_module.call", "compile_in_place.call"),
    "dispatch": ("_find_default",),  # raises what a wrong call raises
}
# From where there is no way back: the error is raised, with a note that says so.
NO_RETURN = {
    # The backward of a compiled graph. There is no eager one.
    "autograd.runtime": (
        "_backward_of.backward",
        "_found_for",
        "TangentFacts.fit",
        "_without_autocast.run",
        "_told.run",
        "_finisher.finish",
        "_output",
    ),
    "autograd.functional": (
        "TensorView.on",
    ),  # with `finish` and `_output`: what follows writes to the program's tensors
    "autograd.symbols": ("filled",),
    "autograd.record": ("_ask",),  # called by C++ code of torch that no exception may pass through
}
# Run by the program itself, in place of what it calls: they do nothing but return.
PLAIN = {
    "watch.models.checkpoints": ("enter_region", "leave_region"),
    "watch.symbols.symbolic_numbers": ("Symbols.itself", "Symbols.plain_type"),
}
# Asked by whoever looks at a compiled callable, not by its calls.
QUESTIONS = {
    "program": ("Stats.hits",),
    "replay.cache": ("Entry.hits", "Cache.all_entries"),
    "dispatch": ("Handle",),
    "report.logs": ("set_logs", "_Switchboard.update"),
}
# What undoes something and cannot fail.
UNDOING = ("gc.enable()", "program.cache.recording.release()", "recording.release()")


class Site(NamedTuple):
    """A place in stator's source."""

    number: int
    module: str
    function: str
    line: int
    entry: bool  # the start of the function

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.function}" + (" (entry)" if self.entry else "")


class Fault(RuntimeError):
    """A fault put in on purpose."""


class Interrupt(KeyboardInterrupt):
    """The user's own, while stator is at work."""


SITES: list[Site] = []
TICKS: list[Any] = []  # per site, an iterator of numbers; the fault is raised at 0
KIND: list[type[BaseException]] = [Fault]


def _is_covered(name: str) -> bool:
    local = name.removeprefix("stator.")
    return local.startswith(ROOMS) or local in MODULES


class _Ticking(ast.NodeTransformer):
    def __init__(self, module: str) -> None:
        self._module = module
        self._names: list[str] = []
        self._depth = 0
        self._tried = False  # inside of a `try` with an `except`

    def _tick(self, at: ast.stmt, *, entry: bool) -> list[ast.stmt]:
        number = len(SITES)
        SITES.append(Site(number, self._module, ".".join(self._names), at.lineno, entry))
        TICKS.append(itertools.count(1))
        text = f"if _next_(_ticks_[{number}]) == 0: raise _kind_[0]('a fault put in on purpose')"
        made = ast.parse(text).body
        for node in ast.walk(made[0]):
            if "lineno" in node._attributes:
                ast.copy_location(node, at)
        return made

    def _may_fail(self, statement: ast.stmt) -> bool:
        name = ".".join(self._names)
        if not self._tried and name.startswith(WAY_BACK.get(self._module, ())):
            return False
        exempt = [name for table in (NO_RETURN, PLAIN, QUESTIONS) for name in table.get(self._module, ())]
        return not name.startswith(tuple(exempt)) and ast.unparse(statement) not in UNDOING

    def _body(self, body: list[ast.stmt], *, starts: bool) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for index, statement in enumerate(body):
            docstring = index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            ticks = self._depth and not (docstring and len(body) > 1) and (starts or _calls(statement))
            if ticks and self._may_fail(statement):
                made += self._tick(statement, entry=starts)
            starts = starts and docstring
            made.append(self.visit(statement))
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                handled = isinstance(node, ast.Try) and bool(node.handlers) and name == "body"
                tried, self._tried = self._tried, self._tried or handled
                setattr(node, name, self._body(body, starts=False))
                self._tried = tried
        for handler in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
            handler.body = self._body(handler.body, starts=False)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._names.append(node.name)
        self._depth += 1
        tried, self._tried = self._tried, False
        node.body = self._body(node.body, starts=True)
        self._tried = tried
        self._depth -= 1
        self._names.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        depth, self._depth = self._depth, 0
        self._names.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._names.pop()
        self._depth = depth
        return node


def _calls(statement: ast.stmt) -> bool:
    """Does the statement itself, without those inside of it, call something?"""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return False
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            return True
        if isinstance(node, ast.Lambda):
            continue
        inner = ast.iter_child_nodes(node)
        pending += [child for child in inner if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))]
    return False


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        if _is_covered(fullname):
            tree = _Ticking(fullname.removeprefix("stator.")).visit(tree)
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module.__dict__.update({"_next_": next, "_ticks_": TICKS, "_kind_": KIND})
        super().exec_module(module)


class _Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith("stator"):
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


def install() -> None:
    """From now on stator is imported with ticks in it."""
    assert "stator" not in sys.modules, "ticks are put in when stator is imported"
    sys.meta_path.insert(0, _Finder)


def start_counting() -> None:
    TICKS[:] = [itertools.count(1) for _ in TICKS]


def counts() -> collections.Counter[int]:
    """How often each site was passed since `start_counting`, by number."""
    passed = collections.Counter({number: next(tick) - 1 for number, tick in enumerate(TICKS)})
    start_counting()
    return +passed


class Armed:
    """One site that is going to fail."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fired(self) -> bool:
        """Has it failed? (Asked once.)"""
        return bool(next(TICKS[self._number]) >= 1)


@contextmanager
def arm(site: Site, passage: int, kind: type[BaseException] = Fault) -> Iterator[Armed]:
    """The given passage of the site (1: the first) raises."""
    TICKS[site.number] = itertools.count(1 - passage)
    KIND[0] = kind
    try:
        yield Armed(site.number)
    finally:
        TICKS[site.number] = itertools.count(1)
