"""Generated programs with breaks at random places, and written ones with a break at every expression.

What is compared after every call, by the harness: results or exceptions (with chain and traceback lines), effects on
the world, aliasing, torch's state, and the output with its order. `BREAK_EXAMPLES=2000` in the environment looks
longer.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import linecache
import os
import textwrap

import pytest
import torch
from harness import GENERATED, Checked, Replays, World, check, rand
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import stator

EXAMPLES = int(os.environ.get("BREAK_EXAMPLES", "0"))


@pytest.fixture(autouse=True, scope="module")
def no_callbacks_left_behind():
    """hypothesis measures the garbage collector, in frames that tests of the frame hook would meet later on."""
    before = list(gc.callbacks)
    yield
    gc.callbacks[:] = before


# ---- what generated programs can use ------------------------------------------------------------


class Manager:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, cls, error, trace):
        self.log.append(f"exit {cls.__name__ if cls else None}")
        return self.swallows


class Stepper:
    """An object whose method breaks and counts."""

    def __init__(self):
        self.seen = []

    def step(self, t):
        t = t + 1
        print("step")
        self.seen.append(t)
        return t * 0.5


def quiet(t, k):
    return t * 0.5 + k


def loud(t, k):
    t = t * 0.5
    print("loud", k)
    return t + k


def deep(t, k):
    t = t + 1
    t = loud(t, k)
    return t - 1


def fails(t, k):
    t = t + 1
    if k % 2:
        print("about to fail", k)
        raise ValueError(k)
    return t * 0.5


def counted(t, items):
    total = 0

    def add(n):
        nonlocal total
        total += n
        print("added", total)
        return total

    items.append(add(1))
    items.append(add(2))
    return t + total


def parts(t):
    yield t + 1
    yield t * 0.5


@stator.disable
def aside(value):
    """Gives back what it gets, outside of any graph."""
    return value


NAMESPACE = {
    **{f.__name__: f for f in (quiet, loud, deep, fails, counted, parts, aside)},
    **{"Manager": Manager, "Stepper": Stepper, "torch": torch, "stator": stator, "contextlib": contextlib},
}
HEAD = "def fn(x, k, log, table):\n    y, items, own, stepper = x * 0.5, [x], {}, Stepper()\n    shared = items\n"
TAIL = "    return x, y, k, items, shared, own, stepper\n"


def compiled_from(source: str):
    """The function that a text defines, with its lines known to tracebacks."""
    filename = f"<generated {hash(source)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace = dict(NAMESPACE)
    exec(compile(source, filename, "exec"), namespace)
    return namespace["fn"]


def compare(source: str, unreplayed: str | tuple[str, ...] = ()) -> Checked:
    fn = compiled_from(source)
    inputs = [(1, 1), (2, 1), (-3, 1), (4, 2), (1, 1), (-3, 2)]

    def call(w, seed, k):
        x = rand(abs(seed)).abs() * (1 if seed > 0 else -1)
        return w.fn(x, k, w.log, w.table)

    calls = [lambda w, seed=seed, k=k: call(w, seed, k) for seed, k in inputs]
    with stator.options.patch(cache_size_limit=64):
        world = lambda: World(fn=fn, log=[], table={})  # noqa: E731
        return check(world, calls, expect=None, raises=Exception, unreplayed=unreplayed)


# ---- generating programs ------------------------------------------------------------------------

TENSORS = st.sampled_from(["x", "y"])
PLAIN = [
    "x = x + 1",
    "y = x * 0.5",
    "x, y = y, x",
    "y = torch.tanh(x - y)",
    "x = x.clone(); x.add_(k)",
    "y = y.clone(); y[0] = k",
    "v = x.view(2, 2); x = v.t().reshape(4) + 1",
    "items.append(x)",
    "shared.append(k)",
    "items = [*items, y]",
    "own[k % 3] = y",
    "own.setdefault('n', []).append(k)",
    "log.append(k)",
    "log.append(x)",
    "table['last'] = y",
    "table['count'] = table.get('count', 0) + 1",
    "if items: items.pop()",
    "k += 1",
    "k = len(items)",
    "x = quiet(x, k)",
    "x = loud(x, k)",
    "y = deep(y, k)",
    "x = fails(x, k)",
    "y = counted(y, items)",
    "x = stepper.step(x)",
    "y = sum(parts(y), start=x)",
    "x = [loud(x, i) for i in range(2)][-1]",
    "y = max([x, y], key=len) + 1",
    "del own; own = {'fresh': x}",
]
BREAKS = [
    "print('k', k)",
    "print(len(items), 'items')",
    "stator.graph_break()",
    "log.append(round(x.sum().item(), 3))",
    "k = int(x.sum().item()) % 5",
    "y = aside(x) + aside(1)",
    "items[0:0] = aside([k])",
]
JUMPS = ["raise KeyError(k)", "raise ValueError('raised') from None", "return x, k", "fails(x, 1)"]
CONDITIONS = ["k % 2", "items", "x.sum() > 0", "y.sum().item() > 0", "len(log) > 2", "not print('asked')"]


@st.composite
def blocks(draw, depth=0, in_loop=False):
    """A list of lines, unindented."""
    lines = []
    for _ in range(draw(st.integers(1, 4 if depth < 2 else 2))):
        kinds = ["plain", "plain", "break", "break", "jump"] + ["compound"] * 2 * (depth < 3)
        kind = draw(st.sampled_from(kinds))
        if kind == "plain":
            lines.append(draw(st.sampled_from(PLAIN)))
        elif kind == "break":
            lines.append(draw(st.sampled_from(BREAKS)))
        elif kind == "jump":
            jumps = JUMPS + ["break", "continue"] * 2 * in_loop
            lines += ["if k % 3 == 1:", "    " + draw(st.sampled_from(jumps))]
        else:
            lines += draw(compounds(depth, in_loop))
    return lines


def indented(lines):
    return ["    " + line for line in lines]


@st.composite
def compounds(draw, depth, in_loop):
    kind = draw(st.sampled_from(["if", "for", "while", "with", "try"]))
    body = indented(draw(blocks(depth + 1, in_loop or kind in ("for", "while"))))
    if kind == "if":
        other = indented(draw(blocks(depth + 1, in_loop)))
        return [f"if {draw(st.sampled_from(CONDITIONS))}:", *body, "else:", *other]
    if kind == "for":
        heads = ["for i in range(3):", "for i, t in enumerate([x, y]):", "for i in list(own):", "for t in parts(x):"]
        return [draw(st.sampled_from(heads)), *body]
    if kind == "while":
        counter = f"left{depth}"
        return [f"{counter} = 2", f"while {counter} > 0:", f"    {counter} -= 1", *body]
    if kind == "with":
        managers = ["Manager(log)", "Manager(log, True)", "torch.no_grad()", "contextlib.suppress(KeyError)"]
        return [f"with {draw(st.sampled_from(managers))}:", *body]
    handler = indented(draw(blocks(depth + 1, in_loop)))
    caught = draw(st.sampled_from(["except ValueError as error:", "except (KeyError, ValueError):", "finally:"]))
    lines = ["try:", *body, caught, *handler]
    if caught != "finally:" and draw(st.booleans()):
        lines += ["finally:", *indented(draw(blocks(depth + 1)))]
    return lines


programs = blocks().map(lambda lines: HEAD + "\n".join(indented(lines)) + "\n" + TAIL)


def test_generated_programs():
    replays = Replays(0.7)

    @settings(
        max_examples=EXAMPLES or 250,
        deadline=None,
        derandomize=not EXAMPLES,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=set(Phase) - {Phase.explain},  # it traces, and what is traced is not compiled
    )
    @given(programs)
    def generated(source):
        note(source)
        stator.reset()
        replays.count(compare(source, GENERATED))

    generated()
    replays.enough()


# ---- a break at every expression ----------------------------------------------------------------

WRITTEN = {
    "straight": """
        z = x * 2 + y
        w = z.sum() * (x - y)
        items.append(w[0] + z.mean())
        return w, items, z.shape[0] + k
    """,
    "calls": """
        z = quiet(x, k=k) + deep(*[y, k]) * quiet(**{"t": x, "k": 2})
        items += [f"{k} and {len(items)}", (z, {"key": z, k: [z]})]
        return max(1, k, len(items)) * z, items
    """,
    "loop": """
        for i, t in zip(range(3), [x, y, x * y]):
            if i == 1:
                continue
            items.append(t * i)
            x = x + items[-1]
        else:
            x = x * 2
        return x, items, [j * k for j in range(2)]
    """,
    "while": """
        left = 3
        while left > 0 and k < 10:
            left -= 1
            x = x * 0.5 if left % 2 else x + left
            k += 1
        return x, k, left
    """,
    "branches": """
        if x.sum() > 0 and not k > 1:
            z = x + 1
        elif k == 1 or y.sum() > 0:
            z = x - 1
        else:
            z = x * 3
        return z if z.sum() > 0 else -z
    """,
    "try": """
        try:
            z = fails(x, k)
            items.append("fine")
        except ValueError as error:
            items.append(error.args)
            z = x * 2
        else:
            z = z + 1
        finally:
            log.append(len(items))
        return z, items
    """,
    "raise": """
        try:
            try:
                own["missing" if k == 1 else "n"]
            except KeyError as error:
                raise ValueError(k, str(error)) from error
            finally:
                log.append("inner")
        except ValueError as error:
            if k == 2:
                raise
            items.append((str(error), repr(error.__cause__)))
        return x + 1, items
    """,
    "with": """
        with Manager(log, swallows=k == 1) as manager, torch.no_grad():
            z = x * 2
            items.append(manager.swallows)
            z = z + fails(x, k)
        with contextlib.suppress(ValueError):
            fails(x, 1)
        return x + y, items
    """,
    "mutation": """
        view = (x * 2)[1:3]
        view[0] = k
        own["a"], own["b"] = view, items
        own["b"].append(view + 1)
        table["t"] = own["a"]
        stepper.count = getattr(stepper, "count", 0) + k
        del own["a"]
        first, *rest = [x, y, view]
        items[0:1] = rest
        return first, items, own, stepper
    """,
    "closures": """
        total = x

        def add(t, scale=k):
            nonlocal total
            total = total + t * scale
            return total

        z = add(y) + add(x, scale=2)
        pick = lambda t, n=k: t[n - 1] * total
        return z, total, pick(z), [add(t) for t in (x, y)]
    """,
    "objects": """
        class_of = type(stepper)
        other = class_of()
        other.seen.append(stepper.step(x))
        same = other.seen is not stepper.seen
        return other, same, -other.seen[0] @ y, x[..., None] * y[None, :], x[k:], not same
    """,
    "generators": """
        made = (t * k for t in [x, y])
        first = next(made)
        z = sum(made, start=first)
        for t in parts(z):
            z = z + t
        return z, sorted([3, 1, 2], key=lambda n: -n * k)
    """,
}

# A break leaves a generator in the frame that cannot be made again: what comes before and after is plain Python, and
# recorded anew for each `k` where it is not.
UNREPLAYED = {"generators": "disabled-function"}


class Wrapper(ast.NodeTransformer):
    """Puts `aside(…)` around the expression of a given number (None: around every one)."""

    def __init__(self, number=None):
        self.number, self.count = number, 0

    def visit(self, node):
        if isinstance(node, ast.arguments):
            return node
        if isinstance(node, ast.JoinedStr):
            for part in node.values:
                if isinstance(part, ast.FormattedValue):
                    part.value = self.visit(part.value)
            return node
        node = self.generic_visit(node)
        if not isinstance(node, ast.expr) or self.is_fixed(node):
            return node
        self.count += 1
        if self.number is not None and self.number != self.count - 1:
            return node
        return ast.Call(ast.Name("aside", ast.Load()), [node], [])

    @staticmethod
    def is_fixed(node):
        """Is this a part of syntax and no value?"""
        if isinstance(node, ast.Tuple) and any(isinstance(item, ast.Slice) for item in node.elts):
            return True
        stored = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        return stored or isinstance(node, (ast.Starred, ast.Slice))


def with_breaks(name: str, number: int | None) -> tuple[str, int]:
    """The written program with a break at one expression or at all of them; and how many there are."""
    body = textwrap.indent(textwrap.dedent(WRITTEN[name]).strip("\n"), "    ")
    tree = ast.parse(HEAD + body + "\n")
    wrapper = Wrapper(number)
    function = tree.body[0]
    function.body[2:] = [wrapper.visit(statement) for statement in function.body[2:]]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", wrapper.count


@pytest.mark.parametrize("name", WRITTEN)
def test_without_breaks(name):
    compare(HEAD + textwrap.indent(textwrap.dedent(WRITTEN[name]).strip("\n"), "    ") + "\n")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_break_at_every_expression_at_once(name):
    compare(with_breaks(name, None)[0], UNREPLAYED.get(name, ()))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_break_at_each_expression(name):
    """Every third of them, unless more is asked for."""
    replays = Replays(0.5)
    for number in range(0, with_breaks(name, None)[1], 1 if EXAMPLES else 3):
        source = with_breaks(name, number)[0]
        stator.reset()
        try:
            replays.count(compare(source, UNREPLAYED.get(name, ())))
        except AssertionError as error:
            raise AssertionError(f"with a break at expression {number}:\n{source}\n{error}") from None
    if name not in UNREPLAYED:
        replays.enough()
