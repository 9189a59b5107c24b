"""A failing program made small: parts of its syntax tree are taken out while it goes on failing in the same way.

What holds in between: every text that is tried is a program; the smallest that still failed is what leaves.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from typing import Any


def shrunk(text: str, fails: Callable[[str], bool], seconds: float = 300.0, say: Callable[[str], None] = print) -> str:
    """The smallest text found within the time that `fails` says True to."""
    deadline = time.monotonic() + seconds
    best = ast.unparse(ast.parse(text))
    while time.monotonic() < deadline:
        before = len(best)
        for stage in (without_statements, without_names, simpler_expressions):
            best = reduced(best, stage, fails, deadline)
            say(f"{len(best.splitlines())} lines")
        if len(best) >= before:
            break
    return best


def reduced(
    best: str, stage: Callable[[ast.Module], Iterator[None]], fails: Callable[[str], bool], deadline: float
) -> str:
    """Go through the stage's smaller programs; after a success, through those of the new one, from that place on."""
    place = 0
    while time.monotonic() < deadline:
        tree = ast.parse(best)
        for number, _ in enumerate(stage(tree)):
            if number < place:
                continue
            place = number
            text = attempt(tree)
            if text is not None and len(text) < len(best) and fails(text):
                best = text
                break
            if time.monotonic() >= deadline:
                break
        else:
            return best
    return best


def attempt(tree: ast.Module) -> str | None:
    try:
        text = ast.unparse(tree)
        compile(text, "<smaller>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return text


# ---- stages: each makes one edit to the tree after another, says so, and undoes it when it is asked for the next


def without_statements(tree: ast.Module) -> Iterator[None]:
    """Runs of statements left out, long ones first; then blocks instead of the statements around them."""
    for body in bodies(tree):
        whole = list(body)
        size = len(whole)
        while size >= 1:
            for start in range(0, len(whole), size):
                body[:] = whole[:start] + whole[start + size :] or [ast.Pass()]
                yield
            size //= 2
        body[:] = whole
    for body in bodies(tree):
        whole = list(body)
        for place, statement in enumerate(whole):
            for inner in inner_blocks(statement):
                body[:] = [*whole[:place], *inner, *whole[place + 1 :]]
                yield
        body[:] = whole


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def bodies(tree: ast.AST) -> list[list[Any]]:
    found = [getattr(node, name, None) for node in ast.walk(tree) for name in BLOCKS]
    return [block for block in found if isinstance(block, list) and block]


def inner_blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)):
        yield from (list(block) for block in bodies(statement) if isinstance(block[0], ast.stmt))


def without_names(tree: ast.Module) -> Iterator[None]:
    """Parameters, arguments, elements, decorators and declared names left out, one at a time."""
    yield from without_parameters(tree)
    for node in list(ast.walk(tree)):
        for name, value in ast.iter_fields(node):
            if name in BLOCKS or not isinstance(value, list):
                continue
            whole, values = list(value), list(node.values) if isinstance(node, ast.Dict) else []
            for place in reversed(range(len(whole))):
                value[:] = whole[:place] + whole[place + 1 :]
                if isinstance(node, ast.Dict):
                    node.values[:] = values[:place] + values[place + 1 :]
                yield
            value[:] = whole
            if isinstance(node, ast.Dict):
                node.values[:] = values


def without_parameters(tree: ast.Module) -> Iterator[None]:
    """A parameter of a function together with the arguments for it."""
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.args.defaults]:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        lists = [function.args.args, *(call.args for call in calls if call.func.id == function.name)]
        wholes = [list(items) for items in lists]
        for place in reversed(range(len(function.args.args))):
            for items, whole in zip(lists, wholes, strict=True):
                items[:] = whole[:place] + whole[place + 1 :]
            yield
        for items, whole in zip(lists, wholes, strict=True):
            items[:] = whole


def simpler_expressions(tree: ast.Module) -> Iterator[None]:
    """An expression replaced by one of its parts, or by a small constant."""
    for node in list(ast.walk(tree)):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and not is_simple(value):
                for new in simpler(value):
                    setattr(node, name, new)
                    yield
                setattr(node, name, value)
            elif isinstance(value, list):
                for at, item in enumerate(list(value)):
                    if isinstance(item, ast.expr) and not is_simple(item):
                        for new in simpler(item):
                            value[at] = new
                            yield
                        value[at] = item


def is_simple(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and len(repr(node.value)) <= 3)


def simpler(node: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield child.iter
    yield ast.Constant(1)
    yield ast.Constant(None)
    yield ast.Name("x", ast.Load())
