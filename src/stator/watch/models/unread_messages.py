"""Functions of libraries that are given a message and do not look at it while a compiler is at work.

Their callers make the message in any case, of tensors perhaps, whose texts would break the graph: an f-string that ends
up there is no reason for that. A row that the function's own code does not bear out any more says nothing.
"""

from __future__ import annotations

import dis
import types
from typing import Any, NamedTuple


class UnreadMessage(NamedTuple):
    module: str
    function: str
    message: str  # the argument's name
    asked: str  # what it asks first: is a compiler at work?


UNREAD_MESSAGES: tuple[UnreadMessage, ...] = (
    UnreadMessage("transformers.utils.import_utils", "torch_compilable_check", message="msg", asked="is_tracing"),
)
_BY_NAME = {(row.module, row.function): row for row in UNREAD_MESSAGES}


def leaves_message_unread(func: Any) -> bool:
    """Does a function ask whether a compiler is at work before it looks at its message?"""
    if type(func) is not types.FunctionType:
        return False
    row = _BY_NAME.get((func.__module__, func.__qualname__))
    if row is None:
        return False
    loaded = [i.argval for i in dis.get_instructions(func.__code__) if i.opname.startswith("LOAD")]
    return row.message in loaded and row.asked in loaded and loaded.index(row.asked) < loaded.index(row.message)
