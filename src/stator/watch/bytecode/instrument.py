"""Instrumented copies: the same code with a probe before each instruction that reads or writes state or
calls C code.

Enters: a code object. Leaves: a copy of it in which `LOAD_CONST probe; UNARY_NEGATIVE; POP_TOP` precedes
every instruction that `opcodes.py` has a rule for, and which takes all argument slots as plain positional
arguments.

What holds in between:
- The unit of work is a *block*: the code units inserted before an instruction, the instruction with its
  EXTENDED_ARG prefixes and caches, and the units inserted after it. Whatever referred to an instruction (a
  jump, the bounds and the target of an exception table entry, an entry of the line table) refers to its block
  in the copy.
- Inserted units have the line and columns of the instruction they belong to: tracers see no extra lines.
- The value stack's depth before each instruction is static; where two ways meet they must agree, else the
  code is refused.
- Code constants stay the originals: the hook makes a nested function's copy when it is called.
"""

from __future__ import annotations

import inspect
import re
from types import CodeType
from typing import NamedTuple

from stator import _native as n
from stator.watch.bytecode import opcodes as o

from ...support.by_identity import ByIdentity

_CODE_UNIT = 2
_STARRED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class Handler(NamedTuple):
    """An entry of the exception table, in code units."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


class Instructions(NamedTuple):
    """A code object's instructions, as columns: prefixes and caches belong to their instruction."""

    ops: list[int]
    args: list[int]
    starts: list[int]  # first code unit, prefixes included; one more entry for the end of the code
    prefixes: list[int]  # number of EXTENDED_ARG
    at: dict[int, int]  # code unit -> instruction

    def target(self, k: int) -> int:
        """The instruction that instruction k jumps to."""
        return self.at[self.starts[k + 1] + o.JUMPS[self.ops[k]] * self.args[k]]


class Insertion(NamedTuple):
    """What is inserted around one instruction."""

    before: n.Probe | None
    after: n.Probe | None
    extra: bytes  # instructions that follow the after-probe


# Code that is watched by another text than its own, whose frames have the same shape (`checkpoints.py`).
SUBSTITUTES: ByIdentity[CodeType, CodeType] = ByIdentity()


def instrument(code: CodeType) -> CodeType:
    """The instrumented copy of `code`; raises `Unwatchable` if there can be none."""
    code = SUBSTITUTES.get(code) or code
    _check_watchable(code)
    ins = decode(code.co_code)
    if not o.UNWATCHABLE.isdisjoint(ins.ops):
        raise n.Unwatchable("it uses a namespace that is not its own")
    if not o.UNKNOWN.isdisjoint(ins.ops):
        raise n.Unwatchable("it has instructions of which nothing is known")
    table = parse_exception_table(code.co_exceptiontable)
    depths = stack_depths(ins, table, code.co_stacksize)
    probes = _place_probes(code, ins, depths)
    raw, moved, consts = _assemble(code, ins, probes)
    slots = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & _STARRED).bit_count()
    return code.replace(
        co_code=raw,
        co_consts=consts,
        co_stacksize=code.co_stacksize + 1,
        co_argcount=slots,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~_STARRED,
        co_exceptiontable=_move_exception_table(table, moved),
        co_linetable=_move_line_table(code.co_linetable, moved),
    )


def _check_watchable(code: CodeType) -> None:
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise n.Unwatchable("it keeps its variables in a mapping (a class body, or code run by exec)")
    no_first = code.co_argcount == 0 and (code.co_flags & _STARRED or code.co_kwonlyargcount)
    if no_first and "__class__" in code.co_freevars:
        # super() would find a first argument in the copy where the original has none
        raise n.Unwatchable("its super() has no first argument to take")
    if len({*code.co_varnames, *code.co_cellvars, *code.co_freevars}) != len(_variables(code)):
        raise n.Unwatchable("two of its variables have one name")


def _variables(code: CodeType) -> list[str]:
    """All, an argument that is a cell once."""
    arguments = {*code.co_varnames}
    return [*code.co_varnames, *(name for name in code.co_cellvars if name not in arguments), *code.co_freevars]


