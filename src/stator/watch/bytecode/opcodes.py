"""Which instruction gets which probe, for CPython 3.11, 3.12 and 3.13.

Enters: nothing. Leaves: tables indexed by opcode. This is the only place in Python that knows of version
differences; `instrument.py` reads the tables and asks for no version.

A `ProbeRule` says what the probe before an instruction is: its kind, where its operands lie on the value stack,
and what `Probe.arg` is. An operand shape is (count, span, step): `count` values, the lowest `span` slots
under the top, `step` slots apart.
"""

from __future__ import annotations

import dis
import opcode
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

from stator import _native as n

StackShape = tuple[int, int, int]
VERSION = sys.version_info[:2]


@dataclass(frozen=True, slots=True)
class ProbeRule:
    """The probe of one opcode. `shape` depends on the instruction's argument if it is callable, and None then
    means that this one gets no probe."""

    kind: int
    shape: StackShape | Callable[[int], StackShape | None]
    arg: Callable[[CodeType, int], object] | None = None
    cell: bool = False  # the instruction's argument is the localsplus index of a cell


def _top(count: int) -> StackShape:
    return (count, count, 1)


def _plain(kind: int, count: int, arg: Callable[[CodeType, int], object] | None = None) -> ProbeRule:
    return ProbeRule(kind, _top(count), arg)


def _name(shift: int = 0) -> Callable[[CodeType, int], object]:
    return lambda code, arg: code.co_names[arg >> shift]


def _cell(kind: int, count: int) -> ProbeRule:
    return ProbeRule(kind, _top(count), _cell_name, cell=True)


def _cell_name(code: CodeType, arg: int) -> object:
    return code._varname_from_oparg(arg)  # type: ignore[attr-defined]  # as dis does; typeshed has no entry


def _compare(shift: int) -> ProbeRule:
    return _plain(n.COMPARE, 2, lambda code, arg: dis.cmp_op[arg >> shift])


def _always(value: object) -> Callable[[CodeType, int], object]:
    return lambda code, arg: value


def _inverted(code: CodeType, arg: int) -> object:
    return bool(arg)


def _number(code: CodeType, arg: int) -> object:
    return arg


def _operator(code: CodeType, arg: int) -> object:
    return opcode._nb_ops[arg][1]  # type: ignore[attr-defined]  # as dis does; typeshed has no entry


def _before_after(code: CodeType, arg: int) -> object:
    return (arg & 0xFF, arg >> 8)


_CONVERSIONS = (None, "s", "r", "a")


def _conversion(code: CodeType, arg: int) -> object:
    return _CONVERSIONS[arg & 3]


def _into(kind: int, count: int) -> ProbeRule:
    """Puts the `count` values on top into a container which lies `arg` below them: the container and the lowest."""
    return ProbeRule(kind, lambda arg: (2, arg + count, arg))


_TRUTH = _plain(n.TRUTH, 1)
_IS_NONE = _plain(n.IS, 1)  # the probe adds the None

