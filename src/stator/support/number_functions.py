"""Functions of numbers that a recording may have in its expressions, and expressions as Python functions.

Enters: a function's name in an expression, or an expression over the values of origins (`symbolic_exprs`). Leaves: what
Python itself computes from ints and floats, so that a number is the one that the program would have computed; where
that raises, or would be a number too long to wait for, there is none.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any

SMALLEST, LARGEST = -(2**63), 2**63 - 1
_MOST = 64  # of exponents and shifts of whole numbers


def power(base: Any, exponent: Any) -> Any:
    """`base ** exponent`, if that is no very long number."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > _MOST:
        raise OverflowError(f"{base} ** {exponent}")
    return base**exponent


def shift_left(number: int, bits: int) -> int:
    if bits > _MOST:
        raise OverflowError(f"{number} << {bits}")
    return number << bits


def combinations(number: int, chosen: int) -> int:
    if min(chosen, number - chosen) > _MOST:
        raise OverflowError(f"comb({number}, {chosen})")
    return math.comb(number, chosen)


def permutations(number: int, chosen: int) -> int:
    if chosen > _MOST:
        raise OverflowError(f"perm({number}, {chosen})")
    return math.perm(number, chosen)


def exact_sum(*numbers: float) -> float:
    return math.fsum(numbers)


_OF_REALS = (
    "acos acosh asin asinh atan atanh cbrt ceil cos cosh degrees erf erfc exp exp2 expm1 fabs floor gamma isqrt lgamma "
    "log log10 log1p log2 radians sin sinh sqrt tan tanh trunc ulp atan2 copysign fmod gcd hypot lcm ldexp nextafter "
    "pow remainder isfinite isinf isnan"
).split()
# By name. Each computes the same from the same numbers, and reads nothing else.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"math.{name}": getattr(math, name) for name in _OF_REALS if hasattr(math, name)},
    **{function.__name__: function for function in (abs, bool, float, int, max, min, round)},
    "float.is_integer": float.is_integer,
    "math.comb": combinations,
    "math.fsum": exact_sum,
    "math.perm": permutations,
    "power": power,
    "shift_left": shift_left,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "~": lambda a: ~a,
}
_NAMES = {id(function): name for name, function in FUNCTIONS.items() if "." in name or name.isalpha()}
_NAMES |= {id(function): f"math.{function.__name__}" for function in (math.comb, math.fsum, math.perm)}
_OF_ITEMS = frozenset({"math.fsum", "max", "min"})  # they take a row of numbers in place of its items, or for them
_TRUTHS = frozenset({"bool", "float.is_integer", "math.isfinite", "math.isinf", "math.isnan"})
_WRITTEN = frozenset({"+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", ">>", "&", "|", "^"})
_SUBJECT = "values"


def name_of_function(function: Any) -> str | None:
    """The name of a function in expressions; None if it has none."""
    name = _NAMES.get(id(function))
    return None if name in (None, "power") else name


def operands_of(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The numbers that a function is called with, in a row of their own or not."""
    if name in _OF_ITEMS and len(args) == 1 and type(args[0]) in (list, tuple, collections.deque):
        return tuple(args[0])
    return args if name != "math.fsum" else (None,)


def gives_truth(name: str) -> bool:
    return name in _TRUTHS


def as_number(value: Any) -> Any:
    """What an expression has come to, if that is a number which a graph can take."""
    if type(value) is int and not SMALLEST <= value <= LARGEST:
        raise OverflowError(str(value.bit_length()))
    return value


def compiled(expression: Any, what: str) -> Callable[[Any], Any]:
    """An expression as a Python function of the values of origins, by index."""
    names: dict[str, Any] = {"as_number": as_number}
    text = f"def {what}({_SUBJECT}): return as_number({_source(expression, names)})"
    exec(compile(text, f"<stator {what}>", "exec"), names)
    return names[what]  # type: ignore[no-any-return]


def _source(expression: Any, names: dict[str, Any]) -> str:
    if type(expression) is not tuple:
        return _named(expression, names)
    head, *rest = expression
    if head in ("number", "real"):
        return f"{_SUBJECT}[{rest[0]}]"
    if head in ("size", "stride"):
        reached = f"{_SUBJECT}[{rest[0]}]"
        return f"{reached}.shape[{rest[1]}]" if head == "size" else f"{reached}.stride()[{rest[1]}]"
    parts = [_source(part, names) for part in rest]
    if head in _WRITTEN:
        return f"({f' {head} '.join(parts)})"
    if head in ("neg", "not", "~"):
        return f"({ {'neg': '-', 'not': 'not ', '~': '~'}[head] }{parts[0]})"
    function = power if head == "**" else FUNCTIONS[head]
    return f"{_named(function, names)}({', '.join(parts)})"


def _named(value: Any, names: dict[str, Any]) -> str:
    """An object as a name of its own."""
    name = f"c{len(names)}"
    names[name] = value
    return name
