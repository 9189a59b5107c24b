"""Sizes that depend on a graph's inputs, as one function of them.

Enters: a program's inputs (which symbols they tell) and expressions. Leaves: a function that takes the list of inputs
and gives the numbers. It is written as Python: each symbol is read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Unknown(Exception):
    """No input tells what a symbol is."""


def compute(program: Any, expressions: Sequence[Any]) -> Callable[[list[Any]], tuple[int, ...]] | None:
    if not expressions:
        return None
    from torch.utils._sympy.printers import PythonPrinter  # with symbols it has been imported by then

    sources = _sources(program)
    symbols = sorted({s for e in expressions for s in e.free_symbols}, key=str)
    for symbol in symbols:
        if symbol not in sources:
            raise Unknown(f"no input tells what the size {symbol} is")
    written = PythonPrinter()
    lines = [f"    {symbol} = {sources[symbol]}" for symbol in symbols]
    numbers = "".join([f"int({written.doprint(e)}), " for e in expressions])
    text = "\n".join(["def sizes(inputs):", *lines, f"    return ({numbers})"])
    names: dict[str, Any] = {"math": math, "torch": torch}
    exec(compile(text, "<sizes>", "exec"), names)
    return names["sizes"]  # type: ignore[no-any-return]


def _sources(program: Any) -> dict[Any, str]:
    """By symbol: the Python that reads it."""
    found: dict[Any, str] = {}
    for number, name in enumerate(program.inputs):
        if name in program.numbers:
            found.setdefault(program.numbers[name], f"inputs[{number}]")
    for number, name in enumerate(program.inputs):
        place = program.places.get(name)
        for what, sizes in (("shape[{}]", place.sizes), ("stride({})", place.strides)) if place is not None else ():
            for dim, size in enumerate(sizes):
                if getattr(size, "is_Symbol", False):
                    found.setdefault(size, f"inputs[{number}].{what.format(dim)}")
    return found
