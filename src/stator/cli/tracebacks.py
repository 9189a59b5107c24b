"""What a program raised, as Python would print it: without the frames that are ours or the import system's."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

_OURS = (os.path.join(os.path.dirname(os.path.dirname(__file__)), ""), "<frozen ", "<stator")


def print_error(error: BaseException) -> None:
    """To standard error. What is raised by nothing but our own code is printed whole."""
    own: list[TracebackType] = []
    at = error.__traceback__
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(_OURS):
            own.append(at)
        at = at.tb_next
    made: TracebackType | None = None
    for one in reversed(own):
        made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    traceback.print_exception(
        error.with_traceback(made) if made is not None or isinstance(error, SyntaxError) else error
    )
