"""Comparing compiled graphs with eager; see docs/design/verify.md."""

from .check import check_graph, reference, verifying
from .reproduce import Subject

__all__ = ["Subject", "check_graph", "reference", "verifying"]
