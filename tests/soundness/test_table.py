"""Every rule of soundness and every pitfall is attacked, and the document says by what."""

from __future__ import annotations

from table import DOCUMENT, NAME, PITFALLS, RULES, TESTS, attacks, functions_of, render


def test_every_rule_and_pitfall_is_attacked():
    wanted = {("rule", n) for n in range(1, 9)} | {("pitfall", n) for n in range(1, 30)}
    rows = {("rule", n) for n in RULES} | {("pitfall", n) for n in PITFALLS}
    assert rows == wanted
    assert sorted(wanted - set(attacks())) == []


def test_the_tests_elsewhere_are_there():
    named = [test for rows in (RULES, PITFALLS) for _, elsewhere in rows.values() for test in elsewhere.split()]
    lost = [test for test in named if test.partition("::")[2] not in functions_of(TESTS / test.partition("::")[0])]
    assert named
    assert lost == []


def test_every_test_says_what_it_attacks():
    here = [path for path in sorted((TESTS / "soundness").glob("test_*.py")) if path.name != "test_table.py"]
    names = [name for path in here for name in functions_of(path) if name.startswith("test_")]
    assert [name for name in names if NAME.fullmatch(name) is None] == []


def test_the_document_is_up_to_date():
    assert DOCUMENT.read_text() == render(), "write it again: see tests/soundness/table.py"
