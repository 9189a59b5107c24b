"""From bytecode to graph: what CPython runs, what stator runs in its place, and what is left of it.

    python examples/dynamo_03_bytecode.py

1. The function's bytecode, as `dis` shows it.
2. The instrumented copy: the same instructions, with a probe before each that reads or writes state or calls C code.
   A probe is a constant of the copy; `LOAD_CONST probe, UNARY_NEGATIVE` fires it.
3. Which instructions became which nodes of the graph.
4. The replay, which runs in later calls: its text and its bytecode.
"""

from __future__ import annotations

import dis
import re
from types import CodeType

import torch
from torch import Tensor, fx

import stator
from stator.watch.bytecode.instrument import instrument


def mse(x: Tensor, y: Tensor) -> Tensor:
    z = (x - y) ** 2
    return z.sum()


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def by_line(code: CodeType) -> dict[int, list[str]]:
    """The instructions of each line that can make a node: operators and calls."""
    found: dict[int, list[str]] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname.startswith(("BINARY", "CALL", "COMPARE", "UNARY")):
            found.setdefault(line, []).append(
                f"{instruction.offset} {instruction.opname} {instruction.argrepr}".strip()
            )
    return found


def nodes_by_line(graph: fx.GraphModule) -> dict[int, list[str]]:
    """Every node remembers the line that made it."""
    found: dict[int, list[str]] = {}
    for node in graph.graph.nodes:
        place = re.search(r", line (\d+), in mse", node.meta.get("stack_trace") or "")
        if place:
            found.setdefault(int(place[1]), []).append(f"{node.name} = {node.op} {_target(node)}{node.args}")
    return found


def _target(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def main() -> None:
    fast = stator.compile(mse, backend="eager")
    x, y = torch.arange(3.0), torch.ones(3)
    for _ in range(3):
        assert torch.equal(fast(x, y), mse(x, y))

    heading("1. Bytecode of mse, as CPython compiled it")
    dis.dis(mse)

    heading("2. The instrumented copy that the first call ran")
    copy = instrument(mse.__code__)
    probes = [constant for constant in copy.co_consts if isinstance(constant, stator._native.Probe)]
    print(f"{len(list(dis.get_instructions(mse)))} instructions, {len(list(dis.get_instructions(copy)))} with "
          f"{len(probes)} probes\n")  # fmt: skip
    dis.dis(copy)

    heading("3. How instructions became graph nodes")
    graph = fast.stator.graphs[0]
    nodes = nodes_by_line(graph)
    for line, instructions in by_line(mse.__code__).items():
        print(f"line {line}: {', '.join(instructions)}")
        for node in nodes.get(line, []):
            print(f"    -> {node}")

    heading("4. The replay that later calls run")
    entry = fast.stator.entries[0]
    print(f"{entry.replay_source}")
    dis.dis(compile(entry.replay_source, "<replay>", "exec").co_consts[0])
    print(f"\nreplayed {entry.hits} times")


if __name__ == "__main__":
    main()
