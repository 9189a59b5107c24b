"""Random ATen graphs through the native backend: machine code and the reference evaluator, each against ATen.

Values are small whole numbers, so that every operator is exact and results are compared bit by bit, with their
strides and which of them share memory. `python tests/fuse/random_graphs.py FIRST COUNT` looks at more seeds than the
test does, as `make conformance` does.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from stator import events
from stator.backends import native
from stator.fuse import evaluate
from stator.fuse.loops import Launch, LoopProgram

aten = torch.ops.aten
TYPES = (torch.float32, torch.float32, torch.float64, torch.int64, torch.int32, torch.bool)
LARGEST = 2000  # elements


class Maker:
    """A graph, grown operator by operator; each is run when it is added, so that its shape is known."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Tensor] = {}
        self.inputs: list[Tensor] = []
        for _ in range(self.r.randint(1, 3)):
            shape = self.shape()
            tensor = whole_numbers(shape, self.r.choice(TYPES), self.r)
            if len(shape) > 1 and self.r.random() < 0.3:
                tensor = tensor.transpose(0, -1)
            self.inputs.append(tensor)
            self.values[self.graph.placeholder(f"x{len(self.inputs)}")] = tensor

    def shape(self) -> list[int]:
        sizes = (1, 2, 3, 4, 5, 8, 9, 16, 17)
        return [self.r.choice(sizes) for _ in range(self.r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))]

    def add(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        def real(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [real(item) for item in value]
            return self.values.get(value, value) if isinstance(value, fx.Node) else value

        result = target(*map(real, args), **kwargs)
        node = self.graph.call_function(target, args, kwargs)
        self.values[node] = result
        return node

    def pick(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> fx.Node | None:
        """A value, the newer the likelier."""
        fitting = [node for node, value in self.values.items() if isinstance(value, Tensor) and wanted(value)]
        return fitting[max(self.r.randrange(len(fitting)), self.r.randrange(len(fitting)))] if fitting else None

    def grow(self) -> None:
        kind = self.r.choices(list(KINDS), list(KINDS.values()))[0]
        node = kind(self)
        if node is not None:
            self.tame(node)

    def tame(self, node: fx.Node) -> None:
        """Numbers stay small."""
        value = self.values[node]
        if isinstance(value, Tensor) and value.dtype is not torch.bool and value.numel() and value.abs().max() > 64:
            self.add(aten.clamp.default, node, -8, 8)

    def finished(self) -> fx.GraphModule:
        found = [node for node, value in self.values.items() if isinstance(value, Tensor)]
        results = [found[-1], *self.r.sample(found, min(len(found), self.r.randint(0, 3)))]
        if self.r.random() < 0.2:
            results.append(results[0])
        self.graph.output(tuple(results))
        return fx.GraphModule(torch.nn.Module(), self.graph)


def whole_numbers(shape: Sequence[int], dtype: torch.dtype, r: random.Random) -> Tensor:
    generator = torch.Generator().manual_seed(r.randrange(2**31))
    low, high = (0, 2) if dtype is torch.bool else (-8, 9)
    return torch.randint(low, high, tuple(shape), generator=generator).to(dtype)


# ------------------------------------------------------------------------------------------------------ operators


def has_rank(rank: int) -> Callable[[Tensor], bool]:
    return lambda t: t.dim() >= rank and t.numel() <= LARGEST


def unary(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dtype is not torch.bool)
    if node is None:
        return None
    target = m.r.choice((aten.neg, aten.abs, aten.relu, aten.sign, aten.square, aten.clone, aten.floor))
    if target is aten.clone and m.r.random() < 0.5:
        return m.add(target.default, node, memory_format=torch.contiguous_format)
    return m.add(target.default, node)


def cast(m: Maker) -> fx.Node | None:
    return m.add(aten._to_copy.default, m.pick(), dtype=m.r.choice(TYPES))


def binary(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.numel() <= LARGEST)
    if node is None:
        return None
    one = m.values[node]

    def fits(other: Tensor) -> bool:
        try:
            shape = torch.broadcast_shapes(one.shape, other.shape)
        except RuntimeError:
            return False
        return torch.Size(shape).numel() <= LARGEST and not one.dtype is other.dtype is torch.bool

    other = m.pick(fits)
    if other is None:
        return m.add(aten.add.Tensor, node, 3)
    names = "add.Tensor mul.Tensor maximum.default minimum.default eq.Tensor lt.Tensor"
    target = operator.attrgetter(m.r.choice(names.split()))(aten)
    return m.add(target, *m.r.sample([node, other], 2))


def where(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.numel() <= LARGEST)
    if node is None:
        return None
    shape = m.values[node].shape
    others = [m.pick(lambda t: t.shape == shape) for _ in range(2)]
    return m.add(aten.where.self, m.add(aten.lt.Scalar, others[0], 1), node, others[1])


def permute(m: Maker) -> fx.Node | None:
    node = m.pick(has_rank(2))
    if node is None:
        return None
    rank = m.values[node].dim()
    return m.add(aten.permute.default, node, m.r.sample(range(rank), rank))


def view(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.is_contiguous() and t.numel() > 0)
    if node is None:
        return None
    left, sizes = m.values[node].numel(), []
    while left > 1 and m.r.random() < 0.8:
        sizes.append(m.r.choice([d for d in range(1, left + 1) if left % d == 0]))
        left //= sizes[-1]
    return m.add(aten.view.default, node, [*sizes, left])


def expand(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: 1 in t.shape and t.numel() <= 200)
    if node is None:
        return None
    return m.add(aten.expand.default, node, [m.r.randint(1, 6) if size == 1 else size for size in m.values[node].shape])


def unsqueeze(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() < 5)
    return None if node is None else m.add(aten.unsqueeze.default, node, m.r.randint(0, m.values[node].dim()))


def squeeze(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: 1 in t.shape)
    return None if node is None else m.add(aten.squeeze.dim, node, m.r.randrange(m.values[node].dim()))


def cut(m: Maker) -> fx.Node | None:
    node = m.pick(has_rank(1))
    if node is None:
        return None
    dim = m.r.randrange(m.values[node].dim())
    size = m.values[node].shape[dim]
    start, stop = m.r.randint(-size, size), m.r.choice((size, size, -1, 2**63 - 1))
    return m.add(aten.slice.Tensor, node, dim, start if m.r.random() < 0.7 else 0, stop, m.r.choice((1, 1, 2, 3)))


def select(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and 0 not in t.shape)
    if node is None:
        return None
    dim = m.r.randrange(m.values[node].dim())
    size = m.values[node].shape[dim]
    return m.add(aten.select.int, node, dim, m.r.randrange(-size, size))


def diagonal(m: Maker) -> fx.Node | None:
    node = m.pick(has_rank(2))
    if node is None:
        return None
    return m.add(aten.diagonal.default, node, m.r.randint(-1, 1), *m.r.sample(range(m.values[node].dim()), 2))


def fold(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and 0 not in t.shape)
    if node is None:
        return None
    rank, keep = m.values[node].dim(), m.r.random() < 0.5
    dims = m.r.sample(range(rank), m.r.randint(1, min(2, rank)))
    kind = m.r.randrange(6)
    if kind == 0:
        return m.add(m.r.choice((aten.any, aten.all)).dim, node, dims[0], keep)
    if kind == 1 and m.values[node].dtype is not torch.bool:
        return m.add(m.r.choice((aten.argmax, aten.argmin)).default, node, dims[0], keep)
    if kind < 4:
        return m.add(m.r.choice((aten.amax, aten.amin)).default, node, dims, keep)
    return m.add(aten.sum.dim_IntList, node, dims, keep)


def fold_all(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.numel() > 0)
    return None if node is None else m.add(m.r.choice((aten.sum, aten.max, aten.any)).default, node)


def join(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and t.numel() <= 500)
    if node is None:
        return None
    one = m.values[node]
    dim = m.r.randrange(one.dim())

    def fits(t: Tensor) -> bool:
        return t.dim() == one.dim() and all(
            a == b for d, (a, b) in enumerate(zip(t.shape, one.shape, strict=True)) if d != dim
        )

    return m.add(aten.cat.default, [node, *[m.pick(fits) for _ in range(m.r.randint(1, 2))]], dim)


def rearrange(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and t.numel() <= 500)
    if node is None:
        return None
    value, kind = m.values[node], m.r.randrange(4)
    if kind == 0 and value.dtype is not torch.bool:
        return m.add(
            aten.constant_pad_nd.default, node, [m.r.randint(-1, 2) if s > 2 else 1 for s in value.shape[-1:]] * 2, 3
        )
    if kind == 1 and value.dim() > 1:
        return m.add(m.r.choice((aten.tril, aten.triu)).default, node, m.r.randint(-1, 1))
    if kind == 2:
        return m.add(aten.repeat.default, node, [m.r.randint(1, 2) for _ in value.shape])
    return m.add(aten.flip.default, node, [m.r.randrange(value.dim())])


def put_in(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and 0 not in t.shape)
    if node is None:
        return None
    value = m.values[node]
    dim = m.r.randrange(value.dim())
    size = value.shape[dim]
    if m.r.random() < 0.5:
        shape = value.shape[:dim] + value.shape[dim + 1 :]
        source = m.pick(lambda t: t.shape == shape and t.dtype is value.dtype)
        if source is not None:
            return m.add(aten.select_scatter.default, node, source, dim, m.r.randrange(-size, size))
    start = m.r.randrange(size)
    source = (
        m.add(aten.neg.default, m.add(aten.slice.Tensor, node, dim, start, size))
        if value.dtype is not torch.bool
        else None
    )
    return None if source is None else m.add(aten.slice_scatter.default, node, source, dim, start, size)


def gather(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and 0 not in t.shape)
    rows = m.pick(lambda t: t.dtype is torch.int64 and t.dim() <= 2 and t.numel() <= 60)
    if node is None or rows is None:
        return None
    value = m.values[node]
    dim = m.r.randrange(value.dim())
    kind = m.r.randrange(4)
    rows = m.add(aten.remainder.Scalar, rows, value.shape[0 if kind == 3 else dim])
    rank = m.values[rows].dim()
    if value.numel() // value.shape[dim] * m.values[rows].numel() > LARGEST:
        return None
    if kind == 0 and rank == 1:
        return m.add(aten.index_select.default, node, dim, rows)
    if (
        kind == 1
        and rank == value.dim()
        and all(a <= b for a, b in zip(m.values[rows].shape, value.shape, strict=True))
    ):
        return m.add(aten.gather.default, node, dim, rows)
    if kind == 2 or value.dim() != 2:
        return m.add(aten.index.Tensor, node, [*[None] * dim, rows]) if kind != 3 else None
    return m.add(aten.embedding.default, node, rows) if kind == 3 else None


def product(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() == 2 and t.is_floating_point())
    if node is None:
        return None
    one = m.values[node]
    other = m.pick(lambda t: t.dim() == 2 and t.dtype is one.dtype and t.shape[0] == one.shape[1])
    return m.add(aten.mm.default, node, m.add(aten.t.default, node) if other is None else other)


def several(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0 and 0 not in t.shape and t.dtype is not torch.bool)
    if node is None:
        return None
    dim = m.r.randrange(m.values[node].dim())
    kind = m.r.randrange(3)
    if kind == 0:
        both = m.add(aten.max.dim, node, dim, m.r.random() < 0.5)
    elif kind == 1:
        both = m.add(aten.sort.stable, node, stable=True, dim=dim)
    else:
        both = m.add(aten.split.Tensor, node, m.r.randint(1, m.values[node].shape[dim]), dim)
    part = m.add(operator.getitem, both, 0)
    if m.r.random() < 0.5:
        m.add(operator.getitem, both, len(m.values[both]) - 1)
    return part


def scan(m: Maker) -> fx.Node | None:
    node = m.pick(lambda t: t.dim() > 0)
    return None if node is None else m.add(aten.cumsum.default, node, m.r.randrange(m.values[node].dim()))


KINDS: dict[Callable[[Maker], fx.Node | None], int] = {
    unary: 4, cast: 2, binary: 8, where: 2, permute: 3, view: 4, expand: 2, unsqueeze: 2, squeeze: 1, cut: 3, select: 1,
    diagonal: 1, fold: 6, fold_all: 1, join: 3, rearrange: 3, put_in: 2, gather: 3, product: 1, several: 1, scan: 1,
}  # fmt: skip


def random_graph(seed: int) -> tuple[fx.GraphModule, list[Tensor]]:
    maker = Maker(seed)
    for _ in range(maker.r.randint(3, 22)):
        maker.grow()
    return maker.finished(), maker.inputs


# ------------------------------------------------------------------------------------------------------ the check


class Differs(AssertionError):
    """A result is not ATen's; the text says which, and shows the program."""


@contextmanager
def watched() -> Iterator[list[LoopProgram]]:
    """Every graph that is compiled in here is also run by the evaluator and by ATen when it is called."""
    made = native._host_function
    programs: list[LoopProgram] = []

    def host_function(module: fx.GraphModule, program: LoopProgram, plain: Callable[..., Any], *rest: Any) -> Any:
        host = made(module, program, plain, *rest)
        constants = native._constants(module)
        programs.append(program)

        def run(inputs: list[Any]) -> Any:
            wanted = [*plain(list(inputs))]
            slowly = evaluate.run_program(program, inputs, constants, {})
            given = list(inputs)
            got = host(given)
            assert given == []
            strides = not module.graph.find_nodes(op="call_function", target=aten.index.Tensor)
            compare("the evaluator", slowly, wanted, program, strides)
            compare("machine code", got, wanted, program, strides)
            return got

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    native._host_function = host_function
    refused: list[Any] = []
    unsubscribe = events.subscribe(refused.append, events.NotGenerated, events.NotDerived)
    try:
        yield programs
    finally:
        unsubscribe()
        native._host_function = made
    assert not refused, refused


def compare(who: str, got: Sequence[Any], wanted: Sequence[Any], program: LoopProgram, strides: bool) -> None:
    """Strides: not behind `index`, whose meta kernel tells others than its kernel has where sizes are 1."""
    assert len(got) == len(wanted)
    for number, (g, w) in enumerate(zip(got, wanted, strict=True)):
        same = g.dtype is w.dtype and g.shape == w.shape and torch.equal(g, w)
        dims = [d for d, size in enumerate(w.shape) if size > 1] if w.numel() and strides else []
        if not same or [g.stride(d) for d in dims] != [w.stride(d) for d in dims]:
            raise Differs(f"{who}, result {number}: {g} {g.stride()}\nnot {w} {w.stride()}\n{program}")
    if who == "machine code":
        shared = [_sharing(results) for results in (got, wanted)]
        assert shared[0] == shared[1], f"{shared}\n{program}"


def _sharing(results: Sequence[Tensor]) -> list[int]:
    """By result: the first one that lies in the same memory."""
    storages = [result.untyped_storage()._cdata for result in results]
    return [storages.index(storage) for storage in storages]


def check_graph(seed: int) -> list[LoopProgram]:
    """The programs that were made of it."""
    module, inputs = random_graph(seed)
    r = random.Random(seed)
    with watched() as programs:
        compiled = native.compile_graph(module, inputs)
        for turn in range(3):
            given = inputs if turn == 0 else [other_numbers(tensor, r) for tensor in inputs]
            compare("the whole", compiled(*given), module(*given), programs[0], strides=False)
    return programs


def other_numbers(tensor: Tensor, r: random.Random) -> Tensor:
    """Others in the same places."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(
        whole_numbers(tensor.shape, tensor.dtype, r)
    )


def launches(programs: Sequence[LoopProgram]) -> int:
    return sum(isinstance(step, Launch) for program in programs for step in program.steps)


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    failed = []
    for number in range(first, first + count):
        try:
            check_graph(number)
        except Exception as error:
            failed.append(number)
            print(f"seed {number}: {type(error).__name__} {str(error)[:3000]}\n{'-' * 100}", flush=True)
    if failed:
        print(f"wrong: {failed}")
    print(f"graphs compared / wrong: {count} / {len(failed)}")
    sys.exit(bool(failed))
