"""The end of a segment: what it changed outside, and how its results are made again.

Enters: the ledger, the graph and the state of the frames when the segment ends. Leaves: a `Recording`.
"""
