"""Guards and replays as files that run by themselves.

Enters: a recording. Leaves: Python text. Objects of the program are not there when it runs: what the guards know of
them is enough to make others that pass, and a guard on something deeper is listed, not checked.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import re
import types
from collections.abc import Sequence
from typing import Any

from .. import source_lines
from ..recording import Check, Edge, Fact, Origin, Recording, TensorFacts, describe, render_place
from ..support.guard_readers import STATE_NAMES
from ..support.literals import is_identifier, literal
from ..support.python_source import WIDTH, SourceValues, broken, function, number, script
from ..support.symbolic_exprs import render
from . import effects, emit
from .emit import write_replay
from .guard_edges import EDGES
from .guard_facts import FACTS, assertion

# ------------------------------------------------------------------------------------------------ stand-ins


def _facts(origin: Origin) -> dict[Fact, Any]:
    return {check.fact: check.expected for check in origin.checks}


class _StandIns:
    """Values of which the guards of a recording hold, as expressions."""

    def __init__(self, recording: Recording, values: SourceValues) -> None:
        self._values = values
        self._examples = dict(zip(recording.inputs, recording.example_inputs, strict=False))
        self._items: dict[int, dict[Any, Origin]] = {}  # of containers, by the container's index
        for origin in recording.origins:
            if origin.edge is Edge.ITEM and origin.parent is not None:
                self._items.setdefault(origin.parent.index, {})[origin.key] = origin

    def of(self, origin: Origin) -> str:
        """A value for this origin; a `Thing` if no other is known to fit."""
        facts = _facts(origin)
        if origin.index in self._examples:
            return self._values.expression(self._examples[origin.index])
        if Fact.TENSOR in facts:
            return _tensor(facts[Fact.TENSOR])
        for fact in (Fact.EQUAL, Fact.IS):
            if fact in facts:
                return self._values.expression(facts[fact])
        kind = facts.get(Fact.TYPE)
        if kind is dict:
            keys: Any = facts.get(Fact.KEYS) or self._items.get(origin.index, ())
            return "{" + ", ".join(f"{self._values.expression(key)}: {self._item(origin, key)}" for key in keys) + "}"
        if kind in (list, tuple):
            items = "".join(f"{self._item(origin, index)}, " for index in range(facts.get(Fact.LEN, 0)))
            return f"[{items}]" if kind is list else f"({items})"
        if kind in (int, float, str, set):
            return {int: "2", float: "0.5", str: "''", set: "set()"}[kind]
        if origin.parent is not None and origin.parent.key == "__closure__":
            return "types.CellType(None)"
        return f"Thing({literal(describe(origin))})"

    def _item(self, origin: Origin, key: Any) -> str:
        found = self._items.get(origin.index, {}).get(key)
        return "None" if found is None else self.of(found)


def _tensor(facts: TensorFacts) -> str:
    size = [2 if length is None else number(length) for length in facts.size]
    stride = [_contiguous(size, position) if step is None else step for position, step in enumerate(facts.stride)]
    grad = ", grad=True" if facts.requires_grad else ""
    leaf = "" if facts.is_leaf else ", leaf=False"
    whole = "" if facts.dtype.is_floating_point else ", low=0, high=0"
    device = "" if facts.device.type == "cpu" else f", {literal(str(facts.device))}"
    return f"tensor({size}, {stride}, {facts.dtype}{device}{whole}{grad}{leaf})"


def _contiguous(size: list[int], position: int) -> int:
    step = 1
    for length in size[position + 1 :]:
        step *= length
    return step


# --------------------------------------------------------------------------------------------------- the replay

_NAMES = {
    "new": "object.__new__",
    "deque": "collections.deque",
    "ordered": "collections.OrderedDict",
    "default": "collections.defaultdict",
    "partial": "functools.partial",
    "method": "types.MethodType",
    "cell": "types.CellType",
    "MISSING": "object()",
    "set_grad_mode": "torch._C._set_grad_enabled",
}
_MODULES = ("collections", "functools", "warnings")
_OURS = (emit.__name__, effects.__name__)  # where the functions are that replays call


def replay_script(title: str, recording: Recording, wanted: list[int]) -> str:
    """The replay of a recording, with the graph as it was captured, on inputs like the recorded ones."""
    values = SourceValues()
    text, names = write_replay(recording, wanted)
    text, _, leave = text.partition("def leave(")
    imports, graph = "", ""
    if recording.graph is not None:
        imports, graph = function("graph", recording.graph, values)
    head = [line for name, value in names.items() for line in _definition(name, value, text, values)]
    given = [values.expression(value) for value in recording.example_inputs]
    stand_ins = _StandIns(recording, values)
    given += [stand_ins.of(recording.origins[index]) for index in wanted[len(given) :]]
    rest = "\n".join(f"# {line}" for line in f"def leave({leave}".rstrip().splitlines()) if leave else ""
    behind = _BEHIND if recording.exit is not None else ""
    parts = [
        "\n".join(["torch.manual_seed(0)", *values.lines, *head]),
        graph,
        "\n".join(line for long in text.splitlines() for line in broken(long)),
        rest,
        f'if __name__ == "__main__":\n{behind}    with torch.set_grad_enabled({recording.state[0]}):\n'
        + "\n".join(broken(f"        result = replay([{', '.join(given)}])"))
        + "\n    show(result)",
    ]
    needed = "\n".join(f"import {name}" for name in _MODULES if f"{name}." in "".join(parts))
    return script(title, "\n\n\n".join(filter(None, parts)), "\n".join(filter(None, [needed, imports])))


_BEHIND = "    # The segment ends at a break: the result is the state with which the program goes on behind it.\n"


def _definition(name: str, value: Any, text: str, values: SourceValues) -> list[str]:
    """The lines that give a name in the replay its meaning."""
    if not re.search(rf"\b{name}\b", text) or name == "graph":
        return []
    if name in _NAMES:
        return [f"{name} = {_NAMES[name]}"]
    if getattr(value, "__module__", None) in _OURS:
        return [
            line for part in _with_its_parts(value) for line in _without_annotations(source_lines.of_function(part))
        ]
    written = values.expression(value)
    lines, values.lines = values.lines, []
    return [*lines, *broken(f"{name} = {written}")]


def _with_its_parts(function: Any, callers: tuple[Any, ...] = ()) -> list[Any]:
    """A function of ours, behind those that it calls."""
    function = inspect.unwrap(function)
    if function in callers:
        return []
    loaded = (step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL")
    used = [function.__globals__.get(name) for name in loaded]  # no attribute that has the name of a function
    callers = (*callers, function)
    parts = [part for value in used if callable(value) and _is_ours(value) for part in _with_its_parts(value, callers)]
    return [*dict.fromkeys([*parts, function])]


def _is_ours(value: Any) -> bool:
    return isinstance(inspect.unwrap(value), types.FunctionType) and value.__module__.startswith("stator.")


def _without_annotations(source: str) -> list[str]:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    text = ast.unparse(tree)
    return ["", *re.sub(r"(?m)^(\s*)(\w+): [^=]+ = ", r"\1\2 = ", text).splitlines(), ""]


# --------------------------------------------------------------------------------------------------- the guards

_STATE = {
    "grad mode": "torch.is_grad_enabled()",
    "inference mode": "torch.is_inference_mode_enabled()",
    "default dtype": "torch.get_default_dtype()",
    "number of torch function modes": "torch._C._len_torch_function_stack()",
}
_HELPER = '''
def looks(value, dtype, size, stride, device, grad):
    """Is this a tensor as the graph expects it? What may be any is None."""

    def fits(found, wanted):
        return len(found) == len(wanted) and all(w is None or f == w for f, w in zip(found, wanted))

    return (
        isinstance(value, torch.Tensor)
        and value.dtype is dtype
        and fits(value.shape, size)
        and fits(value.stride(), stride)
        and str(value.device) == device
        and value.requires_grad is grad
    )
'''
_CHECKING = """
if __name__ == "__main__":
    failed = 0
    for holds, words, place in guards(*example()):
        failed += holds is False
        said = "-     " if holds is None else "holds " if holds else "FAILS "
        print(said + words + ("  # " + place if place else ""))
    print("'-': needs an object of the program, which is not here")
    raise SystemExit(failed)
