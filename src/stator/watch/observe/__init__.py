"""The watched run itself: probes arrive, frames start, segments begin and end.

Enters: the events of the C watcher. Leaves: recordings, one per segment. The other rooms of `watch/` are below.
"""
