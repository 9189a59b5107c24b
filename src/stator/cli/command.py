"""The commands and their options.

What enters: arguments as a shell gives them. What leaves: text on standard output, and an exit code (`CODES`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..backends.registry import DEFAULT, list_backends
from ..errors import StatorError
from . import bench, caches, environment, explain
from .misuse import Misused

CODES = """\
exit codes:
  0  all went well
  1  the program that was run failed (what it gave to sys.exit, if it did)
  2  the command was used wrongly
  3  it went well, but not as was asked for (--strict, --at-least)"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m stator",
        description="Compile PyTorch programs, and see what became of them.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    _add_explain(commands)
    _add_bench(commands)
    _add_env(commands)
    _add_cache(commands)
    return made


Commands = Any  # what `add_subparsers` gives has no public name


def _command(commands: Commands, name: str, help: str, description: str) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=help, description=description, epilog=CODES, formatter_class=raw
    )
    return made


def _add_backend(command: argparse.ArgumentParser) -> None:
    known = ", ".join(list_backends())
    command.add_argument("--backend", help=f"what compiles the graphs: {known} (default: {DEFAULT})")


def _add_explain(commands: Commands) -> None:
    it = _command(
        commands,
        "explain",
        "run a script with its modules compiled, and say what that gave",
        "Run a script with every call of an nn.Module from outside of any module compiled, and print graph breaks,\n"
        "recompilations, and the time won or lost, by place in the program. To measure that, every second call runs\n"
        "as plain Python, from the third call with the same shapes on: results are those of plain Python anyway.\n\n"
        "example:\n  python -m stator explain --html report.html train.py --epochs 1",
    )
    it.add_argument("--html", metavar="FILE", help="also write a page with source, graphs, guards, timeline and memory")
    _add_backend(it)
    it.add_argument("--strict", action="store_true", help="exit with 3 if the graph broke or was compiled again")
    it.add_argument("script", metavar="SCRIPT", help="a Python file")
    it.add_argument("args", metavar="...", nargs=argparse.REMAINDER, help="what the script gets as its arguments")
    it.set_defaults(run=explain.run)


def _add_bench(commands: Commands) -> None:
    it = _command(
        commands,
        "bench",
        "time a function, plain and compiled",
        "Call a function (or a module) of a Python file, plain and compiled in turn, and print the medians.\n\n"
        "examples:\n  python -m stator bench net.py:step\n  python -m stator bench net.py:model --inputs batch\n\n"
        "`batch` is a function of the same file that returns the arguments, as a tuple or a list.",
    )
    it.add_argument("target", metavar="FILE:FUNCTION", help="what to call")
    it.add_argument("--inputs", metavar="FUNCTION", help="returns the arguments; without it there are none")
    it.add_argument("--rounds", type=_positive, default=30, help="how often each side is timed (default: 30)")
    it.add_argument("--at-least", type=float, metavar="TIMES", help="exit with 3 if it is not that many times as fast")
    _add_backend(it)
    it.set_defaults(run=bench.run)


def _add_env(commands: Commands) -> None:
    it = _command(
        commands, "env", "print versions, CPU, backends, cache directory", "Print what stator works with here."
    )
    it.add_argument("--json", action="store_true", help="as JSON")
    it.set_defaults(run=environment.run)


def _add_cache(commands: Commands) -> None:
    it = _command(
        commands,
        "cache",
        "list or clear what is kept on disk",
        "List or clear what is kept on disk between runs.",
    )
    it.add_argument("action", nargs="?", choices=("list", "clear"), default="list", help="list if not given")
    it.add_argument("--clear", action="store_true", help="the same as clear")
    it.add_argument(
        "--inductor", action="store_true", help="clear TorchInductor's cache too, which torch.compile uses as well"
    )
    it.set_defaults(run=caches.run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives its exit code."""
    made = parser()
    given = made.parse_args(arguments)
    try:
        return int(given.run(given))
    except (Misused, StatorError) as error:
        print(f"{made.prog} {given.command}: {error}", file=sys.stderr)
        return 2
