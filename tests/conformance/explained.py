"""Tests of CPython's that tell a watched run from a plain one, and why each of them must."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Explained(NamedTuple):
    test: str  # the test's id; a pattern
    modes: str
    reason: str


_CODE = "a watched function runs as an instrumented copy, and its frame or generator says so (`gi_code`, `f_code`)"
_OBJECTS = "counts all objects that the garbage collector knows, the code and functions of the copies among them"
_FRAME = "the frame of a copy holds a function of its own, so one more object is garbage with it"
_COUNT = "counts the references to an object: recordings and their guards have some of the constants that they met"
_DICTS = "counts what the garbage collector finds: objects whose attributes were guarded have a dict, one object more"
_AGE = "compares what the garbage collector knows, by age, with what it knew before: objects of ours come in between"
_RESTS = "waits in a loop for the garbage collector, which rests while a run is recorded"
_NEXT = "wants the collector to run while a frame object is made, on the very next allocation: ours are counted, too"
_TIME = "wants to be through in a tenth of a second, which a recording is not while other work keeps the machine busy"

EXPLAINED: tuple[Explained, ...] = (
    Explained("test.test_generators.__test__.syntax", "watch", _CODE),
    Explained("test.test_descr.ClassPropertiesAndMethods.test_slots", "watch compile", _OBJECTS),
    Explained("test.test_gc.GCTests.test_frame", "watch", _FRAME),
    Explained("test.test_gc.GCTests.test_boom*", "compile", _DICTS),
    Explained("test.test_gc.GCTests.test_get_objects*", "compile", _AGE),
    Explained("test.test_gc.GCTogglingTests.test_bug1055820c", "compile", _RESTS),
    Explained("test.test_frame.TestIncompleteFrameAreInvisible.test_sneaky_frame_object", "compile", _NEXT),
    Explained("test.test_re.ReTests.test_search_anchor_at_beginning", "compile", _TIME),
    Explained("test.test_coroutines.CoroutineTest.test_for_2", "compile", _COUNT),
    Explained("test.test_enumerate.TestReversed.test_bug1229429", "compile", _COUNT),
)


def explanation(test: str, version: str, mode: str) -> str | None:
    for row in EXPLAINED:
        if mode in row.modes.split() and fnmatchcase(test, row.test):
            return row.reason
    return None