_COMMON: dict[str, ProbeRule] = {
    "LOAD_DEREF": _cell(n.DEREF, 0),
    "STORE_DEREF": _cell(n.STORE_DEREF, 1),
    "DELETE_DEREF": _cell(n.DELETE_DEREF, 0),
    "LOAD_GLOBAL": _plain(n.GLOBAL, 0, _name(1)),
    "STORE_GLOBAL": _plain(n.STORE_GLOBAL, 1, _name()),
    "DELETE_GLOBAL": _plain(n.DELETE_GLOBAL, 0, _name()),
    "STORE_ATTR": _plain(n.STORE_ATTR, 2, _name()),
    "DELETE_ATTR": _plain(n.DELETE_ATTR, 1, _name()),
    "BINARY_SUBSCR": _plain(n.SUBSCR, 2),
    "STORE_SUBSCR": _plain(n.STORE_SUBSCR, 3),
    "DELETE_SUBSCR": _plain(n.DELETE_SUBSCR, 2),
    "CALL_FUNCTION_EX": ProbeRule(n.CALL_EX, lambda arg: (0, 3 + (arg & 1), 1)),
    "BINARY_OP": _plain(n.BINARY, 2, _operator),
    "CONTAINS_OP": _plain(n.CONTAINS, 2, _inverted),
    "IS_OP": _plain(n.IS, 2, _inverted),
    "UNARY_NEGATIVE": _plain(n.UNARY, 1, _always("-")),
    "UNARY_INVERT": _plain(n.UNARY, 1, _always("~")),
    "GET_ITER": _plain(n.ITER, 1),
    "GET_YIELD_FROM_ITER": _plain(n.ITER, 1),
    "FOR_ITER": _plain(n.NEXT, 1),
    "SEND": ProbeRule(n.NEXT, (1, 2, 1)),
    "GET_ANEXT": _plain(n.NEXT, 1),
    "GET_AWAITABLE": _plain(n.AWAIT, 1),
    "GET_AITER": _plain(n.AWAIT, 1),
    "UNPACK_SEQUENCE": _plain(n.UNPACK, 1, _number),
    "UNPACK_EX": _plain(n.UNPACK, 1, _before_after),
    "LIST_EXTEND": _into(n.EXTEND, 1),
    "SET_UPDATE": _into(n.EXTEND, 1),
    "DICT_UPDATE": _into(n.EXTEND, 1),
    "DICT_MERGE": _into(n.EXTEND, 1),
    "LIST_APPEND": _into(n.INSERT, 1),
    "SET_ADD": _into(n.INSERT, 1),
    "MAP_ADD": _into(n.INSERT, 2),
    "BUILD_TUPLE": ProbeRule(n.PACK, lambda arg: _top(arg) if arg else None),
    "BUILD_LIST": ProbeRule(n.PACK, lambda arg: _top(arg) if arg else None),
    "BUILD_CONST_KEY_MAP": ProbeRule(n.PACK, lambda arg: _top(arg + 1)),
    "BUILD_SLICE": ProbeRule(n.PACK, lambda arg: _top(arg)),
    "BUILD_STRING": ProbeRule(n.PACK, lambda arg: _top(arg) if arg else None, _always("text")),
    "BUILD_SET": ProbeRule(n.HASH, lambda arg: _top(arg) if arg else None),
    "BUILD_MAP": ProbeRule(n.HASH, lambda arg: (arg, 2 * arg, 2) if arg else None),
    "BEFORE_WITH": _plain(n.WITH, 1),
    "BEFORE_ASYNC_WITH": _plain(n.WITH, 1),
    "WITH_EXCEPT_START": ProbeRule(n.WITH_EXIT, (1, 4, 1)),
    "MATCH_MAPPING": _plain(n.MATCH, 1),
    "MATCH_SEQUENCE": _plain(n.MATCH, 1),
    "GET_LEN": _plain(n.MATCH, 1),
    "MATCH_CLASS": _plain(n.MATCH_CLASS, 3),
    "MATCH_KEYS": _plain(n.MATCH_KEYS, 2),
    "RETURN_VALUE": _plain(n.ESCAPE, 1, _always("return")),
    "YIELD_VALUE": _plain(n.ESCAPE, 1),
    "RAISE_VARARGS": ProbeRule(n.RAISE, lambda arg: _top(arg) if arg else None),
    "CHECK_EXC_MATCH": _plain(n.EXC_MATCH, 2),
    "CHECK_EG_MATCH": _plain(n.EXC_MATCH, 2),
    "IMPORT_NAME": _plain(n.IMPORT_NAME, 2, _name()),
    "IMPORT_FROM": _plain(n.IMPORT_FROM, 1, _name()),
    "LOAD_BUILD_CLASS": _plain(n.BUILD_CLASS, 0),
}

_LIST_TO_TUPLE = _plain(n.ITER, 1)  # the list is an outside one if a break lies behind its making
_FORMAT_VALUE = ProbeRule(n.FORMAT, lambda arg: _top(2 if arg & 4 else 1), _conversion)

_ONLY_311: dict[str, ProbeRule] = {
    "LOAD_ATTR": _plain(n.ATTR, 1, _name()),
    "LOAD_METHOD": _plain(n.ATTR, 1, _name()),
    # PRECALL and CALL must not be parted, and KW_NAMES belongs to them
    "PRECALL": ProbeRule(n.CALL, lambda arg: (arg, arg + 2, 1)),
    "COMPARE_OP": _compare(0),
    "UNARY_POSITIVE": _plain(n.UNARY, 1, _always("+")),
    "UNARY_NOT": _plain(n.TRUTH, 1, _always("not")),
    "LIST_TO_TUPLE": _LIST_TO_TUPLE,
    "FORMAT_VALUE": _FORMAT_VALUE,
    "JUMP_IF_TRUE_OR_POP": _TRUTH,
    "JUMP_IF_FALSE_OR_POP": _TRUTH,
    "POP_JUMP_FORWARD_IF_TRUE": _TRUTH,
    "POP_JUMP_FORWARD_IF_FALSE": _TRUTH,
    "POP_JUMP_BACKWARD_IF_TRUE": _TRUTH,
    "POP_JUMP_BACKWARD_IF_FALSE": _TRUTH,
    "POP_JUMP_FORWARD_IF_NONE": _IS_NONE,
    "POP_JUMP_FORWARD_IF_NOT_NONE": _IS_NONE,
    "POP_JUMP_BACKWARD_IF_NONE": _IS_NONE,
    "POP_JUMP_BACKWARD_IF_NOT_NONE": _IS_NONE,
}

