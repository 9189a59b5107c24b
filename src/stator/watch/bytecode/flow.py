"""How control and values flow through a code object: what a continuation of it has to restore.

Enters: a code object as the compiler made it. Leaves: a `Flow`, cached per code object: its instructions, and for
each of them what lies on the value stack and which local variables are still going to be read.

What holds in between:
- Instructions are numbered from 0. `offset(k)` is where instruction k has its opcode in the original, as in
  `Probe.offset`; `find(offset)` takes any offset of an instruction, be it that of a prefix or a cache.
- KW_NAMES, PRECALL and CALL are one: `find` gives the first of them, `offset` that of the CALL.
- 3.13's COMPARE_OP that also asks for the truth of its result is two instructions here, as it is in instrumented
  copies; so are its pairs of LOAD_FAST and STORE_FAST. The second has an odd offset.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import NamedTuple, TypeVar

from stator._native import Probe

from ...support.by_identity import WeakNotes, WeakValues
from . import opcodes as o
from .instrument import Handler, decode, parse_exception_table

# What a slot of the value stack holds: a value (or NULL), an exception state that was put aside, the place of an
# instruction that raised.
VALUE, EXC, LASTI = b"v", b"e", b"l"

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# Who names one of these may look at all local variables.
_READERS = frozenset("locals vars dir eval exec _getframe currentframe f_locals".split())

T = TypeVar("T")
Position = tuple[int | None, int | None, int | None, int | None]


class NotResumable(Exception):
    """There is no continuation for this; the argument says why.

    From `suspended`: `place` is the instruction, as (code, offset), that a run had better be broken off at instead,
    `calls` says how far its frame is from the innermost, `probe` is the instruction's. None if there is no such place.
    """

    place: tuple[CodeType, int] | None = None
    calls: int = 0
    probe: Probe | None = None


class ExceptionEntry(NamedTuple):
    """An entry of the exception table, in instructions."""

    target: int
    depth: int
    lasti: bool


class Body(NamedTuple):
    """The instructions after a frame's set-up, ready to be assembled; numbered from 0."""

    ops: list[int]
    args: list[int]  # 0 for jumps
    jumps: list[tuple[int, int]]  # (number, the original's instruction that it jumps to)
    slots: list[tuple[int, int]]  # (number, slot of the fast locals)
    guards: list[tuple[int, int, ExceptionEntry]]  # (first, end, handler)
    positions: list[Position]


