"""The limit of a program: what no fusion can take away.

That is the library calls of its graphs alone, on the operands that they have in the program, and the time to move the
graphs' inputs, their outputs and the library calls' operands, each once, at the bandwidth measured for that many bytes
and that many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from cpu_works import Step, Work
from torch import Tensor, fx
from torch.utils import _pytree as pytree

import stator
from stator.autograd import aot_module_simplified, make_boxed_compiler
from stator.backends.data_scalars import split

ATEN = torch.ops.aten
LIBRARY = {
    ATEN.mm.default,
    ATEN.addmm.default,
    ATEN.bmm.default,
    ATEN.baddbmm.default,
    ATEN.convolution.default,
    ATEN.convolution_backward.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default,
}


class Found:
    """The library calls of a program, with their operands, and the bytes that have to be moved."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.bytes = 0
        self._kept: list[Tensor] = []  # so that no address is used twice
        self._seen: set[tuple[int, Any]] = set()

    def move(self, values: Any) -> None:
        """Count these tensors, but none of them twice."""
        for value in pytree.tree_leaves(values):
            if isinstance(value, Tensor) and value.numel():
                key = (value.untyped_storage().data_ptr(), value.storage_offset())
                if key not in self._seen:
                    self._seen.add(key)
                    self._kept.append(value)
                    self.bytes += extent(value)

    def begin_graph(self) -> None:
        self._seen.clear()

    def run(self) -> None:
        for target, args, kwargs in self.calls:
            target(*args, **kwargs)


def extent(value: Tensor) -> int:
    """Bytes of a tensor's elements; one that is seen several times counts once."""
    counted = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        counted *= size if stride else 1
    return counted * value.element_size()


class _Interpreter(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, found: Found) -> None:
        super().__init__(module)
        self._found = found

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.target in LIBRARY:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self._found.calls.append((n.target, args, kwargs))
            self._found.move((args, kwargs, result))
        elif n.op in ("placeholder", "output"):
            self._found.move(result)
        return result


def find(work: Work) -> Found:
    """The library calls and the bytes of one step of a program, by its ATen graphs."""
    found = Found()
    on = False

    @make_boxed_compiler
    def interpret(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if not on:
                return module(*inputs)
            found.begin_graph()
            return _Interpreter(module, found).run(*inputs)

        return run

    def derived(gm: Any, example_inputs: Sequence[Any]) -> Any:
        return aot_module_simplified(gm, example_inputs, fw_compiler=interpret, bw_compiler=interpret)

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Any:
        parts = split(gm, example_inputs)  # an optimizer takes its number of steps from tensors
        return derived(gm, example_inputs) if parts is None else parts.compiled(derived)

    step = work.prepare(lambda fn: stator.compile(fn, backend=backend, dynamic=False))
    for _ in range(4):
        step()
    on = True
    step()
    return found


def library_alone(found: Found) -> Step:
    def run() -> None:
        with torch.no_grad():
            found.run()

    return run


def seconds_to_move(count: int, clock: Callable[[], float]) -> float:
    """Seconds to move so many bytes, half of them read and half of them written, again and again."""
    return max(_copying(count, clock) - _copying(8, clock), 0.0)


def _copying(count: int, clock: Callable[[], float]) -> float:
    half = max(count // 8, 1)
    source, target = torch.ones(half), torch.empty(half)
    repeats = max(1, int(4e7 / max(count, 1e4)))
    best = float("inf")
    for _ in range(7):
        start = clock()
        for _ in range(repeats):
            target.copy_(source)
        best = min(best, (clock() - start) / repeats)
    return best
