"""What the program wants done with calls, and whether C code may check and replay by itself."""

from __future__ import annotations

from . import _native, events
from .options import options
from .watch.models import other_compiler

_stance = "default"


def set_stance(stance: str) -> str:
    """What to do with calls: the former stance is given back."""
    global _stance
    former, _stance = _stance, stance
    let_c_code_call()
    return former


def stance() -> str:
    """What to do with calls: as the program has told us, or torch's own compiler."""
    return _stance if _stance != "default" else other_compiler.stance()


def let_c_code_call() -> None:
    """Compiled callables check and replay in C, unless something wants to see or to prevent that."""
    _native.set_quick(_stance != "force_eager" and not options.check_guards, events.READERS, events.CacheHit)


options.on_change(let_c_code_call)
let_c_code_call()
