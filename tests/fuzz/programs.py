"""Random programs: `program(seed)` is the text of one, the same for the same seed.

A program is a module. It has state (`g_…`), classes, helpers, a function `main`, the settings under which `main` is
to be compiled (`SETTINGS`), and `CALLS`: functions that change the state, make arguments and call `main`, in order.
Nothing in it says whether `main` is compiled, so the same text runs both ways.
"""

from __future__ import annotations

import random
import re

import odd_world
import oddities
import oddities_between
from classes import CLASSES, FIXED, FUNCTIONS, IMPORTS, STATE, STATE_TYPES
from expressions import EXPRESSIONS
from grammar import INDENT, Rules, Unfillable, Writer
from statements import BETWEEN, STATEMENTS


def choices(text: str) -> Rules:
    """Templates in one text, with their weights: `2 g_t; 1 g_list[0]`."""
    pairs = (choice.strip().partition(" ") for choice in text.split(";"))
    return [(float(weight), template) for weight, _, template in pairs]


# A parameter of `main`: its type, what it usually gets, and what it gets for a change. `B` is the call's batch size.
ARGUMENTS: dict[str, tuple[str, str, Rules]] = {
    "x": (
        "T",
        "make(<small>, B, 4)",
        choices(
            "6 make(<small>, B, 4); 1 make(1, 4); 1 make(1, B, 4, dtype=torch.float64); 2 g_t; 1 make(1, 4, B).t();"
            "1 make(1, B, 4).requires_grad_(); 1 make(1, B, 8)[:, ::2]; 0.5 nn.Parameter(make(1, B, 4)); 0.3 2.5;"
            "0.5 torch.arange(4); 0.3 make(1, 0, 4)"
        ),
    ),
    "y": ("T", "make(<small>, 4)", choices("2 make(<small>, 4); 2 x; 1 x[0]; 1 g_t; 1 g_list[0]; 1 x.view(-1, 4)")),
    "n": ("I", "<small>", choices("5 <small>; 1 True; 1 2.5; 1 4; 1 6; 1 2**40; 0.5 None; 1 B")),
    "f": ("F", "<real>", choices("5 <real>; 1 7; 1 float('nan'); 1 float('inf'); 1 False")),
    "flag": ("B", "<truth>", choices("3 <truth>; 1 1; 1 ''; 1 []")),
    "s": ("S", "'<key>'", choices("3 '<key>'; 1 'abc'; 1 ''")),
    "items": ("L", "[x, make(2, 4)]", choices("1 [make(1, 4)]; 1 [x, x]; 1 (x, make(2, 4)); 1 g_list; 1 []")),
    "numbers": ("J", "[1, 2, 3]", choices("2 [4, 5]; 1 [3, True, 2.0]; 1 (1, 2); 1 g_j; 1 [1, 2, 4]; 1 []")),
    "table": ("D", "{'a': x, 'b': make(4, 4)}", choices("1 {'b': x, 'a': x}; 1 g_d; 1 {'c': make(1, 4)}")),
    "counts": ("M", "{1: 2, 'a': 3}", choices("1 {True: 2, 'a': 3}; 1 {'a': 3, 1: 2}; 1 {1.0: 2}; 1 g_m")),
    "o": (
        "O",
        "<class>(make(8, 4), <small>)",
        choices("2 <class>(make(8, 4), <small>); 2 g_o; 1 g_p; 1 <class>(x, 1)"),
    ),
    "fn": ("FN", "torch.sin", choices("1 <FN>; 1 g_fn; 1 make_scaler(2.0); 1 make_scaler(3); 1 torch.cos")),
    "it": ("G", "iter([5, 6, 7])", choices("1 iter([1]); 1 count_up(3); 1 g_g")),
}


def program(seed: int, backend: str | None = None) -> str:
    """The text of the program with this number; for this backend, or the one that it chooses itself."""
    rng = random.Random(seed)
    while True:
        try:
            text = _Program(rng, backend).text()
            compile(text, "<program>", "exec", dont_inherit=True)
            return text
        except (Unfillable, SyntaxError, RecursionError):
            continue


def fixed_parts(text: str) -> list[str]:
    """What a program needs of the world that all share."""
    parts = (FIXED + "\n" + odd_world.WORLD).split("\n\n")
    for part in reversed(parts):
        names = re.findall(r"^(?:class |def )?(\w+)", part, re.MULTILINE)
        if not re.search(rf"\b({'|'.join(names)})\b", text):
            parts.remove(part)
        else:
            text += part
    return parts


def without_calls(rules: Rules) -> Rules:
    """Templates that call nothing of the program's own: what `main` calls must not call itself for ever."""
    return [rule for rule in rules if not any(call in rule[1] for call in ("<FN>", ".step", "helper", "spread"))]


