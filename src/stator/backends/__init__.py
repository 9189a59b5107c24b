"""Backends: callables `(gm, example_inputs) -> callable` under a name."""

from .registry import list_backends, look_up, register_backend

__all__ = ["list_backends", "look_up", "register_backend"]
