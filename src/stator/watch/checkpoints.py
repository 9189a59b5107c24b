"""`torch.utils.checkpoint` in a watched run: the region runs once, and the nodes recorded in it are marked.

Two functions of torch are watched by another text than their own, one that does not checkpoint: what is kept for the
backward is for the backend to decide, which reads the marks. Where a frame of another shape is found than this file
knows, the text stays torch's, and the graph breaks there.

- the wrapper around `checkpoint` that keeps torch's own compiler out: it calls what it wraps;
- the generator around the checkpointed call: it says where the region begins and ends.
"""

from __future__ import annotations

import types
from typing import Any

import torch.utils.checkpoint

from .instrument import SUBSTITUTES

_WRAPPER = """
def outer(fn, recursive):
    def inner(*args, **kwargs):
        {rest} = None
        return fn(*args, **kwargs) if recursive else fn(*args, **kwargs)
    return inner
"""
_GENERATOR = """
def outer(fn, preserve_rng_state, context_fn, determinism_check, debug, early_stop, *args, **kwargs):
    from stator.watch.checkpoints import enter_region, leave_region
    {rest} = None
    enter_region(context_fn)
    try:
        yield
    finally:
        leave_region()
"""
_KNOWN_SHAPE = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars")


def enter_region(context_fn: Any) -> None:
    """A checkpointed call begins. Recorded by `Leaves`."""


def leave_region() -> None:
    """It is over."""


def _slots(code: types.CodeType) -> int:
    return len({*code.co_varnames, *code.co_cellvars}) + len(code.co_freevars)


def _text(source: str, original: types.CodeType) -> types.CodeType | None:
    """The text as a code object whose frames have the shape of the original's."""
    code = _compiled(source, 1)
    missing = _slots(original) - _slots(code) + 1
    if missing < 1:
        return None
    code = _compiled(source, missing)
    takes_rest = 0x0C  # *args, **kwargs
    arguments = code.co_argcount + (code.co_flags & takes_rest).bit_count()
    same = all(getattr(code, name) == getattr(original, name) for name in _KNOWN_SHAPE)
    same = same and code.co_varnames[:arguments] == original.co_varnames[:arguments]
    if not same or code.co_flags & 0xFF != original.co_flags & 0xFF or _slots(code) != _slots(original):
        return None
    return code.replace(
        co_filename=original.co_filename,
        co_name=original.co_name,
        co_qualname=original.co_qualname,
        co_firstlineno=original.co_firstlineno,
        co_flags=original.co_flags,
    )


def _compiled(source: str, rest: int) -> types.CodeType:
    made: dict[str, Any] = {}
    exec(source.format(rest=" = ".join(f"rest_{number}" for number in range(rest))), made)
    code: types.CodeType = made["outer"].__code__
    return next((c for c in code.co_consts if isinstance(c, types.CodeType)), code)


def _learn() -> None:
    module: Any = torch.utils.checkpoint
    known = {module.checkpoint: _WRAPPER, module._checkpoint_without_reentrant_generator: _GENERATOR}
    for function, source in known.items():
        text = _text(source, function.__code__)
        if text is not None:
            SUBSTITUTES[function.__code__] = text


_learn()
