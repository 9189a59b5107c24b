"""Sizes that depend on a graph's inputs, as one function of them.

Enters: a program's inputs (which symbols they tell) and expressions. Leaves: a function that takes the list of inputs
and gives the numbers, or None where a size is less than the graph was compiled for. It is written as Python: each
symbol is read once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch


class UnknownSize(Exception):
    """No input tells what a symbol is."""


def compute(program: Any, expressions: Sequence[Any]) -> Callable[[list[Any]], tuple[int, ...] | None] | None:
    if not expressions:
        return None
    from torch.utils._sympy.printers import PythonPrinter  # with symbols it has been imported by then

    sources = _sources(program)
    symbols = sorted({s for e in expressions for s in e.free_symbols}, key=str)
    for symbol in symbols:
        if symbol not in sources:
            raise UnknownSize(f"no input tells what the size {symbol} is")
    written = PythonPrinter()
    lines = [f"    {symbol} = {sources[symbol]}" for symbol in symbols]
    wrong = [f"{written.doprint(e)} < {least}" for e, least in _bounds(program, symbols)]
    wrong += [f"not {least} <= {written.doprint(e)} <= {largest}" for e, least, largest in _ranges(program, symbols)]
    if wrong:
        lines.append(f"    if {' or '.join(wrong)}: return None")
    numbers = "".join([f"int({written.doprint(e)}), " for e in expressions])
    text = "\n".join(["def sizes(inputs):", *lines, f"    return ({numbers})"])
    names: dict[str, Any] = {"math": math, "torch": torch, "index": operator.index}
    exec(compile(text, "<sizes>", "exec"), names)
    return names["sizes"]  # type: ignore[no-any-return]


def _sources(program: Any) -> dict[Any, str]:
    """By symbol: the Python that reads it."""
    found: dict[Any, str] = {}
    for number, name in enumerate(program.inputs):
        if name in program.numbers:
            found.setdefault(program.numbers[name], f"index(inputs[{number}])")
    for number, name in enumerate(program.inputs):
        place = program.places.get(name)
        for what, sizes in (("shape[{}]", place.sizes), ("stride({})", place.strides)) if place is not None else ():
            for dim, size in enumerate(sizes):
                if getattr(size, "is_Symbol", False):
                    found.setdefault(size, f"inputs[{number}].{what.format(dim)}")
    return found


def _ranges(program: Any, symbols: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Where the values of kernels must lie that are computed from sizes."""
    known = set(symbols)
    ranges = {
        (r.number, int(r.least), int(r.largest))
        for r in program.limits
        if getattr(r.number, "free_symbols", None) and r.number.free_symbols <= known
    }
    return sorted(ranges, key=str)


def _bounds(program: Any, symbols: Sequence[Any]) -> list[tuple[Any, int]]:
    """What was taken for granted about signs, as (expression, least value): no buffer has a size below 0."""
    bounds = [(s, 1 if s.is_positive else 0) for s in symbols if s.is_nonnegative]
    sizes = {size for place in program.places.values() for size in place.sizes if not isinstance(size, int)}
    known = set(symbols)
    bounds += [(s, 0) for s in sizes if not s.is_nonnegative and s.free_symbols <= known]
    return sorted(bounds, key=str)