_FROM_312: dict[str, ProbeRule] = {
    "LOAD_ATTR": _plain(n.ATTR, 1, _name(1)),
    "LOAD_SUPER_ATTR": _plain(n.SUPER_ATTR, 3, _name(2)),
    "BINARY_SLICE": _plain(n.SLICE, 3),
    "STORE_SLICE": _plain(n.STORE_SLICE, 4),
    "CALL": ProbeRule(n.CALL, lambda arg: (arg, arg + 2, 1)),
    "POP_JUMP_IF_NONE": _IS_NONE,
    "POP_JUMP_IF_NOT_NONE": _IS_NONE,
    "RETURN_CONST": _plain(n.RETURN, 0, lambda code, arg: code.co_consts[arg]),
}

_UNARY_POSITIVE = 5  # of CALL_INTRINSIC_1; 6 makes a tuple of a list, what follows makes type parameters

_ONLY_312: dict[str, ProbeRule] = {
    "COMPARE_OP": _compare(4),
    "UNARY_NOT": _plain(n.TRUTH, 1, _always("not")),
    "FORMAT_VALUE": _FORMAT_VALUE,
    "POP_JUMP_IF_TRUE": _TRUTH,
    "POP_JUMP_IF_FALSE": _TRUTH,
}

_ONLY_313: dict[str, ProbeRule] = {
    "COMPARE_OP": _compare(5),
    "TO_BOOL": _TRUTH,  # conditional jumps and UNARY_NOT take exact bools now
    "CALL_KW": ProbeRule(n.CALL, lambda arg: (arg, arg + 3, 1)),
    "CONVERT_VALUE": _plain(n.FORMAT, 1, _conversion),
    "FORMAT_SIMPLE": _plain(n.FORMAT, 1),
    "FORMAT_WITH_SPEC": _plain(n.FORMAT, 2),
}

_TABLES: dict[tuple[int, int], list[dict[str, ProbeRule]]] = {
    (3, 11): [_COMMON, _ONLY_311],
    (3, 12): [_COMMON, _FROM_312, _ONLY_312],
    (3, 13): [_COMMON, _FROM_312, _ONLY_313],
}


def _by_opcode() -> list[ProbeRule | None]:
    rules: list[ProbeRule | None] = [None] * 256
    for table in _TABLES[VERSION]:
        for name, rule in table.items():
            rules[dis.opmap[name]] = rule
    return rules


def _caches() -> list[int]:
    entries = opcode._inline_cache_entries  # type: ignore[attr-defined]  # as dis does; typeshed has no entry
    if isinstance(entries, dict):  # 3.13: by name
        return [entries.get(name, 0) for name in dis.opname[:256]]
    return list(entries[:256])


def _opcodes(*names: str) -> frozenset[int]:
    return frozenset(dis.opmap[name] for name in names if name in dis.opmap)


RULES: list[ProbeRule | None] = _by_opcode()
CACHES: list[int] = _caches()  # inline cache entries that follow each opcode
HAS_ARG: list[bool] = [op in dis.hasarg if hasattr(dis, "hasarg") else op >= dis.HAVE_ARGUMENT for op in range(256)]
# +1 forward, -1 backward, 0 no jump; all jumps are relative to the end of the instruction and its caches
JUMPS: list[int] = [(-1 if "BACKWARD" in dis.opname[op] else 1) if op in dis.hasjrel else 0 for op in range(256)]

