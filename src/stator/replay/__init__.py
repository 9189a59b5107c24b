"""Replaying a recording: guards, the bytecode that repeats a segment, the cache."""
