"""Graphs and values as Python text: to be read, and to be run without the program they come from.

Enters: graphs of `torch.fx`, example inputs, values of a program. Leaves: text. What holds: a script imports torch and
nothing of the program's; the tensors it makes have the size, strides, dtype and device of the real ones, and numbers
from the same range, so that what is an index stays one. No line that can be broken is longer than `WIDTH`.
"""

from __future__ import annotations

import ast
import base64
import enum
import importlib
import marshal
import math
import re
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from ..interrupts import let_through
from .literals import in_docstring, is_literal, is_path, literal, name_of, one_line, plain_text
from .op_namespaces import TORCHS_OWN

WIDTH = 100
_MOST_ITEMS = 64  # tensors of so few elements are written out


# ------------------------------------------------------------------------------------------- Python to be read


def readable(code: str) -> str:
    """What fx writes, one statement a line: without the assignments that only free memory, and not too wide."""
    try:
        return _unparsed(ast.parse(textwrap.dedent(code).strip()))
    except SyntaxError:  # a class is called as a program's function is, which need not be a name
        return code


def _unparsed(tree: ast.Module) -> str:
    blocks: list[ast.Module | ast.ClassDef | ast.FunctionDef] = [tree]
    while blocks:
        node = blocks.pop()
        pairs = list(zip([None, *node.body], node.body, strict=False))
        node.body = [statement for before, statement in pairs if not _frees(before, statement)]
        blocks += [inner for inner in node.body if isinstance(inner, (ast.ClassDef, ast.FunctionDef))]
    return "\n".join(line for long in ast.unparse(tree).splitlines() for line in broken(long))


def graph_code(module: fx.GraphModule) -> str:
    """A graph as Python to be read."""
    return readable(str(module.code))


def typed_graph_code(module: fx.GraphModule | None) -> str:
    """The same with dtypes and sizes."""
    return "" if module is None else readable(module.print_readable(print_output=False))


def _frees(before: ast.stmt | None, statement: ast.stmt) -> bool:
    """Is this the `x = None` that fx writes behind the last use of x?"""
    return (
        before is not None
        and isinstance(statement, ast.Assign)
        and statement.lineno == before.end_lineno
        and isinstance(statement.value, ast.Constant)
        and statement.value.value is None
    )


def broken(line: str, width: int = WIDTH) -> list[str]:
    """A line of Python, on several lines if it is too wide and has brackets to break it in."""
    if len(line) <= width:
        return [line]
    found = _last_brackets(line)
    if found is None:
        return [line]
    opening, commas, closing = found
    indent = " " * (len(line) - len(line.lstrip()))
    bounds = [opening, *commas, closing - 1]
    items = [line[start + 1 : end + 1].strip() for start, end in pairwise(bounds)]
    lines = [line[: opening + 1]]
    for item in filter(None, items):
        whole = f"{lines[-1]} {item}"
        if len(lines) > 1 and len(whole) <= width:
            lines[-1] = whole
        else:
            lines.append(f"{indent}    {item}")
    inner = [part for long in lines[1:] for part in (broken(long, width) if len(long) < len(line) else [long])]
    return [lines[0], *inner, f"{indent}{line[closing:]}"]


def _last_brackets(line: str) -> tuple[int, list[int], int] | None:
    """Where the last outermost brackets of a line open, their commas, and where they close."""
    found = None
    depth, quote, opening = 0, "", 0
    commas: list[int] = []
    for position, character in enumerate(line):
        if quote:
            if character == quote and line[position - 1] != "\\":
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
            if depth == 1:
                opening, commas = position, []
        elif character in ")]}":
            depth -= 1
            if depth == 0 and position > opening + 1:
                found = (opening, commas, position)
        elif character == "," and depth == 1:
            commas.append(position)
    return found


# ------------------------------------------------------------------------------------------ values as Python text


