"""Kernels that write over what they read last: one buffer instead of two.

Enters: a `LoopProgram`. Leaves: the same, in which a buffer that a kernel is the last to read lies where that kernel's
result does, if the kernel reads each element before it writes it. So do results of convolutions, which are tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .loops import Alias, Blocked, Call, Gemm, Kernel, Launch, LoopProgram, ProgramStep, Ref, Value, operands
from .memory import lifetimes

aten = torch.ops.aten
# Operators whose result is memory of its own in every case.
_FRESH = frozenset(
    {aten.convolution.default, aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
)


def reads_before_it_writes(kernel: Kernel, buffer: int, store: int) -> bool:
    """Whether each element of a buffer is read before the store writes there, if both are the same memory.

    Code is made root by root, in order; what a root needs is computed when it is first wanted, and kept until the
    point's last root is done. With inner axes there is a loop for each level, and what a later one needs is read anew.
    Both orders must agree, that of the levels and that of the text, which the evaluator follows.
    """
    if kernel.scans:
        return False
    index = kernel.values[store].attr[1]
    loads = {n for n, v in enumerate(kernel.values) if v.op == "load" and v.attr[0] == buffer}
    if index.gathered or any(kernel.values[n].args or kernel.values[n].attr[1] != index for n in loads):
        return False
    itself = loads & _needed(kernel, store)
    levels = kernel.levels()
    for root, value in enumerate(kernel.values):
        if root == store or not _is_root(kernel, value):
            continue
        if kernel.inner:
            earlier = levels[root] - (value.op == "reduce") < levels[store]
            fine = (earlier and root < store) or not loads & _needed(kernel, root)
        else:
            fine = root < store or (loads & _needed(kernel, root)) <= itself
        if not fine:
            return False
    return True


def _is_root(kernel: Kernel, value: Value) -> bool:
    return value.op in ("store", "check") or (value.op == "reduce" and bool(kernel.inner))


def _needed(kernel: Kernel, root: int) -> set[int]:
    """What a root is computed from, in its own loop."""
    found: set[int] = set()
    pending = [*operands(kernel.values[root])]
    while pending:
        number = pending.pop()
        if number not in found and not (kernel.inner and kernel.values[number].op == "reduce"):
            found.add(number)
            pending.extend(operands(kernel.values[number]))
    return found


def write_over(program: LoopProgram) -> LoopProgram:
    return _over_buffers(_over_results_of_calls(program))


def _over_results_of_calls(program: LoopProgram) -> LoopProgram:
    """What is computed of a convolution, element by element, lies where its result did: no second tensor is made."""
    made, last = lifetimes(program)
    fresh = {step.outs[0] for step in program.steps if isinstance(step, Call) and _is_fresh(step)}
    kept = {out.name for out in program.outputs if isinstance(out, Ref)}
    for step in program.steps:
        if isinstance(step, Alias) or (isinstance(step, Call) and not _is_fresh(step)):
            kept |= {*step.reads}  # what it gives may be a view of them
    new: dict[str, str] = {}  # by result: the tensor whose memory it takes
    for number, step in enumerate(program.steps if fresh else ()):
        if not isinstance(step, Launch):
            continue
        dying = [n for n in step.reads if new.get(n, n) in fresh and last[n] == number and n not in kept]
        for store, result in _results(step):
            if made.get(result) != number or result in program.inputs:
                continue
            fitting = (name for name in dying if _fits_exactly(program, step, name, store, result))
            if (found := next(fitting, None)) is not None:
                dying.remove(found)
                new[result] = new.get(found, found)
    return _all_renamed(program, new) if new else program


def _is_fresh(step: Call) -> bool:
    return step.target in _FRESH and step.parts is None


def _fits_exactly(program: LoopProgram, step: Launch, name: str, store: int, result: str) -> bool:
    one, other = program.places.get(name), program.places[result]
    if one is None or replace(one, buffer=result) != replace(other, buffer=result):
        return False
    return reads_before_it_writes(step.kernel, step.buffers.index(name), store)


def _all_renamed(program: LoopProgram, new: dict[str, str]) -> LoopProgram:
    def renamed(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(new.get(value.name, value.name))
        if isinstance(value, (list, tuple)):
            return type(value)([renamed(item) for item in value])
        return {key: renamed(item) for key, item in value.items()} if isinstance(value, dict) else value

    steps: list[ProgramStep] = []
    for step in program.steps:
        if isinstance(step, Call):
            reads = [new.get(name, name) for name in step.reads]
            steps.append(replace(step, args=renamed(step.args), kwargs=renamed(step.kwargs), reads=reads))
        elif isinstance(step, Alias):
            steps.append(replace(step, place=replace(step.place, buffer=new.get(step.place.buffer, step.place.buffer))))
        else:
            steps.append(_renamed(step, new))
    outputs = [renamed(out) for out in program.outputs]
    return replace(program, steps=steps, outputs=outputs, tensors=program.tensors - {*new})


def _over_buffers(program: LoopProgram) -> LoopProgram:
    made, last = lifetimes(program)
    new: dict[str, str] = {}  # by buffer: the one that lies in its place
    for number, step in enumerate(program.steps):
        if isinstance(step, Launch):
            dying = [name for name in step.reads if last[name] == number and _is_ours(program, name, made)]
            for store, result in _results(step):
                if made.get(result) != number or result in program.inputs:
                    continue
                fitting = (name for name in dying if _fits(program, step, name, store, result))
                if (found := next(fitting, None)) is not None:
                    dying.remove(found)
                    new[found] = result
    for name in reversed(new):  # of a chain of kernels, all take the place of the last result
        new[name] = new.get(new[name], new[name])
    return replace(program, steps=[_renamed(step, new) for step in program.steps]) if new else program


def _is_ours(program: LoopProgram, name: str, made: dict[str, int]) -> bool:
    return name not in program.tensors and name in made and isinstance(program.steps[made[name]], (Launch, Gemm))


def _results(step: Launch) -> Iterator[tuple[int, str]]:
    for number, value in enumerate(step.kernel.values):
        if value.op == "store":
            yield number, step.buffers[value.attr[0]]


def _fits(program: LoopProgram, step: Launch, name: str, store: int, result: str) -> bool:
    one, other = program.places[name], program.places[result]
    if one.dtype.itemsize != other.dtype.itemsize or one.reach != other.reach:
        return False
    return reads_before_it_writes(step.kernel, step.buffers.index(name), store)


def _renamed(step: ProgramStep, new: dict[str, str]) -> ProgramStep:
    if isinstance(step, Launch):
        buffers, writes = ([new.get(name, name) for name in names] for names in (step.buffers, step.writes))
        return Launch(step.kernel, buffers, writes)
    if isinstance(step, Gemm):
        out, a, b = (replace(place, buffer=new.get(place.buffer, place.buffer)) for place in (step.out, step.a, step.b))
        return replace(step, out=out, a=a, b=b)
    if isinstance(step, Blocked):
        return replace(step, steps=[_renamed(part, new) for part in step.steps])  # type: ignore[misc]  # of their kinds
    return step