def decode(raw: bytes) -> Instructions:
    """Split bytecode into instructions."""
    ops: list[int] = []
    args: list[int] = []
    starts: list[int] = []
    prefixes: list[int] = []
    at: dict[int, int] = {}
    caches, extended = o.CACHES, o.EXTENDED_ARG
    unit = start = high = prefix = 0
    end = len(raw) // _CODE_UNIT
    while unit < end:
        op, arg = raw[2 * unit], raw[2 * unit + 1] | high
        if op == extended:
            high = arg << 8
            prefix += 1
            unit += 1
            continue
        at[start] = len(ops)
        ops.append(op)
        args.append(arg)
        starts.append(start)
        prefixes.append(prefix)
        unit += 1 + caches[op]
        start = unit
        high = prefix = 0
    starts.append(end)
    return Instructions(ops, args, starts, prefixes, at)


# ---- the value stack ----


def stack_depths(ins: Instructions, table: list[Handler], limit: int) -> list[int]:
    """The depth of the value stack before each instruction, -1 where control never comes. Linear."""
    ops, args = ins.ops, ins.args
    depths = [-1] * len(ops)
    work = [(0, 0)]
    work += [(ins.at[h.target], h.depth + 1 + h.lasti) for h in table]
    while work:
        k, depth = work.pop()
        while True:
            if depths[k] >= 0:
                if depths[k] != depth:
                    raise AssertionError(f"instruction {k} is reached at depth {depths[k]} and at {depth}")
                break
            if not 0 <= depth <= limit:
                raise AssertionError(f"instruction {k} is reached at depth {depth} of {limit}")
            depths[k] = depth
            op = ops[k]
            fall, jump = o.stack_effect(op, 0 if o.JUMPS[op] else args[k])
            if o.JUMPS[op]:
                work.append((ins.target(k), depth + jump))
            if op in o.NO_FALL_THROUGH:
                break
            k += 1
            depth += fall
    return depths


# ---- probes ----


def _place_probes(code: CodeType, ins: Instructions, depths: list[int]) -> dict[int, Insertion]:
    placed: dict[int, Insertion] = {}
    rules, ops, args = o.RULES, ins.ops, ins.args
    for k, op in enumerate(ops):
        depth = depths[k]
        if depth < 0:
            continue
        rule = rules[op] if op != o.INTRINSIC_1 else o.intrinsic_rule(args[k])
        if op == o.YIELD_VALUE and ops[k - 1] == o.SEND:
            rule = None  # 3.11's generator.throw() steps back from the one to find the other
        before = None if rule is None else _probe(rule, code, ins, k, depth)
        if op in o.CALLS and k > 0 and ops[k - 1] == o.KW_NAMES:
            assert before is not None
            placed[k - 1] = Insertion(before, None, b"")
        elif op == o.MAKE_FUNCTION:
            after = depth + o.stack_effect(op, args[k])[0]
            probe = n.Probe(n.FUNCTION, after, 1, None, ins.starts[k] * _CODE_UNIT, code, None)
            placed[k] = Insertion(before, probe, b"")
        elif op == o.COMPARE_OP and args[k] & o.COMPARE_TO_BOOL:
            # The truth of what a comparison returns is asked inside the instruction: split it in two.
            args[k] &= ~o.COMPARE_TO_BOOL
            truth = n.Probe(n.TRUTH, depth - 1, 1, None, ins.starts[k] * _CODE_UNIT, code, None)
            placed[k] = Insertion(before, truth, unit(o.TO_BOOL, 0))
        elif before is not None:
            placed[k] = Insertion(before, None, b"")
    return placed


