"""The instrumenter: a copy is its original with probes put in, and nothing else has moved."""

from __future__ import annotations

import asyncio
import dis
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import programs
from watching import KINDS, Notes, calls_made

from stator import _native as n
from stator.watch.bytecode import opcodes
from stator.watch.bytecode.instrument import instrument

FIRE = ["LOAD_CONST", "UNARY_NEGATIVE", "POP_TOP"]


def all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from all_code(constant)


def instructions(code: CodeType) -> list[dis.Instruction]:
    """Without prefixes; an instruction's offset is that of its first prefix, where jumps lead."""
    out = []
    start = None
    for i in dis.get_instructions(code):
        start = i.offset if start is None else start
        if i.opname != "EXTENDED_ARG":
            out.append(i._replace(offset=start))
            start = None
    return out


def is_jump(i: dis.Instruction) -> bool:
    return i.opcode in dis.hasjrel


class Comparison:
    """Walks through a copy and its original at once."""

    def __init__(self, code: CodeType, copy: CodeType) -> None:
        self.code, self.copy = code, copy
        self.old, self.new = instructions(code), instructions(copy)
        self.block: dict[int, int] = {}  # offset of an instruction -> offset of its block in the copy
        self.body: dict[int, int] = {}  # ... -> offset of the instruction itself
        self.probes: list[n.Probe] = []
        self.next = 0

    def skip_probe(self, positions: Any) -> n.Probe | None:
        first = self.new[self.next]
        if not isinstance(first.argval, n.Probe):
            return None
        triple = self.new[self.next : self.next + 3]
        assert [i.opname for i in triple] == FIRE
        assert all(i.positions == positions for i in triple), "the probe has its instruction's place"
        self.next += 3
        self.probes.append(first.argval)
        return first.argval

    def check(self) -> None:
        for k, old in enumerate(self.old):
            self.block[old.offset] = self.new[self.next].offset
            probe = self.skip_probe(old.positions)
            if probe is not None:
                self.check_probe(probe, k)
            new = self.new[self.next]
            self.body[old.offset] = new.offset
            self.next += 1
            assert (new.opname, new.positions) == (old.opname, old.positions)
            if is_jump(old):
                continue
            if old.opname == "COMPARE_OP" and old.arg & opcodes.COMPARE_TO_BOOL:
                assert new.arg == old.arg & ~opcodes.COMPARE_TO_BOOL
                truth = self.skip_probe(old.positions)
                assert truth is not None and truth.kind == n.TRUTH
                assert self.new[self.next].opname == "TO_BOOL"
                self.next += 1
                continue
            assert (new.arg == old.arg and new.argval is old.argval) or new.argval == old.argval
            if old.opname == "MAKE_FUNCTION":
                after = self.skip_probe(old.positions)
                assert after is not None and after.kind == n.FUNCTION
        assert self.next == len(self.new)
        self.check_jumps()
        self.check_exception_table()

    def check_probe(self, probe: n.Probe, k: int) -> None:
        at = next(i for i in self.old[k:] if i.opname not in ("KW_NAMES", "PRECALL"))
        assert probe.code is self.code and probe.offset <= at.offset + 6
        assert probe.depth <= self.code.co_stacksize

    def check_jumps(self) -> None:
        new = iter(i for i in self.new if is_jump(i))
        for old in self.old:
            if is_jump(old):
                where = self.body if old.opname == "JUMP_BACKWARD_NO_INTERRUPT" else self.block
                assert next(new).argval == where[old.argval]

    def check_exception_table(self) -> None:
        self.block[len(self.code.co_code)] = len(self.copy.co_code)
        old = dis.Bytecode(self.code).exception_entries
        new = dis.Bytecode(self.copy).exception_entries
        assert [(e.start, e.end, e.target, e.depth, e.lasti) for e in new] == [
            (self.block[e.start], self.block[e.end], self.block[e.target], e.depth, e.lasti) for e in old
        ]


def check(code: CodeType) -> list[n.Probe]:
    copy = instrument(code)
    comparison = Comparison(code, copy)
    comparison.check()
    assert copy.co_consts[: len(code.co_consts)] == code.co_consts
    assert copy.co_name == code.co_name and copy.co_firstlineno == code.co_firstlineno
    assert (copy.co_varnames, copy.co_cellvars, copy.co_freevars) == (
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
    )
    return comparison.probes


def sources() -> list[Path]:
    """Modules of the standard library, torch.nn.modules if torch is installed, and these tests."""
    library = Path(asyncio.__file__).parents[1]
    names = "ast argparse contextlib dataclasses enum functools inspect typing subprocess tarfile pickle"
    paths = [library / f"{name}.py" for name in names.split()]
    paths += sorted((library / "asyncio").glob("*.py"))[::3]
    paths += [Path(__file__), Path(programs.__file__)]
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        paths += sorted((Path(torch.origin).parent / "nn" / "modules").glob("*.py"))
    return paths


def test_copies_of_much_code_are_exact() -> None:
    checked = refused = 0
    for path in sources():
        for code in all_code(compile(path.read_bytes(), str(path), "exec", dont_inherit=True)):
            try:
                check(code)
                checked += 1
            except n.Unwatchable:
                refused += 1
    assert checked > 1500 and 0 < refused < checked


