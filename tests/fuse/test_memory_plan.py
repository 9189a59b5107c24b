"""The memory plan of random programs: what lives at the same time shares no byte."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import sympy
import torch

from stator.fuse.loops import BufferView, Call, Gemm, Kernel, Launch, LoopProgram, Ref
from stator.fuse.memory import ALIGNMENT, MemoryPlan, _tensors, lifetimes, plan_memory

S, T = sympy.Symbol("s0", positive=True, integer=True), sympy.Symbol("s1", positive=True, integer=True)


def random_place(name: str, r: random.Random, symbolic: bool) -> BufferView:
    choices: list[Any] = [0, 1, 1, 3, 7, 16, 64, 100, *([S, T, S * T, 4 * S + 1] if symbolic else [])]
    sizes = tuple(r.choice(choices) for _ in range(r.randint(0, 3)))
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step = step * size + r.choice((0, 0, 0, 5))  # gaps between rows
    return BufferView(name, r.choice((torch.float32, torch.float64, torch.bool, torch.bfloat16)), sizes, tuple(strides))


def random_program(seed: int, symbolic: bool) -> LoopProgram:
    """Steps that write a few new buffers each, and read some of what is there."""
    r = random.Random(seed)
    inputs = ["x0", "x1"]
    places = {name: random_place(name, r, symbolic) for name in inputs}
    tensors, steps, known = set(inputs), [], list(inputs)
    for number in range(r.randint(1, 40)):
        new = [f"b{number}_{k}" for k in range(r.randint(1, 3))]
        read = r.sample(known, min(len(known), r.randint(0, 3)))
        places.update((name, random_place(name, r, symbolic)) for name in new)
        kind = r.random()
        if kind < 0.2:
            tensors.update((*new, *read))
            steps.append(Call(None, (), {}, new, read, "call"))
        elif kind < 0.3 and len(read) >= 2:
            steps.append(Gemm(places[new[0]], places[read[0]], places[read[1]], False, "gemm"))
        else:
            steps.append(Launch(Kernel(f"k{number}", [], [], [], [], []), [*read, *new], new))
        known += new[:1] if isinstance(steps[-1], Gemm) else new
    results = r.sample(known, min(len(known), 2))
    tensors.update(results)
    return LoopProgram(inputs, steps, [Ref(name) for name in results], places, tensors)


def check_plan(program: LoopProgram, plan: MemoryPlan, numbers: dict[Any, int]) -> int:
    """So many buffers lie in the arena."""

    def real(size: Any) -> int:
        return int(sympy.sympify(size).subs(numbers))

    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            first.setdefault(name, number)
            last[name] = number
    spans = []
    for name, offset in plan.offsets.items():
        begin = real(offset)
        end = begin + max(0, real(program.places[name].reach)) * program.places[name].dtype.itemsize
        assert (
            name not in program.tensors and begin % ALIGNMENT == 0 and 0 <= begin <= end <= max(real(plan.size), begin)
        )
        spans.append((name, begin, end))
    for number, (one, begin, end) in enumerate(spans):
        for other, start, stop in spans[:number]:
            alive_together = first[one] <= last[other] and first[other] <= last[one]
            assert not (alive_together and begin < stop and start < end), (one, other)
    kept = {out.name for out in program.outputs}
    for number, names in plan.dropped.items():
        assert all(last.get(name, 0) <= number and name not in kept for name in names)
    allocated = [(name, number) for number, names in plan.allocated.items() for name in names]
    assert all(first[name] == number and name not in plan.offsets for name, number in allocated)
    freed = [(name, number) for number, names in plan.dropped.items() for name in names]
    assert all((name, last[name]) in freed for name, _ in allocated if name not in kept)
    made_by_calls = {name for step in program.steps if isinstance(step, Call) for name in step.writes}
    assert {name for name, _ in allocated} | set(plan.offsets) | made_by_calls | set(program.inputs) >= set(last)
    return len(spans)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_two_live_buffers_share_a_byte(first: int) -> None:
    programs = [random_program(seed, symbolic=False) for seed in range(first, first + 50)]
    assert sum(check_plan(program, plan_memory(program), {}) for program in programs) > 500


@pytest.mark.parametrize("first", range(0, 15, 5))
def test_no_two_live_buffers_share_a_byte_with_symbols(first: int) -> None:
    """Whatever the symbols are, 0 included."""
    found = 0
    for seed in range(first, first + 5):
        program = random_program(seed, symbolic=True)
        plan = plan_memory(program)
        for numbers in ({S: 5, T: 3}, {S: 1, T: 1000}, {S: 0, T: 7}):
            found += check_plan(program, plan, numbers)
    assert found > 100


def chain(lengths: list[int], results: set[int], dying: list[str]) -> LoopProgram:
    """Kernels that each read the buffer before; buffer -1 is the input."""
    names = ["x", *[f"b{k}" for k in range(len(lengths))]]
    places = {
        name: BufferView(name, torch.float32, (n,), (1,)) for name, n in zip(names, [lengths[0], *lengths], strict=True)
    }
    steps = [
        Launch(Kernel(f"k{k}", [], [], [], [], []), [before, name], [name])
        for k, (before, name) in enumerate(itertools.pairwise(names))
    ]
    outputs = [Ref(f"b{k}") for k in sorted(results)]
    return LoopProgram(["x"], [*steps], outputs, places, {"x", *(out.name for out in outputs)}, dying=dying)


def peak(program: LoopProgram, plan: MemoryPlan) -> int:
    """Bytes that are alive at once, step by step: the arena, and tensors between their making and their end."""
    alive = {name: program.places[name] for name in program.dying}
    most = 0
    for number in range(len(program.steps)):
        alive |= {name: program.places[name] for name in plan.allocated.get(number, ())}
        most = max(most, sum(place.reach * place.dtype.itemsize for place in alive.values()))
        for name in plan.dropped.get(number, ()):
            alive.pop(name, None)
    return most + int(plan.size)


def test_buffers_that_come_before_results_do_not_stay_beside_them() -> None:
    """Large buffers, then as large results, while the input goes: an arena would be there all the time."""
    big = 1 << 20
    program = chain([big, big, big, big, 1000, 2000, big, big], {6, 7}, ["x"])
    plan = plan_memory(program)
    assert peak(program, plan) <= 2 * 4 * big + (1 << 18)
    assert {"b4", "b5"} <= plan.offsets.keys() and "b1" not in plan.offsets
    check_plan(program, plan, {})


def test_buffers_stay_in_the_arena_where_that_costs_nothing() -> None:
    big = 1 << 20
    program = chain([big, big, big, big, 100], {4}, [])
    plan = plan_memory(program)
    assert plan.size == 2 * 4 * big == peak(program, plan) - 400
    assert plan.offsets.keys() == {"b0", "b1", "b2", "b3"}


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_takes_little_more_than_what_is_alive_at_once(seed: int) -> None:
    r = random.Random(seed)
    lengths = [r.choice((10, 1000, 1 << 18, 1 << 20, 3 << 20)) for _ in range(r.randint(2, 30))]
    results = {len(lengths) - 1, *r.sample(range(len(lengths)), r.randint(0, len(lengths) // 2))}
    program = chain(lengths, results, ["x"] * r.randint(0, 1))
    plan, each = plan_memory(program), _tensors(program, *lifetimes(program), {*program.places} - program.tensors)
    least = peak(program, each)
    assert peak(program, plan) <= least + max(1 << 18, least // 64) + ALIGNMENT * len(lengths)
    check_plan(program, plan, {})


def test_memory_is_used_again() -> None:
    """A chain of equal buffers takes two of them."""
    places = {f"b{k}": BufferView(f"b{k}", torch.float32, (100,), (1,)) for k in range(10)}
    steps = [
        Launch(Kernel(f"k{k}", [], [], [], [], []), [*([f"b{k - 1}"] if k else []), f"b{k}"], [f"b{k}"])
        for k in range(10)
    ]
    plan = plan_memory(LoopProgram([], steps, [], places, set()))
    assert plan.size == 2 * 448