PRELUDE = '''
class Thing:
    """Stands for an object of the program that is not here."""

    def __init__(self, what):
        self.what = what

    def __repr__(self):
        return f"<{self.what}>"

    def __call__(self, *args, **kwargs):
        return Thing(f"what {self.what} gives")

    def __set__(self, owner, value):
        owner.__dict__[self.what] = value


class Absent(Thing):
    """Stands for a part of the graph that runs code of the program's."""

    def __call__(self, *args, **kwargs):
        print(f"The graph comes to {self!r}, which needs the program; it ends here.")
        raise SystemExit(0)


def tensor(size, stride, dtype, device="cpu", low=-1.0, high=1.0, grad=False, leaf=True, values=None):
    """A tensor like one of the program's: its layout, and numbers from the same range."""
    shown = [1 if step == 0 else length for length, step in zip(size, stride)]
    if values is not None:
        made = torch.tensor(values, dtype=dtype).reshape(shown)
    elif dtype.is_floating_point or dtype.is_complex:
        made = torch.rand(shown, dtype=torch.float64) * (high - low) + low
    else:
        made = torch.randint(int(low), int(high) + 1, shown)
    kept = torch.empty_strided(shown, stride, dtype=dtype, device=device)
    kept = kept.copy_(made.to(dtype)).expand(size)
    kept = kept.requires_grad_(grad)
    return kept if leaf else kept.clone()


def show(value, name="result"):
    """What came out, in words."""
    if isinstance(value, torch.Tensor):
        mean = f", mean {value.double().mean().item():.6g}" if value.numel() and not value.is_complex() else ""
        print(f"{name}: {value.dtype} {list(value.shape)}{mean}")
    elif isinstance(value, (list, tuple)):
        print(f"{name}: {type(value).__name__} of {len(value)}")
        for index, item in enumerate(value):
            show(item, f"{name}[{index}]")
    elif isinstance(value, dict):
        print(f"{name}: {type(value).__name__} of {len(value)}")
        for key, item in value.items():
            show(item, f"{name}[{key!r}]")
    else:
        print(f"{name}: {value!r}")
'''


def number(value: Any) -> Any:
    """A size as a plain number: for a symbolic one, what it was in the call that was recorded."""
    node = getattr(value, "node", None)
    if node is None or not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value
    try:
        hint = node.hint
    except Exception as error:
        let_through(error)
        hint = None
    return 2 if hint is None else hint


@dataclass
class SourceValues:
    """Values as expressions, and the lines which must stand before them."""

    lines: list[str] = field(default_factory=list)
    _named: dict[int, str] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)  # so that no identity is given out twice

    def expression(self, value: Any) -> str:
        """Python that makes the value again, or something that stands for it."""
        for fits, write in _WRITERS:
            if fits(value):
                return write(self, value)
        return _thing(value)

    def items(self, values: Sequence[Any]) -> str:
        return ", ".join(map(self.expression, values))

    def once(self, value: Any, kind: str, written: str) -> str:
        """A name for a value that is written once, however often it is mentioned."""
        name = self._named.get(id(value))
        if name is None:
            name = self._named[id(value)] = f"{kind}_{len(self._named) + 1}"
            self._kept.append(value)
            self.lines += broken(f"{name} = {written}")
        return name


def _thing(value: Any) -> str:
    return f"Thing({literal(name_of(value))})"


def importable(value: Any) -> str | None:
    """`module.name` under which a fresh process would find this very object; no code of the program's is run."""
    if issubclass(type(value), types.ModuleType):
        path: Any = vars(value).get("__name__") if _is_known_type(type(value)) else None
        return path if is_path(path) and _is_installed(path) and sys.modules.get(path) is value else None
    module, name = home(value)
    if not is_path(module) or not is_path(name) or not _is_installed(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None) if _is_known_type(type(found)) else None
    return f"{module}.{name}" if found is value else None


def home(value: Any) -> tuple[Any, Any]:
    """The module and the name that a class, a function or the like says it is from: of a class as `type` knows them,
    whatever its metaclass answers; of an object only if its class is nobody's that could answer in Python."""
    kind = type(value)
    if issubclass(kind, type):
        return _MODULE_OF_TYPE.__get__(value), _NAME_OF_TYPE.__get__(value)
    if not _is_known_type(kind):
        return None, None
    name = getattr(value, "__qualname__", None)
    return getattr(value, "__module__", None), getattr(value, "__name__", None) if name is None else name