class _Program:
    def __init__(self, rng: random.Random, backend: str | None) -> None:
        self.rng, self.backend = rng, backend
        chosen = [name for name in CLASSES if rng.random() < 0.35] or ["Plain"]
        if "Child" in chosen and "Plain" not in chosen:
            chosen.insert(0, "Plain")
        self.classes = chosen
        expressions = {
            **EXPRESSIONS,
            "class": [(1, name) for name in chosen],
            "error": [(2, "Oops"), (1, "Worse"), (1, "ValueError"), (1, "KeyError")],
        }
        usual = sum(weight for weight, _ in STATEMENTS)
        share = rng.choice([0.0, 0.2, 1.0]) * usual / sum(weight for weight, _ in oddities.STATEMENTS)
        odd = [(weight * share, text) for weight, text in oddities.STATEMENTS]
        self.writer = Writer(rng, expressions, [*STATEMENTS, *odd], budget=rng.choice([6, 10, 15, 25]))
        self.parameters = ["x", *(name for name in list(ARGUMENTS)[1:] if rng.random() < 0.3)]

    def text(self) -> str:
        writer = self.writer
        settings = self.settings()
        state = writer.lines(STATE, "")
        for name, type in STATE_TYPES.items():
            writer.bind(name, type)
        everything = writer.expressions, writer.statements
        writer.expressions = {type: without_calls(rules) for type, rules in everything[0].items()}
        writer.statements = without_calls(everything[1])
        pieces = [line for name in self.classes for line in [*writer.lines(CLASSES[name], ""), ""]]
        pieces += writer.lines(FUNCTIONS, "")
        writer.expressions, writer.statements = everything
        writer.budget = self.rng.choice([4, 8, 12, 20, 30])
        main = self.main()
        self.written = main + "\n".join(pieces)
        calls = self.calls(settings["gradients"])
        own = "\n".join(["\n".join(pieces), "\n".join(state), main, calls])
        if settings["backend"] != "eager":  # several writes to a tensor become one, and that is what it counts
            own = own.replace("._version", ".dim()")
        return "\n".join([IMPORTS + odd_world.IMPORTS, f"SETTINGS = {settings!r}", *fixed_parts(own), own, ""])

    def settings(self) -> dict[str, object]:
        rng = self.rng
        drawn = rng.random()
        backend = self.backend or ("native" if drawn < 0.04 else "aot_eager" if drawn < 0.08 else "eager")
        return {
            "backend": backend,
            "dynamic": rng.choice([None, None, None, True, False]),
            "options": {"capture_scalar_outputs": True} if rng.random() < 0.2 else {},
            "gradients": rng.random() < (0.1 if backend == "eager" else 0.7),
        }

    def main(self) -> str:
        writer = self.writer
        types = [(name, ARGUMENTS[name][0]) for name in self.parameters]
        lines = writer.body("T", INDENT, types, self.rng.choice([2, 4, 7, 12]), self.rng.choice([1, 2, 4]))
        # The last line is `return`, in the scope of the body, which is gone; results are chosen from its top level.
        names = [name for name, _ in types]
        for line in lines:
            bound = line.removeprefix(INDENT).split(" = ")[0] if " = " in line else ""
            names += [name for name in bound.split(", ") if name.isidentifier() and not line.startswith(INDENT * 2)]
        chosen = sorted(set(self.rng.sample(names, min(len(names), self.rng.randint(1, 4)))))
        result = lines.pop().split("return ", 1)[1]
        lines.append(f"{INDENT}return {self.rng.choice(SHAPES).format(', '.join([result, *chosen]))}")
        return f"def main({', '.join(self.parameters)}):\n" + "\n".join(lines)

    def calls(self, gradients: object) -> str:
        writer, rng = self.writer, self.rng
        count = rng.randint(2, 4)
        usual = {name: writer.fill(ARGUMENTS[name][1], 1) for name in self.parameters}
        usual_batch = rng.choice([1, 2, 2, 3])
        texts = []
        for number in range(count):
            changes: list[str] = []
            arguments, batch = dict(usual), usual_batch
            if number >= 1:
                for _ in range(rng.choice([0, 1, 1, 2])):
                    changes += self.change()
                for name in self.parameters:
                    if rng.random() < 1.2 / len(self.parameters):
                        arguments[name] = writer.fill(writer.pick(ARGUMENTS[name][2]), 1)
                batch = rng.choice([usual_batch, usual_batch, 1, 2, 3, 5])
            if rng.random() < 0.15:
                usual, usual_batch = dict(arguments), batch
            texts.append(self.call(number, batch, changes, arguments, gradients))
        order = [0, 0] if rng.random() < 0.8 else [0]
        for number in range(1, count):
            order += [number] * rng.choice([1, 1, 2, 3]) + [rng.randrange(number + 1)] * (rng.random() < 0.5)
        order += [0] * (rng.random() < 0.5)
        order += [order[-1]] * (4 - len(order))
        names = ", ".join(f"call_{number}" for number in order)
        return "\n".join([*texts, f"KEPT = []\nLAST = None\nCALLS = [{names}]"])

    def change(self) -> list[str]:
        """Something to do between calls; oddities only where `main` knows them."""
        while True:
            lines = self.writer.lines(self.writer.pick([*BETWEEN, *oddities_between.BETWEEN]), INDENT)
            if all(
                name in self.written for name in re.findall(r"\b(?:odd_\w+|Number|Counted|Point)\b", " ".join(lines))
            ):
                return lines

    def call(self, number: int, batch: int, changes: list[str], arguments: dict[str, str], gradients: object) -> str:
        odd = sorted({name for line in changes for name in re.findall(r"^ +(odd_\w+) =", line)})
        names = [*STATE_TYPES, "helper", "count_up", "len", "LAST", *odd]
        lines = [f"def call_{number}():", f"{INDENT}global {', '.join(names)}"]
        lines += [*changes, f"{INDENT}B = {batch}"]
        lines += [f"{INDENT}{name} = {text}" for name, text in arguments.items()]
        lines.append(f"{INDENT}KEPT.append(({', '.join(arguments)},))")
        lines.append(f"{INDENT}LAST = main({', '.join(arguments)})")
        lines.append(f"{INDENT}return {'differentiated(LAST)' if gradients else 'LAST'}")
        return "\n".join(lines)


SHAPES = ["({},)", "[{}]", "{{'r': [{}]}}", "(1, ({},))", "Pair([{}], None)"]