"""


# Names that these files use themselves.
_NOT_FOR_SLOTS = frozenset(
    {"torch", "types", "importlib", "marshal", "base64", "looks", "guards", "example", "Thing", "tensor", "show"}
    | {f"{kind}_{number}" for kind in ("module", "class", "tensor", "code", "slot") for number in range(100)}
    | set(dir(builtins))
)


def guards_script(title: str, recording: Recording, names: Sequence[str]) -> str:
    """What was assumed, as a function of the arguments that says what holds; run on arguments that were made up."""
    values = SourceValues()
    slots = [
        name if is_identifier(name) and name not in (*names[:index], *_NOT_FOR_SLOTS) else f"slot_{index}"
        for index, name in enumerate(names)
    ]
    asked = _Asked(slots, recording.origins)
    rows = [asked.state(name, value) for name, value in zip(STATE_NAMES, recording.state, strict=True)]
    rows += [asked.check(origin, check) for origin in recording.origins for check in origin.checks]
    rows += [asked.relation(relation, recording.origins) for relation in recording.relations]
    roots = {origin.key[0]: origin for origin in recording.origins if origin.edge is Edge.LOCAL}
    stand_ins = _StandIns(recording, values)
    given = [stand_ins.of(roots[index]) if index in roots else "None" for index in range(len(slots))]
    body = "\n".join(line for row in rows for line in broken(f"    yield {row}"))
    parts = [
        _HELPER.strip(),
        f"def guards({', '.join(slots)}):\n    # (does it hold, what, which line of the program needs it)\n{body}",
        "def example():\n    torch.manual_seed(0)\n"
        + "".join(f"    {line}\n" for line in _set_up(recording.state))
        + "".join(f"    {line}\n" for line in values.lines)
        + "\n".join(broken(f"    return [{', '.join(given)}]")),
        _CHECKING.strip(),
    ]
    return script(title, "\n\n\n".join(parts))


def _set_up(state: Sequence[Any]) -> list[str]:
    """The lines that bring torch's state to where it was."""
    by_name = dict(zip(STATE_NAMES, state, strict=True))
    return [
        f"torch.set_default_dtype({by_name['default dtype']})",
        f"torch.set_grad_enabled({by_name['grad mode']})",
        *(["torch.inference_mode().__enter__()"] if by_name["inference mode"] else []),
    ]


