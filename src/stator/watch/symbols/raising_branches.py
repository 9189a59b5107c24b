"""What a program is going to do with what it takes from a tensor, read from its instructions: does it raise unless a
truth, or a number compared, comes out as it does now? Is a text a message for somebody who raises?

Enters: the instruction at work, as its probe. Leaves: whether the other side of the branch behind it does nothing but
make an exception and raise it (an `assert`, or `if …: raise …`); the callable that is given the text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..._native import Probe
from ..bytecode import opcodes as o
from ..bytecode.flow import Flow, flow_of

_MOST_STEPS = 200  # instructions that make a message


class BranchPlace(NamedTuple):
    """Of a comparison: `number comparison other`, or with `swapped` `other comparison number`."""

    comparison: str
    other: int  # where to find it: a slot of the fast locals, or with `constant` a constant; -1: on the stack
    constant: bool
    swapped: bool


def raises_unless(probe: Probe, outcome: bool) -> bool:
    """The instruction asks for a truth, which is `outcome`. Does the program raise otherwise?"""
    flow = flow_of(probe.code)
    return _other_side_raises(flow, flow.find(probe.offset), outcome)


def comparison_behind(probe: Probe) -> BranchPlace | None:
    """The instruction, a call, gives a number. The comparison that takes it and does nothing else with it."""
    flow = flow_of(probe.code)
    k = flow.lasts[flow.find(probe.offset)] + 1
    other, constant, swapped = -1, False, True
    if flow.ops[k] in (o.LOAD_FAST, o.LOAD_CONST):
        other, constant, swapped = flow.args[k], flow.ops[k] == o.LOAD_CONST, False
        k += 1
    if flow.ops[k] != o.COMPARE_OP:
        return None
    rule = o.RULES[o.COMPARE_OP]
    assert rule is not None and rule.arg is not None
    return BranchPlace(str(rule.arg(probe.code, flow.args[k])), other, constant, swapped)


def raises_behind(probe: Probe, swapped: bool | None, outcome: bool) -> bool:
    """Does the program raise unless the number that this call gives is as true as `outcome`? With `swapped`, unless its
    comparison is."""
    flow = flow_of(probe.code)
    k = flow.lasts[flow.find(probe.offset)] + 1
    if swapped is not None:
        k += 1 if swapped else 2
    return _other_side_raises(flow, k, outcome)


def taker_of_text(probe: Probe, stack: list[Any]) -> tuple[Any, ...]:
    """The instruction makes a part of an f-string. What that is handed to as the last argument, if to a call: what lies
    in the two places of the callable."""
    flow = flow_of(probe.code)
    k = flow.find(probe.offset)
    while flow.ops[k] in o.PARTS_OF_TEXT:
        k += 1
    if flow.ops[k] != o.BUILD_STRING:
        return ()
    last = flow.lasts[k + 1]
    depth = len(flow.stacks[k + 1] or b"")
    if flow.ops[last] != o.CALL or depth < flow.args[last] + 2:
        return ()
    return tuple(stack[depth - flow.args[last] - 2 : depth - flow.args[last]])


def _other_side_raises(flow: Flow, k: int, outcome: bool) -> bool:
    while flow.ops[k] in (o.TO_BOOL, o.UNARY_NOT):
        outcome ^= flow.ops[k] == o.UNARY_NOT
        k += 1
    jumps_if = o.JUMPS_BY_TRUTH.get(flow.ops[k])
    if jumps_if is None:
        return False
    return _only_raises(flow, k + 1 if jumps_if is outcome else flow.targets[k])


def _only_raises(flow: Flow, k: int) -> bool:
    """Does control that comes here go straight to a `raise`, and keep nothing on its way?"""
    for _ in range(_MOST_STEPS):
        op = flow.ops[k]
        if op == o.RAISE_VARARGS:
            return True
        if op == o.JUMP_FORWARD:
            k = flow.targets[k]
        elif flow.targets[k] >= 0 or op in o.NO_FALL_THROUGH or o.SLOTS.get(op, "load") not in ("load", "cell"):
            return False
        else:
            k += 1
    return False


def operand(place: BranchPlace, probe: Probe, variables: Any, stack: list[Any]) -> Any:
    """The value that the number is going to be compared with."""
    if place.constant:
        return probe.code.co_consts[place.other]
    if place.swapped:
        return stack[probe.depth - probe.span - 1]
    return variables[place.other]
