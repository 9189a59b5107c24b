"""Numbers that may differ between calls: symbolic sizes, ints and floats, and scalars that depend on data.

Enters: numbers as the run reads them, and what it does with them. Leaves: expressions, relations between them for the
guards, and runtime asserts. A number whose value is needed is specialized, and guarded by that value.
"""
