"""Every function of torch that can reach the tensor mode, and every ATen overload, gets an answer.

`python tests/watch/test_function_models.py` prints them all.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from stator.watch.models import aten, treatments
from stator.watch.models.torch_functions import KnownByName, known_by_name
from stator.watch.tensors import op_targets

_DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def functions() -> Iterator[tuple[str, Any]]:
    """All functions that torch says can be overridden, with their full names."""
    for owner, found in torch.overrides.get_overridable_functions().items():
        for function in found:
            yield f"{getattr(owner, '__name__', owner)}.{treatments.name_of(function)}", function


def overloads() -> list[Any]:
    names = [name[6:].partition(".") for name in sorted(aten._names()) if name.startswith("aten::")]
    return [getattr(getattr(torch.ops.aten, base), overload or "default") for base, _, overload in names]


def answer(function: Any) -> str:
    """What happens to a call of this function, in words."""
    info = op_targets.op_info_of(function)
    if info.kind is treatments.Treatment.BREAK:
        return f"break: {info.reason}"
    if info.kind is not treatments.Treatment.OPERATION:
        return info.kind.name.lower()
    if not info.known.simple:
        return "seen when it runs"
    return "node; may fail for other data" if info.fails else "node"


def facts(overload: Any) -> str:
    found = aten.facts_of(overload)
    words = ["sizes by shape" if found.sized else "sizes by data"]
    words += ["draws random numbers"] * found.random + ["made of others"] * found.composite
    words.append("total but for integers" if found.divides and found.total else "total" if found.total else "may fail")
    return ", ".join(words)


def test_every_overridable_function_has_an_answer():
    answers = collections.Counter(answer(function) for _, function in functions())
    assert sum(answers.values()) > 1300
    assert answers["node"] > 300 and answers["node; may fail for other data"] > 50
    assert answers["seen when it runs"] > 300


def test_what_is_not_known_by_name_is_looked_at_when_it_runs():
    def made_up() -> None: ...

    assert known_by_name(made_up, "made_up") == known_by_name(len, "no_such_operator") == KnownByName(False, True)
    assert not known_by_name(torch.ops.aten.add, "add").simple


def test_a_function_is_a_node_by_name_only_if_all_its_operators_are_simple():
    for name, function in functions():
        known = op_targets.op_info_of(function).known
        short = name.rpartition(".")[2]
        for overload in aten.overloads_of(short) if known.simple and not short.startswith("__") else ():
            found = aten.facts_of(overload)
            if torch.Tag.out not in overload.tags and not found.composite:
                assert found.sized and not found.random, name
                assert known.fails or (found.total and not found.divides), name


def test_every_overload_has_facts_and_tags_are_believed():
    found = overloads()
    assert len(found) > 3000
    for overload in found:
        known = aten.facts_of(overload)
        assert not known.sized or _DATA_DEPENDENT.isdisjoint(overload.tags), overload
        assert known.random == (torch.Tag.nondeterministic_seeded in overload.tags), overload


def test_an_overload_without_a_meta_kernel_needs_a_row():
    by_row = {
        aten.base_name(overload)
        for overload in overloads()
        if aten.facts_of(overload).sized and not aten.has_meta_kernel(overload) and not aten.is_view(overload)
    }
    by_row = {name for name in by_row if not name.endswith("_") and not name.startswith("_foreach_")}
    without_tensors = {name for name in by_row if not any(map(aten._takes_tensors, aten.overloads_of(name)))}
    assert by_row - without_tensors - _composites(by_row) <= aten._SIZED | aten._NUMBERS_BY_SHAPE | _without_results()


def _composites(names: set[str]) -> set[str]:
    return {name for name in names if any(aten.facts_of(o).composite for o in aten.overloads_of(name))}


def _without_results() -> set[str]:
    return {aten.base_name(overload) for overload in overloads() if not overload._schema.returns}


def test_rows_name_operators_that_there_are():
    rows = {row.partition(".")[0] for row in aten.TOTAL | aten._SIZED | aten._NUMBERS_BY_SHAPE | aten._DIVISIONS}
    assert sorted(row for row in rows if not aten.overloads_of(row)) == []


def test_claims_hold_on_torchs_own_samples_with_other_data():
    command = [sys.executable, str(Path(__file__).parent / "claims.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    found = re.search(r"(\d+) functions, 0 of them", done.stdout)
    assert found and int(found[1]) > 500, done.stdout


def main() -> None:
    for name, function in functions():
        print(f"{name:60} {answer(function)}")
    for overload in overloads():
        print(f"{overload!s:60} {facts(overload)}")


if __name__ == "__main__":
    main()
