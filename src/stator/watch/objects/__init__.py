"""Outside objects: what a run may read of them, and what it then relied on.

Enters: an object that the run is about to read, with its source. Leaves: entries of the ledger with the checks that
must hold again, or a `GraphBreak`. Nothing here runs code of the program.
"""
