"""Allocations of CPython's that fail, one in each trial: `python short_of_memory.py [step]`.

Whoever asked for the memory, the program, the interpreter or the C core, may raise a MemoryError. Nobody may crash, no
recording may be left on, and the next run is as ever. Without torch: it does not survive this itself.
"""

from __future__ import annotations

import _testcapi
import faulthandler
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

package = types.ModuleType("stator")  # the whole one would import torch
package.__path__ = [str(Path(__file__).resolve().parents[2] / "src" / "stator")]
sys.modules["stator"] = package

import programs  # noqa: E402
import test_engine  # noqa: E402
from watching import Notes, fresh_code, outcome  # noqa: E402

from stator import _native as n  # noqa: E402

WATCHED = ("closures", "generators", "exceptions", "with_blocks", "comprehensions", "unpacking", "called_from_c")
MOST = 4000  # allocations counted in a run


def without(number: int, call: Callable[[], Any]) -> bool:
    """Did the call end with an error, its allocation of this number having failed?"""
    _testcapi.set_nomemory(number, number + 1)
    try:
        call()
    except BaseException:
        return True
    finally:
        _testcapi.remove_mem_hooks()
    return False


def watched_runs(step: int) -> Iterator[str]:
    for name in WATCHED:
        program = getattr(programs, name)
        plain = outcome(program)
        for number in range(0, MOST, step):
            notes, copy = Notes(), fresh_code(program)
            without(number, lambda notes=notes, copy=copy: notes.watcher.run(copy, ()))
            assert n.state() == n.OFF and n.current() is None and not n.hook_installed(), (name, number)
            yield name
        assert outcome(Notes().run, fresh_code(program)) == plain, name


def guards_and_dispatch(step: int) -> Iterator[str]:
    for name, test in vars(test_engine).items():
        if name.startswith("test_") and "thread" not in name:
            for number in range(0, MOST // 10, step):
                without(number, test)
                test_engine.NAMESPACE["level"] = -1  # which a test that ended early has not put back
                yield name
            test()


def main(step: int) -> int:
    faulthandler.enable()
    count = 0
    for trials in (watched_runs(step), guards_and_dispatch(step)):
        for _ in trials:
            count += 1
    print(f"allocations failed: {count}, all survived")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
