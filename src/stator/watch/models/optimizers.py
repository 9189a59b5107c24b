"""`torch.optim` in a watched run.

Optimizers run as they do without a compiler (`other_compiler`): their way through one computes with tensors where eager
computes with numbers, and comes to other results. What of them is not the optimizer itself is left out: ranges of the
profiler, unless one is on.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.autograd.profiler
import torch.optim

from ... import _native
from .substitutes import substitute

_FOLDER = os.path.dirname(os.path.abspath(torch.optim.__file__)) + os.sep
# A range of the profiler: with none on, it is an object that does nothing. (If the recording ends inside of it, torch's
# own `__exit__` must find that there is nothing to end.)
_INIT = """
def outer(self, name, args=None):
    {rest}
    self.name = name
    self.args = args
    self.run_callbacks_on_exit = True
    self.record = None
    self._cupti_monitor_external_id = None
"""
_ENTER = """
def outer(self):
    {rest}
    if torch.autograd._profiler_enabled():
        self.record = torch.ops.profiler._record_function_enter_new(self.name, self.args)
    else:
        self.run_callbacks_on_exit = False
    return self
"""
_EXIT = """
def outer(self, exc_type, exc_value, traceback):
    {rest}
    if self.record is None:
        self.run_callbacks_on_exit = True
    elif self.run_callbacks_on_exit:
        with torch._C.DisableTorchFunctionSubclass():
            torch.ops.profiler._record_function_exit._RecordFunction(self.record)
"""
_range: Any = torch.autograd.profiler.record_function
substitute(_range.__init__, _INIT)
substitute(_range.__enter__, _ENTER)
substitute(_range.__exit__, _EXIT)


def is_optimizer(filename: str) -> bool:
    """Is this code of `torch.optim`?"""
    return filename.startswith(_FOLDER)


def at_work(watcher: _native.Watcher) -> bool:
    """Does the instruction at work stand in `torch.optim`?"""
    probe = watcher.last_probe
    return probe is not None and is_optimizer(probe.code.co_filename)