EXTENDED_ARG: int = dis.EXTENDED_ARG
LOAD_CONST: int = dis.opmap["LOAD_CONST"]
UNARY_NEGATIVE: int = dis.opmap["UNARY_NEGATIVE"]
NOP: int = dis.opmap["NOP"]
POP_TOP: int = dis.opmap["POP_TOP"]
MAKE_FUNCTION: int = dis.opmap["MAKE_FUNCTION"]
COMPARE_OP: int = dis.opmap["COMPARE_OP"]
SEND: int = dis.opmap["SEND"]
YIELD_VALUE: int = dis.opmap["YIELD_VALUE"]
RESEND: int = dis.opmap["JUMP_BACKWARD_NO_INTERRUPT"]  # closes the loop of `yield from` and `await`
KW_NAMES: int = dis.opmap.get("KW_NAMES", -1)
PRECALL: int = dis.opmap.get("PRECALL", -1)
INTRINSIC_1: int = dis.opmap.get("CALL_INTRINSIC_1", -1)
TO_BOOL: int = dis.opmap.get("TO_BOOL", -1)
COMPARE_TO_BOOL: int = 16 if VERSION >= (3, 13) else 0  # COMPARE_OP with this bit turns its result into a bool

CALLS: frozenset[int] = _opcodes("PRECALL" if VERSION == (3, 11) else "CALL")
NO_FALL_THROUGH: frozenset[int] = _opcodes(
    "RETURN_VALUE",
    "RETURN_CONST",
    "RAISE_VARARGS",
    "RERAISE",
    "JUMP_FORWARD",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "INTERPRETER_EXIT",
)
# Instructions that read or write a namespace that is not the frame's fast locals, its globals or a cell.
UNWATCHABLE: frozenset[int] = _opcodes(
    "LOAD_NAME",
    "STORE_NAME",
    "DELETE_NAME",
    "LOAD_LOCALS",
    "LOAD_CLASSDEREF",
    "LOAD_FROM_DICT_OR_DEREF",
    "LOAD_FROM_DICT_OR_GLOBALS",
    "IMPORT_STAR",
    "SETUP_ANNOTATIONS",
)

