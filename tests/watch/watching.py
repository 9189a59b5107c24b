"""What the tests of the native layer share: a watcher that notes everything. No torch, no pytest: these tests
also run under interpreters that have neither (test_other_pythons.py)."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from stator import _native as n

_NAMES = """
    ATTR SUPER_ATTR GLOBAL DEREF SUBSCR SLICE CALL CALL_EX BINARY COMPARE CONTAINS IS UNARY TRUTH ITER NEXT
    UNPACK EXTEND INSERT HASH WITH WITH_EXIT FORMAT AWAIT STORE_ATTR DELETE_ATTR STORE_SUBSCR STORE_SLICE
    DELETE_SUBSCR STORE_GLOBAL DELETE_GLOBAL STORE_DEREF DELETE_DEREF IMPORT_NAME IMPORT_FROM BUILD_CLASS
    MATCH MATCH_CLASS MATCH_KEYS RAISE EXC_MATCH INTRINSIC ESCAPE
"""
# What the filter is told by `support/builtin_types.py`, which needs torch.
n.enter(
    (types.MethodType, types.BuiltinFunctionType, types.CellType, types.GenericAlias, slice, weakref.ref, BaseException)
)
KINDS: dict[int, str] = {getattr(n, name): name for name in _NAMES.split() if hasattr(n, name)}


class Notes:
    """A watcher with a handler for every kind; what the handlers are told is kept."""

    def __init__(self, *, kinds: str | None = None, classify: Callable[[CodeType], Any] | None = None) -> None:
        self.events: list[tuple[Any, ...]] = []  # (kind's name, arg, *operands)
        self.probes: list[n.Probe] = []
        self.where: list[str] = []  # names of the code objects the events came from
        self.entered: list[str] = []
        self.blinds: list[tuple[str, str | None]] = []
        self.foreign: list[str] = []
        self.failures: list[BaseException] = []
        self.steps: list[tuple[Any, FunctionType, tuple[Any, ...]]] = []
        self.classified: list[str] = []
        self.asked: list[tuple[str, tuple[Any, ...]]] = []  # frames that could be transparent, with their slots
        self.transparent = True  # may they?
        self.replace: dict[Any, Any] = {}  # callable -> what to call instead
        self._classify = classify
        wanted = KINDS if kinds is None else {getattr(n, name): name for name in kinds.split()}
        self.watcher = n.Watcher(
            {kind: self._handler(name) for kind, name in wanted.items()},
            enter=lambda func: self.entered.append(func.__qualname__),
            classify=self.classify,
            leaf=self.leaf,
            blind=lambda code, reason: self.blinds.append((code.co_name, reason)),
            foreign=lambda code: self.foreign.append(code.co_name),
            failed=self.failures.append,
            transparent=self._ask,
        )

    def _handler(self, name: str) -> Callable[..., Any]:
        def handler(probe: n.Probe, *operands: Any) -> Any:
            assert n.state() == n.OFF
            self.events.append((name, probe.arg, *operands))
            self.probes.append(probe)
            self.where.append(probe.code.co_name)
            if name in ("CALL", "CALL_EX"):
                try:
                    return self.replace.get(operands[0])
                except TypeError:  # not hashable
                    return None
            return None

        return handler

    def classify(self, code: CodeType) -> tuple[int, object, bool]:
        self.classified.append(code.co_name)
        if self._classify is not None:
            answer = self._classify(code)
            if answer is not None:
                return answer
        return (n.COPY, None, False)

    def _ask(self, func: FunctionType, slots: tuple[Any, ...]) -> bool:
        self.asked.append((func.__name__, slots))
        return self.transparent

    def leaf(self, payload: Any, func: FunctionType, slots: tuple[Any, ...]) -> Any:
        self.steps.append((payload, func, slots))
        return self.watcher.call_leaf(func, slots, None)

    def run(self, func: Callable[..., Any], *slots: Any) -> Any:
        assert isinstance(func, FunctionType)
        try:
            return self.watcher.run(func, slots)
        finally:
            assert n.state() == n.OFF and n.current() is None and not n.hook_installed()

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The events of one kind, without its name."""
        return [event[1:] for event in self.events if event[0] == name]


def fresh_code(func: Callable[..., Any]) -> FunctionType:
    """The same function on a code object of its own, so that it has not been classified yet."""
    assert isinstance(func, FunctionType)
    copy = FunctionType(func.__code__.replace(), func.__globals__, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    copy.__qualname__ = func.__qualname__
    return copy


def outcome(call: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """What a call does: its result, or its exception with the lines it came through in the programs."""
    try:
        return ("value", call(*args))
    except BaseException as error:
        lines = []
        traceback = error.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if "watching.py" not in code.co_filename and "test_hook_" not in code.co_filename:
                lines.append((code.co_name, traceback.tb_lineno))
            traceback = traceback.tb_next
        return ("error", type(error), str(error), type(error.__context__), type(error.__cause__), lines)


def calls_made(work: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, are called while this is done: a cost that no other work changes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
