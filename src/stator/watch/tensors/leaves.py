"""Functions that are not torch functions and are recorded all the same: entering and leaving torch's modes, and
checkpointed regions.

`policy.LEAVES` names them. They run for real, unwatched. A mode is one node, which calls the function that torch keeps
for graphs; a region is a mark on the nodes in it.
"""

from __future__ import annotations

import types
from typing import Any

import torch.amp.autocast_mode
import torch.autograd.grad_mode
from torch import fx

from ...recording import Fact
from ..graph_break import BreakGraph
from ..segment import Segment


class Leaves:
    def __init__(self, s: Segment) -> None:
        self._segment = s
        self._entered: dict[int, list[fx.Node]] = {}

    def call(self, payload: str, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        """Run the function; on success record its node. A failure to record ends the recording only."""
        s = self._segment
        try:
            s.enter(function)
        except Exception as error:
            s.fail(error)
        code = function.__code__
        positional = slots[: code.co_argcount]
        rest = slots[code.co_argcount] if code.co_flags & 0x04 else ()
        result = s.watcher.call_leaf(function, (*positional, *rest), {})
        if s.tracer.active:
            try:
                getattr(self, payload)(*slots)
                s.tracer.expect_state()
            except Exception as error:
                s.fail(error)
            except BaseException as error:  # the function has run: it must be seen to have returned
                s.watcher.interrupt(error)
        return result

    def _known_manager(self, manager: Any) -> None:
        if self._segment.ledger.find(manager) is not None:
            raise BreakGraph("unguardable", "a context manager made outside is entered")

    def enter_inference_mode(self, manager: Any) -> None:
        self._known_manager(manager)
        target = torch.autograd.grad_mode._enter_inference_mode
        node = self._segment.tracer.leaf(target, (manager.mode,), "enter_inference_mode")
        self._entered.setdefault(id(manager), []).append(node)

    def exit_inference_mode(self, manager: Any, *exception: Any) -> None:
        self._leave(manager, torch.autograd.grad_mode._exit_inference_mode, "exit_inference_mode")

    def enter_autocast(self, manager: Any) -> None:
        self._known_manager(manager)
        values = (manager.device, manager.fast_dtype, manager._enabled, manager._cache_enabled)
        node = self._segment.tracer.leaf(torch.amp.autocast_mode._enter_autocast, values, "enter_autocast")
        self._entered.setdefault(id(manager), []).append(node)

    def exit_autocast(self, manager: Any, *exception: Any) -> None:
        self._leave(manager, torch.amp.autocast_mode._exit_autocast, "exit_autocast")

    def enter_region(self, context_fn: Any) -> None:
        """A checkpointed call begins; `context_fn` says what is to be kept of it."""
        origin = self._segment.ledger.find(context_fn)
        if origin is not None:
            self._segment.ledger.check(origin, Fact.IS, context_fn)
        self._segment.tracer.regions.enter(context_fn)

    def leave_region(self) -> None:
        self._segment.tracer.regions.leave()

    def _leave(self, manager: Any, target: Any, name: str) -> None:
        entered = self._entered.get(id(manager))
        if not entered:
            raise BreakGraph("state-changed", f"{name} without its entry")
        self._segment.tracer.leaf(target, (entered.pop(),), name)