def _probe(rule: o.ProbeRule, code: CodeType, ins: Instructions, k: int, depth: int) -> n.Probe | None:
    arg = ins.args[k]
    shape = rule.shape(arg) if callable(rule.shape) else rule.shape
    if shape is None:
        return None
    last = k + 1 if ins.ops[k] == o.PRECALL else k  # PRECALL and CALL are one instruction
    what: object = None if rule.arg is None else rule.arg(code, arg)
    if ins.ops[k] in o.CALLS and k > 0 and ins.ops[k - 1] == o.KW_NAMES:
        what = code.co_consts[ins.args[k - 1]]
    follower = last + 1
    stores = None
    holds = rule.kind == n.PACK and ins.ops[k] != o.BUILD_STRING  # what it takes is found in what it makes
    if holds and follower < len(ins.ops) and ins.ops[follower] == o.RETURN_VALUE:
        what = "returned"
    if follower < len(ins.ops):
        stores = o.stored_name(code, ins.ops[follower], ins.args[follower])
    offset = (ins.starts[last] + ins.prefixes[last]) * _CODE_UNIT
    count, span, step = shape
    return n.Probe(rule.kind, depth, count, what, offset, code, stores, span, step, arg if rule.cell else -1)


# ---- assembling ----


def unit(op: int, arg: int, prefixes: int = 0) -> bytes:
    """An instruction with at least so many prefixes, followed by its caches."""
    out = bytearray()
    for i in range(max(prefixes, prefixes_of(arg)), 0, -1):
        out += bytes((o.EXTENDED_ARG, arg >> (8 * i) & 0xFF))
    out += bytes((op, arg & 0xFF))
    out += bytes(_CODE_UNIT * o.CACHES[op])
    return bytes(out)


def prefixes_of(arg: int) -> int:
    return 0 if arg < 0x100 else 1 if arg < 0x10000 else 2 if arg < 0x1000000 else 3


_FIRING = 3  # instructions that fire a probe
_FIRE = unit(o.UNARY_NEGATIVE, 0) + unit(o.POP_TOP, 0)


def _assemble(
    code: CodeType, ins: Instructions, probes: dict[int, Insertion]
) -> tuple[bytes, list[int], tuple[object, ...]]:
    """The copy's bytecode, where each code unit went, and the copy's constants."""
    consts = list(code.co_consts)
    before: list[bytes] = [b""] * len(ins.ops)
    after: list[bytes] = [b""] * len(ins.ops)
    for k, insertion in probes.items():
        if insertion.before is not None:
            before[k] = unit(o.LOAD_CONST, len(consts)) + _FIRE
            consts.append(insertion.before)
        if insertion.after is not None:
            after[k] = unit(o.LOAD_CONST, len(consts)) + _FIRE + insertion.extra
            consts.append(insertion.after)
    args, prefixes, starts = _settle_jumps(ins, before, after)
    parts: list[bytes] = []
    moved: list[int] = []
    for k, op in enumerate(ins.ops):
        parts += (before[k], unit(op, args[k], prefixes[k]), after[k])
        # An instruction's first unit goes to the block's start, its others to where they are in the copy.
        size = ins.starts[k + 1] - ins.starts[k]
        body = starts[k] + len(before[k]) // _CODE_UNIT
        moved.append(starts[k])
        moved.extend(range(body + 1, body + size))
    moved.append(starts[-1])
    return b"".join(parts), moved, tuple(consts)


def _settle_jumps(ins: Instructions, before: list[bytes], after: list[bytes]) -> tuple[list[int], list[int], list[int]]:
    """Arguments, prefix counts and block starts in the copy. A longer jump may need a prefix, which makes
    others longer: repeat until nothing changes. Prefixes only grow, so it ends."""
    args = list(ins.args)
    prefixes = list(ins.prefixes)
    jumps = [(k, ins.target(k)) for k, op in enumerate(ins.ops) if o.JUMPS[op]]
    sizes = [
        (len(b) + len(a)) // _CODE_UNIT + ins.starts[k + 1] - ins.starts[k]
        for k, (b, a) in enumerate(zip(before, after, strict=True))
    ]
    while True:
        starts = [0]
        total = 0
        for size in sizes:
            total += size
            starts.append(total)
        grown = False
        for k, target in jumps:
            end = starts[k + 1] - len(after[k]) // _CODE_UNIT
            to = starts[target]
            if ins.ops[k] == o.RESEND:  # back to SEND itself: its probe would look like a new line to tracers
                to += len(before[target]) // _CODE_UNIT
            args[k] = o.JUMPS[ins.ops[k]] * (to - end)
            more = prefixes_of(args[k]) - prefixes[k]
            if more > 0:
                prefixes[k] += more
                sizes[k] += more
                grown = True
        if not grown:
            return args, prefixes, starts


