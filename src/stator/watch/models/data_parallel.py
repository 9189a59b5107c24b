"""`DistributedDataParallel`: what it does before and behind the module's forward runs as plain Python, as in eager.

There buffers are broadcast, buckets are made again and the reducer is told what comes; all of that is C++ code with
state of its own. The module in between is watched. `forward` is watched by a text without the profiler's range, and
without the mark that torch's own compiler looks for.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ..graph_break import BreakGraph
from ..segment import Segment
from .substitutes import substitute

_FORWARD = """
def outer(self, *inputs, **kwargs):
    {rest}
    inputs, kwargs = self._pre_forward(*inputs, **kwargs)
    if self._delay_all_reduce_all_params:
        output = self.module.forward(*inputs, **kwargs)
    else:
        output = self.module(*inputs, **kwargs)
    return self._post_forward(output)
"""

_DDP: Any = DistributedDataParallel
AROUND_FORWARD = [_DDP._pre_forward, _DDP._post_forward]
substitute(_DDP.forward, _FORWARD)


def around_forward(s: Segment, func: Any, args: tuple[Any, ...], kwnames: tuple[str, ...]) -> None:
    raise BreakGraph("data-parallel", f"DistributedDataParallel.{func.__name__}")
