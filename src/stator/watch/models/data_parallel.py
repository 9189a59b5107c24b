"""`DistributedDataParallel` calls its module under a mark for torch's own compiler. It is watched without that mark.

What lies around that call (buffers are sent, buckets are made again, the reducer is told what comes) breaks the graph,
by rows of `side_effect_calls`: it runs as plain Python, as in eager. Where torch's function does more than this file
knows, it is watched by its own text, and the graph breaks at the mark.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from .substitutes import substitute

_CALL = """
def outer(self, *inputs, **kwargs):
    {rest}
    return self.module(*inputs, **kwargs)
"""

_function: Any = DistributedDataParallel._run_ddp_forward
if {*_function.__code__.co_names} == {"_use_python_reducer", "_inside_ddp_forward", "module"}:
    substitute(_function, _CALL)