# Instructions that get no probe: they move values, jump, or only have to do with what the interpreter does by itself.
UNPROBED: frozenset[int] = _opcodes(
    *"CACHE EXTENDED_ARG NOP RESERVED RESUME KW_NAMES PUSH_NULL POP_TOP COPY SWAP LOAD_CONST".split(),
    *"LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST STORE_FAST STORE_FAST_LOAD_FAST".split(),
    *"STORE_FAST_STORE_FAST DELETE_FAST LOAD_CLOSURE MAKE_CELL COPY_FREE_VARS MAKE_FUNCTION".split(),
    *"SET_FUNCTION_ATTRIBUTE RETURN_GENERATOR JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT".split(),
    "LOAD_ASSERTION_ERROR",
    *"PUSH_EXC_INFO POP_EXCEPT RERAISE PREP_RERAISE_STAR CALL_INTRINSIC_1 CALL_INTRINSIC_2 END_FOR END_SEND".split(),
    *"END_ASYNC_FOR CLEANUP_THROW ASYNC_GEN_WRAP INTERPRETER_EXIT EXIT_INIT_CHECK ENTER_EXECUTOR PRINT_EXPR".split(),
    # what they read was asked for by PRECALL, or by TO_BOOL
    *("CALL",) * (VERSION == (3, 11)),
    *("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "UNARY_NOT") * (VERSION >= (3, 13)),
)
# Instructions of which nothing is known. (What an interpreter puts in their place is never seen in `co_code`.)
UNKNOWN: frozenset[int] = frozenset(
    op
    for name, op in dis.opmap.items()
    if op < 256 and RULES[op] is None and op not in UNWATCHABLE | UNPROBED and not name.startswith("INSTRUMENTED_")
)

if INTRINSIC_1 >= 0:
    _UNARY_PLUS = _plain(n.UNARY, 1, _always("+"))
    _INTRINSIC = _plain(n.INTRINSIC, 1, _number)


def intrinsic_rule(arg: int) -> ProbeRule | None:
    """The rule of CALL_INTRINSIC_1, which is many instructions in one."""
    if arg == _UNARY_POSITIVE:
        return _UNARY_PLUS
    if arg == _UNARY_POSITIVE + 1:
        return _LIST_TO_TUPLE
    return _INTRINSIC if arg > _UNARY_POSITIVE else None


# The first variable that each of these stores the top of the stack in, as an index into the fast locals.
_STORES: dict[int, int] = {
    dis.opmap[name]: shift
    for name, shift in (("STORE_FAST", 0), ("STORE_FAST_STORE_FAST", 4), ("STORE_FAST_LOAD_FAST", 4))
    if name in dis.opmap
}


def stored_name(code: CodeType, op: int, arg: int) -> str | None:
    """The local variable that this instruction stores the top of the stack in."""
    shift = _STORES.get(op)
    return None if shift is None else str(code._varname_from_oparg(arg >> shift))  # type: ignore[attr-defined]


_RETURN_GENERATOR: int = dis.opmap["RETURN_GENERATOR"]
_effects: dict[tuple[int, int], tuple[int, int]] = {}


def stack_effect(op: int, arg: int) -> tuple[int, int]:
    """How the value stack's depth changes: (falling through, jumping)."""
    key = (op, arg)
    found = _effects.get(key)
    if found is None:
        if op == _RETURN_GENERATOR:  # dis says 0 on 3.11 and 3.12; the generator is pushed when it is resumed
            found = (1, 1)
        else:
            given = arg if HAS_ARG[op] else None
            fall = dis.stack_effect(op, given, jump=False)
            found = (fall, dis.stack_effect(op, given, jump=True) if JUMPS[op] else fall)
        _effects[key] = found
    return found


# ---- what continuations need to know ----

LOAD_FAST: int = dis.opmap["LOAD_FAST"]
STORE_FAST: int = dis.opmap["STORE_FAST"]
DELETE_FAST: int = dis.opmap["DELETE_FAST"]
LOAD_CHECKED: int = dis.opmap.get("LOAD_FAST_CHECK", LOAD_FAST)  # raises where the variable is not bound

# What an instruction does to the slot of the fast locals that its argument names: load, store, delete, clear (load what
# may be unbound, and unbind) or cell (use the cell in it).
SLOTS: dict[int, str] = {
    dis.opmap[name]: what
    for what, names in (
        ("load", ("LOAD_FAST", "LOAD_FAST_CHECK")),
        ("store", ("STORE_FAST",)),
        ("delete", ("DELETE_FAST",)),
        ("clear", ("LOAD_FAST_AND_CLEAR",)),
        ("cell", ("LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "MAKE_CELL", "LOAD_CLASSDEREF")),
    )
    for name in names
    if dis.opmap.get(name, 256) < 256
}
# Two such instructions in one (3.13), the slots in four bits each.
PAIRS: dict[int, tuple[int, int]] = {
    dis.opmap[name]: pair
    for name, pair in (
        ("LOAD_FAST_LOAD_FAST", (LOAD_FAST, LOAD_FAST)),
        ("STORE_FAST_LOAD_FAST", (STORE_FAST, LOAD_FAST)),
        ("STORE_FAST_STORE_FAST", (STORE_FAST, STORE_FAST)),
    )
    if name in dis.opmap
}


BUILD_STRING: int = dis.opmap["BUILD_STRING"]
# Instructions that make parts of an f-string of variables and constants
PARTS_OF_TEXT: frozenset[int] = _opcodes(
    *"FORMAT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC CONVERT_VALUE LOAD_CONST LOAD_FAST".split()
)
# Those that make texts, and put them together
FORMATS: frozenset[int] = _opcodes("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE")
MAKES_TEXT: frozenset[int] = FORMATS | {BUILD_STRING}
COPY: int = dis.opmap["COPY"]
SWAP: int = dis.opmap["SWAP"]
RESUME: int = dis.opmap["RESUME"]
PUSH_NULL: int = dis.opmap["PUSH_NULL"]
MAKE_CELL: int = dis.opmap["MAKE_CELL"]
COPY_FREE_VARS: int = dis.opmap["COPY_FREE_VARS"]
BUILD_TUPLE: int = dis.opmap["BUILD_TUPLE"]
RETURN_VALUE: int = dis.opmap["RETURN_VALUE"]
JUMP_FORWARD: int = dis.opmap["JUMP_FORWARD"]
JUMP_BACKWARD: int = dis.opmap["JUMP_BACKWARD"]
FOR_ITER: int = dis.opmap["FOR_ITER"]
GET_ITER: int = dis.opmap["GET_ITER"]
END_FOR: int = dis.opmap.get("END_FOR", -1)
PUSH_EXC_INFO: int = dis.opmap["PUSH_EXC_INFO"]
POP_EXCEPT: int = dis.opmap["POP_EXCEPT"]
CHECK_EXC_MATCH: int = dis.opmap["CHECK_EXC_MATCH"]
CHECK_EG_MATCH: int = dis.opmap["CHECK_EG_MATCH"]
RERAISE: int = dis.opmap["RERAISE"]
RAISE_VARARGS: int = dis.opmap["RAISE_VARARGS"]
LOAD_ATTR: int = dis.opmap["LOAD_ATTR"]
UNARY_NOT: int = dis.opmap["UNARY_NOT"]
CALL: int = dis.opmap["CALL"]
LOAD_GLOBAL: int = dis.opmap["LOAD_GLOBAL"]
_LOAD_METHOD: int = dis.opmap["LOAD_METHOD"]
_LOAD_SUPER_ATTR: int = dis.opmap.get("LOAD_SUPER_ATTR", -1)

RETURNS: frozenset[int] = _opcodes("RETURN_VALUE", "RETURN_CONST")
PLAIN_JUMPS: frozenset[int] = _opcodes("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
JUMP_IF_TRUE: int = dis.opmap["POP_JUMP_FORWARD_IF_TRUE" if VERSION == (3, 11) else "POP_JUMP_IF_TRUE"]
JUMP_IF_FALSE: int = dis.opmap["POP_JUMP_FORWARD_IF_FALSE" if VERSION == (3, 11) else "POP_JUMP_IF_FALSE"]
# Jumps that pop their operand, and the truth of it for which they jump
JUMPS_BY_TRUTH: dict[int, bool] = {
    op: name.endswith("TRUE")
    for name, op in dis.opmap.items()
    if name.startswith("POP_JUMP") and name.endswith(("TRUE", "FALSE"))
}
JUMP_IF_NONE: int = dis.opmap["POP_JUMP_FORWARD_IF_NONE" if VERSION == (3, 11) else "POP_JUMP_IF_NONE"]
# Jumps that leave their operand where it is and the jump that decides the same way and pops it (3.11)
OR_POP: dict[int, int] = {
    dis.opmap[name]: jump
    for name, jump in (("JUMP_IF_TRUE_OR_POP", JUMP_IF_TRUE), ("JUMP_IF_FALSE_OR_POP", JUMP_IF_FALSE))
    if name in dis.opmap
}
# The same jump, going forward
FORWARD: dict[int, int] = {
    op: dis.opmap[name.replace("BACKWARD", "FORWARD")] if "POP_JUMP_BACKWARD" in name else op
    for name, op in dis.opmap.items()
    if op < 256
}
NULL_ABOVE: bool = VERSION >= (3, 13)  # a call's two first slots: callable, NULL. Before: NULL, callable
EXIT_ON_STACK: bool = VERSION < (3, 12)  # BEFORE_WITH puts __exit__ on the stack before it calls __enter__
SKIPPED_AT_LOOP_END: int = {11: 0, 12: 1, 13: 2}[VERSION[1]]  # instructions at FOR_ITER's target that it jumps over

# Instructions that cannot raise, nor run any other code (but for finalizers). LOAD_FAST is one where it is bound.
SILENT: frozenset[int] = _opcodes(
    *"NOP COPY SWAP POP_TOP PUSH_NULL LOAD_CONST STORE_FAST LOAD_CLOSURE MAKE_CELL JUMP_FORWARD JUMP_BACKWARD".split(),
    *"BUILD_TUPLE BUILD_LIST BUILD_STRING LIST_APPEND LIST_TO_TUPLE MAKE_FUNCTION SET_FUNCTION_ATTRIBUTE".split(),
    *"POP_EXCEPT END_FOR LOAD_FAST_AND_CLEAR IS_OP LOAD_ASSERTION_ERROR".split(),
)


def is_method_form(op: int, arg: int) -> bool:
    """Does this leave a method and its self, or an attribute and NULL?"""
    return op == _LOAD_METHOD or (VERSION >= (3, 12) and op in (LOAD_ATTR, _LOAD_SUPER_ATTR) and bool(arg & 1))


def pushes_null(op: int, arg: int) -> bool:
    """LOAD_GLOBAL that makes ready for a call."""
    return op == LOAD_GLOBAL and bool(arg & 1)


def call(count: int) -> list[tuple[int, int]]:
    """The instructions that call what lies on the stack."""
    return [(PRECALL, count), (CALL, count)] if PRECALL >= 0 else [(CALL, count)]


def truth(inverted: bool) -> list[int]:
    """The instructions that leave the truth of the top of the stack, or its opposite."""
    if TO_BOOL >= 0:
        return [TO_BOOL, UNARY_NOT] if inverted else [TO_BOOL]
    return [UNARY_NOT] if inverted else [UNARY_NOT, UNARY_NOT]


TAKES_NULL: frozenset[int] = _opcodes("CALL", "CALL_KW", "CALL_FUNCTION_EX")  # they leave one value
WRITES_CELL: frozenset[int] = _opcodes("STORE_DEREF", "DELETE_DEREF")
