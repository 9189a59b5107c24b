"""Is this a torch whose insides in C++ were read up?

What the linker knows a function by says nothing of what it returns, and no object says how large it is. So functions
are called past torch's Python interface, and words of its objects are read, only in releases of torch, and on machines,
for which that was looked up.
"""

from __future__ import annotations

import platform
import re
import sys

import torch

_RELEASES = ((2, 11), (2, 12), (2, 13))
_MACHINES = ("x86_64", "aarch64")


def is_read_up() -> bool:
    release = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    return release in _RELEASES and platform.machine() in _MACHINES and sys.platform == "linux"