class Flow:
    """The static facts of one code object. It does not hold the code object."""

    def __init__(self, code: CodeType) -> None:
        self.refusal = _refusal(code)
        self._decode(code)
        self._settle_groups()
        self._find_handlers(parse_exception_table(code.co_exceptiontable))
        self.names = _slot_names(code)
        self.free = len(self.names) - len(code.co_freevars)  # index of the first free variable
        self.cells = frozenset(i for i in range(self.free) if self.names[i] in code.co_cellvars)
        self.positions: list[Position] = list(code.co_positions())
        self.keep = _kept(code, self.free)
        self.stacks = self._run_stacks()
        self.live = self._run_liveness()
        self.body = self._make_body()
        self.made: WeakValues[tuple[object, ...], CodeType] = WeakValues()

    # -- instructions

    def _decode(self, code: CodeType) -> None:
        ins = decode(code.co_code)
        self.ops: list[int] = []
        self.args: list[int] = []
        self.offsets: list[int] = []
        self.units: list[int] = []  # code unit -> instruction; one more entry for the end of the code
        at: dict[int, int] = {}  # code unit of a first prefix -> instruction
        for k, (op, arg) in enumerate(zip(ins.ops, ins.args, strict=True)):
            at[ins.starts[k]] = len(self.ops)
            self.units.extend([len(self.ops)] * (ins.starts[k + 1] - ins.starts[k]))
            offset = 2 * (ins.starts[k] + ins.prefixes[k])
            if op == o.COMPARE_OP and arg & o.COMPARE_TO_BOOL:
                self._append(op, arg & ~o.COMPARE_TO_BOOL, offset)
                self._append(o.TO_BOOL, 0, offset + 1)
            elif op in o.PAIRS:
                first, second = o.PAIRS[op]
                self._append(first, arg >> 4, offset)
                self._append(second, arg & 15, offset + 1)
            else:
                self._append(op, arg, offset)
        self.units.append(len(self.ops))
        self.targets = [-1] * len(self.ops)  # instruction -> where it jumps
        for k, op in enumerate(ins.ops):
            if o.JUMPS[op]:
                self.targets[at[ins.starts[k]]] = at[ins.starts[k + 1] + o.JUMPS[op] * ins.args[k]]
        self.entry = self.ops.index(o.RESUME) + 1  # what the frame's own set-up does is over

    def _append(self, op: int, arg: int, offset: int) -> None:
        self.ops.append(op)
        self.args.append(arg)
        self.offsets.append(offset)

    def _settle_groups(self) -> None:
        """Which instructions must stay together: heads[k] is the first of k's group, lasts[k] the last."""
        self.heads = list(range(len(self.ops)))
        self.lasts = list(self.heads)
        for k, op in enumerate(self.ops):
            if op not in o.CALLS:
                continue
            first = k - 1 if k > 0 and self.ops[k - 1] == o.KW_NAMES else k
            last = k + 1 if op == o.PRECALL else k
            self._join(first, last)
        if o.SKIPPED_AT_LOOP_END > 1:
            for k, op in enumerate(self.ops):
                if op == o.END_FOR:
                    self._join(k, k + o.SKIPPED_AT_LOOP_END - 1)

    def _join(self, first: int, last: int) -> None:
        for member in range(first, last + 1):
            self.heads[member], self.lasts[member] = first, last

    def _find_handlers(self, table: list[Handler]) -> None:
        self.handlers: list[ExceptionEntry | None] = [None] * len(self.ops)
        for h in table:
            entry = ExceptionEntry(self.units[h.target], h.depth, h.lasti)
            for k in range(self.units[h.start], self.units[h.end]):
                self.handlers[k] = entry

    def _make_body(self) -> Body:
        """What continuations have in common: everything after the frame's own set-up."""
        first, count = self.entry, len(self.ops)
        guards: list[tuple[int, int, ExceptionEntry]] = []
        start = first
        for k in range(first, count + 1):
            handler = self.handlers[k] if k < count else None
            if k == start or handler is not self.handlers[start]:
                entry = self.handlers[start]
                if entry is not None and k > start:
                    guards.append((start - first, k - first, entry))
                start = k
        return Body(
            self.ops[first:],
            [0 if self.targets[k] >= 0 else self.args[k] for k in range(first, count)],
            [(k - first, self.targets[k]) for k in range(first, count) if self.targets[k] >= 0],
            [(k - first, self.args[k]) for k in range(first, count) if self.ops[k] in o.SLOTS],
            guards,
            [self.position(k) for k in range(first, count)],
        )

    def find(self, offset: int) -> int:
        """The instruction (the first of its group) at an offset of the original code."""
        if not 0 <= offset < 2 * (len(self.units) - 1):
            raise ValueError(f"there is no instruction at {offset}")
        k = self.units[offset >> 1]
        return self.heads[k + (offset & 1)]

    def offset(self, k: int) -> int:
        return self.offsets[self.lasts[k]]

    def position(self, k: int) -> Position:
        return self.positions[self.offsets[k] >> 1]

    def rule(self, k: int) -> o.ProbeRule | None:
        """The rule of the probe before instruction k (the first of its group), if it has one."""
        if self.ops[k] == o.KW_NAMES:
            k += 1
        rule = o.RULES[self.ops[k]] if self.ops[k] != o.INTRINSIC_1 else o.intrinsic_rule(self.args[k])
        if rule is None or (callable(rule.shape) and rule.shape(self.args[k]) is None):
            return None
        return rule

    def successors(self, k: int) -> list[int]:
        out = [self.targets[k]] if self.targets[k] >= 0 else []
        if self.ops[k] not in o.NO_FALL_THROUGH:
            out.append(k + 1)
        return out

    # -- the value stack

    def _run_stacks(self) -> list[bytes | None]:
        """What lies on the stack before each instruction, None where control never comes."""
        stacks: list[bytes | None] = [None] * len(self.ops)
        work = [(0, b"")]
        while work:
            k, stack = work.pop()
            while stacks[k] is None:
                stacks[k] = stack
                handler = self.handlers[k]
                if handler is not None and stacks[handler.target] is None:
                    work.append((handler.target, stack[: handler.depth] + (LASTI if handler.lasti else b"") + VALUE))
                op, arg = self.ops[k], self.args[k]
                if self.targets[k] >= 0:
                    work.append((self.targets[k], _after(op, arg, stack, jump=True)))
                if op in o.NO_FALL_THROUGH:
                    break
                stack = _after(op, arg, stack, jump=False)
                k += 1
        return stacks

    def stack(self, k: int) -> bytes:
        """What lies on the stack before instruction k, bottom first."""
        stack = self.stacks[k]
        if stack is None:
            raise NotResumable("control never comes here")
        return stack

    # -- liveness

    def _run_liveness(self) -> list[int]:
        """The slots that are read later, before each instruction, as bits. Repeated until nothing changes."""
        count = len(self.ops)
        used, kept = [0] * count, [-1] * count
        for k, op in enumerate(self.ops):
            what = o.SLOTS.get(op)
            if what == "store":
                kept[k] = ~(1 << self.args[k])
            elif what is not None:
                used[k] = 1 << self.args[k]
        after = [self.successors(k) for k in range(count)]
        live = [0] * (count + 1)
        changed = True
        while changed:
            changed = False
            for k in range(count - 1, -1, -1):
                now = 0
                for successor in after[k]:
                    now |= live[successor]
                now = now & kept[k] | used[k]
                handler = self.handlers[k]
                if handler is not None:
                    now |= live[handler.target]
                if now != live[k]:
                    live[k] = now
                    changed = True
        return live

    def live_after(self, k: int) -> int:
        """What is read after instruction k, also if it raises."""
        live = 0
        for successor in self.successors(k):
            live |= self.live[successor]
        return live | self.live_if_raised(k)

    def live_if_raised(self, k: int) -> int:
        handler = self.handlers[k]
        return 0 if handler is None else self.live[handler.target]

    def read(self, live: int, slot: int) -> bool:
        """Is a variable among those that are read later?"""
        return bool((live | self.keep) >> slot & 1)

    def parameters(self, names: frozenset[str]) -> list[int]:
        """The slots of variables, in the order of the slots."""
        return [i for i in range(self.free) if self.names[i] in names]


