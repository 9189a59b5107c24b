"""Functions of all shapes, to be broken off at every instruction and finished by continuations. `CASES` has them all.

Each takes a log, in which it notes what it does, and returns something whose repr can be compared, or raises."""

from __future__ import annotations

import resumable_blocks
import resumable_expressions
import resumable_objects
from resumable_objects import CASES as CASES
from resumable_objects import Box as Box

FILES = {module.__file__ for module in (resumable_blocks, resumable_expressions, resumable_objects)}
