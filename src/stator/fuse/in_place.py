"""Kernels that write to the graph's inputs, where nothing can go wrong any more.

Enters: a `LoopProgram`, and which of its results are written to which inputs afterwards. Leaves: the same program, in
which such results are the inputs themselves, wherever that is sound. What holds: the kernels that write come last;
they check nothing, allocate nothing and call nothing, so whatever can fail has run before; an input that is written is
read by its own kernel alone among them, each element before it is written. That no two inputs share memory is the host
function's to find out, in each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .loops import Launch, LoopProgram, Ref
from .overwrite import reads_before_it_writes


def write_in_place(program: LoopProgram, writes: Mapping[int, str]) -> LoopProgram:
    """`writes`: by the position of a result, the input that it is written to."""
    targets = _targets(program, writes)
    launches = [step for step in program.steps if isinstance(step, Launch) and _writes_only(step, targets)]
    targets = {name: to for name, to in targets.items() if any(name in step.writes for step in launches)}
    while (bad := _conflicts(launches, targets)) is not None:
        launches.remove(bad)
        targets = {name: to for name, to in targets.items() if name not in bad.writes}
    if not launches:
        return program
    moved = [_renamed(step, targets) for step in launches]
    steps = [step for step in program.steps if step not in launches]
    outputs = [Ref(targets[o.name]) if isinstance(o, Ref) and o.name in targets else o for o in program.outputs]
    tensors = program.tensors - set(targets)
    return replace(
        program, steps=[*steps, *moved], outputs=outputs, tensors=tensors, written=sorted({*targets.values()})
    )


def _targets(program: LoopProgram, writes: Mapping[int, str]) -> dict[str, str]:
    """By buffer: the input that could be it, as far as their places tell."""
    found: dict[str, str] = {}
    read = {name for step in program.steps for name in step.reads}
    returned = [out.name for out in program.outputs if isinstance(out, Ref)]
    for position, target in writes.items():
        out = program.outputs[position]
        if not isinstance(out, Ref) or out.name in read or out.name in program.inputs or target in found.values():
            continue
        one, other = program.places.get(out.name), program.places.get(target)
        alone = returned.count(out.name) == 1 and target not in returned
        if alone and one is not None and other is not None and replace(one, buffer=target) == other:
            found[out.name] = target
    return found


def _writes_only(step: Launch, targets: Mapping[str, str]) -> bool:
    """Whether all that a kernel stores goes to inputs, element by element, each read before it is written."""
    kernel = step.kernel
    if kernel.inner or any(value.op == "check" for value in kernel.values):
        return False
    stores = {step.buffers[v.attr[0]]: number for number, v in enumerate(kernel.values) if v.op == "store"}
    return len(stores) == len(step.writes) and all(
        name in targets
        and (
            targets[name] not in step.buffers
            or reads_before_it_writes(kernel, step.buffers.index(targets[name]), stores[name])
        )
        for name in step.writes
    )


def _conflicts(launches: list[Launch], targets: Mapping[str, str]) -> Launch | None:
    """A kernel that writes what another one of them reads."""
    for step in launches:
        mine = {targets[name] for name in step.writes}
        if any(other is not step and mine & {*other.reads} for other in launches):
            return step
    return None


def _renamed(step: Launch, targets: Mapping[str, str]) -> Launch:
    writes = [targets[name] for name in step.writes]
    return Launch(step.kernel, [targets.get(name, name) for name in step.buffers], writes)
