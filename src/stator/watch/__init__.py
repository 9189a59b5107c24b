"""Watching a program run: instrumented copies of its code, and what the probes in them tell."""