# ---- back from a copy to its original ----


def places(copy: CodeType, original: CodeType) -> list[tuple[int, bool]]:
    """For each code unit of a copy: the offset in the original of the instruction it belongs to, and whether that
    instruction is running there (else its probe is). The second half of a comparison that was split is one further."""
    new, old = decode(copy.co_code), decode(original.co_code)
    out: list[tuple[int, bool]] = []
    i = 0

    def take(offset: int, running: bool) -> None:
        nonlocal i
        out.extend([(offset, running)] * (new.starts[i + 1] - new.starts[i]))
        i += 1

    def take_probe(offset: int) -> None:
        if new.ops[i] == o.LOAD_CONST and isinstance(copy.co_consts[new.args[i]], n.Probe):
            for _ in range(_FIRING):
                take(offset, False)

    for k, op in enumerate(old.ops):
        offset = (old.starts[k] + old.prefixes[k]) * _CODE_UNIT
        take_probe(offset)
        take(offset, True)
        if op == o.MAKE_FUNCTION:
            take_probe(offset)
        elif op == o.COMPARE_OP and old.args[k] & o.COMPARE_TO_BOOL:
            take_probe(offset + 1)
            take(offset + 1, True)
    return out


# ---- the exception table ----


def parse_exception_table(table: bytes) -> list[Handler]:
    """Entries are four numbers each, in groups of six bits, the highest first; 0x40 says that more follow."""
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(value)
            value = 0
    return [
        Handler(start, start + length, target, last >> 1, bool(last & 1))
        for start, length, target, last in zip(*[iter(numbers)] * 4, strict=True)
    ]


def _move_exception_table(table: list[Handler], moved: list[int]) -> bytes:
    return encode_exception_table(
        [(moved[h.start], moved[h.end] - moved[h.start], moved[h.target], h.depth, h.lasti) for h in table]
    )


def encode_exception_table(entries: list[tuple[int, int, int, int, bool]]) -> bytes:
    """Entries are (first code unit, number of units, target, depth, push lasti), ordered by the first."""
    out = bytearray()
    for start, length, target, depth, lasti in entries:
        first = len(out)
        for value in (start, length, target, depth << 1 | lasti):
            groups = [value & 0x3F]
            while value := value >> 6:
                groups.append(value & 0x3F | 0x40)
            out += bytes(reversed(groups))
        out[first] |= 0x80  # marks the beginning of an entry
    return bytes(out)


# ---- the line table ----

# An entry begins with a byte that has the highest bit set: 1, form (4 bits), code units - 1 (3 bits).
_ENTRY = re.compile(rb"([\x80-\xff])([\x00-\x7f]*)", re.DOTALL)
_ONE_LINE = range(10, 13)  # the line is 0, 1 or 2 further
_NO_COLUMNS, _LONG = 13, 14  # a signed number says how much further the line is


def _same_place(form: int, rest: bytes) -> tuple[int, bytes]:
    """The entry that says once more what an entry of this form has just said: its line is 0 further."""
    if form in _ONE_LINE:
        return _ONE_LINE.start, rest
    if form == _NO_COLUMNS:
        return form, b"\0"
    if form == _LONG:
        size = 1
        while rest[size - 1] & 0x40:
            size += 1
        return form, b"\0" + rest[size:]
    return form, rest


def _move_line_table(table: bytes, moved: list[int]) -> bytes:
    parts: list[bytes] = []
    unit = 0
    for head, rest in _ENTRY.findall(table):
        form = head[0] >> 3 & 0xF
        end = min(unit + (head[0] & 7) + 1, len(moved) - 1)  # a table made by hand may say more than there is
        if end == unit:
            break
        length = moved[end] - moved[unit]
        unit = end
        parts.append(bytes((0x80 | form << 3 | min(length, 8) - 1,)) + rest)
        if length > 8:
            form, rest = _same_place(form, rest)
            while (length := length - 8) > 0:
                parts.append(bytes((0x80 | form << 3 | min(length, 8) - 1,)) + rest)
    return b"".join(parts)