class _Asked:
    """Guards as Python expressions; None for those that need an object of the program."""

    def __init__(self, slots: Sequence[str], origins: Sequence[Origin]) -> None:
        self._slots = slots
        self._found: dict[int, str | None] = {}
        for origin in origins:
            self._found[origin.index] = self._reach(origin)

    def _reach(self, origin: Origin) -> str | None:
        """How the value of an origin is written, if it can be there."""
        parent = self._found.get(origin.parent.index) if origin.parent is not None else None
        return EDGES[origin.edge].source(origin, parent, self._slots)

    def check(self, origin: Origin, check: Check) -> str:
        value = self._found[origin.index]
        holds = FACTS[check.fact].source(value, check.expected) if value is not None else None
        return _row(holds, assertion(check, origin), check.place)

    def relation(self, relation: Any, origins: Sequence[Origin]) -> str:
        words = render(relation.expression, list(origins))
        return _row(words if self._is_python(words) else None, words, relation.place)

    def _is_python(self, words: str) -> bool:
        try:
            tree = ast.parse(words, mode="eval")
        except SyntaxError:
            return False
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        attributes = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        known = set(self._found.values())
        return all(name in known for name in names) and all(name == "shape" for name in attributes)

    @staticmethod
    def state(name: str, value: Any) -> str:
        asked = _STATE.get(name)
        return _row(f"{asked} == {value}" if asked else None, f"torch's {name} == {value}", None)


def _row(holds: str | None, words: str, place: Any) -> str:
    words = words if len(words) <= WIDTH else words[: WIDTH - 3] + "..."
    return f"({holds}, {literal(words)}, {literal(render_place(place))})"
