"""How random programs are written: templates with typed holes, filled in until nothing is left to fill.

What enters: tables of templates (`expressions.py`, `statements.py`) and a seeded random generator.
What leaves: lines of Python in which names are bound before they are used and types mostly fit; "mostly", because
what raises is a part of a program, too.

A hole is written `<...>`:

    <T>         an expression of type T
    <T|i:I>     the same, and in it a variable `i` of type I can be seen
    <!T>        something of type T that can be assigned to: a variable of this function, or of one around it
    <~T>        the same as <T>, but a variable where there is one: what is to be changed
    <$T>        a variable of type T, or a plain literal: what may stand in an f-string
    <=T>        a new variable of type T, known from the next line on
    <@T>        the new variable of type T that this template has bound
    <block>     statements, at the indentation of the hole; names bound there are forgotten behind it
    <loop>      the same inside of a loop
    <body T>    the body of a function that returns a T
    <words>     a type whose expressions are literals only: operators, keys, …
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

HOLE = re.compile(r"<([!$=@~]?)([A-Za-z_]+)( \w+)?((?:\|\w+:\w+)*)>")
INDENT = "    "
Rules = Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Variable:
    name: str
    type: str
    level: int  # of the function that binds it; 0 is the module
    rebindable: bool = True


@dataclass
class Function:
    """What is known of a function while its text is being written."""

    level: int
    foreign: set[str] = field(default_factory=set)  # names of functions around it that it assigns to
    globals: set[str] = field(default_factory=set)


class Unfillable(Exception):
    """No variable of the type is there, or it went too deep: try another template."""


class Writer:
    """Writes one program. `budget` statements may still be written; then blocks end."""

    def __init__(self, rng: random.Random, expressions: Mapping[str, Rules], statements: Rules, budget: int) -> None:
        self.rng = rng
        self.expressions = expressions
        self.statements = statements
        self.budget = budget
        self.scope: list[Variable] = []
        self.functions: list[Function] = [Function(0)]
        self.loops = 0
        self.names = 0
        self.made: dict[str, str] = {}  # by type, the newest variable of the template that is being filled

    # ---- choosing

    def pick(self, rules: Rules) -> str:
        weights = [weight for weight, _ in rules]
        return self.rng.choices([text for _, text in rules], weights)[0]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # ---- names

    def new_name(self, type: str) -> str:
        self.names += 1
        return f"{type.lower()}{self.names}"

    def bind(self, name: str, type: str, rebindable: bool = True) -> None:
        self.scope.append(Variable(name, type, self.functions[-1].level, rebindable))

    def visible(self, type: str) -> list[Variable]:
        return [variable for variable in self.scope if variable.type == type]

    @contextmanager
    def inner_scope(self) -> Iterator[None]:
        before = list(self.scope)
        try:
            yield
        finally:
            self.scope = before

    # ---- expressions

    def expression(self, type: str, depth: int) -> str:
        """One of the type's templates, filled in. Without depth left: a variable, or a template without holes."""
        rules = self.expressions[type]
        known = self.visible(type)
        if known and (depth <= 0 or self.chance(0.45)):
            return self.rng.choice(known[-6:] if self.chance(0.6) else known).name
        if depth <= 0:
            rules = [rule for rule in rules if not re.search("<[^>]*[A-Z]", rule[1])] or rules
        for _ in range(8):
            try:
                return self.fill(self.pick(rules), depth - 1)
            except Unfillable:
                continue
        raise Unfillable(type)

    def fill(self, template: str, depth: int) -> str:
        """A template of one line with all its holes filled; new variables become known when it is complete."""
        if depth < -6:
            raise Unfillable(template)
        new: list[tuple[str, str]] = []

        def hole(match: re.Match[str]) -> str:
            kind, type, _, extra = match.groups()
            if kind == "=":
                new.append((self.new_name(type), type))
                return new[-1][0]
            if kind == "@":
                return self.made[type]
            if kind == "!":
                return self.target(type)
            if kind == "$" or (kind == "~" and self.visible(type) and self.chance(0.85)):
                return self.atom(type)
            with self.inner_scope():
                for name, of in (pair.split(":") for pair in extra.split("|") if pair):
                    self.bind(name, of, rebindable=False)
                text = self.expression(type, depth)
            return text if text.isidentifier() or type.islower() else self.grouped(text)

        text = HOLE.sub(hole, template)
        for name, type in new:
            self.bind(name, type)
            self.made[type] = name
        return text

    @staticmethod
    def grouped(text: str) -> str:
        simple = re.fullmatch(r"[\w.]+|[\w.]+\([^()]*\)|\[[^\[\]]*\]|'[^']*'", text)
        return text if simple and not text.startswith("lambda") else f"({text})"

    def atom(self, type: str) -> str:
        known = self.visible(type)
        if known:
            return self.rng.choice(known).name
        literals = [rule for rule in self.expressions[type] if not re.search("<[^>]*[A-Z]|'", rule[1])]
        if not literals:
            raise Unfillable(type)
        return self.fill(self.pick(literals), 0)

    def target(self, type: str) -> str:
        """A variable that this function may rebind, with a note if it is not its own."""
        here = self.functions[-1]
        known = [variable for variable in self.visible(type) if variable.rebindable]
        own = [variable for variable in known if variable.level == here.level]
        others = [variable for variable in known if variable.level != here.level]
        if not known:
            raise Unfillable(type)
        chosen = self.rng.choice(others if others and (not own or self.chance(0.3)) else own)
        if chosen.level == 0 and here.level > 0:
            here.globals.add(chosen.name)
        elif chosen.level != here.level:
            here.foreign.add(chosen.name)
        return chosen.name

    # ---- statements

    def block(self, indent: str, limit: int = 3) -> list[str]:
        lines: list[str] = []
        with self.inner_scope():
            for _ in range(self.rng.randint(1, limit)):
                lines += self.statement(indent)
        return lines or [f"{indent}pass"]

    def statement(self, indent: str) -> list[str]:
        """The lines of one statement; none if the program is long enough or nothing fits."""
        if self.budget <= 0 or len(indent) > 5 * len(INDENT):
            return []
        self.budget -= 1
        for _ in range(20):
            scope, names = list(self.scope), self.names
            try:
                return self.lines(self.pick(self.statements), indent)
            except Unfillable:
                self.scope, self.names = scope, names
        return []

    def lines(self, template: str, indent: str) -> list[str]:
        """The lines of a template."""
        if not self.loops and re.search(r"^ *(if .*: )?(break|continue)$", template, re.MULTILINE):
            raise Unfillable(template)
        lines: list[str] = []
        made, self.made = self.made, {}
        scope = list(self.scope)
        try:
            for line in template.split("\n"):
                lines += self.line(line, indent)
        finally:
            self.made = made
        if re.search(r"<(block|loop)", template):  # it may not have been run
            self.scope = scope
        return lines

    def line(self, line: str, indent: str) -> list[str]:
        """One line of a template: a line of the program, or the block that stands there."""
        text = line.lstrip(" ")
        inner = indent + line[: len(line) - len(text)]
        hole = re.fullmatch(r"<(block|loop|body)(?: (\w+))?((?:\|\w+:\w+)*)>", text)
        if hole is None:
            return [inner + self.fill(text, self.rng.choice([1, 2, 2, 3]))]
        kind, type, extra = hole.groups()
        pairs = [(name, of) for name, _, of in (pair.partition(":") for pair in extra.split("|") if pair)]
        made, loops = self.made, self.loops
        try:
            with self.inner_scope():
                if kind == "body":
                    return self.body(type, inner, pairs)
                for name, of in pairs:
                    self.bind(name, of)
                self.loops += kind == "loop"
                return self.block(inner)
        finally:
            self.made, self.loops = made, loops

    def body(
        self, returns: str, indent: str, parameters: Sequence[tuple[str, str]], most: int = 3, least: int = 0
    ) -> list[str]:
        """Statements and a `return`; declarations of what belongs to others come first."""
        here = Function(self.functions[-1].level + 1)
        self.functions.append(here)
        was, self.loops = self.loops, 0
        lines: list[str] = []
        try:
            with self.inner_scope():
                for name, type in parameters:
                    self.bind(name, type)
                for _ in range(self.rng.randint(least, max(least, most))):
                    lines += self.statement(indent)
                lines.append(f"{indent}return {self.expression(returns, 2)}")
        finally:
            self.functions.pop()
            self.loops = was
        assigned = (re.match(r" *(?:del )?((?:odd_\w+|g_s)(?:, odd_\w+)*) *(?:[+^]?= |$)", line) for line in lines)
        here.globals.update(name for found in assigned if found for name in found[1].split(", "))
        declared = [f"{indent}global {', '.join(sorted(here.globals))}"] * bool(here.globals)
        declared += [f"{indent}nonlocal {', '.join(sorted(here.foreign))}"] * bool(here.foreign)
        return declared + lines
