"""Modules that are graphs or parts of graphs, and that the program does not notice: hooks that it has set for all
modules are not called for them, and what an operation in them raises is not printed."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule


class Unhooked(torch.nn.Module):
    """A module whose call is its `forward`, and nothing else."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class LazyGraph(_LazyGraphModule):
    """A graph module whose code is made when somebody calls or prints it."""

    __call__ = Unhooked.__call__

    def _real_recompile(self) -> Any:
        """Torch gives the class of each graph module, which has but one instance, a call that prints what is raised."""
        made = super()._real_recompile()
        type(self).__call__ = Unhooked.__call__  # type: ignore[method-assign]
        return made
