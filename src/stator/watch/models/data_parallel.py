"""`DistributedDataParallel.forward` is watched by a text without the profiler's range, and without the mark that
torch's own compiler looks for.

What lies around the forward of the module inside (buffers are sent, buckets are made again, the reducer is told what
comes) breaks the graph, by rows of `side_effect_calls`: it runs as plain Python, as in eager.
"""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

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

_class: Any = DistributedDataParallel
substitute(_class.forward, _FORWARD)