def test_a_function_and_its_probes() -> None:
    def f(x: Any) -> Any:
        y = x.a + 1
        return g(y, k=2) if y else [z for z in x]

    kinds = [KINDS.get(p.kind, "FUNCTION") for p in check(f.__code__)]
    kinds = [kind for kind in kinds if kind != "ESCAPE"]  # each way out has one
    head = ["ATTR", "BINARY", "TRUTH", "GLOBAL", "CALL"]
    assert kinds[:5] == head
    # 3.12 runs comprehensions in place
    inline = ["ITER", "NEXT", "INSERT"]
    assert kinds[5:] == (inline if sys.version_info >= (3, 12) else ["FUNCTION", "ITER", "CALL"])


def g(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def test_argument_slots_become_positional() -> None:
    def f(a, /, b, *args, c, d=1, **kwargs):
        return a

    copy = instrument(f.__code__)
    assert (copy.co_argcount, copy.co_posonlyargcount, copy.co_kwonlyargcount) == (6, 0, 0)
    assert not copy.co_flags & 0x0C
    assert copy.co_varnames[:6] == ("a", "b", "c", "d", "args", "kwargs")


def test_what_cannot_be_watched() -> None:
    body = compile("class C:\n    x = 1", "<m>", "exec")
    for code in all_code(body):
        try:
            instrument(code)
        except n.Unwatchable as error:
            assert "mapping" in str(error)
        else:
            raise AssertionError(code)


def test_long_jumps_get_prefixes() -> None:
    """The copy's jumps are much longer: where the original needs no EXTENDED_ARG, one or two are needed."""
    for size in (8, 20, 60, 150, 400, 12_000):
        lines = [
            "def f(x, stop):",
            "    n = 0",
            "    while True:",
            "        n += 1",
            "        if n > stop:",
            "            break",
        ]
        lines += ["        x = x + n" if i % 3 else "        x = abs(x) % 1000 if x else n" for i in range(size)]
        lines += [
            "        try:",
            "            if n == 2: continue",
            "            if n == 3: raise ValueError",
        ]
        lines += ["        except ValueError:", "            x += 5", "    return x, n"]
        space: dict[str, Any] = {}
        exec("\n".join(lines), space)
        f = space["f"]
        if size < 1000:
            check(f.__code__)
        assert Notes(kinds="").run(f, 3, 4) == f(3, 4)


def test_many_constants() -> None:
    source = "def f(x):\n    return [" + ", ".join(f"x + {i}.5" for i in range(700)) + "]"
    space: dict[str, Any] = {}
    exec(source, space)
    assert Notes(kinds="").run(space["f"], 1) == space["f"](1)


def test_every_opcode_is_in_a_table() -> None:
    """With a probe, without one, or unwatchable; one that is in none of the tables makes its code unwatchable."""
    assert sorted(dis.opname[op] for op in opcodes.UNKNOWN) == []
    before, refused = opcodes.UNKNOWN, []
    opcodes.UNKNOWN = frozenset({dis.opmap["BINARY_OP"]})
    try:
        for f in (lambda x: x + 1, lambda x: -x):
            try:
                instrument(f.__code__)
            except n.Unwatchable:
                refused.append(f(1))
    finally:
        opcodes.UNKNOWN = before
    assert refused == [2]


def test_the_work_is_linear() -> None:
    """In calls of functions: ten times the code, little more than ten times as many."""

    def work(size: int) -> int:
        lines = ["def f(x):"]
        lines += [f"    if x[{i}]: x = g(x, {i})" for i in range(size)]
        space: dict[str, Any] = {"g": g}
        exec("\n".join(lines), space)
        return calls_made(lambda: instrument(space["f"].__code__))

    few = work(800)
    assert few > 800
    assert work(8_000) < 15 * few


def test_nested_code_stays_the_original() -> None:
    def f() -> Any:
        def inner() -> int:
            return 1

        return inner

    inner = Notes().run(f)
    assert inner.__code__ in f.__code__.co_consts
    assert isinstance(inner, FunctionType) and n.code_kind(inner.__code__) is None


def test_lines_of_a_traceback() -> None:
    def f(x: Any) -> Any:
        a = [
            x,
            x.missing
            .deeper,
        ]  # fmt: skip
        return a

    copy = FunctionType(instrument(f.__code__), globals())
    for func in (f, copy):
        try:
            func(3)
        except AttributeError as error:
            assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
            assert error.__traceback__.tb_next.tb_lineno == f.__code__.co_firstlineno + 3


def test_a_copy_runs_by_itself() -> None:
    """Outside of a recording the probes are silent: the copy is just a slower function."""

    def f(x: int) -> Any:
        return [g(i, k=x) for i in range(x)]

    copy = FunctionType(instrument(f.__code__), globals())
    assert copy(3) == f(3)


def test_a_line_table_that_does_not_fit() -> None:
    """A program may put in what it likes; CPython reads as far as there is code."""

    def f(x: int) -> int:
        return x + 1

    for table in (b"", b"\xf8", b"\xf8" * 50, b"\xff" * 50):
        code = f.__code__.replace(co_linetable=table)
        copy = instrument(code)
        wanted = [place[0] for place in code.co_positions()]
        assert {place[0] for place in copy.co_positions()} <= {*wanted, None}
        assert FunctionType(copy, {})(2) == 3
