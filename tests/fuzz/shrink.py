"""A failing program made small: parts of its syntax tree are taken out while it goes on failing in the same way.

What holds in between: every text that is tried is a program; the smallest that still failed is what leaves.
"""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator

Edit = Callable[[], None]


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
    best: str, stage: Callable[[ast.Module], Iterator[ast.Module]], fails: Callable[[str], bool], deadline: float
) -> str:
    """Go through the stage's smaller programs; after a success, through those of the new one, from that place on."""
    place = 0
    while time.monotonic() < deadline:
        for number, smaller in enumerate(stage(ast.parse(best))):
            if number < place:
                continue
            place = number
            text = attempt(smaller)
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
        text = ast.unparse(ast.fix_missing_locations(tree))
        compile(text, "<smaller>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    return text


# ---- stages: each yields whole programs, smaller by one edit


def without_statements(tree: ast.Module) -> Iterator[ast.Module]:
    """Runs of statements left out, long ones first; then blocks instead of the statements around them."""
    for body, _ in bodies(tree):
        length = len(body)
        size = length
        while size >= 1:
            for start in range(0, length, size):
                kept = body[start : start + size]
                body[start : start + size] = [] if len(body) > len(kept) or body is tree.body else [ast.Pass()]
                yield copy.deepcopy(tree)
                body[:] = [*body[:start], *kept, *(s for s in body[start:] if not made_up(s))]
            size //= 2
    for body, _ in bodies(tree):
        for place, statement in enumerate(list(body)):
            for inner in inner_blocks(statement):
                body[place : place + 1] = inner
                yield copy.deepcopy(tree)
                body[place : place + len(inner)] = [statement]


def made_up(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) and not hasattr(statement, "lineno")


def bodies(tree: ast.AST) -> list[tuple[list[ast.stmt], ast.AST]]:
    found = []
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                found.append((block, node))
    return found


def inner_blocks(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)):
        for block, _ in bodies(statement):
            if block and isinstance(block[0], ast.stmt):
                yield list(block)


def without_names(tree: ast.Module) -> Iterator[ast.Module]:
    """Parameters, arguments, elements, decorators and declared names left out, one at a time."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody", "handlers", "cases") or not isinstance(value, list):
                continue
            for place in range(len(value) - 1, -1, -1):
                kept = value.pop(place)
                partner = None
                if isinstance(node, ast.Dict) and name == "keys":
                    partner = node.values.pop(place)
                if value or not isinstance(node, (ast.Global, ast.Nonlocal, ast.Import, ast.Assign, ast.Delete)):
                    yield copy.deepcopy(tree)
                value.insert(place, kept)
                if partner is not None:
                    node.values.insert(place, partner)
    yield from without_parameters(tree)


def without_parameters(tree: ast.Module) -> Iterator[ast.Module]:
    """A parameter of `main` together with the arguments for it."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for place in range(len(function.args.args) - 1, -1, -1):
            smaller = copy.deepcopy(tree)
            for node in ast.walk(smaller):
                if isinstance(node, ast.FunctionDef) and node.name == function.name and not node.args.defaults:
                    del node.args.args[place]
                is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                if is_call and node.func.id == function.name and place < len(node.args):
                    del node.args[place]
            yield smaller


def simpler_expressions(tree: ast.Module) -> Iterator[ast.Module]:
    """An expression replaced by one of its parts, or by a small constant."""
    for node in list(ast.walk(tree)):
        for name, value in ast.iter_fields(node):
            places: list[tuple[ast.expr, Callable[[ast.expr], None]]] = []
            if isinstance(value, ast.expr):
                places.append((value, lambda new, node=node, name=name: setattr(node, name, new)))
            elif isinstance(value, list):
                for at, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        places.append((item, lambda new, value=value, at=at: value.__setitem__(at, new)))
            for old, put in places:
                if isinstance(old, (ast.Name, ast.Constant)) and not is_long(old):
                    continue
                for new in simpler(old):
                    put(new)
                    yield copy.deepcopy(tree)
                put(old)


def is_long(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and len(repr(node.value)) > 3


def simpler(node: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield child.iter
    yield ast.Constant(1)
    yield ast.Constant(None)
    yield ast.Name("x", ast.Load())