def _is_known_type(kind: type) -> bool:
    """Is this a class of C code, or of Python's or torch's own modules?"""
    if not _FLAGS_OF_TYPE.__get__(kind) & _MADE_AT_RUN_TIME:
        return True
    module, name = _MODULE_OF_TYPE.__get__(kind), _NAME_OF_TYPE.__get__(kind)
    if not is_path(module) or not _is_installed(module):
        return False
    found = sys.modules.get(module)
    return found is not None and type(found) is types.ModuleType and vars(found).get(name) is kind


_MODULE_OF_TYPE: Any = type.__dict__["__module__"]
_NAME_OF_TYPE: Any = type.__dict__["__qualname__"]
_MRO_OF_TYPE: Any = type.__dict__["__mro__"]
_FLAGS_OF_TYPE: Any = type.__dict__["__flags__"]
_MADE_AT_RUN_TIME = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _is_installed(module: Any) -> bool:
    """Only what is part of Python or of torch: a script is read where the program is not."""
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root in sys.builtin_module_names or root == "torch"


def _imported(values: SourceValues, value: Any) -> str:
    path = importable(value)
    assert path is not None
    module = path if issubclass(type(value), types.ModuleType) else home(value)[0]
    if module == "builtins":
        return path.removeprefix("builtins.")
    if module != "torch":
        values.once(sys.modules[module], "module", f"importlib.import_module({literal(module)})")
        return values._named[id(sys.modules[module])] + path.removeprefix(module)
    return path


_BASES = (list, dict, tuple, set, frozenset, Exception)


def _class(values: SourceValues, value: type) -> str:
    """A class of the program: one with its name, on the builtin class that it is made from."""
    bases = [base for base in _MRO_OF_TYPE.__get__(value) if any(base is kind for kind in _BASES)]
    base = bases[0].__name__ if bases else "object"
    return values.once(value, "class", f"type({literal(name_of(value).rpartition('.')[2])}, ({base},), {{}})")


def _function(values: SourceValues, value: types.FunctionType) -> str:
    if value.__code__.co_freevars:
        return _thing(value)
    return f"types.FunctionType({_code(values, value.__code__)}, globals())"


def _code(values: SourceValues, value: types.CodeType) -> str:
    text = base64.b85encode(marshal.dumps(value)).decode()
    return values.once(value, "code", f"marshal.loads(base64.b85decode({text!r}))")


def _tensor(values: SourceValues, value: torch.Tensor) -> str:
    return values.once(value, "tensor", tensor_call(value))


def tensor_call(value: torch.Tensor) -> str:
    """The call of `tensor` in the prelude that makes a tensor like this one."""
    size = [number(length) for length in value.shape]
    strided = value.layout is torch.strided
    steps = [number(step) for step in value.stride()] if strided else _dense_steps(size)
    parts = [str(size), str(steps), str(value.dtype)]
    device = str(value.device)
    has_data = device != "meta" and not _is_fake(value) and strided
    if device not in ("cpu", "meta"):
        parts.append(literal(device))
    parts += _contents(value.detach()) if has_data and value.numel() else [] if _is_real(value) else ["low=0, high=0"]
    if value.requires_grad:
        parts += ["grad=True"] if value.is_leaf else ["grad=True", "leaf=False"]
    return f"tensor({', '.join(parts)})"


def _contents(value: torch.Tensor) -> list[str]:
    if value.is_complex() or value.is_conj() or value.is_neg():
        return []
    if not _is_real(value) and value.numel() <= _MOST_ITEMS and 0 not in value.stride():
        return [f"values={value.tolist()}"]
    numbers = value.to(torch.float64)
    numbers = numbers[numbers.isfinite()]
    low, high = (numbers.min().item(), numbers.max().item()) if numbers.numel() else (0.0, 0.0)
    return [f"low={low!r}, high={high!r}"] if _is_real(value) else [f"low={int(low)}, high={int(high)}"]


