"""A small assembler: instructions with labels become bytecode, an exception table and a line table.

Enters: instructions in order, each with the source position it is reported at. Leaves: three byte strings of a code
object. A jump's direction is that of its opcode; who emits it sees to it that the label lies there.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from . import opcodes as o
from .flow import Position
from .instrument import encode_exception_table, prefixes_of, unit

_NOWHERE: Position = (None, None, None, None)


_unit = functools.lru_cache(4096)(unit)


class Guarded(NamedTuple):
    """Instructions [start, end) go to a label when they raise."""

    start: int
    end: int
    label: int
    depth: int
    lasti: bool


class Assembled(NamedTuple):
    code: bytes
    exception_table: bytes
    line_table: bytes


class Assembler:
    def __init__(self) -> None:
        self.ops: list[int] = []
        self.args: list[int] = []
        self.jumps: list[tuple[int, int]] = []  # (instruction, label)
        self.labels: list[int] = []  # label -> instruction
        self.positions: list[Position] = []
        self.guards: list[Guarded] = []
        self.starts: list[int] = []  # once assembled: instruction -> code unit; one more entry for the end
        self.position: Position = _NOWHERE

    def __len__(self) -> int:
        return len(self.ops)

    def emit(self, op: int, arg: int = 0) -> int:
        """Adds an instruction and returns its number."""
        self.ops.append(op)
        self.args.append(arg)
        self.positions.append(self.position)
        return len(self.ops) - 1

    def jump(self, op: int, label: int) -> None:
        self.jumps.append((self.emit(op), label))

    def label(self) -> int:
        self.labels.append(-1)
        return len(self.labels) - 1

    def place(self, label: int) -> None:
        """The label stands before the next instruction."""
        self.labels[label] = len(self.ops)

    def guard(self, start: int, end: int, label: int, depth: int, lasti: bool) -> None:
        if end > start:
            self.guards.append(Guarded(start, end, label, depth, lasti))

    def assemble(self, first_line: int) -> Assembled:
        caches = o.CACHES
        self._settle([1 + prefixes_of(arg) + caches[op] for op, arg in zip(self.ops, self.args, strict=True)])
        raw = b"".join(map(_unit, self.ops, self.args))
        return Assembled(raw, self._exception_table(), self._line_table(first_line))

    def _settle(self, sizes: list[int]) -> None:
        """Find where everything lies. A long jump needs a prefix, which makes others longer: until nothing grows."""
        while True:
            self.starts = starts = [0]
            total = 0
            for size in sizes:
                total += size
                starts.append(total)
            grown = False
            for k, label in self.jumps:
                distance = o.JUMPS[self.ops[k]] * (starts[self.labels[label]] - starts[k + 1])
                if distance < 0 or self.labels[label] < 0:
                    raise AssertionError("a jump goes the wrong way")
                size = 1 + prefixes_of(distance) + o.CACHES[self.ops[k]]
                self.args[k] = distance  # it only grows from one round to the next
                if size > sizes[k]:
                    sizes[k] = size
                    grown = True
            if not grown:
                return

    def _exception_table(self) -> bytes:
        starts, labels = self.starts, self.labels
        return encode_exception_table(
            [
                (starts[g.start], starts[g.end] - starts[g.start], starts[labels[g.label]], g.depth, g.lasti)
                for g in sorted(self.guards)
            ]
        )

    def _line_table(self, first_line: int) -> bytes:
        """Entries of up to eight code units: 1, form (4 bits), units - 1 (3 bits), then what the form asks for."""
        out = bytearray()
        line = first_line
        k, count = 0, len(self.ops)
        while k < count:
            position, unit = self.positions[k], self.starts[k]
            while k < count and self.positions[k] == position:
                k += 1
            units = self.starts[k] - unit
            while units > 0:
                form, rest = _location(position, line)
                out.append(0x80 | form << 3 | min(units, 8) - 1)
                out += rest
                line = position[0] if position[0] is not None else line
                units -= 8
        return bytes(out)


@functools.lru_cache(4096)
def _location(position: Position, line: int) -> tuple[int, bytes]:
    """The form of an entry and what follows its first byte; `line` is that of the entry before."""
    start, end, column, end_column = position
    if start is None:
        return _NO_LOCATION, b""
    delta = start - line
    signed = -delta << 1 | 1 if delta < 0 else delta << 1
    if end is None or column is None or end_column is None:
        return _NO_COLUMNS, _number(signed)
    return _LONG, _number(signed) + _number(end - start) + _number(column + 1) + _number(end_column + 1)


_NO_COLUMNS, _LONG, _NO_LOCATION = 13, 14, 15


def _number(value: int) -> bytes:
    """Groups of six bits, the lowest first; 0x40 says that more follow."""
    if value < 64:
        return bytes((value,))
    out = bytearray()
    while value >= 64:
        out.append(value & 0x3F | 0x40)
        value >>= 6
    out.append(value)
    return bytes(out)
