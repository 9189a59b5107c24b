"""`torch.utils.checkpoint` in a watched run: the region runs once, and the nodes recorded in it are marked.

Two functions of torch are watched by another text than their own, one that does not checkpoint: what is kept for the
backward is for the backend to decide, which reads the marks. Where torch's functions have another shape than this file
knows, the text stays torch's, and the graph breaks there.

- the wrapper around `checkpoint` that keeps torch's own compiler out: it calls what it wraps;
- the generator around the checkpointed call: it says where the region begins and ends.
"""

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint

from .substitutes import substitute

_WRAPPER = """
def outer(fn, recursive):
    def inner(*args, **kwargs):
        {rest}
        return fn(*args, **kwargs) if recursive else fn(*args, **kwargs)
    return inner
"""
_GENERATOR = """
def outer(fn, preserve_rng_state, context_fn, determinism_check, debug, early_stop, *args, **kwargs):
    from stator.watch.models.checkpoints import enter_region, leave_region
    {rest}
    enter_region(context_fn)
    try:
        yield
    finally:
        leave_region()
"""


def enter_region(context_fn: Any) -> None:
    """A checkpointed call begins. Recorded by `Leaves`."""


def leave_region() -> None:
    """It is over."""


_module: Any = torch.utils.checkpoint
substitute(_module.checkpoint, _WRAPPER)
substitute(_module._checkpoint_without_reentrant_generator, _GENERATOR)