def _is_real(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _is_fake(value: torch.Tensor) -> bool:
    return hasattr(value, "fake_mode")


def _dense_steps(size: list[int]) -> list[int]:
    return [math.prod(size[position + 1 :]) for position in range(len(size))]


def _container(opening: str, closing: str) -> Callable[[SourceValues, Any], str]:
    def write(values: SourceValues, value: Any) -> str:
        comma = "," if opening == "(" and len(value) == 1 else ""
        return f"{opening}{values.items(list(value))}{comma}{closing}"

    return write


def _mapping(values: SourceValues, value: Mapping[Any, Any]) -> str:
    return "{" + ", ".join(f"{values.expression(k)}: {values.expression(v)}" for k, v in value.items()) + "}"


def _exactly(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_WRITERS: list[tuple[Callable[[Any], bool], Callable[[SourceValues, Any], str]]] = [
    (lambda value: type(value) is not tuple and is_literal(value), lambda values, value: literal(value)),
    (lambda value: issubclass(type(value), int) and name_of(type(value)) == "Int",
     lambda values, value: literal(int.__int__(value))),
    (lambda value: issubclass(type(value), float), lambda values, value: literal(float.__float__(value))),
    (_exactly(torch.SymInt, torch.SymFloat, torch.SymBool), lambda v, x: literal(number(x))),
    (lambda value: issubclass(type(value), torch.Tensor), _tensor),
    (_exactly(*_TORCH_CONSTANTS), lambda values, value: str(value)),
    (_exactly(torch.device), lambda values, value: f"torch.device({literal(str(value))})"),
    (lambda value: issubclass(type(value), torch.Size), lambda v, x: f"torch.Size({list(map(number, x))})"),
    (_exactly(list), _container("[", "]")),
    (_exactly(tuple), _container("(", ")")),
    (_exactly(dict), _mapping),
    (lambda value: issubclass(type(value), enum.Enum) and importable(type(value)) is not None,
     lambda values, value: f"{values.expression(type(value))}[{literal(plain_text(value._name_))}]"),
    (_exactly(slice), lambda v, x: f"slice({v.expression(x.start)}, {v.expression(x.stop)}, {v.expression(x.step)})"),
    (lambda value: importable(value) is not None, _imported),
    (lambda value: issubclass(type(value), type), _class),
    (lambda value: type(value) is _Leaf, lambda values, value: value.written()),
    (_exactly(types.CodeType), _code),
    (_exactly(types.FunctionType), _function),
]  # fmt: skip


# ----------------------------------------------------------------------------------------- graphs that run alone


def script(title: str, body: str, imports: str = "") -> str:
    """A file: what it is, what it needs, what it does."""
    head = in_docstring("\n".join(textwrap.wrap(title, WIDTH)))
    needed = "\n".join(
        f"import {name}" for name in ("base64", "importlib", "marshal", "types") if re.search(rf"\b{name}\.", body)
    )
    text = (
        f'"""{head}\n\nRuns by itself: python FILE\n"""\n\n{needed}\n\nimport torch\n{imports}\n{PRELUDE}\n\n{body}\n'
    )
    return re.sub(r"\n{4,}", "\n\n\n", text)


def function(name: str, module: fx.GraphModule, values: SourceValues) -> tuple[str, str]:
    """(imports, text) of a graph as a function of this name; its own tensors are in the dict `state_of_<name>`."""
    written = module.graph.python_code("self")
    tree = ast.parse(textwrap.dedent(written.src).strip())
    made = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    made.name, made.args.args = name, made.args.args[1:]
    state = {str(node.target): _attribute(module, str(node.target)) for node in module.graph.find_nodes(op="get_attr")}
    for node in module.graph.find_nodes(op="call_module"):
        state[str(node.target)] = _Leaf(_attribute(module, str(node.target)))
    text = _unparsed(_OwnState(f"state_of_{name}", state).visit(tree))
    if state:
        text = f"state_of_{name} = {values.expression(state)}\n\n\n{text}"
    used = [found for found in written.globals.items() if re.search(rf"\b{re.escape(found[0])}\b", text)]
    lines = [line for alias, value in used if (line := _meaning_of(alias, value))]
    imports = [line for line in lines if "Absent(" not in line]
    missing = "\n".join(line for line in lines if line not in imports)
    return "\n".join(imports), f"{missing}\n\n\n{text}" if missing else text


def absent(what: str) -> str:
    """Stands for what the program alone can call."""
    return f"Absent({literal(one_line(what))})"


@dataclass(frozen=True)
class _Leaf:
    """Part of a graph that runs Python code of the program's."""

    module: torch.nn.Module

    def written(self) -> str:
        return absent(f"{name_of(self.module)} {self.module.extra_repr()}")


class _OwnState(ast.NodeTransformer):
    """`self.a.b` becomes an entry of a dict; an operator of the program's is not there."""

    def __init__(self, holder: str, state: Mapping[str, Any]) -> None:
        self._holder = holder
        self._state = state

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = ast.unparse(node).removeprefix("self.")
        if path in self._state:
            return ast.parse(f"{self._holder}[{literal(path)}]", mode="eval").body
        if path.startswith("torch.ops.") and path.split(".")[2] not in TORCHS_OWN:
            return ast.parse(absent(path), mode="eval").body
        self.generic_visit(node)
        return node


def _attribute(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _meaning_of(alias: str, value: Any) -> str:
    """The line which gives a name of fx's its meaning."""
    if alias == "torch":
        return ""
    if issubclass(type(value), types.ModuleType):
        return f"import {value.__name__} as {alias}" if "." in value.__name__ else f"import {value.__name__}"
    if issubclass(type(value), float):
        return f"{alias} = {literal(float.__float__(value))}"
    path = importable(value) or _path_of_type(value)
    module, name = home(value)
    if type(module) is str and module in _OF_GRAPHS:  # a script needs stator for nothing else
        path = f"{module}.{name}"
    if path is None:
        return f"{alias} = {absent(name_of(value))}"
    module, _, name = path.rpartition(".")
    return f"from {module} import {name}" + (f" as {alias}" if alias != name else "")


_OF_GRAPHS = ("stator.support.graph_numbers", "stator.support.graph_gradients")


def _path_of_type(value: Any) -> str | None:
    """Objects of C that do not know where they are found."""
    name = home(value)[1]
    for module in ("torch", "torch._C", "torch._C._nn", "operator", "math"):
        if isinstance(name, str) and getattr(importlib.import_module(module), name, None) is value:
            return f"{module}.{name}"
    return None


def graph_script(title: str, module: fx.GraphModule, inputs: Sequence[Any], *, grad: bool = True) -> str:
    """A graph as a file that runs it on inputs like the given ones."""
    values = SourceValues()
    imports, text = function("graph", module, values)
    given = values.items(inputs)
    lines = "\n".join(values.lines)
    call = "\n".join(broken(f"        results = graph({given})"))
    body = (
        f"torch.manual_seed(0)\n{lines}\n\n\n{text}\n\n\n"
        f'if __name__ == "__main__":\n    with torch.set_grad_enabled({grad}){_autocast()}:\n{call}\n'
        "    show(results)\n"
    )
    return script(title, body, imports)


def _autocast() -> str:
    """The autocast that is on, as part of a `with`."""
    regions = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    return "".join(f", torch.autocast({d!r}, {torch.get_autocast_dtype(d)})" for d in regions)


def backward_script(
    title: str, forward: fx.GraphModule, backward: fx.GraphModule, primals: Sequence[Any], tangents: Sequence[Any],
    results: int,
) -> str:  # fmt: skip
    """A backward graph as a file: the forward before it gives what it starts from."""
    values = SourceValues()
    imports, first = function("forward", forward, values)
    more_imports, second = function("backward", backward, values)
    given, seeds = values.items(primals), values.items(tangents)
    lines = "\n".join(values.lines)
    calls = [
        *broken(f"        results = forward({given})"),
        *broken(f"        gradients = backward(*results[{results}:], {seeds})"),
    ]
    body = (
        f"torch.manual_seed(0)\n{lines}\n\n\n{first}\n\n\n{second}\n\n\n"
        'if __name__ == "__main__":\n    with torch.no_grad():\n' + "\n".join(calls) + "\n"
        f'    show(results[{results}:], "kept")\n    show(gradients, "gradients")\n'
    )
    lines_of_imports = dict.fromkeys([*imports.splitlines(), *more_imports.splitlines()])
    return script(title, body, "\n".join(lines_of_imports))
