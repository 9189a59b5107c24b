"""Whole graphs are asked for on both sides and refused: `python refused.py` prints "right".

A process of its own: when TorchDynamo raises that it does not support something it stays in the chain of frame
evaluators for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

import stator
from stator import _native


def raised_by(fn: Callable[..., Any], *args: Any) -> type[BaseException]:
    try:
        fn(*args)
    except Exception as error:
        return type(error)
    raise AssertionError("nothing was raised")


def main() -> None:
    x = torch.randn(3)

    def whole(fn: Any) -> Any:
        return stator.compile(fn, backend="eager", fullgraph=True)

    def dynamo_whole(fn: Any) -> Any:
        return torch.compile(fn, backend="eager", fullgraph=True)

    below = dynamo_whole(lambda x: x.sin())
    ours = whole(lambda x: below(x) + 1)
    theirs = dynamo_whole(whole(lambda x: x.sin()).__call__)
    called = whole(lambda x: x.sin())
    around = dynamo_whole(lambda x: called(x) + 1)
    mixed = stator.compile(lambda x: around(x) + 1, backend="eager")
    for _ in range(3):
        assert raised_by(ours, x) is stator.errors.GraphBreakError
        assert raised_by(around, x) is torch._dynamo.exc.Unsupported
        assert raised_by(mixed, x) is torch._dynamo.exc.Unsupported
        assert raised_by(theirs, x) is not SystemError
    assert not _native.hook_installed()
    for backend in ("eager", "aot_eager"):  # and everything goes on

        def step(x: Any) -> Any:
            return [below(x) + number for number in range(3)]

        def fn(x: Any) -> Any:
            return sum(step(x * 2))

        compiled = stator.compile(fn, backend=backend)
        for _ in range(4):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x), (x * 2).sin() * 3 + 3)
        assert compiled.stator.hits == 3, compiled.stator
    print("right")


if __name__ == "__main__":
    main()
