"""Fixtures of this room's tests: a stand-in for the CUDA driver."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from driver import driver, library

__all__ = ["driver", "library"]
