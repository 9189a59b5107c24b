"""Every function of torch's own samples, called in programs that use its result in some way, with data that changes:
`python tests/fuzz/torch_functions.py [--backend eager] [--samples 1] [name ...]` (part of `make fuzz`).

A program runs plain and compiled, call after call; results, exceptions, writes and random numbers are compared; with
backends that add up in another order, but for the last digits of numbers.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "watch")]
from compare import Whole, near  # noqa: E402
from samples import CRASHES, calls_of, copies, operations, others  # noqa: E402

import stator  # noqa: E402

Function = Callable[..., Any]
Program = Callable[[tuple[Any, ...], dict[str, Any]], Any]
# Their results are whatever the memory holds, or their layouts are none that a description knows.
_NOT_COMPARED = ("empty", "new_empty", "resize", "to_sparse", "sparse")
_CRASH_ON_ODD_NUMBERS = ("linalg", "svd", "eig", "lobpcg", "pca", "lu_")


def tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def asks_for_sizes(function: Function) -> Program:
    def program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        found = [tuple(tensor.shape) for tensor in tensors(result)]
        return [tensor * 1 for tensor in tensors(result)], found, sum(map(len, found))

    return program


def asks_for_truth(function: Function) -> Program:
    def program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = tensors(function(*args, **kwargs))
        if found and found[0].numel() and (found[0].reshape(-1)[0] != 0).any():
            return found[0] * 2
        return [tensor * 3 for tensor in found]

    return program


def takes_a_number(function: Function) -> Program:
    def program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = tensors(function(*args, **kwargs))
        if found and found[0].numel():
            return found[0] * 2, f"{found[0].reshape(-1)[0].item()}"
        return len(found)

    return program


def catches(function: Function) -> Program:
    written, log = torch.zeros(2), list[str]()

    def program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written.add_(1)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            log.append(type(error).__name__)
            return written * 2, list(log)
        log.append("done")
        return result, written * 1, log[-1]

    return program


def insists(function: Function) -> Program:
    def program(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = tensors(function(*args, **kwargs))
        if found and found[0].numel() == 1 and found[0].dtype.is_floating_point and (found[0] > 1e9).item():
            raise ValueError("large")
        return [tensor * 1 for tensor in found]

    return program


USES: tuple[Callable[[Function], Program], ...] = (asks_for_sizes, asks_for_truth, takes_a_number, catches, insists)


def run(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tolerant: bool) -> list[str]:
    torch.manual_seed(0)
    given = copies(args, kwargs)
    result: Any
    try:
        result = program(*given)
    except Exception as error:
        result = ["raised", type(error).__name__, str(error)]
    seen = Whole(tolerant)
    seen.add("", {"result": result, "arguments": list(given), "random": int(torch.randint(1 << 60, ()))})
    return seen.lines


def differing(wanted: list[str], found: list[str], tolerant: bool) -> list[tuple[str, str]]:
    same = near if tolerant else str.__eq__
    return [pair for pair in itertools.zip_longest(wanted, found, fillvalue="") if not same(*pair)]


def differences(name: str, op: Any, samples: int, backend: str) -> Iterator[str]:
    for use in USES:
        for args, kwargs in calls_of(op, samples):
            odd = [] if any(part in name for part in _CRASH_ON_ODD_NUMBERS) else ["negated"]
            changed = [(a, k) for change, a, k in others(args, kwargs) if change in ("zeros", "backwards", *odd)]
            plain, compiled = use(op.op), stator.compile(use(op.op), backend=backend)
            for number, (a, k) in enumerate([(args, kwargs), (args, kwargs), *changed, (args, kwargs)], 1):
                tolerant = backend != "eager"
                lines = differing(run(plain, a, k, tolerant), run(compiled, a, k, tolerant), tolerant)
                if lines:
                    yield f"{name}, {use.__name__}, call {number} ({compiled.stator}): {lines[:2]}"
                    break
            compiled.stator.reset()


def compared(name: str) -> bool:
    return name not in CRASHES and not name.startswith(_NOT_COMPARED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names (all functions)")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--samples", type=int, default=1, help="sets of arguments for each dtype (1)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, start = 0, time.perf_counter()
    chosen = {name: op for name, op in operations().items() if compared(name)}
    if options.names:
        chosen = {name: op for name, op in chosen.items() if any(part in name for part in options.names)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, op in sorted(chosen.items()):
            for line in differences(name, op, options.samples, options.backend):
                print(line, flush=True)
                found += 1
    print(f"{len(chosen)} functions, {found} differences, {time.perf_counter() - start:.0f} s")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
