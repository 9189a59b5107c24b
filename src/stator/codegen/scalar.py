"""The table of scalar operations: each as LLVM IR, for scalars and vectors, the same on every target.

Enters: an operation of a loop program, the types of its result and operands, and operands as IR. Leaves: IR. What LLVM
leaves undefined and eager defines (casts out of range, shifts by the width) is written out; no fast-math, no
contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .ir import ELEMENT, Function
from .math import FUNCTIONS
from .math import supported as has_function

ScalarRow = Callable[[Function, torch.dtype, Sequence[torch.dtype], Sequence[str]], str]


def emit(f: Function, op: str, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    return OPERATIONS[op](f, dtype, kinds, args)


def supported(op: str, kinds: Sequence[torch.dtype]) -> bool:
    """Whether there is code for an operation on operands of these types."""
    if op == "scan":  # see `cpu_scan`
        return kinds[0] in _NUMBERS
    if op not in OPERATIONS or any(kind not in ELEMENT for kind in kinds):
        return False
    if op in FUNCTIONS:
        return kinds[0].is_floating_point and has_function(op, ELEMENT[kinds[0]])
    if op == "where":
        return kinds[0] is torch.bool
    return kinds[0] in _ON.get(op, _EVERY)


def _kind(f: Function, dtype: torch.dtype) -> str:
    return f.vector(ELEMENT[dtype])


def _two(float_op: str, int_op: str) -> ScalarRow:
    def row(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
        return f.emit(f"{float_op if dtype.is_floating_point else int_op} {_kind(f, dtype)} {args[0]}, {args[1]}")

    return row


def _neg(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    if dtype.is_floating_point:
        return f.emit(f"fneg {_kind(f, dtype)} {args[0]}")
    return f.emit(f"sub {_kind(f, dtype)} {f.constant(0, dtype)}, {args[0]}")


def _select(f: Function, condition: str, kind: str, yes: str, no: str) -> str:
    return f.emit(f"select {f.vector('i1')} {condition}, {kind} {yes}, {kind} {no}")


def _abs(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    if dtype.is_floating_point:
        return f.intrinsic("fabs", ELEMENT[dtype], args[0])
    negative = _compare(f, "lt", dtype, args[0], f.constant(0, dtype))
    return _select(f, negative, _kind(f, dtype), _neg(f, dtype, kinds, args), args[0])


def _sign(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    kind, zero, one = _kind(f, dtype), f.constant(0, dtype), f.constant(1, dtype)
    if dtype is torch.bool:
        return args[0]
    above = _select(f, _compare(f, "gt", dtype, args[0], zero), kind, one, zero)
    below = _select(f, _compare(f, "lt", dtype, args[0], zero), kind, one, zero)
    return f.emit(f"{'fsub' if dtype.is_floating_point else 'sub'} {kind} {above}, {below}")


# ----------------------------------------------------------------------------------------------- comparisons

_FLOAT_TESTS = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}


def _compare(f: Function, op: str, dtype: torch.dtype, a: str, b: str) -> str:
    if dtype.is_floating_point:
        return f.emit(f"fcmp {_FLOAT_TESTS[op]} {_kind(f, dtype)} {a}, {b}")
    tests = _UNSIGNED if dtype in (torch.bool, torch.uint8) else _SIGNED
    return f.emit(f"icmp {tests[op]} {_kind(f, dtype)} {a}, {b}")


def _comparison(op: str) -> ScalarRow:
    return lambda f, dtype, kinds, args: _compare(f, op, kinds[0], args[0], args[1])


def _extreme(op: str) -> ScalarRow:
    """Minimum and maximum; a NaN wins, the first of two."""

    def row(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
        kind = _kind(f, dtype)
        better = _select(f, _compare(f, op, dtype, args[0], args[1]), kind, args[0], args[1])
        if not dtype.is_floating_point:
            return better
        nan = f.emit(f"fcmp uno {kind} {args[0]}, {args[0]}")
        return _select(f, nan, kind, args[0], better)

    return row


def _where(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    return _select(f, args[0], _kind(f, dtype), args[1], args[2])


def _not(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    return f.emit(f"xor {_kind(f, dtype)} {args[0]}, {f.constant(True if dtype is torch.bool else -1, dtype)}")


# ---------------------------------------------------------------------------------------------------- division


def _divided(f: Function, dtype: torch.dtype, args: Sequence[str]) -> tuple[str, str]:
    """Quotient, towards zero, and remainder of integers. By 0: some number (a `check` says that it must not be). The
    smallest number by -1, which is undefined in LLVM and a trap on x86: itself, and 0."""
    a, b = args
    kind, one = _kind(f, dtype), f.constant(1, dtype)
    unsafe = _compare(f, "eq", dtype, b, f.constant(0, dtype))
    if dtype is torch.uint8:
        b = _select(f, unsafe, kind, one, b)
        return f.emit(f"udiv {kind} {a}, {b}"), f.emit(f"urem {kind} {a}, {b}")
    minus = _compare(f, "eq", dtype, b, f.constant(-1, dtype))
    b = _select(f, f.emit(f"or {f.vector('i1')} {unsafe}, {minus}"), kind, one, b)
    whole = f.emit(f"sdiv {kind} {a}, {b}")
    return _select(f, minus, kind, _neg(f, dtype, [dtype], [a]), whole), f.emit(f"srem {kind} {a}, {b}")


def _fmod(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    """The remainder with the sign of the dividend."""
    if not dtype.is_floating_point:
        return _divided(f, dtype, args)[1]
    return f.emit(f"frem {_kind(f, dtype)} {args[0]}, {args[1]}")


def _differs(f: Function, dtype: torch.dtype, rest: str, by: str) -> str:
    """A remainder that is not 0 and has another sign than the divisor."""
    zero, bits = f.constant(0, dtype), f.vector("i1")
    signs = f.emit(f"xor {bits} {_compare(f, 'lt', dtype, rest, zero)}, {_compare(f, 'lt', dtype, by, zero)}")
    return f.emit(f"and {bits} {signs}, {_compare(f, 'ne', dtype, rest, zero)}")


def _remainder(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    rest = _fmod(f, dtype, kinds, args)
    kind = _kind(f, dtype)
    moved = f.emit(f"{'fadd' if dtype.is_floating_point else 'add'} {kind} {rest}, {args[1]}")
    return _select(f, _differs(f, dtype, rest, args[1]), kind, moved, rest)


def _floor_div(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    a, b = args
    kind, zero, one = _kind(f, dtype), f.constant(0, dtype), f.constant(1, dtype)
    if not dtype.is_floating_point:
        whole, rest = _divided(f, dtype, args)
        return _select(f, _differs(f, dtype, rest, b), kind, f.emit(f"sub {kind} {whole}, {one}"), whole)
    rest = _fmod(f, dtype, kinds, args)
    whole = f.emit(f"fdiv {kind} {f.emit(f'fsub {kind} {a}, {rest}')}, {b}")
    whole = _select(f, _differs(f, dtype, rest, b), kind, f.emit(f"fsub {kind} {whole}, {one}"), whole)
    floor = f.intrinsic("floor", ELEMENT[dtype], whole)
    far = _compare(f, "gt", dtype, f.emit(f"fsub {kind} {whole}, {floor}"), f.constant(0.5, dtype))
    floor = _select(f, far, kind, f.emit(f"fadd {kind} {floor}, {one}"), floor)
    plain = f.emit(f"fdiv {kind} {a}, {b}")
    none = f.intrinsic("copysign", ELEMENT[dtype], zero, plain)
    floor = _select(f, _compare(f, "ne", dtype, whole, zero), kind, floor, none)
    return _select(f, _compare(f, "eq", dtype, b, zero), kind, plain, floor)


# ------------------------------------------------------------------------------------------------------ shifts


def _shift(op: str) -> ScalarRow:
    """Beyond the width: 0 to the left, the sign to the right."""

    def row(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
        kind, bits = _kind(f, dtype), torch.iinfo(dtype).bits
        x, by = args
        fits = f.emit(f"icmp ult {kind} {by}, {f.constant(bits, dtype)}")
        right = "lshr" if dtype is torch.uint8 else "ashr"
        if op == "shl":
            made = f.emit(f"shl {kind} {x}, {_select(f, fits, kind, by, f.constant(0, dtype))}")
            return _select(f, fits, kind, made, f.constant(0, dtype))
        made = f.emit(f"{right} {kind} {x}, {_select(f, fits, kind, by, f.constant(bits - 1, dtype))}")
        return made if right == "ashr" else _select(f, fits, kind, made, f.constant(0, dtype))

    return row


# ------------------------------------------------------------------------------------------------------- casts


def _cast(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    return cast(f, args[0], kinds[0], dtype)


def cast(f: Function, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
    if source is dtype:
        return x
    here, there = _kind(f, source), _kind(f, dtype)
    if dtype is torch.bool:
        return _compare(f, "ne", source, x, f.constant(0, source))
    if source.is_floating_point:
        if dtype.is_floating_point:
            return f.emit(f"{'fpext' if dtype is torch.float64 else 'fptrunc'} {here} {x} to {there}")
        return _to_integer(f, x, source, dtype)
    unsigned = source in (torch.bool, torch.uint8)
    if dtype.is_floating_point:
        return f.emit(f"{'uitofp' if unsigned else 'sitofp'} {here} {x} to {there}")
    wide, narrow = torch.iinfo(dtype).bits, 1 if source is torch.bool else torch.iinfo(source).bits
    if wide == narrow:
        return x
    return f.emit(f"{'trunc' if wide < narrow else 'zext' if unsigned else 'sext'} {here} {x} to {there}")


def _to_integer(f: Function, x: str, source: torch.dtype, dtype: torch.dtype) -> str:
    """Towards zero; what does not fit gives the smallest number, as the processor's own instruction does. Eager
    converts to a narrow type by way of int32, but to uint8 by way of int64."""
    middle = torch.int64 if dtype in (torch.int64, torch.uint8) else torch.int32
    here, there = _kind(f, source), _kind(f, middle)
    limit = float(2 ** (torch.iinfo(middle).bits - 1))
    above = f.emit(f"fcmp oge {here} {x}, {f.constant(-limit, source)}")
    below = f.emit(f"fcmp olt {here} {x}, {f.constant(limit, source)}")
    fits = f.emit(f"and {f.vector('i1')} {above}, {below}")
    safe = _select(f, fits, here, x, f.constant(0, source))
    made = f.emit(f"fptosi {here} {safe} to {there}")
    made = _select(f, fits, there, made, f.constant(torch.iinfo(middle).min, middle))
    return cast(f, made, middle, dtype)


def to_bf16(f: Function, x: str) -> str:
    """The bits of a float32, rounded to bfloat16 (to even, denormals kept), as i16."""
    i32, i16, flt = f.vector("i32"), f.vector("i16"), f.vector("float")
    bits = f.emit(f"bitcast {flt} {x} to {i32}")
    odd = f.emit(
        f"and {i32} {f.emit(f'lshr {i32} {bits}, {f.constant(16, torch.int32)}')}, {f.constant(1, torch.int32)}"
    )
    rounded = f.emit(f"add {i32} {f.emit(f'add {i32} {bits}, {f.constant(0x7FFF, torch.int32)}')}, {odd}")
    nan = f.emit(f"fcmp uno {flt} {x}, {x}")
    rounded = _select(f, nan, i32, f.constant(0x7FC00000, torch.int32), rounded)
    return f.emit(f"trunc {i32} {f.emit(f'lshr {i32} {rounded}, {f.constant(16, torch.int32)}')} to {i16}")


def from_bf16(f: Function, bits: str) -> str:
    i32, i16, flt = f.vector("i32"), f.vector("i16"), f.vector("float")
    wide = f.emit(f"shl {i32} {f.emit(f'zext {i16} {bits} to {i32}')}, {f.constant(16, torch.int32)}")
    return f.emit(f"bitcast {i32} {wide} to {flt}")


def _round_bf16(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    return from_bf16(f, to_bf16(f, args[0]))


def _round_f16(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    half, flt = f.vector("half"), f.vector("float")
    return f.emit(f"fpext {half} {f.emit(f'fptrunc {flt} {args[0]} to {half}')} to {flt}")


def _signbit(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
    wide = torch.int32 if kinds[0] is torch.float32 else torch.int64
    bits = f.emit(f"bitcast {_kind(f, kinds[0])} {args[0]} to {_kind(f, wide)}")
    return _compare(f, "lt", wide, bits, f.constant(0, wide))


_PHILOX_FACTORS, _PHILOX_STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def _philox(more: bool) -> ScalarRow:
    """Philox 4x32-10: of a seed (64 bits) and a position, 128 random bits; the first 64 of them, or the others. The
    words lie in lanes of 64 bits, where a product of two of them has room."""

    def row(f: Function, dtype: torch.dtype, kinds: Sequence[torch.dtype], args: Sequence[str]) -> str:
        kind = f.vector("i64")

        def do(op: str, a: str, b: str | int) -> str:
            return f.emit(f"{op} {kind} {a}, {f.constant(b, torch.int64) if isinstance(b, int) else b}")

        low = 0xFFFFFFFF
        seed, position = args
        zero = f.constant(0, torch.int64)
        words = [do("and", position, low), do("lshr", position, 32), zero, zero]
        keys = [do("and", seed, low), do("lshr", seed, 32)]
        for _ in range(10):
            one, other = do("mul", words[0], _PHILOX_FACTORS[0]), do("mul", words[2], _PHILOX_FACTORS[1])
            first = do("xor", do("xor", do("lshr", other, 32), words[1]), keys[0])
            third = do("xor", do("xor", do("lshr", one, 32), words[3]), keys[1])
            words = [first, do("and", other, low), third, do("and", one, low)]
            keys = [do("and", do("add", key, step), low) for key, step in zip(keys, _PHILOX_STEPS, strict=True)]
        lower, upper = words[2:] if more else words[:2]
        return do("or", lower, do("shl", upper, 32))

    return row


def _intrinsic(name: str) -> ScalarRow:
    return lambda f, dtype, kinds, args: f.intrinsic(name, ELEMENT[dtype], *args)


def _function(name: str) -> ScalarRow:
    return lambda f, dtype, kinds, args: FUNCTIONS[name](f, ELEMENT[dtype], *args)


_FLOATS = frozenset((torch.float32, torch.float64))
_EVERY = frozenset(ELEMENT)
_INTEGERS = _EVERY - _FLOATS - {torch.bool}
_NUMBERS = _FLOATS | _INTEGERS
_ON: dict[str, frozenset[torch.dtype]] = {  # the types of operands; every type where an operation is not named
    **dict.fromkeys("div floor ceil trunc round copysign signbit".split(), _FLOATS),
    **dict.fromkeys("round_bf16 round_f16".split(), frozenset((torch.float32,))),
    **dict.fromkeys("trunc_div shl shr".split(), _INTEGERS),
    **dict.fromkeys("philox philox_more".split(), frozenset((torch.int64,))),
    **dict.fromkeys("and or xor not".split(), _INTEGERS | {torch.bool}),
    **dict.fromkeys("add sub mul neg abs fmod remainder floor_div".split(), _NUMBERS),
}
OPERATIONS: dict[str, ScalarRow] = {
    **{name: _function(name) for name in FUNCTIONS},
    "add": _two("fadd", "add"),
    "sub": _two("fsub", "sub"),
    "mul": _two("fmul", "mul"),
    "div": _two("fdiv", ""),
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "min": _extreme("lt"),
    "max": _extreme("gt"),
    "where": _where,
    "cast": _cast,
    "and": _two("", "and"),
    "or": _two("", "or"),
    "xor": _two("", "xor"),
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "fmod": _fmod,
    "remainder": _remainder,
    "floor_div": _floor_div,
    "trunc_div": lambda f, dtype, kinds, args: _divided(f, dtype, args)[0],
    "sqrt": _intrinsic("sqrt"),
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "copysign": _intrinsic("copysign"),
    "signbit": _signbit,
    "philox": _philox(False),
    "philox_more": _philox(True),
    "round_bf16": _round_bf16,
    "round_f16": _round_f16,
    **{op: _comparison(op) for op in _FLOAT_TESTS},
}
