"""Guards: a recording's origins and checks, checked, and put into words.

Enters: origins with checks, parents before children. Leaves: `EntryGuards.check(slots)`, which resolves every origin
once and gives back the values that the replay needs, or None. What was checked is what is used. Any exception while
checking is a failed guard. `EntryGuards.why(slots)` walks the same data slowly and says which check fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from .. import _native
from ..interrupts import let_through
from ..options import options
from ..recording import Edge, Fact, Origin, Recording, describe, render_places
from ..support.guard_readers import STATE_NAMES, same_constant, shared_storages, torch_state
from ..support.symbolic_exprs import Relation, render, term_value, terms_of
from ..support.symbolic_exprs import holds as relation_holds
from .guard_edges import fetch
from .guard_facts import FACTS, assertion, differences, holds, say, surely_holds
from .guard_text import Miss, Told, absent

GuardCompiler = Callable[..., _native.Guards | None]
SizeChange = tuple[Origin, tuple[Any, ...], set[int | None]]


class EntryGuards:
    """All guards of one recording."""

    def __init__(self, recording: Recording, wanted: list[int], compiler: GuardCompiler | None = None) -> None:
        """`wanted`: the origins whose values `check` gives back, in that order. `compiler` makes guards in C."""
        self._origins = recording.origins
        self._state = recording.state
        self._distinct = recording.distinct
        self._storages = recording.storages
        self._inputs = recording.inputs
        self._relations: list[Relation] = recording.relations
        self._wanted = wanted
        self._compiler = compiler
        self._engine: _native.Guards | None = None

    @property
    def engine(self) -> _native.Guards | None:
        """These guards in C, made when they are first needed."""
        if self._compiler is not None:
            compiler, self._compiler = self._compiler, None
            with contextlib.suppress(ValueError, TypeError, OverflowError):  # what C code does not take, Python checks
                shared = (self._inputs, self._storages)
                self._engine = compiler(
                    self._origins, self._state, self._distinct, shared, self._relations, self._wanted
                )
        return self._engine

    def check(self, slots: tuple[Any, ...], state: tuple[Any, ...] | None = None) -> tuple[Any, ...] | None:
        """The wanted values if all guards hold; `state` is torch's, if it is not to be asked."""
        if (state or torch_state()) != self._state:
            return None
        engine = self.engine
        if engine is None:
            return self.check_in_python(slots)
        values = engine.check(slots)
        if options.check_guards:
            expected = self.check_in_python(slots)
            self._compare(values, expected)
            for _ in range(3):  # what C code notes in one walk, and digests in the next, it uses in the third
                self._compare(engine.check(slots), expected)
        return self.check_in_python(slots) if values is NotImplemented else values

    def check_in_python(self, slots: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The reference: the same, torch's state aside."""
        try:
            return self._check(slots)
        except Exception as error:
            let_through(error)
            return None

    def _compare(self, found: Any, expected: tuple[Any, ...] | None) -> None:
        """Guards in C and in Python must agree, to the very objects."""
        if found is NotImplemented:
            return
        agree = (found is None) == (expected is None)
        if agree and expected is not None:
            agree = len(found) == len(expected) and all(map(self._agree, self._wanted, found, expected))
        if not agree:
            failed = self._engine.failed if self._engine is not None else None
            raise AssertionError(f"guards disagree: C {found!r} (failed at {failed}), Python {expected!r}")

    def _agree(self, index: int, found: Any, expected: Any) -> bool:
        """A number that is computed is another object each time."""
        computed = self._origins[index].edge is Edge.COMPUTED
        return same_constant(found, expected) if computed else found is expected

    def _check(self, slots: tuple[Any, ...]) -> tuple[Any, ...] | None:
        values: list[Any] = []
        for origin in self._origins:
            value = fetch(origin, values, slots)
            values.append(value)
            for check in origin.checks:
                if not holds(check, value, values):
                    return None
        if not self._hold_together(values):
            return None
        return tuple([values[index] for index in self._wanted])

    def _hold_together(self, values: list[Any]) -> bool:
        """Guards on several values at once."""
        for group in self._distinct:
            if len({id(values[index]) for index in group}) != len(group):
                return False
        if not all(relation_holds(relation, values) for relation in self._relations):
            return False
        return self._storages is None or shared_storages(values[i] for i in self._inputs) == self._storages

    def why(self, slots: tuple[Any, ...]) -> Miss | None:
        """A guard that does not hold, in words; None if all do."""
        for name, wanted, got in zip(STATE_NAMES, self._state, torch_state(), strict=True):
            if wanted != got:
                return Miss(f"torch's {name}", str(wanted), str(got), "")
        engine = self.engine
        if engine is not None and engine.check(slots) is None:
            origin, check = engine.failed
            if 0 <= origin < len(self._origins):
                miss = self.why_here(self._origins[origin], check, slots)
                if miss is not None:
                    return miss
        return self.why_in_python(slots)

    def why_here(self, origin: Origin, check: int, slots: tuple[Any, ...]) -> Miss | None:
        """This check of this origin in words (out of range: it cannot be reached); None if it holds after all."""
        path = [origin]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        values: Any = {}
        for step in reversed(path):
            try:
                values[step.index] = fetch(step, values, slots)
            except Exception as error:
                let_through(error)
                return None if step.edge in (Edge.KEYED, Edge.COMPUTED) else absent(step, error)
        if not 0 <= check < len(origin.checks):
            return None
        failed = origin.checks[check]
        if failed.fact in (Fact.HAS_KEYED, Fact.LACKS_KEYED):
            return None
        if failed.fact not in (Fact.SAME, Fact.OTHER) and surely_holds(failed, values[origin.index]):
            return None
        return Miss(*say(failed, origin, values[origin.index]), *render_places(failed.place))

    def why_in_python(self, slots: tuple[Any, ...]) -> Miss | None:
        """The reference: the first guard in the order of the recording that does not hold, torch's state aside."""
        values: list[Any] = []
        for origin in self._origins:
            try:
                value = fetch(origin, values, slots)
            except Exception as error:
                let_through(error)
                return absent(origin, error)
            values.append(value)
            for check in origin.checks:
                try:
                    ok = holds(check, value, values)
                except Exception as error:
                    let_through(error)
                    ok = False
                if not ok:
                    return Miss(*say(check, origin, value), *render_places(check.place))
        return self._why_together(values)

    def changed_slot(self, slots: tuple[Any, ...]) -> int | None:
        """The first argument slot that holds another number or text than the guards expect."""
        for origin in self._origins:
            value = slots[origin.key[0]] if origin.edge is Edge.LOCAL else None
            alone = [check for check in origin.checks if check.fact not in (Fact.SAME, Fact.OTHER)]
            if type(value) in (int, float, str) and not all(surely_holds(check, value) for check in alone):
                return int(origin.key[0])
        return None

    def changes(self, slots: tuple[Any, ...]) -> list[SizeChange]:
        """The sizes and numbers that differ from those expected: origin, steps from there on, and which of them (None:
        a number; a dimension; the complement of one whose stride differs). Where something else differs too, none but
        floats: those are no choice between two ways through the program."""
        values: list[Any] = []
        found: list[SizeChange] = []
        lost: set[int] = set()  # origins that lead elsewhere, or nowhere
        for origin in self._origins:
            try:
                if origin.parent is not None and origin.parent.index in lost:
                    raise LookupError(origin.index)
                value = fetch(origin, values, slots)
            except Exception as error:
                let_through(error)
                value = None
                lost.add(origin.index)
            values.append(value)
            for check in origin.checks if origin.edge is not Edge.COMPUTED and origin.index not in lost else ():
                if not surely_holds(check, value, values):
                    differing = differences(check, value)
                    if not differing:
                        lost.add(origin.index)
                    found += [(origin, steps, dims) for steps, dims in differing]
        return [each for each in found if _is_float(each, values)] if lost else found

    def _why_together(self, values: list[Any]) -> Miss | None:
        for group in self._distinct:
            if len({id(values[index]) for index in group}) != len(group):
                names = ", ".join(describe(self._origins[index]) for index in group)
                return Miss(f"identity of {names}", "different objects", "one object twice", "")
        for relation in self._relations:
            if not relation_holds(relation, values):
                terms = sorted(terms_of(relation.expression), key=str)
                words = ", ".join(f"{render(term, self._origins)} = {term_value(term, values)}" for term in terms)
                text = render(relation.expression, self._origins)
                return Miss(text, "to hold", words, *render_places(relation.place))
        if self._storages is not None:
            found = shared_storages(values[index] for index in self._inputs)
            if found != self._storages:
                return Miss("memory shared by inputs", str(self._storages), str(found), "")
        return None

    def told(self) -> list[Told]:
        """Every guard in words, with where its value comes from and the line that made it necessary."""
        found = [
            Told("torch's state", f"torch's {name} == {value}", f"torch's {name}", "")
            for name, value in zip(STATE_NAMES, self._state, strict=True)
        ]
        for origin in self._origins:
            for check in origin.checks:
                places = render_places(check.place)
                found.append(Told(FACTS[check.fact].about, assertion(check, origin), describe(origin), *places))
        for relation in self._relations:
            text = render(relation.expression, self._origins)
            found.append(Told("relations", text, "", *render_places(relation.place)))
        return found

    def lines(self) -> list[str]:
        """Every guard as one line of text."""
        return list(map(str, self.told()))


def _is_float(change: SizeChange, values: list[Any]) -> bool:
    origin, steps, dims = change
    value = values[origin.index]
    for _, index in steps:
        value = value[index]
    return type(value) is float and None in dims
