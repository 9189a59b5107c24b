"""Code objects in, code objects out: instrumented copies, continuations, the step over a break.

Enters: a code object of the program, and for continuations the state of a frame. Leaves: code objects for CPython,
and what is known of each instruction (stack, live variables). Nothing here knows of tensors, guards or recordings.
"""