def _after(op: int, arg: int, stack: bytes, jump: bool) -> bytes:
    """The stack after an instruction. Only those that deal with exceptions touch slots that are no values."""
    if op == o.SWAP:
        i = len(stack) - arg
        return stack[:i] + stack[-1:] + stack[i + 1 : -1] + stack[i : i + 1]
    if op == o.PUSH_EXC_INFO:
        return stack[:-1] + EXC + VALUE
    effect = o.stack_effect(op, 0 if o.JUMPS[op] else arg)[jump]
    return stack + VALUE * effect if effect >= 0 else stack[:effect]


def _refusal(code: CodeType) -> str | None:
    if code.co_flags & _GENERATORS:
        return "it is a generator or a coroutine"
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "it keeps its variables in a mapping (a class body, or code run by exec)"
    if "super" in code.co_names and code.co_argcount == 0:
        return "its super() may have no first argument to take"
    return None


def _slot_names(code: CodeType) -> list[str]:
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return [*code.co_varnames, *cells, *code.co_freevars]


def _kept(code: CodeType, free: int) -> int:
    """Slots that are read in other ways than by instructions that name them."""
    names = set(code.co_names)
    if names & _READERS:
        return (1 << free) - 1
    return 1 if "super" in names else 0


# ---- one Flow per code object ----


_flows: WeakNotes[CodeType, Flow] = WeakNotes()


def flow_of(code: CodeType) -> Flow:
    """The facts of a code object."""
    flow = _flows.get(code)
    if flow is None:
        flow = Flow(code)
        _flows.put(code, flow)
    return flow
